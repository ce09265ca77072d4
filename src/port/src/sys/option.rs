//! Socket options, and what a socket tells about itself.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option whose value is an `int`: nearly all of them.
pub(crate) fn set(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: i32,
) -> io::Result<()> {
    set_any(fd, level, name, &value)
}

/// Sends what is for an IPv4 multicast group over this interface.
pub(crate) fn set_multicast_interface_v4(fd: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let any = libc::in_addr { s_addr: 0 };
    let index = i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
    let request = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: index };
    set_any(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
}

/// Lets a program (classic BPF) say which socket of a group of `SO_REUSEPORT` gets a datagram; any
/// socket of the group will do. It takes the place of the one before.
pub(crate) fn attach_reuseport_filter(
    fd: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut(),
    };
    set_any(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Keeps the filter of a socket as it is, for good.
pub(crate) fn lock_filter(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)
}

/// Sets an option whose value is plain old data.
fn set_any<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `value`, which outlives the call, and the
    // kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            mem::size_of_val(value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks for a buffer of so many bytes for what is received, past the system's limit where we may
/// (`SO_RCVBUFFORCE`: CAP_NET_ADMIN), up to the limit where not.
pub(crate) fn ask_for_receive_buffer(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// The same for what is sent.
pub(crate) fn ask_for_send_buffer(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
        .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes))
}

/// Leases an IPv6 flow label for this socket alone, as any program can.
#[cfg(test)]
pub(crate) fn lease_flow_label(
    fd: BorrowedFd<'_>,
    dst: std::net::Ipv6Addr,
    label: u32,
) -> io::Result<()> {
    /// `struct in6_flowlabel_req` of linux/in6.h, and what its fields are set to.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Request {
        dst: [u8; 16],
        label: [u8; 4],
        action: u8,
        share: u8,
        flags: u16,
        expires_and_linger: [u16; 2],
        padding: u32,
    }
    const IPV6_FLOWLABEL_MGR: libc::c_int = 32;
    const GET: u8 = 0;
    const EXCLUSIVE: u8 = 1;
    const CREATE: u16 = 1;
    let request = Request {
        dst: dst.octets(),
        label: label.to_be_bytes(),
        action: GET,
        share: EXCLUSIVE,
        flags: CREATE,
        expires_and_linger: [0; 2],
        padding: 0,
    };
    set_any(fd, libc::IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, &request)
}

/// Numbers of `SO_MEMINFO`, from linux/sock_diag.h: how many there are, memory that waits to be
/// received, the most that may, and drops.
const SK_MEMINFO_VARS: usize = 9;
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
const SK_MEMINFO_RCVBUF: usize = 1;
const SK_MEMINFO_DROPS: usize = 8;

/// Datagrams that this socket's receive queue had no room for (and those that failed their UDP
/// checksum), since it was made. 0 where the kernel does not tell.
pub(crate) fn receive_drops(fd: BorrowedFd<'_>) -> u64 {
    meminfo(fd).map_or(0, |info| u64::from(info[SK_MEMINFO_DROPS]))
}

/// The share of its buffer that a socket's receive queue takes, from 0 to 1 and a packet more. The
/// kernel counts memory here, not bytes of packets.
pub(crate) fn receive_fill(fd: BorrowedFd<'_>) -> Option<f32> {
    let info = meminfo(fd)?;
    Some(info[SK_MEMINFO_RMEM_ALLOC] as f32 / info[SK_MEMINFO_RCVBUF].max(1) as f32)
}

fn meminfo(fd: BorrowedFd<'_>) -> Option<[u32; SK_MEMINFO_VARS]> {
    let mut info = [0u32; SK_MEMINFO_VARS];
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(info)
}
