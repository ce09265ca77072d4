//! UD: messages of one packet, to anybody and from anybody who knows the Q_Key.

use super::responder::Refusal;
use super::sges::{self, Space};
use super::{Cx, Qp};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::path::flow_to_any;
use urxe_types::{Completion, DatagramPath, Destination, Extra, GrhKind, Qpn, SendOp, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Bth, Datagram, Deth, Flow, GRH_LEN, Headers, Outer, Packet, datagram_source_port};

impl Qp {
    /// Sends the datagram whose turn it is; it ends with that.
    pub(super) fn emit_datagram<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
    ) -> Result<(), (WcStatus, Cause)> {
        let Some((pending, _)) = self.sq.current() else { return Ok(()) };
        let Some(to) = pending.wqe.to else {
            return Err((WcStatus::LocalQpOperation, Cause::MalformedEntry));
        };
        let flow =
            self.datagram_flow(cx, &to).map_err(|cause| (WcStatus::LocalQpOperation, cause))?;
        let qkey = match to.qkey.is_controlled() {
            true => self.attr.qkey.unwrap_or_default(),
            false => to.qkey,
        };
        let src_qp = self.qpn;
        let Some((pending, _)) = self.sq.current() else { return Ok(()) };
        let imm = match pending.wqe.op {
            SendOp::Send(Extra::Imm(imm)) => Some(imm),
            _ => None,
        };
        let bth = Bth { solicited: pending.wqe.solicited, ..Bth::new(to.qpn, pending.first_psn) };
        let headers = Headers::new(bth, Datagram { deth: Deth { qkey, src_qp }, imm });
        let len = pending.length as usize;
        let mut space = Space { keys: cx.keys, pd: self.init.pd, host: cx.host };
        let (wqe, walk) = (&pending.wqe, &mut pending.walk);
        tx.push(&flow, &headers, len, |buf| match &wqe.inline {
            Some(data) => {
                buf.copy_from_slice(data);
                Ok(())
            }
            None => space.gather(walk, &wqe.sges, 0, buf, len as u64),
        })
        .map_err(|cause| (WcStatus::LocalProtection, cause))?;
        self.count(cx, Counter::SentPackets, 1);
        self.count(cx, Counter::SentBytes, len as u64);
        self.sq.sent_current();
        self.end_front(cx);
        Ok(())
    }

    /// The outer headers of a datagram.
    fn datagram_flow<H>(&self, cx: &Cx<'_, H>, to: &Destination) -> Result<Flow, Cause> {
        let av = match &to.path {
            DatagramPath::Handle(ah) => cx.ahs.get(*ah, self.init.pd)?,
            DatagramPath::Vector(av) => av,
        };
        let mut flow = flow_to_any(&cx.config.gids, av).map_err(|_| Cause::NoPath)?;
        flow.src_port = cx.config.source_port.unwrap_or_else(|| datagram_source_port(self.qpn));
        Ok(flow)
    }

    /// A UD packet arrived.
    pub(super) fn handle_datagram<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        outer: &Outer,
        packet: &Packet<'_>,
        datagram: &Datagram,
    ) {
        if !self.may_receive() {
            return self.count(cx, Counter::DropQpNotReady, 1);
        }
        if self.attr.qkey != Some(datagram.deth.qkey) {
            return self.count(cx, Counter::DropBadQkey, 1);
        }
        let is_multicast = packet.headers.bth.dest_qp == Qpn::MULTICAST;
        if is_multicast != outer.flow.dst.is_multicast() {
            return self.count(cx, Counter::DropWrongAddress, 1);
        }
        if packet.payload.len() > cx.config.active_mtu.bytes() {
            return self.count(cx, Counter::DropDatagramTooLong, 1);
        }
        self.count_received(cx, outer, packet);
        if let Err(refusal) = self.receive_datagram(cx, outer, packet, datagram) {
            self.drop_refused(cx, refusal);
        }
    }

    /// Puts a datagram into a receive, behind the headers that it came with.
    fn receive_datagram<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        outer: &Outer,
        packet: &Packet<'_>,
        datagram: &Datagram,
    ) -> Result<(), Refusal> {
        self.take_recv(cx)?;
        let length = GRH_LEN + packet.payload.len();
        // Nothing of a datagram that does not fit is put anywhere.
        if sges::total(&self.responder.recv.sges) < length as u64 {
            return Err(Refusal::ReceiveTooShort);
        }
        self.put(cx, 0, &outer.grh(packet.udp_len()))?;
        self.put(cx, GRH_LEN as u64, packet.payload)?;
        if !self.sync(cx) {
            return Ok(());
        }
        self.count(cx, Counter::ReceivedMessages, 1);
        let Some(wr_id) = self.responder.take_recv() else { return Ok(()) };
        let kind = if outer.flow.src.is_ipv4() { GrhKind::Ipv4 } else { GrhKind::Ipv6 };
        let completion = Completion {
            byte_len: length as u32,
            extra: datagram.imm.map_or(Extra::None, Extra::Imm),
            src_qpn: datagram.deth.src_qp,
            grh: Some(kind),
            solicited: packet.headers.bth.solicited,
            ..self.received(wr_id)
        };
        self.complete(cx, self.init.recv_cq, &completion);
        Ok(())
    }
}
