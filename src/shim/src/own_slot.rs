//! A slot that the program runs itself, in a thread of the shim's, if its user wants it so.
//!
//! The program's descriptors and the thread's are apart: see
//! [`own_thread`](urxe_shm::client::own_thread). What the thread calls of libc goes by the hooks as
//! everybody's calls do, and they leave it alone ([`set_apart`](crate::descriptors::set_apart)).

use crate::reasons::{Level, say};
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_shm::client::CallError;

/// Whether this process is to run a slot of its own: `URXE_IN_PROCESS` is set, to anything but 0.
pub(crate) fn is_wanted() -> bool {
    let value = std::env::var_os("URXE_IN_PROCESS");
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// Says on stderr, once, why there is none, and that the program does without.
pub(crate) fn report_refusal(error: &CallError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // OWN-009
    if !SAID.swap(true, Ordering::Relaxed) {
        say(Level::Always, &format!("in-process: {error}; this program is served by the daemon"));
    }
}
