//! The slots as the broker has them: which there are, where a new session goes, and what becomes of
//! one that ends. One runs from its first session on.

use super::closer::Closer;
use super::device::{AddressChange, RdmaDevice};
use crate::limits::{LINK_TIMEOUT, START_PAUSE};
use crate::link::{DeviceBeginning, Link, LinkError, ToBroker, ToSlot};
use crate::port_plan::PortPlan;
use crate::slot::{self, SlotError};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use urxe_engine::Tuning;
use urxe_port::OpenError;
use urxe_types::{Slot, SlotCount};

/// Says a sentence to whoever runs the daemon.
pub(crate) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What all slots begin with of one device.
pub(crate) struct DevicePlan {
    pub(crate) port: PortPlan,
    /// Makes the numbers of the device in each slot unpredictable.
    pub(crate) seeds: Vec<u64>,
    /// The file that all slots append their captures to.
    pub(crate) capture: Option<File>,
}

/// One slot.
#[derive(Default)]
struct Entry {
    /// None while it does not run.
    link: Option<Link<ToSlot, ToBroker>>,
    /// Sessions that it serves, or has something of.
    sessions: usize,
    /// When to try to start it again, after the system had no room for it.
    start_again: Option<Instant>,
    thread: Option<JoinHandle<()>>,
}

/// All slots but the broker's own.
pub(crate) struct Slots {
    count: SlotCount,
    tuning: Tuning,
    plans: Vec<DevicePlan>,
    registry: Registry,
    token_of: fn(usize) -> Token,
    report: Report,
    closer: Closer,
    /// By number; the first is the broker's own, and has no link.
    entries: Vec<Entry>,
    /// Those whose links have failed, until the broker has seen to it.
    failed: Vec<usize>,
}

impl Slots {
    pub(crate) fn new(
        count: SlotCount,
        tuning: Tuning,
        plans: Vec<DevicePlan>,
        registry: Registry,
        token_of: fn(usize) -> Token,
        report: Report,
    ) -> io::Result<Slots> {
        Ok(Slots {
            count,
            tuning,
            plans,
            registry,
            token_of,
            report,
            closer: Closer::new()?,
            entries: count.slots().map(|_| Entry::default()).collect(),
            failed: Vec::new(),
        })
    }

    /// The numbers of the slots that serve programs.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        1..self.count.get()
    }

    /// Whether a slot runs.
    pub(crate) fn is_running(&self, slot: usize) -> bool {
        self.entries.get(slot).is_some_and(|entry| entry.link.is_some())
    }

    /// The slot that a new session goes to: the one with the fewest, which is started if it does
    /// not run. `None` if none can be had.
    pub(crate) fn place(&mut self, now: Instant, devices: &[RdmaDevice]) -> Option<usize> {
        let mut slots: Vec<usize> = self.numbers().collect();
        slots.sort_by_key(|&slot| self.entries[slot].sessions);
        slots.into_iter().find(|&slot| {
            let start_again = self.entries[slot].start_again;
            // SLOT-006
            if !self.is_running(slot) && start_again.is_none_or(|at| at <= now) {
                self.start(now, slot, devices);
            }
            self.is_running(slot)
        })
    }

    /// A session begins in a slot.
    pub(crate) fn begin_session(
        &mut self,
        now: Instant,
        slot: usize,
        message: ToSlot,
        socket: OwnedFd,
    ) {
        self.entries[slot].sessions += 1;
        self.send(now, slot, message, vec![socket]);
    }

    /// Nothing is left of a session.
    pub(crate) fn end_session(&mut self, slot: usize) {
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.sessions = entry.sessions.saturating_sub(1);
        }
    }

    /// Starts a slot. If it cannot be had, that is said, and not tried again at once.
    fn start(&mut self, now: Instant, slot: usize, devices: &[RdmaDevice]) {
        if let Err(error) = self.try_start(now, slot, devices) {
            (self.report)(&format!("slot {slot} cannot be started: {error}"));
            self.entries[slot].start_again = Some(now + START_PAUSE);
            if self.is_running(slot) {
                self.failed.push(slot);
            }
        }
    }

    fn try_start(&mut self, now: Instant, slot: usize, devices: &[RdmaDevice]) -> io::Result<()> {
        let number = self.count.slot(slot).map_err(io::Error::other)?;
        let (link, other) = Link::pair()?;
        let fd = link.as_fd().as_raw_fd();
        self.registry.register(&mut SourceFd(&fd), (self.token_of)(slot), Interest::READABLE)?;
        let report = Arc::clone(&self.report);
        let thread = std::thread::Builder::new()
            .name(format!("urxed-slot{slot}"))
            .spawn(move || run(slot, &report, || slot::serve(other)))?;
        let entry = &mut self.entries[slot];
        (entry.link, entry.thread) = (Some(link), Some(thread));
        let start = ToSlot::Start {
            slot,
            slots: self.count.get(),
            devices: devices.len(),
            tuning: self.tuning,
        };
        self.send(now, slot, start, Vec::new());
        for (index, device) in devices.iter().enumerate() {
            let plan = &self.plans[index];
            let beginning = DeviceBeginning {
                name: device.name.clone(),
                guid: device.guid,
                seed: plan.seeds[slot],
                port: plan.port.clone(),
                state: device.state(),
            };
            let capture = plan.capture.as_ref().map(File::try_clone).transpose()?;
            let capture = capture.into_iter().map(OwnedFd::from).collect();
            self.send(now, slot, ToSlot::Open(beginning), capture);
        }
        for (index, device) in devices.iter().enumerate() {
            for addr in device.groups.keys() {
                self.give(now, number, index, device, AddressChange::Added(*addr));
            }
        }
        Ok(())
    }

    /// Tells all slots that run how a device is from now on.
    pub(crate) fn tell_of_device(
        &mut self,
        now: Instant,
        index: usize,
        device: &RdmaDevice,
        changes: &[AddressChange],
        events: &[urxe_nic::PortEvent],
    ) {
        for slot in self.count.slots().filter(|slot| slot.id().index() > 0) {
            if !self.is_running(slot.id().index()) {
                continue;
            }
            for &change in changes {
                self.give(now, slot, index, device, change);
            }
            let (state, events) = (device.state(), events.to_vec());
            let message = ToSlot::Device { device: index, state, events };
            self.send(now, slot.id().index(), message, Vec::new());
        }
    }

    /// Gives a slot the sockets of an address, or takes them away.
    fn give(
        &mut self,
        now: Instant,
        slot: Slot,
        index: usize,
        device: &RdmaDevice,
        change: AddressChange,
    ) {
        let number = slot.id().index();
        let given = match change {
            AddressChange::Removed(addr) => {
                let message = ToSlot::RemoveAddress { device: index, addr };
                return self.send(now, number, message, Vec::new());
            }
            // It has gone again.
            AddressChange::Added(addr) => match device.groups.get(&addr) {
                Some(group) => group.give(slot),
                None => return,
            },
        };
        match given {
            Ok(sockets) => {
                let message = ToSlot::AddAddress { device: index, addr: sockets.addr };
                self.send(now, number, message, sockets.fds);
            }
            Err(error) => self.fail(number, &error),
        }
    }

    /// A slot without one of its addresses would be silent there.
    fn fail(&mut self, slot: usize, error: &OpenError) {
        (self.report)(&format!("slot {slot} ends, because it lacks an address: {error}"));
        self.failed.push(slot);
    }

    /// Tells a slot something, if it runs.
    pub(crate) fn send(&mut self, now: Instant, slot: usize, message: ToSlot, fds: Vec<OwnedFd>) {
        let link = self.entries.get_mut(slot).and_then(|entry| entry.link.as_mut());
        let Some(link) = link else { return fds.into_iter().for_each(|fd| self.close(fd)) };
        let sent = link.send(now, message, fds);
        self.note(slot, sent);
    }

    /// Sends what waits for a slot.
    pub(crate) fn flush(&mut self, now: Instant, slot: usize) {
        if let Some(link) = self.entries.get_mut(slot).and_then(|entry| entry.link.as_mut()) {
            let flushed = link.flush(now);
            self.note(slot, flushed);
        }
    }

    /// The next message of a slot, if there is one.
    pub(crate) fn recv(&mut self, slot: usize) -> Option<ToBroker> {
        let link = self.entries.get_mut(slot)?.link.as_mut()?;
        match link.recv() {
            Ok(received) => received.map(|(message, _)| message),
            Err(error) => {
                self.note(slot, Err(error));
                None
            }
        }
    }

    /// What became of sending or receiving.
    fn note(&mut self, slot: usize, result: Result<(), LinkError>) {
        let Err(error) = result else { return };
        // SLOT-003
        if let LinkError::Stuck | LinkError::Channel(_) = error {
            (self.report)(&format!("slot {slot} is given up: {error}"));
        }
        if !self.failed.contains(&slot) {
            self.failed.push(slot);
        }
    }

    /// Watches links for room that need it, and has closed what has arrived. Returns a slot that
    /// has failed, if there is one; it is gone now.
    pub(crate) fn end_of_turn(&mut self, now: Instant, devices: &[RdmaDevice]) -> Option<usize> {
        for slot in self.numbers() {
            let Some(link) = &mut self.entries[slot].link else { continue };
            for descriptor in link.take_sent() {
                self.closer.close(descriptor);
            }
            if link.deadline().is_some_and(|deadline| deadline <= now) {
                self.flush(now, slot);
            }
            self.watch_for_room(slot);
        }
        let slot = self.failed.pop()?;
        let entry = &mut self.entries[slot];
        let link = entry.link.take()?;
        entry.sessions = 0;
        let fd = link.as_fd().as_raw_fd();
        let _ = self.registry.deregister(&mut SourceFd(&fd));
        for descriptor in link.into_descriptors() {
            self.close(descriptor);
        }
        for group in devices.iter().flat_map(|device| device.groups.values()) {
            if let Ok(slot) = self.count.slot(slot) {
                group.take_back(slot);
            }
        }
        Some(slot)
    }

    fn watch_for_room(&mut self, slot: usize) {
        let Some(link) = &mut self.entries[slot].link else { return };
        let watched = link.watch_for_room(&self.registry, (self.token_of)(slot));
        self.note(slot, watched);
    }

    /// When a slot is given up that takes nothing.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.link.as_ref()?.deadline()).min()
    }

    /// Whether a slot has failed and is to be seen to.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Says a sentence to whoever runs the daemon.
    pub(crate) fn report(&self, sentence: &str) {
        (self.report)(sentence);
    }

    /// Closes what a program may have had its hands on.
    pub(crate) fn close(&self, descriptor: OwnedFd) {
        self.closer.close(descriptor);
    }

    /// Ends all slots, and waits until they are gone: their addresses are free then.
    pub(crate) fn end(self) {
        let threads = self.entries.into_iter().map(|entry| {
            drop(entry.link);
            entry.thread
        });
        let threads: Vec<_> = threads.collect();
        let end = Instant::now() + LINK_TIMEOUT;
        for thread in threads.into_iter().flatten() {
            // One that is held up by a program is not waited for.
            while !thread.is_finished() && Instant::now() < end {
                std::thread::park_timeout(std::time::Duration::from_micros(100));
            }
        }
    }
}

/// A slot's thread.
fn run(slot: usize, report: &Report, serve: impl FnOnce() -> Result<(), SlotError>) {
    // SLOT-002
    match catch_unwind(AssertUnwindSafe(serve)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report(&format!(
            "slot {slot} has ended, because {error}; its programs have lost their devices, and \
             the next ones start it again"
        )),
        Err(_) => report(&format!(
            "slot {slot} has ended, because it panicked; its programs have lost their devices, \
             and the next ones start it again"
        )),
    }
}

#[cfg(test)]
impl Slots {
    /// Ends a slot as if it had failed.
    pub(crate) fn shut_down(&self, slot: usize) {
        let link = self.entries[slot].link.as_ref().unwrap();
        rustix::net::shutdown(link, rustix::net::Shutdown::Both).unwrap();
    }

    /// Puts one in the place of a slot that takes nothing. Returns its end of the link.
    pub(crate) fn replace_by_one_that_is_stuck(&mut self, slot: usize) -> OwnedFd {
        let (link, other) = Link::pair().unwrap();
        self.entries[slot].link = Some(link);
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn how_a_slot_ended_is_said_and_a_panic_is_no_more_than_that() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let report: Report = {
            let said = Arc::clone(&said);
            Arc::new(move |sentence| said.lock().unwrap().push(sentence.to_owned()))
        };
        run(1, &report, || Ok(()));
        run(2, &report, || Err(SlotError::Port(io::Error::other("no such device"))));
        run(3, &report, || panic!("as the test wants it"));
        let said = said.lock().unwrap();
        let [failed, panicked] = &said[..] else { panic!("{said:?}") };
        assert!(failed.contains("slot 2 has ended, because a port failed: no such device"));
        assert!(panicked.contains("slot 3 has ended, because it panicked"));
    }
}
