//! Completion queues.

use crate::comp_channel::CompChannelInner;
use crate::context::{ContextInner, Object};
use crate::event_pipe::Deadline;
use crate::session::{Session, nonsense, unexpected};
use crate::{CompChannel, Context, Error, Wc};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use urxe_shm::client::lookout::Lookout;
use urxe_shm::control::{CqHandle, Reply, Request, RingLocation};
use urxe_shm::ring::CqConsumer;
use urxe_shm::ring::geometry::Geometry;

/// A completion queue: `ibv_cq`. Where ended work requests are reported.
///
/// Made by [`Context::create_cq`](crate::Context::create_cq). A clone is another name for the
/// same completion queue; it is destroyed when the last one, and every queue pair that uses it,
/// is dropped.
///
/// Any thread may poll; each completion goes to one of them.
#[derive(Clone, Debug)]
pub struct Cq(pub(crate) Arc<CqInner>);

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) handle: CqHandle,
    /// What its events carry.
    pub(crate) token: u64,
    channel: Option<Arc<CompChannelInner>>,
    /// Held by the thread that waits for its event.
    waiting: Mutex<()>,
    ring: Mutex<Ring>,
    /// How many completions it holds. Written under the ring's lock.
    depth: AtomicU32,
}

#[derive(Debug)]
struct Ring {
    end: CqConsumer,
    lookout: Lookout,
}

impl Cq {
    pub(crate) fn create(
        context: &Arc<ContextInner>,
        depth: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Cq, Error> {
        const CALL: &str = "create_cq";
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.0.context, context)) {
            return Err(Error::ForeignObject { what: "the completion channel" });
        }
        let token = context.new_token();
        let request = Request::CreateCq {
            context: context.handle,
            cqe: depth,
            channel: channel.map(|channel| channel.0.handle),
            user_handle: token,
            comp_vector: 0,
        };
        let session = &context.session;
        let Reply::Cq { cq: handle, cqe: depth, ring } = session.call(CALL, &request)? else {
            return Err(unexpected(CALL));
        };
        let end = attach(session, depth, ring)?;
        let cq = Arc::new(CqInner {
            context: context.clone(),
            handle,
            token,
            channel: channel.map(|channel| channel.0.clone()),
            waiting: Mutex::default(),
            ring: Mutex::new(Ring { end, lookout: Lookout::new() }),
            depth: AtomicU32::new(depth),
        });
        context.register(token, Object::Cq(Arc::downgrade(&cq)));
        Ok(Cq(cq))
    }

    /// Takes completions off the queue, as many as there are and as `wcs` has room for:
    /// `ibv_poll_cq`. Returns how many; they are the first ones of `wcs`. Never waits.
    ///
    /// # Errors
    /// [`Error::DaemonGone`] once the completions that the daemon left are taken; this is noticed
    /// not at once, but by polling in vain for a tenth of a second. [`Error::Forked`].
    pub fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        let mut next = 0;
        self.poll_each(wcs.len(), |wc| {
            wcs[next] = wc;
            next += 1;
        })
    }

    /// Takes all completions that there are off the queue, and appends them to `wcs`. Returns how
    /// many. Never waits.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_into(&self, wcs: &mut Vec<Wc>) -> Result<usize, Error> {
        self.poll_each(self.depth() as usize, |wc| wcs.push(wc))
    }

    fn poll_each(&self, max: usize, mut each: impl FnMut(Wc)) -> Result<usize, Error> {
        let session = &self.0.context.session;
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        session.check_process()?;
        let causes = self.0.context.causes;
        let mut ring = self.0.ring.lock();
        let mut poll = || ring.end.poll(max, |entry| each(Wc::from_entry(entry, causes)));
        let mut count = poll();
        // OWN-030
        if matches!(count, Ok(0)) && max > 0 && session.polled_in_vain() {
            count = poll();
        }
        let count = count.map_err(|error| Error::BrokenQueue(error.to_string()))?;
        if count == 0 && max > 0 && ring.lookout.is_due() {
            session.check_daemon()?;
            ring.lookout.seen();
        }
        Ok(count)
    }

    /// Waits until there are completions, and takes them off the queue as [`poll`](Self::poll)
    /// does. Returns how many: at least one, or 0 if there are none within `timeout`. Without a
    /// timeout, waits for ever.
    ///
    /// The thread sleeps meanwhile. (A program in more of a hurry polls for a while first.) Several
    /// threads may wait; each that gets nothing of what there is goes on waiting.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the completion queue has no channel; [`Error::DaemonGone`].
    pub fn wait(&self, wcs: &mut [Wc], timeout: Option<Duration>) -> Result<usize, Error> {
        let Some(channel) = &self.0.channel else {
            let expected = "a channel, given to create_cq";
            return Err(Error::invalid("channel of the completion queue", "none", expected));
        };
        let deadline = Deadline::after(timeout);
        let count = self.poll(wcs)?;
        if count > 0 || wcs.is_empty() {
            return Ok(count);
        }
        self.0.context.session.about_to_wait();
        // CLIENT-022: several completions may cause one event only, and one thread takes that. Who
        // comes next finds what it has left.
        let Some(_waiting) = deadline.lock(&self.0.waiting) else { return self.poll(wcs) };
        loop {
            let count = self.poll(wcs)?;
            if count > 0 {
                return Ok(count);
            }
            self.req_notify(false)?;
            // What came between the two causes no event.
            let count = self.poll(wcs)?;
            if count > 0 {
                return Ok(count);
            }
            if !channel.wait_for(self.0.token, deadline)? {
                return self.poll(wcs);
            }
        }
    }

    /// Asks for one event in the channel, with the next completion; or, with `solicited_only`,
    /// with the next one that is an error or of a message sent
    /// [`solicited`](crate::SendWr::solicited): `ibv_req_notify_cq`.
    ///
    /// What is in the queue already causes no event: poll once more after this call, before
    /// waiting. [`CompChannel`] tells the whole sequence.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), Error> {
        let session = &self.0.context.session;
        session.check_process()?;
        self.0.ring.lock().end.arm(solicited_only);
        session.about_to_wait();
        Ok(())
    }

    /// Makes it hold `depth` completions, or more: `ibv_resize_cq`. Completions that are in it stay
    /// there, in their order, and it stays armed if it was. Any thread may go on polling; it waits
    /// as long as this takes.
    ///
    /// # Errors
    /// [`Error::Refused`] if `depth` is 0, above the device's `max_cqe`, or less than there are
    /// completions in it, or if these are more than are moved at a time, 8192 (`EBUSY`); nothing
    /// has changed then. [`Error::DaemonGone`].
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        const CALL: &str = "resize_cq";
        let session = &self.0.context.session;
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        session.check_process()?;
        let mut locked = self.0.ring.lock();
        let request = Request::ResizeCq { cq: self.0.handle, cqe: depth };
        let Reply::CqResized { cqe: depth, ring } = session.call(CALL, &request)? else {
            return Err(unexpected(CALL));
        };
        locked.end = attach(session, depth, ring)?;
        self.0.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// How many completions it holds; at least what was asked for. With more outstanding work
    /// requests than that it can overflow: then
    /// [`AsyncEvent::CqError`](crate::AsyncEvent::CqError) comes, and the queue pairs that use it
    /// are in the error state.
    pub fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    /// The channel that its events go to.
    pub fn channel(&self) -> Option<CompChannel> {
        self.0.channel.clone().map(CompChannel)
    }

    /// The context that it was made in.
    pub fn context(&self) -> Context {
        Context(self.0.context.clone())
    }
}

/// Our end of the ring that the daemon made.
fn attach(session: &Session, depth: u32, ring: RingLocation) -> Result<CqConsumer, Error> {
    let shape = Geometry::completion(depth).map_err(nonsense)?;
    CqConsumer::attach(session.window(ring)?, shape).map_err(nonsense)
}

/// Two handles are equal if they name the same completion queue.
impl PartialEq for Cq {
    fn eq(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cq {}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.context.forget(self.token);
        if let Some(channel) = &self.channel {
            channel.forget(self.token);
        }
        self.context.session.destroy("destroy_cq", &Request::DestroyCq { cq: self.handle });
    }
}
