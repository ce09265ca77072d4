//! What the program does at the signals of memory that is not there: behind a handler of ours, if
//! this process runs a slot of its own ([`guarded_copy`]).

use super::hooks;
use crate::next;
use libc::{c_int, sighandler_t};
use urxe_shm::memory::guarded_copy::{self, exchange};

hooks! {
    fn sigaction(
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        // OWN-023
        match exchange(signal, new.as_ref()) {
            None => next::sigaction(signal, new, old),
            Some(before) => {
                if let Some(old) = old.as_mut() {
                    *old = before;
                }
                0
            }
        }
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        let mut action = guarded_copy::default_action();
        (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_RESTART);
        match exchange(signal, Some(&action)) {
            None => next::signal(signal, handler),
            Some(before) => before.sa_sigaction,
        }
    }
}
