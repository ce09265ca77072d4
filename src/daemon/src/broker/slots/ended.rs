//! Slots that end: their workers are reaped, and what happened to their QPs is kept.

use super::Slots;
use super::logged::{log_end, log_loss};
use crate::broker::device::RdmaDevice;
use crate::broker::kept_histories::{EndOfSlot, KeptHistories};
use crate::broker::slot_entry::{Runner, Why};
use crate::limits::START_PAUSE;
use crate::log::SLOT;
use mio::unix::SourceFd;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Instant;
use urxe_slot::history_file::read_counts;

impl Slots {
    /// Sees which workers have ended, and says how if they were not to.
    pub(crate) fn reap(&mut self, now: Instant) {
        for slot in self.plan.of_others() {
            let entry = &mut self.entries[slot];
            let Some(Runner::Worker { worker, let_go }) = &mut entry.runner else { continue };
            let Some(end) = worker.end() else { continue };
            let (why, since) = (let_go.map_or(Why::Failed, |let_go| let_go.why), worker.since);
            let (id, user) = (worker.id(), worker.user.uid);
            entry.runner = None;
            let how = match why {
                Why::Stuck => format!("worker {id} of user {user} answered nothing, and was ended"),
                Why::Failed | Why::Idle => end.how.clone(),
            };
            let _ = entry.how_ended.set(how);
            // SLOT-106
            if why == Why::Failed {
                log_loss(slot, user, &end);
                // Whoever ends workers on purpose does not keep the broker busy with starting them.
                if now < since + START_PAUSE {
                    self.pause(now, user);
                }
            } else {
                log_end(slot, user, &end, why == Why::Idle && end.is_failure);
            }
            if self.is_running(slot) {
                self.note_failed(slot);
            }
        }
    }

    /// Has a slot end that says what none of the daemon's own does.
    pub(crate) fn give_up(&mut self, slot: usize, why: &str) {
        if self.failed.contains(&slot) {
            return;
        }
        tracing::error!(target: SLOT, slot, "slot {slot} is given up: {why}");
        self.let_worker_go(slot, Why::Stuck);
        self.note_failed(slot);
    }

    /// Lets go of a slot, which ends by that. Returns whether there was one.
    pub(super) fn drop_link(
        &mut self,
        now: Instant,
        slot: usize,
        devices: &mut [RdmaDevice],
    ) -> bool {
        // What is started in its place has not failed.
        self.failed.retain(|&failed| failed != slot);
        let entry = &mut self.entries[slot];
        let Some(link) = entry.link.take() else { return false };
        if let Some(Runner::Program(_)) = entry.runner {
            tracing::info!(target: SLOT, slot, "slot {slot} has ended, in a program");
        }
        entry.let_program_go();
        let is_failure = match &entry.runner {
            Some(Runner::Program(_)) => false,
            Some(Runner::Worker { let_go, .. }) => let_go.is_none_or(|it| it.why != Why::Idle),
            Some(Runner::Thread(_)) | None => true,
        };
        let user = match &entry.runner {
            Some(Runner::Program(_)) => Some(rustix::process::geteuid().as_raw()),
            _ => entry.user,
        };
        // HISTORY-015
        if let Some(file) = entry.histories.take() {
            let how = Arc::clone(&entry.how_ended);
            let end = EndOfSlot { slot, at: now, how, is_failure, user };
            self.kept_histories.keep(&file, devices.len(), &end);
            // COUNT-022
            for (number, device) in devices.iter_mut().enumerate() {
                if let Some(counts) = read_counts(&file, number) {
                    device.keep_counts(counts);
                }
            }
        }
        let entry = &mut self.entries[slot];
        (entry.sessions, entry.user) = (0, None);
        (entry.asked_since, entry.idle_since) = (None, None);
        entry.free_since = Some(now);
        let fd = link.as_fd().as_raw_fd();
        let _ = self.watcher.registry.deregister(&mut SourceFd(&fd));
        for descriptor in link.into_descriptors() {
            self.close(descriptor);
        }
        for group in devices.iter_mut().flat_map(|device| device.groups.values_mut()) {
            if let Ok(slot) = self.plan.count.slot(slot) {
                group.take_back(slot);
            }
        }
        true
    }

    /// What happened to QPs of slots that have ended.
    pub(in crate::broker) fn kept_histories(&self) -> &KeptHistories {
        &self.kept_histories
    }
}

/// A file for what happens to the QPs of a slot. Without it, that is known as long as the slot
/// runs.
pub(super) fn history_file(slot: usize, devices: usize) -> Option<File> {
    let created = urxe_slot::history_file::create(devices);
    let said = created.inspect_err(|error| {
        tracing::warn!(
            target: SLOT,
            slot,
            "what happens to QPs of slot {slot} will not be known when it has ended: {error}"
        );
    });
    said.ok().map(File::from)
}
