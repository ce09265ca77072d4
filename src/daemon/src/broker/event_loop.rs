//! The broker's one thread: sleeps until there is something to do, and does some of everything.
//!
//! It never looks for work while there is none, as slots do: nothing here is on the way of data.

mod accept;
mod change;
mod end;
mod hosted;
mod links;
mod logged;
mod saved;
mod token;
mod upgrade;

pub(crate) use saved::SavedBroker;

use super::BrokerCtx;
use super::admission::Admission;
use super::captures::Captures;
use super::cm::{self, Answer, Cm};
use super::device::RdmaDevice;
use super::gather::Gatherings;
use super::sessions::{Program, Session};
use super::slots::{DevicePlan, Slots, SlotsBeginning, Watcher};
use super::snapshot::{Asker, Snapshots};
use super::sysfs::Sysfs;
use crate::config::SocketMode;
use crate::limits::FLOOD_PAUSE;
use crate::slot_plan::SlotPlan;
use logged::{log_begin, log_end, log_failed_port};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_engine::Tuning;
use urxe_port::watch::Watch;
use urxe_shm::control::channel::Listener;
use urxe_shm::control::{CaptureSpec, ControlError, Reply, Request};
use urxe_slot::DaemonCounters;
use urxe_slot::limits::{EVENTS_PER_TURN, MESSAGES_PER_TURN};
use urxe_slot::link::{ToBroker, ToSlot};
use urxe_slot::pages::MAX_SHOWN_NAME;
use urxe_slot::refusal::cannot_join;
use urxe_types::SlotId;

use accept::Pace;
use change::Changes;
pub(crate) use change::{Changeable, Changer};
use hosted::HeldBack;
use token::Token;
use upgrade::Upgrades;
pub(crate) use upgrade::{ControlToPass, Upgrader};

/// The event loop and all that it serves.
pub(crate) struct EventLoop {
    poll: Poll,
    events: Events,
    /// Descriptors that were ready and have not said since that there is nothing more.
    ready: Vec<Token>,
    /// Becomes readable when the daemon is to end.
    stop: OwnedFd,
    /// Before the files, so that who writes them waits for no snapshot any more.
    snapshots: Snapshots,
    /// The devices as files. Before the listener, so that it goes first: when the socket is free
    /// for another daemon, so is the directory.
    sysfs: Option<Sysfs>,
    listener: Option<Listener>,
    /// What can be chosen anew while the daemon runs.
    changeable: Changeable,
    changes: Changes,
    upgrades: Upgrades,
    /// When it ends at last, once it was told.
    drained_by: Option<Instant>,
    /// When the last program went; if none came, when we began to serve.
    alone_since: Instant,
    /// When to accept again, after many have come or the system had no room for another connection.
    accept_again: Option<Instant>,
    accept_pace: Pace,
    held_back: HeldBack,
    /// The machine's links and addresses.
    watch: Watch,
    /// When addresses that were refused are tried again.
    refused_again: Option<Instant>,
    /// Programs that have come, and how many sessions each user has.
    admission: Admission,
    /// The sessions that are there, or of which something is left.
    sessions: BTreeMap<u64, Session>,
    /// Those whose programs are there.
    open_sessions: usize,
    /// Those of which something is to be freed, in the order of their turns.
    freeing: VecDeque<u64>,
    gatherings: Gatherings,
    captures: Captures,
    slots: Slots,
    ctx: BrokerCtx,
    /// The number of the session that came last.
    last_session: u64,
}

/// What the broker begins with.
pub(crate) struct Beginning {
    pub(crate) listener: Listener,
    pub(crate) devices: Vec<RdmaDevice>,
    pub(crate) plans: Vec<DevicePlan>,
    pub(crate) slots: SlotPlan,
    /// What serves programs of other users.
    pub(crate) worker: Option<PathBuf>,
    pub(crate) tuning: Tuning,
    pub(crate) watch: Watch,
    pub(crate) stop: OwnedFd,
    pub(crate) changeable: Changeable,
}

impl EventLoop {
    pub(crate) fn new(now: Instant, beginning: Beginning) -> io::Result<EventLoop> {
        let mut event_loop = EventLoop::assemble(now, beginning)?;
        event_loop.alone_since = now;
        event_loop.begin(now);
        Ok(event_loop)
    }

    /// One that knows nothing of programs and links yet.
    fn assemble(now: Instant, beginning: Beginning) -> io::Result<EventLoop> {
        let Beginning { listener, devices, watch, stop, changeable, .. } = beginning;
        let Beginning { plans, slots: plan, worker, tuning, .. } = beginning;
        let poll = Poll::new()?;
        let watcher = Watcher {
            registry: poll.registry().try_clone()?,
            token_of: |slot| Token::Slot { slot }.to_mio(),
            of_workers: Token::Workers.to_mio(),
        };
        let slots = SlotsBeginning { plan, tuning, plans, worker, watcher };
        let waker = Arc::new(Waker::new(poll.registry(), Token::Woken.to_mio())?);
        let mut event_loop = EventLoop {
            slots: Slots::new(slots)?,
            snapshots: Snapshots::new(Arc::clone(&waker)),
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            ready: Vec::new(),
            stop,
            sysfs: None,
            listener: None,
            changeable,
            changes: Changes::new(Arc::clone(&waker)),
            upgrades: Upgrades::new(waker),
            drained_by: None,
            alone_since: now,
            accept_again: None,
            accept_pace: Pace::new(now),
            held_back: HeldBack::default(),
            watch,
            refused_again: None,
            admission: Admission::new(),
            sessions: BTreeMap::new(),
            open_sessions: 0,
            freeing: VecDeque::new(),
            gatherings: Gatherings::default(),
            captures: Captures::default(),
            ctx: BrokerCtx { devices, cm: Cm::new(), now, counters: DaemonCounters::default() },
            last_session: 0,
        };
        event_loop.register(&event_loop.stop, Token::Stop)?;
        event_loop.register(&listener, Token::Listener)?;
        event_loop.listener = Some(listener);
        if let Some(fd) = event_loop.watch.fd() {
            event_loop.register(fd, Token::Watch)?;
        }
        for (device, entry) in event_loop.ctx.devices.iter().enumerate() {
            if let Some(fd) = entry.nic.port_fd() {
                event_loop.register(fd, Token::Port { device })?;
            }
        }
        Ok(event_loop)
    }

    fn begin(&mut self, now: Instant) {
        self.sync_devices_with_links(now);
        self.change(self.changeable);
    }

    /// Shows the devices as files from now on.
    pub(crate) fn show_devices(&mut self, directory: &Path, mode: SocketMode) -> io::Result<()> {
        self.sysfs = Some(Sysfs::create(directory, mode, &self.ctx.devices, self.asker())?);
        Ok(())
    }

    /// By this other threads learn what is counted.
    pub(crate) fn asker(&self) -> Asker {
        self.snapshots.asker()
    }

    /// Asks to be told when a descriptor becomes readable.
    fn register(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        let fd = fd.as_fd().as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), token.to_mio(), Interest::READABLE)
    }

    /// Serves until told to stop, or until no program has been there for as long as the daemon
    /// lingers. An error means that the loop itself is of no use.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let served = self.serve_all();
        // Before the slots, so that nobody connects to what is ending; and first the snapshots, or
        // who keeps the files up to date would wait for one.
        drop((self.snapshots, self.sysfs, self.listener));
        self.slots.end_all();
        served
    }

    fn serve_all(&mut self) -> io::Result<()> {
        self.ctx.now = Instant::now();
        while self.end_at().is_none_or(|end| self.ctx.now < end) {
            self.wait(self.ctx.now)?;
            if !self.go_on() {
                self.say_why_it_ends(true);
                return Ok(());
            }
            self.heed_upgrades();
        }
        self.say_why_it_ends(false);
        Ok(())
    }

    /// Does what there is to do. Returns whether the daemon goes on.
    fn go_on(&mut self) -> bool {
        let now = Instant::now();
        self.ctx.now = now;
        for token in std::mem::take(&mut self.ready) {
            if token == Token::Stop {
                if !self.drain(now) {
                    return false;
                }
            } else if self.serve(now, token) {
                self.ready.push(token);
            }
        }
        self.turn(now);
        true
    }

    /// Sees to a descriptor that is ready. Returns whether there may be more.
    fn serve(&mut self, now: Instant, token: Token) -> bool {
        match token {
            Token::Stop => false,
            Token::Listener => {
                self.accept(now);
                false
            }
            Token::Watch => {
                let changed = self.watch.next_change(now);
                if changed {
                    self.sync_devices_with_links(now);
                }
                changed
            }
            Token::Port { device } => {
                let nic = &mut self.ctx.devices[device].nic;
                let sent = if nic.is_blocked() { nic.send(now) } else { Ok(false) };
                // An error of the socket is read by receiving.
                let received = sent.and_then(|_| nic.receive(now));
                self.note_port(device, received).unwrap_or(false)
            }
            Token::Slot { slot } => {
                self.slots.flush(now, slot);
                for _ in 0..MESSAGES_PER_TURN {
                    if self.is_held_back(now, slot) {
                        return false;
                    }
                    let Some(message) = self.slots.recv(slot) else { return false };
                    self.hear(slot, message);
                }
                true
            }
            Token::Workers => {
                self.slots.reap(now);
                false
            }
            // The turn sees to it.
            Token::Woken => false,
        }
    }

    /// What needs no descriptor to be ready.
    fn turn(&mut self, now: Instant) {
        self.heed_changes();
        self.admit(now);
        self.captures.see_to_new_slots(&self.ctx, &mut self.slots);
        if let Some(number) = self.freeing.pop_front() {
            self.free_some(number);
        }
        for index in 0..self.ctx.devices.len() {
            let device = &mut self.ctx.devices[index];
            let timers = device.handle_timers(now);
            self.ctx.cm.poll(now, index, device);
            let sent = timers.and_then(|()| device.nic.transmit(now));
            self.note_port(index, sent);
        }
        self.tell_of_events();
        while let Some((session, reply)) = self.gatherings.give_up(&self.ctx, &mut self.slots) {
            self.answer(session, Ok(reply));
        }
        self.snapshots.go_on(&self.ctx, &mut self.slots, &mut self.gatherings);
        if self.watch.poll_timeout().is_some_and(|at| at <= now) {
            self.ready.push(Token::Watch);
        }
        self.look_again_at_refused(now);
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.ready.push(Token::Listener);
        }
        self.look_again_at_held_back(now);
        while let Some(slot) = self.slots.end_of_turn(now, &mut self.ctx.devices) {
            self.end_of_slot(slot);
        }
    }

    /// What became of receiving or sending for QP1 of a device. If the port has failed for good,
    /// that is said once, and it is not looked at any more.
    fn note_port<T>(&mut self, index: usize, result: io::Result<T>) -> Option<T> {
        let device = &mut self.ctx.devices[index];
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        if !std::mem::replace(&mut device.has_failed, true) {
            device.counters.broker_ports_failed += 1;
            log_failed_port(device, &error);
        }
        None
    }

    /// A slot has said something.
    fn hear(&mut self, slot: usize, message: ToBroker) {
        match message {
            ToBroker::Named { session, name } => {
                // OWN-004
                let is_name = name.len() <= MAX_SHOWN_NAME;
                if let Some(session) = self.session_of(slot, session).filter(|_| is_name) {
                    session.program = Program { name: name.into(), ..session.program };
                    if !std::mem::replace(&mut session.is_named, true) {
                        log_begin(session);
                    }
                }
            }
            ToBroker::Request { session, request } => {
                if self.may_ask(slot, session) {
                    self.handle(session, request);
                }
            }
            ToBroker::Join { session, device, group } => {
                if self.may_ask(slot, session) {
                    self.join(slot, session, device, group);
                }
            }
            ToBroker::Gone { session } => {
                if self.session_of(slot, session).is_some() {
                    self.program_is_gone(session);
                }
            }
            ToBroker::Freed { session } => self.slot_has_freed(slot, session),
            ToBroker::Established { device, qpn } => {
                // SLOT-008
                let is_own = SlotId::named_by(qpn).index() == slot;
                let entry = self.ctx.devices.get_mut(device).filter(|_| is_own);
                if let Some(entry) = entry {
                    self.ctx.cm.on_data(self.ctx.now, device, entry, qpn);
                }
            }
            ToBroker::Log { session, what, unlogged } => self.log(slot, session, what, unlogged),
            // That it has said anything is enough.
            ToBroker::Here => {}
            ToBroker::Found { number, found } => {
                let Some(found) = self.snapshots.found(slot, number, found) else { return };
                let complete =
                    self.gatherings.found(&self.ctx, &mut self.slots, slot, number, found);
                if let Some((session, reply)) = complete {
                    self.answer(session, Ok(reply));
                }
            }
        }
    }

    /// A session, if it is of this slot: none speaks for another's.
    fn session_of(&mut self, slot: usize, session: u64) -> Option<&mut Session> {
        // SLOT-008
        self.sessions.get_mut(&session).filter(|session| session.slot == slot && session.is_in_slot)
    }

    /// Has a slot join a multicast group by sockets that it may not open itself.
    fn join(&mut self, slot: usize, number: u64, device: usize, group: IpAddr) {
        let Some(entry) = self.ctx.devices.get(device) else { return };
        let answer = match entry.join(group) {
            Ok(sockets) => {
                let message = ToSlot::AddAddress { device, addr: group };
                self.slots.send(self.ctx.now, slot, message, sockets.fds);
                Ok(Reply::Done)
            }
            Err(source) => Err(cannot_join(group, &source)),
        };
        self.answer(number, answer);
    }

    /// Begins a capture, and says so when all slots take part.
    fn begin_capture(&mut self, number: u64, spec: CaptureSpec) {
        let Some(session) = self.sessions.get(&number) else { return };
        let (ctx, slots, request) =
            (&mut self.ctx, &mut self.slots, Request::BeginCapture(spec.clone()));
        match self.captures.begin(session, ctx, slots, spec) {
            // TAP-008
            Ok(begun) => {
                let answer = self.gatherings.when_taken(session, ctx, slots, request, begun);
                if let Some((_, begun)) = answer {
                    self.answer(number, Ok(begun));
                }
            }
            Err(error) => self.answer(number, Err(error)),
        }
    }

    /// Does what a program asks of the broker.
    fn handle(&mut self, number: u64, request: Request) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let answer = match request {
            Request::Cm(request) => cm::handle(session, &mut self.ctx, request),
            Request::CmWithin { channel, request } => {
                cm::handle_within(session, &mut self.ctx, channel, request)
            }
            Request::HostSlot => return self.host_slot(number),
            Request::BeginCapture(spec) => return self.begin_capture(number, spec),
            Request::NextCaptureStream => {
                return match self.captures.next(number) {
                    Ok((reply, fds)) => self.answer_with_fds(number, Ok(reply), fds),
                    Err(error) => self.answer(number, Err(error)),
                };
            }
            request => match self.gatherings.begin(session, &self.ctx, &mut self.slots, &request) {
                Ok(Some((_, reply))) => Ok(Answer::Reply(reply)),
                Ok(None) => return,
                Err(error) => Err(error),
            },
        };
        match answer {
            Ok(Answer::Reply(reply)) => self.answer(number, Ok(reply)),
            Ok(Answer::WhenFreed) => {
                session.answers_when_freed = true;
                self.freeing.push_back(number);
            }
            Err(error) => self.answer(number, Err(error)),
        }
    }

    fn answer(&mut self, number: u64, answer: Result<Reply, ControlError>) {
        self.answer_with_fds(number, answer, Vec::new());
    }

    /// Answers a program by its slot, after what its channels hold: with the answer it may look.
    fn answer_with_fds(
        &mut self,
        number: u64,
        answer: Result<Reply, ControlError>,
        fds: Vec<OwnedFd>,
    ) {
        // SLOT-005
        self.tell_of_events();
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.has_asked = false;
        let message = ToSlot::Answer { session: number, answer };
        self.slots.send(self.ctx.now, session.slot, message, fds);
    }

    /// Tells slots which channels of the connection manager have events.
    fn tell_of_events(&mut self) {
        while let Some(news) = self.ctx.cm.next_news() {
            let cm::ChannelNews { session, channel, waiting } = news;
            if let Some(slot) = self.sessions.get(&session).map(|session| session.slot) {
                let message = ToSlot::CmEvents { session, channel, waiting };
                self.slots.send(self.ctx.now, slot, message, Vec::new());
            }
        }
    }

    /// Frees a slice of what is to be freed of a session, which has its next turn after all others.
    fn free_some(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        cm::free_some(session, &mut self.ctx);
        if session.cm.is_freeing() {
            self.freeing.push_back(number);
            return;
        }
        if std::mem::take(&mut session.answers_when_freed) {
            self.answer(number, Ok(Reply::Done));
        }
        self.forget_if_over(number);
    }

    /// The program of a session is gone, or is to go.
    fn program_is_gone(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number).filter(|session| session.is_open) else {
            return;
        };
        session.is_open = false;
        session.answers_when_freed = false;
        log_end(session);
        session.cm.begin_teardown();
        self.captures.end(number, &mut self.ctx, &mut self.slots);
        self.freeing.push_back(number);
        self.open_sessions -= 1;
        self.alone_since = Instant::now();
        self.ctx.counters.sessions_closed += 1;
    }

    /// A slot is gone, and all its programs with it.
    fn end_of_slot(&mut self, slot: usize) {
        // A program's own ends with the program.
        self.ctx.counters.slots_ended += u64::from(!self.slots.is_hosted(slot));
        let of_slot = self.sessions.values_mut().filter(|session| session.slot == slot);
        let mut numbers = Vec::new();
        for session in of_slot.filter(|session| session.is_in_slot) {
            session.is_in_slot = false;
            numbers.push(session.number);
        }
        for number in numbers {
            self.program_is_gone(number);
            self.forget_if_over(number);
        }
    }

    fn forget_if_over(&mut self, number: u64) {
        if self.sessions.get(&number).is_some_and(Session::is_over) {
            if let Some(session) = self.sessions.remove(&number) {
                self.admission.end(session.program.uid);
            }
            let is_last = self.sessions.is_empty();
            debug_assert!(
                !is_last || self.ctx.cm.is_empty(),
                "its program is gone, and nothing else frees it"
            );
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self, now: Instant) -> io::Result<()> {
        let has_more = !self.ready.is_empty()
            || !self.freeing.is_empty()
            || self.slots.has_failed()
            || self.ctx.devices.iter().any(|device| device.nic.is_due() && !device.has_failed);
        let deadlines = self.ctx.devices.iter().filter_map(RdmaDevice::deadline);
        let deadlines = deadlines.chain(self.accept_again).chain(self.held_back.look_again);
        let deadlines = deadlines.chain(self.refused_again);
        let deadlines = deadlines.chain(self.watch.poll_timeout());
        let deadlines = deadlines.chain(self.gatherings.deadline()).chain(self.slots.deadline());
        let deadlines = deadlines.chain(self.admission.deadline()).chain(self.snapshots.deadline());
        let deadline = deadlines.chain(self.end_at()).min();
        // SHARE-138
        if !has_more && self.ctx.devices.iter().any(|device| device.nic.is_flooded(now)) {
            std::thread::sleep(FLOOD_PAUSE);
        }
        let timeout = match has_more {
            true => Some(Duration::ZERO),
            false => deadline.map(|at| at.saturating_duration_since(now)),
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HELLO_TIMEOUT;
    use crate::log::Style;
    use crate::log::testing::logged;
    use urxe_shm::control::channel::Channel;
    use urxe_shm::control::closing::execute;
    use urxe_shm::control::{CmChannelHandle, CmRequest};

    /// A broker without devices, driven turn by turn, and where programs connect.
    struct Driven {
        event_loop: EventLoop,
        socket: PathBuf,
        _stop: OwnedFd,
    }

    impl Driven {
        fn new(test: &str, slots: usize) -> Driven {
            let name = format!("urxed-broker-{}-{test}.sock", std::process::id());
            let socket = std::env::temp_dir().join(name);
            let (read_end, stop) = rustix::pipe::pipe().unwrap();
            let beginning = Beginning {
                listener: Listener::bind(&socket, 0o600).unwrap(),
                devices: Vec::new(),
                plans: Vec::new(),
                slots: SlotPlan::with_own(slots).unwrap(),
                worker: None,
                tuning: Tuning::default(),
                watch: Watch::open(Instant::now()),
                stop: read_end,
                changeable: Changeable::default(),
            };
            let event_loop = EventLoop::new(Instant::now(), beginning).unwrap();
            Driven { event_loop, socket, _stop: stop }
        }

        /// Lets the broker go on until something is the case.
        fn until(&mut self, is_so: impl Fn(&EventLoop) -> bool) {
            let since = Instant::now();
            while !is_so(&self.event_loop) {
                assert!(since.elapsed() < Duration::from_secs(60), "it never came to be");
                let event_loop = &mut self.event_loop;
                event_loop.poll.poll(&mut event_loop.events, Some(Duration::ZERO)).unwrap();
                let tokens = event_loop.events.iter().map(|event| event.token());
                let tokens: Vec<_> = tokens.map(Token::from_mio).collect();
                event_loop.ready.extend(tokens);
                assert!(event_loop.go_on());
            }
        }

        /// A program that asks for the devices; returns what it is told.
        fn ask(&mut self, program: &mut Channel) -> Option<Reply> {
            for request in [Request::Hello { program: "test".into() }, Request::ListDevices] {
                program.send(&request, &[]).ok()?;
            }
            // The slot answers by itself.
            program.recv::<Reply>().ok()?;
            program.recv::<Reply>().ok().map(|(reply, _)| reply)
        }
    }

    #[test]
    fn a_slot_that_ends_takes_its_own_programs_with_it_and_is_started_again() {
        let mut driven = Driven::new("ends", 2);
        let mut programs: Vec<Channel> = Vec::new();
        for opened in 1..=2 {
            programs.push(Channel::connect(&driven.socket).unwrap());
            driven.until(|broker| broker.ctx.counters.sessions_opened == opened);
        }
        for program in &mut programs {
            assert_eq!(driven.ask(program), Some(Reply::Devices(Vec::new())));
        }
        // Each went to a slot of its own.
        let first = driven.event_loop.sessions[&1].slot;
        assert_ne!(first, driven.event_loop.sessions[&2].slot);
        driven.event_loop.slots.shut_down(first);
        driven.until(|broker| broker.ctx.counters.slots_ended == 1);
        driven.until(|broker| broker.sessions.len() == 1);
        assert_eq!(driven.event_loop.ctx.counters.sessions_closed, 1);
        assert!(!driven.event_loop.slots.is_running(first));
        assert!(programs[0].recv::<Reply>().is_err(), "its program has lost the connection");
        programs[1].send(&Request::ListDevices, &[]).unwrap();
        assert!(programs[1].recv::<Reply>().is_ok(), "the other one has not noticed");
        // The next program goes to the slot with the fewest, which is that one.
        let mut next = Channel::connect(&driven.socket).unwrap();
        driven.until(|broker| broker.ctx.counters.sessions_opened == 3);
        assert_eq!(driven.event_loop.sessions[&3].slot, first);
        assert_eq!(driven.ask(&mut next), Some(Reply::Devices(Vec::new())));
    }

    #[test]
    fn a_slot_that_takes_nothing_is_given_up_and_the_broker_goes_on() {
        let mut driven = Driven::new("stuck", 2);
        let stuck = driven.event_loop.slots.replace_by_one_that_is_stuck(1);
        let now = Instant::now();
        let said = logged(Style::Text, "warn", || {
            while !driven.event_loop.slots.has_failed() {
                let message = ToSlot::CmEvents { session: 1, channel: 1, waiting: true };
                driven.event_loop.slots.send(now, 1, message, Vec::new());
            }
        });
        driven.until(|broker| broker.ctx.counters.slots_ended == 1);
        assert!(said.contains("slot 1 is given up"), "{said}");
        drop(stuck);
        let mut program = Channel::connect(&driven.socket).unwrap();
        driven.until(|broker| broker.ctx.counters.sessions_opened == 1);
        assert_eq!(driven.ask(&mut program), Some(Reply::Devices(Vec::new())));
    }

    #[test]
    fn a_slot_does_not_speak_for_the_sessions_of_another() {
        let mut driven = Driven::new("speaks", 2);
        let mut program = Channel::connect(&driven.socket).unwrap();
        driven.until(|broker| broker.ctx.counters.sessions_opened == 1);
        let event_loop = &mut driven.event_loop;
        let other = 3 - event_loop.sessions[&1].slot;
        let request = Request::Cm(CmRequest::CreateChannel);
        event_loop.hear(other, ToBroker::Request { session: 1, request });
        event_loop.hear(other, ToBroker::Gone { session: 1 });
        event_loop.hear(other, ToBroker::Freed { session: 1 });
        assert!(event_loop.sessions[&1].is_open && event_loop.ctx.cm.is_empty());
        assert!(driven.ask(&mut program).is_some());
    }

    /// SHARE-127
    #[test]
    fn while_enough_is_to_be_closed_nobody_is_accepted_and_no_program_is_heard_as_a_slot() {
        let mut driven = Driven::new("closes", 1);
        let (now, event_loop) = (Instant::now(), &mut driven.event_loop);
        let (slot, link) = event_loop.slots.host(now, &mut event_loop.ctx.devices).unwrap();
        let (socket, _session) = Channel::pair_with_program().unwrap();
        event_loop.open_session(now, slot, 0, 0, socket);
        // While a program begins, nothing is closed.
        let begins = execute(Ok).unwrap();
        while event_loop.slots.has_room_to_close() {
            event_loop.slots.close(std::io::pipe().unwrap().0.into());
        }
        let _program = Channel::connect(&driven.socket).unwrap();
        drop(link);
        event_loop.accept(now);
        assert!(event_loop.accept_again.is_some());
        assert!(!event_loop.serve(now, Token::Slot { slot }));
        assert!(event_loop.held_back.look_again.is_some());
        assert_eq!(event_loop.ctx.counters.sessions_opened, 1);
        assert!(event_loop.slots.is_running(slot), "its end is not read");
        drop(begins);
        driven.until(|broker| broker.ctx.counters.sessions_opened == 2);
        driven.until(|broker| !broker.slots.is_running(slot));
    }

    /// OWN-036
    #[test]
    fn a_program_asks_again_when_it_was_answered_and_not_before() {
        let mut driven = Driven::new("asks", 1);
        let _program = Channel::connect(&driven.socket).unwrap();
        driven.until(|broker| broker.ctx.counters.sessions_opened == 1);
        let event_loop = &mut driven.event_loop;
        let slot = event_loop.sessions[&1].slot;
        let create = || Request::Cm(CmRequest::CreateChannel);
        for _ in 0..3 {
            event_loop.hear(slot, ToBroker::Request { session: 1, request: create() });
            assert!(!event_loop.slots.has_failed(), "it is answered at once");
        }
        let channel = CmChannelHandle(1);
        let destroy = Request::Cm(CmRequest::DestroyChannel { channel });
        event_loop.hear(slot, ToBroker::Request { session: 1, request: destroy });
        assert!(event_loop.sessions[&1].has_asked && !event_loop.slots.has_failed());
        let said = logged(Style::Text, "warn", || {
            for _ in 0..3 {
                event_loop.hear(slot, ToBroker::Request { session: 1, request: create() });
            }
        });
        assert_eq!(said.matches("slot 1 is given up: it asks again").count(), 1, "{said}");
        assert_eq!(event_loop.ctx.cm.counters.cm_channels_created, 3);
        driven.until(|broker| broker.sessions.is_empty());
    }

    #[test]
    fn a_program_that_does_not_say_who_it_is_makes_room_for_others() {
        let mut driven = Driven::new("silent", 1);
        let mut program = Channel::connect(&driven.socket).unwrap();
        let mut silent = Channel::connect(&driven.socket).unwrap();
        driven.until(|broker| broker.ctx.counters.sessions_opened == 2);
        program.send(&Request::Hello { program: "test".into() }, &[]).unwrap();
        driven.until(|broker| broker.sessions[&1].is_named);
        let then = Instant::now() + HELLO_TIMEOUT;
        driven.event_loop.admit(then);
        driven.until(|broker| broker.sessions.len() == 1);
        assert!(silent.recv::<Reply>().is_err());
        assert!(program.recv::<Reply>().is_ok());
        assert_eq!(driven.event_loop.ctx.counters.sessions_silent, 1);
    }
}
