//! Sockets of the netlink family of RDMA, in which the kernel says what devices it has. All others
//! are libc's.

use super::{answer, hooks};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::memory;
use crate::netlink::{MOST_SENT, Netlink, kernel_address};
use crate::{next, paths};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::ptr::null_mut;
use std::sync::Arc;

/// `NETLINK_RDMA`.
const NETLINK_RDMA: c_int = 20;

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        if domain != libc::AF_NETLINK || protocol != NETLINK_RDMA || paths::tree().is_none() {
            return next::socket(domain, kind, protocol);
        }
        answer(|| {
            let (netlink, socket) = Netlink::open(kind)?;
            let fd = socket.into_raw_fd();
            DESCRIPTORS.insert(fd, Descriptor::Netlink(Arc::new(netlink)));
            Ok(fd)
        })
    }

    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::bind(fd, address, len);
        }
        answer(|| ours(fd)?.bind(address.expose_provenance() as u64, len as usize).map(|()| 0))
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::getsockname(fd, address, len);
        }
        answer(|| put_address(&ours(fd)?.address(), address, len).map(|()| 0))
    }

    fn setsockopt(
        fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t,
    ) -> c_int {
        // What can be chosen of netlink is how errors are told, and groups, to which nothing is
        // said.
        if level == libc::SOL_NETLINK && DESCRIPTORS.has(fd) && is_ours(fd) {
            return 0;
        }
        next::setsockopt(fd, level, option, value, len)
    }

    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::send(fd, buf, len, flags);
        }
        ask(fd, || read_parts(&[iovec { iov_base: buf.cast_mut(), iov_len: len }]))
    }

    fn sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t,
    ) -> ssize_t {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::sendto(fd, buf, len, flags, address, address_len);
        }
        ask(fd, || read_parts(&[iovec { iov_base: buf.cast_mut(), iov_len: len }]))
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::sendmsg(fd, message, flags);
        }
        ask(fd, || read_parts(&parts_of(&read_header(message)?)?))
    }

    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        let got = next::recv(fd, buf, len, flags);
        note_read(fd, got);
        got
    }

    fn __recv_chk(
        fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int,
    ) -> ssize_t {
        let got = next::__recv_chk(fd, buf, len, room, flags);
        note_read(fd, got);
        got
    }

    fn recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::recvfrom(fd, buf, len, flags, address, address_len);
        }
        let got = next::recvfrom(fd, buf, len, flags, null_mut(), null_mut());
        note_sender(fd, got, address, address_len)
    }

    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int,
        address: *mut sockaddr, address_len: *mut socklen_t,
    ) -> ssize_t {
        if !DESCRIPTORS.has(fd) || !is_ours(fd) {
            return next::__recvfrom_chk(fd, buf, len, room, flags, address, address_len);
        }
        let got = next::__recvfrom_chk(fd, buf, len, room, flags, null_mut(), null_mut());
        note_sender(fd, got, address, address_len)
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if !DESCRIPTORS.has(fd) || message.is_null() || !is_ours(fd) {
            return next::recvmsg(fd, message, flags);
        }
        // The address would be that of a Unix socket.
        let (address, mut len) = ((*message).msg_name, (*message).msg_namelen);
        (*message).msg_name = null_mut();
        let got = next::recvmsg(fd, message, flags);
        (*message).msg_name = address;
        let got = note_sender(fd, got, address.cast(), &raw mut len);
        (*message).msg_namelen = if address.is_null() { 0 } else { len };
        got
    }
}

/// Whether a descriptor that the table has is a socket of the family.
fn is_ours(fd: c_int) -> bool {
    let found: c_int = answer(|| Ok(c_int::from(ours(fd).is_ok())));
    found == 1
}

/// The socket of the family that a descriptor is. `EBADF` if another thread has closed it.
fn ours(fd: c_int) -> Result<Arc<Netlink>, Errno> {
    match DESCRIPTORS.genuine(fd) {
        Some(Descriptor::Netlink(netlink)) => Ok(netlink),
        _ => Err(Errno::BADF),
    }
}

/// Answers what the program sends to a socket of the family.
pub(super) fn ask<B: AsRef<[u8]>>(fd: c_int, bytes: impl FnOnce() -> Result<B, Errno>) -> ssize_t {
    answer(|| {
        let (netlink, bytes) = (ours(fd)?, bytes()?);
        let bytes = bytes.as_ref();
        if bytes.len() > MOST_SENT {
            return Err(Errno::MSGSIZE);
        }
        // SAFETY: it is open, as was seen just now.
        netlink.ask(unsafe { BorrowedFd::borrow_raw(fd) }, bytes)?;
        Ok(bytes.len() as ssize_t)
    })
}

/// Takes note that a program has read from a descriptor: there is room for more, if it is a socket
/// of the family. Its `errno` stays.
#[inline]
pub(super) fn note_read(fd: c_int, got: ssize_t) {
    if got < 0 || !DESCRIPTORS.has(fd) {
        return;
    }
    let _: c_int = answer(|| {
        if let Ok(netlink) = ours(fd) {
            // What has no room even now is tried when the program has read again.
            // SAFETY: it is open, as was seen just now.
            let _ = netlink.refill(unsafe { BorrowedFd::borrow_raw(fd) });
        }
        Ok(0)
    });
}

/// The same for a program that wants to know from whom it has read: from the kernel.
fn note_sender(fd: c_int, got: ssize_t, address: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    note_read(fd, got);
    if got < 0 || address.is_null() {
        return got;
    }
    answer(|| put_address(&kernel_address(), address, len).map(|()| got))
}

/// Writes an address as the system does: as much of it as has room, and its length.
fn put_address(bytes: &[u8], address: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    let len_at = len.expose_provenance() as u64;
    let mut room = [0; size_of::<socklen_t>()];
    memory::read(len_at, &mut room)?;
    let room = bytes.len().min(socklen_t::from_ne_bytes(room) as usize);
    memory::write(address.expose_provenance() as u64, &bytes[..room])?;
    memory::write(len_at, &(bytes.len() as socklen_t).to_ne_bytes())
}

/// The bytes of parts of the program's memory, one behind the other.
fn read_parts(parts: &[iovec]) -> Result<Vec<u8>, Errno> {
    let mut all = Vec::new();
    for part in parts {
        let start = all.len();
        if part.iov_len > MOST_SENT - start.min(MOST_SENT) {
            return Err(Errno::MSGSIZE);
        }
        all.resize(start + part.iov_len, 0);
        memory::read(part.iov_base.expose_provenance() as u64, &mut all[start..])?;
    }
    Ok(all)
}

/// What of a message is needed: where its parts are, and how many.
fn read_header(message: *const msghdr) -> Result<(u64, usize), Errno> {
    let (mut start, mut count) = ([0; 8], [0; 8]);
    let at = message.expose_provenance();
    memory::read((at + std::mem::offset_of!(msghdr, msg_iov)) as u64, &mut start)?;
    memory::read((at + std::mem::offset_of!(msghdr, msg_iovlen)) as u64, &mut count)?;
    Ok((u64::from_ne_bytes(start), usize::from_ne_bytes(count)))
}

/// The parts of a message.
fn parts_of(&(start, count): &(u64, usize)) -> Result<Vec<iovec>, Errno> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(Errno::MSGSIZE);
    }
    let mut bytes = vec![0; count * 16];
    memory::read(start, &mut bytes)?;
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
    let part = |bytes: &[u8]| iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(number(&bytes[..8])),
        iov_len: number(&bytes[8..]),
    };
    Ok(bytes.chunks_exact(16).map(part).collect())
}
