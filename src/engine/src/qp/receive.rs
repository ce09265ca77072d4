//! The receive that a message is put into, and why a message is refused.

use super::common::{Cx, Failure};
use super::sges::{self, SgeWalk, Space};
use crate::attr::RecvSource;
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{AsyncEvent, Host, Taken};
use urxe_types::{Qpn, RecvWqe, WcStatus};

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted: the peer shall try again later.
    ReceiverNotReady,
    /// The request breaks the rules (class C, IBTA 9.9.3): NAK, and the QP goes to ERR.
    InvalidRequest,
    /// The key does not open the memory (class C): NAK, and the QP goes to ERR.
    RemoteAccess,
    /// The message is longer than the receive (class C): NAK, the receive fails.
    ReceiveTooShort,
    /// Our own side is at fault (class A): NAK, the receive fails.
    Local(Cause),
}

impl Refusal {
    /// What it does to our own side where the peer is told of it.
    pub(super) fn failure(self, qpn: Qpn, receive: &Receive) -> Result<(), Failure> {
        let (status, cause, event) = match self {
            Refusal::ReceiverNotReady => return Ok(()),
            Refusal::InvalidRequest => {
                // CQ-012
                let event = AsyncEvent::QpRequestError(qpn);
                let event = (!fault!(RequestErrorNotTold)).then_some(event);
                (WcStatus::LocalQpOperation, Cause::RequestRefused, event)
            }
            Refusal::RemoteAccess => {
                // RC-RESP-011, CQ-012
                let event = AsyncEvent::QpAccessError(qpn);
                let event = (!fault!(AccessErrorNotTold)).then_some(event);
                (WcStatus::LocalAccess, Cause::RequestRefused, event)
            }
            Refusal::ReceiveTooShort if fault!(TooLongAsProtectionError) => {
                (WcStatus::LocalProtection, Cause::ReceiveTooShort, None)
            }
            Refusal::ReceiveTooShort => (WcStatus::LocalLength, Cause::ReceiveTooShort, None),
            Refusal::Local(cause) => {
                let status = match cause {
                    Cause::MalformedEntry | Cause::LocalMemory | Cause::BrokenQueue => {
                        WcStatus::LocalQpOperation
                    }
                    // RC-RESP-005
                    _ => WcStatus::LocalProtection,
                };
                // Without a receive there is no completion that tells of it.
                let untold = !receive.in_use;
                (status, cause, untold.then_some(AsyncEvent::QpFatal(qpn)))
            }
        };
        Err(Failure::Receive { status, cause, event })
    }

    /// Drops a message of an unreliable service; nobody is told. Only what is wrong with our own
    /// side ends the QP.
    pub(super) fn drop_message<H>(
        self,
        cx: &mut Cx<'_, H>,
        receive: &Receive,
    ) -> Result<(), Failure> {
        let counter = match self {
            // UC-014, UD-019
            Refusal::ReceiverNotReady => Counter::DropNoReceive,
            // UC-017
            Refusal::InvalidRequest => Counter::DropInvalidRequest,
            // UC-016
            Refusal::RemoteAccess => Counter::DropRemoteAccess,
            // UC-015
            Refusal::ReceiveTooShort => Counter::DropReceiveTooShort,
            // UC-018, UD-025
            Refusal::Local(_) => return self.failure(cx.qp.qpn, receive),
        };
        cx.count(counter, 1);
        Ok(())
    }
}

/// The receive in use, if there is one.
#[derive(Debug, Default)]
pub(super) struct Receive {
    wqe: RecvWqe,
    walk: SgeWalk,
    in_use: bool,
}

impl Receive {
    /// Makes sure that a receive is in use: the one that a dropped message left, or the next. Its
    /// entries are checked as far as the message reaches, when that is put there.
    pub(super) fn take<H: Host>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Refusal> {
        self.walk = SgeWalk::default();
        if self.in_use {
            return Ok(());
        }
        let taken = match cx.qp.init.recv {
            RecvSource::Own(queue) => cx.host.next_recv(queue, &mut self.wqe),
            // SRQ-001
            RecvSource::Shared(srq) => cx.srqs.take(cx.host, srq, &mut self.wqe),
        };
        match taken {
            Taken::Ready => {
                self.in_use = true;
                Ok(())
            }
            Taken::Malformed => {
                self.in_use = true;
                Err(Refusal::Local(Cause::MalformedEntry))
            }
            // SRQ-002
            Taken::Empty => Err(Refusal::ReceiverNotReady),
            Taken::Broken => Err(Refusal::Local(Cause::BrokenQueue)),
        }
    }

    /// The bytes that it has room for.
    pub(super) fn room(&self) -> u64 {
        sges::total(&self.wqe.sges)
    }

    /// Puts data into it.
    pub(super) fn put<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Refusal> {
        // A copy that fails may have written a part.
        cx.qp.dirty = true;
        let mut space = Space { keys: cx.keys, pd: cx.qp.recv_pd, host: cx.host };
        space.scatter(&mut self.walk, &self.wqe.sges, offset, data).map_err(|cause| match cause {
            // RC-RESP-004
            Cause::ReceiveTooShort => Refusal::ReceiveTooShort,
            cause => Refusal::Local(cause),
        })
    }

    /// Takes it out to be completed: its `wr_id`.
    pub(super) fn end(&mut self) -> Option<u64> {
        std::mem::take(&mut self.in_use).then_some(self.wqe.wr_id)
    }
}
