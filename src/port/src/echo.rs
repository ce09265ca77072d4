//! ICMP echo: whether packets of a length reach a host and come back, whatever its ports do, and
//! with which traffic class.

use crate::open;
use crate::sys::{Receiver, option};
use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Bytes in front of an echo's payload: type, code, checksum, identifier, sequence number.
const HEADER_LEN: usize = 8;

/// What begins the payload, so that an answer is known to be one to us.
const NONCE_LEN: usize = 8;

/// Bytes of the longest packet that is received whole; what is behind them is not looked at.
const BUFFER_LEN: usize = 256;

/// Echo requests to a host. Users of the groups in `net.ipv4.ping_group_range` may make them, and
/// who has CAP_NET_RAW.
#[derive(Debug)]
pub struct Echo {
    socket: Socket,
    peer: SocketAddr,
    /// It is a raw socket, which receives all ICMP messages of this machine, and IPv4 ones with
    /// their IP header.
    is_raw: bool,
    nonce: u64,
    sequence: u16,
}

impl Echo {
    /// Requests from an address of this machine; both addresses with any port.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` if this user may make none.
    pub fn open(mut source: SocketAddr, mut peer: SocketAddr) -> io::Result<Echo> {
        let (protocol, level, name) = match peer {
            SocketAddr::V4(_) => (Protocol::ICMPV4, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            SocketAddr::V6(_) => (Protocol::ICMPV6, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        let make = |kind| Socket::new(open::domain(peer.ip()), kind, Some(protocol));
        let (socket, is_raw) = match make(Type::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (make(Type::RAW)?, true),
        };
        // Both families have the same number for it.
        option::set(socket.as_fd(), level, name, libc::IP_PMTUDISC_DO)?;
        source.set_port(0);
        peer.set_port(0);
        let (level, name) = match peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO),
        };
        option::set(socket.as_fd(), level, name, 1)?;
        socket.bind(&source.into())?;
        socket.set_nonblocking(true)?;
        let nonce = getrandom::u64().map_err(io::Error::from)?;
        Ok(Echo { socket, peer, is_raw, nonce, sequence: 0 })
    }

    /// Whether an IP packet of so many bytes (and at least those of the headers) comes back within
    /// `timeout`, without being fragmented on its way there.
    ///
    /// # Errors
    /// `EMSGSIZE` if the kernel knows it to be too long, and what sending has.
    pub fn comes_back(&mut self, ip_len: usize, timeout: Duration) -> io::Result<bool> {
        Ok(self.exchange(ip_len, timeout)?.is_some())
    }

    /// The traffic class with which a packet comes back within `timeout` that is sent with this
    /// one; `None`: none comes back. Whether a host answers with the class that it was asked with
    /// is its own affair; Linux does.
    ///
    /// # Errors
    /// What sending has.
    pub fn class_back(&mut self, traffic_class: u8, timeout: Duration) -> io::Result<Option<u8>> {
        let (level, name) = match self.peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        option::set(self.socket.as_fd(), level, name, traffic_class.into())?;
        self.exchange(0, timeout)
    }

    /// The traffic class of the answer to a packet of so many bytes, if one comes.
    fn exchange(&mut self, ip_len: usize, timeout: Duration) -> io::Result<Option<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let ip_header = if self.peer.is_ipv4() { 20 } else { 40 };
        let len = ip_len.saturating_sub(ip_header + HEADER_LEN).max(NONCE_LEN);
        let mut payload = vec![0; len];
        payload[..NONCE_LEN].copy_from_slice(&self.nonce.to_ne_bytes());
        // The kernel puts another identifier there, unless the socket is raw.
        let echo = IcmpEchoHeader { id: self.nonce as u16, seq: self.sequence };
        let mut message = match self.peer {
            SocketAddr::V4(_) => {
                let header = Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), &payload);
                header.to_bytes().to_vec()
            }
            // The kernel computes its checksum.
            SocketAddr::V6(_) => {
                let header = Icmpv6Header::new(Icmpv6Type::EchoRequest(echo));
                header.to_bytes().to_vec()
            }
        };
        message.extend(payload);
        self.socket.send_to(&message, &self.peer.into())?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&wait)) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    if let Some(traffic_class) = self.take_answer()? {
                        return Ok(Some(traffic_class));
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes what has come, until it is the answer to the last request: its traffic class.
    fn take_answer(&self) -> io::Result<Option<u8>> {
        let mut receiver = Receiver::new(1);
        let mut buffers = [vec![0; BUFFER_LEN].into_boxed_slice()];
        loop {
            match receiver.recv(self.socket.as_fd(), &mut buffers) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    let received = receiver.received(0);
                    if self.is_answer(&buffers[0][..received.len.min(BUFFER_LEN)]) {
                        return Ok(Some(received.traffic_class));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn is_answer(&self, packet: &[u8]) -> bool {
        const ECHO_REPLY: u8 = 0;
        const ECHO_REPLY_V6: u8 = 129;
        let reply = if self.peer.is_ipv4() { ECHO_REPLY } else { ECHO_REPLY_V6 };
        let ip_header = match packet.first() {
            Some(first) if self.is_raw && self.peer.is_ipv4() => usize::from(first & 0xf) * 4,
            _ => 0,
        };
        let message = packet.get(ip_header..).unwrap_or_default();
        let Some((header, payload)) = message.split_first_chunk::<HEADER_LEN>() else {
            return false;
        };
        header[0] == reply
            && header[6..] == self.sequence.to_be_bytes()
            && payload.starts_with(&self.nonce.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shell::testing::needs_root;

    /// Long enough for anything that must come.
    const LONG: Duration = Duration::from_secs(20);

    /// `None` where this user may make no requests.
    fn echo(host: &str) -> Option<Echo> {
        let address = SocketAddr::new(host.parse().unwrap(), 4791);
        match Echo::open(address, address) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                needs_root(&format!("echo requests to {host}: {error}"));
                None
            }
            other => Some(other.unwrap()),
        }
    }

    /// Linux answers with the class that it was asked with.
    #[test]
    fn a_packet_comes_back_with_its_traffic_class() {
        for host in ["127.0.0.1", "::1"] {
            let Some(mut echo) = echo(host) else { continue };
            for class in [0x6a, 0, 0xb8, 0x01] {
                assert_eq!(echo.class_back(class, LONG).unwrap(), Some(class), "{host}");
            }
        }
    }

    #[test]
    fn packets_of_each_length_come_back_from_a_host_that_is_there() {
        for host in ["127.0.0.1", "::1"] {
            let Some(mut echo) = echo(host) else { continue };
            for ip_len in [0, 100, 1500, 9000] {
                assert!(echo.comes_back(ip_len, LONG).unwrap(), "{host} {ip_len}");
            }
        }
    }

    #[test]
    fn answers_to_others_and_to_earlier_requests_are_none() {
        let Some(mut echo) = echo("127.0.0.1") else { return };
        (echo.is_raw, echo.sequence) = (false, 7);
        let mut reply = vec![0, 0, 0, 0, 0, 0, 0, 7];
        reply.extend(echo.nonce.to_ne_bytes());
        assert!(echo.is_answer(&reply));
        for at in [0, 7, 8] {
            let mut other = reply.clone();
            other[at] ^= 1;
            assert!(!echo.is_answer(&other), "byte {at}");
        }
        for len in 0..reply.len() {
            assert!(!echo.is_answer(&reply[..len]), "{len} bytes");
        }
        // A header of another length, which reaches beyond the packet, and none.
        echo.is_raw = true;
        assert!(!echo.is_answer(&[0x4f; 20]) && !echo.is_answer(&[]));
        let mut raw = vec![0; 20];
        raw[0] = 0x45;
        raw.extend(reply);
        assert!(echo.is_answer(&raw));
    }
}
