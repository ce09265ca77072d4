//! The daemon's one thread: waits for something to do, does some of everything, and waits again.
//!
//! Each turn looks at all descriptors with one system call, then takes in at most one receive
//! call's worth of packets from each port, all doorbells, what timers are due, and a few control
//! requests of each session; then it lets every device send a bounded number of batches. So
//! whatever keeps the loop busy, everything else has its turn.
//!
//! After the last piece of work the loop keeps looking for [`SPIN`], yielding the processor each
//! time, and then sleeps. Before it does, it tells the sessions through their doorbell pages;
//! whoever rings from then on also writes to the session's eventfd.

use crate::counters::DaemonCounters;
use crate::limits::{
    ACCEPT_PAUSE, ACCEPTS_PER_TURN, BURIALS_PER_TURN, EVENTS_PER_TURN, MAX_SESSIONS,
    REQUESTS_PER_TURN, SPIN,
};
use crate::nic::Nic;
use crate::resources::refuse;
use crate::session::{Answer, Session, World};
use crate::slab::Slab;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use urxe_shm::channel::{ChannelError, Listener};
use urxe_shm::control::Reply;

/// What a descriptor that is ready means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// The daemon is to end.
    Stop,
    /// A program wants to connect.
    Listener,
    /// A program has woken us: its doorbells are looked at in any case.
    Wake,
    /// A device's port can receive, or send again.
    Port { nic: usize },
    /// A session's socket has a request, or its program is gone.
    Session { key: u32 },
    /// An event pipe that was full takes records again.
    Pipe { nic: usize, pipe: u32 },
}

impl Token {
    fn to_data(self) -> EventData {
        let (kind, nic, key) = match self {
            Token::Stop => (0, 0, 0),
            Token::Listener => (1, 0, 0),
            Token::Wake => (2, 0, 0),
            Token::Port { nic } => (3, nic, 0),
            Token::Session { key } => (4, 0, key),
            Token::Pipe { nic, pipe } => (5, nic, pipe),
        };
        EventData::new_u64(kind << 48 | (nic as u64) << 32 | u64::from(key))
    }

    fn from_data(data: EventData) -> Token {
        let number = data.u64();
        let (nic, key) = ((number >> 32) as usize & 0xffff, number as u32);
        match number >> 48 {
            1 => Token::Listener,
            2 => Token::Wake,
            3 => Token::Port { nic },
            4 => Token::Session { key },
            5 => Token::Pipe { nic, pipe: key },
            _ => Token::Stop,
        }
    }
}

/// The event loop and all that it serves.
pub(crate) struct EventLoop {
    epoll: OwnedFd,
    ready: Vec<Event>,
    /// Becomes readable when the daemon is to end.
    _stop: OwnedFd,
    listener: Listener,
    /// When to accept again, after the system had no room for another connection.
    accept_again: Option<Instant>,
    nics: Vec<Nic>,
    /// Which ports we wait for to be writable.
    waits_for_writable: Vec<bool>,
    sessions: Slab<Session>,
    /// Sessions whose programs are gone, and whose objects are not all freed.
    dead: Vec<Session>,
    counters: DaemonCounters,
}

impl EventLoop {
    pub(crate) fn new(listener: Listener, nics: Vec<Nic>, stop: OwnedFd) -> io::Result<EventLoop> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, Token::Stop.to_data(), EventFlags::IN)?;
        epoll::add(&epoll, &listener, Token::Listener.to_data(), EventFlags::IN)?;
        for (nic, entry) in nics.iter().enumerate() {
            if let Some(fd) = entry.port().fd() {
                epoll::add(&epoll, fd, Token::Port { nic }.to_data(), EventFlags::IN)?;
            }
        }
        Ok(EventLoop {
            epoll,
            ready: Vec::with_capacity(EVENTS_PER_TURN),
            _stop: stop,
            listener,
            accept_again: None,
            waits_for_writable: vec![false; nics.len()],
            nics,
            sessions: Slab::default(),
            dead: Vec::new(),
            counters: DaemonCounters::default(),
        })
    }

    /// Serves until told to stop. An error means that a port or the loop itself is of no use any
    /// more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut last_work = Instant::now();
        let mut now = last_work;
        loop {
            let spinning = now.duration_since(last_work) < SPIN || self.has_more();
            if spinning {
                self.wait(Some(Duration::ZERO))?;
            } else {
                self.sleep(now)?;
            }
            now = Instant::now();
            let mut worked = false;
            while let Some(event) = self.ready.pop() {
                match Token::from_data(event.data) {
                    Token::Stop => return Ok(()),
                    token => worked |= self.dispatch(now, token, event.flags)?,
                }
            }
            worked |= self.turn(now)?;
            if worked {
                last_work = now;
            } else if spinning {
                rustix::thread::sched_yield();
            }
        }
    }

    /// What needs no descriptor to be ready.
    fn turn(&mut self, now: Instant) -> io::Result<bool> {
        let mut worked = false;
        for (_, session) in self.sessions.iter() {
            session.take_doorbells(|nic, qpn| {
                self.nics[nic].ring(qpn);
                worked = true;
            });
        }
        for (index, nic) in self.nics.iter_mut().enumerate() {
            worked |= nic.mind_the_clock(now)?;
            worked |= nic.transmit(now)?;
            let waits = &mut self.waits_for_writable[index];
            if *waits != nic.is_blocked()
                && let Some(fd) = nic.port().fd()
            {
                *waits = nic.is_blocked();
                let flags = if *waits { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
                epoll::modify(&self.epoll, fd, Token::Port { nic: index }.to_data(), flags)?;
            }
            while let Some(pipe) = nic.host.take_full_pipe() {
                if let Some(entry) = nic.host.pipes.get(pipe) {
                    let token = Token::Pipe { nic: index, pipe };
                    epoll::add(&self.epoll, entry, token.to_data(), EventFlags::OUT)?;
                }
            }
        }
        if let Some(session) = self.dead.last_mut()
            && session.bury(&mut self.nics, BURIALS_PER_TURN)
        {
            self.dead.pop();
        }
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            let token = Token::Listener.to_data();
            epoll::modify(&self.epoll, &self.listener, token, EventFlags::IN)?;
        }
        Ok(worked)
    }

    /// Sees to a descriptor that is ready. Returns whether there was work.
    fn dispatch(&mut self, now: Instant, token: Token, flags: EventFlags) -> io::Result<bool> {
        match token {
            Token::Stop | Token::Wake => Ok(false),
            Token::Listener => self.accept(now),
            Token::Port { nic } => {
                let nic = &mut self.nics[nic];
                // Only a blocked port is waited for to be writable.
                let sent = flags.contains(EventFlags::OUT) && nic.send(now)?;
                // An error of the socket is read by receiving.
                let readable = flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP);
                Ok((readable && nic.receive(now)?) || sent)
            }
            Token::Session { key } => {
                if flags.contains(EventFlags::HUP) {
                    self.end_session(key);
                    return Ok(true);
                }
                Ok(self.serve(now, key))
            }
            Token::Pipe { nic, pipe } => {
                if let Some(entry) = self.nics[nic].host.pipes.get_mut(pipe)
                    && entry.flush()
                {
                    epoll::delete(&self.epoll, &*entry)?;
                }
                Ok(false)
            }
        }
    }

    /// Accepts programs that want to connect.
    fn accept(&mut self, now: Instant) -> io::Result<bool> {
        for _ in 0..ACCEPTS_PER_TURN {
            let channel = match self.listener.accept() {
                Ok(Some(channel)) => channel,
                Ok(None) => break,
                Err(_) => {
                    // Out of descriptors or memory, and the program goes on waiting. Looking
                    // again at once would find the same.
                    self.counters.sessions_refused += 1;
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    let (token, none) = (Token::Listener.to_data(), EventFlags::empty());
                    epoll::modify(&self.epoll, &self.listener, token, none)?;
                    break;
                }
            };
            let session = if self.sessions.len() + self.dead.len() < MAX_SESSIONS {
                Session::new(channel).ok().and_then(|session| self.sessions.insert(session))
            } else {
                None
            };
            let Some(key) = session else {
                self.counters.sessions_refused += 1;
                continue;
            };
            self.counters.sessions_opened += 1;
            if let Some(session) = self.sessions.get(key) {
                epoll::add(&self.epoll, session, Token::Session { key }.to_data(), EventFlags::IN)?;
            }
        }
        Ok(true)
    }

    /// Answers a few requests of a session. Returns whether there were any.
    fn serve(&mut self, now: Instant, key: u32) -> bool {
        for served in 0..REQUESTS_PER_TURN {
            let Some(session) = self.sessions.get_mut(key) else { return served > 0 };
            let was_open = session.wake_fd().is_some();
            let answer = match session.receive() {
                Ok((request, fds)) => {
                    let (nics, counters) = (&mut self.nics[..], &self.counters);
                    session.handle(&mut World { nics, now, counters }, request, fds)
                }
                Err(ChannelError::WouldBlock) => return served > 0,
                Err(ChannelError::Closed) => {
                    self.end_session(key);
                    return true;
                }
                Err(error) => {
                    let counter = match &error {
                        ChannelError::Truncated => &mut self.counters.requests_oversized,
                        ChannelError::FdsLost | ChannelError::TooManyFds { .. } => {
                            &mut self.counters.requests_with_lost_descriptors
                        }
                        ChannelError::Os(_) => {
                            self.counters.sockets_failed += 1;
                            self.end_session(key);
                            return true;
                        }
                        _ => &mut self.counters.requests_malformed,
                    };
                    *counter += 1;
                    Err(refuse(Errno::PROTO, error.to_string()))
                }
            };
            self.counters.requests += 1;
            self.counters.requests_refused += u64::from(answer.is_err());
            let answer = answer.unwrap_or_else(|error| Answer::from(Reply::Error(error)));
            let delivered = session.answer(&answer);
            let woken = match session.wake_fd().filter(|_| !was_open) {
                // Edge-triggered: every write wakes us once, and nobody has to read it.
                Some(fd) => {
                    let flags = EventFlags::IN | EventFlags::ET;
                    epoll::add(&self.epoll, fd, Token::Wake.to_data(), flags)
                }
                None => Ok(()),
            };
            if delivered.is_err() || woken.is_err() {
                self.counters.replies_undeliverable += 1;
                self.end_session(key);
                return true;
            }
        }
        true
    }

    /// The program is gone, or is to go.
    fn end_session(&mut self, key: u32) {
        let Some(session) = self.sessions.remove(key) else { return };
        // The program may keep its end of the eventfd, and with it the registration.
        if let Some(fd) = session.wake_fd() {
            let _ = epoll::delete(&self.epoll, fd);
        }
        let _ = epoll::delete(&self.epoll, &session);
        self.counters.sessions_closed += 1;
        self.dead.push(session);
    }

    /// Whether there is more to do right away.
    fn has_more(&self) -> bool {
        !self.dead.is_empty() || self.nics.iter().any(Nic::is_due)
    }

    /// Sleeps until something happens or is due; not at all if a program has just rung.
    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        let nobody_rang = self.sessions.iter().all(|(_, session)| session.fall_asleep());
        let timeout = if nobody_rang {
            self.counters.sleeps += 1;
            let deadlines = self.nics.iter().filter_map(Nic::deadline).chain(self.accept_again);
            deadlines.min().map(|at| at.saturating_duration_since(now))
        } else {
            Some(Duration::ZERO)
        };
        let waited = self.wait(timeout);
        for (_, session) in self.sessions.iter() {
            session.wake_up();
        }
        waited
    }

    /// Collects the descriptors that are ready, waiting for one if there is none.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.ready.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let tokens = [
            Token::Stop,
            Token::Listener,
            Token::Wake,
            Token::Port { nic: crate::limits::MAX_DEVICES - 1 },
            Token::Session { key: u32::MAX },
            Token::Pipe { nic: crate::limits::MAX_DEVICES - 1, pipe: u32::MAX },
        ];
        for token in tokens {
            assert_eq!(Token::from_data(token.to_data()), token);
        }
    }
}
