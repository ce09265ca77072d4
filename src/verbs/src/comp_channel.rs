//! Completion channels.

use crate::context::ContextInner;
use crate::event_pipe::{Deadline, EventPipe};
use crate::inbox::{Inbox, take};
use crate::session::{descriptors, unexpected};
use crate::{Cq, Error};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use urxe_shm::control::event::EventRecord;
use urxe_shm::control::{CompChannelHandle, Reply, Request};

/// A completion channel: `ibv_comp_channel`. Where completion queues announce that there is
/// something in them, to a program that sleeps.
///
/// Made by [`Context::create_comp_channel`](crate::Context::create_comp_channel). A clone is
/// another name for the same channel; it is destroyed when the last one, and every completion
/// queue that uses it, is dropped.
///
/// For one completion queue, [`Cq::wait`] does all that is to be done. For many, or together with
/// other descriptors, the steps are:
///
/// 1. poll the completion queue until it is empty;
/// 2. [`Cq::req_notify`], which asks for *one* event;
/// 3. poll once more, for what came in between causes no event;
/// 4. [`wait`](Self::wait), or wait for the channel's descriptor ([`AsFd`]) to become readable and
///    then `wait` with a timeout of zero until it gives `None`;
/// 5. begin again with the completion queue that it gives.
///
/// Events need not be acknowledged: the library keeps count, and drops those of completion queues
/// that are no more.
///
/// Several threads may wait at one channel. Do not mix [`Cq::wait`] and a `poll` on the
/// descriptor if several completion queues use the channel: a waiting thread may take events of
/// others off the descriptor. It keeps them for their [`Cq::wait`] or [`wait`](Self::wait).
#[derive(Clone, Debug)]
pub struct CompChannel(pub(crate) Arc<CompChannelInner>);

#[derive(Debug)]
pub(crate) struct CompChannelInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) handle: CompChannelHandle,
    pipe: EventPipe,
    /// Tokens of the completion queues that events were of.
    inbox: Inbox<u64>,
}

impl CompChannel {
    pub(crate) fn create(context: &Arc<ContextInner>) -> Result<CompChannel, Error> {
        const CALL: &str = "create_comp_channel";
        let request = Request::CreateCompChannel { context: context.handle };
        let (reply, fds) = context.session.call_with_fds(CALL, &request, &[])?;
        let Reply::CompChannel(handle) = reply else { return Err(unexpected(CALL)) };
        let [pipe] = descriptors(CALL, fds)?;
        Ok(CompChannel(Arc::new(CompChannelInner {
            context: context.clone(),
            handle,
            pipe: EventPipe::new(pipe)?,
            inbox: Inbox::default(),
        })))
    }

    /// Waits for an event, and gives the completion queue that it is of: `ibv_get_cq_event`.
    /// `None` if there is none within `timeout`; without a timeout, waits for ever. The completion
    /// queue is no longer armed.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Cq>, Error> {
        let deadline = Deadline::after(timeout);
        while let Some(token) = self.0.next(None, deadline)? {
            if let Some(cq) = self.0.context.cq(token) {
                return Ok(Some(cq));
            }
        }
        Ok(None)
    }
}

impl CompChannelInner {
    /// Waits for an event of the completion queue with that token; says whether there was one.
    pub(crate) fn wait_for(&self, token: u64, deadline: Deadline) -> Result<bool, Error> {
        Ok(self.next(Some(token), deadline)?.is_some())
    }

    /// Drops the events of a completion queue that is gone, and that its context has forgotten.
    pub(crate) fn forget(&self, token: u64) {
        // In a fork, another thread of the parent may hold the lock for ever.
        if self.context.session.check_process().is_ok() {
            self.inbox.remove(|&other| other == token);
        }
    }

    /// The next event, or the next of one completion queue, as its token.
    fn next(&self, wanted: Option<u64>, deadline: Deadline) -> Result<Option<u64>, Error> {
        let session = &self.context.session;
        session.check_process()?;
        let is_wanted = |&token: &u64| wanted.is_none_or(|wanted| token == wanted);
        let read = |deadline| {
            let record = self.pipe.read(session, deadline)?;
            Ok(record.map(|record| EventRecord::from_bytes(record).user_handle))
        };
        // CQ-035
        let keep = |token| self.context.has(token).then_some(token);
        self.inbox.look_for(|tokens| take(tokens, is_wanted), deadline, read, keep)
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.pipe.as_fd()
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for CompChannelInner {
    fn drop(&mut self) {
        let request = Request::DestroyCompChannel { channel: self.handle };
        self.context.session.destroy("destroy_comp_channel", &request);
    }
}
