//! Work requests to request packets of a connection.

use super::Pending;
use crate::cause::Cause;
use crate::host::Host;
use crate::qp::common::{Cx, Error};
use crate::qp::parameters::Route;
use crate::tuning::WireForm;
use std::ops::Range;
use urxe_types::{Extra, Psn, Rkey, SendOp, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{AtomicEth, Body, Bth, Feth, Headers, Part, Request, Reth};

impl Pending {
    /// Puts one of its packets into the batch, as a request of the service that `body` is for. It
    /// is one packet also where it asks for the answers of several. Returns its PSN.
    pub(in crate::qp) fn put_packet<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBatch,
        route: &Route,
        packets: Range<u32>,
        ack_req: bool,
        body: impl FnOnce(Request) -> Option<Body>,
    ) -> Result<Psn, Error> {
        let Range { start: packet, end } = packets;
        let mtu = u64::from(route.mtu);
        let offset = u64::from(packet) * mtu;
        let end = self.length.min(u64::from(end) * mtu);
        let psn = self.first_psn + packet;
        let bth = Bth {
            // RC-REQ-006
            solicited: self.wqe.wr.solicited
                && (self.ends_request(packet) || fault!(SolicitedInAll)),
            ack_req,
            migreq: !fault!(MigreqCleared),
            // TRAIN-021
            resv7: if self.in_onlys { Bth::ANSWER_IN_ONLYS } else { 0 },
            ..Bth::new(route.dest_qpn, psn)
        };
        // As it was judged when it was taken.
        let body = self
            .request(route.wire, packet, offset..end)
            .and_then(body)
            .ok_or((WcStatus::LocalQpOperation, Cause::NotOfThisTransport))?;
        let is_data_to_come = self.is_read() || self.is_atomic();
        let len = if is_data_to_come { 0 } else { (end - offset) as usize };
        tx.push(&route.flow, &Headers::new(bth, body), len, |buf| {
            self.gather(cx, offset, buf, self.length - offset)
        })
        // RC-REQ-037
        .map_err(|cause| (WcStatus::LocalProtection, cause))?;
        cx.count_sent(len);
        Ok(psn)
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
