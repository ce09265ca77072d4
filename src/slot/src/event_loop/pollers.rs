//! Threads of the program that take turns of its own slot while they poll.
//!
//! A thread that polls and finds nothing looks whether anything has come, handles it, and sends
//! what was posted, itself: no other thread has to be woken for that, nor the processor to be given
//! away. The slot's own thread sleeps meanwhile, and looks now and then whether that goes on; as
//! soon as it does not, it serves as ever. Mostly it looks without taking the loop from those who
//! poll ([`Glance`]): to do all that a turn does, as often, kept one message in a hundred waiting.

use super::EventLoop;
use super::pause::Pause;
use crate::device::SlotDevice;
use crate::own::TurnResult;
use crate::{Runner, SlotError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Polls in vain between two looks from which on they are left what there is to do.
const DENSE: u32 = 64;

/// A turn that takes longer stands for a poll in each such time: who is busy in it cannot poll.
const POLL_INTERVAL: Duration =
    Duration::from_nanos(LOOK_EVERY_ASLEEP.as_nanos() as u64 / DENSE as u64);

/// How often the slot's thread looks how often the program polls: while it serves, and while it
/// leaves that to the program.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LOOK_EVERY_ASLEEP: Duration = Duration::from_millis(4);

/// How much sooner it may look, so that the system wakes it together with what else it does, such
/// as at the tick of its clock: to be interrupted once more takes as long as the look.
pub(super) const LOOK_SLACK: Duration = Duration::from_millis(1);
pub(super) const LOOK_AFTER_ASLEEP: Duration = LOOK_EVERY_ASLEEP.saturating_sub(LOOK_SLACK);

/// How long the slot's thread does nothing but glance at pollers, at most: what is left to it, such
/// as to write the histories of QPs, is not urgent.
const TURN_EVERY_ASLEEP: Duration = Duration::from_millis(32);

/// What has come while the program did not poll for so long has waited in vain.
const LATE: Duration = Duration::from_micros(250);

/// How much of the time may be lost so, in parts of it, beside a little: a thread that polls is
/// kept from the processor now and then, for a turn of another of 3 to 4 ms.
const LOST_PART: u32 = 16;
const LOST_LITTLE: Duration = Duration::from_millis(5);

/// How long the slot's thread serves after that: at first, and at most where it happens again and
/// again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// When the slot's thread finds something to be sent, and nobody has had a turn for so long, a
/// poller has held it for its next turn, and does not take it.
const HELD_LONG: Duration = Duration::from_millis(1);

/// How long pollers send at once after that: at first, and at most where it happens again and
/// again.
const AT_ONCE_MIN: Duration = Duration::from_millis(10);
const AT_ONCE_MAX: Duration = Duration::from_secs(1);

/// For how many times as long they have to hold answers well until it is not again and again.
const AT_ONCE_PART: u32 = 10;

/// What can be said without the lock.
#[derive(Debug, Default)]
pub(crate) struct HandOff {
    /// Polls in vain.
    polls: AtomicU32,
    /// Turns that were taken: not every thread that polls can take them.
    turns: AtomicU32,
    /// Who polls is to take turns.
    is_active: AtomicBool,
}

impl HandOff {
    /// The program has polled in vain. Returns whether it is to take a turn.
    pub(crate) fn note_empty_poll(&self) -> bool {
        self.note_polls(1);
        self.is_active()
    }

    fn note_polls(&self, count: u32) {
        // Of two at once one may be lost: it is a measure.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(count);
        self.polls.store(polls, Ordering::Relaxed);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Leaves nothing to those who poll until they have polled often again. Returns whether
    /// something was left to them.
    pub(crate) fn take_back(&self) -> bool {
        self.is_active.swap(false, Ordering::AcqRel)
    }
}

/// What the slot's thread sees of pollers while it leaves the loop to them.
pub(super) struct Glance {
    hand_off: Arc<HandOff>,
    /// What was seen last, and when.
    polls: u32,
    turns: u32,
    at: Instant,
    /// When there has to be more than a glance.
    until: Instant,
}

impl Glance {
    /// Whether they have gone on polling and taking turns since the last time, so that there need
    /// be no more than this.
    pub(super) fn is_enough(&mut self, now: Instant) -> bool {
        let polls = self.hand_off.polls.load(Ordering::Relaxed);
        let turns = self.hand_off.turns.load(Ordering::Relaxed);
        let go_on = polls.wrapping_sub(self.polls) >= DENSE && turns != self.turns;
        if !go_on || now >= self.until || !self.hand_off.is_active() {
            return false;
        }
        (self.polls, self.turns, self.at) = (polls, turns, now);
        true
    }
}

/// Whether the slot is left to those who poll.
pub(crate) struct Pollers {
    hand_off: Arc<HandOff>,
    /// Polls at the last look, and when that was.
    seen: u32,
    looked_at: Instant,
    began: Instant,
    /// When the last turn ended.
    last_turn: Instant,
    /// Time in which something may have waited, since it is left to them.
    lost: Duration,
    /// In which nothing is left to them.
    pause: Pause,
    /// In which answers are not held for the next turn.
    at_once: Pause,
    /// Nothing is left to them any more.
    have_ended: bool,
}

impl Pollers {
    pub(crate) fn new(now: Instant) -> Pollers {
        Pollers {
            hand_off: Arc::default(),
            seen: 0,
            looked_at: now,
            began: now,
            last_turn: now,
            lost: Duration::ZERO,
            pause: Pause::over(now),
            at_once: Pause::over(now),
            have_ended: false,
        }
    }

    pub(crate) fn hand_off(&self) -> &Arc<HandOff> {
        &self.hand_off
    }

    /// Whether it is time to decide anew.
    fn is_due(&self, now: Instant) -> bool {
        let interval = if self.hand_off.is_active() { LOOK_AFTER_ASLEEP } else { LOOK_EVERY };
        now.duration_since(self.looked_at) >= interval
    }

    /// Decides anew, if it is time to.
    pub(crate) fn look(&mut self, now: Instant) {
        if !self.is_due(now) {
            return;
        }
        let was_active = self.hand_off.is_active();
        let polls = self.hand_off.polls.load(Ordering::Relaxed);
        let is_dense = polls.wrapping_sub(self.seen) >= DENSE;
        (self.seen, self.looked_at) = (polls, now);
        let is_active = is_dense && self.pause.is_over(now) && !self.have_ended;
        if is_active && !was_active {
            (self.began, self.last_turn, self.lost) = (now, now, Duration::ZERO);
        }
        self.hand_off.is_active.store(is_active, Ordering::Release);
    }

    /// When to look again, while the slot is left to them.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.hand_off.is_active().then(|| self.looked_at + LOOK_EVERY_ASLEEP)
    }

    /// Begins to do no more than glance at them.
    pub(super) fn glance(&self, now: Instant) -> Glance {
        Glance {
            hand_off: Arc::clone(&self.hand_off),
            polls: self.seen,
            turns: self.hand_off.turns.load(Ordering::Relaxed),
            at: self.looked_at,
            until: now + TURN_EVERY_ASLEEP,
        }
    }

    /// What was seen so is known.
    pub(super) fn note_glance(&mut self, glance: &Glance) {
        (self.seen, self.looked_at) = (glance.polls, glance.at);
    }

    /// One of them has had a turn, and has found that something had come, or was posted, or not.
    pub(crate) fn on_turn(&mut self, began: Instant, ended: Instant, came: bool) {
        // Only who has the loop counts them.
        let turns = self.hand_off.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.hand_off.turns.store(turns, Ordering::Relaxed);
        let since = began.saturating_duration_since(std::mem::replace(&mut self.last_turn, ended));
        let took = ended.duration_since(began);
        if took >= POLL_INTERVAL {
            self.hand_off.note_polls((took.as_nanos() / POLL_INTERVAL.as_nanos()) as u32);
        }
        if came && since > LATE {
            self.on_wait(began, since);
        }
    }

    /// Whether what came is answered with the next turn, rather than at once.
    pub(crate) fn hold_answers(&self, now: Instant) -> bool {
        self.at_once.is_over(now)
    }

    /// The slot's thread has found something to be sent.
    pub(crate) fn on_due(&mut self, now: Instant) {
        if now.duration_since(self.last_turn) < HELD_LONG {
            return;
        }
        // What has waited did so because of us, and not because they poll too seldom.
        self.last_turn = now;
        let held_for = self.at_once.over_for(now);
        self.at_once.begin(now, (held_for, AT_ONCE_PART), [AT_ONCE_MIN, AT_ONCE_MAX]);
    }

    /// The slot's thread has found that something had come, or was posted, which they did not see.
    pub(crate) fn on_missed(&mut self, now: Instant) {
        self.on_wait(now, now.duration_since(self.last_turn));
    }

    /// Something has waited for so long at most.
    fn on_wait(&mut self, now: Instant, waited: Duration) {
        self.lost += waited;
        let lasted = now.duration_since(self.began);
        if self.lost <= LOST_LITTLE.max(lasted / LOST_PART) {
            return;
        }
        self.pause.begin(now, (lasted, LOST_PART), [PAUSE_MIN, PAUSE_MAX]);
        self.hand_off.take_back();
    }
}

impl EventLoop {
    /// Decides whether threads of the program that poll are to do what there is to do, and until
    /// when the slot's thread need not look.
    pub(super) fn decide_hand_off(&mut self, now: Instant) -> Result<Option<Instant>, SlotError> {
        if self.ctx.allotment.runner != Runner::Program {
            return Ok(None);
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut is_blocked = false;
        for device in &mut self.ctx.devices {
            if !self.ports_are_watched {
                device.nic.after_pollers(now).map_err(SlotError::Port)?;
            }
            is_blocked |= device.nic.is_blocked();
        }
        // Who waits for room in a socket is told by its port.
        let is_to_decide = self.pollers.hand_off().is_active() || self.pollers.is_due(now);
        if is_blocked || (is_to_decide && !self.serves_pollers()) {
            self.pollers.hand_off().take_back();
        } else {
            self.pollers.look(now);
        }
        let next_look = self.pollers.next_look();
        if next_look.is_none() == self.ports_are_watched {
            return Ok(next_look);
        }
        self.ports_are_watched = next_look.is_none();
        self.tell_whether_crowded();
        if next_look.is_some() {
            let ports = self.ctx.devices.iter().filter_map(|device| device.nic.port_fd());
            ports.for_each(|fd| self.deregister(fd));
        } else {
            let mut came = false;
            // CONG-029: what was sent in the turn of `now` may have been answered.
            let now = Instant::now();
            for device in &mut self.ctx.devices {
                came |= device.nic.receive(now).map_err(SlotError::Port)?;
            }
            if came {
                self.pollers.on_missed(now);
            }
            // What has come before is told of now.
            self.watch_ports().map_err(SlotError::System)?;
        }
        Ok(next_look)
    }

    /// A turn of a thread of the program that polls: what there is to do for its queues. Returns
    /// whether anything was done, and whether the slot's thread is to be woken.
    pub(crate) fn poller_turn(&mut self, now: Instant) -> Result<TurnResult, SlotError> {
        // It may have been taken back before the lock was had.
        if !self.pollers.hand_off().is_active() {
            return Ok(TurnResult::default());
        }
        let rang = self.take_doorbells(now);
        let mut turn = TurnResult { worked: rang, wake: false };
        let (mut received, hold_answers) = (false, self.pollers.hold_answers(now));
        let used = |device: &&mut SlotDevice| device.nic.object_counts().qps > 0;
        for device in self.ctx.devices.iter_mut().filter(used) {
            let done = device.nic.poller_turn(now, hold_answers).map_err(SlotError::Port)?;
            received |= done.received;
            turn.worked |= done.worked;
            turn.wake |= done.left_over;
        }
        // Those that find nothing take no time to speak of.
        let ended = if turn.worked { Instant::now() } else { now };
        self.pollers.on_turn(now, ended, received || rang);
        turn.wake |= !self.pollers.hand_off().is_active();
        Ok(turn)
    }

    /// The slot's thread takes note of what pollers have left undone.
    pub(super) fn note_undone(&mut self, now: Instant, rang: bool) {
        if self.ports_are_watched {
            return;
        }
        if self.is_due() {
            self.pollers.on_due(now);
        }
        if rang {
            self.pollers.on_missed(now);
        }
    }

    /// Whether threads of the program can do what there is to do: with the descriptors that they
    /// have.
    fn serves_pollers(&self) -> bool {
        let mut used = self.ctx.devices.iter().filter(|device| device.nic.object_counts().qps > 0);
        let mut sessions = self.sessions.iter();
        used.all(|device| device.nic.serves_pollers())
            && sessions.all(|(_, session)| session.memory_needs_no_descriptor())
    }

    /// Has the slot's thread end the slot, for a poller's turn has failed.
    pub(crate) fn fail(&mut self, error: SlotError) -> TurnResult {
        self.pollers.hand_off().take_back();
        self.failed = Some(error);
        TurnResult { worked: false, wake: true }
    }

    /// What threads that poll know of it.
    pub(crate) fn hand_off(&self) -> Arc<HandOff> {
        Arc::clone(self.pollers.hand_off())
    }

    /// Leaves nothing to threads that poll, from now on.
    pub(crate) fn end_hand_off(&mut self) {
        self.pollers.have_ended = true;
        self.pollers.hand_off().take_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has a program poll so often, and looks when it is time to. Returns whether it is left to it.
    fn polled(pollers: &mut Pollers, now: &mut Instant, polls: u32) -> bool {
        (0..polls).for_each(|_| {
            pollers.hand_off.note_empty_poll();
        });
        *now += LOOK_EVERY_ASLEEP;
        pollers.look(*now);
        pollers.hand_off.is_active()
    }

    #[test]
    fn the_slot_is_left_to_who_polls_often_and_for_as_long() {
        let mut now = Instant::now();
        let mut pollers = Pollers::new(now);
        assert!(!polled(&mut pollers, &mut now, DENSE - 1), "seldom");
        assert_eq!(pollers.next_look(), None);
        assert!(polled(&mut pollers, &mut now, DENSE));
        assert_eq!(pollers.next_look(), Some(now + LOOK_EVERY_ASLEEP));
        assert!(polled(&mut pollers, &mut now, DENSE));
        assert!(!polled(&mut pollers, &mut now, 0), "it polls no longer");
        assert!(polled(&mut pollers, &mut now, DENSE));
        assert!(
            pollers.hand_off.take_back() && !pollers.hand_off.note_empty_poll(),
            "it is about to wait otherwise"
        );
    }

    #[test]
    fn a_glance_is_enough_while_polls_and_turns_go_on_but_not_for_ever() {
        let mut now = Instant::now();
        let mut pollers = Pollers::new(now);
        assert!(polled(&mut pollers, &mut now, DENSE));
        let mut glance = pollers.glance(now);
        let polls_and_turns = |pollers: &mut Pollers, now, polls: u32, turns: u32| {
            pollers.hand_off.note_polls(polls);
            (0..turns).for_each(|_| pollers.on_turn(now, now, false));
        };
        let begun = now;
        while {
            polls_and_turns(&mut pollers, now, DENSE, 1);
            now += LOOK_EVERY_ASLEEP;
            glance.is_enough(now)
        } {}
        assert_eq!(now - begun, TURN_EVERY_ASLEEP);

        for (polls, turns, why) in [(DENSE - 1, 1, "they poll seldom"), (DENSE, 0, "in vain")] {
            let mut pollers = Pollers::new(now);
            assert!(polled(&mut pollers, &mut now, DENSE));
            let mut glance = pollers.glance(now);
            polls_and_turns(&mut pollers, now, DENSE, 1);
            now += LOOK_EVERY_ASLEEP;
            assert!(glance.is_enough(now));
            polls_and_turns(&mut pollers, now, polls, turns);
            now += LOOK_EVERY_ASLEEP;
            assert!(!glance.is_enough(now), "{why}");
            // The look that follows knows what the glance has seen.
            pollers.note_glance(&glance);
            pollers.look(now);
            assert_eq!(pollers.hand_off.is_active(), polls == DENSE);
        }
    }

    #[test]
    fn a_turn_that_takes_long_is_no_wait_and_counts_as_many_polls() {
        let mut now = Instant::now();
        let mut pollers = Pollers::new(now);
        assert!(polled(&mut pollers, &mut now, DENSE));
        for _ in 0..1000 {
            // Nearly all of the time passes within turns.
            let ended = now + LOOK_EVERY_ASLEEP;
            pollers.on_turn(now, ended, true);
            now = ended + LATE / 2;
            pollers.look(now);
            assert!(pollers.hand_off.is_active());
        }
        assert!(!polled(&mut pollers, &mut now, 0), "it polls no longer");
    }

    #[test]
    fn nothing_is_left_to_those_who_let_much_wait_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut pollers = Pollers::new(now);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let closed_at = now;
            while !polled(&mut pollers, &mut now, DENSE) {}
            pauses.push(now.duration_since(closed_at));
            // Something had come while it did other things.
            now += LOST_LITTLE + Duration::from_millis(1);
            pollers.on_turn(now, now, true);
            assert!(!pollers.hand_off.is_active());
        }
        assert!(pauses.is_sorted());
        assert!(pauses[1] >= PAUSE_MIN && pauses[1] < 2 * PAUSE_MIN, "{pauses:?}");
        assert!(pauses[9] >= PAUSE_MAX && pauses[9] < 2 * PAUSE_MAX, "{pauses:?}");
    }

    #[test]
    fn answers_that_nobody_takes_are_sent_at_once_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut pollers = Pollers::new(now);
        assert!(pollers.hold_answers(now));
        pollers.on_due(now);
        assert!(pollers.hold_answers(now), "somebody had a turn just now");
        let mut for_long = Vec::new();
        for _ in 0..10 {
            now += HELD_LONG;
            pollers.on_due(now);
            let begun = now;
            while !pollers.hold_answers(now) {
                now += AT_ONCE_MIN / 2;
                pollers.on_turn(now, now, false);
            }
            for_long.push(now - begun);
        }
        assert!(for_long.is_sorted());
        assert_eq!((for_long[0], for_long[9]), (AT_ONCE_MIN, AT_ONCE_MAX));
        // They were held well for long.
        now += AT_ONCE_MAX * (AT_ONCE_PART + 1);
        pollers.on_due(now);
        assert!(pollers.hold_answers(now + AT_ONCE_MIN));
    }

    #[test]
    fn to_be_kept_from_the_processor_now_and_then_changes_nothing() {
        let mut now = Instant::now();
        let mut pollers = Pollers::new(now);
        assert!(polled(&mut pollers, &mut now, DENSE));
        for number in 1..10_000 {
            // 3 ms of each 100, in which something comes, beside 1 ms each in which nothing does.
            let is_kept = number % 98 == 0;
            now += Duration::from_millis(if is_kept { 3 } else { 1 });
            pollers.on_turn(now, now, is_kept);
            assert!(pollers.hand_off.is_active(), "{number}");
        }
    }
}
