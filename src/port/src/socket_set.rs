//! The sockets of a port behind one descriptor.

use crate::OpenError;
use crate::open;
use crate::sys::option;
use crate::watch::Link;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::fcntl_dupfd_cloexec;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Index;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sockets that one look finds ready at most; the others are found by the next.
const READY_MAX: usize = 32;

/// Looks of pollers in vain at the socket that received last, after which another has a look.
const POLLER_LOOKS: u32 = 16;

/// What the epoll instance knows a socket by that is watched for room; no member has this number.
const NO_MEMBER: u64 = u64::MAX;

/// A socket that receives what is sent to one destination.
pub(crate) trait Member: AsFd {
    /// The destination: an address of this machine, or a multicast group.
    fn dst(&self) -> IpAddr;
}

/// The sockets of a port, in the order in which they were opened, and a descriptor that is readable
/// while any of them has what it is watched for: an epoll instance, which an event loop can watch
/// like a socket.
pub(crate) struct SocketSet<S> {
    /// The interface that has the port's addresses.
    interface: Link,
    epoll: OwnedFd,
    members: Vec<S>,
    /// What the epoll instance knows each by; never used again for another.
    numbers: Vec<u64>,
    /// How many members there ever were.
    added: u64,
    /// Members that were ready and have not had their turn yet, the next one last.
    ready: Vec<u64>,
    /// The member that received last, and looks of pollers in vain since.
    hot: usize,
    looks: u32,
    /// The socket that is watched for room to send: another descriptor of a member, or of one that
    /// sends for it.
    full: Option<OwnedFd>,
    /// Datagrams that sockets which are closed had no room for.
    dropped_by_closed: u64,
    /// What sockets had dropped before this port had them.
    dropped_before: u64,
}

impl<S: Member> SocketSet<S> {
    /// For a port on this interface.
    pub(crate) fn new(interface: Link) -> Result<SocketSet<S>, OpenError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| OpenError::Interface {
            interface: interface.name.clone(),
            step: "making an epoll instance",
            source: errno.into(),
        });
        Ok(SocketSet {
            epoll: epoll?,
            interface,
            members: Vec::new(),
            numbers: Vec::new(),
            added: 0,
            ready: Vec::with_capacity(READY_MAX),
            hot: 0,
            looks: 0,
            full: None,
            dropped_by_closed: 0,
            dropped_before: 0,
        })
    }

    /// The interface that has the port's addresses.
    pub(crate) fn interface(&self) -> &Link {
        &self.interface
    }

    /// Takes the socket of one of our addresses in, unless it has one.
    ///
    /// Where the address is on another interface than the port was, the port goes there. The
    /// sockets of multicast groups do not: they are closed, and the groups returned. An address
    /// that has gone since its socket was opened leaves the port where it is.
    pub(crate) fn add_address(
        &mut self,
        addr: IpAddr,
        socket: impl FnOnce() -> Result<S, OpenError>,
    ) -> Result<Vec<IpAddr>, OpenError> {
        if self.position(addr).is_some() {
            return Ok(Vec::new());
        }
        self.push(socket()?).map_err(OpenError::system(addr, "watching its socket"))?;
        // ADDR-023
        let found = open::interface_of_opened(addr, &self.interface.name);
        let Some(interface) = found else { return Ok(Vec::new()) };
        let moved = interface.index != self.interface.index;
        self.interface = interface;
        Ok(if moved { self.close_groups() } else { Vec::new() })
    }

    /// Has the descriptor readable whenever this one becomes so, although it is no socket. It need
    /// not be read.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), OpenError> {
        let (event, flags) = (EventData::new_u64(NO_MEMBER), EventFlags::IN | EventFlags::ET);
        epoll::add(&self.epoll, fd, event, flags).map_err(|errno| OpenError::Interface {
            interface: self.interface.name.clone(),
            step: "watching what other ports send",
            source: errno.into(),
        })
    }

    /// Takes a socket in.
    pub(crate) fn push(&mut self, member: S) -> io::Result<()> {
        let number = self.added;
        epoll::add(&self.epoll, &member, EventData::new_u64(number), EventFlags::IN)?;
        self.added += 1;
        self.dropped_before += option::receive_drops(member.as_fd());
        self.members.push(member);
        self.numbers.push(number);
        Ok(())
    }

    /// Closes the socket of a destination, if there is one.
    pub(crate) fn close(&mut self, dst: IpAddr) {
        if let Some(index) = self.position(dst) {
            self.dropped_by_closed += option::receive_drops(self.members[index].as_fd());
            if !dst.is_multicast() {
                // It may be one of this address, and would hold its port. Whoever waits for another
                // looks again after this, too.
                let _ = self.room_or_not();
            }
            self.numbers.remove(index);
            // The epoll instance forgets what is closed.
            self.members.remove(index);
        }
    }

    /// Closes the sockets of all multicast groups, and returns the groups.
    fn close_groups(&mut self) -> Vec<IpAddr> {
        let groups = self.members.iter().map(Member::dst).filter(IpAddr::is_multicast);
        let groups: Vec<IpAddr> = groups.collect();
        for &group in &groups {
            self.close(group);
        }
        groups
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        self.members.iter()
    }

    /// A socket, to be changed, and the interface that it is on.
    pub(crate) fn member_and_interface(&mut self, index: usize) -> (&mut S, &Link) {
        (&mut self.members[index], &self.interface)
    }

    /// The addresses that have a socket.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.members.iter().map(Member::dst).filter(|dst| !dst.is_multicast())
    }

    /// Where the socket of a destination is.
    pub(crate) fn position(&self, dst: IpAddr) -> Option<usize> {
        self.members.iter().position(|member| member.dst() == dst)
    }

    /// The next socket that is ready, in turn; `None` if none is. One that is still ready when all
    /// have had their turn comes again.
    ///
    /// If there is but one, it is always this: the call that receives is what finds out.
    pub(crate) fn next_ready(&mut self) -> io::Result<Option<usize>> {
        if self.members.len() == 1 {
            return Ok(Some(0));
        }
        if self.ready.is_empty() {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut events = [const { MaybeUninit::<Event>::uninit() }; READY_MAX];
            let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&now))?;
            self.ready.extend(events.iter().map(|event| event.data.u64()));
        }
        while let Some(number) = self.ready.pop() {
            let index = self.numbers.iter().position(|other| *other == number);
            if index.is_some() {
                return Ok(index);
            }
        }
        Ok(None)
    }

    /// The same for a poller, who has no epoll instance to ask: the member that received last, and
    /// now and then one of the others. `None` if there is none at all.
    pub(crate) fn next_for_poller(&mut self) -> Option<usize> {
        if self.members.is_empty() {
            return None;
        }
        let others =
            if self.looks.is_multiple_of(POLLER_LOOKS) { self.looks / POLLER_LOOKS } else { 0 };
        Some((self.hot + others as usize) % self.members.len())
    }

    /// Takes note of whether a member had anything.
    pub(crate) fn note_received(&mut self, index: usize, any: bool) {
        if any {
            (self.hot, self.looks) = (index, 0);
        } else {
            self.looks = self.looks.wrapping_add(1);
        }
    }

    /// Whether a socket is watched for room.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.full.is_some()
    }

    /// Whether a call to receive that brought nothing says that no socket has anything.
    pub(crate) fn is_single(&self) -> bool {
        self.members.len() == 1
    }

    /// Watches a socket that is full for room to send, until [`room_or_not`](Self::room_or_not).
    /// That is `socket_of` of the member at `index`.
    pub(crate) fn watch_for_room(
        &mut self,
        index: usize,
        socket_of: impl FnOnce(&S) -> BorrowedFd<'_>,
    ) -> io::Result<()> {
        // A member is watched already for what it receives, and a descriptor only once.
        let full = fcntl_dupfd_cloexec(socket_of(&self.members[index]), 0)?;
        epoll::add(&self.epoll, &full, EventData::new_u64(NO_MEMBER), EventFlags::OUT)?;
        self.full = Some(full);
        Ok(())
    }

    /// Watches for room no longer: the next send finds out.
    pub(crate) fn room_or_not(&mut self) -> io::Result<()> {
        match self.full.take() {
            // To close it is not enough while the socket has another descriptor.
            Some(full) => Ok(epoll::delete(&self.epoll, &full)?),
            None => Ok(()),
        }
    }

    /// Datagrams that the sockets' receive queues had no room for since the port has them.
    pub(crate) fn receive_drops(&self) -> u64 {
        let of_open = self.members.iter().map(|member| option::receive_drops(member.as_fd()));
        // SLOT-061
        (self.dropped_by_closed + of_open.sum::<u64>()).saturating_sub(self.dropped_before)
    }
}

impl<S> Index<usize> for SocketSet<S> {
    type Output = S;

    fn index(&self, index: usize) -> &S {
        &self.members[index]
    }
}

impl<S> AsFd for SocketSet<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
