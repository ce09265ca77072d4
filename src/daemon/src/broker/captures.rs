//! Live captures: which slots take part, and the pipes from which programs read what these capture.
//!
//! There is a pipe for each data path of each device. Its write end goes to the slot, and its read
//! end waits here until the program asks for it, so that the broker neither reads nor waits.

mod saved;

pub(crate) use saved::SavedCaptures;

use super::BrokerCtx;
use super::device::RdmaDevice;
use super::sessions::Session;
use super::slots::Slots;
use crate::limits::{MAX_CAPTURES_OF_ALL_PACKETS, MAX_CAPTURES_OF_USER};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use urxe_engine::Counter;
use urxe_nic::Owners;
use urxe_shm::control::{CaptureSpec, CaptureStream, ControlError, CounterInfo, Reply};
use urxe_slot::limits::{CAPTURE_PIPE_LEN, MAX_TAPS};
use urxe_slot::link::{ToSlot, Viewer};
use urxe_slot::refusal::{Refusal, find_device, refuse};
use urxe_slot::tap_spec;
use urxe_wire::Opcode;

/// The slot number of the broker's own data paths.
const BROKERS_OWN: u8 = 0;

/// Streams of a capture that wait at most: each is a descriptor.
const MAX_WAITING_STREAMS: usize = 256;

/// A capture of a program.
struct Capture {
    number: u64,
    uid: u32,
    viewer: Viewer,
    spec: CaptureSpec,
    devices: Vec<usize>,
    /// Streams that were not handed out.
    waiting: VecDeque<(CaptureStream, OwnedFd)>,
}

/// All captures, by the sessions of their programs.
#[derive(Default)]
pub(crate) struct Captures {
    last: u64,
    open: BTreeMap<u64, Capture>,
}

impl Captures {
    /// Begins a capture, in all slots that run and may have something of it.
    pub(crate) fn begin(
        &mut self,
        session: &Session,
        ctx: &mut BrokerCtx,
        slots: &mut Slots,
        spec: CaptureSpec,
    ) -> Result<Reply, ControlError> {
        self.see_to_new_slots(ctx, slots);
        self.check(session, slots, &spec)?;
        let names = || ctx.devices.iter().map(|device| device.name.as_str());
        let devices = match spec.devices.is_empty() {
            true => (0..ctx.devices.len()).collect(),
            false => {
                let found = spec.devices.iter().map(|name| find_device(names(), name));
                found.collect::<Result<Vec<usize>, _>>()?
            }
        };
        self.last += 1;
        let mut capture = Capture {
            number: self.last,
            uid: session.program.uid,
            viewer: session.viewer(),
            spec,
            devices,
            waiting: VecDeque::new(),
        };
        let tapped = capture.tap_own(&mut ctx.devices).and_then(|()| {
            let mut all = 1..slots.end();
            all.try_for_each(|slot| capture.tap(slot, ctx, slots))
        });
        if let Err(error) = tapped.or_refuse(Errno::MFILE, "capture") {
            capture.end(ctx, slots);
            return Err(error);
        }
        self.open.insert(session.number, capture);
        Ok(begun())
    }

    /// The answer to a session whose capture began before this process took over.
    pub(crate) fn begun_before(&self, session: u64) -> Option<Reply> {
        self.open.contains_key(&session).then(begun)
    }

    fn check(
        &self,
        session: &Session,
        slots: &Slots,
        spec: &CaptureSpec,
    ) -> Result<(), ControlError> {
        // OWN-004: what a program's own slot passes on was checked by nobody.
        spec.check().map_err(|sentence| refuse(Errno::INVAL, sentence))?;
        if let Some(byte) = spec.opcodes.iter().find(|&&byte| Opcode::from_byte(byte).is_none()) {
            let sentence = format!("opcode {byte:#04x}: expected one that RoCEv2 has");
            return Err(refuse(Errno::INVAL, sentence));
        }
        // TAP-005
        if self.open.contains_key(&session.number) {
            return Err(refuse(Errno::BUSY, "capture: this session captures already"));
        }
        let (viewer, uid) = (session.viewer(), session.program.uid);
        let of_user = self.open.values().filter(|capture| capture.uid == uid).count();
        let sees_all = |viewer| viewer == Viewer::Everybody;
        let alike = |it: &&Capture| sees_all(it.viewer) == sees_all(viewer);
        let alike = self.open.values().filter(alike).count();
        // Users who have a slot each are not in each other's way.
        let most = match sees_all(viewer) {
            true => MAX_CAPTURES_OF_ALL_PACKETS,
            false if slots.serve_all() => MAX_TAPS - MAX_CAPTURES_OF_ALL_PACKETS,
            false => usize::MAX,
        };
        if of_user >= MAX_CAPTURES_OF_USER || alike >= most {
            let sentence = format!(
                "capture: there are {of_user} of user {uid}, of {MAX_CAPTURES_OF_USER} at most, \
                 and {alike} of all users alike; end one of them first"
            );
            return Err(refuse(Errno::BUSY, sentence));
        }
        Ok(())
    }

    /// Hands out a stream.
    pub(crate) fn next(&mut self, session: u64) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let capture = self.open.get_mut(&session);
        let capture = capture.ok_or_else(|| {
            refuse(Errno::INVAL, "capture: this session captures nothing, expected a BeginCapture")
        })?;
        let (stream, pipe) = capture.waiting.pop_front().unzip();
        Ok((Reply::CaptureStream(stream), pipe.into_iter().collect()))
    }

    /// Has the slots take part that have begun meanwhile. One for which there are no descriptors
    /// does not.
    pub(crate) fn see_to_new_slots(&mut self, ctx: &BrokerCtx, slots: &mut Slots) {
        while let Some(slot) = slots.take_one_that_began() {
            for capture in self.open.values_mut() {
                let _ = capture.tap(slot, ctx, slots);
            }
        }
    }

    /// The program of a session is gone.
    pub(crate) fn end(&mut self, session: u64, ctx: &mut BrokerCtx, slots: &mut Slots) {
        if let Some(capture) = self.open.remove(&session) {
            capture.end(ctx, slots);
        }
    }
}

fn begun() -> Reply {
    let counters = Counter::ALL.iter().map(|counter| CounterInfo {
        name: counter.name().to_owned(),
        meaning: counter.meaning().to_owned(),
    });
    Reply::CaptureBegun { counters: counters.collect() }
}

impl Capture {
    /// Has a slot take part, if it runs and may serve programs whose packets may be seen.
    fn tap(&mut self, slot: usize, ctx: &BrokerCtx, slots: &mut Slots) -> Result<(), Errno> {
        let is_theirs = match self.viewer {
            Viewer::Everybody => true,
            Viewer::User(uid) => slots.may_serve(slot, uid),
        };
        if !is_theirs || !slots.is_running(slot) {
            return Ok(());
        }
        for index in self.devices.clone() {
            let pipe = self.open_stream(slot as u8, &ctx.devices[index])?;
            let (number, viewer, spec) = (self.number, self.viewer, self.spec.clone());
            let message = ToSlot::Tap { number, device: index, viewer, spec };
            slots.send(ctx.now, slot, message, vec![pipe]);
        }
        Ok(())
    }

    /// Has the broker's own data paths take part, which have QP1: it is of no program.
    fn tap_own(&mut self, devices: &mut [RdmaDevice]) -> Result<(), Errno> {
        // TAP-001
        if self.viewer != Viewer::Everybody || !self.spec.programs.is_empty() {
            return Ok(());
        }
        for index in self.devices.clone() {
            let device = &mut devices[index];
            let pipe = self.open_stream(BROKERS_OWN, device)?;
            device.nic.add_tap(tap_spec(self.number, Owners::All, &self.spec, pipe));
        }
        Ok(())
    }

    /// Makes a pipe for a data path, and returns the end for it.
    fn open_stream(&mut self, slot: u8, device: &RdmaDevice) -> Result<OwnedFd, Errno> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&write_end, true)?;
        // What it holds otherwise does as well, for slower packets.
        let _ = fcntl_setpipe_size(&write_end, CAPTURE_PIPE_LEN);
        let stream = CaptureStream { device: device.name.clone(), slot };
        // A program that does not ask for its streams loses the oldest.
        if self.waiting.len() >= MAX_WAITING_STREAMS {
            self.waiting.pop_front();
        }
        self.waiting.push_back((stream, read_end));
        Ok(write_end)
    }

    fn end(self, ctx: &mut BrokerCtx, slots: &mut Slots) {
        for device in &mut ctx.devices {
            device.nic.remove_tap(self.number);
        }
        for slot in 1..slots.end() {
            let is_theirs = match self.viewer {
                Viewer::Everybody => true,
                Viewer::User(uid) => slots.may_serve(slot, uid),
            };
            if is_theirs && slots.is_running(slot) {
                let message = ToSlot::EndTap { number: self.number };
                slots.send(ctx.now, slot, message, Vec::new());
            }
        }
    }
}
