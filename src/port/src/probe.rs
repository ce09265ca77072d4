//! Asking the network about the way to a peer's port of RoCEv2, without a device of one's own.
//!
//! What routers and the peer's kernel say of a datagram (ICMP) reaches the socket that sent it as
//! an error. What nobody says anything of has arrived, or was dropped in silence.

use crate::open;
use crate::sys::{ErrorQueue, QueuedError, option};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use socket2::{Protocol, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use urxe_types::{Extra, Psn, Qpn};
use urxe_wire::{Bth, Flow, Headers, MAX_UDP_PAYLOAD, OuterHeaders, Part, Request, icrc};

/// QP0, that of subnet management, which RoCE does not have.
const NO_QP: Qpn = Qpn::new(0);

/// The identification that the kernel gives to what an unconnected socket sends with "don't
/// fragment".
const IDENT: u16 = 0;

/// What was said of a packet that was sent.
#[derive(Debug)]
pub struct Objection {
    /// As an error of the socket: `ECONNREFUSED` if the port is closed, `EMSGSIZE` if the packet is
    /// too long, `EPERM` if a firewall of this machine forbids it.
    pub error: io::Error,
    /// The router or host that says so; `None`: this machine's kernel.
    pub said_by: Option<IpAddr>,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.said_by {
            Some(said_by) => write!(f, "{said_by} says: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for Objection {}

impl From<io::Error> for Objection {
    /// What the kernel says itself.
    fn from(error: io::Error) -> Objection {
        Objection { error, said_by: None }
    }
}

/// A socket that sends sound RoCEv2 packets which no device answers: they are for QP0, which none
/// has, and a device drops them as it does all for a QP that it does not know.
#[derive(Debug)]
pub struct Probe {
    socket: Socket,
    flow: Flow,
    source: SocketAddr,
    peer: SocketAddr,
}

impl Probe {
    /// A socket towards `peer`, whose port is that of RoCEv2 as a rule, from `source` or from the
    /// address that the system's route has.
    ///
    /// # Errors
    /// `ENETUNREACH` or `EHOSTUNREACH` if there is no route, `EADDRNOTAVAIL` if the machine has no
    /// such source, and what making a socket has.
    pub fn open(source: Option<IpAddr>, peer: SocketAddr) -> io::Result<Probe> {
        let source = routed(source, peer)?.local_addr()?;
        let socket = Socket::new(open::domain(peer.ip()), Type::DGRAM, Some(Protocol::UDP))?;
        let (level, names) = match peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, [libc::IP_MTU_DISCOVER, libc::IP_RECVERR]),
            SocketAddr::V6(_) => {
                (libc::IPPROTO_IPV6, [libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVERR])
            }
        };
        // Both families have the same number for it.
        option::set(socket.as_fd(), level, names[0], libc::IP_PMTUDISC_DO)?;
        option::set(socket.as_fd(), level, names[1], 1)?;
        let mut any_port = source;
        any_port.set_port(0);
        socket.bind(&any_port.into())?;
        socket.set_nonblocking(true)?;
        let src_port = socket.local_addr()?.as_socket().map_or(0, |bound| bound.port());
        let flow = Flow {
            src: source.ip(),
            dst: peer.ip(),
            src_port,
            traffic_class: 0,
            hop_limit: open::HOP_LIMIT,
            flow_label: 0,
        };
        Ok(Probe { socket, flow, source, peer })
    }

    /// The address that packets come from, with the interface's number if it is of one link only.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Where packets go.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The longest IP packet that can pass, in bytes, as far as the kernel knows: that of the
    /// interface, or of a router that has complained.
    ///
    /// # Errors
    /// If there is no route any more.
    pub fn largest_packet(&self) -> io::Result<u32> {
        // What was learned since is known to new sockets only.
        let socket = routed(Some(self.source.ip()), self.peer)?;
        Ok(match self.peer {
            SocketAddr::V4(_) => sockopt::ip_mtu(&socket)?,
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket)?,
        })
    }

    /// Sends a packet that may not be fragmented: an IP packet of at most so many bytes, and of no
    /// fewer than its headers have.
    ///
    /// # Errors
    /// If the kernel does not send it, or something was said of an earlier one.
    pub fn send(&self, ip_len: usize) -> Result<(), Objection> {
        let request = Request::Send(Part::Only((), Extra::None));
        let headers = Headers::new(Bth::new(NO_QP, Psn::default()), request);
        let udp_payload = ip_len.saturating_sub(OuterHeaders::len(self.peer.is_ipv6()));
        let udp_payload = udp_payload.min(MAX_UDP_PAYLOAD) & !3;
        let mut packet = vec![0; udp_payload.max(headers.len() + icrc::LEN)];
        headers.emit(&mut packet);
        icrc::stamp(&self.flow, IDENT, &mut packet);
        match self.socket.send_to(&packet, &self.peer.into()) {
            Ok(_) => Ok(()),
            // Perhaps it is that of an earlier packet.
            Err(error) => Err(self.take_objection()?.unwrap_or(error.into())),
        }
    }

    /// What is said of packets that were sent: the first of it, after which the rest is forgotten.
    /// `None` if nothing is said within `timeout`.
    ///
    /// # Errors
    /// If the socket cannot be waited for.
    pub fn objection(&self, timeout: Duration) -> io::Result<Option<Objection>> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).unwrap_or_default();
            // An error is told of without being asked for.
            match poll(&mut [PollFd::new(&self.socket, PollFlags::empty())], Some(&wait)) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    let objection = self.take_objection()?;
                    if objection.is_some() {
                        return Ok(objection);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Empties the queue of errors, without which the socket is not ready; returns the first.
    fn take_objection(&self) -> io::Result<Option<Objection>> {
        let (mut first, mut queue) = (None, ErrorQueue::new());
        while let Some(queued) = queue.next(self.socket.as_fd())? {
            let QueuedError { errno, said_by, .. } = queued;
            let error = io::Error::from_raw_os_error(errno);
            first.get_or_insert(Objection { error, said_by });
        }
        // The next packet would be refused for what was taken here.
        let pending = self.socket.take_error()?;
        Ok(first.or(pending.map(Objection::from)))
    }
}

/// A socket that is connected to a peer, which shows the route to it.
fn routed(source: Option<IpAddr>, peer: SocketAddr) -> io::Result<UdpSocket> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let interface = match peer {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(peer) => peer.scope_id(),
    };
    let socket = UdpSocket::bind(open::socket_addr(source.unwrap_or(any), 0, interface))?;
    socket.connect(peer)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_wire::icrc::{Checker, Verdict};
    use urxe_wire::{Ident, Outer, Packet};

    const A_MOMENT: Duration = Duration::from_millis(200);

    /// Long enough for anything that must come.
    const LONG: Duration = Duration::from_secs(20);

    /// A peer: a socket on a port of its own.
    fn peer(host: &str) -> UdpSocket {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket
    }

    #[test]
    fn packets_of_a_probe_are_sound_and_for_a_qp_that_does_not_exist() {
        for host in ["127.0.0.1", "::1"] {
            let peer = peer(host);
            let probe = Probe::open(None, peer.local_addr().unwrap()).unwrap();
            assert_eq!(probe.source().ip(), peer.local_addr().unwrap().ip());
            for ip_len in [0, 1500, 4000] {
                probe.send(ip_len).unwrap();
                let mut bytes = [0; 5000];
                let (len, from) = peer.recv_from(&mut bytes).unwrap();
                let headers = OuterHeaders::len(from.is_ipv6());
                assert!(ip_len == 0 || (ip_len - 3..=ip_len).contains(&(headers + len)), "{len}");
                let packet = Packet::parse(&bytes[..len]).unwrap();
                assert_eq!(packet.headers.bth.dest_qp, NO_QP);
                let flow = Flow { src_port: from.port(), ..probe.flow };
                let outer = Outer { flow, ident: Ident::Hidden { guess: IDENT } };
                assert_eq!(Checker::new().check(&outer, &bytes[..len]), Verdict::Exact);
            }
            assert!(probe.objection(A_MOMENT).unwrap().is_none());
        }
    }

    #[test]
    fn a_closed_port_objects_each_time_that_it_is_asked() {
        for host in ["127.0.0.1", "::1"] {
            let closed = peer(host).local_addr().unwrap();
            let probe = Probe::open(None, closed).unwrap();
            for _ in 0..3 {
                probe.send(0).unwrap();
                let Objection { error, said_by } = probe.objection(LONG).unwrap().unwrap();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
                assert_eq!(said_by, Some(closed.ip()));
            }
            assert!(probe.objection(Duration::ZERO).unwrap().is_none(), "it is said once");
        }
    }

    #[test]
    fn a_packet_that_the_interface_cannot_carry_is_refused_and_the_next_one_goes() {
        let peer = peer("::1");
        let probe = Probe::open(None, peer.local_addr().unwrap()).unwrap();
        let mtu = probe.largest_packet().unwrap();
        assert!(mtu >= 1280, "{mtu}");
        option::set(probe.socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU, 1280).unwrap();
        let objection = probe.send(1500).unwrap_err();
        assert_eq!(objection.error.raw_os_error(), Some(libc::EMSGSIZE));
        probe.send(1280).unwrap();
        assert!(probe.objection(A_MOMENT).unwrap().is_none());
    }

    #[test]
    fn without_a_route_or_the_source_there_is_no_probe() {
        let foreign = Some("192.0.2.1".parse().unwrap());
        let error = Probe::open(foreign, "127.0.0.1:4791".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
