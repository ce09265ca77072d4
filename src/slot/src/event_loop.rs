//! A slot's one thread: waits for something to do, does some of everything, and waits again.
//!
//! Each turn looks at all descriptors with one system call, or at the ports alone, without it,
//! where there was work and that was done just now ([`ASK_EVERY`]). Then it takes in at most one
//! receive call's worth of packets from each port, all doorbells, what timers are due, and a few
//! control requests of each session; then it lets every device send a bounded number of batches. So
//! whatever keeps the loop busy, everything else has its turn. A descriptor that had more than
//! its share stays on the list of those that are ready, since mio tells of each one only once.
//!
//! After the last piece of work the loop keeps looking for [`SPIN`], yielding the processor each
//! time, and then sleeps; at once if others do not give the processor back ([`YieldPolicy`]).
//! Before it sleeps, it tells the sessions through their doorbell pages; a program that rings from
//! then on also writes to the session's eventfd. A session that has not rung for a while is told so
//! even before, and then costs nothing until it rings ([`Awake`]). And they are told whether the
//! loop is kept from the processor ([`Crowding`]), so that their threads do not poll in vain.

mod pollers;
mod run;

use crate::alarm::Alarm;
use crate::awake::Awake;
use crate::counters::DaemonCounters;
use crate::crowding::Crowding;
use crate::device::{SlotDevice, post};
use crate::history_file::{self, HistoryWriter};
use crate::limits::{FREES_PER_TURN, MESSAGES_PER_TURN, REQUESTS_PER_TURN};
use crate::link::{Link, LinkError, ToBroker, ToSlot};
use crate::log::{self, LogLimit};
use crate::questions;
use crate::refusal::refuse;
use crate::resources::handle;
use crate::session::{Answer, Session, SlotCtx};
use crate::taps;
use crate::token::Token;
use crate::{Allotment, SlotError};
use mio::unix::SourceFd;
use mio::{Interest, Registry};
pub(crate) use pollers::HandOff;
use pollers::Pollers;
use run::LentPoll;
pub(crate) use run::{Locked, run};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use urxe_engine::Counter;
use urxe_nic::{OwnerId, guard_addresses};
use urxe_port::AddressSockets;
use urxe_shm::control::channel::ChannelError;
use urxe_shm::control::closing::Closer;
use urxe_shm::control::{ControlError, Reply};
use urxe_types::Slab;

/// What came of a descriptor that was ready.
struct Progress {
    /// There was something to do.
    worked: bool,
    /// There may be more, so it stays ready.
    more: bool,
}

const NOTHING: Progress = Progress { worked: false, more: false };

/// How much devices have done: bytes, and messages, of which some have none.
fn done_by(devices: &[SlotDevice]) -> u64 {
    let counters = devices.iter().map(|device| device.nic.device().counters());
    counters.map(|counters| DONE.map(|counter| counters.get(counter)).iter().sum::<u64>()).sum()
}

const DONE: [Counter; 4] =
    [Counter::SentBytes, Counter::ReceivedBytes, Counter::SentMessages, Counter::ReceivedMessages];

/// The event loop and all that it serves.
pub(crate) struct EventLoop {
    poll: LentPoll,
    /// Threads of the program that take turns, where it runs the slot itself.
    pollers: Pollers,
    /// The slot's thread does what there is to do: nothing is left to them.
    ports_are_watched: bool,
    /// Why a turn of such a thread has failed.
    failed: Option<SlotError>,
    alarm: Alarm,
    /// Descriptors that were ready and have not said since that there is nothing more.
    ready: Vec<Token>,
    link: Link<ToBroker, ToSlot>,
    /// Before what they have: when the slot ends, programs notice at once, by their sockets.
    sessions: Slab<Session>,
    /// Those of them that are looked at in every turn.
    awake: Awake,
    /// The keys of the sessions, by their numbers.
    keys: BTreeMap<u64, u32>,
    /// Sessions whose programs are gone, and whose objects are not all freed.
    dead: Vec<Session>,
    crowding: Crowding,
    ctx: SlotCtx,
}

impl EventLoop {
    pub(crate) fn new(
        now: Instant,
        link: Link<ToBroker, ToSlot>,
        allotment: Allotment,
        devices: Vec<SlotDevice>,
        history_file: Option<File>,
    ) -> io::Result<EventLoop> {
        let mut event_loop = EventLoop {
            poll: LentPoll::new()?,
            pollers: Pollers::new(now),
            ports_are_watched: true,
            failed: None,
            alarm: Alarm::new()?,
            // What came before it was watched.
            ready: vec![Token::Link],
            link,
            sessions: Slab::default(),
            awake: Awake::default(),
            keys: BTreeMap::new(),
            dead: Vec::new(),
            crowding: Crowding::new(now),
            ctx: SlotCtx {
                allotment,
                devices,
                programs: BTreeMap::new(),
                taps: Vec::new(),
                now,
                counters: DaemonCounters::default(),
                history_writer: HistoryWriter::new(now, history_file),
                log_limit: LogLimit::default(),
                to_broker: Vec::new(),
                closer: Closer::new()?,
            },
        };
        event_loop.guard_addresses();
        event_loop.register(&event_loop.link, Token::Link, Interest::READABLE)?;
        event_loop.register(&event_loop.alarm, Token::Alarm, Interest::READABLE)?;
        event_loop.watch_ports()?;
        Ok(event_loop)
    }

    fn watch_ports(&self) -> io::Result<()> {
        for (device, entry) in self.ctx.devices.iter().enumerate() {
            if let Some(fd) = entry.nic.port_fd() {
                self.register(fd, Token::Port { device }, Interest::READABLE)?;
            }
        }
        Ok(())
    }

    /// Takes note of what has become ready.
    fn note_ready(&mut self, tokens: impl Iterator<Item = Token>) {
        for token in tokens {
            if !self.ready.contains(&token) {
                self.ready.push(token);
            }
        }
    }

    /// Has all ports looked at in the next turn.
    fn note_ports_ready(&mut self) {
        let ports = (0..self.ctx.devices.len()).map(|device| Token::Port { device });
        self.note_ready(ports);
    }

    /// Tells the sessions that the slot is about to sleep; `false` if it must not.
    fn fall_asleep(&self) -> bool {
        self.awake.fall_asleep(|key| self.sessions.get(key))
    }

    /// Tells the sessions that the slot is awake.
    fn wake_up(&self) {
        self.awake.wake_up(|key| self.sessions.get(key));
    }

    fn take_doorbells(&mut self, now: Instant) -> bool {
        let find = |key| self.sessions.get(key);
        self.awake.look(now, find, |session| {
            let mut rang = false;
            session.take_doorbells(|device, qpn| {
                self.ctx.devices[device].nic.ring_doorbell(qpn);
                rang = true;
            });
            rang
        })
    }

    fn guard_addresses(&mut self) {
        guard_addresses(self.ctx.devices.iter_mut().map(|device| &mut device.nic));
    }

    /// Asks to be told when a descriptor becomes ready.
    fn register(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        register(self.poll.registry(), fd, token, interest)
    }

    /// Stops watching a descriptor. It does not matter if it was not registered.
    fn deregister(&self, fd: impl AsFd) {
        deregister(self.poll.registry(), fd);
    }

    /// Writes what happened to QPs, before the slot ends.
    pub(crate) fn finish(&mut self) {
        history_file::finish(&mut self.ctx);
    }

    /// What needs no descriptor to be ready.
    fn turn(&mut self, now: Instant) -> Result<bool, SlotError> {
        let mut worked = self.take_doorbells(now);
        self.note_undone(now, worked);
        // Before the devices have their turn: peers are to be told of connections that end.
        if let Some(session) = self.dead.last_mut() {
            session.free_some(&mut self.ctx, FREES_PER_TURN);
        }
        if let Some(session) = self.dead.last()
            && !session.is_ending()
        {
            self.ctx.programs.remove(&session.id());
            taps::forget(&mut self.ctx, session.id());
            self.ctx.to_broker.push(ToBroker::Freed { session: session.id().0 });
            self.dead.pop();
        }
        for (index, device) in self.ctx.devices.iter_mut().enumerate() {
            worked |= device.nic.handle_timers(now).map_err(SlotError::Port)?;
            device.tell_broker(index, &mut self.ctx.to_broker);
            worked |= device.nic.transmit(now).map_err(SlotError::Port)?;
        }
        log::qps_that_failed(&mut self.ctx);
        self.watch_full_channels();
        Ok(worked)
    }

    /// Sees to a descriptor that is ready.
    fn serve(&mut self, now: Instant, token: Token) -> Result<Progress, SlotError> {
        match token {
            Token::Alarm => Ok(NOTHING),
            Token::Ring { key } => {
                if let Some(session) = self.sessions.get(key) {
                    self.awake.wake(now, key, session);
                }
                Ok(NOTHING)
            }
            Token::Link => self.listen_to_broker(now),
            Token::Port { device } => {
                let nic = &mut self.ctx.devices[device].nic;
                let sent = nic.is_blocked() && nic.send(now).map_err(SlotError::Port)?;
                // An error of the socket is read by receiving.
                let received = nic.receive(now).map_err(SlotError::Port)?;
                Ok(Progress { worked: received || sent, more: received })
            }
            Token::Session { key } => self.answer(now, key),
            Token::Channel { device, channel } => {
                let registry = self.poll.registry();
                let nic = &mut self.ctx.devices[device].nic;
                nic.flush_channel(channel, |fd| deregister(registry, fd));
                Ok(NOTHING)
            }
        }
    }

    /// Takes in a few messages of the broker.
    fn listen_to_broker(&mut self, now: Instant) -> Result<Progress, SlotError> {
        for heard in 0..MESSAGES_PER_TURN {
            let Some((message, fds)) = self.link.recv().map_err(SlotError::Link)? else {
                return Ok(Progress { worked: heard > 0, more: false });
            };
            match message {
                // It came first, and was seen to.
                ToSlot::Start(_) | ToSlot::Open(_) => {}
                ToSlot::AddAddress { device, addr } => {
                    if let Some(device) = self.ctx.devices.get_mut(device) {
                        let adopted = device.nic.adopt(AddressSockets { addr, fds });
                        // A program that asked for a group is told by the answer.
                        if !addr.is_multicast() {
                            adopted?;
                        }
                    }
                }
                ToSlot::RemoveAddress { device, addr } => {
                    if let Some(device) = self.ctx.devices.get_mut(device) {
                        device.nic.remove_address(addr);
                    }
                }
                ToSlot::Device { device, state, events } => {
                    if let Some(device) = self.ctx.devices.get_mut(device) {
                        device.follow(now, state, events).map_err(SlotError::Port)?;
                    }
                    self.guard_addresses();
                }
                ToSlot::Session { number, uid, pid } => self.begin_session(number, uid, pid, fds),
                ToSlot::EndSession { session } => {
                    if let Some(&key) = self.keys.get(&session) {
                        self.end_session(key);
                    }
                }
                ToSlot::Answer { session, answer } => {
                    if let Some(&key) = self.keys.get(&session) {
                        self.pass_on(key, answer, fds);
                    }
                }
                ToSlot::CmEvents { session, channel, waiting } => {
                    let session = self.keys.get(&session).and_then(|&key| self.sessions.get(key));
                    if let Some(session) = session {
                        session.show_cm_events(channel, waiting);
                    }
                }
                ToSlot::AreYouThere => self.ctx.to_broker.push(ToBroker::Here),
                ToSlot::Tap { number, device, viewer, spec } => {
                    if let Some(pipe) = fds.into_iter().next() {
                        taps::begin(&mut self.ctx, (number, device, viewer), spec, pipe);
                    }
                }
                ToSlot::EndTap { number } => taps::end(&mut self.ctx, number),
                ToSlot::Question { number, device, viewer, subject } => {
                    if let Some(found) = questions::answer(&mut self.ctx, device, viewer, subject) {
                        self.ctx.to_broker.push(ToBroker::Found { number, found });
                    }
                }
            }
        }
        Ok(Progress { worked: true, more: true })
    }

    /// Tells the broker what there is to tell.
    fn tell_broker(&mut self, now: Instant) -> Result<(), LinkError> {
        for message in self.ctx.to_broker.drain(..) {
            self.link.send(now, message, Vec::new())?;
        }
        // SLOT-122: what waited may have room now, and nothing else sends it.
        self.link.flush(now)?;
        self.link.watch_for_room(self.poll.registry(), Token::Link.to_mio())
    }

    /// A program has connected.
    fn begin_session(&mut self, number: u64, uid: u32, pid: u32, mut fds: Vec<OwnedFd>) {
        let session = fds.pop().map(|socket| Session::new(socket, OwnerId(number), uid, pid));
        let Some(key) = session.and_then(|session| self.sessions.insert(session)) else {
            // This process has too many descriptors; the program sees that it is turned away.
            self.ctx.counters.sockets_failed += 1;
            let session = number;
            self.ctx.to_broker.extend([ToBroker::Gone { session }, ToBroker::Freed { session }]);
            return;
        };
        self.keys.insert(number, key);
        if let Some(session) = self.sessions.get(key)
            && self.register(session, Token::Session { key }, Interest::READABLE).is_err()
        {
            self.ctx.counters.sockets_failed += 1;
            self.end_session(key);
        }
    }

    /// Gives a session the broker's answer, and goes on with what it asks next.
    fn pass_on(&mut self, key: u32, answer: Result<Reply, ControlError>, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let goes_on = session.answered(answer, fds).is_none_or(|answer| self.reply(key, answer));
        if goes_on && !self.ready.contains(&Token::Session { key }) {
            self.ready.push(Token::Session { key });
        }
    }

    /// Has the event channels watched that have become full. The session of one for which the
    /// system refuses that ends: it would wait for its events for ever.
    fn watch_full_channels(&mut self) {
        for device in 0..self.ctx.devices.len() {
            let registry = self.poll.registry();
            let watch = |channel, fd: BorrowedFd<'_>| {
                register(registry, fd, Token::Channel { device, channel }, Interest::WRITABLE)
            };
            for channel in self.ctx.devices[device].nic.watch_full_channels(watch) {
                self.ctx.counters.event_pipes_failed += 1;
                let is_owner = |session: &Session| session.has_channel(device, channel);
                let owner = self.sessions.iter().find(|(_, session)| is_owner(session));
                if let Some((key, _)) = owner {
                    self.end_session(key);
                }
            }
        }
    }

    /// Answers a few requests of a session.
    fn answer(&mut self, now: Instant, key: u32) -> Result<Progress, SlotError> {
        let ended = Ok(Progress { worked: true, more: false });
        let crowded = self.is_crowded();
        for served in 0..REQUESTS_PER_TURN {
            // SHARE-012
            if !self.ctx.closer.has_room() {
                return Ok(Progress { worked: served > 0, more: true });
            }
            let Some(session) = self.sessions.get_mut(key) else { return ended };
            // SLOT-004
            if session.has_asked() {
                return ended;
            }
            if session.is_ending() {
                session.free_some(&mut self.ctx, FREES_PER_TURN);
                let is_over = !session.is_ending();
                if is_over && !self.reply(key, Ok(Reply::Done.into())) {
                    return ended;
                }
                return Ok(Progress { worked: true, more: true });
            }
            // SHARE-006
            if session.reclaim_rings() {
                return Ok(Progress { worked: true, more: true });
            }
            let was_open = session.wake_fd().is_some();
            let answer = match session.receive() {
                Ok((request, fds)) => {
                    // CLIENT-014
                    let posted = post(session, &mut self.ctx.devices, now);
                    let all_are_taken = posted.map_err(SlotError::Port)?;
                    if !all_are_taken || session.free_retired_rings() {
                        session.hold_request(request, fds);
                        return Ok(Progress { worked: true, more: true });
                    }
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
                Some(fd) => {
                    session.set_crowded(crowded);
                    self.awake.wake(now, key, session);
                    register(self.poll.registry(), fd, Token::Ring { key }, Interest::READABLE)
                }
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
            Ok(Answer::WhenFreed | Answer::Brokers) => return true,
            Ok(Answer::Reply { reply, fds }) => (reply, fds),
            Err(error) => (Reply::Error(error), Vec::new()),
        };
        self.ctx.counters.requests += 1;
        let session = self.sessions.get_mut(key);
        if let Reply::Error(error) = &reply {
            self.ctx.counters.requests_refused += 1;
            if let Some(session) = &session {
                log::refused(&mut self.ctx, session, error);
            }
        }
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
        self.keys.remove(&session.id().0);
        // The program may keep its end of the eventfd, and with it the registration.
        if let Some(fd) = session.wake_fd() {
            self.deregister(fd);
        }
        self.deregister(&session);
        self.ctx.to_broker.push(ToBroker::Gone { session: session.id().0 });
        // HOST-012
        session.begin_teardown();
        self.dead.push(session);
    }

    /// Whether threads that poll had better sleep. Not those that take turns.
    fn is_crowded(&self) -> bool {
        // CLIENT-020
        self.ports_are_watched && self.crowding.is_crowded()
    }

    fn tell_whether_crowded(&self) {
        let crowded = self.is_crowded();
        self.sessions.iter().for_each(|(_, session)| session.set_crowded(crowded));
    }

    /// Whether there is more to do right away.
    fn has_more(&self) -> bool {
        !self.dead.is_empty() || !self.ready.is_empty()
    }

    /// Whether there is something to be sent.
    fn is_due(&self) -> bool {
        self.ctx.devices.iter().any(|device| device.nic.is_due())
    }

    /// When there is something to do although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let devices = self.ctx.devices.iter().filter_map(|device| device.nic.deadline());
        devices.chain(self.ctx.history_writer.deadline()).chain(self.crowding.wake_deadline()).min()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::SlotBeginning;
    use crate::numbering::Numbering;
    use crate::serve;
    use std::time::Duration;
    use urxe_engine::Tuning;
    use urxe_types::SlotCount;

    /// SLOT-122: the slot has more to say than its end of the link has room for, and is asked
    /// nothing more when the broker begins to listen.
    #[test]
    fn messages_without_room_are_told_when_there_is_room() {
        const QUESTIONS: usize = 5_000;
        let (mut broker, socket) = Link::<ToSlot, ToBroker>::pair().unwrap();
        let slot = std::thread::spawn(|| serve(socket));
        let start = SlotBeginning {
            slot: 1,
            slots: SlotCount::MAX.get(),
            devices: 0,
            tuning: Tuning::default(),
            numbering: Numbering { first: 0, step: 1 },
            max_mapped_mrs: 0,
        };
        let now = Instant::now();
        broker.send(now, ToSlot::Start(start), Vec::new()).unwrap();
        for _ in 0..QUESTIONS {
            broker.send(now, ToSlot::AreYouThere, Vec::new()).unwrap();
        }
        while broker.deadline().is_some() {
            broker.flush(now).unwrap();
            std::thread::yield_now();
        }
        let mut answers = 0;
        while answers < QUESTIONS {
            assert!(now.elapsed() < Duration::from_secs(60), "{answers} answers");
            match broker.recv().unwrap() {
                Some((ToBroker::Here, _)) => answers += 1,
                Some((other, _)) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
        drop(broker);
        slot.join().unwrap().unwrap();
    }
}
