//! What the slots of one process send each other, and their devices, through memory.
//!
//! Each slot has an inbox for each device. Who sends to one whose owner is behind does not wait for
//! it, as that would keep its own programs waiting for those of another slot: what there is no room
//! for is dropped and counted, as a socket's receive queue does.

use crate::RxBatch;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use urxe_types::SlotId;
use urxe_wire::{Opcode, Outer, Transport};

/// Buffers of 64 KiB of what was sent to a slot and not received yet.
const BUFFERS: usize = 64;

/// The part of them that counts as all where it is said how full they are: a slot that has more to
/// take in keeps what comes behind it, a short message perhaps, waiting for longer than its own
/// turns take. The rest is for what many send at once, before they hear of it, over RC alone: of
/// other transports, who sends as fast as it can hears of nothing, and would have it all. But not
/// for what the owner's own thread sends it, which receives as often as it sends.
const USUAL_PART: f32 = 0.5;

/// The inboxes of slots of one process.
#[derive(Debug)]
pub struct Inboxes {
    slots: Range<usize>,
    /// Those of the first device, by slot, and then of the others.
    inboxes: Vec<Arc<Inbox>>,
    /// Which device has an address, as far as ports have said so.
    addresses: Mutex<BTreeMap<IpAddr, usize>>,
    /// How often that has changed: who sends looks at this alone as long as it is the same, so that
    /// slots that send to other machines do not meet at a lock.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    /// There is something in it: what its owner looks at without the lock.
    is_filled: AtomicBool,
}

/// What waits in an inbox, if somebody receives there.
#[derive(Debug, Default)]
struct Waiting {
    owner: Option<Owner>,
    /// How many it has had.
    owners: u64,
}

/// Who receives from an inbox.
struct Owner {
    /// The how many-th: a slot may be begun anew while its predecessor hangs.
    number: u64,
    /// An eventfd that is written to whenever something comes into the empty inbox, while it is
    /// armed.
    waker: Arc<OwnedFd>,
    /// The owner does not look by itself. Said and asked under the lock: what comes is either seen
    /// by who arms it, or told.
    is_armed: bool,
    /// What waits.
    batch: RxBatch,
    /// How much of its room is taken by what is not of RC, from 0 to 1.
    unreliable: f32,
}

/// What became of packets for an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// They wait there. Its owner is to be [woken](OwnInbox::wake_others).
    Taken,
    /// There was no room for them.
    NoRoom,
    /// Nobody receives there.
    NoReceiver,
}

impl Inboxes {
    /// For slots of these numbers, each with so many devices.
    pub fn new(slots: Range<usize>, devices: usize) -> Inboxes {
        let inboxes = (0..slots.len() * devices).map(|_| Arc::default()).collect();
        Inboxes { slots, inboxes, addresses: Mutex::default(), changes: AtomicU64::new(0) }
    }

    /// Where the inbox of a slot for a device is, if it has one.
    fn place(&self, device: usize, slot: SlotId) -> Option<usize> {
        let slot = slot.index();
        self.slots.contains(&slot).then(|| device * self.slots.len() + slot - self.slots.start)
    }
}

impl Waiting {
    /// The owner, if it is the one of this number.
    fn owner_of(&mut self, number: u64) -> Option<&mut Owner> {
        self.owner.as_mut().filter(|owner| owner.number == number)
    }
}

impl Debug for Owner {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Owner { number, batch, .. } = self;
        write!(f, "owner {number}, for which {} datagrams wait", batch.len())
    }
}

/// Whether packets are of a reliable connection: its sender hears when much waits, and sends less.
fn is_of_rc(packets: &[u8]) -> bool {
    let opcode = packets.first().and_then(|&byte| Opcode::from_byte(byte));
    opcode.is_some_and(|opcode| opcode.transport() == Transport::Rc)
}

/// How a port is reached by other ports of its process, and they by it.
#[derive(Clone, Debug)]
pub struct InboxOfDevice {
    /// All that there are.
    pub inboxes: Arc<Inboxes>,
    /// The device that the port is of, by number.
    pub device: usize,
}

/// A slot's own inbox for a device. When it is dropped, what waits there is lost.
#[derive(Debug)]
pub(super) struct OwnInbox {
    of: InboxOfDevice,
    /// Whose it is.
    slot: SlotId,
    inbox: Arc<Inbox>,
    /// Our [number](Owner) as its owner, and what wakes us.
    number: u64,
    waker: Arc<OwnedFd>,
    /// What wakes those that are to be woken.
    to_wake: Vec<Arc<OwnedFd>>,
    /// The [addresses](Inboxes) as they were after so many changes.
    addresses: BTreeMap<IpAddr, usize>,
    changes: u64,
}

impl OwnInbox {
    /// Opens the inbox of a slot; who had it before gets nothing more. `None`: it has none, or
    /// there is no descriptor for it, and it is reached through the kernel.
    pub(super) fn open(of: &InboxOfDevice, slot: SlotId) -> Option<OwnInbox> {
        let place = of.inboxes.place(of.device, slot)?;
        let inbox = Arc::clone(of.inboxes.inboxes.get(place)?);
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let mut waiting = inbox.waiting.lock();
        waiting.owners += 1;
        let number = waiting.owners;
        let batch = RxBatch::new(BUFFERS);
        waiting.owner = Some(Owner {
            number,
            waker: Arc::clone(&waker),
            is_armed: true,
            batch,
            unreliable: 0.0,
        });
        inbox.is_filled.store(false, Ordering::Relaxed);
        drop(waiting);
        Some(OwnInbox {
            of: of.clone(),
            slot,
            inbox,
            number,
            waker,
            to_wake: Vec::new(),
            addresses: BTreeMap::new(),
            changes: 0,
        })
    }

    /// Where the inbox of a slot is for the device that has an address, if there is one in this
    /// process.
    pub(super) fn place_of(&mut self, addr: IpAddr, is_own: bool, slot: SlotId) -> Option<usize> {
        let device = match addr {
            _ if is_own => self.of.device,
            // Another device may have the address of a peer on the link of this one.
            IpAddr::V6(v6) if v6.is_unicast_link_local() => return None,
            _ => *self.addresses().get(&addr)?,
        };
        self.of.inboxes.place(device, slot)
    }

    /// Which device has an address now.
    fn addresses(&mut self) -> &BTreeMap<IpAddr, usize> {
        let Inboxes { addresses, changes, .. } = &*self.of.inboxes;
        if changes.load(Ordering::Acquire) != self.changes {
            let addresses = addresses.lock();
            self.addresses.clone_from(&addresses);
            self.changes = changes.load(Ordering::Relaxed);
        }
        &self.addresses
    }

    /// Puts packets that lie back to back into the inbox of a slot for the device that has their
    /// address, which may be [our own](OwnInbox) (`is_own`). Each is as long as `segment` but for a
    /// shorter last one.
    pub(super) fn put(
        &mut self,
        (slot, is_own): (SlotId, bool),
        outer: &Outer,
        bytes: &[u8],
        segment: usize,
    ) -> Put {
        let place = self.place_of(outer.flow.dst, is_own, slot);
        let Some(place) = place else { return Put::NoReceiver };
        let Some(inbox) = self.of.inboxes.inboxes.get(place) else { return Put::NoReceiver };
        let mut waiting = inbox.waiting.lock();
        let Some(owner) = &mut waiting.owner else { return Put::NoReceiver };
        // WIRE-203
        let (is_of_rc, before) = (is_of_rc(bytes), owner.batch.fill());
        let may = slot == self.slot || is_of_rc || before < USUAL_PART;
        if !may || !owner.batch.push_run(outer, bytes, segment) {
            return Put::NoRoom;
        }
        if !is_of_rc {
            owner.unreliable += owner.batch.fill() - before;
        }
        let is_first = !inbox.is_filled.swap(true, Ordering::Relaxed);
        if is_first && owner.is_armed {
            self.to_wake.push(Arc::clone(&owner.waker));
        }
        Put::Taken
    }

    /// Wakes those who are to be told that something was [put](Self::put) into their inboxes.
    pub(super) fn wake_others(&mut self) {
        for waker in self.to_wake.drain(..) {
            // What refuses is full, and was written to before.
            let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
        }
    }

    /// What is for this address is for this device from now on.
    pub(super) fn add_address(&self, addr: IpAddr) {
        let Inboxes { addresses, changes, .. } = &*self.of.inboxes;
        let mut addresses = addresses.lock();
        if addresses.insert(addr, self.of.device) != Some(self.of.device) {
            changes.fetch_add(1, Ordering::Release);
        }
    }

    /// It is no more, for whatever slot: the address goes from all of them.
    pub(super) fn remove_address(&self, addr: IpAddr) {
        let Inboxes { addresses, changes, .. } = &*self.of.inboxes;
        let mut addresses = addresses.lock();
        if addresses.get(&addr) == Some(&self.of.device) {
            addresses.remove(&addr);
            changes.fetch_add(1, Ordering::Release);
        }
    }

    /// [`Port::disarm`](crate::Port::disarm)
    pub(super) fn disarm(&self) {
        if let Some(owner) = self.inbox.waiting.lock().owner_of(self.number) {
            owner.is_armed = false;
        }
    }

    /// [`Port::arm`](crate::Port::arm)
    pub(super) fn arm(&self) -> bool {
        let mut waiting = self.inbox.waiting.lock();
        // A successor is told of what comes.
        let Some(owner) = waiting.owner_of(self.number) else { return true };
        owner.is_armed = true;
        owner.batch.is_empty()
    }

    /// Whether something waits, as far as can be seen without the lock.
    pub(super) fn has_waiting(&self) -> bool {
        self.inbox.is_filled.load(Ordering::Relaxed)
    }

    /// What becomes readable, again and again, when something comes into the empty inbox while it
    /// is armed.
    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Receives all that waits, if there is anything. Returns how full the inbox was of packets of
    /// RC, from 0 to 1: full is what it [usually](USUAL_PART) has at most. Those of others do not
    /// become fewer when RC sends less, and would have all.
    pub(super) fn receive(&self, rx: &mut RxBatch) -> Option<f32> {
        if !self.has_waiting() {
            return None;
        }
        let mut waiting = self.inbox.waiting.lock();
        let Owner { batch, unreliable, .. } = waiting.owner_of(self.number)?;
        self.inbox.is_filled.store(false, Ordering::Relaxed);
        let of_rc = batch.fill() - std::mem::take(unreliable);
        let fill = (of_rc / USUAL_PART).clamp(0.0, 1.0);
        rx.take_all(batch);
        rx.set_within_process();
        Some(fill)
    }
}

impl Drop for OwnInbox {
    fn drop(&mut self) {
        let mut waiting = self.inbox.waiting.lock();
        if waiting.owner_of(self.number).is_some() {
            waiting.owner = None;
            self.inbox.is_filled.store(false, Ordering::Relaxed);
        }
    }
}
