//! The control connection between two programs, beside their RDMA: lines of JSON over a TCP
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

/// The control connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The peer ended, or closed the connection.
    #[error("{peer} ended too early")]
    Closed {
        /// The name of the peer.
        peer: String,
    },
    /// No message came in time.
    #[error("{peer} sent nothing for {} s", .after.as_secs())]
    Silent {
        /// The name of the peer.
        peer: String,
        /// The timeout.
        after: Duration,
    },
    /// The peer sent something else than a message.
    #[error("{peer} sent something that is no message of this version of urxe: {reason}")]
    Malformed {
        /// The name of the peer.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A system call failed.
    #[error("connection to {peer}: {source}")]
    System {
        /// The name of the peer.
        peer: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A connection that sends and receives messages of type `M`.
///
/// A thread of its own reads, so that a loop which polls completions learns without a system call
/// whether something arrived or the other program is gone.
pub(crate) struct Link<M> {
    peer: String,
    writer: Box<dyn Write + Send>,
    inbox: Receiver<Result<M, LinkError>>,
}

impl<M: Serialize + DeserializeOwned + Send + 'static> Link<M> {
    /// Uses a TCP connection.
    pub(crate) fn over_tcp(stream: TcpStream, peer: impl Into<String>) -> Result<Self, LinkError> {
        let peer = peer.into();
        let system = |source| LinkError::System { peer: peer.clone(), source };
        stream.set_nodelay(true).map_err(system)?;
        let reader = stream.try_clone().map_err(system)?;
        Ok(Self::new(reader, stream, peer))
    }

    /// Uses any two streams of bytes.
    pub(crate) fn new(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        peer: impl Into<String>,
    ) -> Self {
        let (peer, (outbox, inbox)) = (peer.into(), mpsc::channel());
        let name = peer.clone();
        std::thread::spawn(move || read_lines(reader, &name, &outbox));
        Link { peer, writer: Box::new(writer), inbox }
    }

    /// The name of the peer in errors.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
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
            _ => LinkError::System { peer: self.peer.clone(), source },
        })
    }

    /// Waits for a message, without limit or as long as `timeout`.
    pub(crate) fn recv(&mut self, timeout: Option<Duration>) -> Result<M, LinkError> {
        match timeout {
            None => self.inbox.recv().unwrap_or_else(|_| Err(self.closed())),
            Some(after) => match self.inbox.recv_timeout(after) {
                Ok(message) => message,
                Err(RecvTimeoutError::Disconnected) => Err(self.closed()),
                Err(RecvTimeoutError::Timeout) => {
                    Err(LinkError::Silent { peer: self.peer.clone(), after })
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
        LinkError::Closed { peer: self.peer.clone() }
    }
}

/// Reads messages until the stream or the receiver of the channel is gone.
fn read_lines<M: DeserializeOwned>(
    reader: impl Read,
    peer: &str,
    outbox: &Sender<Result<M, LinkError>>,
) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let message = match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(_) if line.last() == Some(&b'\n') => parse(&line, peer),
            Ok(len) if len as u64 == MAX_LINE => {
                let reason = format!("a line longer than {MAX_LINE} bytes");
                Err(LinkError::Malformed { peer: peer.to_owned(), reason })
            }
            // The end, or a process killed in the middle of a line.
            Ok(_) => Err(LinkError::Closed { peer: peer.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(LinkError::Closed { peer: peer.to_owned() })
            }
            Err(source) => Err(LinkError::System { peer: peer.to_owned(), source }),
        };
        let last = message.is_err();
        if outbox.send(message).is_err() || last {
            return;
        }
    }
}

fn parse<M: DeserializeOwned>(line: &[u8], peer: &str) -> Result<M, LinkError> {
    serde_json::from_slice(line)
        .map_err(|error| LinkError::Malformed { peer: peer.to_owned(), reason: error.to_string() })
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
    fn messages_arrive_in_order_and_then_the_end() {
        let all = received(b"1\n2\n");
        assert!(matches!(all[..], [Ok(1), Ok(2), Err(LinkError::Closed { .. })]), "{all:?}");
    }

    #[test]
    fn half_a_line_is_no_message() {
        assert!(matches!(received(b"12")[..], [Err(LinkError::Closed { .. })]));
    }

    #[test]
    fn a_line_that_is_no_message_is_an_error() {
        let all = received(b"GET / HTTP/1.1\n");
        let Err(error) = &all[0] else { panic!("{all:?}") };
        assert!(error.to_string().starts_with("the test sent something"), "{error}");
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut link = Link::<u32>::new(io::repeat(b'1'), io::sink(), "the test");
        assert!(matches!(link.recv(None), Err(LinkError::Malformed { .. })));
    }

    #[test]
    fn a_receive_times_out() {
        let (reader, _writer) = io::pipe().unwrap();
        let mut link = Link::<u32>::new(reader, io::sink(), "the test");
        assert!(matches!(link.try_recv(), Ok(None)));
        let silent = link.recv(Some(Duration::from_millis(1)));
        assert!(matches!(silent, Err(LinkError::Silent { .. })));
    }
}
