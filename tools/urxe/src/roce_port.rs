//! Who has a UDP port.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The program that has a UDP port of an address, as far as that can be seen: of other users only
/// root sees it, and of the kernel's own sockets nobody.
pub(super) fn find(address: IpAddr, port: u16) -> Option<String> {
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let tables = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
    let inode = tables.iter().find_map(|table| inode(table, address, port))?;
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

/// The inode of the socket that has the port, in a table like `/proc/net/udp`.
fn inode(table: &str, address: IpAddr, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (local_address, local_port) = words.nth(1)?.split_once(':')?;
        let bound = parse_address(local_address)?;
        let is_it = u16::from_str_radix(local_port, 16).ok()? == port
            && (bound == address || bound.is_unspecified());
        words.nth(7)?.parse().ok().filter(|_| is_it)
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
    use std::net::UdpSocket;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
 14: 0400007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 2377 2 0 0
 15: 00000000:14EB 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 0 2 0 0
 16: nonsense
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_socket_of_a_port_is_found_by_its_address_or_as_one_for_all() {
        let found = |address: &str, port| inode(TABLE, address.parse().unwrap(), port);
        assert_eq!(found("127.0.0.4", 4791), Some(2377));
        assert_eq!(found("127.0.0.5", 4791), None);
        assert_eq!(found("127.0.0.4", 4792), None);
        assert_eq!(found("10.0.0.1", 5355), Some(0));
        let six = "00000000000000000000000001000000";
        assert_eq!(parse_address(six), Some(Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn this_process_is_found() {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let owner = find([127, 0, 0, 1].into(), socket.local_addr().unwrap().port()).unwrap();
        assert!(owner.contains(&format!("(process {})", std::process::id())), "{owner}");
    }
}
