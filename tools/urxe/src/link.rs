//! How two programs talk before, between and after their RDMA: lines of JSON over a TCP
//! connection or a pair of pipes.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// Longest line that is read. The longest that exists lists the endpoints of a thousand QPs, with
/// less than a hundred bytes each.
const MAX_LINE: u64 = 256 * 1024;

/// The other program cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// It ended, or closed the connection.
    #[error("{who} ended before its time")]
    Closed {
        /// Which program.
        who: String,
    },
    /// It says nothing.
    #[error("{who} said nothing for {} s", .after.as_secs())]
    Silent {
        /// Which program.
        who: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// It says something else than a message of ours.
    #[error("{who} said something that is no message of this version of urxe: {reason}")]
    Nonsense {
        /// Which program.
        who: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refuses.
    #[error("talking to {who}: {source}")]
    System {
        /// Which program.
        who: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A connection to the other program, which sends and receives messages of type `M`.
///
/// A thread of its own reads, so that a loop which polls completions learns without a system call
/// whether something arrived or the other program is gone.
pub(crate) struct Link<M> {
    who: String,
    writer: Box<dyn Write + Send>,
    inbox: Receiver<Result<M, LinkError>>,
}

impl<M: Serialize + DeserializeOwned + Send + 'static> Link<M> {
    /// Talks over a TCP connection.
    pub(crate) fn over_tcp(stream: TcpStream, who: impl Into<String>) -> Result<Self, LinkError> {
        let who = who.into();
        let system = |source| LinkError::System { who: who.clone(), source };
        stream.set_nodelay(true).map_err(system)?;
        let reader = stream.try_clone().map_err(system)?;
        Ok(Self::new(reader, stream, who))
    }

    /// Talks over any two streams of bytes.
    pub(crate) fn new(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        who: impl Into<String>,
    ) -> Self {
        let (who, (outbox, inbox)) = (who.into(), mpsc::channel());
        let name = who.clone();
        std::thread::spawn(move || read_lines(reader, &name, &outbox));
        Link { who, writer: Box::new(writer), inbox }
    }

    /// What the other program is called in errors.
    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &M) -> Result<(), LinkError> {
        let mut line = serde_json::to_vec(message).map_err(io::Error::from);
        if let Ok(line) = &mut line {
            line.push(b'\n');
        }
        let sent = line.and_then(|line| {
            self.writer.write_all(&line)?;
            self.writer.flush()
        });
        sent.map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.closed(),
            _ => LinkError::System { who: self.who.clone(), source },
        })
    }

    /// Waits for a message, for ever or as long as `timeout`.
    pub(crate) fn recv(&mut self, timeout: Option<Duration>) -> Result<M, LinkError> {
        match timeout {
            None => self.inbox.recv().unwrap_or_else(|_| Err(self.closed())),
            Some(after) => match self.inbox.recv_timeout(after) {
                Ok(message) => message,
                Err(RecvTimeoutError::Disconnected) => Err(self.closed()),
                Err(RecvTimeoutError::Timeout) => {
                    Err(LinkError::Silent { who: self.who.clone(), after })
                }
            },
        }
    }

    /// A message, if one is there. Cheap enough for a polling loop.
    pub(crate) fn try_recv(&mut self) -> Result<Option<M>, LinkError> {
        match self.inbox.try_recv() {
            Ok(message) => message.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.closed()),
        }
    }

    fn closed(&self) -> LinkError {
        LinkError::Closed { who: self.who.clone() }
    }
}

/// Reads messages until there are no more, or nobody wants them.
fn read_lines<M: DeserializeOwned>(
    reader: impl Read,
    who: &str,
    outbox: &Sender<Result<M, LinkError>>,
) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let message = match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(_) if line.last() == Some(&b'\n') => parse(&line, who),
            Ok(len) if len as u64 == MAX_LINE => {
                let reason = format!("a line longer than {MAX_LINE} bytes");
                Err(LinkError::Nonsense { who: who.to_owned(), reason })
            }
            // The end, or a process killed in the middle of a line.
            Ok(_) => Err(LinkError::Closed { who: who.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(LinkError::Closed { who: who.to_owned() })
            }
            Err(source) => Err(LinkError::System { who: who.to_owned(), source }),
        };
        let last = message.is_err();
        if outbox.send(message).is_err() || last {
            return;
        }
    }
}

fn parse<M: DeserializeOwned>(line: &[u8], who: &str) -> Result<M, LinkError> {
    serde_json::from_slice(line)
        .map_err(|error| LinkError::Nonsense { who: who.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: &'static [u8]) -> Vec<Result<u32, LinkError>> {
        let mut link = Link::<u32>::new(bytes, io::sink(), "the test");
        let mut all = Vec::new();
        loop {
            all.push(link.recv(None));
            if all.last().is_some_and(Result::is_err) {
                return all;
            }
        }
    }

    #[test]
    fn messages_come_in_order_and_then_the_end() {
        let all = received(b"1\n2\n");
        assert!(matches!(all[..], [Ok(1), Ok(2), Err(LinkError::Closed { .. })]), "{all:?}");
    }

    #[test]
    fn half_a_line_is_no_message() {
        assert!(matches!(received(b"12")[..], [Err(LinkError::Closed { .. })]));
    }

    #[test]
    fn nonsense_is_said_to_be_nonsense() {
        let all = received(b"GET / HTTP/1.1\n");
        let Err(error) = &all[0] else { panic!("{all:?}") };
        assert!(error.to_string().starts_with("the test said something"), "{error}");
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut link = Link::<u32>::new(io::repeat(b'1'), io::sink(), "the test");
        assert!(matches!(link.recv(None), Err(LinkError::Nonsense { .. })));
    }

    #[test]
    fn silence_has_an_end() {
        let (reader, _writer) = io::pipe().unwrap();
        let mut link = Link::<u32>::new(reader, io::sink(), "the test");
        assert!(matches!(link.try_recv(), Ok(None)));
        let silent = link.recv(Some(Duration::from_millis(1)));
        assert!(matches!(silent, Err(LinkError::Silent { .. })));
    }
}
