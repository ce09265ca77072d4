//! The control connection to the other end of a test.

use super::message::{End, Message};
use super::plan::Plan;
use super::report::{Received, Row};
use crate::error::Error;
use crate::link::Link;
use std::time::Duration;

/// How long the other end may take to open its device, connect or prepare.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The other end.
pub(super) struct Partner(Link<Message>);

/// The client has finished a length.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    /// Messages on each queue pair.
    pub(super) messages: Vec<u64>,
    pub(super) row: Row,
}

impl Partner {
    pub(super) fn new(link: Link<Message>) -> Self {
        Partner(link)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), Error> {
        Ok(self.0.send(message)?)
    }

    /// Reports an error of this end. If that fails, the other end is gone already.
    pub(super) fn report(&mut self, error: &Error) {
        let reason = error.to_string();
        let _ = self.0.send(&match error {
            Error::WrongData(_) => Message::Wrong { reason },
            _ => Message::Failed { reason },
        });
    }

    /// Checks that the other end is still there; no message is expected from it.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.try_receive()? {
            None => Ok(()),
            Some(message) => Err(unexpected(&message)),
        }
    }

    /// Server: whether the client is done with this length.
    pub(super) fn finished(&mut self) -> Result<Option<Finished>, Error> {
        match self.try_receive()? {
            None => Ok(None),
            Some(Message::Finished { messages, row }) => Ok(Some(Finished { messages, row })),
            Some(message) => Err(unexpected(&message)),
        }
    }

    /// Server: waits until the client is done with this length.
    pub(super) fn wait_finished(&mut self) -> Result<Finished, Error> {
        match self.receive(None)? {
            Message::Finished { messages, row } => Ok(Finished { messages, row }),
            message => Err(unexpected(&message)),
        }
    }

    /// Server: the plan of the client.
    pub(super) fn hello(&mut self) -> Result<Plan, Error> {
        match self.receive(Some(TIMEOUT))? {
            Message::Hello { version: super::message::VERSION, plan } => Ok(plan),
            Message::Hello { version, .. } => Err(Error::Failed(format!(
                "the client is of another version of urxe ({version}, expected {})",
                super::message::VERSION
            ))),
            message => Err(unexpected(&message)),
        }
    }

    /// The queue pairs of the other end.
    pub(super) fn end(&mut self) -> Result<End, Error> {
        match self.receive(Some(TIMEOUT))? {
            Message::Connect(end) => Ok(end),
            message => Err(unexpected(&message)),
        }
    }

    /// Client: waits until the server is ready.
    pub(super) fn ready(&mut self) -> Result<(), Error> {
        match self.receive(Some(TIMEOUT))? {
            Message::Ready => Ok(()),
            message => Err(unexpected(&message)),
        }
    }

    /// Client: waits until the server has received and checked everything; what arrived.
    pub(super) fn taken(&mut self) -> Result<Option<Received>, Error> {
        match self.receive(Some(TIMEOUT))? {
            Message::Taken(received) => Ok(received),
            message => Err(unexpected(&message)),
        }
    }

    /// Server: the next length, or `None` at the end.
    pub(super) fn next_size(&mut self) -> Result<Option<u32>, Error> {
        match self.receive(Some(TIMEOUT))? {
            Message::Begin { size } => Ok(Some(size)),
            Message::Bye => Ok(None),
            message => Err(unexpected(&message)),
        }
    }

    fn receive(&mut self, timeout: Option<Duration>) -> Result<Message, Error> {
        let message = self.0.recv(timeout)?;
        self.accept(message)
    }

    fn try_receive(&mut self) -> Result<Option<Message>, Error> {
        self.0.try_recv()?.map(|message| self.accept(message)).transpose()
    }

    /// Errors that the other end reports are returned as errors.
    fn accept(&self, message: Message) -> Result<Message, Error> {
        match message {
            Message::Failed { reason } => {
                Err(Error::Peer { peer: self.0.peer().to_owned(), reason })
            }
            Message::Wrong { reason } => Err(Error::WrongData(reason)),
            message => Ok(message),
        }
    }
}

fn unexpected(message: &Message) -> Error {
    Error::Failed(format!("the other end sent an unexpected message: {message:?}"))
}
