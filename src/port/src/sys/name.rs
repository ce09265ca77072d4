//! Socket addresses as the kernel reads and writes them.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    pub(super) const NONE: Name = {
        // SAFETY: socket addresses are plain old data; all zeroes is a valid value of each.
        unsafe { mem::zeroed() }
    };

    /// The address as the kernel wants it, and its length.
    pub(super) fn of(addr: &SocketAddr) -> (Name, usize) {
        let mut name = Name::NONE;
        match addr {
            SocketAddr::V4(addr) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (name, mem::size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(addr) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo().to_be(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                (name, mem::size_of::<libc::sockaddr_in6>())
            }
        }
    }

    /// The address that the kernel wrote, if it is one of the Internet.
    pub(super) fn addr(&self, len: usize) -> Option<SocketAddr> {
        if len < mem::size_of::<libc::sa_family_t>() {
            return None;
        }
        // SAFETY: every variant begins with the family, and every bit pattern is valid for all of
        // them; which one is meant is decided by family and length before it is read.
        unsafe {
            match libc::c_int::from(self.family) {
                libc::AF_INET if len >= mem::size_of::<libc::sockaddr_in>() => {
                    let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into())
                }
                libc::AF_INET6 if len >= mem::size_of::<libc::sockaddr_in6>() => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    let port = u16::from_be(self.v6.sin6_port);
                    Some(SocketAddrV6::new(ip, port, 0, self.v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}
