//! Work requests: `ibv_send_wr` and `ibv_recv_wr`.
//!
//! A work request borrows its scatter/gather list, or its inline data, only for the call that
//! posts it: the list is copied into the queue.

use crate::{RemoteBuf, Sge};
use urxe_shm::entry::{self, Extra, SendData, SendOp};

/// Data that goes into the work request itself: `IBV_SEND_INLINE`.
///
/// It is copied when the work request is posted, so it needs no memory region and may be reused
/// at once. At most [`QpCaps::max_inline_data`](crate::QpCaps::max_inline_data) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline<'a>(pub &'a [u8]);

/// What a SEND or WRITE carries: a gather list, or [`Inline`] data.
///
/// Made by `into()` from `&[Sge]`, `&[Sge; N]`, `&Vec<Sge>` and `Inline`; one rarely has to name
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a>(pub(crate) SendData<'a>);

impl<'a> From<&'a [Sge]> for Payload<'a> {
    fn from(sges: &'a [Sge]) -> Self {
        Payload(SendData::Sges(sges))
    }
}

impl<'a, const N: usize> From<&'a [Sge; N]> for Payload<'a> {
    fn from(sges: &'a [Sge; N]) -> Self {
        Payload(SendData::Sges(sges))
    }
}

impl<'a> From<&'a Vec<Sge>> for Payload<'a> {
    fn from(sges: &'a Vec<Sge>) -> Self {
        Payload(SendData::Sges(sges))
    }
}

impl<'a> From<Inline<'a>> for Payload<'a> {
    fn from(data: Inline<'a>) -> Self {
        Payload(SendData::Inline(data.0))
    }
}

/// A request for the send queue: `ibv_send_wr`.
///
/// One constructor for each operation, and a method for each flag:
///
/// ```
/// use urxe_verbs::{Inline, RemoteBuf, SendWr, Sge};
/// # let sge = Sge::default();
/// # let remote = RemoteBuf { addr: 0, rkey: 0, len: 8 };
///
/// let list = [
///     SendWr::write(1, &[sge], remote),
///     SendWr::send(2, Inline(b"written")).solicited().signaled(),
/// ];
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a work request does nothing until it is posted"]
pub struct SendWr<'a> {
    pub(crate) wr: entry::SendWr,
    pub(crate) data: SendData<'a>,
}

impl<'a> SendWr<'a> {
    fn new(wr_id: u64, op: SendOp, payload: Payload<'a>) -> SendWr<'a> {
        let wr =
            entry::SendWr { wr_id, op, to: None, fence: false, signaled: false, solicited: false };
        SendWr { wr, data: payload.0 }
    }

    /// SEND: goes into the next receive that the peer posted.
    pub fn send(wr_id: u64, payload: impl Into<Payload<'a>>) -> Self {
        Self::new(wr_id, SendOp::Send(Extra::None), payload.into())
    }

    /// SEND with 4 bytes of immediate data, which the peer finds in its completion as the same
    /// number.
    pub fn send_imm(wr_id: u64, payload: impl Into<Payload<'a>>, imm: u32) -> Self {
        Self::new(wr_id, SendOp::Send(Extra::Imm(imm)), payload.into())
    }

    /// SEND that also invalidates `rkey` at the peer, who must have lent the key in a way that
    /// allows it: here an [`Mr`](crate::Mr) with
    /// [`REMOTE_INVALIDATE`](crate::Access::REMOTE_INVALIDATE), elsewhere a memory window.
    pub fn send_inv(wr_id: u64, payload: impl Into<Payload<'a>>, rkey: u32) -> Self {
        Self::new(wr_id, SendOp::Send(Extra::Invalidate(rkey)), payload.into())
    }

    /// WRITE into the peer's memory, which the peer does not notice.
    pub fn write(wr_id: u64, payload: impl Into<Payload<'a>>, remote: RemoteBuf) -> Self {
        let RemoteBuf { addr: remote_addr, rkey, .. } = remote;
        Self::new(wr_id, SendOp::Write { remote_addr, rkey, imm: None }, payload.into())
    }

    /// WRITE with 4 bytes of immediate data: takes one of the peer's receives, whose completion
    /// carries the same number.
    pub fn write_imm(
        wr_id: u64,
        payload: impl Into<Payload<'a>>,
        remote: RemoteBuf,
        imm: u32,
    ) -> Self {
        let RemoteBuf { addr: remote_addr, rkey, .. } = remote;
        Self::new(wr_id, SendOp::Write { remote_addr, rkey, imm: Some(imm) }, payload.into())
    }

    /// READ from the peer's memory into `sges`, as much as they hold.
    pub fn read(wr_id: u64, sges: &'a [Sge], remote: RemoteBuf) -> Self {
        let RemoteBuf { addr: remote_addr, rkey, .. } = remote;
        Self::new(wr_id, SendOp::Read { remote_addr, rkey }, sges.into())
    }

    /// ATOMIC COMPARE-AND-SWAP of the 8 bytes at `remote`: if they are `compare`, they become
    /// `swap`. What was there comes into `sges`, 8 bytes as a number of this machine.
    pub fn compare_swap(
        wr_id: u64,
        sges: &'a [Sge],
        remote: RemoteBuf,
        compare: u64,
        swap: u64,
    ) -> Self {
        let RemoteBuf { addr: remote_addr, rkey, .. } = remote;
        let op = SendOp::CompareSwap { remote_addr, rkey, compare, swap };
        Self::new(wr_id, op, sges.into())
    }

    /// ATOMIC FETCH-AND-ADD: `add` is added, wrapping, to the 8 bytes at `remote`. What was there
    /// comes into `sges`, 8 bytes as a number of this machine.
    pub fn fetch_add(wr_id: u64, sges: &'a [Sge], remote: RemoteBuf, add: u64) -> Self {
        let RemoteBuf { addr: remote_addr, rkey, .. } = remote;
        Self::new(wr_id, SendOp::FetchAdd { remote_addr, rkey, add }, sges.into())
    }

    /// `IBV_SEND_SIGNALED`: there will be a completion even if all goes well. (An error always
    /// makes one.) Implied for all requests of a queue pair made with
    /// [`QpInit::signal_all`](crate::QpInit::signal_all).
    pub fn signaled(mut self) -> Self {
        self.wr.signaled = true;
        self
    }

    /// `IBV_SEND_SOLICITED`: the peer's completion also wakes a program that armed its completion
    /// queue for solicited events only. Means something for SENDs and WRITEs with immediate data.
    pub fn solicited(mut self) -> Self {
        self.wr.solicited = true;
        self
    }

    /// `IBV_SEND_FENCE`: begins only when all READs and atomics posted before it have ended.
    pub fn fence(mut self) -> Self {
        self.wr.fence = true;
        self
    }

    /// The number that its completion will carry.
    pub fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }
}

/// A request for the receive queue: `ibv_recv_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a work request does nothing until it is posted"]
pub struct RecvWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Room for one message, filled from the first entry of `sges` on. An empty list takes
    /// messages without data, and the notice of a WRITE with immediate data.
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        RecvWr { wr_id, sges }
    }

    /// The number that its completion will carry.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteBuf = RemoteBuf { addr: 0x1000, rkey: 7, len: 64 };

    #[test]
    fn each_constructor_makes_its_operation() {
        let sge = [Sge { addr: 1, length: 8, lkey: 2 }];
        let (remote_addr, rkey) = (0x1000, 7);
        let table = [
            (SendWr::send(1, &sge), SendOp::Send(Extra::None)),
            (SendWr::send_imm(1, &sge, 9), SendOp::Send(Extra::Imm(9))),
            (SendWr::send_inv(1, &sge, 9), SendOp::Send(Extra::Invalidate(9))),
            (SendWr::write(1, &sge, REMOTE), SendOp::Write { remote_addr, rkey, imm: None }),
            (
                SendWr::write_imm(1, &sge, REMOTE, 9),
                SendOp::Write { remote_addr, rkey, imm: Some(9) },
            ),
            (SendWr::read(1, &sge, REMOTE), SendOp::Read { remote_addr, rkey }),
            (
                SendWr::compare_swap(1, &sge, REMOTE, 3, 4),
                SendOp::CompareSwap { remote_addr, rkey, compare: 3, swap: 4 },
            ),
            (SendWr::fetch_add(1, &sge, REMOTE, 3), SendOp::FetchAdd { remote_addr, rkey, add: 3 }),
        ];
        for (made, op) in table {
            assert_eq!((made.wr_id(), made.wr.op), (1, op));
            assert!(matches!(made.data, SendData::Sges(list) if list == sge));
        }
    }

    #[test]
    fn flags_are_off_until_asked_for() {
        let flags = |made: SendWr<'_>| (made.wr.signaled, made.wr.solicited, made.wr.fence);
        let plain = SendWr::send(1, Inline(b"x"));
        assert_eq!(flags(plain), (false, false, false));
        assert_eq!(flags(plain.signaled()), (true, false, false));
        assert_eq!(flags(plain.solicited()), (false, true, false));
        assert_eq!(flags(plain.fence()), (false, false, true));
    }

    #[test]
    fn inline_data_is_borrowed_as_it_is() {
        let made = SendWr::write(1, Inline(b"data"), REMOTE);
        assert!(matches!(made.data, SendData::Inline(b"data")));
    }
}
