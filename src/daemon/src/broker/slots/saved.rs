//! Slots as they are written down for a process that takes the place of this one. Those that are
//! threads of this process end with it.

use super::Slots;
use crate::broker::device::RdmaDevice;
use crate::broker::kept_histories::{EndOfSlot, HowEnded, SavedHistories};
use crate::broker::slot_entry::{Entry, HostingProgram, LetGo, Runner, Why};
use crate::broker::worker::{User, Worker};
use crate::upgrade::{Descriptors, Fd, ImageError, ReceivedDescriptors, Times, UpgradeError};
use mio::Interest;
use mio::unix::SourceFd;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;
use urxe_slot::limits::MAX_HOSTED_BACKLOG;
use urxe_slot::link::{Link, ToSlot};
use urxe_types::TimeOffset;

/// The slots that are no threads.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SavedSlots {
    slots: Vec<SavedSlot>,
    /// Users for whom no worker is started until then.
    pauses: Vec<(u32, TimeOffset)>,
    kept_histories: SavedHistories,
}

#[derive(Serialize, Deserialize)]
struct SavedSlot {
    number: usize,
    link: Option<SavedLink>,
    runner: Option<SavedRunner>,
    histories: Option<Fd>,
    user: Option<u32>,
    sessions: usize,
    idle_since: Option<TimeOffset>,
    free_since: Option<TimeOffset>,
    asked_since: Option<TimeOffset>,
}

#[derive(Serialize, Deserialize)]
struct SavedLink {
    socket: Fd,
    /// Encoded, with the descriptors that go with them.
    backlog: Vec<(Vec<u8>, Vec<Fd>)>,
    waiting_since: Option<TimeOffset>,
}

#[derive(Serialize, Deserialize)]
enum SavedRunner {
    Worker { pid: i32, user: User, since: TimeOffset, let_go: Option<(TimeOffset, Why)> },
    Program { link: Fd },
}

impl Slots {
    /// How many sessions are served by threads of this process.
    pub(crate) fn sessions_in_threads(&self) -> usize {
        let is_thread = |it: &&Entry| matches!(it.runner, Some(Runner::Thread(_)));
        self.entries.iter().filter(is_thread).map(|entry| entry.sessions).sum()
    }

    /// Writes them down.
    pub(crate) fn save<'a>(
        &'a self,
        times: Times,
        fds: &mut Descriptors<'a>,
    ) -> Result<SavedSlots, UpgradeError> {
        let offset = |time: Option<Instant>| time.map(|time| times.of(time));
        let mut slots = Vec::new();
        for (number, entry) in self.entries.iter().enumerate() {
            let runner = match &entry.runner {
                Some(Runner::Worker { worker, let_go }) => Some(SavedRunner::Worker {
                    // A process has a number below 2^22.
                    pid: worker.id().cast_signed(),
                    user: worker.user,
                    since: times.of(worker.since),
                    let_go: let_go.map(|LetGo { since, why }| (times.of(since), why)),
                }),
                Some(Runner::Program(program)) => {
                    Some(SavedRunner::Program { link: fds.add(program.link()) })
                }
                Some(Runner::Thread(_)) | None => None,
            };
            let link = entry.link.as_ref().filter(|_| runner.is_some());
            let link = link.map(|link| save_link(link, times, fds)).transpose()?;
            // One that runs no more has been free since now.
            let free_since = entry.free_since.or(entry.runner.as_ref().map(|_| times.0));
            slots.push(SavedSlot {
                number,
                sessions: if runner.is_some() { entry.sessions } else { 0 },
                user: entry.user.filter(|_| runner.is_some()),
                link,
                runner,
                histories: entry.histories.as_ref().map(|file| fds.add(file.as_fd())),
                idle_since: offset(entry.idle_since),
                free_since: offset(free_since),
                asked_since: offset(entry.asked_since),
            });
        }
        let pauses = self.pauses.iter().map(|(user, until)| (*user, times.of(*until)));
        let kept_histories = self.kept_histories.save(times);
        Ok(SavedSlots { slots, pauses: pauses.collect(), kept_histories })
    }

    /// Goes on with them.
    pub(crate) fn restore(
        &mut self,
        times: Times,
        saved: SavedSlots,
        fds: &mut ReceivedDescriptors,
    ) -> Result<(), ImageError> {
        let time = |offset: Option<TimeOffset>| offset.map(|offset| times.at(offset));
        self.kept_histories.restore(times, saved.kept_histories);
        for slot in saved.slots {
            let number = slot.number;
            let is_program = matches!(slot.runner, Some(SavedRunner::Program { .. }));
            let link = slot.link.map(|link| self.restore_link(number, link, times, fds));
            let mut link = link.transpose()?;
            if is_program {
                link = link.map(|link| link.with_backlog(MAX_HOSTED_BACKLOG));
            }
            let runner = match slot.runner {
                None => None,
                Some(SavedRunner::Program { link }) => {
                    Some(Runner::Program(HostingProgram::resumed(fds.take(link)?)))
                }
                Some(SavedRunner::Worker { pid, user, since, let_go }) => {
                    let (what, expected) = ("process", "the number of one");
                    let number = pid.cast_unsigned().into();
                    let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 0);
                    let pid = pid.ok_or(ImageError::Number { what, number, expected })?;
                    let (registry, token) = (&self.watcher.registry, self.watcher.of_workers);
                    let worker = Worker::watched(pid, user, times.at(since), registry, token);
                    let let_go = let_go.map(|(since, why)| LetGo { since: times.at(since), why });
                    Some(Runner::Worker { worker, let_go })
                }
            };
            let histories = slot.histories.map(|file| fds.take(file)).transpose()?;
            let mut histories = histories.map(File::from);
            // It was a thread, and has ended.
            if runner.is_none()
                && let Some(file) = histories.take()
            {
                let (at, how) = (times.0, HowEnded::default());
                let end = EndOfSlot { slot: number, at, how, is_failure: false, user: None };
                self.kept_histories.keep(&file, self.plans.len(), &end);
            }
            let Some(entry) = self.entries.get_mut(number) else {
                let (what, expected) = ("slot", "one that is there");
                return Err(ImageError::Number { what, number: number as u64, expected });
            };
            *entry = Entry {
                link,
                runner,
                histories,
                how_ended: HowEnded::default(),
                user: slot.user,
                sessions: slot.sessions,
                idle_since: time(slot.idle_since),
                free_since: time(slot.free_since),
                asked_since: time(slot.asked_since),
                start_again: None,
            };
        }
        let pauses = saved.pauses.into_iter();
        self.pauses = pauses.map(|(user, until)| (user, times.at(until))).collect();
        Ok(())
    }

    /// Has nothing come for slots that do not run: those that were threads have ended without a
    /// word.
    pub(crate) fn take_back_free_ones(&self, devices: &mut [RdmaDevice]) {
        for group in devices.iter_mut().flat_map(|device| device.groups.values_mut()) {
            let slots = self.plan.count.slots().filter(|slot| slot.id().index() > 0);
            let free = slots.filter(|slot| !self.is_running(slot.id().index()));
            free.for_each(|slot| group.take_back(slot));
        }
    }

    fn restore_link(
        &self,
        number: usize,
        saved: SavedLink,
        times: Times,
        fds: &mut ReceivedDescriptors,
    ) -> Result<Link<ToSlot, urxe_slot::link::ToBroker>, ImageError> {
        let socket = fds.take(saved.socket)?;
        let mut backlog = Vec::new();
        for (message, with) in saved.backlog {
            let with = with.into_iter().map(|fd| fds.take(fd)).collect::<Result<_, _>>()?;
            backlog.push((postcard::from_bytes(&message)?, with));
        }
        let (fd, token) = (socket.as_raw_fd(), (self.watcher.token_of)(number));
        let registry = &self.watcher.registry;
        let watched = registry.register(&mut SourceFd(&fd), token, Interest::READABLE);
        watched.map_err(ImageError::Unreadable)?;
        let waiting_since = saved.waiting_since.map(|offset| times.at(offset));
        Ok(Link::resumed(socket, backlog, waiting_since))
    }
}

fn save_link<'a>(
    link: &'a Link<ToSlot, urxe_slot::link::ToBroker>,
    times: Times,
    fds: &mut Descriptors<'a>,
) -> Result<SavedLink, UpgradeError> {
    let socket = fds.add(link.as_fd());
    let mut backlog = Vec::new();
    for (message, with) in link.backlog() {
        let encoded = postcard::to_stdvec(message)
            .map_err(|error| UpgradeError::Write(io::Error::other(error)))?;
        backlog.push((encoded, with.iter().map(|fd| fds.add(fd.as_fd())).collect()));
    }
    let waiting_since = link.waiting_since().map(|since| times.of(since));
    Ok(SavedLink { socket, backlog, waiting_since })
}

impl SavedSlots {
    /// Checks what was read, for so many slots.
    pub(crate) fn check(&self, slots: usize) -> Result<(), ImageError> {
        let numbers = self.slots.iter().map(|slot| slot.number);
        if let Some(number) = numbers.into_iter().find(|number| *number >= slots) {
            let (what, expected) = ("slot", "one that is there");
            return Err(ImageError::Number { what, number: number as u64, expected });
        }
        let links = self.slots.iter().filter_map(|slot| slot.link.as_ref());
        for (message, _) in links.flat_map(|link| &link.backlog) {
            let _: ToSlot = postcard::from_bytes(message)?;
        }
        Ok(())
    }
}
