//! QP1, the general services interface: how connection managers talk to each other.
//!
//! It belongs to the device itself and not to a program. Management datagrams are unreliable:
//! what is dropped here is counted, and sent again by those who need it.

use crate::address_handle::AhError;
use crate::counters::Counter;
use crate::device::Device;
use crate::host::Host;
use crate::limits::MAX_WAITING_MADS;
use crate::path::flow_to_host;
use std::collections::VecDeque;
use urxe_types::{AddressVector, Psn, Qkey, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::mad::{MAD_LEN, MadSource};
use urxe_wire::{Bth, Deth, Flow, Headers, Opcode, Outer, Packet, datagram_source_port};

/// The device's own QP1.
#[derive(Debug)]
pub(crate) struct Management {
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
    pub(crate) fn new() -> Management {
        Management { waiting: VecDeque::new(), next_psn: Psn::new(0) }
    }
}

impl Device {
    /// Sends a management datagram from QP1 with the next [`poll_transmit`](Self::poll_transmit).
    /// If too many wait already it is dropped, and counted so.
    ///
    /// # Errors
    /// If the address vector leads nowhere.
    pub fn send_mad(
        &mut self,
        to: &AddressVector,
        qpn: Qpn,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), AhError> {
        let mut flow = flow_to_host(&self.config.gids, to)?;
        flow.src_port = self.config.source_port.unwrap_or_else(|| datagram_source_port(Qpn::GSI));
        match self.management.waiting.len() >= MAX_WAITING_MADS {
            true => self.counters.add(Counter::MadsNotSent, 1),
            false => self.management.waiting.push_back(Outgoing { flow, qpn, mad: *mad }),
        }
        Ok(())
    }

    /// Puts waiting management datagrams into the batch. Returns whether there are more, held up
    /// by the batch's room.
    pub(crate) fn transmit_mads(&mut self, tx: &mut TxBatch) -> bool {
        while !self.management.waiting.is_empty() {
            if !tx.has_room() {
                return true;
            }
            let Some(Outgoing { flow, qpn, mad }) = self.management.waiting.pop_front() else {
                break;
            };
            let psn = self.management.next_psn;
            self.management.next_psn = psn.next();
            let headers = Headers {
                deth: Some(Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI }),
                ..Headers::new(Bth::new(Opcode::UD_SEND_ONLY, qpn, psn))
            };
            let Ok(()) = tx.push(&flow, &headers, MAD_LEN, |buf| {
                buf.copy_from_slice(&mad);
                Ok::<(), std::convert::Infallible>(())
            });
            self.counters.add(Counter::MadsSent, 1);
            self.counters.add(Counter::SentPackets, 1);
            self.counters.add(Counter::SentBytes, MAD_LEN as u64);
        }
        false
    }

    /// A packet for QP1.
    pub(crate) fn handle_mad(&mut self, host: &mut impl Host, outer: &Outer, packet: &Packet<'_>) {
        let Some(Deth { qkey, src_qp }) = packet.headers.deth else {
            return self.counters.add(Counter::DropWrongTransport, 1);
        };
        if qkey != Qkey::GSI {
            return self.counters.add(Counter::DropBadQkey, 1);
        }
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(packet.payload) else {
            return self.counters.add(Counter::DropBadMad, 1);
        };
        self.counters.add(Counter::ReceivedPackets, 1);
        self.counters.add(Counter::ReceivedBytes, MAD_LEN as u64);
        self.counters.add(Counter::MadsReceived, 1);
        host.mad(&MadSource { flow: outer.flow, src_qpn: src_qp }, mad);
    }
}
