//! Work requests to request packets of a connection.

use super::Pending;
use crate::cause::Cause;
use crate::host::Host;
use crate::qp::common::{Cx, Error};
use crate::qp::parameters::Route;
use crate::qp::train::Train;
use crate::tuning::WireForm;
use std::ops::Range;
use urxe_types::{Extra, Rkey, SendOp, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{AtomicEth, Body, Bth, EmitHeaders, Feth, Headers, Part, Request, Reth};

/// Packets that could not be made.
pub(in crate::qp) struct Unsent {
    /// The first of them.
    pub(in crate::qp) from: u32,
    /// Why.
    pub(in crate::qp) error: Error,
}

impl Pending {
    /// Puts one packet into the batch, as a request of the service that `body` is for; it may ask
    /// for the answers of several.
    pub(in crate::qp) fn put_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        route: &Route,
        packets: Range<u32>,
        ack_req: bool,
        body: impl FnOnce(Request) -> Option<Body>,
    ) -> Result<(), Error> {
        let headers = self.headers(route, packets.clone(), ack_req, body)?;
        self.put(cx, tx, route, &headers, self.part(route, packets), None)
    }

    /// Puts packets of its data into the batch, as requests of the service that `body` is for, of
    /// which the last asks for an acknowledgement or not.
    pub(in crate::qp) fn put_train<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        route: &Route,
        packets: Range<u32>,
        ack_req: bool,
        body: impl Fn(Request) -> Option<Body>,
    ) -> Result<(), Unsent> {
        let mut train: Option<Train> = None;
        for packet in packets.clone() {
            let asks = ack_req && packet + 1 == packets.end;
            let part = self.part(route, packet..packet + 1);
            let unsent = |error| Unsent { from: packet, error };
            if let Some(train) = &mut train
                && !self.is_last(packet)
            {
                train.advance();
                train.headers.set_ack_req(asks);
                self.put(cx, tx, route, &train.headers, part, Some(train)).map_err(unsent)?;
                continue;
            }
            let headers = self.headers(route, packet..packet + 1, asks, &body).map_err(unsent)?;
            self.put(cx, tx, route, &headers, part, None).map_err(unsent)?;
            // The first differs from those behind it, and so does the last.
            let end = packets.end.min(self.packets - 1);
            if packet > 0 && packet + 1 < end {
                let memory = self.locate(cx, self.part(route, packet..end));
                train = Some(Train::new(&headers, memory, route.mtu as usize));
            }
        }
        Ok(())
    }

    /// Puts a packet with these headers into the batch, and with this part of the data if it
    /// brings any. It may be one of a train.
    fn put<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        route: &Route,
        headers: &impl EmitHeaders,
        part: Range<u64>,
        train: Option<&Train>,
    ) -> Result<(), Error> {
        let is_data_to_come = self.is_read() || self.is_atomic();
        let len = if is_data_to_come { 0 } else { (part.end - part.start) as usize };
        let ahead = self.length - part.start;
        tx.push(&route.flow, headers, len, |buf| {
            let read = train.and_then(|train| train.read(cx.host, buf, ahead));
            read.unwrap_or_else(|| self.gather(cx, part.start, buf, ahead))
        })
        // RC-REQ-037
        .map_err(|cause| (WcStatus::LocalProtection, cause))?;
        cx.count_sent(len);
        Ok(())
    }

    /// The bytes of the message that these packets carry, or ask for.
    fn part(&self, route: &Route, packets: Range<u32>) -> Range<u64> {
        let mtu = u64::from(route.mtu);
        u64::from(packets.start) * mtu..self.length.min(u64::from(packets.end) * mtu)
    }

    /// The headers of one of its packets, which may ask for the answers of several.
    fn headers(
        &self,
        route: &Route,
        packets: Range<u32>,
        ack_req: bool,
        body: impl FnOnce(Request) -> Option<Body>,
    ) -> Result<Headers, Error> {
        let packet = packets.start;
        let bth = Bth {
            // RC-REQ-006
            solicited: self.wqe.wr.solicited
                && (self.ends_request(packet) || fault!(SolicitedInAll)),
            ack_req,
            migreq: !fault!(MigreqCleared),
            // TRAIN-021
            resv7: if self.in_onlys { Bth::ANSWER_IN_ONLYS } else { 0 },
            ..Bth::new(route.dest_qpn, self.first_psn + packet)
        };
        // As it was judged when it was taken.
        let body = self
            .request(route.wire, packet, self.part(route, packets))
            .and_then(body)
            .ok_or((WcStatus::LocalQpOperation, Cause::NotOfThisTransport))?;
        Ok(Headers::new(bth, body))
    }

    /// The request that carries this part of the message, or asks for it; `None` for what is done
    /// here.
    fn request(&self, wire: WireForm, packet: u32, part: Range<u64>) -> Option<Request> {
        // RC-REQ-002
        let (starts, ends) = (packet == 0, self.is_last(packet));
        let reth = |va: u64, rkey: Rkey, part: Range<u64>| Reth {
            va: if fault!(WriteAddressStays) { va } else { va.wrapping_add(part.start) },
            rkey,
            len: (part.end - part.start) as u32,
        };
        Some(match self.wqe.wr.op {
            // RC-REQ-005: only the part that ends the message keeps it.
            SendOp::Send(Extra::Imm(imm)) if fault!(ImmediateSentSwapped) => {
                let extra = Extra::Imm(imm.swap_bytes());
                Request::Send(Part::new(starts, ends, (), extra))
            }
            SendOp::Send(extra) => Request::Send(Part::new(starts, ends, (), extra)),
            SendOp::Write { remote_addr, rkey, imm: None } if wire == WireForm::Uniform => {
                // TRAIN-001
                Request::Write(Part::Only(reth(remote_addr, rkey, part), None))
            }
            // TRAIN-003: the peer's program is told the length of the whole message, which only a
            // first packet names.
            SendOp::Write { remote_addr, rkey, imm } => {
                // RC-REQ-004: only the part that starts the message keeps it.
                let reth = reth(remote_addr, rkey, 0..self.length);
                // RC-REQ-005
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
                // FAW-012
                Request::Flush { feth: Feth { selectivity, placement }, reth }
            }
            SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. } => return None,
        })
    }
}
