//! A work request that was taken off the send queue and has not ended yet.

use super::distance;
use crate::cause::Cause;
use crate::host::Host;
use crate::limits::PACKET_OVERHEAD;
use crate::memory::Span;
use crate::path::Direction;
use crate::qp::common::{Cx, Error};
use crate::qp::sges::{SgeWalk, Space};
use std::ops::Range;
use urxe_types::{Psn, SendOp, SendWqe};

/// A work request under way.
#[derive(Clone, Debug)]
pub(in crate::qp) struct Pending {
    pub(super) wqe: SendWqe,
    /// Bytes of the message (of the answer, for a READ or atomic).
    pub(super) length: u64,
    /// PSNs it takes; for a READ those of the responses. 0 for a local operation, else at least 1.
    pub(super) packets: u32,
    /// The largest payload of its packets.
    pub(super) mtu: u32,
    /// Packets of it were sent again because they were lost.
    pub(super) is_repeated: bool,
    /// The peer was asked for answers that are all of one size.
    pub(super) in_onlys: bool,
    /// Its PSNs begin here; meaningful once `started`.
    pub(super) first_psn: Psn,
    /// Its PSNs are assigned: something of it was sent. A local operation was done.
    pub(super) started: bool,
    /// It cannot be done for this reason, and ends the QP when all before it have ended.
    pub(super) failed: Option<Error>,
    /// The place in its scatter/gather list.
    pub(super) walk: SgeWalk,
}

impl Pending {
    pub(super) fn new() -> Pending {
        Pending {
            wqe: SendWqe::default(),
            length: 0,
            packets: 1,
            mtu: 1,
            is_repeated: false,
            in_onlys: false,
            first_psn: Psn::new(0),
            started: false,
            failed: None,
            walk: SgeWalk::default(),
        }
    }

    /// The work request.
    pub(in crate::qp) fn wqe(&self) -> &SendWqe {
        &self.wqe
    }

    /// Bytes of the message, or of the answer.
    pub(in crate::qp) fn length(&self) -> u64 {
        self.length
    }

    /// Its first PSN.
    pub(in crate::qp) fn first_psn(&self) -> Psn {
        self.first_psn
    }

    /// The number of its packet with this PSN.
    pub(in crate::qp) fn number(&self, psn: Psn) -> u32 {
        distance(self.first_psn, psn)
    }

    /// Whether this is its last packet.
    pub(in crate::qp) fn is_last(&self, packet: u32) -> bool {
        packet + 1 == self.packets
    }

    /// Whether nothing of its request comes after this packet.
    pub(in crate::qp) fn ends_request(&self, packet: u32) -> bool {
        self.expects_response() || self.is_last(packet)
    }

    /// Whether the responder answers it by a response of its own, which no ACK stands for.
    pub(in crate::qp) fn expects_response(&self) -> bool {
        self.is_read() || self.is_atomic() || self.is_placement()
    }

    /// Whether the responder needs a receive when this packet comes.
    pub(in crate::qp) fn takes_receive_at(&self, packet: u32) -> bool {
        match self.wqe.wr.op {
            SendOp::Send(_) => packet == 0,
            SendOp::Write { imm, .. } => imm.is_some() && packet + 1 == self.packets,
            _ => false,
        }
    }

    /// Whether it takes one of the responder's places for READs and atomics. A FLUSH takes none:
    /// nothing of it has to be kept for a repeat (rxe counts it on neither side).
    pub(in crate::qp) fn takes_resource(&self) -> bool {
        self.expects_response() && !matches!(self.wqe.wr.op, SendOp::Flush { .. })
    }

    /// PSNs that it takes.
    pub(in crate::qp) fn packets(&self) -> u32 {
        self.packets
    }

    /// Whether packets of it were sent again because they were lost.
    pub(in crate::qp) fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// From now on the peer is asked for answers that are all of one size.
    pub(in crate::qp) fn ask_for_onlys(&mut self) {
        self.in_onlys = true;
    }

    /// Whether each answer may be a READ RESPONSE ONLY.
    pub(in crate::qp) fn may_come_in_onlys(&self) -> bool {
        self.in_onlys
    }

    /// The direction in which its data goes.
    pub(in crate::qp) fn direction(&self) -> Direction {
        match self.is_read() || self.is_atomic() {
            true => Direction::Inward,
            false => Direction::Outward,
        }
    }

    /// Bytes that these packets of it, or the answers that carry them, take on their way.
    pub(in crate::qp) fn bytes(&self, packets: Range<u32>) -> u64 {
        let at = |packet: u32| (u64::from(packet) * u64::from(self.mtu)).min(self.length);
        let headers = u64::from(packets.end - packets.start) * PACKET_OVERHEAD;
        at(packets.end) - at(packets.start) + headers
    }

    /// Whether it is done here, and nothing is sent.
    pub(in crate::qp) fn is_local(&self) -> bool {
        matches!(self.wqe.wr.op, SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. })
    }

    pub(in crate::qp) fn is_read(&self) -> bool {
        matches!(self.wqe.wr.op, SendOp::Read { .. })
    }

    /// FLUSH or ATOMIC WRITE: answered, but with nothing.
    pub(in crate::qp) fn is_placement(&self) -> bool {
        matches!(self.wqe.wr.op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
    }

    pub(in crate::qp) fn is_atomic(&self) -> bool {
        matches!(self.wqe.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// Its data.
impl Pending {
    /// Copies its bytes from `offset` on to `buf`, and tells the host of `ahead` bytes that will
    /// be read from there.
    pub(in crate::qp) fn gather<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        offset: u64,
        buf: &mut [u8],
        ahead: u64,
    ) -> Result<(), Cause> {
        if let Some(data) = &self.wqe.inline {
            let offset = offset as usize;
            buf.copy_from_slice(&data[offset..offset + buf.len()]);
            return Ok(());
        }
        let mut space = Space { keys: cx.keys, pd: cx.qp.init.pd, host: cx.host };
        space.gather(&mut self.walk, &self.wqe.sges, offset, buf, ahead)
    }

    /// Where these bytes of its data lie, if they lie together in memory.
    pub(super) fn locate<H: Host>(&mut self, cx: &mut Cx<'_, H>, part: Range<u64>) -> Option<Span> {
        if self.wqe.inline.is_some() {
            return None;
        }
        let space = Space { keys: cx.keys, pd: cx.qp.init.pd, host: cx.host };
        space.locate(&mut self.walk, &self.wqe.sges, part.start, part.end - part.start)
    }

    /// Puts data of its answer to where it is to go.
    pub(in crate::qp) fn scatter<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Cause> {
        // A copy that fails may have written a part.
        cx.qp.dirty = true;
        let mut space = Space { keys: cx.keys, pd: cx.qp.init.pd, host: cx.host };
        space.scatter(&mut self.walk, &self.wqe.sges, offset, data)
    }
}
