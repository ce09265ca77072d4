//! The UDP port of RoCEv2: whether it is free, and who has it if not.

use procfs::net::UdpNetEntry;
use procfs::process::{FDTarget, all_processes};
use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use urxe_wire::ROCE_PORT;

/// Whether a daemon could have the port of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortState {
    Free,
    /// Another socket has it.
    Taken(Owner),
    /// The system refuses it.
    Refused(String),
}

/// Who has a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The program and its process, as far as that can be seen: of other users only root sees it.
    pub(crate) program: Option<String>,
    /// It has the port of every address of the machine.
    pub(crate) everywhere: bool,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program.as_deref().unwrap_or("a program of another user"))
    }
}

/// The state of the port of an address.
pub(crate) fn state(address: IpAddr) -> PortState {
    match UdpSocket::bind((address, ROCE_PORT)) {
        Ok(_) => PortState::Free,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            PortState::Taken(owner(address, ROCE_PORT))
        }
        Err(error) => PortState::Refused(error.to_string()),
    }
}

/// Who has a UDP port of an address.
fn owner(address: IpAddr, port: u16) -> Owner {
    let sockets = [procfs::net::udp(), procfs::net::udp6()].into_iter().flatten().flatten();
    let Some((bound, inode)) = find(sockets, address, port) else { return Owner::default() };
    Owner { program: program(inode), everywhere: bound.is_unspecified() }
}

/// The program that has a socket.
fn program(inode: u64) -> Option<String> {
    if inode == 0 {
        return Some("the kernel (rdma_rxe)".into());
    }
    all_processes().ok()?.flatten().find_map(|process| {
        let mut fds = process.fd().ok()?.flatten();
        fds.find(|fd| fd.target == FDTarget::Socket(inode))?;
        let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
        Some(format!("{name} (process {})", process.pid()))
    })
}

/// What the socket that has the port is bound to, and its inode.
fn find(
    mut sockets: impl Iterator<Item = UdpNetEntry>,
    address: IpAddr,
    port: u16,
) -> Option<(IpAddr, u64)> {
    sockets.find_map(|socket| {
        let bound = socket.local_address.ip().to_canonical();
        let is_it =
            socket.local_address.port() == port && (bound == address || bound.is_unspecified());
        is_it.then_some((bound, socket.inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::net::UdpNetEntries;
    use procfs::{FromBufReadSI, current_system_info};

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
 14: 0400007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 2377 2 0 0
 15: 00000000:14EB 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 0 2 0 0
";

    /// The same for IPv6.
    const TABLE6: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
 17: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 \
00000000:00000000 00:00000000 00000000 0 0 99 2 0 0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_socket_of_a_port_is_found_by_its_address_or_as_one_for_all() {
        let found = |address: &str, port| {
            let table = |text: &str| {
                UdpNetEntries::from_buf_read(text.as_bytes(), current_system_info()).unwrap().0
            };
            let sockets = [table(TABLE), table(TABLE6)].into_iter().flatten();
            let (bound, inode) = find(sockets, address.parse().unwrap(), port)?;
            Some((bound.to_string(), inode))
        };
        assert_eq!(found("127.0.0.4", 4791), Some(("127.0.0.4".into(), 2377)));
        assert_eq!(found("127.0.0.5", 4791), None);
        assert_eq!(found("127.0.0.4", 4792), None);
        assert_eq!(found("10.0.0.1", 5355), Some(("0.0.0.0".into(), 0)));
        assert_eq!(found("::1", 4791), Some(("::1".into(), 99)));
    }

    #[test]
    fn this_process_is_found() {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let owner = owner([127, 0, 0, 1].into(), socket.local_addr().unwrap().port());
        let process = format!("(process {})", std::process::id());
        assert!(owner.program.as_ref().unwrap().contains(&process), "{owner}");
        assert!(!owner.everywhere);
        let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        assert!(self::owner([127, 0, 0, 1].into(), socket.local_addr().unwrap().port()).everywhere);
    }
}
