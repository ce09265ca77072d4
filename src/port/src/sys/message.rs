//! `sendmmsg` and `recvmmsg`, with their control messages.
//!
//! The arrays that the kernel reads and writes are made once. The pointers in them are set anew
//! for every call, from borrows that last as long as the call does, and mean nothing between calls.

use super::packet::{self, PACKET_AUXDATA};
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Messages that one call sends at most.
pub(crate) const SEND_MAX: usize = 64;

/// Pieces that a message is gathered from at most.
const PARTS: usize = 2;

/// Room for the control messages of one message, in 8-byte words so that it is aligned as
/// `cmsghdr` wants it: three of an `int` each take 72 bytes.
type Control = [u64; 12];

/// A socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    const NONE: Name = {
        // SAFETY: socket addresses are plain old data; all zeroes is a valid value of each.
        unsafe { mem::zeroed() }
    };

    /// The address as the kernel wants it, and its length.
    fn of(addr: &SocketAddr) -> (Name, usize) {
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
    fn addr(&self, len: usize) -> Option<SocketAddr> {
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

/// The arrays of headers for one call.
struct Headers {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[[libc::iovec; PARTS]]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers inside are written right before a system call and read by nothing but that
// call; between calls they are never used, so it does not matter which thread holds them.
unsafe impl Send for Headers {}

impl Headers {
    fn new(count: usize) -> Self {
        // SAFETY: message headers and vectors are plain old data; all zeroes (null pointers and
        // lengths of 0) is a valid value of each.
        let (message, vector) =
            unsafe { (mem::zeroed::<libc::mmsghdr>(), mem::zeroed::<libc::iovec>()) };
        Headers {
            messages: vec![message; count].into(),
            vectors: vec![[vector; PARTS]; count].into(),
            names: vec![Name::NONE; count].into(),
            controls: vec![[0; 12]; count].into(),
        }
    }
}

/// What one message is sent with.
pub(crate) struct Message<'a> {
    /// The bytes, in pieces; empty ones are skipped.
    pub(crate) parts: [&'a [u8]; PARTS],
    /// Where to.
    pub(crate) to: SocketAddr,
    /// The length of the datagrams to cut the bytes into (`UDP_SEGMENT`); `None`: it is one.
    pub(crate) segment: Option<u16>,
    /// Type of service or traffic class, if not the socket's own.
    pub(crate) tclass: Option<u8>,
    /// Time to live or hop limit, if not the socket's own.
    pub(crate) hop_limit: Option<u8>,
}

/// Sends many messages in one call.
pub(crate) struct Sender {
    headers: Headers,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Sender { headers: Headers::new(SEND_MAX) }
    }

    /// Sends as many of the messages as one call takes, and returns how many those were: at least
    /// one. An error is the first message's; nothing was sent then.
    pub(crate) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        messages: impl Iterator<Item = Message<'a>>,
    ) -> io::Result<usize> {
        let headers = &mut self.headers;
        let mut count = 0;
        for (i, message) in messages.take(SEND_MAX).enumerate() {
            let (name, name_len) = Name::of(&message.to);
            headers.names[i] = name;
            let mut parts = 0;
            for part in message.parts.iter().filter(|part| !part.is_empty()) {
                headers.vectors[i][parts] =
                    libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
                parts += 1;
            }
            let control_len = write_control(&mut headers.controls[i], &message);

            let header = &mut headers.messages[i].msg_hdr;
            header.msg_name = (&raw mut headers.names[i]).cast();
            header.msg_namelen = name_len as libc::socklen_t;
            header.msg_iov = headers.vectors[i].as_mut_ptr();
            header.msg_iovlen = parts;
            header.msg_control = if control_len == 0 {
                ptr::null_mut()
            } else {
                headers.controls[i].as_mut_ptr().cast()
            };
            header.msg_controllen = control_len;
            count = i + 1;
        }
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the first `count` headers were filled in just now. Names, vectors and controls
        // lie in `headers`, the bytes in slices that live for 'a, which is longer than this call;
        // the kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                headers.messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Writes the control messages and returns how many bytes they take.
fn write_control(control: &mut Control, message: &Message<'_>) -> usize {
    let v4 = message.to.is_ipv4();
    let mut at = 0;
    if let Some(segment) = message.segment {
        at += put(control, at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    if let Some(tclass) = message.tclass {
        let (level, kind) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        at += put(control, at, level, kind, &i32::from(tclass).to_ne_bytes());
    }
    if let Some(hop_limit) = message.hop_limit {
        let (level, kind) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        };
        at += put(control, at, level, kind, &i32::from(hop_limit).to_ne_bytes());
    }
    at
}

/// Writes one control message at a byte offset, and returns the space it takes.
fn put(
    control: &mut Control,
    at: usize,
    level: libc::c_int,
    kind: libc::c_int,
    data: &[u8],
) -> usize {
    // SAFETY: pure arithmetic; these functions are unsafe only because libc declares them so.
    let (len, space) = unsafe {
        (libc::CMSG_LEN(data.len() as u32) as usize, libc::CMSG_SPACE(data.len() as u32) as usize)
    };
    assert!(at + space <= mem::size_of::<Control>(), "a Control has room for three messages");
    // SAFETY: the message ends inside of `control`, as was just checked. It begins at a multiple of
    // its own alignment, because CMSG_SPACE rounds up to that and the array is aligned to 8.
    unsafe {
        let message: *mut libc::cmsghdr = control.as_mut_ptr().byte_add(at).cast();
        (*message).cmsg_len = len as _;
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        libc::CMSG_DATA(message).copy_from_nonoverlapping(data.as_ptr(), data.len());
    }
    space
}

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
    pub(crate) tclass: u8,
    /// IPv6 flow label, where the socket asks for it.
    pub(crate) flow_label: u32,
    /// Time to live or hop limit, where the socket asks for it.
    pub(crate) hop_limit: u8,
    /// Where the IP header begins, counted from the link's header (packet sockets).
    pub(crate) network_at: usize,
}

/// Receives many messages in one call.
pub(crate) struct Receiver {
    headers: Headers,
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
        let headers = &mut self.headers;
        let count = buffers.len().min(headers.messages.len());
        for (i, buffer) in buffers[..count].iter_mut().enumerate() {
            headers.vectors[i][0] =
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers.messages[i].msg_hdr;
            header.msg_name = (&raw mut headers.names[i]).cast();
            header.msg_namelen = mem::size_of::<Name>() as libc::socklen_t;
            header.msg_iov = headers.vectors[i].as_mut_ptr();
            header.msg_iovlen = 1;
            header.msg_control = headers.controls[i].as_mut_ptr().cast();
            header.msg_controllen = mem::size_of::<Control>() as _;
            header.msg_flags = 0;
        }
        // SAFETY: the first `count` headers were filled in just now; names, vectors and controls
        // lie in `headers`, the buffers are borrowed exclusively, and all have the lengths given.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => Ok(received),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }

    /// What came with a message of the last call, by its place among those received.
    pub(crate) fn received(&self, place: usize) -> Received {
        let message = &self.headers.messages[place];
        let header = &message.msg_hdr;
        let mut received = Received {
            len: message.msg_len as usize,
            from: self.headers.names[place].addr(header.msg_namelen as usize),
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            segment: None,
            tclass: 0,
            flow_label: 0,
            hop_limit: 0,
            network_at: 0,
        };
        let control = &self.headers.controls[place];
        let end = header.msg_controllen.min(mem::size_of::<Control>());
        let mut at = 0;
        while let Some((level, kind, data, next)) = read_control(control, at, end) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => received.segment = Some(number(data) as u16),
                (libc::IPPROTO_IP, libc::IP_TOS) => received.tclass = number(data) as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                    // As in the header: traffic class and flow label are its lower 28 bits.
                    let flow_info = u32::from_be(number(data) as u32);
                    received.tclass = (flow_info >> 20) as u8;
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

/// Reads the control message at a byte offset: level, type, data, and where the next one is.
fn read_control(
    control: &Control,
    at: usize,
    end: usize,
) -> Option<(libc::c_int, libc::c_int, &[u8], usize)> {
    // SAFETY: pure arithmetic; these functions are unsafe only because libc declares them so.
    let (head, space_of) =
        unsafe { (libc::CMSG_LEN(0) as usize, |len: usize| libc::CMSG_SPACE(len as u32) as usize) };
    if at + head > end {
        return None;
    }
    // SAFETY: a whole header lies inside of `control` at this place, which is a multiple of its
    // alignment because CMSG_SPACE rounds up to that and the array is aligned to 8.
    let message = unsafe { *control.as_ptr().byte_add(at).cast::<libc::cmsghdr>() };
    let len = (message.cmsg_len as usize).checked_sub(head)?;
    if len > end - at - head {
        return None;
    }
    // SAFETY: these bytes were just found to lie between the header and `end`, so inside of
    // `control`, and u8 has no alignment.
    let data =
        unsafe { std::slice::from_raw_parts(control.as_ptr().cast::<u8>().add(at + head), len) };
    Some((message.cmsg_level, message.cmsg_type, data, at + space_of(len)))
}

/// The number in a control message: one byte or an `int`.
fn number(data: &[u8]) -> i32 {
    match *data {
        [byte] => i32::from(byte),
        [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
        _ => 0,
    }
}
