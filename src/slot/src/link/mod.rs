//! The link between the broker and a slot: a socket pair, messages, and descriptors beside them.
//!
//! It is the same whether the slot is a thread or another process: all that a slot gets, it gets
//! here. Neither end ever waits for the other. What the socket has no room for waits in a backlog;
//! an end that takes nothing for [`LINK_TIMEOUT`], or leaves [`MAX_LINK_BACKLOG`] messages
//! waiting, has failed, and the other lets go of it.

mod messages;

pub use messages::{
    Counts, DeviceBeginning, DeviceState, Found, LinkState, Logged, SlotBeginning, Subject,
    ToBroker, ToSlot, Viewer,
};

use crate::limits::{LINK_TIMEOUT, MAX_LINK_BACKLOG};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use urxe_shm::control::channel::{Channel, ChannelError};

/// One end: sends `Out`, receives `In`.
pub struct Link<Out, In> {
    channel: Channel,
    /// Messages that may wait.
    max_backlog: usize,
    backlog: VecDeque<(Out, Vec<OwnedFd>)>,
    /// Descriptors that were sent, and those that came with what was not received as it was sent.
    to_close: Vec<OwnedFd>,
    /// It is watched for room.
    awaits_room: bool,
    /// Since when the other end has taken nothing although something waits.
    waiting_since: Option<Instant>,
    received: PhantomData<fn() -> In>,
}

/// The other end is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It is gone.
    #[error("it is gone")]
    Closed,
    /// It takes no messages.
    #[error("it takes no messages")]
    Stuck,
    /// Anything else that a socket can do.
    #[error(transparent)]
    Channel(ChannelError),
}

impl From<ChannelError> for LinkError {
    fn from(error: ChannelError) -> LinkError {
        match error {
            ChannelError::Closed => LinkError::Closed,
            error => LinkError::Channel(error),
        }
    }
}

impl<Out: Serialize, In: DeserializeOwned> Link<Out, In> {
    /// The end of a socket that does not block.
    pub fn new(socket: OwnedFd) -> Link<Out, In> {
        Link {
            // SLOT-124
            channel: Channel::passing_on(socket),
            max_backlog: MAX_LINK_BACKLOG,
            backlog: VecDeque::new(),
            to_close: Vec::new(),
            awaits_room: false,
            waiting_since: None,
            received: PhantomData,
        }
    }

    /// Our end of a new link, and the socket of the other.
    pub fn pair() -> io::Result<(Link<Out, In>, OwnedFd)> {
        let (own, other) = Channel::pair()?;
        Ok((Link::new(own), other))
    }

    /// The same for fewer messages that may wait.
    pub fn with_backlog(self, max_backlog: usize) -> Link<Out, In> {
        Link { max_backlog, ..self }
    }

    /// Goes on with an end of another process, which is gone: its socket, what waited there for
    /// room, and since when it has.
    pub fn resumed(
        socket: OwnedFd,
        backlog: Vec<(Out, Vec<OwnedFd>)>,
        waiting_since: Option<Instant>,
    ) -> Link<Out, In> {
        Link { backlog: backlog.into(), waiting_since, ..Link::new(socket) }
    }

    /// What waits for room, in its order.
    pub fn backlog(&self) -> impl Iterator<Item = (&Out, &[OwnedFd])> {
        self.backlog.iter().map(|(message, fds)| (message, fds.as_slice()))
    }

    /// Since when the other end has taken nothing although something waits.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.waiting_since
    }

    /// Sends a message, or lets it wait behind others.
    pub fn send(&mut self, now: Instant, message: Out, fds: Vec<OwnedFd>) -> Result<(), LinkError> {
        // SLOT-003
        if self.backlog.len() >= self.max_backlog {
            return Err(LinkError::Stuck);
        }
        self.backlog.push_back((message, fds));
        if self.backlog.len() == 1 { self.flush(now) } else { Ok(()) }
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self, now: Instant) -> Result<(), LinkError> {
        while let Some((message, fds)) = self.backlog.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.channel.send(message, &fds) {
                Ok(()) => {
                    let sent = self.backlog.pop_front();
                    self.to_close.extend(sent.into_iter().flat_map(|(_, fds)| fds));
                    self.waiting_since = None;
                }
                Err(ChannelError::WouldBlock) => {
                    let since = *self.waiting_since.get_or_insert(now);
                    // SLOT-003
                    let is_stuck = now.saturating_duration_since(since) >= LINK_TIMEOUT;
                    return if is_stuck { Err(LinkError::Stuck) } else { Ok(()) };
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives a message and the descriptors that came with it; `None` if there is none now. If
    /// this process can have no more descriptors, there are none with the message.
    pub fn recv(&mut self) -> Result<Option<(In, Vec<OwnedFd>)>, LinkError> {
        let received = self.channel.recv_from_own();
        // SHARE-130: the other end may be a program's.
        self.to_close.append(&mut self.channel.take_refused());
        match received {
            Ok(received) => Ok(Some(received)),
            Err(ChannelError::WouldBlock) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Descriptors that are of no more use, to be closed where that may take its time.
    pub fn take_to_close(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.to_close)
    }

    /// Has the link, which is watched for messages under this token, watched for room too while
    /// something waits for that.
    pub fn watch_for_room(&mut self, registry: &Registry, token: Token) -> Result<(), LinkError> {
        if self.awaits_room == self.has_backlog() {
            return Ok(());
        }
        self.awaits_room = self.has_backlog();
        let room = if self.awaits_room { Interest::WRITABLE } else { Interest::READABLE };
        let fd = self.as_fd().as_raw_fd();
        let watched = registry.reregister(&mut SourceFd(&fd), token, Interest::READABLE | room);
        watched.map_err(|error| LinkError::Channel(error.into()))
    }

    /// Whether something waits for room.
    fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The same, with those that never will be sent.
    pub fn into_descriptors(self) -> impl Iterator<Item = OwnedFd> {
        self.to_close.into_iter().chain(self.backlog.into_iter().flat_map(|(_, fds)| fds))
    }

    /// When the other end has failed, if it takes nothing until then.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + LINK_TIMEOUT)
    }
}

impl<Out, In> AsFd for Link<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    type Numbers = Link<u64, u64>;

    fn both() -> (Numbers, Numbers) {
        let (one, other) = Numbers::pair().unwrap();
        (one, Link::new(other))
    }

    fn received(link: &mut Numbers) -> Option<u64> {
        link.recv().unwrap().map(|(number, _)| number)
    }

    #[test]
    fn messages_without_room_wait_and_come_in_order() {
        let (mut one, mut other) = both();
        let now = Instant::now();
        let count = MAX_LINK_BACKLOG as u64;
        for number in 0..count {
            one.send(now, number, Vec::new()).unwrap();
        }
        assert!(one.has_backlog(), "more than the socket takes");
        for number in 0..count {
            assert_eq!(received(&mut other), Some(number));
            one.flush(now).unwrap();
        }
        assert!(!one.has_backlog());
        assert_eq!((one.deadline(), received(&mut other)), (None, None));
    }

    #[test]
    fn an_end_that_takes_nothing_has_failed_after_a_while() {
        let (mut one, mut other) = both();
        let start = Instant::now();
        while !one.has_backlog() {
            one.send(start, 7, Vec::new()).unwrap();
        }
        let end = one.deadline().unwrap();
        one.flush(end - LINK_TIMEOUT / 2).unwrap();
        assert_eq!(one.deadline(), Some(end), "it has taken nothing meanwhile");
        assert!(matches!(one.flush(end), Err(LinkError::Stuck)));
        while received(&mut other).is_some() {}
        one.flush(end).unwrap();
        assert!(!one.has_backlog(), "one that takes again goes on");
    }

    #[test]
    fn an_end_that_takes_nothing_costs_a_bounded_number_of_messages() {
        let (mut one, _other) = both();
        let now = Instant::now();
        let sent = (0..).take_while(|_| one.send(now, 7, Vec::new()).is_ok()).count();
        assert!(sent >= MAX_LINK_BACKLOG);
        assert_eq!(one.backlog.len(), MAX_LINK_BACKLOG);
        assert!(matches!(one.send(now, 7, Vec::new()), Err(LinkError::Stuck)));
    }

    /// SHARE-130
    #[test]
    fn descriptors_of_what_is_no_message_are_not_closed_by_the_link() {
        let (mut one, other) = both();
        let nonsense = [std::io::IoSlice::new(b"nonsense")];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [other.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&other, &nonsense, &mut ancillary, SendFlags::empty()).unwrap();
        assert!(matches!(one.recv(), Err(LinkError::Channel(ChannelError::Decode(_)))));
        assert_eq!(one.take_to_close().len(), 1);
    }

    #[test]
    fn an_end_that_is_gone_is_noticed_by_either_way() {
        let (mut one, other) = both();
        drop(other);
        assert!(matches!(one.recv(), Err(LinkError::Closed)));
        assert!(matches!(one.send(Instant::now(), 7, Vec::new()), Err(LinkError::Closed)));
    }
}
