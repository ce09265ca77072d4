//! The daemon's one thread: waits for something to do, does some of everything, and waits again.
//!
//! Each turn looks at all descriptors with one system call, then takes in at most one receive
//! call's worth of packets from each port, all doorbells, what timers are due, and a few control
//! requests of each session; then it lets every device send a bounded number of batches. So
//! whatever keeps the loop busy, everything else has its turn. A descriptor that had more than
//! its share stays on the list of those that are ready, since mio tells of each one only once.
//!
//! After the last piece of work the loop keeps looking for [`SPIN`], yielding the processor each
//! time, and then sleeps; at once if others do not give the processor back ([`YieldPolicy`]).
//! Before it sleeps, it tells the sessions through their doorbell pages; a program that rings from
//! then on also writes to the session's eventfd.

use crate::alarm::Alarm;
use crate::cm::Cm;
use crate::config::SocketMode;
use crate::counters::DaemonCounters;
use crate::device::RdmaDevice;
use crate::limits::{
    ACCEPT_PAUSE, ACCEPTS_PER_TURN, EVENTS_PER_TURN, FREES_PER_TURN, MAX_SESSIONS,
    REQUESTS_PER_TURN, SHORTEST_SLEEP, SPIN,
};
use crate::resources::{handle, refuse};
use crate::session::{Answer, DaemonCtx, Session};
use crate::sysfs::Sysfs;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_nic::{ChannelId, OwnerId};
use urxe_port::watch::Watch;
use urxe_shm::client::yield_policy::YieldPolicy;
use urxe_shm::control::channel::{ChannelError, Listener};
use urxe_shm::control::{ControlError, Reply};
use urxe_types::Slab;

/// What a descriptor that is ready means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// The daemon is to end.
    Stop,
    /// A program wants to connect.
    Listener,
    /// A program has woken us: its doorbells are looked at in any case. Or the alarm has, and
    /// so are the timers.
    Wake,
    /// A device's port can receive, or send again.
    Port { device: usize },
    /// A session's socket has a request, or its program is gone.
    Session { key: u32 },
    /// An event channel that was full takes records again.
    Channel { device: usize, channel: ChannelId },
    /// A link or an address of the machine has changed.
    Watch,
}

impl Token {
    fn to_mio(self) -> mio::Token {
        let (kind, device, key) = match self {
            Token::Stop => (0, 0, 0),
            Token::Listener => (1, 0, 0),
            Token::Wake => (2, 0, 0),
            Token::Port { device } => (3, device, 0),
            Token::Session { key } => (4, 0, key),
            Token::Channel { device, channel } => (5, device, channel.0),
            Token::Watch => (6, 0, 0),
        };
        mio::Token(kind << 48 | device << 32 | key as usize)
    }

    fn from_mio(token: mio::Token) -> Token {
        let mio::Token(number) = token;
        let (device, key) = (number >> 32 & 0xffff, number as u32);
        match number >> 48 {
            1 => Token::Listener,
            2 => Token::Wake,
            3 => Token::Port { device },
            4 => Token::Session { key },
            5 => Token::Channel { device, channel: ChannelId(key) },
            6 => Token::Watch,
            _ => Token::Stop,
        }
    }
}

/// What came of a descriptor that was ready.
struct Progress {
    /// There was something to do.
    worked: bool,
    /// There may be more, so it stays ready.
    more: bool,
}

const NOTHING: Progress = Progress { worked: false, more: false };

/// The event loop and all that it serves.
pub(crate) struct EventLoop {
    poll: Poll,
    events: Events,
    alarm: Alarm,
    /// Descriptors that were ready and have not said since that there is nothing more.
    ready: Vec<Token>,
    /// Becomes readable when the daemon is to end.
    _stop: OwnedFd,
    /// The devices as files. Before the listener, so that it goes first: when the socket is free
    /// for another daemon, so is the directory.
    sysfs: Option<Sysfs>,
    listener: Listener,
    /// The daemon ends so long after its last program went.
    linger: Option<Duration>,
    /// When the last program went; if none came, when we began to serve.
    alone_since: Instant,
    /// When to accept again, after the system had no room for another connection.
    accept_again: Option<Instant>,
    /// The machine's links and addresses.
    watch: Watch,
    /// Before what they have: when the daemon ends, programs notice at once, by their sockets.
    sessions: Slab<Session>,
    /// Sessions whose programs are gone, and whose objects are not all freed.
    dead: Vec<Session>,
    ctx: DaemonCtx,
    /// The number of the session that came last.
    last_session: u64,
}

impl EventLoop {
    pub(crate) fn new(
        now: Instant,
        listener: Listener,
        devices: Vec<RdmaDevice>,
        watch: Watch,
        stop: OwnedFd,
    ) -> io::Result<EventLoop> {
        let mut event_loop = EventLoop {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS_PER_TURN),
            alarm: Alarm::new()?,
            ready: Vec::new(),
            _stop: stop,
            sysfs: None,
            listener,
            linger: None,
            alone_since: now,
            accept_again: None,
            watch,
            sessions: Slab::default(),
            dead: Vec::new(),
            ctx: DaemonCtx {
                devices,
                cm: Cm::new(),
                programs: BTreeMap::new(),
                now,
                counters: DaemonCounters::default(),
            },
            last_session: 0,
        };
        event_loop.register(&event_loop._stop, Token::Stop, Interest::READABLE)?;
        event_loop.register(&event_loop.listener, Token::Listener, Interest::READABLE)?;
        event_loop.register(&event_loop.alarm, Token::Wake, Interest::READABLE)?;
        if let Some(fd) = event_loop.watch.fd() {
            event_loop.register(fd, Token::Watch, Interest::READABLE)?;
        }
        for (device, entry) in event_loop.ctx.devices.iter().enumerate() {
            if let Some(fd) = entry.nic.port_fd() {
                event_loop.register(fd, Token::Port { device }, Interest::READABLE)?;
            }
        }
        event_loop.sync_devices_with_links(now)?;
        Ok(event_loop)
    }

    /// Shows the devices as files from now on.
    pub(crate) fn show_devices(&mut self, directory: &Path, mode: SocketMode) -> io::Result<()> {
        self.sysfs = Some(Sysfs::create(directory, mode, &self.ctx.devices)?);
        Ok(())
    }

    /// Ends so long after the last program went, or after now if none comes.
    pub(crate) fn linger(&mut self, linger: Duration) {
        self.linger = Some(linger);
    }

    /// Asks to be told when a descriptor becomes ready.
    fn register(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        register(self.poll.registry(), fd, token, interest)
    }

    /// Stops watching a descriptor. It does not matter if it was not registered.
    fn deregister(&self, fd: impl AsFd) {
        deregister(self.poll.registry(), fd);
    }

    /// Serves until told to stop, or until no program has been there for as long as the daemon
    /// lingers. An error means that a port or the loop itself is of no use any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut last_work = Instant::now();
        let mut now = last_work;
        self.alone_since = now;
        let (mut yield_policy, mut yielded) = (YieldPolicy::new(), false);
        while self.end_of_linger().is_none_or(|end| now < end) {
            // Where others do not yield, to keep looking keeps the processor from those whose work
            // we wait for.
            let spin = if yield_policy.is_due(now) { SPIN } else { Duration::ZERO };
            let looking = now.duration_since(last_work) < spin || self.has_more();
            let deadline = if looking { None } else { self.deadline() };
            // A train that is paced must not wait for a sleep that is longer than was asked for.
            let soon = deadline.is_some_and(|at| at < now + spin.min(SHORTEST_SLEEP));
            let spinning = looking || soon;
            if spinning {
                self.wait(Some(Duration::ZERO))?;
            } else {
                self.sleep(deadline)?;
            }
            let before = std::mem::replace(&mut now, Instant::now());
            self.ctx.now = now;
            if std::mem::take(&mut yielded) {
                yield_policy.on_yield(now, now.duration_since(before));
            }
            let mut worked = false;
            for token in std::mem::take(&mut self.ready) {
                if token == Token::Stop {
                    return Ok(());
                }
                let served = self.serve(now, token)?;
                worked |= served.worked;
                if served.more {
                    self.ready.push(token);
                }
            }
            worked |= self.turn(now)?;
            if worked {
                last_work = now;
            } else if spinning && yield_policy.is_due(now) {
                rustix::thread::sched_yield();
                yielded = true;
            }
        }
        Ok(())
    }

    /// When the daemon is to end, if no program comes. A program that has connected is there, even
    /// if it has said nothing yet.
    fn end_of_linger(&self) -> Option<Instant> {
        self.linger.filter(|_| self.sessions.is_empty()).map(|linger| self.alone_since + linger)
    }

    /// What needs no descriptor to be ready.
    fn turn(&mut self, now: Instant) -> io::Result<bool> {
        let mut worked = false;
        for (_, session) in self.sessions.iter() {
            session.take_doorbells(|device, qpn| {
                self.ctx.devices[device].nic.ring_doorbell(qpn);
                worked = true;
            });
        }
        // Before the devices have their turn: peers are to be told of connections that end.
        if let Some(session) = self.dead.last_mut() {
            session.free_some(&mut self.ctx, FREES_PER_TURN);
        }
        if let Some(session) = self.dead.last()
            && !session.is_ending()
        {
            self.ctx.programs.remove(&session.id());
            self.dead.pop();
            let is_last = self.dead.is_empty() && self.sessions.is_empty();
            debug_assert!(
                !is_last || self.ctx.cm.is_empty(),
                "its program is gone, and nothing else frees it"
            );
        }
        for (index, device) in self.ctx.devices.iter_mut().enumerate() {
            worked |= device.handle_timers(now)?;
            self.ctx.cm.poll(now, index, device);
            worked |= device.nic.transmit(now)?;
        }
        self.watch_full_channels();
        if self.watch.poll_timeout().is_some_and(|at| at <= now) {
            self.ready.push(Token::Watch);
        }
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.ready.push(Token::Listener);
        }
        Ok(worked)
    }

    /// Sees to a descriptor that is ready.
    fn serve(&mut self, now: Instant, token: Token) -> io::Result<Progress> {
        match token {
            Token::Stop | Token::Wake => Ok(NOTHING),
            Token::Listener => Ok(self.accept(now)),
            Token::Port { device } => {
                let device = &mut self.ctx.devices[device];
                let sent = device.nic.is_blocked() && device.nic.send(now)?;
                // An error of the socket is read by receiving.
                let received = device.nic.receive(now)?;
                Ok(Progress { worked: received || sent, more: received })
            }
            Token::Session { key } => self.answer(now, key),
            Token::Watch => self.handle_link_change(now),
            Token::Channel { device, channel } => {
                let registry = self.poll.registry();
                if let Some(pipe) = self.ctx.devices[device].nic.channel_mut(channel)
                    && pipe.flush()
                {
                    pipe.unwatch(|fd| deregister(registry, fd));
                }
                Ok(NOTHING)
            }
        }
    }

    /// Has the event channels watched that have become full. The session of one for which the
    /// system refuses that ends: it would wait for its events for ever.
    fn watch_full_channels(&mut self) {
        for device in 0..self.ctx.devices.len() {
            while let Some(channel) = self.ctx.devices[device].nic.take_full_channel() {
                let pipe = self.ctx.devices[device].nic.channel_mut(channel);
                let token = Token::Channel { device, channel };
                let registry = self.poll.registry();
                let watch = |fd: BorrowedFd<'_>| register(registry, fd, token, Interest::WRITABLE);
                if pipe.is_none_or(|pipe| pipe.watch(watch).is_ok()) {
                    continue;
                }
                self.ctx.counters.event_pipes_failed += 1;
                let is_owner = |session: &Session| session.has_channel(device, channel);
                let owner = self.sessions.iter().find(|(_, session)| is_owner(session));
                if let Some((key, _)) = owner {
                    self.end_session(key);
                }
            }
        }
    }

    /// Lets all devices follow one change of a link or an address.
    fn handle_link_change(&mut self, now: Instant) -> io::Result<Progress> {
        let changed = self.watch.next_change(now);
        if changed {
            self.sync_devices_with_links(now)?;
        }
        Ok(Progress { worked: changed, more: changed })
    }

    /// Makes all devices what the machine's links and addresses say that they should be.
    fn sync_devices_with_links(&mut self, now: Instant) -> io::Result<()> {
        for (index, device) in self.ctx.devices.iter_mut().enumerate() {
            let events = device.sync_with_links(now, self.watch.links())?;
            // First the files: a program that is told of a change may look there at once.
            let shown = self.sysfs.as_mut().map_or(Ok(()), |sysfs| sysfs.show(index, device));
            self.ctx.counters.sysfs_errors += u64::from(shown.is_err());
            for event in events {
                device.nic.port_event(event);
            }
        }
        Ok(())
    }

    /// Accepts programs that want to connect.
    fn accept(&mut self, now: Instant) -> Progress {
        for _ in 0..ACCEPTS_PER_TURN {
            let channel = match self.listener.accept() {
                Ok(Some(channel)) => channel,
                Ok(None) => return Progress { worked: true, more: false },
                Err(_) => {
                    // Out of descriptors or memory, and the program goes on waiting. Looking
                    // again at once would find the same.
                    self.ctx.counters.sessions_refused += 1;
                    // HOST-028
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return Progress { worked: true, more: false };
                }
            };
            let session = if self.sessions.len() + self.dead.len() < MAX_SESSIONS {
                self.last_session += 1;
                let session = Session::new(channel, OwnerId(self.last_session));
                session.ok().and_then(|session| self.sessions.insert(session))
            } else {
                None
            };
            let Some(key) = session else {
                self.ctx.counters.sessions_refused += 1;
                continue;
            };
            self.ctx.counters.sessions_opened += 1;
            if let Some(session) = self.sessions.get(key)
                && self.register(session, Token::Session { key }, Interest::READABLE).is_err()
            {
                self.ctx.counters.sockets_failed += 1;
                self.end_session(key);
            }
        }
        Progress { worked: true, more: true }
    }

    /// Answers a few requests of a session.
    fn answer(&mut self, now: Instant, key: u32) -> io::Result<Progress> {
        let ended = Ok(Progress { worked: true, more: false });
        for served in 0..REQUESTS_PER_TURN {
            let Some(session) = self.sessions.get_mut(key) else { return ended };
            if session.is_ending() {
                session.free_some(&mut self.ctx, FREES_PER_TURN);
                let is_over = !session.is_ending();
                if is_over && !self.reply(key, Ok(Reply::Done.into())) {
                    return ended;
                }
                return Ok(Progress { worked: true, more: true });
            }
            let was_open = session.wake_fd().is_some();
            let answer = match session.receive() {
                Ok((request, fds)) => {
                    // CLIENT-014
                    post(session, &mut self.ctx.devices, now)?;
                    handle(session, &mut self.ctx, request, fds)
                }
                Err(ChannelError::WouldBlock) => {
                    return Ok(Progress { worked: served > 0, more: false });
                }
                Err(ChannelError::Closed) => {
                    self.end_session(key);
                    return ended;
                }
                Err(error) => {
                    let counter = match &error {
                        ChannelError::Truncated => &mut self.ctx.counters.requests_oversized,
                        ChannelError::FdsLost | ChannelError::TooManyFds { .. } => {
                            &mut self.ctx.counters.requests_with_lost_descriptors
                        }
                        ChannelError::Os(_) => {
                            self.ctx.counters.sockets_failed += 1;
                            self.end_session(key);
                            return ended;
                        }
                        // HOST-010
                        _ => &mut self.ctx.counters.requests_malformed,
                    };
                    *counter += 1;
                    Err(refuse(Errno::PROTO, error.to_string()))
                }
            };
            let woken = match session.wake_fd().filter(|_| !was_open) {
                // Every write wakes us once, and need not be read.
                Some(fd) => register(self.poll.registry(), fd, Token::Wake, Interest::READABLE),
                None => Ok(()),
            };
            if woken.is_err() {
                self.ctx.counters.sockets_failed += 1;
                self.end_session(key);
                return ended;
            }
            if !self.reply(key, answer) {
                return ended;
            }
        }
        Ok(Progress { worked: true, more: true })
    }

    /// Sends the answer to a request, if it is there already. Returns whether the session goes on.
    fn reply(&mut self, key: u32, answer: Result<Answer, ControlError>) -> bool {
        let (reply, fds) = match answer {
            Ok(Answer::WhenFreed) => return true,
            Ok(Answer::Reply { reply, fds }) => (reply, fds),
            Err(error) => (Reply::Error(error), Vec::new()),
        };
        self.ctx.counters.requests += 1;
        self.ctx.counters.requests_refused += u64::from(matches!(reply, Reply::Error(_)));
        let session = self.sessions.get_mut(key);
        let delivered = session.is_some_and(|session| session.reply(&reply, &fds).is_ok());
        if !delivered {
            // HOST-011
            self.ctx.counters.replies_undeliverable += 1;
            self.end_session(key);
        }
        delivered
    }

    /// The program is gone, or is to go.
    fn end_session(&mut self, key: u32) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.alone_since = Instant::now();
        // The program may keep its end of the eventfd, and with it the registration.
        if let Some(fd) = session.wake_fd() {
            self.deregister(fd);
        }
        self.deregister(&session);
        self.ctx.counters.sessions_closed += 1;
        // HOST-012
        session.begin_teardown();
        self.dead.push(session);
    }

    /// Whether there is more to do right away.
    fn has_more(&self) -> bool {
        !self.dead.is_empty()
            || !self.ready.is_empty()
            || self.ctx.devices.iter().any(|device| device.nic.is_due())
    }

    /// When there is something to do although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let deadlines = self.ctx.devices.iter().filter_map(RdmaDevice::deadline);
        let deadlines = deadlines.chain(self.accept_again).chain(self.watch.poll_timeout());
        deadlines.chain(self.end_of_linger()).min()
    }

    /// Sleeps until something happens or the deadline has come; not at all if a program has just
    /// rung.
    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let none_rang = self.sessions.iter().all(|(_, session)| session.fall_asleep());
        // The turn has taken its time.
        let now = Instant::now();
        let timeout = if none_rang && deadline.is_none_or(|at| at > now) {
            self.ctx.counters.sleeps += 1;
            if let Some(deadline) = deadline {
                self.alarm.set(now, deadline)?;
            }
            None
        } else {
            Some(Duration::ZERO)
        };
        let waited = self.wait(timeout);
        for (_, session) in self.sessions.iter() {
            session.wake_up();
        }
        waited
    }

    /// Collects the descriptors that have become ready, waiting for one if there is none.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in &self.events {
            let token = Token::from_mio(event.token());
            if !self.ready.contains(&token) {
                self.ready.push(token);
            }
        }
        Ok(())
    }
}

/// Asks to be told when a descriptor becomes ready.
fn register(
    registry: &Registry,
    fd: impl AsFd,
    token: Token,
    interest: Interest,
) -> io::Result<()> {
    registry.register(&mut SourceFd(&fd.as_fd().as_raw_fd()), token.to_mio(), interest)
}

/// Stops watching a descriptor.
fn deregister(registry: &Registry, fd: impl AsFd) {
    let _ = registry.deregister(&mut SourceFd(&fd.as_fd().as_raw_fd()));
}

/// Sends what a session has posted so far. What it asks for is done after that: the QP that it
/// destroys has sent, the CQ that it resizes holds the completions.
fn post(session: &Session, devices: &mut [RdmaDevice], now: Instant) -> io::Result<()> {
    session.take_doorbells(|device, qpn| devices[device].nic.ring_doorbell(qpn));
    for device in devices {
        device.nic.transmit(now)?;
    }
    Ok(())
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
            Token::Port { device: crate::limits::MAX_DEVICES - 1 },
            Token::Session { key: u32::MAX },
            Token::Channel { device: crate::limits::MAX_DEVICES - 1, channel: ChannelId(u32::MAX) },
            Token::Watch,
        ];
        for token in tokens {
            assert_eq!(Token::from_mio(token.to_mio()), token);
        }
    }
}
