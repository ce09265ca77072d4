//! `recvmmsg`, and `recvmsg` for one message, which is quicker.

use super::control::{self, Control, number};
use super::message::Headers;
use super::name::Name;
use super::packet::{self, PACKET_AUXDATA};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// What one message was received with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes in its buffer.
    pub(crate) len: usize,
    /// The sender, if the socket is one of the Internet.
    pub(crate) from: Option<SocketAddr>,
    /// Whether bytes or control messages had no room: nothing here can be relied on then.
    pub(crate) truncated: bool,
    /// The length of the datagrams that the kernel gathered here (`UDP_GRO`).
    pub(crate) segment: Option<u16>,
    /// Type of service or traffic class, where the socket asks for it.
    pub(crate) traffic_class: u8,
    /// IPv6 flow label, where the socket asks for it.
    pub(crate) flow_label: u32,
    /// Time to live or hop limit, where the socket asks for it.
    pub(crate) hop_limit: u8,
    /// Where the IP header begins, counted from the link's header (packet sockets).
    pub(crate) network_at: usize,
}

/// Receives many messages in one call.
pub(crate) struct Receiver {
    pub(super) headers: Headers,
}

impl Receiver {
    /// For calls with up to so many buffers.
    pub(crate) fn new(buffers: usize) -> Self {
        Receiver { headers: Headers::new(buffers) }
    }

    /// Receives what is there, one message a buffer, and returns how many; 0 if there is nothing.
    /// Of more buffers than this was made for, the first are used.
    pub(crate) fn recv(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: &mut [Box<[u8]>],
    ) -> io::Result<usize> {
        self.recv_queue(fd, buffers, 0)
    }

    /// The same with more flags, of another queue of the socket for example.
    pub(super) fn recv_queue(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: &mut [Box<[u8]>],
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let headers = &mut self.headers;
        let count = buffers.len().min(headers.messages.len());
        for (i, buffer) in buffers[..count].iter_mut().enumerate() {
            headers.vectors[i][0] =
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers.messages[i].header;
            header.name_len = mem::size_of::<Name>() as libc::c_int;
            header.part_count = 1;
            header.control_len = mem::size_of::<Control>();
            header.flags = 0;
        }
        headers.link(count);
        let flags = libc::MSG_DONTWAIT | flags;
        // SAFETY, of both calls: the first `count` headers were filled in just now; names, vectors
        // and controls lie in `headers`, the buffers are borrowed exclusively, and all have the
        // lengths given.
        let received = if let [message] = &mut headers.messages[..count] {
            let header = &raw mut message.header;
            // SAFETY: see above.
            let len = unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), header, flags) };
            message.len = libc::c_uint::try_from(len).unwrap_or(0);
            if len < 0 { len } else { 1 }
        } else {
            // SAFETY: see above.
            unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    fd.as_raw_fd(),
                    headers.messages.as_mut_ptr(),
                    count as libc::c_uint,
                    flags,
                    ptr::null_mut::<libc::timespec>(),
                )
            }
        };
        match usize::try_from(received) {
            Ok(received) => Ok(received),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }

    /// How many bytes the first so many messages of the last call have.
    pub(crate) fn bytes(&self, messages: usize) -> usize {
        self.headers.messages[..messages].iter().map(|message| message.len as usize).sum()
    }

    /// What came with a message of the last call, by its number among those received.
    pub(crate) fn received(&self, index: usize) -> Received {
        let message = &self.headers.messages[index];
        let header = &message.header;
        let mut received = Received {
            len: message.len as usize,
            from: self.headers.names[index].addr(header.name_len as usize),
            truncated: header.flags as libc::c_int & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            segment: None,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
            network_at: 0,
        };
        let control = &self.headers.controls[index];
        let end = header.control_len.min(mem::size_of::<Control>());
        let mut at = 0;
        while let Some((level, kind, data, next)) = control::read(control, at, end) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => received.segment = Some(number(data) as u16),
                (libc::IPPROTO_IP, libc::IP_TOS) => received.traffic_class = number(data) as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                    // As in the header: traffic class and flow label are its lower 28 bits.
                    let flow_info = u32::from_be(number(data) as u32);
                    received.traffic_class = (flow_info >> 20) as u8;
                    received.flow_label = flow_info & 0xf_ffff;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    received.hop_limit = number(data) as u8;
                }
                (libc::SOL_PACKET, PACKET_AUXDATA) => {
                    received.network_at = packet::network_at(data).into();
                }
                _ => {}
            }
            at = next;
        }
        received
    }
}
