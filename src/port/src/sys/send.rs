//! `sendmmsg`, and `sendmsg` for one message, which is quicker.

use super::control::{self, Control};
use super::message::{Headers, PARTS};
use super::name::Name;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Messages that one call sends at most.
pub(crate) const SEND_MAX: usize = 64;

/// What one message is sent with.
pub(crate) struct Message<'a> {
    /// The bytes, in pieces; empty ones are skipped.
    pub(crate) parts: [&'a [u8]; PARTS],
    /// Where to.
    pub(crate) to: SocketAddr,
    /// The length of the datagrams to cut the bytes into (`UDP_SEGMENT`); `None`: it is one.
    pub(crate) segment: Option<u16>,
    /// Type of service or traffic class, if not the socket's own.
    pub(crate) traffic_class: Option<u8>,
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
    /// one, if there is one. An error is the first message's; nothing was sent then.
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
            let header = &mut headers.messages[i].header;
            header.name_len = name_len as libc::c_int;
            header.part_count = parts;
            header.control_len = write_control(&mut headers.controls[i], &message);
            count = i + 1;
        }
        if count == 0 {
            return Ok(0);
        }
        headers.link(count);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY, of both calls: the first `count` headers were filled in just now. Names, vectors
        // and controls lie in `headers`, the bytes in slices that live for 'a, which is longer than
        // this call; the kernel only reads them.
        let sent = if let [message] = &headers.messages[..count] {
            let header = &raw const message.header;
            // SAFETY: see above.
            let len = unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), header, flags) };
            if len < 0 { len } else { 1 }
        } else {
            // SAFETY: see above.
            unsafe {
                libc::syscall(
                    libc::SYS_sendmmsg,
                    fd.as_raw_fd(),
                    headers.messages.as_mut_ptr(),
                    count as libc::c_uint,
                    flags,
                )
            }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Writes the control messages and returns how many bytes they take.
fn write_control(control: &mut Control, message: &Message<'_>) -> usize {
    let v4 = message.to.is_ipv4();
    let mut at = 0;
    if let Some(segment) = message.segment {
        at += control::put(control, at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    // ADDR-006
    if let Some(traffic_class) = message.traffic_class {
        let (level, kind) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        at += control::put(control, at, level, kind, &i32::from(traffic_class).to_ne_bytes());
    }
    // ADDR-006
    if let Some(hop_limit) = message.hop_limit {
        let (level, kind) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        };
        at += control::put(control, at, level, kind, &i32::from(hop_limit).to_ne_bytes());
    }
    at
}
