//! The broker as it is written down for a process that takes the place of this one, and as it goes
//! on there.

use super::{Beginning, EventLoop};
use crate::broker::admission::SavedAdmission;
use crate::broker::captures::SavedCaptures;
use crate::broker::cm::Cm;
use crate::broker::device::SavedDevice;
use crate::broker::gather::{Gatherings, SavedGatherings};
use crate::broker::sessions::Session;
use crate::broker::slots::SavedSlots;
use crate::slot_plan::SlotPlan;
use crate::upgrade::{
    CountersByName, Descriptors, Fd, ImageError, ReceivedDescriptors, Times, UpgradeError,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;
use urxe_engine::Tuning;
use urxe_shm::control::Request;
use urxe_types::TimeOffset;

/// All that the broker knows.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedBroker {
    /// Where programs connect, and device and inode of its file, if that goes with the daemon.
    pub(crate) listener: Option<(Fd, Option<(u64, u64)>)>,
    pub(crate) tuning: Tuning,
    pub(crate) serves_all: bool,
    pub(crate) devices: Vec<SavedDevice>,
    slots: SavedSlots,
    sessions: Vec<Session>,
    last_session: u64,
    freeing: Vec<u64>,
    admission: SavedAdmission,
    gatherings: SavedGatherings,
    captures: SavedCaptures,
    cm: Cm,
    cm_counters: CountersByName,
    counters: CountersByName,
    alone_since: TimeOffset,
}

impl EventLoop {
    /// Writes all down that is not gone with this process.
    ///
    /// # Errors
    /// Why this process cannot be replaced by another one now.
    pub(super) fn save<'a>(
        &'a self,
        times: Times,
        fds: &mut Descriptors<'a>,
    ) -> Result<SavedBroker, UpgradeError> {
        let listener = self.listener.as_ref().filter(|_| self.drained_by.is_none());
        let listener = listener.ok_or(UpgradeError::Ending)?;
        // UPGRADE-003
        let programs = self.slots.sessions_in_threads();
        if programs > 0 {
            return Err(UpgradeError::Threads { programs });
        }
        let devices = self.ctx.devices.iter().enumerate();
        let devices =
            devices.map(|(index, device)| device.save(times, self.slots.device_plan(index), fds));
        Ok(SavedBroker {
            devices: devices.collect(),
            listener: Some((fds.add(listener.as_fd()), listener.file())),
            tuning: self.slots.tuning(),
            serves_all: self.slots.serve_all(),
            slots: self.slots.save(times, fds)?,
            sessions: self.sessions.values().cloned().collect(),
            last_session: self.last_session,
            freeing: self.freeing.iter().copied().collect(),
            admission: self.admission.save(times, fds),
            gatherings: self.gatherings.save(),
            captures: self.captures.save(fds),
            cm: self.ctx.cm.clone(),
            cm_counters: CountersByName::of(self.ctx.cm.counters.iter()),
            counters: CountersByName::of(self.ctx.counters.iter()),
            alone_since: times.of(self.alone_since),
        })
    }

    /// A broker that goes on where another one was, which is gone.
    ///
    /// # Errors
    /// If what was written down makes no sense, or the system refuses something.
    pub(crate) fn resumed(
        now: Instant,
        beginning: Beginning,
        times: Times,
        saved: SavedBroker,
        fds: &mut ReceivedDescriptors,
    ) -> io::Result<EventLoop> {
        let mut event_loop = EventLoop::assemble(now, beginning)?;
        event_loop.restore(times, saved, fds)?;
        event_loop.begin(now);
        Ok(event_loop)
    }

    fn restore(
        &mut self,
        times: Times,
        saved: SavedBroker,
        fds: &mut ReceivedDescriptors,
    ) -> Result<(), ImageError> {
        self.alone_since = times.at(saved.alone_since);
        self.last_session = saved.last_session;
        self.slots.restore(times, saved.slots, fds)?;
        self.slots.take_back_free_ones(&mut self.ctx.devices);
        self.ctx.cm = saved.cm;
        self.ctx.cm.recount();
        saved.cm_counters.each(|name, value| self.ctx.cm.counters.go_on_from(name, value));
        saved.counters.each(|name, value| self.ctx.counters.go_on_from(name, value));
        // UPGRADE-006
        let users = saved.sessions.iter().map(|session| session.program.uid);
        self.admission.restore(times, saved.admission, users, fds)?;
        self.sessions =
            saved.sessions.into_iter().map(|session| (session.number, session)).collect();
        self.open_sessions = self.sessions.values().filter(|session| session.is_open).count();
        self.freeing = saved.freeing.into();
        self.captures.restore(saved.captures, &mut self.ctx, fds)?;
        self.gatherings = Gatherings::behind(saved.gatherings.last);
        // What came for them then was an answer to a question of another process.
        for (session, request) in saved.gatherings.open {
            // OWN-035: what it asked last is of no use to a program that is gone.
            if !self.sessions.get(&session).is_some_and(|session| session.is_open) {
                continue;
            }
            let is_capture = matches!(request, Request::BeginCapture(_));
            match self.captures.begun_before(session).filter(|_| is_capture) {
                Some(begun) => self.answer(session, Ok(begun)),
                None => self.handle(session, request),
            }
        }
        Ok(())
    }
}

impl SavedBroker {
    /// Checks what was read, as far as that can be done without its descriptors.
    pub(crate) fn check(&self, own_slots: u8) -> Result<(), ImageError> {
        let number =
            |what, number: u64, expected| Err(ImageError::Number { what, number, expected });
        let Some(plan) = self.plan(own_slots) else {
            return number("slots", own_slots.into(), "1 to 63");
        };
        let (slots, devices) = (plan.count.get(), self.devices.len());
        self.slots.check(slots)?;
        self.captures.check(devices)?;
        self.cm.check(devices)?;
        let mut numbers = BTreeSet::new();
        for session in &self.sessions {
            if session.slot == 0 || session.slot >= slots {
                return number("slot of a session", session.slot as u64, "one that is there");
            }
            if session.number > self.last_session || !numbers.insert(session.number) {
                return number("session", session.number, "one, and not behind the last");
            }
        }
        Ok(())
    }

    /// How the slots are divided.
    pub(crate) fn plan(&self, own_slots: u8) -> Option<SlotPlan> {
        match self.serves_all {
            true => Some(SlotPlan::one_for_all()),
            false => SlotPlan::with_own(own_slots.into()),
        }
    }

    /// How many programs are there.
    pub(crate) fn programs(&self) -> usize {
        self.sessions.iter().filter(|session| session.is_open).count()
    }
}

#[cfg(test)]
impl SavedBroker {
    /// That of a daemon without anything.
    pub(crate) fn empty() -> SavedBroker {
        SavedBroker {
            listener: None,
            tuning: Tuning::default(),
            serves_all: false,
            devices: Vec::new(),
            slots: SavedSlots::default(),
            sessions: Vec::new(),
            last_session: 0,
            freeing: Vec::new(),
            admission: SavedAdmission::default(),
            gatherings: SavedGatherings { last: 0, open: Vec::new() },
            captures: SavedCaptures::default(),
            cm: Cm::new(),
            cm_counters: CountersByName::default(),
            counters: CountersByName::default(),
            alone_since: TimeOffset::of(Instant::now(), Instant::now()),
        }
    }
}
