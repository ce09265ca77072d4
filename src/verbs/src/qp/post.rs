//! Posting work requests, and what can be known to be wrong with them before the device sees them.

use super::{Qp, QpInner, Receives};
use crate::error::{PostError, PostReason};
use crate::wr::Names;
use crate::{Access, Ah, BindInfo, Mw, MwType, QpState, QpType, RecvWr, RemoteBuf, SendWr};
use std::sync::Arc;
use urxe_shm::ring::SqProducer;
use urxe_shm::ring::layout::MAX_MESSAGE_LEN;
use urxe_types::{Extra, Qpn, Rkey, SendData, SendOp};

/// The queue pair number that datagrams to a multicast group carry.
pub const MULTICAST_QPN: u32 = Qpn::MULTICAST.get();

impl Qp {
    /// Posts work requests to the send queue, in this order: `ibv_post_send`.
    ///
    /// The list costs one doorbell, however long it is; nothing is allocated and, unless the
    /// daemon sleeps, no system call made. Scatter/gather lists and inline data are copied, so
    /// they may go when this returns; the memory that the lists name must stay as it is until the
    /// completion.
    ///
    /// # Errors
    /// [`PostError`] tells how many of the list were posted, which one was not, and why. Those
    /// before the bad one are posted.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let session = self.session();
        let mut posted = 0;
        let result = session.check_post().and_then(|()| {
            let mut queue = self.0.send_queue.lock();
            // STATE-022
            if matches!(queue.state, QpState::Reset | QpState::Init | QpState::Rtr) {
                let expected = "RTS, SQD, SQE or ERR";
                return Err(PostReason::State { state: queue.state, expected });
            }
            // CLIENT-001
            let result = wrs.iter().try_for_each(|wr| {
                check_operation(wr, &self.0)?;
                check_data(wr)?;
                push(&mut queue.end, wr)?;
                posted += 1;
                Ok(())
            });
            queue.end.publish();
            result
        });
        // CLIENT-003
        if posted > 0 {
            session.ring(self.0.doorbell_slot);
        }
        result.or_else(|why| session.refuse_post(wrs.get(posted).map(SendWr::wr_id), posted, why))
    }

    /// Posts work requests to the receive queue, in this order: `ibv_post_recv`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send). [`PostReason::SharedReceives`] if the queue pair takes
    /// its receives from an SRQ: post them [there](crate::Srq::post_recv).
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let session = self.session();
        let (mut posted, mut ring) = (0, false);
        let result = session.check_post().and_then(|()| {
            let Receives::Own(queue) = &self.0.receives else {
                // SRQ-018
                return Err(PostReason::SharedReceives);
            };
            let mut queue = queue.lock();
            // STATE-022
            if queue.state == QpState::Reset {
                let expected = "any other state";
                return Err(PostReason::State { state: queue.state, expected });
            }
            let result = wrs.iter().try_for_each(|wr| {
                queue.end.push(wr.wr_id, wr.sges).map_err(PostReason::not_pushed)?;
                posted += 1;
                Ok(())
            });
            ring = queue.end.publish();
            result
        });
        // CLIENT-004
        if ring {
            session.ring(self.0.doorbell_slot);
        }
        result.or_else(|why| session.refuse_post(wrs.get(posted).map(RecvWr::wr_id), posted, why))
    }

    /// Binds a window of type 1 to memory, or with [`BindInfo::NOTHING`] to none: `ibv_bind_mw`.
    /// Returns what peers must name from now on; the key that the window had before opens nothing
    /// any more. (Windows of type 2 are bound by [`SendWr::bind_mw`].)
    ///
    /// It is a work request like others: it is carried out in its turn, so that a SEND posted
    /// behind it can already tell the peer; and there will be a completion.
    ///
    /// # Errors
    /// [`PostError`]: as [`post_send`](Self::post_send); [`PostReason::WindowType`] for a window of
    /// type 2, [`PostReason::ZeroBasedWindow`] with
    /// [`Access::ZERO_BASED`](crate::Access::ZERO_BASED), which only type 2 can have.
    pub fn bind_mw(&self, wr_id: u64, mw: &Mw, info: BindInfo) -> Result<RemoteBuf, PostError> {
        let rkey = mw.next_rkey();
        self.post_send(&[SendWr::bind(wr_id, mw, MwType::One, rkey, info).signaled()])?;
        Ok(info.remote_buf(rkey))
    }
}

/// Writes a work request into the queue. A window that is bound has its new key from then on.
#[inline]
fn push(queue: &mut SqProducer, wr: &SendWr<'_>) -> Result<(), PostReason> {
    if let (Names::Mw(mw, _), SendOp::BindMw { new_rkey, .. }) = (wr.names, wr.wr.op) {
        let mut now = wr.wr;
        if let SendOp::BindMw { mw: present, .. } = &mut now.op {
            *present = Rkey(mw.rkey());
        }
        queue.push(&now, wr.data).map_err(PostReason::not_pushed)?;
        // MW-037: not before it is posted.
        mw.set_rkey(new_rkey.0);
        return Ok(());
    }
    queue.push(&wr.wr, wr.data).map_err(PostReason::not_pushed)
}

/// Whether the queue pair can do this at all, with the objects that it names.
fn check_operation(wr: &SendWr<'_>, qp: &QpInner) -> Result<(), PostReason> {
    let (op, qp_type) = (wr.wr.op, qp.qp_type);
    let is_offered = match qp_type {
        QpType::Rc => true,
        QpType::Uc => matches!(
            op,
            SendOp::Send(Extra::None | Extra::Imm(_))
                | SendOp::Write { .. }
                | SendOp::BindMw { .. }
                | SendOp::LocalInvalidate { .. }
        ),
        QpType::Ud => matches!(op, SendOp::Send(Extra::None | Extra::Imm(_))),
    };
    // CLIENT-005
    if !is_offered {
        let transport = qp_type.name();
        return Err(PostReason::Operation { operation: operation_name(op), transport });
    }
    match (wr.names, qp_type) {
        (Names::Ah(ah, dest_qpn), QpType::Ud) => check_destination(ah, dest_qpn, qp),
        // CLIENT-005
        (_, QpType::Ud) => Err(PostReason::NoDestination),
        (Names::Ah(..), _) => Err(PostReason::Destination { transport: qp_type.name() }),
        (Names::Mw(mw, mw_type), _) => check_bind(op, mw, mw_type, qp),
        (Names::Nothing, _) => Ok(()),
    }
}

fn check_destination(ah: &Ah, dest_qpn: u32, qp: &QpInner) -> Result<(), PostReason> {
    // CLIENT-007
    if !Arc::ptr_eq(&ah.0.pd, &qp.pd) {
        return Err(PostReason::ForeignObject { what: "the address handle" });
    }
    let expected = match ah.0.is_multicast {
        // MCAST-007
        true if dest_qpn != MULTICAST_QPN => "0xffffff, as for every multicast group",
        _ if dest_qpn > MULTICAST_QPN => "24 bits",
        _ => return Ok(()),
    };
    Err(PostReason::DestinationQpn { dest_qpn, expected })
}

fn check_bind(op: SendOp, mw: &Mw, mw_type: MwType, qp: &QpInner) -> Result<(), PostReason> {
    let SendOp::BindMw { new_rkey, length, access, .. } = op else { return Ok(()) };
    if mw.mw_type() != mw_type {
        let expected = match mw_type {
            MwType::One => "type 1; SendWr::bind_mw binds type 2",
            MwType::Two => "type 2; Qp::bind_mw binds type 1",
        };
        return Err(PostReason::WindowType { expected });
    }
    if !Arc::ptr_eq(&mw.0.pd, &qp.pd) {
        return Err(PostReason::ForeignObject { what: "the memory window" });
    }
    let (new_rkey, present) = (new_rkey.0, mw.rkey());
    if new_rkey >> 8 != present >> 8 || new_rkey == present {
        return Err(PostReason::WindowKey { rkey: new_rkey, present });
    }
    match mw_type {
        MwType::One if access.contains(Access::ZERO_BASED) => Err(PostReason::ZeroBasedWindow),
        MwType::Two if length == 0 => Err(PostReason::EmptyWindow),
        _ => Ok(()),
    }
}

/// Whether length and place of the data are possible. Whether they fit the queue, the ring checks.
fn check_data(wr: &SendWr<'_>) -> Result<(), PostReason> {
    let length = match wr.data {
        SendData::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        SendData::Inline(data) => data.len() as u64,
    };
    match wr.wr.op {
        SendOp::CompareSwap { remote_addr, .. }
        | SendOp::FetchAdd { remote_addr, .. }
        | SendOp::AtomicWrite { remote_addr, .. } => {
            if length != 8 {
                return Err(PostReason::AtomicLength { length });
            }
            if remote_addr % 8 != 0 {
                return Err(PostReason::AtomicAlignment { addr: remote_addr });
            }
        }
        _ if length > MAX_MESSAGE_LEN => {
            return Err(PostReason::MessageTooLong { length, max: MAX_MESSAGE_LEN });
        }
        _ => {}
    }
    Ok(())
}

/// An operation as people call it.
fn operation_name(op: SendOp) -> &'static str {
    match op {
        SendOp::Send(Extra::None) => "SEND",
        SendOp::Send(Extra::Imm(_)) => "SEND with immediate",
        SendOp::Send(Extra::Invalidate(_)) => "SEND with invalidate",
        SendOp::Write { imm: None, .. } => "WRITE",
        SendOp::Write { imm: Some(_), .. } => "WRITE with immediate",
        SendOp::Read { .. } => "READ",
        SendOp::CompareSwap { .. } => "COMPARE-AND-SWAP",
        SendOp::FetchAdd { .. } => "FETCH-AND-ADD",
        SendOp::AtomicWrite { .. } => "ATOMIC WRITE",
        SendOp::Flush { .. } => "FLUSH",
        SendOp::BindMw { .. } => "BIND",
        SendOp::LocalInvalidate { .. } => "LOCAL INVALIDATE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Inline, Lkey, Sge};

    fn sges(lengths: &[u32]) -> Vec<Sge> {
        lengths.iter().map(|&length| Sge { addr: 0x1000, length, lkey: Lkey(1) }).collect()
    }

    #[test]
    fn a_message_has_at_most_two_gibibytes() {
        let half = 1 << 30;
        let remote = RemoteBuf { addr: 0, rkey: 0, len: 0 };
        let fits = sges(&[half, half]);
        assert_eq!(check_data(&SendWr::write(1, &fits, remote)), Ok(()));
        let too_long = sges(&[half, half, 1]);
        for wr in [SendWr::send(1, &too_long), SendWr::read(1, &too_long, remote)] {
            let length = (1 << 31) + 1;
            let reason = PostReason::MessageTooLong { length, max: 1 << 31 };
            assert_eq!(check_data(&wr), Err(reason));
        }
        assert_eq!(check_data(&SendWr::send(1, Inline(b""))), Ok(()));
    }

    #[test]
    fn an_atomic_takes_eight_aligned_bytes() {
        let (aligned, crooked) = (0x1000, 0x1004);
        let check = |lengths: &[u32], addr| {
            let remote = RemoteBuf { addr, rkey: 0, len: 8 };
            let sges = sges(lengths);
            let add = check_data(&SendWr::fetch_add(1, &sges, remote, 1));
            assert_eq!(add, check_data(&SendWr::compare_swap(1, &sges, remote, 1, 2)));
            assert_eq!(add, check_data(&SendWr::atomic_write(1, &sges, remote)));
            add
        };
        assert_eq!(check(&[8], aligned), Ok(()));
        assert_eq!(check(&[3, 5], aligned), Ok(()));
        assert_eq!(check(&[4], aligned), Err(PostReason::AtomicLength { length: 4 }));
        assert_eq!(check(&[], aligned), Err(PostReason::AtomicLength { length: 0 }));
        assert_eq!(check(&[8], crooked), Err(PostReason::AtomicAlignment { addr: 0x1004 }));
    }
}
