//! Shared receive queues.

use crate::context::Object;
use crate::error::{PostError, PostReason};
use crate::pd::PdInner;
use crate::session::{Session, nonsense, unexpected};
use crate::{Error, Pd, RecvWr, SrqAttr, SrqInit};
use parking_lot::Mutex;
use std::sync::Arc;
use urxe_shm::control::{Reply, Request, RingLocation, SrqHandle};
use urxe_shm::ring::RqProducer;
use urxe_shm::ring::geometry::Geometry;

/// A shared receive queue: `ibv_srq`. Receives that many queue pairs take from.
///
/// Made by [`Pd::create_srq`]. A clone is another name for the same queue; it is destroyed when the
/// last one, and every queue pair that uses it, is dropped.
///
/// ```no_run
/// # fn main() -> Result<(), urxe_verbs::Error> {
/// # let context = urxe_verbs::Context::open(&Default::default())?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.create_cq(1000, None)?;
/// use urxe_verbs::{Access, QpInit, RecvWr, SrqInit};
///
/// let srq = pd.create_srq(&SrqInit { max_wr: 1000, limit: 100, ..SrqInit::default() })?;
/// let qps = (0..50).map(|_| pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }));
/// let qps = qps.collect::<Result<Vec<_>, _>>()?;
///
/// let mr = pd.alloc_mr(1000 * 4096, Access::LOCAL_WRITE)?;
/// for place in 0..1000 {
///     let sge = mr.sge(place * 4096..(place + 1) * 4096)?;
///     srq.post_recv(&[RecvWr::new(place as u64, &[sge])])?;
/// }
/// // A completion says which queue pair took the receive: `Wc::qpn`.
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Srq(pub(crate) Arc<SrqInner>);

#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) pd: Arc<PdInner>,
    pub(crate) handle: SrqHandle,
    number: u32,
    /// What its events carry.
    token: u64,
    queue: Mutex<RqProducer>,
}

impl Srq {
    pub(crate) fn create(pd: &Arc<PdInner>, init: &SrqInit) -> Result<Srq, Error> {
        const CALL: &str = "create_srq";
        let context = &pd.context;
        let token = context.new_token();
        let request =
            Request::CreateSrq { pd: pd.handle, attr: (*init).into(), user_handle: token };
        let Reply::Srq { srq: handle, srqn: number, attr, ring } =
            context.session.call(CALL, &request)?
        else {
            return Err(unexpected(CALL));
        };
        let queue = Mutex::new(attach(&context.session, attr, ring)?);
        let srq = Arc::new(SrqInner { pd: pd.clone(), handle, number, token, queue });
        context.register(token, Object::Srq(Arc::downgrade(&srq)));
        Ok(Srq(srq))
    }

    /// Posts receives, in this order: `ibv_post_srq_recv`.
    ///
    /// # Errors
    /// [`PostError`] tells how many of the list were posted, which one was not, and why. Those
    /// before the bad one are posted.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let session = self.session();
        let mut posted = 0;
        let result = session.check_post().and_then(|()| {
            let mut queue = self.0.queue.lock();
            let result = wrs.iter().try_for_each(|wr| {
                queue.push(wr.wr_id, wr.sges).map_err(PostReason::not_pushed)?;
                posted += 1;
                Ok(())
            });
            // A shared receive queue has no error state, in which it would want a doorbell.
            let _ = queue.publish();
            result
        });
        result.or_else(|why| session.refuse_post(wrs.get(posted).map(RecvWr::wr_id), posted, why))
    }

    /// Changes how many work requests it holds, at least, or its limit: `ibv_modify_srq`. What is
    /// `None` stays. Receives that are posted stay posted, whatever the new size; other threads
    /// that post meanwhile wait.
    ///
    /// A limit other than 0 asks for one [`AsyncEvent::SrqLimit`](crate::AsyncEvent::SrqLimit) when
    /// fewer receives than that are left, which may be at once; then it is 0 again.
    ///
    /// # Errors
    /// [`Error::Refused`] if more receives are posted than `max_wr`, if it is above the device's
    /// `max_srq_wr`, if more receives are posted than are moved at a time, 512 KiB of them, which
    /// is 8192 of one SGE (`EBUSY`), or if `limit` is above the size; nothing has changed then.
    /// [`Error::DaemonGone`].
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        const CALL: &str = "modify_srq";
        let session = self.session();
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        session.check_process()?;
        let mut queue = self.0.queue.lock();
        let request = Request::ModifySrq { srq: self.0.handle, max_wr, limit };
        let Reply::SrqModified { attr, ring } = session.call(CALL, &request)? else {
            return Err(unexpected(CALL));
        };
        if let Some(ring) = ring {
            *queue = attach(session, attr, ring)?;
        }
        Ok(())
    }

    /// What it holds, at least what was asked for, and its limit, 0 after the event:
    /// `ibv_query_srq`.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn query(&self) -> Result<SrqAttr, Error> {
        match self.session().call("query_srq", &Request::QuerySrq { srq: self.0.handle })? {
            Reply::SrqAttr(attr) => Ok(attr),
            _ => Err(unexpected("query_srq")),
        }
    }

    /// Its number on the device: `srq_num`.
    pub fn srqn(&self) -> u32 {
        self.0.number
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> Pd {
        Pd(self.0.pd.clone())
    }

    fn session(&self) -> &Session {
        &self.0.pd.context.session
    }
}

/// Our end of the ring that the daemon made.
fn attach(session: &Session, attr: SrqAttr, ring: RingLocation) -> Result<RqProducer, Error> {
    let shape = Geometry::recv(attr.max_wr, attr.max_sge).map_err(nonsense)?;
    RqProducer::attach(session.window(ring)?, shape).map_err(nonsense)
}

/// Two handles are equal if they name the same shared receive queue.
impl PartialEq for Srq {
    fn eq(&self, other: &Srq) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Srq {}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let context = &self.pd.context;
        context.forget(self.token);
        context.session.destroy("destroy_srq", &Request::DestroySrq { srq: self.handle });
    }
}
