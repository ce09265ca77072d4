//! The other end of a test, as far as it is talked to.

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

/// The client says that a length is done.
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

    /// Says something.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), Error> {
        Ok(self.0.send(message)?)
    }

    /// Says why this end cannot go on. If it cannot be said, the other end knows already.
    pub(super) fn tell(&mut self, error: &Error) {
        let reason = error.to_string();
        let _ = self.0.send(&match error {
            Error::WrongData(_) => Message::Wrong { reason },
            _ => Message::Failed { reason },
        });
    }

    /// Whether the other end is still there and content; there must be nothing else to hear.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.hear()? {
            None => Ok(()),
            Some(message) => Err(unexpected(&message)),
        }
    }

    /// Server: whether the client is done with this length.
    pub(super) fn finished(&mut self) -> Result<Option<Finished>, Error> {
        match self.hear()? {
            None => Ok(None),
            Some(Message::Finished { messages, row }) => Ok(Some(Finished { messages, row })),
            Some(message) => Err(unexpected(&message)),
        }
    }

    /// Server: waits until the client is done with this length.
    pub(super) fn wait_finished(&mut self) -> Result<Finished, Error> {
        match self.listen(None)? {
            Message::Finished { messages, row } => Ok(Finished { messages, row }),
            message => Err(unexpected(&message)),
        }
    }

    /// Server: what is to be measured.
    pub(super) fn hello(&mut self) -> Result<Plan, Error> {
        match self.listen(Some(TIMEOUT))? {
            Message::Hello { version: super::message::VERSION, plan } => Ok(plan),
            Message::Hello { version, .. } => Err(Error::Failed(format!(
                "the client is of another version of urxe ({version}, expected {})",
                super::message::VERSION
            ))),
            message => Err(unexpected(&message)),
        }
    }

    /// What is to be connected to.
    pub(super) fn end(&mut self) -> Result<End, Error> {
        match self.listen(Some(TIMEOUT))? {
            Message::Connect(end) => Ok(end),
            message => Err(unexpected(&message)),
        }
    }

    /// Client: waits until the server is ready.
    pub(super) fn ready(&mut self) -> Result<(), Error> {
        match self.listen(Some(TIMEOUT))? {
            Message::Ready => Ok(()),
            message => Err(unexpected(&message)),
        }
    }

    /// Client: waits until the server has taken and checked everything, and hears what arrived.
    pub(super) fn taken(&mut self) -> Result<Option<Received>, Error> {
        match self.listen(Some(TIMEOUT))? {
            Message::Taken(received) => Ok(received),
            message => Err(unexpected(&message)),
        }
    }

    /// Server: the next length, or `None` if that was all.
    pub(super) fn next_size(&mut self) -> Result<Option<u32>, Error> {
        match self.listen(Some(TIMEOUT))? {
            Message::Begin { size } => Ok(Some(size)),
            Message::Bye => Ok(None),
            message => Err(unexpected(&message)),
        }
    }

    fn listen(&mut self, timeout: Option<Duration>) -> Result<Message, Error> {
        let message = self.0.recv(timeout)?;
        self.accept(message)
    }

    fn hear(&mut self) -> Result<Option<Message>, Error> {
        self.0.try_recv()?.map(|message| self.accept(message)).transpose()
    }

    /// Bad news become errors.
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
    Error::Failed(format!("the other end said something unexpected: {message:?}"))
}
