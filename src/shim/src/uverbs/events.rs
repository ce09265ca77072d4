//! Events: handing them out, and counting them.
//!
//! A program that destroys an object waits until it has acknowledged as many events of it as the
//! destroy command reports: one too many, and it waits for ever. So an event counts when it is
//! read, and only then; and one that is still in the pipe when its object is destroyed is never
//! handed out.

use super::abi::{AsyncEvent, CompEvent};
use crate::lost;
use crate::session::Session;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_shm::control::event::{self, EventRecord};
use urxe_shm::control::{CompChannelHandle, ContextHandle, CqHandle, QpHandle, Request, SrqHandle};
use zerocopy::{Immutable, IntoBytes};

/// What events are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Cq(CqHandle),
    Qp(QpHandle),
    Srq(SrqHandle),
}

impl Source {
    /// Of a record; `None` if it is the port.
    fn of(record: &EventRecord) -> Option<Source> {
        // The daemon's handles have 32 bits.
        let handle = record.object as u32;
        match record.kind {
            event::COMPLETION | event::CQ_ERR => Some(Source::Cq(CqHandle(handle))),
            event::QP_FATAL
            | event::QP_REQ_ERR
            | event::QP_ACCESS_ERR
            | event::COMM_EST
            | event::SQ_DRAINED
            | event::LAST_WQE_REACHED => Some(Source::Qp(QpHandle(handle))),
            event::SRQ_ERR | event::SRQ_LIMIT => Some(Source::Srq(SrqHandle(handle))),
            _ => None,
        }
    }
}

/// Events of one object that the program has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// From a completion channel.
    pub(crate) completion: u32,
    /// Asynchronous ones.
    pub(crate) asynchronous: u32,
}

/// The objects of a context that live, and what was read of their events.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    counts: Mutex<BTreeMap<Source, Counts>>,
    /// The context was closed, and with it its pipes.
    is_over: AtomicBool,
}

impl Ledger {
    /// An object was made.
    pub(crate) fn open(&self, source: Source) {
        self.counts.lock().insert(source, Counts::default());
    }

    /// Whether the object lives.
    pub(crate) fn is_open(&self, source: Source) -> bool {
        self.counts.lock().contains_key(&source)
    }

    /// An object was destroyed: from now on its events are not handed out.
    pub(crate) fn close(&self, source: Source) -> Counts {
        self.counts.lock().remove(&source).unwrap_or_default()
    }

    /// The context is about to be closed: that its pipes end says nothing of the daemon.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether the daemon is gone, which the end of a pipe may mean.
    fn has_lost(&self, session: &Session) -> bool {
        !self.is_over.load(Ordering::Relaxed) && session.is_lost_soon()
    }

    /// Counts an event that was read; `false` if its object is no more.
    fn count(&self, record: &EventRecord) -> bool {
        let Some(source) = Source::of(record) else { return true };
        let mut counts = self.counts.lock();
        let Some(counts) = counts.get_mut(&source) else { return false };
        match record.kind {
            event::COMPLETION => counts.completion += 1,
            _ => counts.asynchronous += 1,
        }
        true
    }
}

/// The longest event as a program reads it.
pub(crate) const MAX_EVENT_LEN: usize = size_of::<AsyncEvent>();

/// The CQ events of a completion channel. It ends with its last descriptor, and the last CQ that
/// uses it.
#[derive(Debug)]
pub(crate) struct CompletionEvents {
    session: Arc<Session>,
    ledger: Arc<Ledger>,
    context: ContextHandle,
    channel: CompChannelHandle,
    /// Events that nobody could write into the pipe, because the daemon is gone.
    put_off: Mutex<VecDeque<EventRecord>>,
}

impl CompletionEvents {
    pub(super) fn new(
        session: Arc<Session>,
        ledger: Arc<Ledger>,
        context: ContextHandle,
        channel: CompChannelHandle,
    ) -> CompletionEvents {
        CompletionEvents { session, ledger, context, channel, put_off: Mutex::default() }
    }

    /// The context that it is of.
    pub(crate) fn context(&self) -> ContextHandle {
        self.context
    }

    /// The daemon's name for it.
    pub(crate) fn channel(&self) -> CompChannelHandle {
        self.channel
    }

    /// Fails if a read of `len` bytes must: `EINVAL` if no event fits, `EIO` in a fork.
    pub(crate) fn check_read(&self, len: usize) -> Result<(), Errno> {
        check_read::<CompEvent>(&self.session, len)
    }

    /// Keeps an event until the program has read its pipe to the end.
    pub(super) fn put_off(&self, record: EventRecord) {
        self.put_off.lock().push_back(record);
    }

    /// What the program reads at the end of the pipe: events of flushed work requests, then `EIO`.
    pub(crate) fn at_the_end(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        if self.ledger.has_lost(&self.session) {
            lost::flush_all();
        }
        loop {
            let record = self.put_off.lock().pop_front().ok_or(Errno::IO)?;
            if let Some(len) = self.hand_out(&record, buf) {
                return Ok(len);
            }
        }
    }

    /// What the program reads of a record: the `user_handle` of the CQ. Gives its length; `None`
    /// if the CQ is no more.
    pub(crate) fn hand_out(&self, record: &EventRecord, buf: &mut [u8]) -> Option<usize> {
        let event = CompEvent { cq_handle: record.user_handle };
        self.ledger.count(record).then(|| hand_out(&event, buf))
    }
}

impl Drop for CompletionEvents {
    fn drop(&mut self) {
        // A daemon that is gone has freed it already, as it has when the context was closed; and
        // in a fork it is not ours.
        let _ = self.session.call(&Request::DestroyCompChannel { channel: self.channel });
    }
}

/// The asynchronous events of a context.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    session: Arc<Session>,
    ledger: Arc<Ledger>,
    /// The program was told that the device is gone.
    told_fatal: AtomicBool,
}

impl AsyncEvents {
    pub(super) fn new(session: Arc<Session>, ledger: Arc<Ledger>) -> AsyncEvents {
        AsyncEvents { session, ledger, told_fatal: AtomicBool::new(false) }
    }

    /// Fails if a read of `len` bytes must: `EINVAL` if no event fits, `EIO` in a fork.
    pub(crate) fn check_read(&self, len: usize) -> Result<(), Errno> {
        check_read::<AsyncEvent>(&self.session, len)
    }

    /// What the program reads at the end of the pipe: that the device is gone, if it is; then, or
    /// if it only was closed, `EIO`.
    pub(crate) fn at_the_end(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        if !self.ledger.has_lost(&self.session) || self.told_fatal.swap(true, Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        lost::flush_all();
        // CLIENT-018
        let record = EventRecord { kind: event::DEVICE_FATAL, ..EventRecord::default() };
        self.hand_out(&record, buf).ok_or(Errno::IO)
    }

    /// What the program reads of a record. Gives its length; `None` if the object is no more.
    pub(crate) fn hand_out(&self, record: &EventRecord, buf: &mut [u8]) -> Option<usize> {
        let event = AsyncEvent {
            element: record.user_handle,
            event_type: record.kind,
            ..AsyncEvent::default()
        };
        self.ledger.count(record).then(|| hand_out(&event, buf))
    }
}

fn check_read<T>(session: &Session, len: usize) -> Result<(), Errno> {
    if len < size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // The events are the parent's, and another of its threads may hold the lock for ever.
    session.connection().check_process().map_err(|_| Errno::IO)
}

/// Hands out one event, as the kernel does, also where there is room for more.
fn hand_out(event: &(impl IntoBytes + Immutable), buf: &mut [u8]) -> usize {
    let bytes = event.as_bytes();
    buf[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, object: u64) -> EventRecord {
        EventRecord { user_handle: 99, object, kind, reserved: 0 }
    }

    #[test]
    fn events_read_of_a_living_object_count() {
        let ledger = Ledger::default();
        let cq = Source::Cq(CqHandle(1));
        ledger.open(cq);
        assert!(ledger.count(&record(event::COMPLETION, 1)));
        assert!(ledger.count(&record(event::COMPLETION, 1)));
        assert!(ledger.count(&record(event::CQ_ERR, 1)));
        assert_eq!(ledger.close(cq), Counts { completion: 2, asynchronous: 1 });
        assert!(!ledger.count(&record(event::COMPLETION, 1)), "it is no more");
        assert_eq!(ledger.close(cq), Counts::default());
    }

    #[test]
    fn objects_of_different_kinds_do_not_share_a_count() {
        let ledger = Ledger::default();
        let (qp, srq) = (Source::Qp(QpHandle(1)), Source::Srq(SrqHandle(1)));
        ledger.open(qp);
        ledger.open(srq);
        assert!(ledger.count(&record(event::LAST_WQE_REACHED, 1)));
        assert!(!ledger.count(&record(event::CQ_ERR, 1)), "there is no such CQ");
        assert_eq!(ledger.close(srq), Counts::default());
        assert_eq!(ledger.close(qp).asynchronous, 1);
    }

    #[test]
    fn events_of_the_port_are_nobodys() {
        assert!(Ledger::default().count(&record(event::PORT_ACTIVE, 1)));
        assert!(Ledger::default().count(&record(event::GID_CHANGE, 1)));
    }
}
