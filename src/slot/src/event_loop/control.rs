//! What is not the data path's: the broker's messages, requests of sessions, and what is freed of
//! those that have ended.
//!
//! However many sessions ask at a time, and whatever they ask for, packets and doorbells have their
//! turn in between; and a thread that would do nothing else for long rests as long as it took, or
//! longer if a program sends its next request before it has had the answer to the last one. So it
//! does not use up its share of the processor, and has it at once when a packet comes.

use super::{EventLoop, Progress, register};
use crate::SlotError;
use crate::device::post;
use crate::history_file;
use crate::limits::{
    CONTROL_TIME, FLOODED_REST, FREES_PER_TURN, MAX_REST, MESSAGES_PER_TURN, REQUESTS_PER_TURN,
};
use crate::link::{ToBroker, ToSlot};
use crate::log;
use crate::questions;
use crate::refusal::refuse;
use crate::resources::handle;
use crate::session::{Answer, Session};
use crate::taps;
use crate::token::Token;
use mio::Interest;
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;
use urxe_nic::OwnerId;
use urxe_port::AddressSockets;
use urxe_shm::control::channel::ChannelError;
use urxe_shm::control::{ControlError, Reply};

/// Sessions whose sockets have to be read, by their keys, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Askers {
    order: VecDeque<u32>,
    /// The same.
    keys: BTreeSet<u32>,
}

impl Askers {
    /// Takes note of one, unless it is known.
    pub(super) fn note(&mut self, key: u32) {
        if self.keys.insert(key) {
            self.order.push_back(key);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The one that has waited for longest, which waits no more.
    fn next(&mut self) -> Option<u32> {
        let key = self.order.pop_front()?;
        self.keys.remove(&key);
        Some(key)
    }
}

/// What there is to do of it, and when it goes on.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) askers: Askers,
    /// The broker may have said something.
    pub(super) link_is_ready: bool,
    /// Until then there is none.
    rests_until: Option<Instant>,
    /// In this turn a session had sent requests and not waited for the answers.
    is_flooded: bool,
}

impl Control {
    pub(super) fn new() -> Control {
        // What came before the link was watched.
        Control {
            askers: Askers::default(),
            link_is_ready: true,
            rests_until: None,
            is_flooded: false,
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// It had the time from then until now; there may be more left to do. Where nothing could be
    /// done, since as much is to be closed as can be, to look again at once would find the same.
    fn on_turn(&mut self, begun: Instant, now: Instant, worked: bool, is_left: bool) {
        let took = now.duration_since(begun);
        let rests = is_left && (took >= CONTROL_TIME || !worked);
        let is_flooded = std::mem::take(&mut self.is_flooded);
        let took = if is_flooded { took * FLOODED_REST } else { took };
        self.rests_until = rests.then(|| now + took.clamp(CONTROL_TIME, MAX_REST));
    }
}

/// What became of a session's next request.
enum Taken {
    /// It is answered, now or later.
    Done(Result<Answer, ControlError>),
    /// It waits for what was posted before it.
    Held,
    /// There is none.
    Nothing,
    /// The session has ended.
    Ended,
}

impl EventLoop {
    /// Does what there is to do, until it has taken its time. Returns whether there was something.
    pub(super) fn control(&mut self, now: Instant) -> Result<bool, SlotError> {
        if !self.has_control() || self.control.rests(now) {
            return Ok(false);
        }
        let begun = Instant::now();
        let has_time = || begun.elapsed() < CONTROL_TIME;
        let mut worked = false;
        // SLOT-010: each has its turn, the session first that has waited for longest.
        if self.control.link_is_ready {
            let Progress { worked: did, more } = self.listen_to_broker(now)?;
            worked |= did;
            self.control.link_is_ready = more;
        }
        worked |= self.ctx.close_refused();
        worked |= self.free_some();
        for _ in 0..self.control.askers.order.len() {
            let Some(key) = self.control.askers.next() else { break };
            let Progress { worked: did, more } = self.answer(now, key)?;
            worked |= did;
            if more {
                self.control.askers.note(key);
            }
            if !has_time() {
                break;
            }
        }
        let is_left = self.has_control();
        self.control.on_turn(begun, Instant::now(), worked, is_left);
        if worked && self.control.rests_until.is_some() {
            self.ctx.counters.control_rests += 1;
        }
        Ok(worked)
    }

    /// Whether there is something to do.
    fn has_control(&self) -> bool {
        let Control { askers, link_is_ready, .. } = &self.control;
        let is_idle = self.dead.is_empty() && askers.is_empty() && self.ctx.refused.is_empty();
        *link_is_ready || !is_idle
    }

    /// When there is something to do; `None` if there is nothing.
    pub(super) fn control_due(&self, now: Instant) -> Option<Instant> {
        self.has_control().then(|| self.control.rests_until.unwrap_or(now))
    }

    /// Takes in a few messages of the broker.
    fn listen_to_broker(&mut self, now: Instant) -> Result<Progress, SlotError> {
        for heard in 0..MESSAGES_PER_TURN {
            let received = self.link.recv().map_err(SlotError::Link)?;
            self.ctx.refused.append(&mut self.link.take_to_close());
            let Some((message, fds)) = received else {
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

    /// Frees some of what the session had that has ended last. Returns whether anything was done.
    fn free_some(&mut self) -> bool {
        // SHARE-120, SHARE-122
        if !self.ctx.may_let_go() {
            return false;
        }
        let Some(session) = self.dead.last_mut() else { return false };
        let is_ending = session.is_ending();
        session.free_some(&mut self.ctx, FREES_PER_TURN);
        if let Some(session) = self.dead.pop_if(|session| !session.is_ending()) {
            self.ctx.programs.remove(&session.id());
            taps::forget(&mut self.ctx, session.id());
            self.ctx.to_broker.push(ToBroker::Freed { session: session.id().0 });
            session.close(&mut self.ctx);
            return true;
        }
        is_ending
    }

    /// A program has connected.
    pub(super) fn begin_session(&mut self, number: u64, uid: u32, pid: u32, mut fds: Vec<OwnedFd>) {
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
    pub(super) fn pass_on(
        &mut self,
        key: u32,
        answer: Result<Reply, ControlError>,
        fds: Vec<OwnedFd>,
    ) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let goes_on = session.answered(answer, fds).is_none_or(|answer| self.reply(key, answer));
        if goes_on {
            self.control.askers.note(key);
        }
    }

    /// Answers a few requests of a session.
    fn answer(&mut self, now: Instant, key: u32) -> Result<Progress, SlotError> {
        let ended = Ok(Progress { worked: true, more: false });
        let crowded = self.is_crowded();
        for served in 0..REQUESTS_PER_TURN {
            // SHARE-012
            if !self.ctx.may_let_go() {
                return Ok(Progress { worked: served > 0, more: true });
            }
            let Some(session) = self.sessions.get_mut(key) else { return ended };
            // SLOT-004
            if session.has_asked() {
                return ended;
            }
            // SHARE-131
            if session.is_unmapping() {
                return Ok(Progress { worked: served > 0, more: true });
            }
            if session.is_ending() {
                session.free_some(&mut self.ctx, FREES_PER_TURN);
                if !session.is_ending() {
                    // COUNT-022
                    history_file::note_closed(&mut self.ctx);
                    // TAP-009
                    self.ctx.devices.iter_mut().for_each(|device| device.nic.flush_port());
                    if !self.reply(key, Ok(Reply::Done.into())) {
                        return ended;
                    }
                }
                return Ok(Progress { worked: true, more: true });
            }
            // SHARE-006
            if session.reclaim_rings() {
                return Ok(Progress { worked: true, more: true });
            }
            let was_open = session.wake_fd().is_some();
            let answer = match self.take_request(now, key)? {
                Taken::Done(answer) => answer,
                Taken::Held => return Ok(Progress { worked: true, more: true }),
                Taken::Nothing => return Ok(Progress { worked: served > 0, more: false }),
                Taken::Ended => return ended,
            };
            if !was_open && !self.watch_wake_fd(now, key, crowded) {
                return ended;
            }
            if !self.reply(key, answer) {
                return ended;
            }
        }
        // Whoever waits for an answer has nothing more.
        self.control.is_flooded = true;
        Ok(Progress { worked: true, more: true })
    }

    /// Takes the next request of a session, and does it, or refuses what is none.
    fn take_request(&mut self, now: Instant, key: u32) -> Result<Taken, SlotError> {
        let Some(session) = self.sessions.get_mut(key) else { return Ok(Taken::Ended) };
        let received = session.receive();
        // SHARE-130
        self.ctx.refused.append(&mut session.take_refused());
        let error = match received {
            Ok((request, fds)) => {
                // CLIENT-014
                let posted = post(session, &mut self.ctx.devices, now);
                let all_are_taken = posted.map_err(SlotError::Port)?;
                if !all_are_taken || session.free_retired_rings() {
                    session.hold_request(request, fds);
                    return Ok(Taken::Held);
                }
                return Ok(Taken::Done(handle(session, &mut self.ctx, request, fds)));
            }
            Err(error) => error,
        };
        let counter = match &error {
            ChannelError::WouldBlock => return Ok(Taken::Nothing),
            ChannelError::Closed => {
                self.end_session(key);
                return Ok(Taken::Ended);
            }
            ChannelError::Os(_) => {
                self.ctx.counters.sockets_failed += 1;
                self.end_session(key);
                return Ok(Taken::Ended);
            }
            ChannelError::Truncated => &mut self.ctx.counters.requests_oversized,
            ChannelError::FdsLost | ChannelError::TooManyFds { .. } => {
                &mut self.ctx.counters.requests_with_lost_descriptors
            }
            // HOST-010
            _ => &mut self.ctx.counters.requests_malformed,
        };
        *counter += 1;
        Ok(Taken::Done(Err(refuse(Errno::PROTO, error.to_string()))))
    }

    /// Has a session's program wake this thread from now on, if the session has begun. Returns
    /// whether it goes on.
    fn watch_wake_fd(&mut self, now: Instant, key: u32, crowded: bool) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let Some(fd) = session.wake_fd() else { return true };
        session.set_crowded(crowded);
        self.awake.wake(now, key, session);
        // Every write wakes us once, and need not be read.
        let registered =
            register(self.poll.registry(), fd, Token::Ring { key }, Interest::READABLE);
        if registered.is_err() {
            self.ctx.counters.sockets_failed += 1;
            self.end_session(key);
        }
        registered.is_ok()
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
    pub(super) fn end_session(&mut self, key: u32) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// SLOT-010
    #[test]
    fn control_that_took_long_rests_as_long() {
        let begun = Instant::now();
        let mut control = Control::new();
        for (took, worked, is_left, rest) in [
            (CONTROL_TIME / 2, true, true, Duration::ZERO),
            (CONTROL_TIME, true, true, CONTROL_TIME),
            // A single request that takes long keeps the next one of its program not waiting.
            (4 * CONTROL_TIME, true, false, Duration::ZERO),
            (4 * CONTROL_TIME, true, true, 4 * CONTROL_TIME),
            (2 * MAX_REST, true, true, MAX_REST),
            // What waits for the closer is not looked at all the time.
            (Duration::ZERO, false, true, CONTROL_TIME),
            (Duration::ZERO, false, false, Duration::ZERO),
        ] {
            let now = begun + took;
            control.on_turn(begun, now, worked, is_left);
            assert!(!control.rests(now + rest), "{took:?}");
            if rest > Duration::ZERO {
                assert!(control.rests(now + rest - Duration::from_nanos(1)), "{took:?}");
            }
        }
        // SLOT-010: once, after requests of who waits for no answer.
        for times in [FLOODED_REST, 1] {
            control.is_flooded = times > 1;
            let now = begun + CONTROL_TIME;
            control.on_turn(begun, now, true, true);
            let over = now + CONTROL_TIME * times;
            assert!(control.rests(over - Duration::from_nanos(1)) && !control.rests(over));
        }
    }

    /// SLOT-010
    #[test]
    fn whoever_asks_again_comes_after_all_who_wait() {
        let mut askers = Askers::default();
        [5, 3, 5, 9].into_iter().for_each(|key| askers.note(key));
        let mut seen = Vec::new();
        for _ in 0..6 {
            let key = askers.next().unwrap();
            seen.push(key);
            askers.note(key);
            // It is there only once, however often it is noted.
            askers.note(key);
        }
        assert_eq!(seen, [5, 3, 9, 5, 3, 9]);
        assert!(!askers.is_empty());
        (0..3).for_each(|_| assert!(askers.next().is_some()));
        assert!(askers.is_empty() && askers.next().is_none());
    }
}
