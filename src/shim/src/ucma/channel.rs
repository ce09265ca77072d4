//! An opened connection manager: commands are done here, by requests to the daemon.

use super::command::{Command, ResponseBuf, Task, verb};
use super::{failures, option, reply};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::lost;
use crate::memory;
use crate::reasons;
use crate::refused::Refused;
use crate::session::Session;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use urxe_shm::client::file_identity::FileIdentity;
use urxe_shm::control::{
    CmChannelHandle, CmEvent, CmIdHandle, CmReply, CmRequest, CmSubject, Reply, Request,
};

/// The daemon answered something else.
const UNEXPECTED: Errno = Errno::IO;

/// An event channel, which is what an opened `/dev/infiniband/rdma_cm` is. It ends with its last
/// descriptor, and its ids with it.
#[derive(Debug)]
pub(crate) struct Channel {
    session: Arc<Session>,
    handle: CmChannelHandle,
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// All was done, and so many bytes were taken.
    Taken(usize),
    /// The program is to get an event of this channel, for which it may have to wait:
    /// [`take_event`](Channel::take_event) goes on after a byte was read.
    NeedsEvent(CmChannelHandle),
}

impl Channel {
    /// What `open("/dev/infiniband/rdma_cm")` makes, and the descriptor that the program gets.
    pub(crate) fn open(session: Arc<Session>) -> Result<(Channel, OwnedFd), Refused> {
        let request = Request::Cm(CmRequest::CreateChannel);
        let (answer, fds) = session.call_with_fds(&request, &[])?;
        let Reply::Cm(CmReply::Channel(handle)) = answer else { return Err(UNEXPECTED.into()) };
        let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| UNEXPECTED)?;
        Ok((Channel { session, handle }, fd))
    }

    /// The daemon's name for it.
    pub(crate) fn handle(&self) -> CmChannelHandle {
        self.handle
    }

    /// `write(2)`: one command.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<Done, Errno> {
        self.carry_out(bytes).map_err(|refused| reasons::refused(verb(bytes), &refused))
    }

    fn carry_out(&self, bytes: &[u8]) -> Result<Done, Refused> {
        let Command { task, answer } = self.begin(bytes)?;
        let reply = match task {
            Task::GetEvent => return Ok(Done::NeedsEvent(self.handle)),
            Task::Ask(request) => self.ask(request)?.as_ref().map(reply::bytes),
            Task::Query(id, view) => match self.ask(CmRequest::Query { id })? {
                Some(CmReply::Route(route)) => Some(reply::route_resp(&route, view)),
                _ => return Err(UNEXPECTED.into()),
            },
            // The daemon notices by itself what comes for a QP before its peer has confirmed it.
            Task::Notify => None,
            Task::Migrate { id, from } => Some(reply::bytes(&self.migrate(id, from)?)),
            Task::SetOption { id, level, name, value, len } => {
                let mut bytes = vec![0; len.min(option::MAX_LEN) as usize];
                memory::read(value, &mut bytes)?;
                self.ask(option::request(id, level, name, &bytes)?)?;
                None
            }
        };
        answer.put(&reply.unwrap_or_default())?;
        Ok(Done::Taken(bytes.len()))
    }

    /// Goes on with a command that needs an event, after one was announced: gives back the number
    /// of bytes taken; `None` if another thread was faster.
    pub(crate) fn take_event(&self, bytes: &[u8]) -> Result<Option<usize>, Errno> {
        self.next_event(bytes).map_err(|refused| reasons::refused(verb(bytes), &refused))
    }

    fn next_event(&self, bytes: &[u8]) -> Result<Option<usize>, Refused> {
        let Command { answer, .. } = self.begin(bytes)?;
        match self.ask(CmRequest::GetEvent { channel: self.handle }) {
            Err(refused) if refused.errno == Errno::AGAIN => Ok(None),
            event => {
                let event = event?;
                if let Some(CmReply::Event(event)) = &event
                    && failures::is_failure(event)
                {
                    failures::tell(event, self.peer_of(event));
                }
                answer.put(&event.as_ref().map(reply::bytes).unwrap_or_default())?;
                Ok(Some(bytes.len()))
            }
        }
    }

    /// Whom the id of an event wants to reach.
    fn peer_of(&self, event: &CmEvent) -> Option<SocketAddr> {
        let CmSubject::Id(id) = event.subject else { return None };
        match self.ask(CmRequest::Query { id }) {
            Ok(Some(CmReply::Route(route))) => route.dst,
            _ => None,
        }
    }

    /// What a program is told at the end of the pipe, which is there when the daemon is gone.
    pub(crate) fn at_the_end(&self) -> Errno {
        if self.session.is_lost_soon() {
            lost::flush_all();
        }
        Errno::IO
    }

    /// Decodes a command, and sees to it that it can be answered.
    fn begin(&self, bytes: &[u8]) -> Result<Command, Refused> {
        // Before any lock: in a fork, another thread of the parent may hold it for ever.
        self.session.connection().check_process()?;
        let command = Command::decode(bytes, self.handle)?;
        command.answer.put(&[])?;
        Ok(command)
    }

    /// Moves an id from the channel that a descriptor is. `ENOENT` if it is not open, `EINVAL` if
    /// it is no channel.
    fn migrate(&self, id: CmIdHandle, from: RawFd) -> Result<CmReply, Refused> {
        match DESCRIPTORS.genuine(from) {
            Some(Descriptor::RdmaCm(channel)) if Arc::ptr_eq(&channel.session, &self.session) => {
                let request = CmRequest::MigrateId { id, channel: self.handle };
                channel.ask(request)?.ok_or_else(|| UNEXPECTED.into())
            }
            None if FileIdentity::of(from).is_none() => Err(Errno::NOENT.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Asks the daemon for something of this channel; `None` if the answer is a mere yes.
    fn ask(&self, request: CmRequest) -> Result<Option<CmReply>, Refused> {
        match self.session.call(&Request::CmWithin { channel: self.handle, request })? {
            Reply::Cm(reply) => Ok(Some(reply)),
            Reply::Done => Ok(None),
            _ => Err(UNEXPECTED.into()),
        }
    }
}

impl ResponseBuf {
    /// Writes an answer, cut to its place, or filled up with zeroes. `EFAULT` if the program cannot
    /// be written to there.
    fn put(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut answer = bytes.to_vec();
        answer.resize(self.len, 0);
        memory::write(self.address, &answer)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A daemon that is gone has destroyed it already; and in a fork it is not ours.
        let _ = self.session.call(&Request::Cm(CmRequest::DestroyChannel { channel: self.handle }));
    }
}
