//! Asynchronous events: `ibv_async_event`.

use crate::context::ContextInner;
use crate::{Cq, Qp, Srq};
use urxe_shm::control::event::{self, EventRecord};

/// Something that no completion can tell: `ibv_async_event`. Comes from
/// [`Context::async_event`](crate::Context::async_event).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// Completions were lost because the queue was full; it takes no more, and the queue pairs that
    /// use it are in the error state.
    CqError(Cq),
    /// The queue pair failed, and may not have been able to say so in a completion.
    QpFatal(Qp),
    /// The peer sent an invalid request; the queue pair is in the error state.
    QpRequestError(Qp),
    /// The peer wanted what it has no right to; the queue pair is in the error state.
    QpAccessError(Qp),
    /// The peer sent something, and the queue pair is still in RTR: it may go to RTS.
    CommunicationEstablished(Qp),
    /// The queue pair is in SQD and has nothing outstanding any more.
    SqDrained(Qp),
    /// The queue pair is in the error state, and takes no more receives from its SRQ: all
    /// completions of those that it took are in its completion queue.
    LastWqeReached(Qp),
    /// Fewer receives are left than the limit says, which is 0 now.
    SrqLimit(Srq),
    /// The queue cannot be read any more; the queue pairs that use it get no receives.
    SrqError(Srq),
    /// This port works again.
    PortActive(u8),
    /// This port does not work any more: its interface or its link is down.
    PortError(u8),
    /// The GID table of this port has changed: an address came or went.
    GidChange(u8),
}

impl AsyncEvent {
    /// What a record tells; `None` if its object is no more, or nobody knows its kind.
    pub(crate) fn from_record(record: EventRecord, context: &ContextInner) -> Option<AsyncEvent> {
        let qp = || context.qp(record.user_handle);
        let srq = || context.srq(record.user_handle);
        let port = || u8::try_from(record.user_handle).ok();
        Some(match record.kind {
            event::CQ_ERR => AsyncEvent::CqError(context.cq(record.user_handle)?),
            event::QP_FATAL => AsyncEvent::QpFatal(qp()?),
            event::QP_REQ_ERR => AsyncEvent::QpRequestError(qp()?),
            event::QP_ACCESS_ERR => AsyncEvent::QpAccessError(qp()?),
            event::COMM_EST => AsyncEvent::CommunicationEstablished(qp()?),
            event::SQ_DRAINED => AsyncEvent::SqDrained(qp()?),
            event::LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qp()?),
            event::SRQ_LIMIT => AsyncEvent::SrqLimit(srq()?),
            event::SRQ_ERR => AsyncEvent::SrqError(srq()?),
            event::PORT_ACTIVE => AsyncEvent::PortActive(port()?),
            event::PORT_ERR => AsyncEvent::PortError(port()?),
            event::GID_CHANGE => AsyncEvent::GidChange(port()?),
            _ => return None,
        })
    }
}
