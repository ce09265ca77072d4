//! Event channels: the queue of events, and the pipe that is readable while there are some.

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use urxe_cm::ConnId;
use urxe_nic::drain;
use urxe_shm::control::{CmEventKind, CmEventParam};
use urxe_types::QpType;

/// An event in the queue of a channel.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    /// The key of the id that it is counted for.
    pub(super) id: u32,
    pub(super) event: PendingEvent,
}

/// An event that its program has not taken.
#[derive(Debug)]
pub(super) enum PendingEvent {
    /// Of an id, or of a membership, by its key.
    Event { membership: Option<u32>, kind: CmEventKind, status: i32, param: CmEventParam },
    /// A peer's request. Its id is made when the program takes the event.
    Request(Request),
}

/// A peer's request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) device: usize,
    pub(super) conn: ConnId,
    pub(super) qp_type: QpType,
    pub(super) src: SocketAddr,
    /// The peer's.
    pub(super) dst: SocketAddr,
    pub(super) param: CmEventParam,
}

/// Events that are taken back one by one; of more, the others are moved once.
const FEW: u32 = 8;

/// A channel: the daemon's end of the pipe, which holds a byte if and only if events wait.
#[derive(Debug)]
pub(super) struct EventChannel {
    write_end: OwnedFd,
    queue: VecDeque<QueuedEvent>,
}

impl EventChannel {
    /// Makes a channel; returns the program's end of its pipe too.
    pub(super) fn new() -> Result<(EventChannel, OwnedFd), Errno> {
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // The read end stays blocking: it is the program's, and `read` must mean what it does.
        rustix::io::ioctl_fionbio(&write_end, true)?;
        Ok((EventChannel { write_end, queue: VecDeque::new() }, read_end))
    }

    /// The next event.
    pub(super) fn first(&self) -> Option<&QueuedEvent> {
        self.queue.front()
    }

    /// Adds an event.
    pub(super) fn push(&mut self, queued: QueuedEvent) {
        self.queue.push_back(queued);
        self.sync_pipe();
    }

    /// Takes the oldest event. The program has read the byte that stood for it, so there must be
    /// another if there is another event; and if it asked without reading, none.
    pub(super) fn pop(&mut self) -> Option<QueuedEvent> {
        let first = self.queue.pop_front();
        self.sync_pipe();
        first
    }

    /// Takes events back that are of a kind, in their order: `most` of them, or all if there are
    /// fewer.
    pub(super) fn withdraw(
        &mut self,
        most: u32,
        is_meant: impl Fn(&QueuedEvent) -> bool,
    ) -> Vec<QueuedEvent> {
        let mut meant = Vec::new();
        if most <= FEW {
            // Those of one connection among those of thousands: most of them need not move.
            let mut at = 0;
            while meant.len() < most as usize && at < self.queue.len() {
                match is_meant(&self.queue[at]) {
                    true => meant.extend(self.queue.remove(at)),
                    false => at += 1,
                }
            }
        } else {
            let queue = std::mem::take(&mut self.queue);
            let others: Vec<_>;
            (meant, others) = queue.into_iter().partition(is_meant);
            self.queue = others.into();
        }
        self.sync_pipe();
        meant
    }

    /// Makes the pipe hold a byte if and only if events wait.
    fn sync_pipe(&self) {
        // It is never full. That the other end was closed does not matter.
        let is_readable = rustix::io::ioctl_fionread(&self.write_end).is_ok_and(|bytes| bytes > 0);
        match (self.queue.is_empty(), is_readable) {
            (false, false) => drop(rustix::io::write(&self.write_end, &[1])),
            (true, true) => drain(&self.write_end, &mut [0; 16], |_| ()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: u32) -> QueuedEvent {
        let kind = CmEventKind::AddrResolved;
        let event =
            PendingEvent::Event { membership: None, kind, status: 0, param: CmEventParam::None };
        QueuedEvent { id, event }
    }

    fn is_readable(read_end: &OwnedFd) -> bool {
        rustix::io::ioctl_fionread(read_end).unwrap() > 0
    }

    fn read(read_end: &OwnedFd) {
        assert_eq!(rustix::io::read(read_end, &mut [0; 1]), Ok(1));
    }

    #[test]
    fn the_pipe_is_readable_if_and_only_if_events_wait() {
        let (mut channel, read_end) = EventChannel::new().unwrap();
        assert!(!is_readable(&read_end));
        for id in 0..3 {
            channel.push(waiting(id));
        }
        for id in 0..3 {
            read(&read_end);
            assert_eq!(channel.pop().unwrap().id, id);
            assert_eq!(is_readable(&read_end), id < 2);
        }
        assert!(channel.pop().is_none());
    }

    #[test]
    fn taking_an_event_empties_the_pipe_even_if_it_was_not_read() {
        let (mut channel, read_end) = EventChannel::new().unwrap();
        channel.push(waiting(1));
        assert_eq!(channel.pop().unwrap().id, 1);
        assert!(!is_readable(&read_end));
    }

    #[test]
    fn withdrawn_events_are_no_longer_announced() {
        let (mut channel, read_end) = EventChannel::new().unwrap();
        for id in [1, 2, 1, 2] {
            channel.push(waiting(id));
        }
        assert_eq!(channel.withdraw(2, |queued| queued.id == 1).len(), 2);
        assert!(is_readable(&read_end));
        assert_eq!(channel.withdraw(u32::MAX, |queued| queued.id == 2).len(), 2);
        assert!(!is_readable(&read_end));
    }

    #[test]
    fn a_reader_that_is_gone_does_no_harm() {
        let (mut channel, read_end) = EventChannel::new().unwrap();
        drop(read_end);
        channel.push(waiting(1));
        assert_eq!(channel.pop().unwrap().id, 1);
    }
}
