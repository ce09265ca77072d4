//! One slot as the broker has it: its link, its user, and what runs it.

use super::kept_histories::HowEnded;
use super::worker::{User, Worker};
use crate::limits::{WORKER_END, WORKER_LINGER};
use crate::log::SLOT;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use urxe_shm::control::ControlError;
use urxe_shm::control::closing::has_hung_up;
use urxe_slot::SlotError;
use urxe_slot::limits::LINK_TIMEOUT;
use urxe_slot::link::{Link, ToBroker, ToSlot};
use urxe_slot::refusal::refuse;

/// One slot.
#[derive(Default)]
pub(super) struct Entry {
    /// None while it does not run.
    pub(super) link: Option<Link<ToSlot, ToBroker>>,
    /// What runs it, or did: until that has ended, nothing else can.
    pub(super) runner: Option<Runner>,
    /// What happened to its QPs, for when it has ended; none where that could not be had.
    pub(super) histories: Option<File>,
    /// How it has ended.
    pub(super) how_ended: HowEnded,
    /// Whose it is while it runs, if not the daemon's own user's.
    pub(super) user: Option<u32>,
    /// Sessions that it serves, or has something of.
    pub(super) sessions: usize,
    /// Since when there are none.
    pub(super) idle_since: Option<Instant>,
    /// Since when it has not run, if it ever did.
    pub(super) free_since: Option<Instant>,
    /// Since when it owes an answer and has said nothing.
    pub(super) asked_since: Option<Instant>,
    /// When to try to start it again, after the system had no room for it.
    pub(super) start_again: Option<Instant>,
}

/// What runs a slot.
pub(super) enum Runner {
    Thread(JoinHandle<()>),
    Worker {
        worker: Worker,
        let_go: Option<LetGo>,
    },
    /// A program, for itself.
    Program(HostingProgram),
}

/// A program that runs a slot of its own. The broker neither waits for it nor ends it.
pub(super) struct HostingProgram {
    /// Our end of the link once more: it hangs up when the program's is closed everywhere.
    link: OwnedFd,
}

impl HostingProgram {
    pub(super) fn new(link: &Link<ToSlot, ToBroker>) -> io::Result<HostingProgram> {
        Ok(HostingProgram { link: link.as_fd().try_clone_to_owned()? })
    }

    /// One whose link another process had, which is gone.
    pub(super) fn resumed(link: OwnedFd) -> HostingProgram {
        HostingProgram { link }
    }

    /// Our end of its link.
    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Tells it that its slot is to end.
    fn let_go(&self) {
        // It is refused only where the program is gone.
        let _ = shutdown(&self.link, Shutdown::Write);
    }

    /// Whether it has let go of the slot. One that is stopped keeps it.
    fn is_gone(&self) -> bool {
        // OWN-006: what it has of the slot's sockets is not another's as well.
        has_hung_up(&self.link)
    }
}

/// Since when a worker is to end, and why.
#[derive(Clone, Copy)]
pub(super) struct LetGo {
    pub(super) since: Instant,
    pub(super) why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Why {
    /// Its user has no program left.
    Idle,
    /// Its link failed: it may have ended already.
    Failed,
    /// It hangs.
    Stuck,
}

impl Runner {
    /// Whether it has ended. One that was told to end long ago is not asked any more.
    pub(super) fn is_over(&mut self, told: Duration) -> bool {
        match self {
            Runner::Thread(thread) => thread.is_finished(),
            Runner::Worker { worker, .. } => {
                if told >= WORKER_END {
                    worker.kill();
                }
                worker.end().is_some()
            }
            Runner::Program(program) => told >= WORKER_END || program.is_gone(),
        }
    }
}

/// Why a user gets no further worker.
pub(super) fn workers_do_not_go(count: usize, user: User) -> ControlError {
    let sentence = format!(
        "urxed: {count} processes that served user {} were ended and are still there, because they \
         wait for something of the user's programs; there is another when one of them has gone",
        user.uid
    );
    refuse(Errno::AGAIN, sentence)
}

impl Entry {
    /// Whether nothing runs here, and nothing is left of what did.
    pub(super) fn is_free(&self) -> bool {
        let is_over = |runner: &Runner| match runner {
            Runner::Thread(thread) => thread.is_finished(),
            Runner::Worker { .. } => false,
            Runner::Program(program) => program.is_gone(),
        };
        self.link.is_none() && self.runner.as_ref().is_none_or(is_over)
    }

    /// Whether a worker of this user was let go here and has not gone yet.
    pub(super) fn is_left_by(&self, uid: u32) -> bool {
        match &self.runner {
            Some(Runner::Worker { worker, .. }) => self.link.is_none() && worker.user.uid == uid,
            _ => false,
        }
    }

    /// Tells a program that runs it that it is to end. Others notice by their link.
    pub(super) fn let_program_go(&self) {
        if let Some(Runner::Program(program)) = &self.runner {
            program.let_go();
        }
    }

    /// When something is to be done about it. One that does not run has but a worker to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_link = self.link.as_ref().map(|link| {
            [link.deadline(), self.end_of_silence(), self.end_of_idleness()].into_iter().flatten()
        });
        of_link.into_iter().flatten().chain(self.end_of_worker()).min()
    }

    /// When it ends for want of programs.
    pub(super) fn end_of_idleness(&self) -> Option<Instant> {
        let linger = match self.runner {
            // OWN-005: it asks for another when it needs one.
            Some(Runner::Program(_)) => Duration::ZERO,
            _ if self.user.is_some() => WORKER_LINGER,
            _ => return None,
        };
        self.idle_since.filter(|_| self.sessions == 0).map(|since| since + linger)
    }

    /// When a worker that owes an answer is given up.
    pub(super) fn end_of_silence(&self) -> Option<Instant> {
        let is_worker = matches!(self.runner, Some(Runner::Worker { .. }));
        self.asked_since.filter(|_| is_worker).map(|since| since + LINK_TIMEOUT)
    }

    /// When a worker is ended that was let go.
    pub(super) fn end_of_worker(&self) -> Option<Instant> {
        match &self.runner {
            Some(Runner::Worker { let_go: Some(let_go), .. }) => Some(let_go.since + WORKER_END),
            _ => None,
        }
    }
}

/// A slot's thread.
pub(super) fn run_in_thread(
    slot: usize,
    how_ended: &HowEnded,
    serve: impl FnOnce() -> Result<(), SlotError>,
) {
    // SLOT-002
    let served = catch_unwind(AssertUnwindSafe(serve)).unwrap_or(Err(SlotError::Panicked));
    if let Err(error) = served {
        let _ = how_ended
            .set(format!("slot {slot}, a thread of the daemon, has ended, because {error}"));
        tracing::error!(
            target: SLOT,
            slot,
            "slot {slot} has ended, because {error}; its programs have lost their devices, and \
             the next ones start it again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Style;
    use crate::log::testing::logged;
    use std::io;

    #[test]
    fn nothing_is_to_be_done_about_a_program_that_has_gone() {
        let (link, _program) = Link::pair().unwrap();
        let runner = Runner::Program(HostingProgram::new(&link).unwrap());
        let since = Some(Instant::now());
        let mut entry =
            Entry { link: Some(link), runner: Some(runner), idle_since: since, ..Entry::default() };
        assert_eq!(entry.deadline(), since, "it has no session, and ends at once");
        entry.link = None;
        assert_eq!(entry.deadline(), None, "the broker would look again and again, for ever");
    }

    #[test]
    fn how_a_slot_ended_is_said_and_a_panic_is_no_more_than_that() {
        let said = logged(Style::Text, "warn", || {
            run_in_thread(1, &HowEnded::default(), || Ok(()));
            run_in_thread(2, &HowEnded::default(), || {
                Err(SlotError::Port(io::Error::other("no such device")))
            });
            run_in_thread(3, &HowEnded::default(), || panic!("as the test wants it"));
        });
        let [failed, panicked] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert!(failed.contains("slot 2 has ended, because a port failed: no such device"));
        assert!(panicked.contains("slot 3 has ended, because it panicked"));
    }
}
