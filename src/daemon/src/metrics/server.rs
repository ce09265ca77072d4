//! The thread that answers scrapers.
//!
//! None is waited for. Each connection has one request, a time within which all is over, and bounds
//! on what is kept of it; where there are too many, the oldest gives way.

use super::http::{self, MAX_REQUEST, Refusal};
use super::listener::{self, Listener};
use super::text::exposition;
use crate::broker::snapshot::Asker;
use crate::limits::ACCEPT_PAUSE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;

/// How long a connection may take from its beginning to its end.
const MAX_TIME: Duration = Duration::from_secs(5);

/// For how long what was counted is told again, so that however often scrapers ask, the broker and
/// its slots are not kept busy.
const MAX_AGE: Duration = Duration::from_millis(100);

/// A scraper.
struct Connection {
    socket: OwnedFd,
    /// When it is closed, however far it is.
    until: Instant,
    state: State,
}

enum State {
    /// It has said so much.
    Asking(Vec<u8>),
    /// So much of its answer was sent.
    Answering(Arc<[u8]>, usize),
    /// It was told everything. What it still sends is thrown away, because closing would take what
    /// it has not read from it.
    Ending,
}

/// What the thread has.
pub(super) struct Server {
    listener: Listener,
    /// Hangs up when the thread is to end.
    stop: OwnedFd,
    asker: Asker,
    /// In the order in which they came.
    connections: VecDeque<Connection>,
    /// What was answered last, and when.
    last: Option<(Instant, Arc<[u8]>)>,
    /// When to accept again, after the system had no room for another connection.
    accept_again: Option<Instant>,
}

impl Server {
    pub(super) fn new(listener: Listener, stop: OwnedFd, asker: Asker) -> Server {
        let connections = VecDeque::new();
        Server { listener, stop, asker, connections, last: None, accept_again: None }
    }

    /// Answers until the thread is to end.
    pub(super) fn run(mut self) {
        while self.turn().is_ok_and(|goes_on| goes_on) {}
    }

    /// Waits until there is something to do, and does it. Returns whether it goes on.
    fn turn(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        // METRIC-003
        self.connections.retain(|connection| now < connection.until);
        self.accept_again = self.accept_again.filter(|at| now < *at);
        let Some(ready) = self.wait(now)? else { return Ok(false) };
        let [accepts, connections @ ..] = &ready[..] else { return Ok(false) };
        for index in (0..self.connections.len()).rev() {
            if connections[index] && !self.serve(index) {
                self.connections.remove(index);
            }
        }
        if *accepts {
            self.accept();
        }
        Ok(true)
    }

    /// Waits. Returns whether there is somebody to accept, and who of the connections is ready;
    /// `None` if the thread is to end.
    fn wait(&self, now: Instant) -> io::Result<Option<Vec<bool>>> {
        let deadlines = self.connections.iter().map(|connection| connection.until);
        let deadline = deadlines.chain(self.accept_again).min();
        let timeout = deadline.map(|at| at.saturating_duration_since(now));
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let accepts = if self.accept_again.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds =
            vec![PollFd::new(&self.stop, PollFlags::empty()), PollFd::new(&self.listener, accepts)];
        fds.extend(self.connections.iter().map(|connection| {
            let awaits = match connection.state {
                State::Answering(..) => PollFlags::OUT,
                State::Asking(_) | State::Ending => PollFlags::IN,
            };
            PollFd::new(&connection.socket, awaits)
        }));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Some(vec![false; fds.len() - 1])),
            Err(errno) => return Err(errno.into()),
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>();
        Ok((!ready[0]).then(|| ready[1..].to_vec()))
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(Some(socket)) => {
                // METRIC-003
                if self.connections.len() >= MAX_CONNECTIONS {
                    self.give_way();
                }
                let until = Instant::now() + MAX_TIME;
                let state = State::Asking(Vec::new());
                self.connections.push_back(Connection { socket, until, state });
            }
            Ok(None) => {}
            // Out of descriptors or memory: looking again at once would find the same.
            Err(_) => self.accept_again = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }

    /// Closes a connection: the oldest of those that have yet to ask, or of all.
    fn give_way(&mut self) {
        let asks = |connection: &Connection| matches!(connection.state, State::Asking(_));
        let oldest = self.connections.iter().position(asks).unwrap_or(0);
        self.connections.remove(oldest);
    }

    /// Goes on with a connection that is ready. Returns whether there is more to do for it.
    fn serve(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        if let State::Asking(request) = &mut connection.state {
            let mut bytes = [0; MAX_REQUEST];
            let room = MAX_REQUEST - request.len();
            match listener::receive(&connection.socket, &mut bytes[..room]) {
                Ok(0) => return false,
                Ok(len) => request.extend_from_slice(&bytes[..len]),
                Err(errno) => return passes(errno),
            }
            let Some(judged) = http::judge(request) else { return true };
            let answer = match judged {
                Ok(()) => self.metrics(),
                Err(refusal) => refusal.answer().into(),
            };
            self.connections[index].state = State::Answering(answer, 0);
        }
        let connection = &mut self.connections[index];
        if let State::Answering(answer, sent) = &mut connection.state {
            while *sent < answer.len() {
                match listener::send(&connection.socket, &answer[*sent..]) {
                    Ok(len) => *sent += len,
                    Err(errno) => return passes(errno),
                }
            }
            connection.state = State::Ending;
            return listener::end(&connection.socket).is_ok();
        }
        let received = listener::receive(&connection.socket, &mut [0; MAX_REQUEST]);
        received.map_or_else(passes, |len| len > 0)
    }

    /// The answer with what is counted now, or was a moment ago.
    fn metrics(&mut self) -> Arc<[u8]> {
        let now = Instant::now();
        if let Some((at, answer)) = &self.last
            && now < *at + MAX_AGE
        {
            return Arc::clone(answer);
        }
        let Some(snapshot) = self.asker.ask() else { return Refusal::Ending.answer().into() };
        let answer: Arc<[u8]> = http::metrics(&exposition(&snapshot)).into();
        self.last = Some((now, Arc::clone(&answer)));
        answer
    }
}

/// Whether a connection goes on after that.
fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::INTR)
}
