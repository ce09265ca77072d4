//! What the slots of one process send each other for one device, through memory.
//!
//! Each slot has an inbox. Who sends to one whose owner is behind does not wait for it, as that
//! would keep its own programs waiting for those of another slot: what there is no room for is
//! dropped and counted, as a socket's receive queue does.

use crate::RxBatch;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt::{Debug, Formatter};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_types::SlotId;
use urxe_wire::Outer;

/// Buffers of 64 KiB of what was sent to a slot and not received yet.
const BUFFERS: usize = 64;

/// The inboxes of slots of one process, for one device.
#[derive(Debug)]
pub struct Inboxes {
    /// The slot that the first belongs to.
    first: usize,
    inboxes: Vec<Arc<Inbox>>,
}

#[derive(Debug)]
struct Inbox {
    waiting: Mutex<Waiting>,
    /// There is something in it: what its owner looks at without the lock.
    is_filled: AtomicBool,
    /// An eventfd that is written to whenever something came into an empty inbox.
    bell: OwnedFd,
}

/// What waits in an inbox.
struct Waiting {
    /// Whose it is, if anybody's: a slot may be begun anew while its predecessor hangs.
    owner: Option<u64>,
    /// How many it has had.
    owners: u64,
    batch: RxBatch,
}

/// What became of packets for an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// They wait there, the first ones in it: its owner is to be [woken](Inboxes::wake).
    First,
    /// They wait there behind others.
    Behind,
    /// There was no room for them.
    NoRoom,
    /// Nobody receives there.
    NobodyThere,
}

impl Inboxes {
    /// For slots of these numbers.
    ///
    /// # Errors
    /// If the process may have no more descriptors: each slot takes one.
    pub fn new(slots: Range<usize>) -> io::Result<Inboxes> {
        let first = slots.start;
        let inboxes = slots.map(|_| Inbox::new().map(Arc::new)).collect::<io::Result<_>>()?;
        Ok(Inboxes { first, inboxes })
    }

    fn of(&self, slot: SlotId) -> Option<&Arc<Inbox>> {
        self.inboxes.get(slot.index().checked_sub(self.first)?)
    }

    /// Puts packets that lie back to back into a slot's inbox, each as long as `segment` but for a
    /// shorter last one.
    pub(super) fn put(&self, slot: SlotId, outer: &Outer, bytes: &[u8], segment: usize) -> Put {
        let Some(inbox) = self.of(slot) else { return Put::NobodyThere };
        let mut waiting = inbox.waiting.lock();
        if waiting.owner.is_none() {
            return Put::NobodyThere;
        }
        if !waiting.batch.push_run(outer, bytes, segment) {
            return Put::NoRoom;
        }
        if inbox.is_filled.swap(true, Ordering::Relaxed) { Put::Behind } else { Put::First }
    }

    /// Wakes slots that may be asleep: bit N is for slot N.
    pub(super) fn wake(&self, slots: u64) {
        for (inbox, slot) in self.inboxes.iter().zip(self.first..) {
            if slots >> slot & 1 != 0 {
                // What refuses is full, and was written to before.
                let _ = rustix::io::write(&inbox.bell, &1u64.to_ne_bytes());
            }
        }
    }
}

impl Inbox {
    fn new() -> io::Result<Inbox> {
        let waiting = Waiting { owner: None, owners: 0, batch: RxBatch::new(BUFFERS) };
        Ok(Inbox {
            waiting: Mutex::new(waiting),
            is_filled: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }
}

impl Debug for Waiting {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Waiting { owner, owners, batch } = self;
        let datagrams = batch.len();
        write!(f, "{datagrams} datagrams for owner {owner:?} of {owners}")
    }
}

/// A slot's own inbox. When it is dropped, what waits there is lost.
#[derive(Debug)]
pub(super) struct OwnInbox {
    inbox: Arc<Inbox>,
    owner: u64,
}

impl OwnInbox {
    /// Opens the inbox of a slot, if it has one; who had it before gets nothing more.
    pub(super) fn open(inboxes: &Inboxes, slot: SlotId) -> Option<OwnInbox> {
        let inbox = Arc::clone(inboxes.of(slot)?);
        let mut waiting = inbox.waiting.lock();
        waiting.owners += 1;
        waiting.owner = Some(waiting.owners);
        waiting.batch.clear();
        inbox.is_filled.store(false, Ordering::Relaxed);
        let owner = waiting.owners;
        drop(waiting);
        Some(OwnInbox { inbox, owner })
    }

    /// What becomes readable, again and again, when something comes into the empty inbox.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell.as_fd()
    }

    /// Receives all that waits, if there is anything. Returns how full the inbox was, from 0 to 1.
    pub(super) fn receive(&self, rx: &mut RxBatch) -> Option<f32> {
        if !self.inbox.is_filled.load(Ordering::Relaxed) {
            return None;
        }
        let mut waiting = self.inbox.waiting.lock();
        if waiting.owner != Some(self.owner) {
            return None;
        }
        self.inbox.is_filled.store(false, Ordering::Relaxed);
        let fill = waiting.batch.fill();
        rx.take_all(&mut waiting.batch);
        Some(fill)
    }
}

impl Drop for OwnInbox {
    fn drop(&mut self) {
        let mut waiting = self.inbox.waiting.lock();
        if waiting.owner == Some(self.owner) {
            waiting.owner = None;
            waiting.batch = RxBatch::new(BUFFERS);
            self.inbox.is_filled.store(false, Ordering::Relaxed);
        }
    }
}
