//! The sockets of a port: one for each address, and one for each multicast group.

use super::UdpOptions;
use super::pool::SendPool;
use super::source_filter;
use crate::open::{self, HOP_LIMIT};
use crate::shared_socket::SharedSocket;
use crate::socket_set::{Member, SocketSet};
use crate::sys::{Message, option};
use crate::watch::Link;
use crate::{AddressSockets, OpenError, PacketSource, offload};
use socket2::{InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use urxe_wire::batch::Run;
use urxe_wire::{Flow, ROCE_PORT};

/// What arrives for one destination.
pub(super) struct UdpSocket {
    socket: SharedSocket,
    /// What the datagrams that it receives are sent to: one of our addresses, or a group.
    dst: IpAddr,
    /// For a group that the kernel has no route to: where we send instead, to receive our own.
    loop_back_to: Option<SocketAddr>,
    receive_capacity: usize,
    /// What sends from other ports than 4791.
    pool: SendPool,
}

impl UdpSocket {
    /// The socket of one of our addresses, which also sends what comes from there: what a
    /// [`UdpGroup`](super::UdpGroup) gives to a slot.
    pub(super) fn of_address(
        sockets: AddressSockets,
        options: &UdpOptions,
    ) -> Result<UdpSocket, OpenError> {
        let AddressSockets { addr, fds } = sockets;
        let socket = the_only(addr, fds).map_err(OpenError::system(addr, "taking its socket"))?;
        Ok(UdpSocket {
            dst: addr,
            loop_back_to: None,
            receive_capacity: open::receive_capacity(&socket),
            pool: SendPool::new(options.first_pool_port(), options.pool_ports()),
            socket: SharedSocket::new(socket, options.share.as_ref()),
        })
    }

    /// The socket of a multicast group, which many ports of this machine can have at a time. `addr`
    /// is one of our addresses of the group's family.
    pub(super) fn of_group(
        group: IpAddr,
        addr: Option<IpAddr>,
        interface: &Link,
        options: &UdpOptions,
    ) -> io::Result<UdpSocket> {
        let socket = Socket::new(open::domain(group), Type::DGRAM, Some(Protocol::UDP))?;
        let mut loop_back_to = None;
        match group {
            IpAddr::V4(v4) => {
                share(&socket)?;
                // MCAST-010: only what comes over the interface on which this socket joins.
                socket.set_multicast_all_v4(false)?;
                socket.bind(&SocketAddr::new(group, ROCE_PORT).into())?;
                let interface = InterfaceIndexOrAddress::Index(interface.index);
                socket.join_multicast_v4_n(&v4, &interface)?;
            }
            IpAddr::V6(v6) if has_route(v6, interface)? => {
                socket.set_only_v6(true)?;
                share(&socket)?;
                // MCAST-010
                socket.set_multicast_all_v6(false)?;
                let name = SocketAddrV6::new(v6, ROCE_PORT, 0, interface.index);
                socket.bind(&name.into())?;
                socket.join_multicast_v6(&v6, interface.index)?;
            }
            IpAddr::V6(_) => {
                socket.set_only_v6(true)?;
                let addr = addr.ok_or(io::ErrorKind::AddrNotAvailable)?;
                socket.bind(&open::socket_addr(addr, 0, interface.index).into())?;
                loop_back_to = socket.local_addr()?.as_socket();
            }
        }
        socket.set_nonblocking(true)?;
        set_options(&socket, group, options)?;
        Ok(UdpSocket {
            dst: group,
            loop_back_to,
            receive_capacity: open::receive_capacity(&socket),
            pool: SendPool::new(ROCE_PORT, 0),
            socket: SharedSocket::new(socket, options.share.as_ref()),
        })
    }

    /// Whether this address, with this source port, can send a flow's datagrams as the flow says,
    /// so that the ICRC is right.
    pub(super) fn can_send(&self, flow: &Flow) -> bool {
        flow.src == self.dst
            && (flow.src_port == ROCE_PORT || self.pool.contains(flow.src_port))
            && flow.dst.is_ipv4() == self.dst.is_ipv4()
    }

    /// What sends from a port of this address; the socket of 4791 if that port is not
    /// [open](Self::sends_from).
    pub(super) fn sender(&self, src_port: u16) -> BorrowedFd<'_> {
        self.pool.socket(src_port).unwrap_or(self.as_fd())
    }

    /// Whether there is a socket that sends from a port; `None` if that was not tried yet.
    pub(super) fn sends_from(&self, src_port: u16) -> Option<bool> {
        if src_port == ROCE_PORT { Some(true) } else { self.pool.is_open(src_port) }
    }

    /// Opens what sends from a port of this address. Returns whether it is there now.
    pub(super) fn open_sender(
        &mut self,
        src_port: u16,
        interface: &Link,
        options: &UdpOptions,
    ) -> bool {
        self.pool.open(self.dst, src_port, interface, options)
    }

    /// Whether all that it has open is also open where pollers are.
    pub(super) fn is_shared(&self) -> bool {
        self.socket.is_shared() && self.pool.is_shared()
    }

    /// Receives nothing from these sources, and from all others again.
    pub(super) fn refuse_sources(&self, sources: &[PacketSource]) -> io::Result<()> {
        match sources {
            [] => open::receive_anything(&self.socket),
            sources => self.socket.attach_filter(&source_filter::all_but(sources, self.dst)),
        }
    }

    /// See [`open::receive_capacity`].
    pub(super) fn receive_capacity(&self) -> usize {
        self.receive_capacity
    }
}

impl Member for UdpSocket {
    fn dst(&self) -> IpAddr {
        self.dst
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How a run is sent, by a port with these sockets; its flow label too, or 0 in its place.
pub(super) fn message<'a>(
    run: &Run<'a>,
    labels: bool,
    sockets: &SocketSet<UdpSocket>,
) -> Message<'a> {
    let flow = run.flow;
    let loop_back_to = if flow.dst.is_multicast() {
        sockets.position(flow.dst).and_then(|index| sockets[index].loop_back_to)
    } else {
        None
    };
    let interface = sockets.interface().index;
    let to = loop_back_to.unwrap_or_else(|| open::socket_addr(flow.dst, ROCE_PORT, interface));
    let label = if labels { flow.flow_label & MAX_FLOW_LABEL } else { 0 };
    Message {
        parts: [run.bytes, &[]],
        to: match to {
            SocketAddr::V6(mut to) => {
                to.set_flowinfo(label);
                to.into()
            }
            to => to,
        },
        segment: run.is_segmented().then_some(run.segment_len as u16),
        traffic_class: (flow.traffic_class != 0).then_some(flow.traffic_class),
        // A hop limit of 0 would not leave the machine; the kernel refuses it.
        hop_limit: (flow.hop_limit != HOP_LIMIT && flow.hop_limit != 0).then_some(flow.hop_limit),
    }
}

/// Whether a run is to have a flow label, as only IPv6 has.
pub(super) fn has_label(run: &Run<'_>) -> bool {
    run.flow.dst.is_ipv6() && run.flow.flow_label & MAX_FLOW_LABEL != 0
}

/// The bits of the flow label.
const MAX_FLOW_LABEL: u32 = 0xf_ffff;

/// The socket of an address, out of those that were given for it.
fn the_only(addr: IpAddr, fds: Vec<OwnedFd>) -> io::Result<Socket> {
    let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let [fd] = <[OwnedFd; 1]>::try_from(fds)
        .map_err(|fds| refused(format!("{} sockets, expected one", fds.len())))?;
    let socket = Socket::from(fd);
    let name = socket.local_addr()?.as_socket();
    match name {
        // SLOT-055
        Some(name) if (name.ip(), name.port()) == (addr, ROCE_PORT) => Ok(socket),
        _ => Err(refused(format!("it is bound to {name:?}, expected {addr}, port {ROCE_PORT}"))),
    }
}

/// Whether the kernel knows a way to a group over an interface.
///
/// It has none over the loopback interface on most machines, unlike for IPv4, and only root can
/// make one. There the only receiver of ours is the port itself (a second port cannot have ::1), so
/// that the port does without.
fn has_route(group: Ipv6Addr, interface: &Link) -> io::Result<bool> {
    if !interface.loopback {
        return Ok(true);
    }
    let probe = Socket::new(open::domain(group.into()), Type::DGRAM, Some(Protocol::UDP))?;
    probe.set_multicast_if_v6(interface.index)?;
    let name = SocketAddrV6::new(group, ROCE_PORT, 0, interface.index);
    match probe.connect(&name.into()) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENETUNREACH) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets other sockets have the same group and port. Each gets a copy of what arrives.
fn share(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_address(true)
}

/// What makes the headers of what a socket sends those that the ICRC was made for.
pub(super) fn set_send_options(
    socket: &Socket,
    addr: IpAddr,
    options: &UdpOptions,
) -> io::Result<()> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6};
    let set = |level, name, value| option::set(socket.as_fd(), level, name, value);
    open::obey_the_link_mtu(socket, addr)?;
    if addr.is_ipv4() {
        set(IPPROTO_IP, libc::IP_TTL, HOP_LIMIT.into())?;
    } else {
        set(IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
        // The flow's label, not one of the kernel's own.
        set(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0)?;
        set(IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, 1)?;
    }
    option::ask_for_send_buffer(socket.as_fd(), options.socket_buffer)
}

pub(super) fn set_options(socket: &Socket, addr: IpAddr, options: &UdpOptions) -> io::Result<()> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_UDP};
    set_send_options(socket, addr, options)?;
    let set = |level, name, value| option::set(socket.as_fd(), level, name, value);
    if addr.is_ipv4() {
        set(IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set(IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    } else {
        // Brings the traffic class too.
        set(IPPROTO_IPV6, libc::IPV6_FLOWINFO, 1)?;
        set(IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        // Kernel rxe sends no UDP checksum over IPv6 either.
        set(SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    offload::receive_coalesced(socket)?;
    option::ask_for_receive_buffer(socket.as_fd(), options.socket_buffer)
}

/// From linux/in6.h.
const IPV6_AUTOFLOWLABEL: libc::c_int = 70;
/// From linux/udp.h: take IPv6 datagrams without a checksum.
const UDP_NO_CHECK6_RX: libc::c_int = 102;
