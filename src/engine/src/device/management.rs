//! QP1, the general services interface: how connection managers talk to each other.
//!
//! It belongs to the device itself and not to a program. Management datagrams are unreliable:
//! what is dropped here is counted, and sent again by those who need it.

use crate::counters::{Counter, Counters};
use crate::limits::MAX_WAITING_MADS;
use std::collections::VecDeque;
use urxe_types::{Psn, Qkey, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::mad::{MAD_LEN, MadSource};
use urxe_wire::{Body, Bth, Datagram, Deth, Flow, Headers, Outer, Packet};

/// The device's own QP1, or what a slot has in its place.
#[derive(Debug)]
pub(super) struct Management {
    qpn: Qpn,
    waiting: VecDeque<Outgoing>,
    next_psn: Psn,
}

#[derive(Debug)]
struct Outgoing {
    flow: Flow,
    qpn: Qpn,
    mad: [u8; MAD_LEN],
}

impl Management {
    /// Sends from this QPN.
    pub(super) fn new(qpn: Qpn) -> Management {
        Management { qpn, waiting: VecDeque::new(), next_psn: Psn::default() }
    }

    /// The QPN that it sends from, and gets the answers at.
    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Queues a datagram, unless too many wait already.
    pub(super) fn send(
        &mut self,
        counters: &mut Counters,
        flow: Flow,
        qpn: Qpn,
        mad: &[u8; MAD_LEN],
    ) {
        // UD-030
        match self.waiting.len() >= MAX_WAITING_MADS {
            true => counters.add(Counter::MadsNotSent, 1),
            false => self.waiting.push_back(Outgoing { flow, qpn, mad: *mad }),
        }
    }

    /// Whether datagrams wait to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Puts waiting datagrams into the batch. Returns whether there are more, held up by the
    /// batch's room.
    pub(super) fn transmit(&mut self, counters: &mut Counters, tx: &mut TxBatch) -> bool {
        while !self.waiting.is_empty() {
            if !tx.has_room() {
                return true;
            }
            let Some(Outgoing { flow, qpn, mad }) = self.waiting.pop_front() else { break };
            let psn = self.next_psn;
            self.next_psn = psn.next();
            // UD-029
            let deth = Deth { qkey: Qkey::GSI, src_qp: self.qpn };
            let headers = Headers::new(Bth::new(qpn, psn), Datagram { deth, imm: None });
            let Ok(()) = tx.push(&flow, &headers, MAD_LEN, |buf| {
                buf.copy_from_slice(&mad);
                Ok::<(), std::convert::Infallible>(())
            });
            counters.add(Counter::MadsSent, 1);
            counters.add(Counter::SentPackets, 1);
            counters.add(Counter::SentBytes, MAD_LEN as u64);
        }
        false
    }
}

/// The management datagram in a packet for QP1, and where it came from; or why it is dropped.
pub(super) fn parse<'a>(
    outer: &Outer,
    packet: &Packet<'a>,
) -> Result<(MadSource, &'a [u8; MAD_LEN]), Counter> {
    let Body::Ud(Datagram { deth: Deth { qkey, src_qp }, .. }) = packet.headers.body else {
        return Err(Counter::DropWrongTransport);
    };
    // UD-028
    if qkey != Qkey::GSI {
        return Err(Counter::DropBadQkey);
    }
    // UD-028
    let mad = packet.payload.try_into().map_err(|_| Counter::DropBadMad)?;
    Ok((MadSource { flow: outer.flow, src_qpn: src_qp }, mad))
}
