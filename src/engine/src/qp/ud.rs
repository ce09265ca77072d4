//! UD: messages of one packet, to anybody and from anybody who knows the Q_Key.

use super::common::{Cx, Error, Failure};
use super::receive::{Receive, Refusal};
use super::send_queue::SendQueue;
use crate::cause::Cause;
use crate::counters::Counter;
use crate::flow::flow_to_any;
use crate::host::Host;
use urxe_types::{
    Completion, DatagramPath, Destination, Extra, GrhKind, Qkey, Qpn, SendOp, WcStatus,
};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Bth, Datagram, Deth, Flow, GRH_LEN, Headers, Outer, Packet, datagram_source_port};

/// The service of a UD QP.
#[derive(Debug)]
pub(super) struct Ud {
    /// What a datagram must carry to be taken.
    qkey: Qkey,
    receive: Receive,
}

impl Ud {
    pub(super) fn new(qkey: Qkey) -> Ud {
        Ud { qkey, receive: Receive::default() }
    }

    pub(super) fn update(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    pub(super) fn end_receive(&mut self) -> Option<u64> {
        self.receive.end()
    }

    /// Sends what may be sent now. Returns whether there is more, held up only by the batch's
    /// room or the end of this QP's turn.
    pub(super) fn transmit<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        budget: &mut u32,
    ) -> Result<bool, Failure> {
        // UD-006
        let mtu = cx.config.active_mtu.bytes() as u32;
        sq.transmit_unanswered(cx, tx, budget, mtu, |sq, cx, tx, _| {
            self.send_current(cx, sq, tx).map(|()| 1)
        })
    }

    /// Sends the datagram whose turn it is; it ends with that.
    fn send_current<H: Host>(
        &self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
    ) -> Result<(), Error> {
        let Some((pending, _)) = sq.current() else { return Ok(()) };
        let wqe = pending.wqe();
        let Some(to) = &wqe.wr.to else {
            // UD-010
            return Err((WcStatus::LocalQpOperation, Cause::MalformedEntry));
        };
        let flow = flow(cx, to).map_err(|cause| (WcStatus::LocalQpOperation, cause))?;
        // UD-004
        let is_own = to.qkey.is_controlled() && !fault!(UdControlledQkeySent);
        let qkey = if is_own { self.qkey } else { to.qkey };
        let imm = match wqe.wr.op {
            SendOp::Send(Extra::Imm(imm)) => Some(imm),
            _ => None,
        };
        // UD-003
        let bth = Bth {
            solicited: wqe.wr.solicited,
            ack_req: fault!(UdAsksForAck),
            ..Bth::new(to.qpn, pending.first_psn())
        };
        // UD-001
        let src_qp = if fault!(UdSourceMissing) { Qpn::new(0) } else { cx.qp.qpn };
        let deth = Deth { qkey, src_qp };
        let len = pending.length();
        tx.push(&flow, &Headers::new(bth, Datagram { deth, imm }), len as usize, |buf| {
            pending.gather(cx, 0, buf, len)
        })
        // UD-032
        .map_err(|cause| (WcStatus::LocalProtection, cause))?;
        cx.count_sent(len as usize);
        sq.sent_current(1);
        sq.end_front(cx);
        Ok(())
    }

    /// A datagram arrived.
    pub(super) fn handle_datagram<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        outer: &Outer,
        packet: &Packet<'_>,
        datagram: &Datagram,
    ) -> Result<(), Failure> {
        let is_multicast = packet.headers.bth.dest_qp == Qpn::MULTICAST;
        let dropped = if !cx.qp.may_receive() {
            Counter::DropQpNotReady
        } else if self.qkey != datagram.deth.qkey && !fault!(UdQkeyNotChecked) {
            // UD-016, UD-017
            Counter::DropBadQkey
        } else if is_multicast != outer.flow.dst.is_multicast() {
            // UD-023
            Counter::DropWrongAddress
        } else if packet.payload.len() > cx.config.active_mtu.bytes() {
            // UD-021
            Counter::DropDatagramTooLong
        } else {
            cx.count_received(outer, packet);
            return self
                .receive_datagram(cx, outer, packet, datagram)
                .or_else(|refusal| refusal.drop_message(cx, &self.receive));
        };
        cx.count(dropped, 1);
        Ok(())
    }

    /// Puts a datagram into a receive, behind the headers that it came with.
    fn receive_datagram<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        outer: &Outer,
        packet: &Packet<'_>,
        datagram: &Datagram,
    ) -> Result<(), Refusal> {
        self.receive.take(cx)?;
        let length = GRH_LEN + packet.payload.len();
        // UD-020, UD-031: nothing of a datagram that does not fit is put anywhere.
        let room = self.receive.room() as usize;
        let is_cut = room < length && fault!(UdTooLongCut);
        if room < length && !is_cut {
            return Err(Refusal::ReceiveTooShort);
        }
        if !fault!(UdWithoutGrh) {
            self.receive.put(cx, 0, &outer.grh(packet.udp_len()))?;
        }
        let at = if fault!(UdAtStartOfReceive) { 0 } else { GRH_LEN };
        let payload =
            if is_cut { &packet.payload[..room.saturating_sub(GRH_LEN)] } else { packet.payload };
        self.receive.put(cx, at as u64, payload)?;
        if !cx.sync() {
            return Ok(());
        }
        cx.count(Counter::ReceivedMessages, 1);
        let Some(wr_id) = self.receive.end() else { return Ok(()) };
        let kind = if outer.flow.src.is_ipv4() { GrhKind::Ipv4 } else { GrhKind::Ipv6 };
        let completion = Completion {
            // UD-013
            byte_len: (length - if fault!(UdLengthWithoutGrh) { GRH_LEN } else { 0 }) as u32,
            // UD-014
            extra: datagram.imm.map_or(Extra::None, Extra::Imm),
            src_qpn: datagram.deth.src_qp,
            grh: Some(kind),
            // UD-014
            solicited: packet.headers.bth.solicited,
            ..cx.qp.received(wr_id)
        };
        cx.complete(cx.qp.init.recv_cq, &completion);
        Ok(())
    }
}

/// The outer headers of a datagram.
fn flow<H>(cx: &Cx<'_, H>, to: &Destination) -> Result<Flow, Cause> {
    let av = match &to.path {
        // UD-002
        DatagramPath::Handle(ah) => cx.ahs.get(*ah, cx.qp.init.pd)?,
        DatagramPath::Vector(av) => av,
    };
    // UD-008
    let mut flow = flow_to_any(&cx.config.gids, av).map_err(|_| Cause::NoPath)?;
    flow.src_port = cx.config.source_port(flow.dst, datagram_source_port(cx.qp.qpn));
    Ok(flow)
}
