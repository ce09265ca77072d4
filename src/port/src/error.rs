//! Why a port could not be opened, in sentences that say what to do.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another socket has UDP port 4791 on this address.
    #[error(
        "UDP port 4791 of {addr} is taken: another urxed has it, the kernel's own rdma_rxe, or a \
         program that has the port of every address. `ss -lunp sport = :4791` shows who; stop that \
         one, or, unless it has them all, choose another address with --addr"
    )]
    PortTaken {
        /// The address that was asked for.
        addr: IpAddr,
    },
    /// The address is not one of this machine's.
    #[error("{addr} is no address of this machine; its addresses are {}", Listed(.ours))]
    NotOurs {
        /// The address that was asked for.
        addr: IpAddr,
        /// Those that this machine has.
        ours: Vec<IpAddr>,
    },
    /// There is no interface of this name.
    #[error(
        "{interface} is no network interface of this machine; there are {}; `ip link` shows them",
        .ours.join(", ")
    )]
    NoSuchInterface {
        /// The name that was asked for.
        interface: String,
        /// Those that this machine has.
        ours: Vec<String>,
    },
    /// The kernel lists the address but does not let it be used (an IPv6 address is checked for a
    /// second owner first).
    #[error(
        "{addr} cannot be used yet: the kernel is still checking that nobody else has it; try \
         again in a few seconds, and see `ip address` for its state"
    )]
    NotYetUsable {
        /// The address that was asked for.
        addr: IpAddr,
    },
    /// The address is a wildcard, multicast or broadcast one.
    #[error("{addr} does not name one address: give one of {}", Listed(.ours))]
    NotOneAddress {
        /// The address that was asked for.
        addr: IpAddr,
        /// Those that this machine has.
        ours: Vec<IpAddr>,
    },
    /// The interface takes no packet large enough for the smallest RoCE path MTU.
    #[error(
        "the MTU of {interface} is {mtu} bytes, and the smallest RoCE path MTU (256) needs \
         {needed}; `ip link set {interface} mtu {needed}` or more"
    )]
    MtuTooSmall {
        /// The interface with the address.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The smallest MTU that would do, in bytes.
        needed: u32,
    },
    /// The kernel has no such address family.
    #[error(
        "this kernel has {} turned off, so {addr} cannot be used; choose an address of the other \
         family",
        family(.addr)
    )]
    FamilyNotSupported {
        /// The address that was asked for.
        addr: IpAddr,
    },
    /// Raw and packet sockets are for CAP_NET_RAW only.
    #[error(
        "the raw port writes and sees whole IP headers, for which the kernel wants CAP_NET_RAW: \
         run as root, or `setcap cap_net_raw+ep` the binary, or use the udp port, which needs \
         nothing"
    )]
    NoPrivilege,
    /// Anything else about an interface.
    #[error("{step} failed for interface {interface}: {source}")]
    Interface {
        /// The interface that was asked for.
        interface: String,
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else about an address.
    #[error("{step} for {addr} failed: {source}")]
    System {
        /// The address that was asked for.
        addr: IpAddr,
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    /// For `map_err`: a step for an address has failed.
    pub(crate) fn system(addr: IpAddr, step: &'static str) -> impl Fn(io::Error) -> OpenError {
        move |source| OpenError::System { addr, step, source }
    }
}

/// Addresses, with commas between them.
struct Listed<'a>(&'a [IpAddr]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, addr) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{addr}")?;
        }
        if self.0.is_empty() { f.write_str("(none)") } else { Ok(()) }
    }
}

/// The name of an address's family.
fn family(addr: &IpAddr) -> &'static str {
    if addr.is_ipv4() { "IPv4" } else { "IPv6" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_value_and_the_remedy() {
        let addr = "10.9.8.7".parse().unwrap();
        let ours = vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        assert_eq!(
            OpenError::NotOurs { addr, ours }.to_string(),
            "10.9.8.7 is no address of this machine; its addresses are 127.0.0.1, ::1"
        );
        assert!(OpenError::PortTaken { addr }.to_string().contains("ss -lunp sport = :4791"));
    }
}
