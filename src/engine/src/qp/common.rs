//! What all services of a QP share: what it is, what state it is in, what went wrong, and what it
//! works with while something happens to it.

use crate::attr::{DeviceConfig, QpInit};
use crate::cause::Cause;
use crate::counters::{Counter, Counters, LazyCounters};
use crate::device::{AhTable, Cqs, Failures, Peers, Repeat, SrqTable, Tables};
use crate::host::{AsyncEvent, Host};
use crate::ids::{CqId, PdId};
use crate::memory::KeyTable;
use crate::path::Paths;
use crate::qp::history::{Happening, History};
use crate::qp::send_queue::SpareSends;
use std::time::Instant;
use urxe_types::{Completion, Extra, QpAttr, QpState, Qpn, WcOpcode, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Outer, Packet, ecn};

/// How a work request ends badly: its status, and why.
pub(super) type Error = (WcStatus, Cause);

/// Why a QP goes to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The oldest send work request ends with this.
    Send(WcStatus, Cause),
    /// The responder gave up; the receive in use, if any, ends with this.
    Receive { status: WcStatus, cause: Cause, event: Option<AsyncEvent> },
    /// The send queue cannot be read any more.
    BrokenQueue,
    /// A CQ had no room for a completion, of this QP or of another.
    CqOverrun,
    /// The program asked for it.
    Requested,
}

impl Failure {
    /// Why, unless the program asked for it.
    pub(super) fn cause(self) -> Option<Cause> {
        match self {
            Failure::Send(_, cause) | Failure::Receive { cause, .. } => Some(cause),
            Failure::BrokenQueue => Some(Cause::BrokenQueue),
            Failure::CqOverrun => Some(Cause::CqOverrun),
            Failure::Requested => None,
        }
    }
}

/// The part of a QP that does not depend on its service.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) qpn: Qpn,
    pub(super) init: QpInit,
    /// The protection domain of its receives: that of the SRQ if it has one.
    pub(super) recv_pd: PdId,
    pub(super) state: QpState,
    /// The attributes as they were set; what works with them has them resolved.
    pub(super) attr: QpAttr,
    pub(super) counters: LazyCounters,
    pub(super) history: History,
    /// A packet has come since the last batch ended.
    heard: bool,
    /// Program memory was written and the host not yet told to [`sync`](Host::sync).
    pub(super) dirty: bool,
    /// Writes that the peer was not told of were lost; it is still to be told so.
    pub(super) writes_lost: bool,
    /// Something went wrong for good, and is still to be seen to.
    pub(super) failure: Option<Failure>,
    /// Why what is flushed is flushed.
    pub(super) flush_cause: Cause,
    /// The program was told [`QpFatal`](AsyncEvent::QpFatal).
    told_fatal: bool,
    told_established: bool,
}

impl Common {
    pub(super) fn new(qpn: Qpn, init: QpInit, recv_pd: PdId) -> Common {
        Common {
            qpn,
            init,
            recv_pd,
            state: QpState::Reset,
            attr: QpAttr::default(),
            counters: LazyCounters::default(),
            history: History::default(),
            heard: false,
            dirty: false,
            writes_lost: false,
            failure: None,
            flush_cause: Cause::Flushed,
            told_fatal: false,
            told_established: false,
        }
    }

    /// What an rkey must be of to open anything here: our protection domain and, if it is of a
    /// type 2 window, this QP.
    pub(super) fn key_scope(&self) -> (PdId, Qpn) {
        (self.init.pd, self.qpn)
    }

    /// Whether what the peer sends is taken.
    pub(super) fn may_receive(&self) -> bool {
        // STATE-007, STATE-013, SRQ-019, UC-020, UD-024
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
            || (self.state == QpState::Err && fault!(ErrAnswers))
    }

    /// Whether work requests are sent.
    pub(super) fn may_send(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// The completion of a receive of nothing in particular.
    pub(super) fn received(&self, wr_id: u64) -> Completion {
        Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: Cause::None as u32,
            byte_len: 0,
            extra: Extra::None,
            qpn: self.qpn,
            src_qpn: Qpn::new(0),
            grh: None,
            solicited: false,
        }
    }
}

/// What a QP works with while something happens to it: the host, the tables of its device, and
/// its own common part.
pub(super) struct Cx<'a, H> {
    pub(super) now: Instant,
    pub(super) host: &'a mut H,
    pub(super) config: &'a DeviceConfig,
    pub(super) keys: &'a mut KeyTable,
    pub(super) srqs: &'a mut SrqTable,
    pub(super) ahs: &'a AhTable,
    pub(super) paths: &'a mut Paths,
    pub(super) peers: &'a mut Peers,
    /// What the responders of all QPs keep of requests that came before their turn, in bytes.
    pub(super) early_bytes: &'a mut usize,
    pub(super) spare_sends: &'a mut SpareSends,
    repeats: &'a mut Option<Vec<Repeat>>,
    pub(super) qp: &'a mut Common,
    /// What is taken in now has met congestion on its way, and its sender is to hear of it.
    pub(super) is_marked: bool,
    is_receive_filling: bool,
    /// What is taken in now came from another slot of this process, or another device of it.
    pub(super) is_within_process: bool,
    cqs: &'a mut Cqs,
    failures: &'a mut Failures,
    device_counters: &'a mut Counters,
}

impl<'a, H> Cx<'a, H> {
    pub(super) fn new(
        now: Instant,
        host: &'a mut H,
        tables: &'a mut Tables,
        qp: &'a mut Common,
    ) -> Self {
        let Tables {
            config,
            keys,
            srqs,
            ahs,
            cqs,
            failures,
            counters,
            paths,
            peers,
            early_bytes,
            spare_sends,
            repeats,
            is_receive_filling,
            is_within_process,
        } = tables;
        Cx {
            now,
            host,
            config,
            keys,
            srqs,
            ahs,
            paths,
            peers,
            early_bytes,
            spare_sends,
            repeats,
            qp,
            is_marked: false,
            is_receive_filling: *is_receive_filling,
            is_within_process: *is_within_process,
            cqs,
            failures,
            device_counters: counters,
        }
    }

    /// Counts for the QP and for its device.
    pub(super) fn count(&mut self, counter: Counter, amount: u64) {
        self.qp.counters.add(counter, amount);
        // COUNT-012
        self.device_counters.add(counter, amount);
        let Common { history, counters, .. } = &mut *self.qp;
        history.count(self.now, counters, counter, amount);
    }

    /// Counts a packet that belongs to this QP.
    pub(super) fn count_received(&mut self, outer: &Outer, packet: &Packet<'_>) {
        self.qp.heard = true;
        if self.qp.history.is_unheard() {
            self.hear();
        }
        self.count(Counter::ReceivedPackets, 1);
        self.count(Counter::ReceivedBytes, packet.payload.len() as u64);
        let is_marked = ecn::is_marked(outer.flow.traffic_class)
            || (fault!(CnpForMarkable) && outer.flow.traffic_class & ecn::MASK != 0);
        // COUNT-016
        if is_marked {
            self.count(Counter::EcnMarked, 1);
        }
        // CONG-023
        self.is_marked = self.config.tuning.congestion.parameters().is_some()
            && (is_marked || self.is_receive_filling);
    }

    /// Takes note of when packets came, if any did.
    pub(super) fn hear(&mut self) {
        if std::mem::take(&mut self.qp.heard) {
            let Common { history, counters, .. } = &mut *self.qp;
            history.hear(self.now, counters);
        }
    }

    /// Counts the newest packet of the batch as one that was sent before, and is sent again after
    /// this was counted.
    pub(super) fn count_repeat(&mut self, tx: &TxBatch, after: Counter) {
        self.count(Counter::RetransmittedPackets, 1);
        // TAP-007
        if let Some(repeats) = self.repeats {
            repeats.push(Repeat { datagram: tx.len() - 1, after });
        }
    }

    /// Counts a packet with so much payload that was put into the batch.
    pub(super) fn count_sent(&mut self, payload: usize) {
        self.count(Counter::SentPackets, 1);
        self.count(Counter::SentBytes, payload as u64);
    }

    /// Takes note of the state that the QP has been taken to, because of a failure or by its
    /// program.
    pub(super) fn note_state(&mut self, failure: Option<Cause>) {
        let state = self.qp.state;
        let what = match failure {
            Some(cause) => {
                self.failures.note(self.qp.qpn);
                Happening::Failed(state, cause)
            }
            None => Happening::Modified(state),
        };
        let Common { history, counters, .. } = &mut *self.qp;
        history.record(self.now, counters, what, 1);
    }

    /// Takes note of what came of something.
    pub(super) fn note(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.qp.failure = Some(failure);
        }
    }
}

impl<H: Host> Cx<'_, H> {
    /// Makes the writes to program memory visible, and returns whether they are; if not, the QP
    /// fails.
    pub(super) fn sync(&mut self) -> bool {
        if !std::mem::take(&mut self.qp.dirty) || self.host.sync().is_ok() {
            return true;
        }
        if self.qp.failure.is_none() {
            self.qp.writes_lost = true;
            self.qp.failure = Some(Failure::Receive {
                status: WcStatus::LocalProtection,
                cause: Cause::LocalMemory,
                event: Some(AsyncEvent::QpFatal(self.qp.qpn)),
            });
        }
        false
    }

    /// Puts a completion on a CQ. Where it is of a success that stands for memory, the memory has
    /// been [made visible](Self::sync) before.
    pub(super) fn complete(&mut self, cq: CqId, completion: &Completion) {
        self.qp.history.complete(self.now, completion);
        if !self.cqs.has_failed(cq) && self.host.complete(cq, completion).is_ok() {
            return;
        }
        // CQ-001
        self.count(Counter::CqOverruns, 1);
        if self.cqs.fail(cq) {
            self.host.event(AsyncEvent::CqError(cq));
        }
        self.qp.failure.get_or_insert(Failure::CqOverrun);
    }

    /// Puts a receive that failed on the CQ.
    pub(super) fn fail_recv(&mut self, wr_id: u64, status: WcStatus, cause: Cause) {
        let completion = Completion {
            status,
            // CQ-017
            vendor_err: cause as u32,
            // CQ-006
            solicited: true,
            ..self.qp.received(wr_id)
        };
        self.complete(self.qp.init.recv_cq, &completion);
    }

    /// The peer is there. A program that waits in RTR for word of its peer is told once.
    pub(super) fn establish(&mut self) {
        // STATE-012, UC-021
        if self.qp.state == QpState::Rtr
            && (!std::mem::replace(&mut self.qp.told_established, true)
                || fault!(EstablishedToldAgain))
            && !fault!(EstablishedNotTold)
        {
            self.host.event(AsyncEvent::CommunicationEstablished(self.qp.qpn));
        }
    }

    /// Tells the program, once, that the QP has failed in a way that no completion may have told.
    pub(super) fn tell_fatal(&mut self) {
        if !std::mem::replace(&mut self.qp.told_fatal, true) {
            self.host.event(AsyncEvent::QpFatal(self.qp.qpn));
        }
    }
}
