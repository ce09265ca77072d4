//! Slots that programs of the daemon's own user run themselves; and what any slot begins with that
//! is not one of the daemon's own threads.

use super::Slots;
use super::logged::log_start;
use crate::broker::device::RdmaDevice;
use crate::broker::kept_histories::HowEnded;
use crate::broker::slot_entry::{HostingProgram, Runner};
use crate::limits::{MAX_HOSTED_SLOTS, SLOT_REST};
use mio::Interest;
use mio::unix::SourceFd;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;
use urxe_shm::control::ControlError;
use urxe_slot::limits::MAX_HOSTED_BACKLOG;
use urxe_slot::link::{Link, ToBroker, ToSlot};
use urxe_slot::refusal::{Refusal, refuse};

impl Slots {
    /// Begins a slot for a program to run. Returns its number, and its end of the link.
    ///
    /// # Errors
    /// Why the program is to do without.
    pub(crate) fn host(
        &mut self,
        now: Instant,
        devices: &mut [RdmaDevice],
    ) -> Result<(usize, OwnedFd), ControlError> {
        // OWN-003
        if self.plan.serve_all() {
            let sentence = "a slot of the program's own: one slot of this daemon serves all \
                            programs, as it does with --fault or an IPv6 loopback address";
            return Err(refuse(Errno::OPNOTSUPP, sentence));
        }
        let is_hosted = |&slot: &usize| self.is_hosted(slot) && !self.entries[slot].is_free();
        let hosted = self.plan.of_others().filter(is_hosted).count();
        let free = self.free_slot(now).filter(|_| hosted < MAX_HOSTED_SLOTS);
        let Some(slot) = free else {
            let sentence = format!(
                "a slot of the program's own: {hosted} programs have one, of {MAX_HOSTED_SLOTS} \
                 at most and {} that programs and other users share; fewer --slots leave more",
                self.plan.of_others().len()
            );
            return Err(refuse(Errno::NOSPC, sentence));
        };
        match self.try_host(now, slot, devices) {
            Ok(link) => Ok((slot, link)),
            Err(error) => {
                if self.is_running(slot) {
                    self.note_failed(slot);
                }
                Err(error).or_refuse(Errno::MFILE, "a slot of the program's own")
            }
        }
    }

    fn try_host(
        &mut self,
        now: Instant,
        slot: usize,
        devices: &mut [RdmaDevice],
    ) -> io::Result<OwnedFd> {
        let (link, other) = self.open_link(slot)?;
        let link = link.with_backlog(MAX_HOSTED_BACKLOG);
        let runner = Runner::Program(HostingProgram::new(&link)?);
        log_start(slot, &runner, None);
        self.begin(now, slot, None, (link, runner, HowEnded::default()), devices)?;
        Ok(other)
    }

    /// One of the slots that are not of the daemon's own threads, and in which nothing runs.
    pub(super) fn free_slot(&self, now: Instant) -> Option<usize> {
        let free = self.plan.of_others().filter(|&slot| self.entries[slot].is_free());
        let free: Vec<usize> = free.collect();
        let since = |slot: &usize| self.entries[*slot].free_since;
        // SLOT-103
        let has_rested = |slot: &&usize| since(slot).is_none_or(|since| since + SLOT_REST <= now);
        let rested = free.iter().find(has_rested);
        rested.or_else(|| free.iter().min_by_key(|slot| since(slot))).copied()
    }

    /// A link that is watched, and its other end.
    pub(super) fn open_link(&self, slot: usize) -> io::Result<(Link<ToSlot, ToBroker>, OwnedFd)> {
        let (link, other) = Link::pair()?;
        let (fd, token) = (link.as_fd().as_raw_fd(), (self.watcher.token_of)(slot));
        let registry = &self.watcher.registry;
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        Ok((link, other))
    }

    /// Whether a program runs a slot, or did last.
    pub(crate) fn is_hosted(&self, slot: usize) -> bool {
        self.entries.get(slot).is_some_and(|it| matches!(it.runner, Some(Runner::Program(_))))
    }
}
