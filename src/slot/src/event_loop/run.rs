//! The course of a slot's thread: turns, and what it does in between.

use super::pollers::{LOOK_AFTER_ASLEEP, LOOK_SLACK};
use super::yielding::Yielding;
use super::{EventLoop, done_by};
use crate::SlotError;
use crate::alarm;
use crate::crowding::Sleepers;
use crate::history_file;
use crate::limits::{ASK_EVERY, EVENTS_PER_TURN, LONG_TURN, SHORTEST_SLEEP, SPIN};
use crate::link::LinkError;
use crate::token::Token;
use mio::{Events, Poll, Registry};
use parking_lot::MutexGuard;
use std::io;
use std::ops::DerefMut;
use std::time::{Duration, Instant};

/// An event loop in the hands of the slot's thread.
pub(crate) trait Held: DerefMut<Target = EventLoop> {
    /// Lets others have it while `wait` waits.
    fn released<T>(&mut self, wait: impl FnOnce() -> T) -> T;
}

/// Nobody else wants it.
impl Held for &mut EventLoop {
    fn released<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        wait()
    }
}

/// What tells of descriptors. While the slot's thread waits for it, it is not in the loop, which
/// others may have meanwhile: they register nothing.
pub(super) struct LentPoll(Option<Poll>);

impl LentPoll {
    pub(super) fn new() -> io::Result<LentPoll> {
        Ok(LentPoll(Some(Poll::new()?)))
    }

    /// Where descriptors are registered. Only for the slot's thread.
    pub(super) fn registry(&self) -> &Registry {
        self.0.as_ref().expect("the slot's thread does not wait").registry()
    }
}

/// Serves until the broker lets go of the link. An error means that a port or the loop itself is of
/// no use any more.
pub(crate) fn run(mut slot: impl Held) -> Result<(), SlotError> {
    let mut events = Events::with_capacity(EVENTS_PER_TURN);
    let mut last_work = Instant::now();
    let mut now = last_work;
    let mut asked_at = None;
    let (mut yielding, mut yielded, mut worked) = (Yielding::new(), false, false);
    loop {
        // OWN-030
        let handed_off = slot.decide_hand_off(now)?;
        // Where others do not yield, to keep looking keeps the processor from those whose work
        // we wait for.
        let may_spin = yielding.is_due(now) && handed_off.is_none();
        let spin = if may_spin { SPIN } else { Duration::ZERO };
        let more = slot.has_more(now) || (handed_off.is_none() && slot.is_due());
        let has_worked = now.duration_since(last_work) < spin;
        let looking = has_worked || more;
        let deadline = match looking {
            true => None,
            // Pollers see to what is due, except for control.
            false => {
                let due = [handed_off.or_else(|| slot.deadline()), slot.control_due(now)];
                due.into_iter().flatten().min()
            }
        };
        // A train that is paced must not wait for a sleep that is longer than was asked for.
        let soon = deadline.is_some_and(|at| at < now + spin.min(SHORTEST_SLEEP));
        let spinning = looking || soon;
        let was_asked = asked_at.is_some_and(|at| now.duration_since(at) < ASK_EVERY);
        let slept_at = if has_worked && was_asked {
            events.clear();
            slot.note_ports_ready();
            None
        } else if spinning {
            asked_at = Some(now);
            wait(&mut slot, &mut events, Some(Duration::ZERO))?;
            None
        } else {
            Some(sleep(&mut slot, &mut events, deadline, handed_off.is_some())?)
        };
        slot.note_ready(events.iter().map(|event| Token::from_mio(event.token())));
        slot.note_waiting();
        let before = std::mem::replace(&mut now, Instant::now());
        slot.ctx.now = now;
        if std::mem::take(&mut yielded) {
            let is_slow = yielding.on_yield(now, now.duration_since(before));
            slot.ctx.counters.slow_yields += u64::from(is_slow);
        }
        if std::mem::take(&mut worked) {
            let turn = slept_at.unwrap_or(now).duration_since(before);
            slot.crowding.on_work(turn);
            // SHARE-134: nobody but the program itself waits where it is alone.
            if turn > LONG_TURN && slot.sessions.len() > 1 {
                slot.ctx.devices.iter_mut().for_each(|device| device.nic.on_long_turn(now));
            }
        }
        for token in std::mem::take(&mut slot.ready) {
            let served = slot.serve(now, token)?;
            worked |= served.worked;
            if served.more {
                slot.ready.push(token);
            }
        }
        worked |= match slot.control(now) {
            Err(SlotError::Link(LinkError::Closed)) => return Ok(()),
            worked => worked?,
        };
        worked |= slot.turn(now)?;
        history_file::turn(&mut slot.ctx, worked || handed_off.is_some());
        match slot.tell_broker(now) {
            Err(LinkError::Closed) => return Ok(()),
            told => told.map_err(SlotError::Link)?,
        }
        // CLIENT-020: after the turn, for whoever has woken us does not wait for it.
        let EventLoop { crowding, ctx, .. } = &mut *slot;
        if handed_off.is_none() && crowding.look(now, || done_by(&ctx.devices)) {
            slot.tell_whether_crowded();
        }
        let programs = slot.sessions.len();
        if let Some(sleepers) = slot.crowding.take_wake(now, programs) {
            slot.wake(sleepers);
        }
        if worked {
            last_work = now;
        } else if spinning && yielding.is_due(now) {
            slot.released(rustix::thread::sched_yield);
            yielded = true;
        }
    }
}

/// Sleeps until something happens or the deadline has come; not at all if a program has just rung.
/// Returns from when on.
fn sleep(
    slot: &mut impl Held,
    events: &mut Events,
    deadline: Option<Instant>,
    handed_off: bool,
) -> Result<Instant, SlotError> {
    if slot.crowding.is_crowded() {
        // CLIENT-021: what comes next may depend on them.
        slot.wake(Sleepers::OfPublished);
    }
    // Pollers look at the doorbells.
    let none_rang = handed_off || slot.fall_asleep();
    // The turn has taken its time.
    let now = Instant::now();
    let timeout = if none_rang && deadline.is_none_or(|at| at > now) {
        slot.ctx.counters.sleeps += 1;
        // OWN-034
        if handed_off && slot.control_due(now).is_none() {
            return wait_beside_pollers(slot, events, now).map(|()| now);
        }
        if let Some(deadline) = deadline {
            slot.alarm.set(now, deadline).map_err(SlotError::System)?;
        }
        None
    } else {
        Some(Duration::ZERO)
    };
    let waited = wait(slot, events, timeout);
    if !handed_off {
        slot.wake_up();
    }
    waited.map(|()| now)
}

/// Waits until a descriptor becomes ready, or pollers do not go on.
fn wait_beside_pollers(
    slot: &mut impl Held,
    events: &mut Events,
    now: Instant,
) -> Result<(), SlotError> {
    let mut glance = slot.pollers.glance(now);
    alarm::set_slack(LOOK_SLACK);
    let waited = wait_by(slot, events, |poll, events| {
        loop {
            poll.poll(events, Some(LOOK_AFTER_ASLEEP))?;
            if !events.is_empty() || !glance.is_enough(Instant::now()) {
                return Ok(());
            }
        }
    });
    alarm::set_slack(alarm::SLACK);
    slot.pollers.note_glance(&glance);
    waited
}

/// Collects the descriptors that have become ready, waiting for one if there is none.
fn wait(
    slot: &mut impl Held,
    events: &mut Events,
    timeout: Option<Duration>,
) -> Result<(), SlotError> {
    wait_by(slot, events, |poll, events| poll.poll(events, timeout))
}

/// The same by what waits without the loop.
fn wait_by(
    slot: &mut impl Held,
    events: &mut Events,
    wait: impl FnOnce(&mut Poll, &mut Events) -> io::Result<()>,
) -> Result<(), SlotError> {
    let mut poll = slot.poll.0.take().expect("only one thread waits");
    let waited = slot.released(|| wait(&mut poll, events));
    slot.poll.0 = Some(poll);
    match waited {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            events.clear();
            Ok(())
        }
        Err(error) => Err(SlotError::System(error)),
    }
}

/// The event loop of a slot that a program runs, which its other threads want as well. It is there
/// until the slot's thread has ended.
pub(crate) struct Locked<'a>(pub(crate) MutexGuard<'a, Option<EventLoop>>);

impl std::ops::Deref for Locked<'_> {
    type Target = EventLoop;

    fn deref(&self) -> &EventLoop {
        self.0.as_ref().expect("it is taken out by the thread that asks")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut EventLoop {
        self.0.as_mut().expect("it is taken out by the thread that asks")
    }
}

impl Held for Locked<'_> {
    fn released<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(&mut self.0, wait)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // What is left by a panic is for nobody.
        if std::thread::panicking() {
            self.hand_off().take_back();
        }
    }
}
