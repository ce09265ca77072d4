//! Event channels: queues of events, and which of them have something to tell.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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

/// A channel: the queue of its events. Its pipe is with the slot of its session, which is told
/// whether events wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EventChannel {
    session: u64,
    handle: u32,
    /// By their numbers. An id that goes takes back its own, however many others there are.
    queue: BTreeMap<u64, QueuedEvent>,
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
    /// The number of the event that came last, to whichever channel.
    last_event: u64,
    /// Those whose queues have changed, perhaps.
    changed: BTreeSet<u32>,
}

impl Channels {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// All events that wait, with the keys of their channels and their numbers.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, u64, &QueuedEvent)> {
        self.all.iter().flat_map(|(key, EventChannel { queue, .. })| {
            queue.iter().map(move |(&number, queued)| (key, number, queued))
        })
    }

    /// The number of the event that came last.
    pub(super) fn last_event(&self) -> u64 {
        self.last_event
    }

    /// Makes a channel that its session knows by a handle; `None` if there are too many.
    pub(super) fn insert(&mut self, session: u64, handle: u32) -> Option<u32> {
        self.all.insert(EventChannel { session, handle, queue: BTreeMap::new() })
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<EventChannel> {
        self.all.remove(key)
    }

    pub(super) fn contains(&self, key: u32) -> bool {
        self.all.get(key).is_some()
    }

    /// The next event of a channel.
    pub(super) fn first(&self, key: u32) -> Option<&QueuedEvent> {
        self.all.get(key)?.queue.values().next()
    }

    /// Adds an event to a channel. Returns its number, which no other ever had.
    pub(super) fn push(&mut self, key: u32, queued: QueuedEvent) -> Option<u64> {
        let number = self.last_event + 1;
        self.change(key)?.insert(number, queued);
        self.last_event = number;
        Some(number)
    }

    /// Takes the oldest event of a channel.
    pub(super) fn pop(&mut self, key: u32) -> Option<(u64, QueuedEvent)> {
        self.change(key)?.pop_first()
    }

    /// Takes an event back.
    pub(super) fn withdraw(&mut self, key: u32, number: u64) -> Option<QueuedEvent> {
        // SHARE-125
        self.change(key)?.remove(&number)
    }

    /// Moves events to another channel, where they are in the order in which they came.
    pub(super) fn migrate(&mut self, from: u32, to: u32, numbers: impl Iterator<Item = u64>) {
        let Some(queue) = self.change(from) else { return };
        let moved = numbers.filter_map(|number| Some((number, queue.remove(&number)?)));
        let moved: Vec<_> = moved.collect();
        if let Some(queue) = self.change(to) {
            queue.extend(moved);
        }
    }

    /// The queue of a channel, which is to change.
    fn change(&mut self, key: u32) -> Option<&mut BTreeMap<u64, QueuedEvent>> {
        self.changed.insert(key);
        self.all.get_mut(key).map(|channel| &mut channel.queue)
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

        fn push(&mut self, id: u32) -> u64 {
            self.0.push(self.1, waiting(id)).unwrap()
        }

        fn pop(&mut self) -> Option<u32> {
            self.0.pop(self.1).map(|(_, queued)| queued.id)
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
            one.push(id);
        }
        assert_eq!(one.news(), Some(true));
        assert_eq!(one.news(), None);
        for id in 0..3 {
            assert_eq!(one.pop(), Some(id));
            assert_eq!(one.news(), Some(id < 2), "also if more wait: the byte has been read");
        }
        assert_eq!(one.pop(), None);
        assert_eq!(one.news(), Some(false), "the program may have asked without reading");
    }

    /// SHARE-125
    #[test]
    fn an_event_is_taken_back_by_its_number_and_announced_no_longer() {
        let mut one = One::new();
        let numbers = [1, 2, 1, 3].map(|id| one.push(id));
        assert_eq!(one.0.withdraw(one.1, numbers[2]).map(|queued| queued.id), Some(1));
        assert!(one.0.withdraw(one.1, numbers[2]).is_none(), "only once");
        assert_eq!(one.news(), Some(true));
        assert_eq!([one.pop(), one.pop()], [Some(1), Some(2)]);
        one.0.withdraw(one.1, numbers[3]);
        assert_eq!(one.news(), Some(false));
        assert!(one.push(4) > numbers[3], "no number is used twice");
    }

    /// SHARE-125
    #[test]
    fn events_that_move_to_another_channel_are_in_their_order_there() {
        let mut one = One::new();
        let other = one.0.insert(5, 8).unwrap();
        let first = one.push(1);
        one.0.push(other, waiting(2)).unwrap();
        one.push(3);
        let last = one.push(1);
        one.0.migrate(one.1, other, [first, last].into_iter());
        let at_other: Vec<u32> =
            std::iter::from_fn(|| one.0.pop(other)).map(|(_, queued)| queued.id).collect();
        assert_eq!(at_other, [1, 2, 1]);
        assert_eq!([one.pop(), one.pop()], [Some(3), None]);
    }

    #[test]
    fn nothing_is_told_of_a_channel_that_is_no_more() {
        let mut one = One::new();
        one.push(1);
        one.0.remove(one.1);
        assert_eq!(one.news(), None);
    }
}
