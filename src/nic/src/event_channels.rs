//! The event channels of a data path, and which of them are watched until they have room again.

use crate::event_pipe::{Delivery, EventPipe};
use crate::objects::{ChannelId, EventTarget};
use std::os::fd::BorrowedFd;
use urxe_shm::control::event::EventRecord;
use urxe_types::Slab;

/// A channel that events of a program go to.
struct Channel {
    pipe: EventPipe,
    /// What it says of the port, if it is of asynchronous events.
    port_events: Option<EventTarget>,
}

/// All event channels. What goes wrong with one is a matter of its program alone.
#[derive(Default)]
pub(crate) struct EventChannels {
    channels: Slab<Channel>,
    /// Those whose records began to wait since the last time that this was looked at.
    full: Vec<ChannelId>,
    /// Records are to wait: the pipes are not open where we are.
    is_held: bool,
}

impl EventChannels {
    /// Takes a channel in; `None` if there is no room for another.
    pub(crate) fn insert(&mut self, pipe: EventPipe) -> Option<ChannelId> {
        self.channels.insert(Channel { pipe, port_events: None }).map(ChannelId)
    }

    /// Has a channel told what happens to the port, in these words.
    pub(crate) fn tell_of_port(&mut self, id: ChannelId, target: EventTarget) {
        if let Some(channel) = self.channels.get_mut(id.0) {
            channel.port_events = Some(target);
        }
    }

    /// Lets go of a channel: closing it ends that it is watched.
    pub(crate) fn remove(&mut self, id: ChannelId) {
        self.channels.remove(id.0);
    }

    /// What the channels say of the port that are told of it.
    pub(crate) fn port_events(&self) -> impl Iterator<Item = EventTarget> + '_ {
        self.channels.iter().filter_map(|(_, channel)| channel.port_events)
    }

    /// Sends a record. Returns whether its program will get it, if it reads.
    pub(crate) fn send(&mut self, id: ChannelId, record: EventRecord) -> bool {
        let send = if self.is_held { EventPipe::hold } else { EventPipe::send };
        match self.channels.get_mut(id.0).map(|channel| send(&mut channel.pipe, record)) {
            Some(Delivery::Delivered) => true,
            Some(Delivery::Blocked) => {
                self.full.push(id);
                true
            }
            Some(Delivery::Lost) | None => false,
        }
    }

    /// Has all records wait, or no longer.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether records have begun to wait that nobody was told of.
    pub(crate) fn has_held(&self) -> bool {
        !self.full.is_empty()
    }

    /// Sends what waits only because it was [held](Self::hold).
    pub(crate) fn flush_held(&mut self) {
        let channels = &mut self.channels;
        self.full.retain(|id| channels.get_mut(id.0).is_some_and(|channel| !channel.pipe.flush()));
    }

    /// Takes back the records of an object that is no more.
    pub(crate) fn withdraw(&mut self, id: ChannelId, object: u32) {
        let found = self.channels.get_mut(id.0);
        if found.is_some_and(|channel| channel.pipe.withdraw(object)) {
            self.full.push(id);
        }
    }

    /// Has the channels watched, by means of `register`, that have become full, until they are
    /// [flushed](Self::flush). Returns those for which that failed: their events wait for ever.
    pub(crate) fn watch_full<E>(
        &mut self,
        mut register: impl FnMut(ChannelId, BorrowedFd<'_>) -> Result<(), E>,
    ) -> Vec<ChannelId> {
        let mut failed = Vec::new();
        for id in self.full.drain(..) {
            let Some(channel) = self.channels.get_mut(id.0) else { continue };
            // HOST-027
            if channel.pipe.watch(|fd| register(id, fd)).is_err() {
                failed.push(id);
            }
        }
        failed
    }

    /// Sends what waits in a channel that has room again, and has it watched no longer, by means
    /// of `deregister`, if nothing is left.
    pub(crate) fn flush(&mut self, id: ChannelId, deregister: impl FnOnce(BorrowedFd<'_>)) {
        if let Some(channel) = self.channels.get_mut(id.0)
            && channel.pipe.flush()
        {
            channel.pipe.unwatch(deregister);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_pipe::PIPE_LEN;
    use crate::limits::MAX_WAITING_EVENTS;
    use proptest::prelude::*;
    use rustix::event::epoll;
    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;
    use rustix::time::Timespec;
    use std::collections::{BTreeSet, VecDeque};
    use std::os::fd::{AsRawFd, OwnedFd};
    use urxe_shm::control::event::RECORD_LEN;

    /// Programs of the model, each with a channel.
    const PROGRAMS: usize = 3;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// Events of an object.
        Send { object: u32, count: u32 },
        /// An object is destroyed.
        Withdraw { object: u32 },
        /// The program reads so many records, or as many as there are.
        Read { count: u32 },
        /// The program makes the pipe hold so much.
        Resize { len: usize },
        /// The program writes into its pipe.
        Scribble { len: usize },
        /// The program closes its end.
        Close,
        /// The channel is destroyed, and the program makes another.
        Renew,
        /// The event loop has its turn.
        Turn,
        /// The event loop has its turn, and the system refuses to watch this program's channel.
        TurnRefused,
    }

    fn op() -> impl Strategy<Value = Op> {
        let object = 0..3u32;
        prop_oneof![
            6 => (object.clone(), 1..400u32).prop_map(|(object, count)| Op::Send { object, count }),
            3 => object.prop_map(|object| Op::Withdraw { object }),
            3 => (1..400u32).prop_map(|count| Op::Read { count }),
            2 => prop_oneof![Just(4096), Just(PIPE_LEN), Just(2 * PIPE_LEN)]
                .prop_map(|len| Op::Resize { len }),
            1 => (1..10_000usize).prop_map(|len| Op::Scribble { len }),
            1 => Just(Op::Close),
            1 => Just(Op::Renew),
            4 => Just(Op::Turn),
            1 => Just(Op::TurnRefused),
        ]
    }

    /// A program, and what it is to read.
    struct Program {
        channel: ChannelId,
        read_end: Option<OwnedFd>,
        /// What was sent, and whether it may be missing: its object is no more.
        expected: VecDeque<(EventRecord, bool)>,
        /// It has made its pipe larger: what is in there cannot be taken back always.
        is_large: bool,
        /// It has written into its pipe itself: whatever it reads is its own affair.
        is_spoilt: bool,
    }

    /// The channels as the event loop watches them, and the programs.
    struct Model {
        channels: EventChannels,
        epoll: OwnedFd,
        programs: [Option<Program>; PROGRAMS],
        sent: u64,
    }

    impl Model {
        fn new() -> Model {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let (channels, programs) = (EventChannels::default(), [const { None }; PROGRAMS]);
            let mut model = Model { channels, epoll, programs, sent: 0 };
            (0..PROGRAMS).for_each(|program| model.renew(program));
            model
        }

        fn renew(&mut self, program: usize) {
            if let Some(old) = &self.programs[program] {
                self.channels.remove(old.channel);
            }
            let (pipe, read_end) = EventPipe::new().unwrap();
            rustix::io::ioctl_fionbio(&read_end, true).unwrap();
            let channel = self.channels.insert(pipe).unwrap();
            self.programs[program] = Some(Program {
                channel,
                read_end: Some(read_end),
                expected: VecDeque::new(),
                is_large: false,
                is_spoilt: false,
            });
        }

        /// The turn of the event loop, for which the system watches all but one program's channel.
        fn turn(&mut self, refused: Option<usize>) {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut events = Vec::with_capacity(PROGRAMS);
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.epoll, spare, Some(&now)).unwrap();
            for event in &events {
                let id = ChannelId(event.data.u64() as u32);
                self.channels.flush(id, |fd| epoll::delete(&self.epoll, fd).unwrap());
            }
            let refused = refused.and_then(|program| self.programs[program].as_ref());
            let refused = refused.map(|program| program.channel);
            let mut was_refused = BTreeSet::new();
            let failed = self.channels.watch_full(|id, fd| {
                if Some(id) == refused {
                    was_refused.insert(id.0);
                    return Err(Errno::NOSPC);
                }
                let flags = epoll::EventFlags::OUT | epoll::EventFlags::ET;
                epoll::add(&self.epoll, fd, epoll::EventData::new_u64(id.0.into()), flags)
            });
            // HOST-027: nothing but a refusal of the system ends a program, and no other's.
            let failed: BTreeSet<u32> = failed.into_iter().map(|id| id.0).collect();
            assert_eq!(failed, was_refused);
            for program in &mut self.programs {
                if program.as_ref().is_some_and(|program| failed.contains(&program.channel.0)) {
                    self.channels.remove(program.take().unwrap().channel);
                }
            }
        }

        fn send(&mut self, program: usize, object: u32) {
            let Some(program) = &mut self.programs[program] else { return };
            self.sent += 1;
            let object = object.into();
            let record = EventRecord { object, user_handle: self.sent, ..EventRecord::default() };
            if self.channels.send(program.channel, record) {
                program.expected.push_back((record, false));
            } else {
                let is_full = program.expected.len() >= MAX_WAITING_EVENTS;
                assert!(is_full || program.is_spoilt || program.read_end.is_none());
            }
        }

        fn withdraw(&mut self, program: usize, object: u32) {
            let Some(program) = &mut self.programs[program] else { return };
            self.channels.withdraw(program.channel, object);
            let is_other = |record: &EventRecord| record.object != object.into();
            match program.is_large {
                true => program.expected.iter_mut().for_each(|(record, may_be_missing)| {
                    *may_be_missing |= !is_other(record);
                }),
                false => program.expected.retain(|(record, _)| is_other(record)),
            }
        }

        /// Reads a record and says whether there was one; it is the one that was to come.
        fn read(&mut self, program: usize) -> bool {
            let Some(program) = &mut self.programs[program] else { return false };
            let Some(read_end) = &program.read_end else { return false };
            let mut bytes = [0; RECORD_LEN];
            let Ok(1..) = rustix::io::read(read_end, &mut bytes) else { return false };
            if !program.is_spoilt {
                let got = EventRecord::from_bytes(bytes);
                while let Some((record, may_be_missing)) = program.expected.pop_front()
                    && record != got
                {
                    assert!(may_be_missing, "{record:?} is missing before {got:?}");
                }
            }
            true
        }

        fn scribble(&mut self, program: usize, len: usize) {
            let Some(program) = &mut self.programs[program] else { return };
            let Some(read_end) = &program.read_end else { return };
            let name = format!("/proc/self/fd/{}", read_end.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let write_end = rustix::fs::open(name, flags, Mode::empty()).unwrap();
            let _ = rustix::io::write(&write_end, &vec![0xa5; len]);
            program.is_spoilt = true;
        }

        fn resize(&mut self, program: usize, len: usize) {
            let Some(program) = &mut self.programs[program] else { return };
            let Some(read_end) = &program.read_end else { return };
            let _ = rustix::pipe::fcntl_setpipe_size(read_end, len);
            program.is_large |= len > PIPE_LEN;
        }

        fn apply(&mut self, program: usize, op: Op) {
            match op {
                Op::Send { object, count } => (0..count).for_each(|_| self.send(program, object)),
                Op::Withdraw { object } => self.withdraw(program, object),
                Op::Read { count } => {
                    for _ in 0..count {
                        self.read(program);
                    }
                }
                Op::Resize { len } => self.resize(program, len),
                Op::Scribble { len } => self.scribble(program, len),
                Op::Close => {
                    self.programs[program].as_mut().into_iter().for_each(|it| it.read_end = None);
                }
                Op::Renew => self.renew(program),
                Op::Turn => self.turn(None),
                Op::TurnRefused => self.turn(Some(program)),
            }
        }
    }

    proptest! {
        /// Whatever programs do with their pipes, and in whatever order: a channel is registered
        /// when it has to be and never twice, none ends but the one that the system refuses to
        /// watch, and what was delivered comes in order.
        #[test]
        fn no_pipe_ends_more_than_its_program_and_no_event_is_left_behind(
            ops in prop::collection::vec((0..PROGRAMS, op()), 0..80),
        ) {
            let mut model = Model::new();
            for (program, op) in ops {
                model.apply(program, op);
            }
            for program in 0..PROGRAMS {
                // One turn has the channel watched, the next finds that it has room.
                let two_turns = |model: &mut Model| (0..2).for_each(|_| model.turn(None));
                while model.read(program) || { two_turns(&mut model); model.read(program) } {}
                let Some(program) = &model.programs[program] else { continue };
                let is_left = program.expected.iter().any(|(_, may_be_missing)| !may_be_missing);
                prop_assert!(!is_left || program.is_spoilt || program.read_end.is_none());
            }
        }
    }
}
