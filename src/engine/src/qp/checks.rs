//! What a request is checked for before anything of it is executed.

use super::responder::{Message, Refusal};
use super::{Cx, Qp, flush_atomic_write};
use crate::limits::MAX_MESSAGE;
use crate::memory::{KeyError, Span};
use urxe_types::{Access, Rkey};
use urxe_wire::{Packet, Part, Request};

impl Qp {
    /// First, middle and last packets come in the order of their message.
    pub(super) fn check_sequence(&self, request: &Request) -> Result<(), Refusal> {
        let in_order = match (self.responder.message, request) {
            (Message::None, _) => request.starts(),
            (Message::Send { .. }, Request::Send(part)) => !part.starts(),
            (Message::Write { .. }, Request::Write(part)) => !part.starts(),
            (Message::Send { .. } | Message::Write { .. }, _) => false,
        };
        in_order.then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// The QP lets its peer do this.
    pub(super) fn check_enabled(&self, request: &Request) -> Result<(), Refusal> {
        let needs = match request {
            Request::Send(_) => Access::default(),
            Request::Write(_) | Request::AtomicWrite(_) => Access::REMOTE_WRITE,
            Request::Read(_) => Access::REMOTE_READ,
            Request::CompareSwap(_) | Request::FetchAdd(_) => Access::REMOTE_ATOMIC,
            // A kind that does not exist is refused where it would be executed.
            Request::Flush { feth, .. } => {
                flush_atomic_write::flush_rights(feth).unwrap_or_default()
            }
        };
        let access = self.attr.access.unwrap_or_default();
        access.contains(needs).then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// Every packet but the last is full, and the lengths add up.
    pub(super) fn check_length(&self, packet: &Packet<'_, Request>) -> Result<(), Refusal> {
        let request = &packet.headers.body;
        if request.reth().is_some_and(|reth| u64::from(reth.len) > MAX_MESSAGE) {
            return Err(Refusal::InvalidRequest);
        }
        let len = packet.payload.len();
        let is_right = match request {
            Request::AtomicWrite(reth) => len == 8 && reth.len == 8,
            Request::Send(part) => self.is_full(part, len),
            Request::Write(part) => {
                let left = match (self.responder.message, part.start()) {
                    (Message::Write { remaining, .. }, _) => Some(remaining),
                    (_, start) => start.map(|reth| reth.len),
                };
                let adds_up = |left| part.ends() == (left == len) && len <= left;
                self.is_full(part, len) && left.is_none_or(|left| adds_up(left as usize))
            }
            _ => true,
        };
        is_right.then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// Whether a part of a message is as long as its place in the message says.
    fn is_full<S, E>(&self, part: &Part<S, E>, len: usize) -> bool {
        let mtu = self.path().mtu as usize;
        match part {
            Part::First(_) | Part::Middle => len == mtu,
            Part::Last(_) => len > 0 && len <= mtu,
            Part::Only(..) => len <= mtu,
        }
    }

    /// The key that a SEND closes is that of a type 2 window that is bound on this QP.
    pub(super) fn check_invalidate<H>(
        &self,
        cx: &Cx<'_, H>,
        request: &Request,
    ) -> Result<(), Refusal> {
        match request.invalidates() {
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
