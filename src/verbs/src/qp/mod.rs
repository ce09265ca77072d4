//! Queue pairs.

mod post;
mod transition;

pub use post::MULTICAST_QPN;

use crate::context::Object;
use crate::cq::CqInner;
use crate::pd::PdInner;
use crate::session::{Session, nonsense, unexpected};
use crate::srq::SrqInner;
use crate::{Cq, Error, Pd, QpCaps, QpInit, QpQueried, QpState, QpType, Srq};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use urxe_shm::control::{QpCreated, QpHandle, Reply, Request};
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{RqProducer, SqProducer};
use urxe_types::{Gid, Qpn};

/// A queue pair: `ibv_qp`. One end of a connection, or of any number of datagrams.
///
/// Made by [`Pd::create_qp`](crate::Pd::create_qp), in the RESET state. [`connect`](Self::connect)
/// takes it through INIT and RTR to RTS, or, on a UD queue pair, which has no peer,
/// [`start_datagrams`](Self::start_datagrams). The single steps are there for those who need them:
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
///
/// # Datagrams
/// ```no_run
/// # fn main() -> Result<(), urxe_verbs::Error> {
/// # let context = urxe_verbs::Context::open(&Default::default())?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.create_cq(16, None)?;
/// # let (peer_address, peer_qpn): (std::net::IpAddr, u32) = ([10, 0, 0, 2].into(), 17);
/// use urxe_verbs::{Access, AddressVector, Inline, QpInit, QpType, RecvWr, SendWr};
///
/// const QKEY: u32 = 0x1111;
/// let qp = pd.create_qp(&QpInit { qp_type: QpType::Ud, ..QpInit::new(&cq) })?;
/// qp.start_datagrams(QKEY)?;
///
/// // A receive has room for the 40 bytes that tell of the path, and then the message.
/// let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
/// qp.post_recv(&[RecvWr::new(1, &[mr.sge(..)?])])?;
///
/// let ah = pd.create_ah(&AddressVector::to(peer_address))?;
/// qp.post_send(&[SendWr::send(2, Inline(b"hello")).to(&ah, peer_qpn, QKEY).signaled()])?;
/// # Ok(())
/// # }
/// ```
/// What arrived can be answered: [`Pd::create_ah_from_wc`](crate::Pd::create_ah_from_wc).
#[derive(Clone, Debug)]
pub struct Qp(pub(crate) Arc<QpInner>);

#[derive(Debug)]
pub(crate) struct QpInner {
    pd: Arc<PdInner>,
    qp_type: QpType,
    send_cq: Arc<CqInner>,
    recv_cq: Arc<CqInner>,
    handle: QpHandle,
    pub(crate) qpn: Qpn,
    caps: QpCaps,
    doorbell_slot: u32,
    /// What its events carry.
    token: u64,
    /// First PSN to send, unless the program chooses another.
    psn: u32,
    send_queue: Mutex<Queue<SqProducer>>,
    receives: Receives,
    /// How many memberships it has in each multicast group.
    memberships: Mutex<HashMap<IpAddr, u32>>,
}

/// Where the receives of a queue pair are posted.
#[derive(Debug)]
enum Receives {
    /// To itself.
    Own(Mutex<Queue<RqProducer>>),
    /// To a shared receive queue.
    Shared(Arc<SrqInner>),
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
        let srq = init.srq.map(|srq| &srq.0);
        if srq.is_some_and(|srq| !Arc::ptr_eq(&srq.pd.context, context)) {
            return Err(Error::ForeignObject { what: "the SRQ" });
        }
        let token = context.new_token();
        let request = Request::CreateQp {
            pd: pd.handle,
            qp_type: init.qp_type,
            send_cq: init.send_cq.0.handle,
            recv_cq: init.recv_cq.0.handle,
            srq: srq.map(|srq| srq.handle),
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
        let receives = match (recv_ring, srq) {
            (None, Some(srq)) => Receives::Shared(srq.clone()),
            (Some(ring), None) => {
                let shape = Geometry::recv(caps.max_recv_wr, caps.max_recv_sge);
                let shape = shape.map_err(nonsense)?;
                let end = RqProducer::attach(session.window(ring)?, shape).map_err(nonsense)?;
                Receives::Own(Queue::new(end))
            }
            _ => return Err(unexpected(CALL)),
        };
        let qp = Arc::new(QpInner {
            pd: pd.clone(),
            qp_type: init.qp_type,
            send_cq: init.send_cq.0.clone(),
            recv_cq: init.recv_cq.0.clone(),
            handle,
            qpn,
            caps,
            doorbell_slot,
            token,
            psn: random_psn(),
            send_queue: Queue::new(send_queue),
            receives,
            memberships: Mutex::default(),
        });
        context.register(token, Object::Qp(Arc::downgrade(&qp)));
        Ok(Qp(qp))
    }

    /// Its number on the wire: `qp_num`.
    pub fn qpn(&self) -> u32 {
        self.0.qpn.get()
    }

    /// Its transport.
    pub fn qp_type(&self) -> QpType {
        self.0.qp_type
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

    /// Where it takes its receives from, if it has no receive queue of its own.
    pub fn srq(&self) -> Option<Srq> {
        match &self.0.receives {
            Receives::Own(_) => None,
            Receives::Shared(srq) => Some(Srq(srq.clone())),
        }
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> Pd {
        Pd(self.0.pd.clone())
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

    /// UD: receives from now on what is sent to the multicast group `group`, besides what is sent
    /// to itself: `ibv_attach_mcast`. To be attached already is no error. Needs no more than INIT,
    /// and lasts until [`detach_mcast`](Self::detach_mcast) or the end of the queue pair.
    ///
    /// To send to the group, one need not be attached: an [`Ah`](crate::Ah) whose destination is
    /// the group, and QPN [`MULTICAST_QPN`](crate::MULTICAST_QPN). What an attached queue pair
    /// sends comes back to it, too.
    ///
    /// # Errors
    /// [`Error::Refused`] if the queue pair is not UD, `group` is no multicast address, or there
    /// are too many groups; [`Error::DaemonGone`].
    pub fn attach_mcast(&self, group: IpAddr) -> Result<(), Error> {
        let request = Request::AttachMcast { qp: self.0.handle, gid: Gid::from(group) };
        self.session().order("attach_mcast", &request)
    }

    /// Takes back what [`attach_mcast`](Self::attach_mcast) did: `ibv_detach_mcast`.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not attached; [`Error::DaemonGone`].
    pub fn detach_mcast(&self, group: IpAddr) -> Result<(), Error> {
        let request = Request::DetachMcast { qp: self.0.handle, gid: Gid::from(group) };
        self.session().order("detach_mcast", &request)
    }

    /// Attaches it for one more membership in a group.
    pub(crate) fn join_group(&self, group: IpAddr) -> Result<(), Error> {
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        self.session().check_process()?;
        let mut memberships = self.0.memberships.lock();
        self.attach_mcast(group)?;
        *memberships.entry(group).or_default() += 1;
        Ok(())
    }

    /// Takes back what [`join_group`](Self::join_group) did.
    pub(crate) fn leave_group(&self, group: IpAddr) {
        if self.session().check_process().is_err() {
            return;
        }
        let mut memberships = self.0.memberships.lock();
        let Some(count) = memberships.get_mut(&group) else { return };
        *count -= 1;
        // CLIENT-026
        if *count == 0 {
            memberships.remove(&group);
            // It fails only if the program detached it itself, or the daemon has gone.
            let _ = self.detach_mcast(group);
        }
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

/// A PSN that an old connection between the same two queue pairs is unlikely to have used lately.
fn random_psn() -> u32 {
    // Where the system has no random numbers, which is nowhere, any PSN is a legal one.
    getrandom::u32().unwrap_or_default() & 0xff_ffff
}
