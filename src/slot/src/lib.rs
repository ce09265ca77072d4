//! A slot: the whole data path once, for the programs that the broker gives it.
//!
//! ```text
//!  programs ── socket ──► session.rs ─► resources/   requests, one kind of object each
//!     │                   objects.rs       ▼         tables of what each program has
//!     └── rings, doorbells, memory ──► urxe_nic ─► engine ─► port ─► wire
//!                                          ▲
//!  broker ── link ──► event_loop.rs ─► device.rs     addresses, links, events as the broker says
//!                          └─► questions/            what it is asked for others
//! ```
//!
//! One thread does all of it, in turns. All that it needs comes over the link ([`crate::link`]), so
//! that a thread and a process do the same. Whatever ends a slot (a port that has failed, a panic,
//! the end of the link) ends its programs' connections, as when a daemon goes, and nothing else.

#![forbid(unsafe_code)]

mod alarm;
mod awake;
mod cm_pipe;
mod counters;
mod crowding;
mod device;
mod event_loop;
pub mod history_file;
mod known_qp;
pub mod limits;
pub mod link;
mod log;
mod numbering;
mod objects;
mod own;
pub mod pages;
pub mod port_plan;
mod questions;
pub mod rate_limit;
pub mod refusal;
mod resources;
mod session;
mod taps;
#[cfg(test)]
mod tests;
mod token;
mod unmapper;

pub use counters::{DaemonCounters, PathSums};
pub use numbering::Numbering;
pub use own::{OwnSlot, Turns};
pub use questions::counts;
pub use taps::tap_spec;

use crate::link::{Link, LinkError, SlotBeginning, ToBroker, ToSlot};
use device::SlotDevice;
use event_loop::EventLoop;
use port_plan::WithinProcess;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;
use unmapper::Unmapper;
use urxe_engine::Tuning;
use urxe_port::OpenError;
use urxe_port::udp::{InboxOfDevice, Inboxes};
use urxe_shm::control::closing::Closer;
use urxe_types::{NoSlotCount, NoSuchSlot, Slot, SlotCount};

/// Why a slot ended, if not because the broker let go of it.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error("a port failed: {0}")]
    Port(io::Error),
    #[error("a port could not be made: {0}")]
    Open(#[from] OpenError),
    #[error("the system refused what its event loop needs: {0}")]
    System(io::Error),
    #[error("the link to the broker failed: {0}")]
    Link(LinkError),
    #[error("it panicked")]
    Panicked,
    #[error("the broker began with nonsense: {0}")]
    Slot(#[from] NoSuchSlot),
    #[error("the broker began with nonsense: {0}")]
    Count(#[from] NoSlotCount),
}

/// Who runs a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// The daemon, or a worker of it: for any programs.
    Daemon,
    /// The program whose slot it is.
    Program,
}

/// What a slot has been given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allotment {
    /// Which slot it is of how many.
    pub(crate) slot: Slot,
    pub(crate) numbering: Numbering,
    /// Registrations that it may have mapped.
    pub(crate) max_mapped_mrs: usize,
    /// Whose it is.
    pub(crate) runner: Runner,
}

/// Serves what comes over a link, until the broker lets go of it, with inboxes that other slots of
/// the process have too, if there are any.
///
/// # Errors
/// Why the slot ended otherwise.
pub fn serve(socket: OwnedFd, inboxes: Option<Arc<Inboxes>>) -> Result<(), SlotError> {
    let within = |device| {
        let inbox = inboxes.clone().map(|inboxes| InboxOfDevice { inboxes, device });
        WithinProcess { share: None, inbox }
    };
    match RunningSlot::begin(socket, Runner::Daemon, within, || ()) {
        Err(SlotError::Link(LinkError::Closed)) => Ok(()),
        begun => begun?.run(),
    }
}

/// A slot that has all that it begins with.
pub struct RunningSlot(EventLoop);

impl RunningSlot {
    /// Takes what the broker sends first over a link. To be called in the thread that will
    /// [run](Self::run) it. `within` says what each device has of the process; every further thread
    /// of the slot calls `first` first of all.
    ///
    /// # Errors
    /// Why the slot cannot be; [`LinkError::Closed`] if the broker has let go of it.
    pub(crate) fn begin(
        socket: OwnedFd,
        runner: Runner,
        within: impl Fn(usize) -> WithinProcess,
        first: fn(),
    ) -> Result<RunningSlot, SlotError> {
        alarm::set_slack(alarm::SLACK);
        let mut link = Link::new(socket);
        let (allotment, devices, history_file) = begin(&mut link, runner, within)?;
        let closer = Closer::new(first).map_err(SlotError::System)?;
        let now = Instant::now();
        let unmapper = Unmapper::new(first);
        EventLoop::new(now, link, allotment, devices, history_file, closer, unmapper)
            .map(RunningSlot)
            .map_err(SlotError::System)
    }

    /// Serves until the broker lets go of the link.
    ///
    /// # Errors
    /// Why the slot is of no use any more.
    pub fn run(&mut self) -> Result<(), SlotError> {
        run_and_finish(&mut self.0, |event_loop| event_loop::run(event_loop), EventLoop::finish)
    }
}

/// Runs a slot to its end, and then finishes it, also after a panic.
fn run_and_finish<S>(
    slot: &mut S,
    run: impl FnOnce(&mut S) -> Result<(), SlotError>,
    finish: impl FnOnce(&mut S),
) -> Result<(), SlotError> {
    let served = catch_unwind(AssertUnwindSafe(|| run(slot)));
    // HISTORY-015: after a panic nothing can be relied on, and this may panic as well.
    let _ = catch_unwind(AssertUnwindSafe(|| finish(slot)));
    served.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Makes the devices that the broker names first of all.
fn begin(
    link: &mut Link<ToBroker, ToSlot>,
    runner: Runner,
    within: impl Fn(usize) -> WithinProcess,
) -> Result<(Allotment, Vec<SlotDevice>, Option<File>), SlotError> {
    let (mut devices, mut history_file) = (Vec::new(), None);
    let mut begun: Option<(Allotment, usize, Tuning)> = None;
    loop {
        if let Some((allotment, count, _)) = begun
            && devices.len() == count
        {
            return Ok((allotment, devices, history_file));
        }
        match (next(link)?, begun) {
            ((ToSlot::Start(start), mut fds), None) => {
                history_file = fds.pop().map(File::from);
                let SlotBeginning { slot, slots, devices, tuning, numbering, max_mapped_mrs } =
                    start;
                let slot = SlotCount::try_from(slots)?.slot(slot)?;
                let allotment = Allotment { slot, numbering, max_mapped_mrs, runner };
                begun = Some((allotment, devices, tuning));
            }
            ((ToSlot::Open(beginning), mut fds), Some((Allotment { slot, .. }, _, tuning))) => {
                let capture = fds.pop().map(File::from);
                let port = beginning.port.open(slot.id(), capture, within(devices.len()))?;
                devices.push(SlotDevice::new(beginning, port, slot, tuning, Instant::now()));
            }
            // Nothing else comes before.
            _ => return Err(SlotError::Link(LinkError::Closed)),
        }
    }
}

/// Waits for the next message.
fn next(link: &mut Link<ToBroker, ToSlot>) -> Result<(ToSlot, Vec<OwnedFd>), SlotError> {
    loop {
        if let Some(received) = link.recv().map_err(SlotError::Link)? {
            return Ok(received);
        }
        // If it is interrupted, there is only a look in vain.
        let _ = poll(&mut [PollFd::new(link, PollFlags::IN)], None);
    }
}
