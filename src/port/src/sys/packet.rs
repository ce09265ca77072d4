//! Packet sockets: IP packets as an interface received them.

use super::option;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};
use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// Bytes of the header that `PACKET_VNET_HDR` puts in front of a packet: `struct virtio_net_hdr`,
/// in the machine's byte order.
pub(crate) const VNET_HEADER_LEN: usize = 10;

/// From linux/if_packet.h.
pub(super) const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// From linux/virtio_net.h: kinds of super-packets, and the bit that goes with them for ECN.
const VIRTIO_NET_HDR_GSO_UDP_L4: u8 = 5;
const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

/// The length of the UDP segments that the packet behind this header is still to be cut into; 0 if
/// it is an ordinary packet.
pub(crate) fn segment_len(header: &[u8; VNET_HEADER_LEN]) -> usize {
    let [_flags, gso_type, _, _, low, high, ..] = *header;
    match gso_type & !VIRTIO_NET_HDR_GSO_ECN {
        VIRTIO_NET_HDR_GSO_UDP_L4 => u16::from_ne_bytes([low, high]).into(),
        _ => 0,
    }
}

/// Where the IP header begins in a packet, counted from its link header: `tp_net` of a `struct
/// tpacket_auxdata` (three u32, tp_mac, tp_net ...). 0 if the data is too short to be one.
pub(super) fn network_at(auxdata: &[u8]) -> u16 {
    match auxdata.get(14..16) {
        Some(&[a, b]) => u16::from_ne_bytes([a, b]),
        _ => 0,
    }
}

/// Makes a packet socket that receives nothing yet.
///
/// It is of type SOCK_RAW, link header included, because `PACKET_VNET_HDR` is for those only.
/// `outgoing`: it also sees what this machine sends.
pub(crate) fn socket(outgoing: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    option::set(socket.as_fd(), libc::SOL_PACKET, PACKET_AUXDATA, 1)?;
    option::set(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, (!outgoing).into())?;
    option::set(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The kernel's number for an address's family on the link.
pub(crate) fn protocol(family: IpAddr) -> u16 {
    let protocol = if family.is_ipv4() { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
    protocol as u16
}

/// The number that stands for all protocols: what goes out is only shown to those who want all.
pub(crate) const ALL_PROTOCOLS: u16 = libc::ETH_P_ALL as u16;

/// Lets a packet socket receive the packets of a protocol from all interfaces, as far as its filter
/// lets them through.
pub(crate) fn listen(socket: &Socket, protocol: u16) -> io::Result<()> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a sockaddr_ll is plain old data and fits into the storage, as every socket address
    // does; no interface (0) means all of them.
    let name = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = protocol.to_be();
    let len = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the storage holds a sockaddr_ll of that length, written just now.
    let name = unsafe { SockAddr::new(storage, len) };
    socket.bind(&name)
}
