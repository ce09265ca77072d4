//! The UDP port of RoCEv2: whether it is free, and who has it if not.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
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
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let tables = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
    let found = tables.iter().find_map(|table| find(table, address, port));
    let Some((bound, inode)) = found else { return Owner::default() };
    Owner { program: program(inode), everywhere: bound.is_unspecified() }
}

/// The program that has a socket.
fn program(inode: u64) -> Option<String> {
    if inode == 0 {
        return Some("the kernel (rdma_rxe)".into());
    }
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let mut fds = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        fds.find(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_str() == Some(&wanted)))?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        Some(format!("{} (process {pid})", name.trim()))
    })
}

/// What the socket that has the port is bound to, and its inode, in a table like `/proc/net/udp`.
fn find(table: &str, address: IpAddr, port: u16) -> Option<(IpAddr, u64)> {
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (local_address, local_port) = words.nth(1)?.split_once(':')?;
        let bound = parse_address(local_address)?;
        let is_it = u16::from_str_radix(local_port, 16).ok()? == port
            && (bound == address || bound.is_unspecified());
        let inode = words.nth(7)?.parse().ok()?;
        is_it.then_some((bound, inode))
    })
}

/// An address as these tables have it: words in the machine's byte order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
 14: 0400007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 2377 2 0 0
 15: 00000000:14EB 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 0 2 0 0
 16: nonsense
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_socket_of_a_port_is_found_by_its_address_or_as_one_for_all() {
        let found = |address: &str, port| {
            let (bound, inode) = find(TABLE, address.parse().unwrap(), port)?;
            Some((bound.to_string(), inode))
        };
        assert_eq!(found("127.0.0.4", 4791), Some(("127.0.0.4".into(), 2377)));
        assert_eq!(found("127.0.0.5", 4791), None);
        assert_eq!(found("127.0.0.4", 4792), None);
        assert_eq!(found("10.0.0.1", 5355), Some(("0.0.0.0".into(), 0)));
        let six = "00000000000000000000000001000000";
        assert_eq!(parse_address(six), Some(Ipv6Addr::LOCALHOST.into()));
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
