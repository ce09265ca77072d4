//! The sockets of an address, on their way from the process that opens them to the port that uses
//! them.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// What a port needs to serve one of this machine's addresses: opened by one process, and adopted
/// ([`Port::adopt`](crate::Port::adopt)) there or in another one, to which the descriptors are
/// passed over a Unix socket.
///
/// Who has them is trusted like the one who opened them: with a socket of a group of
/// [`UdpGroup`](crate::udp::UdpGroup) its steering can be taken away.
#[derive(Debug)]
pub struct AddressSockets {
    /// The address.
    pub addr: IpAddr,
    /// The sockets, in the order that the back-end which opened them wants them in.
    pub fds: Vec<OwnedFd>,
}
