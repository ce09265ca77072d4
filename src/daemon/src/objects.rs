//! Whose a device's objects are, and whom their events go to: what the engine does not know of
//! them.

use std::collections::BTreeMap;
use std::rc::Rc;
use urxe_engine::PdId;
use urxe_shm::control::Access;
use urxe_shm::event::EventRecord;

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
    /// By key.
    pub(crate) mrs: BTreeMap<u32, MrObject>,
    /// Where contexts are told what happens to the port, by their pipe.
    pub(crate) contexts: BTreeMap<u32, EventTarget>,
}
