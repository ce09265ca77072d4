//! Queue pairs.

use crate::context::Object;
use crate::cq::CqInner;
use crate::error::{PostError, PostReason};
use crate::pd::PdInner;
use crate::session::{Session, nonsense, unexpected};
use crate::{
    Access, Context, Cq, Error, InitAttr, Pd, QpAttr, QpCaps, QpEndpoint, QpInit, QpQueried,
    QpState, RecvWr, RtrAttr, RtsAttr, SendWr,
};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use urxe_shm::control::{QpCreated, QpHandle, Reply, Request};
use urxe_shm::entry::{SendData, SendOp};
use urxe_shm::geometry::Geometry;
use urxe_shm::ring::{RqProducer, SqProducer};

/// The longest message in bytes: 31 bits of the length field may be used (`max_msg_sz`).
const MAX_MESSAGE: u64 = 1 << 31;

/// A queue pair: `ibv_qp`. One end of a connection.
///
/// Made by [`Pd::create_qp`](crate::Pd::create_qp), in the RESET state. [`connect`](Self::connect)
/// takes it through INIT and RTR to RTS; the single steps are there for those who need them:
///
/// ```no_run
/// # fn main() -> Result<(), urxe_verbs::Error> {
/// # let context = urxe_verbs::Context::open(&Default::default())?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.create_cq(16, None)?;
/// # let remote: urxe_verbs::QpEndpoint = "".parse()?;
/// use urxe_verbs::{Access, InitAttr, QpInit, RtrAttr, RtsAttr};
///
/// let qp = pd.create_qp(&QpInit::new(&cq))?;
/// qp.to_init(InitAttr::new(Access::REMOTE_WRITE))?;
/// qp.to_rtr(RtrAttr { min_rnr_timer: 1, ..RtrAttr::new(remote.qpn, remote.psn, remote.gid) })?;
/// qp.to_rts(RtsAttr { timeout: 10, ..RtsAttr::new(qp.endpoint()?.psn) })?;
/// # Ok(())
/// # }
/// ```
///
/// A clone is another name for the same queue pair; it is destroyed when the last one is dropped.
/// Work requests that are outstanding then are forgotten, without a completion.
///
/// Any thread may post. Work requests are carried out in the order of their posts, and a list is
/// posted as a whole, without those of other threads in between.
#[derive(Clone, Debug)]
pub struct Qp(pub(crate) Arc<QpInner>);

#[derive(Debug)]
pub(crate) struct QpInner {
    pd: Arc<PdInner>,
    send_cq: Arc<CqInner>,
    recv_cq: Arc<CqInner>,
    handle: QpHandle,
    qpn: u32,
    caps: QpCaps,
    doorbell_slot: u32,
    /// What its events carry.
    token: u64,
    /// First PSN to send, unless the program chooses another.
    psn: u32,
    send_queue: Mutex<Queue<SqProducer>>,
    recv_queue: Mutex<Queue<RqProducer>>,
}

/// Our end of a work queue. Both are locked during a transition.
#[derive(Debug)]
struct Queue<E> {
    end: E,
    /// Where the last transition led. The queue pair may have gone to the error state by itself
    /// since, which takes as much work as RTS does.
    state: QpState,
}

impl<E> Queue<E> {
    fn new(end: E) -> Mutex<Queue<E>> {
        Mutex::new(Queue { end, state: QpState::Reset })
    }
}

impl Qp {
    pub(crate) fn create(pd: &Arc<PdInner>, init: &QpInit<'_>) -> Result<Qp, Error> {
        const CALL: &str = "create_qp";
        let context = &pd.context;
        for (what, cq) in [("the send CQ", init.send_cq), ("the receive CQ", init.recv_cq)] {
            if !Arc::ptr_eq(&cq.0.context, context) {
                return Err(Error::ForeignObject { what });
            }
        }
        let token = context.new_token();
        let request = Request::CreateQp {
            pd: pd.handle,
            qp_type: init.qp_type,
            send_cq: init.send_cq.0.handle,
            recv_cq: init.recv_cq.0.handle,
            srq: None,
            caps: init.caps,
            sq_sig_all: init.signal_all,
            user_handle: token,
        };
        let session = &context.session;
        let Reply::Qp(created) = session.call(CALL, &request)? else {
            return Err(unexpected(CALL));
        };
        let QpCreated { qp: handle, qpn, caps, send_ring, recv_ring, doorbell_slot } = created;
        let shape = Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data);
        let shape = shape.map_err(nonsense)?;
        let send_queue = SqProducer::attach(session.window(send_ring)?, shape).map_err(nonsense)?;
        let shape = Geometry::recv(caps.max_recv_wr, caps.max_recv_sge).map_err(nonsense)?;
        let recv_queue =
            RqProducer::attach(session.window(recv_ring.ok_or_else(|| unexpected(CALL))?)?, shape)
                .map_err(nonsense)?;
        let qp = Arc::new(QpInner {
            pd: pd.clone(),
            send_cq: init.send_cq.0.clone(),
            recv_cq: init.recv_cq.0.clone(),
            handle,
            qpn,
            caps,
            doorbell_slot,
            token,
            psn: random_psn(),
            send_queue: Queue::new(send_queue),
            recv_queue: Queue::new(recv_queue),
        });
        context.register(token, Object::Qp(Arc::downgrade(&qp)));
        Ok(Qp(qp))
    }

    /// Its number on the wire: `qp_num`.
    pub fn qpn(&self) -> u32 {
        self.0.qpn
    }

    /// What it can hold; at least what was asked for.
    pub fn caps(&self) -> QpCaps {
        self.0.caps
    }

    /// Where completions of the send queue go.
    pub fn send_cq(&self) -> Cq {
        Cq(self.0.send_cq.clone())
    }

    /// Where completions of the receive queue go.
    pub fn recv_cq(&self) -> Cq {
        Cq(self.0.recv_cq.clone())
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> Pd {
        Pd(self.0.pd.clone())
    }

    /// What the peer must know to [`connect`](Self::connect) to it. The PSN was drawn at random
    /// when the queue pair was made.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn endpoint(&self) -> Result<QpEndpoint, Error> {
        let context = Context(self.0.pd.context.clone());
        let gid = context.query_gid(1, 0)?;
        let mtu = context.query_port(1)?.active_mtu;
        Ok(QpEndpoint { qpn: self.0.qpn, psn: self.0.psn, mtu, gid })
    }

    /// Connects it to `remote`, which is to do the same with our [`endpoint`](Self::endpoint):
    /// RESET → INIT → RTR → RTS. The peer gets the rights `access`, where the memory region
    /// allows them too. Everything else is as [`RtrAttr::new`] and [`RtsAttr::new`] have it, with
    /// the smaller path MTU of the two ends.
    ///
    /// Nothing is exchanged with the peer: work posted before the peer has done its part is
    /// retried until then, for as long as [`RtsAttr`] says.
    ///
    /// # Errors
    /// As [`modify`](Self::modify). A step that failed leaves the queue pair where the last one
    /// led; [`to_reset`](Self::to_reset) begins anew.
    pub fn connect(&self, remote: &QpEndpoint, access: Access) -> Result<(), Error> {
        let local = self.endpoint()?;
        self.to_init(InitAttr::new(access))?;
        self.to_rtr(RtrAttr {
            path_mtu: Some(local.mtu.min(remote.mtu)),
            ..RtrAttr::new(remote.qpn, remote.psn, remote.gid)
        })?;
        self.to_rts(RtsAttr::new(local.psn))
    }

    /// RESET → INIT: receives may be posted.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_init(&self, attr: InitAttr) -> Result<(), Error> {
        self.modify(&attr.into())
    }

    /// INIT → RTR: the peer's requests are answered.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_rtr(&self, attr: RtrAttr) -> Result<(), Error> {
        let mut all = QpAttr::from(attr);
        if all.path_mtu.is_none() {
            all.path_mtu = Some(Context(self.0.pd.context.clone()).query_port(1)?.active_mtu);
        }
        self.modify(&all)
    }

    /// RTR → RTS: sends may be posted.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_rts(&self, attr: RtsAttr) -> Result<(), Error> {
        self.modify(&attr.into())
    }

    /// RTS → SQD: what has begun ends, nothing new begins. When that is so,
    /// [`AsyncEvent::SqDrained`](crate::AsyncEvent::SqDrained) says it.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_sqd(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() })
    }

    /// Any state → ERR: every work request, posted before or later, is flushed.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_error(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() })
    }

    /// Any state → RESET: as it was when it was made. Work requests that are outstanding are
    /// forgotten, without a completion; completions already in a queue stay there.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_reset(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: Some(QpState::Reset), ..QpAttr::default() })
    }

    /// Changes the state and attributes: `ibv_modify_qp`. What is `Some` is changed.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such step from the present state, if it lacks an
    /// attribute or has one too many, or if a value is out of range; then nothing has changed.
    /// [`Error::DaemonGone`].
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        let session = self.session();
        // Before the locks: in a fork, another thread of the parent may hold them for ever.
        session.check_process()?;
        let request = Request::ModifyQp { qp: self.0.handle, attr: attr.clone() };
        let Some(state) = attr.state else { return session.order("modify_qp", &request) };
        let mut send_queue = self.0.send_queue.lock();
        let mut recv_queue = self.0.recv_queue.lock();
        session.order("modify_qp", &request)?;
        (send_queue.state, recv_queue.state) = (state, state);
        if state == QpState::Reset {
            // The daemon has rewound both rings.
            send_queue.end.reset();
            recv_queue.end.reset();
        }
        Ok(())
    }

    /// Its present state and attributes: `ibv_query_qp`.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn query(&self) -> Result<QpQueried, Error> {
        match self.session().call("query_qp", &Request::QueryQp { qp: self.0.handle })? {
            Reply::QpAttr(queried) => Ok(queried),
            _ => Err(unexpected("query_qp")),
        }
    }

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
            if matches!(queue.state, QpState::Reset | QpState::Init | QpState::Rtr) {
                let expected = "RTS, SQD, SQE or ERR";
                return Err(PostReason::State { state: queue.state, expected });
            }
            let result = wrs.iter().try_for_each(|wr| {
                check_send(wr)?;
                queue.end.push(&wr.wr, wr.data)?;
                posted += 1;
                Ok(())
            });
            queue.end.publish();
            result
        });
        if posted > 0 {
            session.ring(self.0.doorbell_slot);
        }
        result.or_else(|reason| self.refuse(wrs.get(posted).map(SendWr::wr_id), posted, reason))
    }

    /// Posts work requests to the receive queue, in this order: `ibv_post_recv`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let session = self.session();
        let (mut posted, mut ring) = (0, false);
        let result = session.check_post().and_then(|()| {
            let mut queue = self.0.recv_queue.lock();
            if queue.state == QpState::Reset {
                let expected = "any other state";
                return Err(PostReason::State { state: queue.state, expected });
            }
            let result = wrs.iter().try_for_each(|wr| {
                queue.end.push(wr.wr_id, wr.sges)?;
                posted += 1;
                Ok(())
            });
            ring = queue.end.publish();
            result
        });
        if ring {
            session.ring(self.0.doorbell_slot);
        }
        result.or_else(|reason| self.refuse(wrs.get(posted).map(RecvWr::wr_id), posted, reason))
    }

    /// The error of a list whose work request `posted`, named by `wr_id`, is bad. A list without
    /// work requests has nothing to complain about.
    #[cold]
    fn refuse(
        &self,
        wr_id: Option<u64>,
        posted: usize,
        mut reason: PostReason,
    ) -> Result<(), PostError> {
        let Some(wr_id) = wr_id else { return Ok(()) };
        // A queue that nobody empties any more is full for ever; say so at once.
        if matches!(reason, PostReason::QueueFull { .. }) && self.session().check_daemon().is_err()
        {
            reason = self.session().check_post().err().unwrap_or(reason);
        }
        Err(PostError { posted, wr_id, reason })
    }

    fn session(&self) -> &Session {
        &self.0.pd.context.session
    }
}

/// Two handles are equal if they name the same queue pair.
impl PartialEq for Qp {
    fn eq(&self, other: &Qp) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Qp {}

impl Drop for QpInner {
    fn drop(&mut self) {
        let context = &self.pd.context;
        context.forget(self.token);
        context.session.destroy("destroy_qp", &Request::DestroyQp { qp: self.handle });
    }
}

/// What can be known to be wrong with a work request before the device sees it, besides its size,
/// which the ring checks.
fn check_send(wr: &SendWr<'_>) -> Result<(), PostReason> {
    let length = match wr.data {
        SendData::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        SendData::Inline(data) => data.len() as u64,
    };
    match wr.wr.op {
        SendOp::CompareSwap { remote_addr, .. } | SendOp::FetchAdd { remote_addr, .. } => {
            if length != 8 {
                return Err(PostReason::AtomicLength { length });
            }
            if remote_addr % 8 != 0 {
                return Err(PostReason::AtomicAlignment { addr: remote_addr });
            }
        }
        _ if length > MAX_MESSAGE => {
            return Err(PostReason::MessageTooLong { length, max: MAX_MESSAGE });
        }
        _ => {}
    }
    Ok(())
}

/// A PSN that an old connection between the same two queue pairs is unlikely to have used lately.
fn random_psn() -> u32 {
    // The standard library's hasher is keyed at random, anew for each.
    RandomState::new().hash_one(()) as u32 & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Inline, RemoteBuf, Sge};

    fn sges(lengths: &[u32]) -> Vec<Sge> {
        lengths.iter().map(|&length| Sge { addr: 0x1000, length, lkey: 1 }).collect()
    }

    #[test]
    fn a_message_has_at_most_two_gibibytes() {
        let half = 1 << 30;
        let remote = RemoteBuf { addr: 0, rkey: 0, len: 0 };
        let fits = sges(&[half, half]);
        assert_eq!(check_send(&SendWr::write(1, &fits, remote)), Ok(()));
        let too_long = sges(&[half, half, 1]);
        for wr in [SendWr::send(1, &too_long), SendWr::read(1, &too_long, remote)] {
            let length = (1 << 31) + 1;
            let reason = PostReason::MessageTooLong { length, max: 1 << 31 };
            assert_eq!(check_send(&wr), Err(reason));
        }
        assert_eq!(check_send(&SendWr::send(1, Inline(b""))), Ok(()));
    }

    #[test]
    fn an_atomic_takes_eight_aligned_bytes() {
        let (aligned, crooked) = (0x1000, 0x1004);
        let check = |lengths: &[u32], addr| {
            let remote = RemoteBuf { addr, rkey: 0, len: 8 };
            let sges = sges(lengths);
            let add = check_send(&SendWr::fetch_add(1, &sges, remote, 1));
            assert_eq!(add, check_send(&SendWr::compare_swap(1, &sges, remote, 1, 2)));
            add
        };
        assert_eq!(check(&[8], aligned), Ok(()));
        assert_eq!(check(&[3, 5], aligned), Ok(()));
        assert_eq!(check(&[4], aligned), Err(PostReason::AtomicLength { length: 4 }));
        assert_eq!(check(&[], aligned), Err(PostReason::AtomicLength { length: 0 }));
        assert_eq!(check(&[8], crooked), Err(PostReason::AtomicAlignment { addr: 0x1004 }));
    }
}
