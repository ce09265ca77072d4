//! Whose a device's objects are, and whom their events go to: what the engine does not know of
//! them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use urxe_engine::PdId;
use urxe_shm::control::event::EventRecord;
use urxe_types::Access;

/// The program that an object belongs to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its user.
    pub uid: u32,
    /// Its name and process id.
    pub program: Rc<str>,
}

/// Where an object's events go, and what they say.
#[derive(Clone, Copy, Debug)]
pub struct EventTarget {
    /// The pipe of its context's asynchronous events.
    pub pipe: u32,
    /// The object's `user_handle` and its handle.
    record: EventRecord,
}

impl EventTarget {
    /// Of an object that its program knows by these two numbers.
    pub fn new(pipe: u32, user_handle: u64, handle: u32) -> EventTarget {
        let record = EventRecord { user_handle, object: handle.into(), ..EventRecord::default() };
        EventTarget { pipe, record }
    }

    /// An event of this kind.
    pub fn record(&self, kind: u32) -> EventRecord {
        EventRecord { kind, ..self.record }
    }
}

/// A QP.
#[derive(Clone, Debug)]
pub struct QpObject {
    pub owner: Owner,
    pub events: EventTarget,
}

/// An SRQ.
#[derive(Clone, Debug)]
pub struct SrqObject {
    pub owner: Owner,
    pub events: EventTarget,
    /// Work requests that it holds.
    pub max_wr: u32,
}

/// A memory registration.
#[derive(Clone, Debug)]
pub struct MrObject {
    pub owner: Owner,
    pub pd: PdId,
    /// Address of its first byte, as work requests name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    pub access: Access,
    /// It is reached by loads and stores.
    pub mapped: bool,
}

/// The objects of one device that it numbers itself, by these numbers.
#[derive(Debug, Default)]
pub struct Objects {
    /// By QPN.
    pub qps: BTreeMap<u32, QpObject>,
    /// By the engine's number.
    pub srqs: BTreeMap<u32, SrqObject>,
    /// By key.
    pub mrs: BTreeMap<u32, MrObject>,
    /// Owners of windows by that part of their rkeys that stays.
    mws: BTreeMap<u32, Owner>,
    /// Where contexts are told what happens to the port, by their pipe.
    pub contexts: BTreeMap<u32, EventTarget>,
}

/// Bits of an rkey that belong to its program, and change with each bind.
const RKEY_VARIANT_BITS: u32 = 8;

impl Objects {
    /// Takes in a window.
    pub fn insert_mw(&mut self, rkey: u32, owner: Owner) {
        self.mws.insert(rkey >> RKEY_VARIANT_BITS, owner);
    }

    /// Lets go of a window.
    pub fn remove_mw(&mut self, rkey: u32) {
        self.mws.remove(&(rkey >> RKEY_VARIANT_BITS));
    }

    /// The windows behind the one with this rkey, by one of their rkeys.
    pub fn mws_behind(&self, rkey: Option<u32>) -> impl Iterator<Item = (u32, &Owner)> {
        let behind =
            rkey.map_or(Bound::Unbounded, |rkey| Bound::Excluded(rkey >> RKEY_VARIANT_BITS));
        let mws = self.mws.range((behind, Bound::Unbounded));
        mws.map(|(&index, owner)| (index << RKEY_VARIANT_BITS, owner))
    }
}
