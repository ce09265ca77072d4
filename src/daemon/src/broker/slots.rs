//! The slots as the broker has them: which there are, where a new session goes, and what becomes of
//! one that ends. One runs from its first session on.
//!
//! The first are the daemon's own user's, and threads. Each of the others belongs to one other user
//! while that user has programs, and is a [`Worker`], or a thread where there can be no worker.

mod ended;
mod hosted;
mod logged;
mod saved;
mod served;

pub(crate) use saved::SavedSlots;

use super::device::{AddressChange, RdmaDevice};
use super::kept_histories::{HowEnded, KeptHistories};
use super::slot_entry::{Entry, LetGo, Runner, Why, run_in_thread, workers_do_not_go};
use super::worker::{User, Worker};
use crate::limits::{ANSWER_TIMEOUT, MAX_MAPPED_MRS_OF_ALL, MAX_WORKERS_LEFT, START_PAUSE};
use crate::log::SLOT;
use crate::slot_plan::SlotPlan;
use logged::log_start;
use mio::{Registry, Token};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_engine::Tuning;
use urxe_port::OpenError;
use urxe_port::udp::Inboxes;
use urxe_shm::control::ControlError;
use urxe_shm::control::closing::Closer;
use urxe_slot::limits::{LINK_TIMEOUT, MAX_MAPPED_MRS};
use urxe_slot::link::{DeviceBeginning, Link, LinkError, SlotBeginning, ToBroker, ToSlot};
use urxe_slot::port_plan::PortPlan;
use urxe_slot::refusal::refuse;
use urxe_types::Slot;

/// What all slots begin with of one device.
pub(crate) struct DevicePlan {
    pub(crate) port: PortPlan,
    /// The file that all slots append their captures to.
    pub(crate) capture: Option<File>,
}

/// By what the broker is told of links and workers.
pub(crate) struct Watcher {
    pub(crate) registry: Registry,
    /// The token of a slot's link.
    pub(crate) token_of: fn(usize) -> Token,
    /// That of all workers.
    pub(crate) of_workers: Token,
}

/// What all slots begin with.
pub(crate) struct SlotsBeginning {
    pub(crate) plan: SlotPlan,
    pub(crate) tuning: Tuning,
    pub(crate) plans: Vec<DevicePlan>,
    /// What is executed for other users, if there is such a program.
    pub(crate) worker: Option<PathBuf>,
    pub(crate) watcher: Watcher,
}

/// All slots but the broker's own.
pub(crate) struct Slots {
    plan: SlotPlan,
    tuning: Tuning,
    plans: Vec<DevicePlan>,
    /// By what those of the daemon's own user reach each other.
    inboxes: Arc<Inboxes>,
    worker: Option<PathBuf>,
    watcher: Watcher,
    closer: Closer,
    /// By number; the first is the broker's own, and has no link.
    entries: Vec<Entry>,
    /// Those that have begun, until the broker has seen to it.
    began: Vec<usize>,
    /// Those whose links have failed, until the broker has seen to it.
    failed: Vec<usize>,
    /// Users for whom no worker is started until then.
    pauses: BTreeMap<u32, Instant>,
    kept_histories: KeptHistories,
    /// That threads serve other users was said, and need not be said again.
    said_threads: bool,
}

impl Slots {
    pub(crate) fn new(beginning: SlotsBeginning) -> io::Result<Slots> {
        let SlotsBeginning { plan, tuning, plans, worker, watcher } = beginning;
        Ok(Slots {
            plan,
            tuning,
            inboxes: Arc::new(Inboxes::new(plan.own(), plans.len())),
            plans,
            worker,
            watcher,
            closer: Closer::new(|| ())?,
            entries: plan.count.slots().map(|_| Entry::default()).collect(),
            began: Vec::new(),
            failed: Vec::new(),
            pauses: BTreeMap::new(),
            kept_histories: KeptHistories::default(),
            said_threads: false,
        })
    }

    /// The number behind that of the last slot.
    pub(crate) fn end(&self) -> usize {
        self.entries.len()
    }

    /// Whether a slot runs.
    pub(crate) fn is_running(&self, slot: usize) -> bool {
        self.entries.get(slot).is_some_and(|entry| entry.link.is_some())
    }

    /// Whether a slot runs and owes no answer for long.
    pub(crate) fn is_answering(&self, now: Instant, slot: usize) -> bool {
        let asked_since = self.entries.get(slot).and_then(|entry| entry.asked_since);
        self.is_running(slot) && asked_since.is_none_or(|since| now < since + ANSWER_TIMEOUT)
    }

    /// The slot that a new session of a user goes to, which is started if it does not run.
    pub(crate) fn place(
        &mut self,
        now: Instant,
        user: User,
        devices: &mut [RdmaDevice],
    ) -> Result<usize, ControlError> {
        // SLOT-101
        if !self.plan.serve_all() && user.uid != rustix::process::geteuid().as_raw() {
            return self.place_of_other(now, user, devices);
        }
        let mut slots: Vec<usize> = self.plan.own().collect();
        slots.sort_by_key(|&slot| self.entries[slot].sessions);
        let found = slots.into_iter().find(|&slot| {
            let start_again = self.entries[slot].start_again;
            // SLOT-006
            if !self.is_running(slot) && start_again.is_none_or(|at| at <= now) {
                self.start(now, slot, None, devices);
            }
            self.is_running(slot)
        });
        found.ok_or_else(|| refuse(Errno::AGAIN, "urxed: no slot can be started at the moment"))
    }

    /// The slot of a user who is not the daemon's own.
    fn place_of_other(
        &mut self,
        now: Instant,
        user: User,
        devices: &mut [RdmaDevice],
    ) -> Result<usize, ControlError> {
        let is_own = |slot: &usize| self.entries[*slot].user == Some(user.uid);
        if let Some(own) = self.plan.of_others().find(is_own) {
            return Ok(own);
        }
        if self.pauses.get(&user.uid).is_some_and(|until| now < *until) {
            let sentence = format!(
                "urxed: the process that served user {} has ended right after its start; the next \
                 is started in a second",
                user.uid
            );
            return Err(refuse(Errno::AGAIN, sentence));
        }
        // SLOT-123
        let left = self.entries.iter().filter(|entry| entry.is_left_by(user.uid)).count();
        if left >= MAX_WORKERS_LEFT {
            return Err(workers_do_not_go(left, user));
        }
        let Some(slot) = self.free_slot(now) else {
            let sentence = format!(
                "urxed: user {} finds no slot: of users other than urxed's own, {} can be served \
                 at a time, and so many are; fewer --slots leave room for more",
                user.uid,
                self.plan.of_others().len()
            );
            return Err(refuse(Errno::USERS, sentence));
        };
        self.start(now, slot, Some(user), devices);
        let is_running = self.is_running(slot).then_some(slot);
        is_running.ok_or_else(|| {
            refuse(Errno::AGAIN, "urxed: no process for this user can be started at the moment")
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
        if self.plan.of_others().contains(&slot) {
            self.ask(now, slot, ToSlot::AreYouThere);
        }
    }

    /// Nothing is left of a session.
    pub(crate) fn end_session(&mut self, slot: usize) {
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.sessions = entry.sessions.saturating_sub(1);
            entry.idle_since = Some(Instant::now());
        }
    }

    /// Starts a slot. If it cannot be had, that is said, and not tried again at once.
    fn start(&mut self, now: Instant, slot: usize, user: Option<User>, devices: &mut [RdmaDevice]) {
        if let Err(error) = self.try_start(now, slot, user, devices) {
            tracing::error!(target: SLOT, slot, "slot {slot} cannot be started: {error}");
            match user {
                Some(user) => self.pause(now, user.uid),
                None => self.entries[slot].start_again = Some(now + START_PAUSE),
            }
            if self.is_running(slot) {
                self.note_failed(slot);
            }
        }
    }

    fn try_start(
        &mut self,
        now: Instant,
        slot: usize,
        user: Option<User>,
        devices: &mut [RdmaDevice],
    ) -> io::Result<()> {
        let (link, other) = self.open_link(slot)?;
        let how_ended = HowEnded::default();
        let runner = self.run(now, slot, user, other, &how_ended)?;
        log_start(slot, &runner, user);
        self.begin(now, slot, user, (link, runner, how_ended), devices)
    }

    /// Tells a slot what it is, and gives it all that it needs.
    fn begin(
        &mut self,
        now: Instant,
        slot: usize,
        user: Option<User>,
        (link, runner, how_ended): (Link<ToSlot, ToBroker>, Runner, HowEnded),
        devices: &mut [RdmaDevice],
    ) -> io::Result<()> {
        let number = self.plan.count.slot(slot).map_err(io::Error::other)?;
        let max_mapped_mrs = match runner {
            Runner::Thread(_) => self.plan.max_mapped_in_thread(slot),
            Runner::Worker { .. } => MAX_MAPPED_MRS_OF_ALL,
            Runner::Program(_) => MAX_MAPPED_MRS,
        };
        let histories = ended::history_file(slot, devices.len());
        let for_slot = histories.as_ref().map(File::try_clone).transpose()?;
        self.entries[slot] = Entry {
            link: Some(link),
            histories,
            how_ended,
            runner: Some(runner),
            user: user.map(|user| user.uid),
            idle_since: Some(now),
            ..Entry::default()
        };
        let start = ToSlot::Start(SlotBeginning {
            slot,
            slots: self.plan.count.get(),
            devices: devices.len(),
            tuning: self.tuning,
            numbering: self.plan.numbering(slot),
            max_mapped_mrs,
        });
        self.send(now, slot, start, for_slot.into_iter().map(OwnedFd::from).collect());
        for (index, device) in devices.iter().enumerate() {
            let plan = &self.plans[index];
            // Where the device is now, or was last.
            let interface = device.link.interface.as_ref().unwrap_or(&plan.port.interface).clone();
            let beginning = DeviceBeginning {
                name: device.name.clone(),
                guid: device.guid,
                // SLOT-103: the next user's numbers are none that the last one knows.
                seed: getrandom::u64()?,
                port: PortPlan { interface, ..plan.port.clone() },
                state: device.state(),
            };
            let capture = plan.capture.as_ref().map(File::try_clone).transpose()?;
            let capture = capture.into_iter().map(OwnedFd::from).collect();
            self.send(now, slot, ToSlot::Open(beginning), capture);
        }
        self.began.push(slot);
        for (index, device) in devices.iter_mut().enumerate() {
            let addrs: Vec<_> = device.groups.keys().copied().collect();
            for addr in addrs {
                self.give(now, number, index, device, AddressChange::Added(addr));
            }
        }
        Ok(())
    }

    /// Has a slot run: another user's in a worker, if that can be had.
    fn run(
        &mut self,
        now: Instant,
        slot: usize,
        user: Option<User>,
        link: OwnedFd,
        how_ended: &HowEnded,
    ) -> io::Result<Runner> {
        if let Some(user) = user {
            let Watcher { registry, of_workers, .. } = &self.watcher;
            let started = match &self.worker {
                Some(program) => Worker::start(now, program, user, &link, registry, *of_workers),
                None => Err(io::Error::other("there is no program for that")),
            };
            match started {
                Ok(worker) => return Ok(Runner::Worker { worker, let_go: None }),
                Err(error) if !std::mem::replace(&mut self.said_threads, true) => {
                    tracing::warn!(
                        target: SLOT,
                        "programs of other users are served by threads of urxed's own user, \
                         because no process can be started for them: {error}"
                    );
                }
                Err(_) => {}
            }
        }
        let how_ended = Arc::clone(how_ended);
        // WIRE-202
        let inboxes = self.plan.own().contains(&slot).then(|| Arc::clone(&self.inboxes));
        std::thread::Builder::new()
            .name(format!("urxed-slot{slot}"))
            .spawn(move || run_in_thread(slot, &how_ended, || urxe_slot::serve(link, inboxes)))
            .map(Runner::Thread)
    }

    /// Lets a while pass before another worker is started for a user.
    fn pause(&mut self, now: Instant, user: u32) {
        self.pauses.retain(|_, until| now < *until);
        self.pauses.insert(user, now + START_PAUSE);
    }

    /// Tells all slots that run how a device is from now on.
    pub(crate) fn tell_of_device(
        &mut self,
        now: Instant,
        index: usize,
        device: &mut RdmaDevice,
        changes: &[AddressChange],
        events: &[urxe_nic::PortEvent],
    ) {
        for slot in self.plan.count.slots().filter(|slot| slot.id().index() > 0) {
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
        device: &mut RdmaDevice,
        change: AddressChange,
    ) {
        let number = slot.id().index();
        let given = match change {
            AddressChange::Removed(addr) => {
                let message = ToSlot::RemoveAddress { device: index, addr };
                return self.send(now, number, message, Vec::new());
            }
            // It has gone again.
            AddressChange::Added(addr) => match device.groups.get_mut(&addr) {
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
        tracing::error!(
            target: SLOT,
            slot,
            "slot {slot} ends, because it lacks an address: {error}"
        );
        self.note_failed(slot);
    }

    /// Tells a slot something, if it runs.
    pub(crate) fn send(&mut self, now: Instant, slot: usize, message: ToSlot, fds: Vec<OwnedFd>) {
        let link = self.entries.get_mut(slot).and_then(|entry| entry.link.as_mut());
        let Some(link) = link else { return fds.into_iter().for_each(|fd| self.close(fd)) };
        let sent = link.send(now, message, fds);
        self.note_link_result(slot, sent);
    }

    /// Sends what waits for a slot.
    pub(crate) fn flush(&mut self, now: Instant, slot: usize) {
        if let Some(link) = self.entries.get_mut(slot).and_then(|entry| entry.link.as_mut()) {
            let flushed = link.flush(now);
            self.note_link_result(slot, flushed);
        }
    }

    /// Tells a slot something that it answers, sooner or later.
    pub(crate) fn ask(&mut self, now: Instant, slot: usize, question: ToSlot) {
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.asked_since.get_or_insert(now);
        }
        self.send(now, slot, question, Vec::new());
    }

    /// The next message of a slot, if there is one.
    pub(crate) fn recv(&mut self, slot: usize) -> Option<ToBroker> {
        let entry = self.entries.get_mut(slot)?;
        match entry.link.as_mut()?.recv() {
            Ok(received) => {
                entry.asked_since = entry.asked_since.filter(|_| received.is_none());
                let (message, fds) = received?;
                fds.into_iter().for_each(|fd| self.close(fd));
                Some(message)
            }
            Err(error) => {
                self.note_link_result(slot, Err(error));
                None
            }
        }
    }

    /// What became of sending or receiving.
    fn note_link_result(&mut self, slot: usize, result: Result<(), LinkError>) {
        let Err(error) = result else { return };
        // SLOT-003
        if let LinkError::Stuck | LinkError::Channel(_) = error {
            tracing::error!(target: SLOT, slot, "slot {slot} is given up: {error}");
            self.let_worker_go(slot, Why::Stuck);
        }
        self.note_failed(slot);
    }

    /// Once, however many of its addresses or messages fail in a turn.
    fn note_failed(&mut self, slot: usize) {
        if !self.failed.contains(&slot) {
            self.failed.push(slot);
        }
    }

    /// Has a worker end, if that is what runs a slot: by itself, or at once if it hangs.
    fn let_worker_go(&mut self, slot: usize, why: Why) {
        if let Some(Runner::Worker { worker, let_go: let_go @ None }) =
            &mut self.entries[slot].runner
        {
            // SLOT-107
            if why == Why::Stuck {
                worker.kill();
            }
            *let_go = Some(LetGo { since: Instant::now(), why });
        }
    }

    /// Watches links for room that need it, has closed what has arrived, and lets workers go that
    /// have nothing to do. Returns a slot that has failed, if there is one; it is gone now.
    pub(crate) fn end_of_turn(
        &mut self,
        now: Instant,
        devices: &mut [RdmaDevice],
    ) -> Option<usize> {
        for slot in 1..self.end() {
            let entry = &mut self.entries[slot];
            if entry.end_of_worker().is_some_and(|end| end <= now)
                && let Some(Runner::Worker { worker, let_go: Some(let_go) }) = &mut entry.runner
            {
                worker.kill();
                let_go.since = now;
                self.reap(now);
            }
            let entry = &mut self.entries[slot];
            let Some(link) = &mut entry.link else { continue };
            for descriptor in link.take_to_close() {
                self.closer.close(descriptor);
            }
            if link.deadline().is_some_and(|deadline| deadline <= now) {
                self.flush(now, slot);
            }
            self.watch_for_room(slot);
            let entry = &self.entries[slot];
            if entry.end_of_silence().is_some_and(|end| end <= now) {
                self.note_link_result(slot, Err(LinkError::Stuck));
            } else if entry.end_of_idleness().is_some_and(|end| end <= now) {
                self.let_worker_go(slot, Why::Idle);
                self.drop_link(now, slot, devices);
            }
        }
        while let Some(slot) = self.failed.pop() {
            self.let_worker_go(slot, Why::Failed);
            if self.drop_link(now, slot, devices) {
                return Some(slot);
            }
        }
        None
    }

    fn watch_for_room(&mut self, slot: usize) {
        let Some(link) = &mut self.entries[slot].link else { return };
        let watched = link.watch_for_room(&self.watcher.registry, (self.watcher.token_of)(slot));
        self.note_link_result(slot, watched);
    }

    /// When a slot or a worker is given up, or has nothing to do for long enough.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.entries.iter().filter_map(Entry::deadline).min()
    }

    /// Whether a slot has failed and is to be seen to.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Ends all slots, and waits until they are gone: their addresses are free then.
    pub(crate) fn end_all(self) {
        let runners = self.entries.into_iter().filter_map(|entry| {
            entry.let_program_go();
            drop(entry.link);
            entry.runner
        });
        let mut runners: Vec<Runner> = runners.collect();
        let begin = Instant::now();
        loop {
            let told = begin.elapsed();
            runners.retain_mut(|runner| !runner.is_over(told));
            // One that is held up by a program is not waited for.
            if runners.is_empty() || told >= LINK_TIMEOUT {
                return;
            }
            std::thread::park_timeout(Duration::from_micros(100));
        }
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
    use std::net::Ipv4Addr;

    /// Workers that do nothing, and hear nothing: the program takes its arguments for seconds.
    fn slots_of_sleepers() -> (mio::Poll, Slots) {
        let poll = mio::Poll::new().unwrap();
        let watcher = Watcher {
            registry: poll.registry().try_clone().unwrap(),
            token_of: Token,
            of_workers: Token(usize::MAX),
        };
        let slots = Slots::new(SlotsBeginning {
            plan: SlotPlan::with_own(1).unwrap(),
            tuning: Tuning::default(),
            plans: Vec::new(),
            worker: Some("/bin/sleep".into()),
            watcher,
        });
        (poll, slots.unwrap())
    }

    /// The entry that was left would end the slot that is started in its place.
    #[test]
    fn a_slot_that_lacks_several_addresses_ends_once() {
        let (_poll, mut slots) = slots_of_sleepers();
        let (now, user) = (Instant::now(), User { uid: 64_003, gid: 64_003 });
        let slot = slots.place(now, user, &mut []).unwrap();
        for last in 1..=3 {
            let addr = Ipv4Addr::new(192, 0, 2, last).into();
            slots.fail(slot, &OpenError::PortTaken { addr });
        }
        assert_eq!(slots.end_of_turn(now, &mut []), Some(slot));
        assert_eq!(slots.end_of_turn(now, &mut []), None);
        assert!(!slots.has_failed());
        slots.end_all();
    }

    /// SLOT-123: nothing sees here that the workers have ended, as if they could not.
    #[test]
    fn a_user_whose_workers_do_not_go_has_no_slots_of_others() {
        let (_poll, mut slots) = slots_of_sleepers();
        let (now, user) = (Instant::now(), User { uid: 64_001, gid: 64_001 });
        for _ in 0..MAX_WORKERS_LEFT {
            let slot = slots.place(now, user, &mut []).unwrap();
            slots.note_link_result(slot, Err(LinkError::Stuck));
            while slots.end_of_turn(now, &mut []).is_some() {}
            assert!(!slots.is_running(slot));
        }
        assert_eq!(slots.place(now, user, &mut []).unwrap_err().errno, Errno::AGAIN.raw_os_error());
        let other = User { uid: 64_002, gid: 64_002 };
        slots.place(now, other, &mut []).unwrap();
        // They were killed, and go some time.
        let later = now + START_PAUSE;
        while slots.place(later, user, &mut []).is_err() {
            assert!(now.elapsed() < Duration::from_secs(60));
            slots.pauses.clear();
            slots.reap(later);
        }
        slots.end_all();
    }
}
