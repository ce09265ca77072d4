//! A slot that the program runs itself, in a thread of the shim's, if its user wants it so.
//!
//! The program's descriptors and the thread's are apart: see
//! [`own_thread`](urxe_shm::client::own_thread). What the thread calls of libc goes by the hooks as
//! everybody's calls do, and they leave it alone ([`set_apart`](crate::descriptors::set_apart)).

use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::reasons::{Level, say};
use crate::session::Session;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Weak};
use urxe_shm::client::CallError;
use urxe_shm::client::mirror::TableNotes;
use urxe_slot::Turns;

/// What the slot's sockets are for the program: nothing that it may close.
pub(crate) const NOTES: TableNotes = TableNotes {
    opened: |fd| DESCRIPTORS.insert(fd, Descriptor::Private),
    closing: |fd| DESCRIPTORS.remove(fd),
};

/// Whether this process is to run a slot of its own: `URXE_IN_PROCESS` is set, to anything but 0.
pub(crate) fn is_wanted() -> bool {
    let value = std::env::var_os("URXE_IN_PROCESS");
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// The slot of the present session, which polls keep going. Who has looked it up may use it for
/// ever: a process has few sessions, and they are not freed.
static PRESENT: AtomicPtr<Present> = AtomicPtr::new(null_mut());

struct Present {
    turns: Turns,
    session: Weak<Session>,
}

/// Has polls keep a session's slot going from now on, if it has one.
pub(crate) fn set_present(session: &Arc<Session>) {
    let present = session.own_slot().map_or(null_mut(), |slot| {
        let (turns, session) = (slot.turns().clone(), Arc::downgrade(session));
        Box::into_raw(Box::new(Present { turns, session }))
    });
    PRESENT.store(present, Ordering::Release);
}

/// There is none, in a child right after `fork`.
pub(crate) fn forget_present() {
    PRESENT.store(null_mut(), Ordering::Release);
}

fn present() -> Option<&'static Present> {
    // SAFETY: it is never freed.
    unsafe { PRESENT.load(Ordering::Acquire).as_ref() }
}

/// Nothing was found in a queue: the thread does what there is to do in the process's own slot, if
/// it has one. Returns whether there may be something now.
#[inline]
pub(crate) fn polled_in_vain() -> bool {
    present().is_some_and(|present| present.turns.take(|| present.wake()))
}

/// Whether threads that poll do what there is to do in the process's own slot.
pub(crate) fn turns_are_taken() -> bool {
    present().is_some_and(|present| present.turns.are_taken())
}

/// The program is about to wait otherwise than by polling.
pub(crate) fn about_to_wait() {
    if let Some(present) = present() {
        present.turns.give_back(|| present.wake());
    }
}

impl Present {
    #[cold]
    fn wake(&self) {
        if let Some(session) = self.session.upgrade() {
            session.connection().wake();
        }
    }
}

/// Says on stderr, once, why there is none, and that the program does without.
pub(crate) fn report_refusal(error: &CallError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // OWN-009
    if !SAID.swap(true, Ordering::Relaxed) {
        say(Level::Always, &format!("in-process: {error}; this program is served by the daemon"));
    }
}
