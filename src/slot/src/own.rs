//! A program's own slot: run by a thread of the program, in place of one of the daemon's.
//!
//! What the program asks and how it is answered, its rings, and what the broker knows and shows are
//! the same as with any slot. What changes is where the data path is: what the program posts goes
//! to the wire, and what peers write goes to its memory, in its own process and on its own account.
//!
//! - The thread gets no signals and has descriptors of its own
//!   ([`own_thread`](urxe_shm::client::own_thread)): a child of `fork` has nothing of the slot, and
//!   whatever ends the process, or makes it another program, ends the slot.
//! - The program's memory is reached by copies that notice where it is not there
//!   ([`own_memory`](urxe_shm::memory::own_memory)): where the program has unmapped what a peer
//!   still writes to, the QP fails, and the program goes on.
//! - A panic ends the slot, and so the session, and nothing else, unless the program was made to
//!   abort at a panic.
//! - While the program is stopped, its device is silent, and peers try again until they have tried
//!   often enough.

use crate::event_loop::{self, EventLoop, HandOff, Locked};
use crate::port_plan::WithinProcess;
use crate::{Runner, RunningSlot, SlotError, run_and_finish};
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;
use urxe_port::ShareSockets;
use urxe_shm::client::mirror::{Mirror, MirrorThread, TableNotes};
use urxe_shm::client::{CallError, own_thread, polling_thread};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{Reply, Request};

/// A slot of this process, as the rest of the program knows it. It ends with its last session; with
/// this, nothing of it is left among the descriptors of the program.
#[derive(Debug)]
pub struct OwnSlot {
    turns: Turns,
    /// Dropped after turns have ended.
    _mirror: MirrorThread,
}

/// The turns of a slot that threads of its program take while they poll.
#[derive(Clone)]
pub struct Turns(Arc<Shared>);

/// What the slot's thread shares with those of the program that poll.
struct Shared {
    why_ended: OnceLock<String>,
    /// Once the slot has begun.
    hand_off: OnceLock<Arc<HandOff>>,
    /// Until it ends. Nobody but the slot's thread may drop it, which knows its descriptors.
    event_loop: Mutex<Option<EventLoop>>,
    /// Whose slot it is: not a child's.
    process: u32,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            why_ended: OnceLock::new(),
            hand_off: OnceLock::new(),
            event_loop: Mutex::default(),
            process: std::process::id(),
        }
    }
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnResult {
    /// Something was done: there may be something to find now.
    pub(crate) worked: bool,
    /// The slot's thread has something to do.
    pub(crate) wake: bool,
}

impl OwnSlot {
    /// Asks for a slot on a channel that is connected just now, and runs it in a thread of this
    /// process; `notes` are told what it has open in the table of the calling thread. Each thread
    /// that has descriptors of the slot, in a table of its own, calls `first` first of all. Returns
    /// the channel of a session in the slot, which is to begin as any does.
    ///
    /// # Errors
    /// The daemon's refusal, or why the slot cannot be run here.
    pub fn host(
        mut channel: Channel,
        first: fn(),
        notes: TableNotes,
    ) -> Result<(Channel, OwnSlot), CallError> {
        let (reply, fds) = channel.call(&Request::HostSlot, &[])?;
        match reply {
            Reply::HostSlot { .. } => {}
            Reply::Error(error) => return Err(error.into()),
            _ => return Err(CallError::Protocol("another kind of reply to host slot".into())),
        }
        let [link, session] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            let count = fds.len();
            CallError::Protocol(format!("host slot brought {count} descriptors, expected 2"))
        })?;
        let shared = Arc::new(Shared::new());
        let turns = Turns(Arc::clone(&shared));
        let (tell, begun) = mpsc::channel();
        let run = move |[link, orders]: [OwnedFd; 2]| {
            first();
            run(link, Mirror::new(orders), shared, first, |result| drop(tell.send(result)));
        };
        let what = "a slot of the program's own";
        let system = |source| CallError::System { what, source };
        let (orders, mirror) = MirrorThread::begin(notes).map_err(system)?;
        own_thread::spawn("urxe-slot", [link, orders], run).map_err(system)?;
        // The broker has sent all that the slot needs before it answered.
        begun.recv().unwrap_or(Err(SlotError::Panicked)).map_err(|error| match error {
            SlotError::Link(_) => CallError::Gone,
            error => system(io::Error::other(error)),
        })?;
        Ok((Channel::new(session), OwnSlot { turns, _mirror: mirror }))
    }

    /// Why the slot has ended, if it did so by itself, for people.
    pub fn why_ended(&self) -> Option<&str> {
        self.turns.0.why_ended.get().map(String::as_str)
    }

    /// Its turns, for threads that poll. After the slot, there are none.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }
}

impl Drop for OwnSlot {
    fn drop(&mut self) {
        self.turns.end();
    }
}

impl Turns {
    /// Says that the calling thread has polled in vain, and has it do what there is to do for the
    /// program's queues, if that is left to threads that poll; `wake` wakes the slot's thread.
    /// Never waits. Returns whether there may be something to find now.
    pub fn take(&self, wake: impl FnOnce()) -> bool {
        if !self.0.hand_off.get().is_some_and(|hand_off| hand_off.note_empty_poll())
            // OWN-033
            || !polling_thread::has_room()
        {
            return false;
        }
        let Some(mut held) = self.0.event_loop.try_lock() else { return false };
        let Some(event_loop) = held.as_mut() else { return false };
        // OWN-011
        let turn =
            caught(catch_unwind(AssertUnwindSafe(|| event_loop.poller_turn(Instant::now()))))
                .unwrap_or_else(|error| event_loop.fail(error));
        drop(held);
        if turn.wake {
            wake();
        }
        turn.worked
    }

    /// Whether what there is to do is left to threads that poll, at this time.
    pub fn are_taken(&self) -> bool {
        self.0.hand_off.get().is_some_and(|hand_off| hand_off.is_active())
    }

    /// Has the slot's own thread serve again, which `wake` wakes: the program is about to wait
    /// otherwise than by polling.
    pub fn give_back(&self, wake: impl FnOnce()) {
        if self.0.hand_off.get().is_some_and(|hand_off| hand_off.take_back()) {
            wake();
        }
    }

    /// Waits until nobody has a turn, and lets nobody have one any more.
    fn end(&self) {
        // In a child of `fork` nobody has, and who had the lock is not there.
        if self.0.process == std::process::id()
            && let Some(event_loop) = self.0.event_loop.lock().as_mut()
        {
            event_loop.end_hand_off();
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("why_ended", &self.0.why_ended).finish_non_exhaustive()
    }
}

/// Opens the sockets of the slot where the program's threads find them, too.
#[derive(Debug)]
struct InBothTables(Arc<Mirror>);

impl ShareSockets for InBothTables {
    fn share(&self, socket: OwnedFd) -> Result<(OwnedFd, urxe_port::Mirrored), OwnedFd> {
        let (socket, mirrored) = self.0.share(socket)?;
        Ok((socket, Box::new(mirrored)))
    }
}

/// A slot, as its thread has it.
struct Served(Arc<Shared>);

impl Served {
    fn run(&mut self) -> Result<(), SlotError> {
        let run = |slot: &mut Served| event_loop::run(Locked(slot.0.event_loop.lock()));
        run_and_finish(self, run, |slot| Locked(slot.0.event_loop.lock()).finish())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.event_loop.lock().take());
    }
}

/// What came of something that may have panicked.
fn caught<T>(result: std::thread::Result<Result<T, SlotError>>) -> Result<T, SlotError> {
    result.unwrap_or(Err(SlotError::Panicked))
}

/// The thread of a slot, from its beginning, which is told, to its end.
fn run(
    link: OwnedFd,
    mirror: Arc<Mirror>,
    shared: Arc<Shared>,
    first: fn(),
    tell: impl FnOnce(Result<(), SlotError>),
) {
    let share: Arc<dyn ShareSockets> = Arc::new(InBothTables(mirror));
    let RunningSlot(event_loop) = match caught(catch_unwind(AssertUnwindSafe(|| {
        let within = |_| WithinProcess { share: Some(Arc::clone(&share)), inbox: None };
        RunningSlot::begin(link, Runner::Program, within, first)
    }))) {
        Ok(slot) => slot,
        Err(error) => return tell(Err(error)),
    };
    let _ = shared.hand_off.set(event_loop.hand_off());
    *shared.event_loop.lock() = Some(event_loop);
    tell(Ok(()));
    let why_ended = Arc::clone(&shared);
    serve(Served(shared), &why_ended.why_ended, Served::run);
}

/// Serves in a slot, to its end.
fn serve<S>(
    mut slot: S,
    why_ended: &OnceLock<String>,
    run: impl FnOnce(&mut S) -> Result<(), SlotError>,
) {
    // OWN-011
    let served = caught(catch_unwind(AssertUnwindSafe(|| run(&mut slot))));
    // Before the connections of its sessions end: who notices that finds the reason.
    if let Err(error) = served {
        let _ = why_ended.set(error.to_string());
    }
    let _ = catch_unwind(AssertUnwindSafe(|| drop(slot)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn a_panic_is_an_end_with_a_reason() {
        let error = caught::<()>(catch_unwind(|| panic!("as the test wants it"))).unwrap_err();
        assert_eq!(error.to_string(), "it panicked");
    }

    /// As a program finds out: by what the slot had, which is closed.
    #[test]
    fn a_panic_in_the_thread_of_a_slot_ends_the_slot_and_gives_the_reason_before() {
        let (of_slot, of_program) = Channel::pair().unwrap();
        let why_ended = Arc::new(OnceLock::new());
        let of_thread = Arc::clone(&why_ended);
        let body = move |of_slot| serve(of_slot, &of_thread, |_| panic!("as the test wants it"));
        own_thread::spawn("test", [of_slot], move |[of_slot]| body(of_slot)).unwrap();
        let mut program = [PollFd::new(&of_program, PollFlags::empty())];
        poll(&mut program, None).unwrap();
        assert!(program[0].revents().contains(PollFlags::HUP));
        assert_eq!(why_ended.get().map(String::as_str), Some("it panicked"));
    }

    #[test]
    fn a_slot_whose_broker_is_gone_ends_without_a_reason() {
        let (own, other) = Channel::pair().unwrap();
        drop(other);
        let shared = Arc::new(Shared::new());
        let mut told = None;
        let (orders, _mirror) = MirrorThread::begin(TableNotes::NONE).unwrap();
        run(own, Mirror::new(orders), Arc::clone(&shared), || (), |begun| told = Some(begun));
        assert!(matches!(told, Some(Err(SlotError::Link(_)))));
        assert_eq!(shared.why_ended.get(), None);
    }
}
