//! `NETLINK_RDMA`, which the kernel answers about its devices: `rdma` of iproute2 asks it for
//! devices, links, objects and counters, libibverbs for the list of devices.
//!
//! The program's descriptor is a Unix socket that is connected to itself. What the program sends is
//! a question; the answer is put into the socket, from which the program reads it, or polls it, by
//! the kernel's own means. What has no room there waits here until something was read. The daemon
//! is asked over a connection of its own, which ends with the answer.
//!
//! [`message`]: bytes. [`answers`]: what is said. [`tree`]: devices, from the daemon's files.
//! [`daemon`], [`resources`]: objects.

mod answers;
mod daemon;
mod message;
mod resources;
mod tree;

use crate::memory;
use message::Question;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname,
    send, socket_with,
};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The most that a program may send at once, in bytes: a question has a hundred.
pub(crate) const MOST_SENT: usize = 1 << 16;

/// So many messages wait for room until no further question is taken.
const MOST_WAITING: usize = 1 << 16;

/// How long another thread is waited for, which may have been left behind by a `fork`.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// `struct sockaddr_nl`: family, padding, port and groups.
const ADDRESS_LEN: usize = 12;

/// An open socket of the family.
#[derive(Debug, Default)]
pub(crate) struct Netlink {
    /// The program's port; 0 if it has none yet.
    port: AtomicU32,
    /// Datagrams for which the socket has no room.
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl Netlink {
    /// What `socket` makes with this type and these flags, and the descriptor that the program
    /// gets.
    pub(crate) fn open(kind: i32) -> Result<(Netlink, OwnedFd), Errno> {
        let flags = SocketFlags::from_bits_truncate(kind as u32);
        let flags = flags & (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        if !matches!(kind & !(flags.bits() as i32), libc::SOCK_RAW | libc::SOCK_DGRAM) {
            return Err(Errno::SOCKTNOSUPPORT);
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // A name that the kernel finds. Connected to itself, it takes nothing from others.
        bind(&socket, &SocketAddrUnix::new_unnamed())?;
        connect(&socket, &getsockname(&socket)?)?;
        Ok((Netlink::default(), socket))
    }

    /// `bind`: the program's port, which may be for us to choose.
    pub(crate) fn bind(&self, address: u64, len: usize) -> Result<(), Errno> {
        let mut bytes = [0; ADDRESS_LEN];
        if len < ADDRESS_LEN {
            return Err(Errno::INVAL);
        }
        memory::read(address, &mut bytes)?;
        let [f0, f1, _, _, p0, p1, p2, p3, ..] = bytes;
        if i32::from(u16::from_ne_bytes([f0, f1])) != libc::AF_NETLINK {
            return Err(Errno::INVAL);
        }
        let wanted = u32::from_ne_bytes([p0, p1, p2, p3]);
        let wanted = if wanted == 0 { own_pid() } else { wanted };
        match self.port.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed) {
            Err(present) if present != wanted => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    /// The bytes of the program's own address.
    pub(crate) fn address(&self) -> [u8; ADDRESS_LEN] {
        address_of(self.port.load(Ordering::Relaxed))
    }

    /// What the program sends over its socket: questions, which are answered before this returns.
    pub(crate) fn ask(&self, socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
        // As the kernel: who has no port gets one with the first question.
        let own = own_pid();
        let bound = self.port.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        let port = bound.map_or_else(|present| present, |_| own);
        for question in Question::all_of(bytes) {
            let answer = question.datagrams(port, answers::answer(&question));
            let mut waiting = self.waiting.try_lock_for(LOCK_TIMEOUT).ok_or(Errno::NOBUFS)?;
            if waiting.len() > MOST_WAITING {
                return Err(Errno::NOBUFS);
            }
            waiting.extend(answer);
            put(socket, &mut waiting)?;
        }
        Ok(())
    }

    /// Puts into the socket what it has room for, after something was read.
    pub(crate) fn refill(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.waiting.try_lock_for(LOCK_TIMEOUT) {
            Some(mut waiting) => put(socket, &mut waiting),
            None => Ok(()),
        }
    }
}

/// The address from which answers come: the kernel's.
pub(crate) fn kernel_address() -> [u8; ADDRESS_LEN] {
    address_of(0)
}

fn address_of(port: u32) -> [u8; ADDRESS_LEN] {
    let mut bytes = [0; ADDRESS_LEN];
    bytes[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&port.to_ne_bytes());
    bytes
}

fn put(socket: BorrowedFd<'_>, waiting: &mut VecDeque<Vec<u8>>) -> Result<(), Errno> {
    while let Some(first) = waiting.front() {
        match send(socket, first, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => drop(waiting.pop_front()),
            Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_pid() as u32
}

#[cfg(test)]
mod tests {
    use super::message::tests::request;
    use super::message::{attr, command};
    use super::*;
    use netlink_packet_core::NLM_F_DUMP;
    use rustix::net::sockopt::set_socket_send_buffer_size;
    use rustix::net::{RecvFlags, recv};
    use std::os::fd::AsFd;

    fn address(family: i32, port: u32) -> [u8; ADDRESS_LEN] {
        let mut bytes = address_of(port);
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes
    }

    #[test]
    fn a_port_is_the_programs_choice_or_its_process_id_and_does_not_change() {
        let bind = |netlink: &Netlink, address: &[u8]| {
            netlink.bind(address.as_ptr().expose_provenance() as u64, address.len())
        };
        let (netlink, _) = Netlink::open(libc::SOCK_RAW).unwrap();
        assert_eq!(netlink.address(), address(libc::AF_NETLINK, 0));
        assert_eq!(bind(&netlink, &address(libc::AF_INET, 5)), Err(Errno::INVAL));
        assert_eq!(bind(&netlink, &address(libc::AF_NETLINK, 5)[..11]), Err(Errno::INVAL));
        assert_eq!(netlink.bind(1, ADDRESS_LEN), Err(Errno::FAULT));
        assert_eq!(bind(&netlink, &address(libc::AF_NETLINK, 5)), Ok(()));
        assert_eq!(bind(&netlink, &address(libc::AF_NETLINK, 6)), Err(Errno::INVAL));
        assert_eq!(netlink.address(), address(libc::AF_NETLINK, 5));
        let (netlink, _) = Netlink::open(libc::SOCK_DGRAM).unwrap();
        assert_eq!(bind(&netlink, &address(libc::AF_NETLINK, 0)), Ok(()));
        assert_eq!(netlink.address(), address(libc::AF_NETLINK, own_pid()));
    }

    #[test]
    fn only_raw_and_datagram_sockets_are_made_and_with_their_flags() {
        assert_eq!(Netlink::open(libc::SOCK_STREAM).err(), Some(Errno::SOCKTNOSUPPORT));
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (_, socket) = Netlink::open(kind).unwrap();
        assert!(rustix::io::fcntl_getfd(&socket).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(recv(&socket, &mut [0; 1][..], RecvFlags::empty()), Err(Errno::AGAIN));
    }

    #[test]
    fn messages_without_room_in_the_socket_come_as_it_is_read_and_in_order() {
        let (netlink, socket) = Netlink::open(libc::SOCK_RAW | libc::SOCK_NONBLOCK).unwrap();
        set_socket_send_buffer_size(&socket, 1).unwrap();
        let questions = (0..1000_u32).map(|number| {
            let mut question = request(command::SYS_GET, 0, &[]);
            question[8..12].copy_from_slice(&number.to_ne_bytes());
            question
        });
        for question in questions {
            netlink.ask(socket.as_fd(), &question).unwrap();
        }
        assert!(!netlink.waiting.lock().is_empty(), "all had room");
        for number in 0..1000_u32 {
            let mut message = [0; 100];
            let (len, _) = recv(&socket, &mut message[..], RecvFlags::empty()).unwrap();
            netlink.refill(socket.as_fd()).unwrap();
            assert_eq!((len, &message[8..12]), (32, &number.to_ne_bytes()[..]));
            assert_eq!(message[18..21], [attr::SYS_NETNS_MODE as u8, 0, 1]);
            assert_eq!(message[26..29], [attr::SYS_COPY_ON_FORK as u8, 0, 1]);
        }
        assert_eq!(recv(&socket, &mut [0; 1][..], RecvFlags::empty()), Err(Errno::AGAIN));
    }

    #[test]
    fn a_program_that_reads_nothing_is_refused_in_the_end() {
        let (netlink, socket) = Netlink::open(libc::SOCK_RAW).unwrap();
        netlink.waiting.lock().extend(vec![vec![0; 1]; MOST_WAITING + 4096]);
        let question = request(command::SYS_GET, NLM_F_DUMP, &[]);
        assert_eq!(netlink.ask(socket.as_fd(), &question), Err(Errno::NOBUFS));
    }
}
