//! One slot as the broker has it: its link, its user, and what runs it.

use super::worker::Worker;
use crate::limits::{WORKER_END, WORKER_LINGER};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use urxe_slot::limits::LINK_TIMEOUT;
use urxe_slot::link::{Link, ToBroker, ToSlot};

/// One slot.
#[derive(Default)]
pub(super) struct Entry {
    /// None while it does not run.
    pub(super) link: Option<Link<ToSlot, ToBroker>>,
    /// What runs it, or did: until that has ended, nothing else can.
    pub(super) runner: Option<Runner>,
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
    Worker { worker: Worker, let_go: Option<LetGo> },
}

/// Since when a worker is to end, and why.
#[derive(Clone, Copy)]
pub(super) struct LetGo {
    pub(super) since: Instant,
    pub(super) why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
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
        }
    }
}

impl Entry {
    /// Whether nothing runs here, and nothing is left of what did.
    pub(super) fn is_free(&self) -> bool {
        let is_over = |runner: &Runner| matches!(runner, Runner::Thread(t) if t.is_finished());
        self.link.is_none() && self.runner.as_ref().is_none_or(is_over)
    }

    /// When it ends for want of programs.
    pub(super) fn end_of_idleness(&self) -> Option<Instant> {
        let is_other = self.user.is_some() && self.sessions == 0;
        self.idle_since.filter(|_| is_other).map(|since| since + WORKER_LINGER)
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
