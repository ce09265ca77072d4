//! The requester: work requests to request packets.

use super::retry::ack_timeout;
use super::send_queue::{Pending, distance};
use super::sges::{self, Space};
use super::{Cx, Failure, Qp, flush_atomic_write};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{Host, Taken};
use crate::limits::{MAX_MESSAGE, MAX_TAKEN_SENDS, READS_IN_WINDOW};
use std::ops::Range;
use urxe_types::{Extra, Psn, QpState, QpType, Rkey, SendOp, SendWqe, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{AtomicEth, Body, Bth, Feth, Headers, Part, Request, Reth};

/// The requester's own marks.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Packets sent since one asked for an acknowledgement.
    since_ack_req: u32,
    /// One packet is to be sent again, to draw an answer.
    pub(crate) probe: bool,
    /// The send queue ran empty: a doorbell must come before it is looked at again.
    pub(crate) queue_empty: bool,
    /// The send queue had drained in SQD, and the program was told.
    pub(crate) drained: bool,
}

impl Requester {
    /// Whether something waits that is not in the send queue's taken part.
    pub(crate) fn may_have_work(&self) -> bool {
        self.probe || !self.queue_empty
    }
}

/// Why the requester does not send the next packet now.
pub(super) enum Blocked {
    /// Something that will come (an acknowledgement, a doorbell, a timer) must come first.
    Wait,
    /// The batch or this QP's turn is full.
    Full,
}

impl Qp {
    /// Sends what may be sent now. Returns whether there is more, held up only by the batch's
    /// room or the end of this QP's turn.
    pub(crate) fn transmit_requests<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        budget: &mut u32,
    ) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        if self.retry.is_rnr_waiting() {
            return false;
        }
        if std::mem::take(&mut self.requester.probe) {
            self.send_probe(cx, tx);
        }
        loop {
            match self.transmit_one(cx, tx, budget) {
                Ok(()) => {}
                Err(Blocked::Wait) => return false,
                Err(Blocked::Full) => return true,
            }
        }
    }

    fn transmit_one<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        budget: &mut u32,
    ) -> Result<(), Blocked> {
        if self.failure.is_some() {
            return Err(Blocked::Wait);
        }
        if self.sq.current().is_none() {
            self.take_send(cx)?;
        }
        self.check_may_start()?;
        if *budget == 0 || !tx.has_room() {
            return Err(Blocked::Full);
        }
        if self.sq.current().is_some_and(|(pending, _)| pending.is_local()) {
            *budget -= 1;
            return self.do_current_locally(cx);
        }
        if self.init.qp_type == QpType::Rc {
            self.check_window()?;
        }
        if self.sq.current().is_some_and(|(pending, _)| !pending.started) {
            let per_read_request = self.per_read_request();
            self.sq.start_current(per_read_request);
        }
        let sent = match self.init.qp_type {
            QpType::Rc => self.emit_current(cx, tx),
            QpType::Uc => self.emit_unacknowledged(cx, tx),
            QpType::Ud => self.emit_datagram(cx, tx),
        };
        match sent {
            Ok(()) => {
                *budget -= 1;
                Ok(())
            }
            Err(failed) => {
                if let Some((pending, _)) = self.sq.current() {
                    pending.failed = Some(failed);
                }
                Err(Blocked::Wait)
            }
        }
    }

    /// Takes the next work request off the program's queue and judges it.
    fn take_send<H: Host>(&mut self, cx: &mut Cx<'_, H>) -> Result<(), Blocked> {
        let may_take = self.state == QpState::Rts
            && !self.requester.queue_empty
            && self.sq.len() < MAX_TAKEN_SENDS;
        if !may_take {
            return Err(Blocked::Wait);
        }
        let mut pending = self.sq.blank();
        match cx.host.next_send(self.init.send_queue, &mut pending.wqe) {
            Taken::Ready => match self.validate(cx, &pending.wqe) {
                Ok(length) => {
                    let mtu = u64::from(self.mtu(cx.config));
                    pending.length = length;
                    pending.packets = match pending.is_local() {
                        true => 0,
                        false => (length.div_ceil(mtu) as u32).max(1),
                    };
                    if pending.packets > 1 && self.init.qp_type == QpType::Ud {
                        pending.failed = Some((WcStatus::LocalLength, Cause::DatagramTooLong));
                    }
                }
                Err(failed) => pending.failed = Some(failed),
            },
            Taken::Malformed => {
                pending.failed = Some((WcStatus::LocalQpOperation, Cause::MalformedEntry));
            }
            Taken::Empty => {
                self.requester.queue_empty = true;
                self.sq.put_back(pending);
                return Err(Blocked::Wait);
            }
            Taken::Broken => {
                self.sq.put_back(pending);
                self.failure = Some(Failure::BrokenQueue);
                return Err(Blocked::Wait);
            }
        }
        self.sq.push(pending);
        Ok(())
    }

    /// Whether a work request can be done as far as our own side is concerned; its length.
    fn validate<H>(&self, cx: &Cx<'_, H>, wqe: &SendWqe) -> Result<u64, (WcStatus, Cause)> {
        if !exists_on(self.init.qp_type, wqe.op) {
            return Err((WcStatus::LocalQpOperation, Cause::NotOfThisTransport));
        }
        let (writes_here, is_atomic) = match wqe.op {
            SendOp::Send(_) | SendOp::Write { .. } => (false, false),
            SendOp::Read { .. } => (true, false),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (true, true),
            SendOp::AtomicWrite { .. } => (false, true),
            SendOp::Flush { length, placement, selectivity, .. } => {
                return validate_flush(length, &Feth { selectivity, placement });
            }
            // They are judged when they are done.
            SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. } => return Ok(0),
        };
        if (writes_here || is_atomic) && self.attr.max_rd_atomic.unwrap_or(0) == 0 {
            return Err((WcStatus::LocalQpOperation, Cause::NoReadsAllowed));
        }
        if writes_here && wqe.inline.is_some() {
            return Err((WcStatus::LocalQpOperation, Cause::MalformedEntry));
        }
        let inline = wqe.inline.as_ref().map(|data| data.len() as u64);
        let length = inline.unwrap_or_else(|| sges::total(&wqe.sges));
        if length > MAX_MESSAGE || (is_atomic && length != 8) {
            return Err((WcStatus::LocalLength, Cause::LocalLength));
        }
        // Where the answer goes is checked when it is placed there, as rxe and hardware do: the
        // peer's refusal is told before our own, and an atomic is executed all the same.
        if inline.is_some() || writes_here {
            return Ok(length);
        }
        sges::check(cx.keys, self.init.pd, &wqe.sges)
            .map_err(|cause| (WcStatus::LocalProtection, cause))?;
        Ok(length)
    }

    /// What must wait: one that failed; one with a fence, an invalidation, a READ or atomic beyond
    /// the peer's resources for work requests before it; one that has not begun for the end of SQD.
    fn check_may_start(&mut self) -> Result<(), Blocked> {
        let responses_expected = self.sq.responses_expected();
        let all_asked = self.sq.asked() >= usize::from(self.attr.max_rd_atomic.unwrap_or(0));
        let is_oldest = self.sq.is_current_oldest();
        let Some((pending, _)) = self.sq.current() else { return Err(Blocked::Wait) };
        let fenced = !pending.started
            && match pending.wqe.op {
                // What is before it may still need the key (IBTA 10.6.5.1; rxe waits always).
                SendOp::LocalInvalidate { .. } => !is_oldest,
                _ => pending.wqe.fence && responses_expected > 0,
            };
        let beyond = pending.takes_resource() && all_asked;
        let draining = !pending.started && self.state == QpState::Sqd;
        match pending.failed.is_some() || fenced || beyond || draining {
            true => Err(Blocked::Wait),
            false => Ok(()),
        }
    }

    /// PSNs that a READ request asks for at most. They come in one burst, which the window is to
    /// bound; and the burst of one request shows that the end of the one before was lost, so
    /// several are under way if the peer allows.
    fn per_read_request(&self) -> u32 {
        let at_once = u32::from(self.attr.max_rd_atomic.unwrap_or(1)).clamp(1, READS_IN_WINDOW);
        (self.retry.window.packets() / at_once).max(1)
    }

    /// A READ request counts with all its responses: they are in flight towards us. The first
    /// thing in flight may always go. Nothing goes behind what a peer may have no receive for.
    fn check_window(&mut self) -> Result<(), Blocked> {
        let in_flight = self.sq.in_flight();
        let window = self.retry.window.packets();
        if !self.retry.readiness.may_send() {
            return Err(Blocked::Wait);
        }
        let Some((pending, packet)) = self.sq.current() else { return Err(Blocked::Wait) };
        let needs = pending.after(packet) - packet;
        match in_flight == 0 || in_flight.saturating_add(needs) <= window {
            true => Ok(()),
            false => Err(Blocked::Wait),
        }
    }

    /// Puts the current packet into the batch and moves on.
    fn emit_current<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
    ) -> Result<(), (WcStatus, Cause)> {
        let in_flight = self.sq.in_flight();
        let window = self.retry.window.packets();
        let ack_every = (window / 4).max(1);
        let fills_window = in_flight + 1 >= window;
        let Some((pending, packet)) = self.sq.current() else { return Ok(()) };
        let takes_receive = pending.takes_receive_at(packet);
        let ack_req = fills_window
            || self.requester.since_ack_req + 1 >= ack_every
            || (takes_receive && self.retry.readiness.is_next_the_last());
        let (psn, asked) = self.emit(cx, tx, PacketSource::Current, packet, ack_req)?;

        self.requester.since_ack_req = if asked { 0 } else { self.requester.since_ack_req + 1 };
        match self.sq.is_outstanding(psn) {
            true => self.count(cx, Counter::RetransmittedPackets, 1),
            false if asked => self.retry.time_packet(cx.now, psn),
            false => {}
        }
        if takes_receive {
            self.retry.readiness.on_sent(psn);
        }
        self.sq.sent_current();
        let timeout = self.ack_timeout();
        self.retry.on_sent(cx.now, timeout, cx.config.min_probe);
        Ok(())
    }

    /// Repeats the oldest packet that is not acknowledged. If the peer has it, it acknowledges
    /// all that it has; if not, it takes it and the repair begins.
    fn send_probe<H: Host>(&mut self, cx: &mut Cx<'_, H>, tx: &mut TxBatch) {
        let una = self.sq.una();
        let Some(front) = self.sq.front().filter(|front| front.started) else { return };
        let packet = distance(front.first_psn, una);
        // Only the batch's room or memory that has gone can prevent it; both show elsewhere.
        if tx.has_room() && self.emit(cx, tx, PacketSource::Front, packet, true).is_ok() {
            self.retry.on_probe_sent(una, una + self.sq.outstanding());
            self.count(cx, Counter::Probes, 1);
            self.count(cx, Counter::RetransmittedPackets, 1);
        }
    }

    /// As [`emit_current`](Self::emit_current) where nothing is acknowledged: a message ends with
    /// its last packet.
    fn emit_unacknowledged<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
    ) -> Result<(), (WcStatus, Cause)> {
        let Some((pending, packet)) = self.sq.current() else { return Ok(()) };
        let is_last = packet + 1 == pending.packets;
        self.emit(cx, tx, PacketSource::Current, packet, false)?;
        self.sq.sent_current();
        if is_last {
            self.end_front(cx);
        }
        Ok(())
    }

    /// Builds one packet of a work request. Returns its PSN and whether it asks for an
    /// acknowledgement.
    fn emit<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        source: PacketSource,
        packet: u32,
        ack_req: bool,
    ) -> Result<(Psn, bool), (WcStatus, Cause)> {
        let reliable = self.init.qp_type == QpType::Rc;
        let path = *self.path();
        let found = match source {
            PacketSource::Current => self.sq.current().map(|(pending, _)| pending),
            PacketSource::Front => self.sq.front(),
        };
        let Some(pending) = found else {
            return Err((WcStatus::LocalQpOperation, Cause::None));
        };
        let offset = u64::from(packet) * u64::from(path.mtu);
        let end = pending.length.min(u64::from(pending.after(packet)) * u64::from(path.mtu));
        let is_last = pending.expects_response() || packet + 1 == pending.packets;
        let psn = pending.first_psn + packet;
        let ack_req = reliable && (ack_req || is_last);
        let bth = Bth {
            solicited: pending.wqe.solicited && is_last,
            ack_req,
            ..Bth::new(path.dest_qpn, psn)
        };
        let request = request(pending, packet, offset..end);
        let body = match reliable {
            true => request.map(Body::RcRequest),
            false => request.and_then(Request::unreliable).map(Body::Uc),
        };
        // As it was judged when it was taken.
        let body = body.ok_or((WcStatus::LocalQpOperation, Cause::NotOfThisTransport))?;
        let headers = Headers::new(bth, body);
        let is_data_to_come = pending.is_read() || pending.is_atomic();
        let len = if is_data_to_come { 0 } else { (end - offset) as usize };
        let Pending { wqe, walk, length, .. } = pending;
        let mut space = Space { keys: cx.keys, pd: self.init.pd, host: cx.host };
        tx.push(&path.flow, &headers, len, |buf| match &wqe.inline {
            Some(data) => {
                let offset = offset as usize;
                buf.copy_from_slice(&data[offset..offset + buf.len()]);
                Ok(())
            }
            None => space.gather(walk, &wqe.sges, offset, buf, *length - offset),
        })
        .map_err(|cause| (WcStatus::LocalProtection, cause))?;
        self.count(cx, Counter::SentPackets, 1);
        self.count(cx, Counter::SentBytes, len as u64);
        Ok((psn, ack_req))
    }

    /// The ACK timeout that this QP was given.
    pub(crate) fn ack_timeout(&self) -> Option<std::time::Duration> {
        ack_timeout(self.attr.timeout.unwrap_or(0))
    }
}

/// Which work request a packet is built from.
enum PacketSource {
    /// The one whose turn it is.
    Current,
    /// The oldest.
    Front,
}

/// Whether a transport service has an operation.
fn exists_on(qp_type: QpType, op: SendOp) -> bool {
    let is_send = matches!(op, SendOp::Send(Extra::None | Extra::Imm(_)));
    let is_local = matches!(op, SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. });
    match qp_type {
        QpType::Rc => true,
        QpType::Uc => is_send || is_local || matches!(op, SendOp::Write { .. }),
        QpType::Ud => is_send,
    }
}

/// Whether a FLUSH can be asked for. It has no data, so its length is 0.
fn validate_flush(length: u32, feth: &Feth) -> Result<u64, (WcStatus, Cause)> {
    if u64::from(length) > MAX_MESSAGE {
        return Err((WcStatus::LocalLength, Cause::LocalLength));
    }
    match flush_atomic_write::flush_rights(feth) {
        Some(_) => Ok(0),
        None => Err((WcStatus::LocalQpOperation, Cause::FlushKind)),
    }
}

/// The request that carries this part of a message, or asks for it; `None` for what is done here.
fn request(pending: &Pending, packet: u32, part: Range<u64>) -> Option<Request> {
    let (starts, ends) = (packet == 0, packet + 1 == pending.packets);
    let reth = |va: u64, rkey: Rkey, part: Range<u64>| Reth {
        va: va.wrapping_add(part.start),
        rkey,
        len: (part.end - part.start) as u32,
    };
    Some(match pending.wqe.op {
        SendOp::Send(extra) => Request::Send(Part::new(starts, ends, (), extra)),
        SendOp::Write { remote_addr, rkey, imm } => {
            let reth = reth(remote_addr, rkey, 0..pending.length);
            Request::Write(Part::new(starts, ends, reth, imm))
        }
        SendOp::Read { remote_addr, rkey } => Request::Read(reth(remote_addr, rkey, part)),
        SendOp::CompareSwap { remote_addr: va, rkey, compare, swap } => {
            Request::CompareSwap(AtomicEth { va, rkey, swap_or_add: swap, compare })
        }
        SendOp::FetchAdd { remote_addr: va, rkey, add } => {
            Request::FetchAdd(AtomicEth { va, rkey, swap_or_add: add, compare: 0 })
        }
        SendOp::AtomicWrite { remote_addr, rkey } => {
            Request::AtomicWrite(reth(remote_addr, rkey, part))
        }
        SendOp::Flush { remote_addr: va, rkey, length, placement, selectivity } => {
            let reth = Reth { va, rkey, len: length };
            Request::Flush { feth: Feth { selectivity, placement }, reth }
        }
        SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. } => return None,
    })
}
