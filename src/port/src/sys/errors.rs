//! A socket's queue of errors (`IP_RECVERR`): what routers, peers and the kernel say of datagrams
//! that were sent, and who says it.

use super::control;
use super::recv::Receiver;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

/// Bytes of `sock_extended_err`, of linux/errqueue.h, which begins with the errno; the address of
/// who says it follows.
const EXTENDED_ERR_LEN: usize = 16;

/// Where `ee_origin` stands in it, and its values for what came by ICMP and ICMPv6.
const ORIGIN_AT: usize = 4;
const ORIGINS_ICMP: [u8; 2] = [2, 3];

/// An error from a socket's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedError {
    /// Its number, as a call of the socket would have it.
    pub(crate) errno: i32,
    /// Whether it came by ICMP; else the kernel has refused a call.
    pub(crate) is_icmp: bool,
    /// Who says it, if that is not the kernel itself.
    pub(crate) said_by: Option<IpAddr>,
    /// Where the datagram that it is about was to go.
    pub(crate) destination: Option<IpAddr>,
}

/// What reads the queues of errors.
pub(crate) struct ErrorQueue {
    receiver: Receiver,
}

impl ErrorQueue {
    pub(crate) fn new() -> ErrorQueue {
        ErrorQueue { receiver: Receiver::new(1) }
    }

    /// Takes the oldest error off a socket's queue; `None` if there is none.
    pub(crate) fn next(&mut self, fd: BorrowedFd<'_>) -> io::Result<Option<QueuedError>> {
        // The datagram that it is about comes with it, and is not needed.
        let mut no_room = [Box::default()];
        if self.receiver.recv_queue(fd, &mut no_room, libc::MSG_ERRQUEUE)? == 0 {
            return Ok(None);
        }
        let headers = &self.receiver.headers;
        let header = &headers.messages[0].header;
        let control = &headers.controls[0];
        let destination = headers.names[0].addr(header.name_len as usize).map(|to| to.ip());
        let unknown = QueuedError { errno: libc::EIO, is_icmp: false, said_by: None, destination };
        let end = header.control_len.min(mem::size_of_val(control));
        let mut at = 0;
        while let Some((level, kind, data, next)) = control::read(control, at, end) {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                    return Ok(Some(QueuedError {
                        errno: control::number(data),
                        is_icmp: data.get(ORIGIN_AT).is_some_and(|by| ORIGINS_ICMP.contains(by)),
                        said_by: data.get(EXTENDED_ERR_LEN..).and_then(address),
                        destination,
                    }));
                }
                _ => at = next,
            }
        }
        Ok(Some(unknown))
    }
}

/// The address in a `sockaddr_in` or `sockaddr_in6`.
fn address(name: &[u8]) -> Option<IpAddr> {
    let (family, rest) = name.split_first_chunk()?;
    match libc::c_int::from(libc::sa_family_t::from_ne_bytes(*family)) {
        // Behind the port.
        libc::AF_INET => {
            rest.get(2..)?.first_chunk().map(|bytes: &[u8; 4]| Ipv4Addr::from(*bytes).into())
        }
        // Behind port and flow label.
        libc::AF_INET6 => {
            rest.get(6..)?.first_chunk().map(|bytes: &[u8; 16]| Ipv6Addr::from(*bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_if_all_of_it_is_there() {
        let mut name = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        name.extend([0x12, 0xb7, 10, 0, 0, 2]);
        assert_eq!(address(&name), Some([10, 0, 0, 2].into()));
        assert_eq!(address(&name[..7]), None);
        let mut name = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        name.extend([0; 6]);
        name.extend(Ipv6Addr::LOCALHOST.octets());
        assert_eq!(address(&name), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(address(&name[..23]), None);
        assert_eq!(address(&[]), None);
    }
}
