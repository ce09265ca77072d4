//! Programs that run slots themselves: how they ask for one, and what is not believed of what such
//! a slot says, or not read at once.

use super::EventLoop;
use super::token::Token;
use crate::limits::ACCEPT_INTERVAL;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Instant;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{ControlError, Reply};
use urxe_slot::refusal::{Refusal, refuse};

/// Slots of programs that may have said something that is not to be read yet.
#[derive(Default)]
pub(super) struct HeldBack {
    slots: BTreeSet<usize>,
    /// When to look whether it can be read.
    pub(super) look_again: Option<Instant>,
}

impl EventLoop {
    /// Answers a program that asks for a slot to run itself.
    pub(super) fn host_slot(&mut self, number: u64) {
        match self.try_host_slot(number) {
            Ok((reply, fds)) => self.answer_with_fds(number, Ok(reply), fds),
            Err(error) => self.answer_with_fds(number, Err(error), Vec::new()),
        }
    }

    /// Begins the slot, and a session in it.
    fn try_host_slot(&mut self, number: u64) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let asker = self.sessions.get(&number).filter(|session| session.is_open);
        let asker = asker.ok_or_else(|| refuse(Errno::SRCH, "the program is gone"))?;
        let (uid, pid) = (asker.program.uid, asker.pid);
        let own = rustix::process::geteuid().as_raw();
        // OWN-002: who has sockets of the slots can take what is for others.
        if uid != own {
            let sentence = format!(
                "a slot of the program's own: user {uid} has no right to one, it is for programs \
                 of user {own}, whose daemon this is"
            );
            return Err(refuse(Errno::PERM, sentence));
        }
        self.admission.check(uid)?;
        let ends = Channel::pair_with_program();
        let (socket, program_end) = ends.or_refuse(Errno::MFILE, "a slot of the program's own")?;
        let now = self.ctx.now;
        let (slot, link) = self.slots.host(now, &mut self.ctx.devices)?;
        self.open_session(now, slot, uid, pid, socket);
        // There are no more than the 64 that a QPN can name.
        let reply = Reply::HostSlot { slot: slot as u8 };
        Ok((reply, vec![link, program_end]))
    }

    /// Whether a program may ask the broker: it is there, and what it asked before was answered.
    /// The daemon's own slots see to both.
    pub(super) fn may_ask(&mut self, slot: usize, number: u64) -> bool {
        // OWN-035
        let session = self.session_of(slot, number).filter(|session| session.is_open);
        let Some(session) = session else { return false };
        // OWN-036
        if std::mem::replace(&mut session.has_asked, true) {
            self.slots.give_up(slot, "it asks again before it was answered");
            return false;
        }
        true
    }

    /// A slot has nothing of a session any more, whether it has said before that the program is
    /// gone or not.
    pub(super) fn slot_has_freed(&mut self, slot: usize, number: u64) {
        if self.session_of(slot, number).is_none() {
            return;
        }
        // OWN-035
        self.program_is_gone(number);
        if let Some(session) = self.sessions.get_mut(&number) {
            session.is_in_slot = false;
        }
        self.slots.end_session(slot);
        self.forget_if_over(number);
    }

    /// Whether what a slot says has to wait, because it may come with descriptors and enough are to
    /// be closed already.
    pub(super) fn is_held_back(&mut self, now: Instant, slot: usize) -> bool {
        // SHARE-127
        let is_held_back = self.slots.is_hosted(slot) && !self.slots.has_room_to_close();
        if is_held_back {
            self.held_back.slots.insert(slot);
            self.held_back.look_again.get_or_insert(now + ACCEPT_INTERVAL);
        }
        is_held_back
    }

    /// Looks again at slots that were held back, when it is time.
    pub(super) fn look_again_at_held_back(&mut self, now: Instant) {
        let HeldBack { slots, look_again } = &mut self.held_back;
        if look_again.take_if(|at| *at <= now).is_some() {
            let tokens = std::mem::take(slots).into_iter().map(|slot| Token::Slot { slot });
            let tokens: Vec<_> = tokens.filter(|token| !self.ready.contains(token)).collect();
            self.ready.extend(tokens);
        }
    }
}
