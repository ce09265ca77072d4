//! Programs that connect: accepted, let in as their user has room, and passed on to a slot.

use super::EventLoop;
use crate::broker::admission::Newcomer;
use crate::broker::sessions::Session;
use crate::broker::worker::User;
use crate::limits::{ACCEPT_INTERVAL, ACCEPT_PAUSE, ACCEPTS_PER_INTERVAL, HELLO_TIMEOUT};
use crate::log::SESSION;
use rustix::process::geteuid;
use std::os::fd::OwnedFd;
use std::time::Instant;
use urxe_shm::control::ControlError;
use urxe_shm::control::peer::Peer;
use urxe_slot::link::ToSlot;
use urxe_slot::refusal::check_descriptors;

/// How many were accepted lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    since: Instant,
    accepted: u32,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { since: now, accepted: 0 }
    }

    /// Whether one more may be accepted now; if not, when.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        if now.duration_since(self.since) >= ACCEPT_INTERVAL {
            *self = Pace::new(now);
        }
        if self.accepted == ACCEPTS_PER_INTERVAL {
            return Err(self.since + ACCEPT_INTERVAL);
        }
        self.accepted += 1;
        Ok(())
    }
}

impl EventLoop {
    /// Accepts programs that want to connect.
    pub(super) fn accept(&mut self, now: Instant) {
        // There is none any more while the daemon ends.
        while let Some(listener) = &self.listener {
            // SHARE-127
            if !self.slots.has_room_to_close() {
                self.accept_again = Some(now + ACCEPT_INTERVAL);
                return;
            }
            // SHARE-013
            if let Err(again) = self.accept_pace.take(now) {
                self.ctx.counters.accept_pauses += 1;
                self.accept_again = Some(again);
                return;
            }
            match listener.accept() {
                Ok(Some(socket)) => self.arrive(now, socket),
                Ok(None) => return,
                Err(_) => {
                    // Out of descriptors or memory, and the program goes on waiting. Looking
                    // again at once would find the same.
                    self.ctx.counters.sessions_refused += 1;
                    // HOST-028
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// A program has connected.
    fn arrive(&mut self, now: Instant, socket: OwnedFd) {
        let Ok(peer) = Peer::of(&socket) else { return self.refuse(socket, None) };
        let user = User { uid: peer.uid, gid: peer.gid };
        // SHARE-121
        if peer.uid == geteuid().as_raw()
            && let Err(error) = check_descriptors(&socket)
        {
            return self.refuse(socket, Some(&error));
        }
        let newcomer = Newcomer { socket, user, pid: peer.pid.unwrap_or(0) };
        if let Err((socket, error)) = self.admission.arrive(now, newcomer) {
            self.refuse(socket, Some(&error));
        }
    }

    /// Begins the sessions of programs that have come and for which there is room, and turns those
    /// away that have waited for some in vain.
    pub(super) fn admit(&mut self, now: Instant) {
        while let Some(newcomer) = self.admission.next() {
            self.begin_session(now, newcomer);
        }
        while let Some((socket, error)) = self.admission.next_refused(now) {
            self.refuse(socket, Some(&error));
        }
        while let Some(number) = self.admission.next_due(now) {
            self.end_if_silent(number);
        }
    }

    fn refuse(&mut self, socket: OwnedFd, reason: Option<&ControlError>) {
        self.ctx.counters.sessions_refused += 1;
        if let (Some(reason), Ok(Peer { uid, .. })) = (reason, Peer::of(&socket)) {
            tracing::warn!(target: SESSION, uid, "a program is refused: {}", reason.message);
        }
        self.slots.refuse(socket, reason);
    }

    /// Passes a program on to a slot, before anything is read of it.
    fn begin_session(&mut self, now: Instant, newcomer: Newcomer) {
        let Newcomer { socket, user, pid } = newcomer;
        let slot = match self.slots.place(now, user, &mut self.ctx.devices) {
            Ok(slot) => slot,
            Err(error) => return self.refuse(socket, Some(&error)),
        };
        self.open_session(now, slot, user.uid, pid, socket);
    }

    /// Begins a session in a slot.
    pub(super) fn open_session(
        &mut self,
        now: Instant,
        slot: usize,
        uid: u32,
        pid: u32,
        socket: OwnedFd,
    ) {
        let number = self.last_session + 1;
        self.slots.begin_session(now, slot, ToSlot::Session { number, uid, pid }, socket);
        self.last_session = number;
        self.sessions.insert(number, Session::new(number, slot, uid, pid));
        self.admission.begin(now, uid, number);
        self.open_sessions += 1;
        self.ctx.counters.sessions_opened += 1;
    }

    /// Ends a session that had the time to say who it is, and has not.
    fn end_if_silent(&mut self, number: u64) {
        let Some(session) = self.sessions.get(&number) else { return };
        if session.is_named || !session.is_open {
            return;
        }
        // SHARE-103
        self.ctx.counters.sessions_silent += 1;
        let (pid, uid) = (session.pid, session.program.uid);
        tracing::info!(
            target: SESSION,
            uid,
            pid,
            "process {pid} of user {uid} has connected and not said who it is in {} seconds: its \
             connection ends",
            HELLO_TIMEOUT.as_secs()
        );
        let message = ToSlot::EndSession { session: number };
        self.slots.send(self.ctx.now, session.slot, message, Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// SHARE-013
    #[test]
    fn programs_are_accepted_at_once_but_no_more_than_so_many_in_a_while() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start;
        let mut accepted = 0;
        while now < start + 100 * ACCEPT_INTERVAL {
            match pace.take(now) {
                Ok(()) => accepted += 1,
                Err(again) => now = again,
            }
        }
        assert_eq!(accepted, 100 * ACCEPTS_PER_INTERVAL);
        // What was not used is not saved up.
        now += Duration::from_secs(1);
        let burst = (0..100).take_while(|_| pace.take(now).is_ok()).count();
        assert_eq!(burst, ACCEPTS_PER_INTERVAL as usize);
    }
}
