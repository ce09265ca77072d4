//! A slot's one thread: waits for something to do, does some of everything, and waits again.
//!
//! Each turn looks at all descriptors with one system call, or at the ports alone, without it,
//! where there was work and that was done just now ([`ASK_EVERY`]). Then it takes in at most one
//! receive call's worth of packets from each port, control requests of sessions for a while
//! ([`control`]), all doorbells, and what timers are due; then it lets every device send a bounded
//! number of batches, but for an ACK that waits for what it can go with ([`ack_hold`]). So whatever
//! keeps the loop busy, everything else has its turn. A descriptor that had more than its share
//! stays on the list of those that are ready, since mio tells of each one only once.
//!
//! After the last piece of work the loop keeps looking for [`SPIN`], yielding the processor each
//! time, and then sleeps; at once if others do not give the processor back ([`yielding`]).
//! Before it sleeps, it tells the sessions through their doorbell pages; a program that rings from
//! then on also writes to the session's eventfd. A session that has not rung for a while is told so
//! even before, and then costs nothing until it rings ([`Awake`]). And they are told whether the
//! loop is kept from the processor ([`Crowding`]), so that their threads do not poll in vain.

mod ack_hold;
mod control;
mod pause;
mod pollers;
mod run;
mod yielding;

use crate::alarm::Alarm;
use crate::awake::Awake;
use crate::counters::DaemonCounters;
use crate::crowding::{Crowding, Sleepers};
use crate::device::SlotDevice;
use crate::history_file::{self, HistoryWriter};
use crate::link::{Link, LinkError, ToBroker, ToSlot};
use crate::log::{self, LogLimit};
use crate::session::{Session, SlotCtx};
use crate::token::Token;
use crate::unmapper::Unmapper;
use crate::{Allotment, SlotError};
use ack_hold::AckHold;
use control::Control;
use mio::unix::SourceFd;
use mio::{Interest, Registry};
pub(crate) use pollers::HandOff;
use pollers::Pollers;
use run::LentPoll;
pub(crate) use run::{Locked, run};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;
use urxe_engine::Counter;
use urxe_nic::guard_addresses;
use urxe_shm::control::closing::Closer;
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
    ack_hold: AckHold,
    /// Why a turn of such a thread has failed.
    failed: Option<SlotError>,
    alarm: Alarm,
    /// Descriptors that were ready and have not said since that there is nothing more.
    ready: Vec<Token>,
    /// What there is to do beside the data path.
    control: Control,
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
        closer: Closer,
        unmapper: Unmapper,
    ) -> io::Result<EventLoop> {
        let mut event_loop = EventLoop {
            poll: LentPoll::new()?,
            pollers: Pollers::new(now),
            ports_are_watched: true,
            ack_hold: AckHold::new(now),
            failed: None,
            alarm: Alarm::new()?,
            ready: Vec::new(),
            control: Control::new(),
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
                closer,
                refused: Vec::new(),
                unmapper,
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
            match token {
                Token::Session { key } => self.control.askers.note(key),
                Token::Link => self.control.link_is_ready = true,
                token if self.ready.contains(&token) => {}
                token => self.ready.push(token),
            }
        }
    }

    /// Has all ports looked at in the next turn.
    fn note_ports_ready(&mut self) {
        let ports = (0..self.ctx.devices.len()).map(|device| Token::Port { device });
        self.note_ready(ports);
    }

    /// Has the ports looked at in the next turn in which something waits that their descriptors do
    /// not tell of while the slot is awake.
    fn note_waiting(&mut self) {
        for device in 0..self.ctx.devices.len() {
            if self.ctx.devices[device].nic.port_has_waiting() {
                self.note_ready([Token::Port { device }].into_iter());
            }
        }
    }

    /// Tells the sessions and the ports that the slot is about to sleep; `false` if it must not.
    fn fall_asleep(&mut self) -> bool {
        // All are told, also if one has something.
        let arm = |none, device: &mut SlotDevice| device.nic.arm_port() && none;
        self.ctx.devices.iter_mut().fold(true, arm)
            && self.awake.fall_asleep(|key| self.sessions.get(key))
    }

    /// Tells the sessions and the ports that the slot is awake.
    fn wake_up(&mut self) {
        self.awake.wake_up(|key| self.sessions.get(key));
        self.ctx.devices.iter_mut().for_each(|device| device.nic.disarm_port());
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
        // TRAIN-030
        let owes_an_ack = self.ports_are_watched
            && self.ctx.devices.iter().any(|device| device.nic.owes_only_an_ack());
        let ack_waits = self.ack_hold.waits(now, owes_an_ack, worked, &mut self.ctx.counters);
        for (index, device) in self.ctx.devices.iter_mut().enumerate() {
            worked |= device.nic.handle_timers(now).map_err(SlotError::Port)?;
            device.tell_broker(now, index, &mut self.ctx.to_broker);
            if !(ack_waits && device.nic.owes_only_an_ack()) {
                worked |= device.nic.transmit(now).map_err(SlotError::Port)?;
            }
        }
        log::qps_that_failed(&mut self.ctx);
        self.watch_full_channels();
        Ok(worked)
    }

    /// Sees to a descriptor that is ready.
    fn serve(&mut self, now: Instant, token: Token) -> Result<Progress, SlotError> {
        match token {
            // The latter two were noted.
            Token::Alarm | Token::Link | Token::Session { .. } => Ok(NOTHING),
            Token::Ring { key } => {
                if let Some(session) = self.sessions.get(key) {
                    self.awake.wake(now, key, session);
                }
                Ok(NOTHING)
            }
            Token::Port { device } => {
                let nic = &mut self.ctx.devices[device].nic;
                let sent = nic.is_blocked() && nic.send(now).map_err(SlotError::Port)?;
                // An error of the socket is read by receiving.
                let received = nic.receive(now).map_err(SlotError::Port)?;
                Ok(Progress { worked: received || sent, more: received })
            }
            Token::Channel { device, channel } => {
                let registry = self.poll.registry();
                let nic = &mut self.ctx.devices[device].nic;
                nic.flush_channel(channel, |fd| deregister(registry, fd));
                Ok(NOTHING)
            }
        }
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

    /// Whether threads that poll had better sleep. Not those that take turns.
    fn is_crowded(&self) -> bool {
        // CLIENT-020
        self.ports_are_watched && self.crowding.is_crowded()
    }

    fn tell_whether_crowded(&self) {
        let crowded = self.is_crowded();
        self.sessions.iter().for_each(|(_, session)| session.set_crowded(crowded));
    }

    /// Wakes threads of programs that sleep between polls.
    fn wake(&self, sleepers: Sleepers) {
        self.sessions.iter().for_each(|(_, session)| session.wake(sleepers));
    }

    /// Whether there is more to do right away.
    fn has_more(&self, now: Instant) -> bool {
        !self.ready.is_empty() || self.control_due(now).is_some_and(|due| due <= now)
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
        let slot = std::thread::spawn(|| serve(socket, None));
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
