//! Snapshots: all that is counted at one time, for other threads of the daemon.
//!
//! The slots are asked all at once. One that does not answer in time, or is gone, is left out. Who
//! asks while a snapshot is being taken gets the same one, so that many who ask cost no more than
//! one does.

use super::BrokerCtx;
use super::gather::Gatherings;
use super::slots::Slots;
use crate::counters::{CmObjectCounters, DeviceCounters};
use crate::limits::ANSWER_TIMEOUT;
use mio::Waker;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Instant;
use urxe_slot::link::{Counts, Found, Subject, ToSlot, Viewer};

/// What has been counted since the daemon began.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) devices: Vec<DeviceSnapshot>,
    /// Those that have answered, by number, the broker's own first.
    pub(crate) slots: Vec<SlotSnapshot>,
    /// The numbers of all that run, whether they have answered or not.
    pub(crate) running: Vec<usize>,
    /// What programs have of the connection manager.
    pub(crate) cm_objects: CmObjectCounters,
}

/// What is counted of a device as a whole.
#[derive(Debug)]
pub(crate) struct DeviceSnapshot {
    pub(crate) name: String,
    pub(crate) cm: urxe_cm::CmCounters,
    pub(crate) counters: DeviceCounters,
    /// What slots had counted that have ended.
    pub(crate) of_ended_slots: Option<Counts>,
}

/// What one slot has counted since it began.
#[derive(Debug)]
pub(crate) struct SlotSnapshot {
    pub(crate) number: usize,
    /// The user whom it serves, or as whom it serves all.
    pub(crate) user: u32,
    /// Programs that it serves.
    pub(crate) sessions: usize,
    /// One for each device. What is not a device's is the same in all.
    pub(crate) counts: Vec<Counts>,
}

/// Where a snapshot goes.
type Answer = SyncSender<Arc<Snapshot>>;

/// By this another thread has snapshots taken.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    waker: Arc<Waker>,
    questions: Sender<Answer>,
}

impl Asker {
    /// Waits for a snapshot, for no longer than slots are waited for; `None` if the daemon ends.
    pub(crate) fn ask(&self) -> Option<Arc<Snapshot>> {
        let (answer, answered) = sync_channel(1);
        self.questions.send(answer).ok()?;
        self.waker.wake().ok()?;
        answered.recv().ok()
    }
}

/// The snapshots that are asked for, and the one that is being taken.
pub(crate) struct Snapshots {
    asker: Asker,
    questions: Receiver<Answer>,
    waiting: Vec<Answer>,
    open: Option<Open>,
}

/// A snapshot that is being taken.
struct Open {
    until: Instant,
    /// The slots that were asked, the broker's own included.
    slots: Vec<SlotSnapshot>,
    /// Slot and device of each question.
    unanswered: BTreeMap<u64, (usize, usize)>,
    /// By slot and device.
    answers: BTreeMap<(usize, usize), Counts>,
}

impl Snapshots {
    /// `waker` wakes the broker.
    pub(crate) fn new(waker: Arc<Waker>) -> Snapshots {
        let (sender, questions) = channel();
        let asker = Asker { waker, questions: sender };
        Snapshots { asker, questions, waiting: Vec::new(), open: None }
    }

    /// For a thread that is to ask.
    pub(crate) fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// When the slots have had enough time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.until)
    }

    /// Takes in what a slot has found; returns it if no snapshot asked for it.
    pub(crate) fn found(&mut self, slot: usize, number: u64, found: Found) -> Option<Found> {
        let Some(open) = &mut self.open else { return Some(found) };
        let Some(&asked) = open.unanswered.get(&number) else { return Some(found) };
        // SLOT-008: none answers for another.
        if asked.0 == slot {
            open.unanswered.remove(&number);
            if let Found::Counts(counts) = found {
                open.answers.insert(asked, counts);
            }
        }
        None
    }

    /// Begins a snapshot if one is asked for, and hands over what is complete, or as complete as it
    /// gets.
    pub(crate) fn go_on(&mut self, ctx: &BrokerCtx, slots: &mut Slots, numbers: &mut Gatherings) {
        self.waiting.extend(self.questions.try_iter());
        if self.waiting.is_empty() {
            return;
        }
        let open = self.open.get_or_insert_with(|| Open::begin(ctx, slots, numbers));
        open.unanswered.retain(|_, (slot, _)| slots.is_running(*slot));
        // METRIC-004
        if !open.unanswered.is_empty() && ctx.now < open.until {
            return;
        }
        let Some(open) = self.open.take() else { return };
        let snapshot = Arc::new(open.end(ctx, slots));
        for answer in self.waiting.drain(..) {
            // It is the only one for which there is room, or nobody waits any more.
            let _ = answer.try_send(Arc::clone(&snapshot));
        }
    }
}

impl Open {
    fn begin(ctx: &BrokerCtx, slots: &mut Slots, numbers: &mut Gatherings) -> Open {
        let mut open = Open {
            until: ctx.now + ANSWER_TIMEOUT,
            slots: Vec::new(),
            unanswered: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        let user = geteuid().as_raw();
        open.slots.push(SlotSnapshot { number: 0, user, sessions: 0, counts: Vec::new() });
        for (device, own) in ctx.devices.iter().enumerate() {
            open.answers.insert((0, device), own.counts(&ctx.counters));
        }
        for slot in (1..slots.end()).filter(|&slot| slots.is_running(slot)).collect::<Vec<_>>() {
            // One that answers nothing is not asked more and more.
            if !slots.is_answering(ctx.now, slot) {
                continue;
            }
            let (sessions, of_other) = slots.served_by(slot);
            let user = of_other.unwrap_or(user);
            open.slots.push(SlotSnapshot { number: slot, user, sessions, counts: Vec::new() });
            for device in 0..ctx.devices.len() {
                let number = numbers.next_number();
                open.unanswered.insert(number, (slot, device));
                let (viewer, subject) = (Viewer::Everybody, Subject::Counts);
                slots.ask(ctx.now, slot, ToSlot::Question { number, device, viewer, subject });
            }
        }
        open
    }

    fn end(mut self, ctx: &BrokerCtx, slots: &Slots) -> Snapshot {
        // What one has counted that has answered and ended is among that of ended ones.
        let is_running = |slot: usize| slot == 0 || slots.is_running(slot);
        let running = (0..slots.end()).filter(|&slot| is_running(slot)).collect();
        let mut slots = self.slots;
        slots.retain(|slot| is_running(slot.number));
        for slot in &mut slots {
            let of_device = |device| self.answers.remove(&(slot.number, device));
            slot.counts = (0..ctx.devices.len()).map_while(of_device).collect();
        }
        slots.retain(|slot| slot.counts.len() == ctx.devices.len());
        let devices = ctx.devices.iter().map(|device| DeviceSnapshot {
            name: device.name.clone(),
            cm: device.cm.counters().clone(),
            counters: device.counters(),
            of_ended_slots: device.of_ended_slots().cloned(),
        });
        Snapshot { devices: devices.collect(), slots, running, cm_objects: ctx.cm.counters }
    }
}
