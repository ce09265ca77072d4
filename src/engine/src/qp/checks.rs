//! What a request is checked for before anything of it is executed.

use super::responder::{Message, Refusal};
use super::{Cx, Qp, flush_atomic_write};
use crate::limits::MAX_MESSAGE;
use crate::memory::{KeyError, Span};
use urxe_types::{Access, Rkey};
use urxe_wire::{Operation, Packet};

impl Qp {
    /// First, middle and last packets come in the order of their message.
    pub(super) fn check_sequence(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        use Operation::{Send, SendImm, SendInv, Write, WriteImm};
        let opcode = packet.headers.bth.opcode;
        let in_order = match self.responder.message {
            Message::None => opcode.position().starts(),
            Message::Send { .. } => {
                !opcode.position().starts()
                    && matches!(opcode.operation(), Send | SendImm | SendInv)
            }
            Message::Write { .. } => {
                !opcode.position().starts() && matches!(opcode.operation(), Write | WriteImm)
            }
        };
        in_order.then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// The QP lets its peer do this.
    pub(super) fn check_enabled(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let needs = match packet.headers.bth.opcode.operation() {
            Operation::Send | Operation::SendImm | Operation::SendInv => Access::default(),
            Operation::Write | Operation::WriteImm | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Flush => {
                // A kind that does not exist is refused where it would be executed.
                packet
                    .headers
                    .feth
                    .as_ref()
                    .and_then(flush_atomic_write::flush_rights)
                    .unwrap_or_default()
            }
            _ => return Err(Refusal::InvalidRequest),
        };
        let access = self.attr.access.unwrap_or_default();
        access.contains(needs).then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// Every packet but the last is full, and the lengths add up.
    pub(super) fn check_length(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let len = packet.payload.len();
        let mtu = self.path().mtu as usize;
        let opcode = packet.headers.bth.opcode;
        let reth_len = packet.headers.reth.map(|reth| reth.len);
        if reth_len.is_some_and(|len| u64::from(len) > MAX_MESSAGE) {
            return Err(Refusal::InvalidRequest);
        }
        if opcode.operation() == Operation::AtomicWrite {
            let is_word = len == 8 && reth_len == Some(8);
            return is_word.then_some(()).ok_or(Refusal::InvalidRequest);
        }
        let is_send =
            matches!(opcode.operation(), Operation::Send | Operation::SendImm | Operation::SendInv);
        let is_write = matches!(opcode.operation(), Operation::Write | Operation::WriteImm);
        if !is_send && !is_write {
            return Ok(());
        }
        let ends = opcode.position().ends();
        let starts = opcode.position().starts();
        let full = match (starts, ends) {
            (_, false) => len == mtu,
            (true, true) => len <= mtu,
            (false, true) => len > 0 && len <= mtu,
        };
        let adds_up = match (self.responder.message, reth_len) {
            (Message::Write { remaining, .. }, _) => {
                ends == (remaining as usize == len) && len <= remaining as usize
            }
            (_, Some(length)) => ends == (length as usize == len) && len <= length as usize,
            _ => true,
        };
        (full && adds_up).then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// The key that a SEND closes is that of a type 2 window that is bound on this QP.
    pub(super) fn check_invalidate<H>(
        &self,
        cx: &Cx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        match packet.headers.ieth {
            Some(rkey) if !cx.keys.may_invalidate(rkey.0, self.key_scope()) => {
                Err(Refusal::RemoteAccess)
            }
            _ => Ok(()),
        }
    }

    /// The rkey of nothing is not checked (IBTA C9-88); there is no span then.
    pub(super) fn check_rkey<H>(
        &self,
        cx: &Cx<'_, H>,
        rkey: Rkey,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<Option<Span>, Refusal> {
        if len == 0 {
            return Ok(None);
        }
        cx.keys
            .remote(rkey.0, self.key_scope(), va, u64::from(len), access)
            .map(Some)
            .map_err(|_: KeyError| Refusal::RemoteAccess)
    }
}
