//! A channel as the daemon has it.

use crate::Error;
use crate::context::ContextInner;
use crate::event_pipe::{Deadline, EventPipe};
use crate::session::{descriptors, unexpected};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use urxe_shm::control::{CmChannelHandle, CmEvent, CmReply, CmRequest, Reply, Request};

/// A queue of events in the daemon, and a pipe that holds a byte while there are some. Destroyed
/// when it is dropped.
#[derive(Debug)]
pub(super) struct RawChannel {
    pub(super) context: Arc<ContextInner>,
    pub(super) handle: CmChannelHandle,
    pipe: EventPipe,
}

impl RawChannel {
    pub(super) fn create(context: &Arc<ContextInner>) -> Result<RawChannel, Error> {
        const CALL: &str = "create_event_channel";
        let request = Request::Cm(CmRequest::CreateChannel);
        let (reply, fds) = context.session.call_with_fds(CALL, &request, &[])?;
        let Reply::Cm(CmReply::Channel(handle)) = reply else { return Err(unexpected(CALL)) };
        let [pipe] = descriptors(CALL, fds)?;
        Ok(RawChannel { context: context.clone(), handle, pipe: EventPipe::new(pipe)? })
    }

    /// Asks the connection manager for something. `call` names it in errors.
    pub(super) fn call(&self, call: &'static str, request: CmRequest) -> Result<CmReply, Error> {
        match self.context.session.call(call, &Request::Cm(request))? {
            Reply::Cm(reply) => Ok(reply),
            _ => Err(unexpected(call)),
        }
    }

    /// Asks it for something that is answered by [`Reply::Done`].
    pub(super) fn order(&self, call: &'static str, request: CmRequest) -> Result<(), Error> {
        self.context.session.order(call, &Request::Cm(request))
    }

    /// Takes the next event; `None` if there was none until the deadline.
    pub(super) fn next(&self, deadline: Deadline) -> Result<Option<CmEvent>, Error> {
        const CALL: &str = "get_event";
        while self.pipe.read::<1>(&self.context.session, deadline)?.is_some() {
            match self.call(CALL, CmRequest::GetEvent { channel: self.handle }) {
                Ok(CmReply::Event(event)) => return Ok(Some(event)),
                Ok(_) => return Err(unexpected(CALL)),
                // What was announced went with its id.
                Err(Error::Refused { errno: libc::EAGAIN, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl AsFd for RawChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        let request = Request::Cm(CmRequest::DestroyChannel { channel: self.handle });
        self.context.session.destroy("destroy_event_channel", &request);
    }
}
