//! When the daemon is gone: whatever its end was, the program is to notice, and to end by itself.
//!
//! - Its outstanding work requests complete with `IBV_WC_WR_FLUSH_ERR`, as if every QP had gone to
//!   the error state; so do those that it posts later. CQs that wait for it get their events. An
//!   SRQ keeps its receives, as it does with other devices.
//! - When all those are polled, polling fails, for nothing will ever come again: so ends a program
//!   that waits for a message, or for what an SRQ would have received.
//! - Each context tells `IBV_EVENT_DEVICE_FATAL`, once; then reading its events fails, as does
//!   reading those of completion channels and of the connection manager. Their descriptors hang up,
//!   which wakes who waits in `poll` or `epoll`.
//! - Commands fail with `EIO`, but what destroys something succeeds, so that the program can clean
//!   up.
//! - A line on stderr says what has happened, once in a process; `URXE_QUIET=1` keeps it away.
//!
//! It is noticed by the next command, by reading an event, and by polling in vain: after a tenth of
//! a second of that the socket is looked at. Who looks at nothing but memory that a peer writes to
//! cannot be told.

use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::reasons::{Level, say};
use std::sync::atomic::{AtomicBool, Ordering};

/// How a session was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss<'a> {
    /// Its socket has been hung up.
    Daemon,
    /// The slot that this process ran itself has ended, for this reason.
    OwnSlot(&'a str),
    /// The program itself has closed the descriptors that belong to it, by system calls of its own.
    Descriptors,
}

/// Says on stderr what has happened, if it was not said before.
pub(crate) fn report(loss: Loss<'_>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let what = match loss {
        Loss::Daemon => {
            let socket = urxe_shm::socket_path();
            format!("the urxed of {} has ended, or has ended this session", socket.display())
        }
        Loss::OwnSlot(reason) => format!("the slot of this program has ended, because {reason}"),
        Loss::Descriptors => "this program has closed descriptors of its RDMA session".into(),
    };
    say(
        Level::Always,
        &format!(
            "{what}: outstanding work requests complete with IBV_WC_WR_FLUSH_ERR, and the devices tell \
         IBV_EVENT_DEVICE_FATAL"
        ),
    );
}

/// Completes what is outstanding in all contexts whose sessions are lost.
pub(crate) fn flush_all() {
    let mut from = 0;
    while let Some(fd) = DESCRIPTORS.next_from(from) {
        from = fd + 1;
        let context = DESCRIPTORS.with(fd, |descriptor| match descriptor {
            Descriptor::Uverbs(context) => Some(context.clone()),
            _ => None,
        });
        if let Some(context) = context.flatten() {
            context.flush_if_lost();
        }
    }
}
