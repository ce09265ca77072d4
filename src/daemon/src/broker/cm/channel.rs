//! Event channels: queues of events, and which of them have something to tell.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use urxe_cm::ConnId;
use urxe_shm::control::{CmEventKind, CmEventParam};
use urxe_types::{QpType, Slab};

/// An event in the queue of a channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct QueuedEvent {
    /// The key of the id that it is counted for.
    pub(super) id: u32,
    pub(super) event: PendingEvent,
}

/// An event that its program has not taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum PendingEvent {
    /// Of an id, or of a membership, by its key.
    Event { membership: Option<u32>, kind: CmEventKind, status: i32, param: CmEventParam },
    /// A peer's request. Its id is made when the program takes the event.
    Request(Request),
}

/// A peer's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// A channel: the queue of its events. Its pipe is with the slot of its session, which is told
/// whether events wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EventChannel {
    session: u64,
    handle: u32,
    queue: VecDeque<QueuedEvent>,
}

/// Whether events wait in a channel of a session, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelNews {
    pub(crate) session: u64,
    pub(crate) channel: u32,
    pub(crate) waiting: bool,
}

/// All channels, by key.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Channels {
    all: Slab<EventChannel>,
    /// Those whose queues have changed, perhaps.
    changed: BTreeSet<u32>,
}

impl Channels {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// All events that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &QueuedEvent> {
        self.all.iter().flat_map(|(_, channel)| &channel.queue)
    }

    /// Makes a channel that its session knows by a handle; `None` if there are too many.
    pub(super) fn insert(&mut self, session: u64, handle: u32) -> Option<u32> {
        self.all.insert(EventChannel { session, handle, queue: VecDeque::new() })
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<EventChannel> {
        self.all.remove(key)
    }

    pub(super) fn get(&self, key: u32) -> Option<&EventChannel> {
        self.all.get(key)
    }

    /// A channel whose queue is to change.
    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut EventChannel> {
        self.changed.insert(key);
        self.all.get_mut(key)
    }

    /// A channel that has changed since the last time.
    pub(super) fn next_news(&mut self) -> Option<ChannelNews> {
        while let Some(key) = self.changed.pop_first() {
            if let Some(EventChannel { session, handle, queue }) = self.all.get(key) {
                let (session, channel, waiting) = (*session, *handle, !queue.is_empty());
                return Some(ChannelNews { session, channel, waiting });
            }
        }
        None
    }
}

impl EventChannel {
    /// The next event.
    pub(super) fn first(&self) -> Option<&QueuedEvent> {
        self.queue.front()
    }

    /// Adds an event.
    pub(super) fn push(&mut self, queued: QueuedEvent) {
        self.queue.push_back(queued);
    }

    /// Takes the oldest event.
    pub(super) fn pop(&mut self) -> Option<QueuedEvent> {
        self.queue.pop_front()
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
        meant
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

    /// One channel of one session, and what its slot is told.
    struct One(Channels, u32);

    impl One {
        fn new() -> One {
            let mut channels = Channels::default();
            let key = channels.insert(5, 7).unwrap();
            One(channels, key)
        }

        fn channel(&mut self) -> &mut EventChannel {
            self.0.get_mut(self.1).unwrap()
        }

        fn news(&mut self) -> Option<bool> {
            let news = self.0.next_news()?;
            assert_eq!((news.session, news.channel, self.0.next_news()), (5, 7, None));
            Some(news.waiting)
        }
    }

    #[test]
    fn each_change_is_told_once_with_what_is_so_in_the_end() {
        let mut one = One::new();
        assert_eq!(one.news(), None);
        for id in 0..3 {
            one.channel().push(waiting(id));
        }
        assert_eq!(one.news(), Some(true));
        assert_eq!(one.news(), None);
        for id in 0..3 {
            assert_eq!(one.channel().pop().unwrap().id, id);
            assert_eq!(one.news(), Some(id < 2), "also if more wait: the byte has been read");
        }
        assert!(one.channel().pop().is_none());
        assert_eq!(one.news(), Some(false), "the program may have asked without reading");
    }

    #[test]
    fn withdrawn_events_are_no_longer_announced() {
        let mut one = One::new();
        for id in [1, 2, 1, 2] {
            one.channel().push(waiting(id));
        }
        assert_eq!(one.channel().withdraw(2, |queued| queued.id == 1).len(), 2);
        assert_eq!(one.news(), Some(true));
        assert_eq!(one.channel().withdraw(u32::MAX, |queued| queued.id == 2).len(), 2);
        assert_eq!(one.news(), Some(false));
    }

    #[test]
    fn nothing_is_told_of_a_channel_that_is_no_more() {
        let mut one = One::new();
        one.channel().push(waiting(1));
        one.0.remove(one.1);
        assert_eq!(one.news(), None);
    }
}
