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

use crate::{Runner, RunningSlot, SlotError};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use urxe_shm::client::{CallError, own_thread};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{Reply, Request};

/// A slot of this process, as the rest of the program knows it. It ends with its last session.
#[derive(Clone, Debug)]
pub struct OwnSlot {
    why_ended: Arc<OnceLock<String>>,
}

impl OwnSlot {
    /// Asks for a slot on a channel that is connected just now, and runs it in a thread of this
    /// process, which calls `first` first of all. Returns the channel of a session in the slot,
    /// which is to begin as any does.
    ///
    /// # Errors
    /// The daemon's refusal, or why the slot cannot be run here.
    pub fn host(mut channel: Channel, first: fn()) -> Result<(Channel, OwnSlot), CallError> {
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
        let slot = OwnSlot { why_ended: Arc::default() };
        let why_ended = Arc::clone(&slot.why_ended);
        let (tell, begun) = mpsc::channel();
        let run = move |link| {
            first();
            run(link, &why_ended, |result| drop(tell.send(result)));
        };
        let what = "a slot of the program's own";
        let system = |source| CallError::System { what, source };
        own_thread::spawn("urxe-slot", link, run).map_err(system)?;
        // The broker has sent all that the slot needs before it answered.
        begun.recv().unwrap_or(Err(SlotError::Panicked)).map_err(|error| match error {
            SlotError::Link(_) => CallError::Gone,
            error => system(io::Error::other(error)),
        })?;
        Ok((Channel::new(session), slot))
    }

    /// Why the slot has ended, if it did so by itself, for people.
    pub fn why_ended(&self) -> Option<&str> {
        self.why_ended.get().map(String::as_str)
    }
}

/// What came of something that may have panicked.
fn caught<T>(result: std::thread::Result<Result<T, SlotError>>) -> Result<T, SlotError> {
    result.unwrap_or(Err(SlotError::Panicked))
}

/// The thread of a slot, from its beginning, which is told, to its end.
fn run(link: OwnedFd, why_ended: &OnceLock<String>, tell: impl FnOnce(Result<(), SlotError>)) {
    let slot = match caught(catch_unwind(|| RunningSlot::begin(link, Runner::Program))) {
        Ok(slot) => slot,
        Err(error) => return tell(Err(error)),
    };
    tell(Ok(()));
    serve(slot, why_ended, RunningSlot::run);
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
        own_thread::spawn("test", of_slot, body).unwrap();
        let mut program = [PollFd::new(&of_program, PollFlags::empty())];
        poll(&mut program, None).unwrap();
        assert!(program[0].revents().contains(PollFlags::HUP));
        assert_eq!(why_ended.get().map(String::as_str), Some("it panicked"));
    }

    #[test]
    fn a_slot_whose_broker_is_gone_ends_without_a_reason() {
        let (own, other) = Channel::pair().unwrap();
        drop(other);
        let why_ended = OnceLock::new();
        let mut told = None;
        run(own, &why_ended, |begun| told = Some(begun));
        assert!(matches!(told, Some(Err(SlotError::Link(_)))));
        assert_eq!(why_ended.get(), None);
    }
}
