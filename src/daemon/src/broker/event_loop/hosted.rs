//! Programs that ask for a slot to run themselves.

use super::EventLoop;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{ControlError, Reply};
use urxe_slot::refusal::{Refusal, refuse};

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
}
