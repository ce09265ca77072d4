//! What is logged of slots that begin and end.

use super::{Runner, User};
use crate::broker::worker::End;
use crate::log::SLOT;

/// Logs that a slot has started.
pub(super) fn log_start(slot: usize, runner: &Runner, user: Option<User>) {
    match (runner, user) {
        (Runner::Worker { worker, .. }, Some(User { uid, .. })) => {
            let pid = worker.id();
            tracing::info!(
                target: SLOT,
                slot,
                uid,
                pid,
                "worker {pid} of user {uid} has started, as slot {slot}"
            );
        }
        (Runner::Program(_), _) => {
            tracing::info!(target: SLOT, slot, "slot {slot} has started, in a program");
        }
        _ => tracing::info!(target: SLOT, slot, "slot {slot} has started, in a thread"),
    }
}

/// Logs that a worker has ended whose programs have lost their devices by that.
pub(super) fn log_loss(slot: usize, uid: u32, end: &End) {
    tracing::error!(
        target: SLOT,
        slot,
        uid,
        "{}; its programs have lost their devices, and the next ones start it again",
        end.how
    );
}

/// Logs that a worker has ended that was to do so, perhaps in another way than it should have.
pub(super) fn log_end(slot: usize, uid: u32, end: &End, is_wrong: bool) {
    if is_wrong {
        tracing::error!(target: SLOT, slot, uid, "{}", end.how);
    } else {
        tracing::info!(target: SLOT, slot, uid, "{}", end.how);
    }
}
