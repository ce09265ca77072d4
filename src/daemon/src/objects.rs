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
pub(crate) struct Owner {
    /// Its user.
    pub(crate) uid: u32,
    /// Its name and process id.
    pub(crate) program: Rc<str>,
}

/// Where an object's events go, and what they say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventTarget {
    /// The pipe of its context's asynchronous events.
    pub(crate) pipe: u32,
    /// The object's `user_handle` and its handle.
    record: EventRecord,
}

impl EventTarget {
    /// Of an object that its program knows by these two numbers.
    pub(crate) fn new(pipe: u32, user_handle: u64, handle: u32) -> EventTarget {
        let record = EventRecord { user_handle, object: handle.into(), ..EventRecord::default() };
        EventTarget { pipe, record }
    }

    /// An event of this kind.
    pub(crate) fn record(&self, kind: u32) -> EventRecord {
        EventRecord { kind, ..self.record }
    }
}

/// A QP.
#[derive(Clone, Debug)]
pub(crate) struct QpObject {
    pub(crate) owner: Owner,
    pub(crate) events: EventTarget,
}

/// An SRQ.
#[derive(Clone, Debug)]
pub(crate) struct SrqObject {
    pub(crate) owner: Owner,
    pub(crate) events: EventTarget,
    /// Work requests that it holds.
    pub(crate) max_wr: u32,
}

/// A memory registration.
#[derive(Clone, Debug)]
pub(crate) struct MrObject {
    pub(crate) owner: Owner,
    pub(crate) pd: PdId,
    /// Address of its first byte, as work requests name it.
    pub(crate) iova: u64,
    /// Bytes.
    pub(crate) length: u64,
    pub(crate) access: Access,
    /// It is reached by loads and stores.
    pub(crate) mapped: bool,
}

/// The objects of one device that it numbers itself, by these numbers.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// By QPN.
    pub(crate) qps: BTreeMap<u32, QpObject>,
    /// By the engine's number.
    pub(crate) srqs: BTreeMap<u32, SrqObject>,
    /// By key.
    pub(crate) mrs: BTreeMap<u32, MrObject>,
    /// Owners of windows by that part of their rkeys that stays.
    mws: BTreeMap<u32, Owner>,
    /// Where contexts are told what happens to the port, by their pipe.
    pub(crate) contexts: BTreeMap<u32, EventTarget>,
}

/// Bits of an rkey that belong to its program, and change with each bind.
const RKEY_VARIANT_BITS: u32 = 8;

impl Objects {
    /// Takes in a window.
    pub(crate) fn insert_mw(&mut self, rkey: u32, owner: Owner) {
        self.mws.insert(rkey >> RKEY_VARIANT_BITS, owner);
    }

    /// Lets go of a window.
    pub(crate) fn remove_mw(&mut self, rkey: u32) {
        self.mws.remove(&(rkey >> RKEY_VARIANT_BITS));
    }

    /// The windows behind the one with this rkey, by one of their rkeys.
    pub(crate) fn mws_behind(&self, rkey: Option<u32>) -> impl Iterator<Item = (u32, &Owner)> {
        let behind =
            rkey.map_or(Bound::Unbounded, |rkey| Bound::Excluded(rkey >> RKEY_VARIANT_BITS));
        let mws = self.mws.range((behind, Bound::Unbounded));
        mws.map(|(&index, owner)| (index << RKEY_VARIANT_BITS, owner))
    }
}
