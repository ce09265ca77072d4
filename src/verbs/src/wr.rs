//! Work requests: `ibv_send_wr` and `ibv_recv_wr`.
//!
//! A work request borrows its scatter/gather list, or its inline data, only for the call that
//! posts it: the list is copied into the queue.

use crate::{Ah, BindInfo, Mw, MwType, RemoteBuf};
use urxe_types::{
    DatagramPath, Destination, Extra, FlushPlacement, FlushSelectivity, Qkey, Qpn, Rkey, SendData,
    SendOp, Sge,
};

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
    pub(crate) wr: urxe_types::SendWr,
    pub(crate) data: SendData<'a>,
    pub(crate) names: Names<'a>,
}

/// The object that a work request names, which is looked at when it is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names<'a> {
    Nothing,
    /// Where a datagram goes, and the QPN there as the program said it.
    Ah(&'a Ah, u32),
    /// A window to be bound, and the type that is bound in this way.
    Mw(&'a Mw, MwType),
}

impl<'a> SendWr<'a> {
    fn new(wr_id: u64, op: SendOp, payload: Payload<'a>) -> SendWr<'a> {
        let wr = urxe_types::SendWr { wr_id, op, ..Default::default() };
        SendWr { wr, data: payload.0, names: Names::Nothing }
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

    /// SEND that also invalidates `rkey` at the peer: the key of a [memory window](crate::Mw) of
    /// type 2 that is bound on the queue pair at the other end.
    pub fn send_inv(wr_id: u64, payload: impl Into<Payload<'a>>, rkey: u32) -> Self {
        Self::new(wr_id, SendOp::Send(Extra::Invalidate(Rkey(rkey))), payload.into())
    }

    /// WRITE into the peer's memory, which the peer does not notice.
    pub fn write(wr_id: u64, payload: impl Into<Payload<'a>>, remote: RemoteBuf) -> Self {
        let (remote_addr, rkey) = target(remote);
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
        let (remote_addr, rkey) = target(remote);
        Self::new(wr_id, SendOp::Write { remote_addr, rkey, imm: Some(imm) }, payload.into())
    }

    /// READ from the peer's memory into `sges`, as much as they hold.
    pub fn read(wr_id: u64, sges: &'a [Sge], remote: RemoteBuf) -> Self {
        let (remote_addr, rkey) = target(remote);
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
        let (remote_addr, rkey) = target(remote);
        let op = SendOp::CompareSwap { remote_addr, rkey, compare, swap };
        Self::new(wr_id, op, sges.into())
    }

    /// ATOMIC FETCH-AND-ADD: `add` is added, wrapping, to the 8 bytes at `remote`. What was there
    /// comes into `sges`, 8 bytes as a number of this machine.
    pub fn fetch_add(wr_id: u64, sges: &'a [Sge], remote: RemoteBuf, add: u64) -> Self {
        let (remote_addr, rkey) = target(remote);
        Self::new(wr_id, SendOp::FetchAdd { remote_addr, rkey, add }, sges.into())
    }

    /// ATOMIC WRITE: the 8 bytes of the list, or 8 bytes of [`Inline`] data, come to `remote` in
    /// one piece, and not before all earlier WRITEs are there.
    pub fn atomic_write(wr_id: u64, payload: impl Into<Payload<'a>>, remote: RemoteBuf) -> Self {
        let (remote_addr, rkey) = target(remote);
        Self::new(wr_id, SendOp::AtomicWrite { remote_addr, rkey }, payload.into())
    }

    /// FLUSH: when it has ended, what earlier WRITEs and atomics put into `remote` has come as far
    /// as `placement` says. A range of 4 GiB or more flushes the whole memory region.
    pub fn flush(wr_id: u64, remote: RemoteBuf, placement: FlushPlacement) -> Self {
        let (remote_addr, rkey) = target(remote);
        let (length, selectivity) = match u32::try_from(remote.len) {
            Ok(length) => (length, FlushSelectivity::Range),
            Err(_) => (0, FlushSelectivity::Mr),
        };
        let op = SendOp::Flush { remote_addr, rkey, length, placement, selectivity };
        Self::new(wr_id, op, Payload(SendData::Sges(&[])))
    }

    /// Binds a [memory window](Mw) of type 2 to memory. From then on it has the key `rkey`, which
    /// differs from its present one in the last 8 bits, such as [`Mw::next_rkey`] does; a window
    /// that is bound already must be invalidated first. (Windows of type 1 are bound by
    /// [`Qp::bind_mw`](crate::Qp::bind_mw).)
    ///
    /// [`BindInfo::remote_buf`] tells what peers must name.
    pub fn bind_mw(wr_id: u64, mw: &'a Mw, rkey: u32, info: BindInfo) -> Self {
        Self::bind(wr_id, mw, MwType::Two, rkey, info)
    }

    pub(crate) fn bind(
        wr_id: u64,
        mw: &'a Mw,
        mw_type: MwType,
        new_rkey: u32,
        info: BindInfo,
    ) -> Self {
        let BindInfo { mr, addr, length, access } = info;
        let (present, new_rkey) = (Rkey(mw.rkey()), Rkey(new_rkey));
        let op = SendOp::BindMw { mw: present, new_rkey, mr, addr, length, access };
        let names = Names::Mw(mw, mw_type);
        SendWr { names, ..Self::new(wr_id, op, Payload(SendData::Sges(&[]))) }
    }

    /// Invalidates a key: that of a [memory window](Mw) of type 2 that is bound on this queue pair.
    /// From then on it opens nothing, until the window is bound again with another.
    pub fn local_inv(wr_id: u64, rkey: u32) -> Self {
        let op = SendOp::LocalInvalidate { key: Rkey(rkey) };
        Self::new(wr_id, op, Payload(SendData::Sges(&[])))
    }

    /// On a UD queue pair: to the queue pair `qpn` at the end of the path `ah`, whose Q_Key is
    /// `qkey`; or to a multicast group, with the QPN [`MULTICAST_QPN`](crate::MULTICAST_QPN). A
    /// Q_Key with its highest bit set stands for the queue pair's own, as in verbs.
    pub fn to(mut self, ah: &'a Ah, qpn: u32, qkey: u32) -> Self {
        let path = DatagramPath::Handle(ah.0.number);
        self.wr.to = Some(Destination { path, qpn: Qpn::new(qpn), qkey: Qkey(qkey) });
        self.names = Names::Ah(ah, qpn);
        self
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

/// Where an operation goes at the peer.
fn target(remote: RemoteBuf) -> (u64, Rkey) {
    (remote.addr, Rkey(remote.rkey))
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
    use urxe_types::Lkey;

    const REMOTE: RemoteBuf = RemoteBuf { addr: 0x1000, rkey: 7, len: 64 };

    #[test]
    fn each_constructor_makes_its_operation() {
        let sge = [Sge { addr: 1, length: 8, lkey: Lkey(2) }];
        let (remote_addr, rkey) = (0x1000, Rkey(7));
        let table = [
            (SendWr::send(1, &sge), SendOp::Send(Extra::None)),
            (SendWr::send_imm(1, &sge, 9), SendOp::Send(Extra::Imm(9))),
            (SendWr::send_inv(1, &sge, 9), SendOp::Send(Extra::Invalidate(Rkey(9)))),
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
            (SendWr::atomic_write(1, &sge, REMOTE), SendOp::AtomicWrite { remote_addr, rkey }),
        ];
        for (made, op) in table {
            assert_eq!((made.wr_id(), made.wr.op), (1, op));
            assert!(matches!(made.data, SendData::Sges(list) if list == sge));
        }
    }

    #[test]
    fn flush_is_of_the_range_or_of_the_mr_if_the_range_is_too_long() {
        let flush = |len| {
            let remote = RemoteBuf { len, ..REMOTE };
            match SendWr::flush(1, remote, FlushPlacement::GLOBAL).wr.op {
                SendOp::Flush { length, placement, selectivity, .. } => {
                    assert_eq!(placement, FlushPlacement::GLOBAL);
                    (length, selectivity)
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(flush(64), (64, FlushSelectivity::Range));
        assert_eq!(flush(u64::from(u32::MAX)), (u32::MAX, FlushSelectivity::Range));
        assert_eq!(flush(1 << 32), (0, FlushSelectivity::Mr));
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
