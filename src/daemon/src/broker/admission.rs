//! Who is let in: how many sessions each user has, who waits for one of its own to end, and who has
//! yet to say who it is.
//!
//! A program that ends closes its connection, and its slot notices a little later. Another one of
//! its user that comes meanwhile, and finds no room, waits for that a moment.

use super::account::Account;
use super::worker::User;
use crate::limits::{
    DESCRIPTORS_OF_DAEMON, DESCRIPTORS_PER_SESSION, HELLO_TIMEOUT, MAX_SESSIONS, MAX_WAITING,
    MAX_WAITING_OF_USER, ROOM_TIMEOUT,
};
use crate::upgrade::{Descriptors, Fd, ImageError, ReceivedDescriptors, Times};
use rustix::process::Resource;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use urxe_shm::control::ControlError;
use urxe_types::TimeOffset;

/// A program that has connected and has no session yet.
pub(crate) struct Newcomer {
    pub(crate) socket: OwnedFd,
    pub(crate) user: User,
    pub(crate) pid: u32,
}

/// What is written down of programs that come.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SavedAdmission {
    waiting: Vec<(TimeOffset, Fd, User, u32)>,
    silent: Vec<(TimeOffset, u64)>,
}

/// Programs that come, and how many are there.
pub(crate) struct Admission {
    sessions: Account,
    /// With the time until which each waits, which is that of all in their order.
    waiting: VecDeque<(Instant, Newcomer)>,
    /// Sessions by number, until when each is to have said who it is.
    silent: VecDeque<(Instant, u64)>,
}

impl Admission {
    /// For as many sessions as this process has descriptors for.
    pub(crate) fn new() -> Admission {
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
        Admission::with_sessions(max_sessions(descriptors))
    }

    fn with_sessions(total: usize) -> Admission {
        Admission {
            sessions: Account::new("sessions", total),
            waiting: VecDeque::new(),
            silent: VecDeque::new(),
        }
    }

    /// One user may have so many sessions at most from now on.
    pub(crate) fn limit_sessions(&mut self, most: Option<usize>) {
        self.sessions.limit("sessions-per-user", most);
    }

    /// Whether a user may have one more session.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, uid: u32) -> Result<(), ControlError> {
        self.sessions.check(uid)
    }

    /// A program has come. It is the [next](Self::next) one if there is room, and otherwise waits
    /// for some.
    ///
    /// # Errors
    /// Its socket, and why it cannot even wait.
    pub(crate) fn arrive(
        &mut self,
        now: Instant,
        newcomer: Newcomer,
    ) -> Result<(), (OwnedFd, ControlError)> {
        if let Err(error) = self.sessions.check(newcomer.user.uid) {
            let of_user =
                self.waiting.iter().filter(|(_, other)| other.user.uid == newcomer.user.uid);
            if self.waiting.len() >= MAX_WAITING || of_user.count() >= MAX_WAITING_OF_USER {
                return Err((newcomer.socket, error));
            }
        }
        self.waiting.push_back((now + ROOM_TIMEOUT, newcomer));
        Ok(())
    }

    /// The first program of those that wait for which there is room.
    pub(crate) fn next(&mut self) -> Option<Newcomer> {
        let has_room =
            |(_, newcomer): &(_, Newcomer)| self.sessions.check(newcomer.user.uid).is_ok();
        let index = self.waiting.iter().position(has_room)?;
        self.waiting.remove(index).map(|(_, newcomer)| newcomer)
    }

    /// One that has waited in vain: its socket, and why there is no room.
    pub(crate) fn next_refused(&mut self, now: Instant) -> Option<(OwnedFd, ControlError)> {
        let &(until, Newcomer { user, .. }) = self.waiting.front()?;
        if until > now {
            return None;
        }
        let error = self.sessions.check(user.uid).err()?;
        self.waiting.pop_front().map(|(_, newcomer)| (newcomer.socket, error))
    }

    /// A session has begun.
    pub(crate) fn begin(&mut self, now: Instant, uid: u32, session: u64) {
        self.sessions.take(uid);
        self.silent.push_back((now + HELLO_TIMEOUT, session));
    }

    /// Nothing is left of a session of this user.
    pub(crate) fn end(&mut self, uid: u32) {
        self.sessions.give_back(uid);
    }

    /// A session that should have said by now who it is. Whether it has, the caller knows.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<u64> {
        let &(until, session) = self.silent.front()?;
        (until <= now).then(|| self.silent.pop_front())?;
        Some(session)
    }

    /// Writes down who waits, and who has yet to say who it is.
    pub(crate) fn save<'a>(&'a self, times: Times, fds: &mut Descriptors<'a>) -> SavedAdmission {
        let waiting = self.waiting.iter().map(|(until, newcomer)| {
            let Newcomer { socket, user, pid } = newcomer;
            (times.of(*until), fds.add(socket.as_fd()), *user, *pid)
        });
        let silent = self.silent.iter().map(|(until, session)| (times.of(*until), *session));
        SavedAdmission { waiting: waiting.collect(), silent: silent.collect() }
    }

    /// Goes on with those, and with sessions of these users.
    pub(crate) fn restore(
        &mut self,
        times: Times,
        saved: SavedAdmission,
        users: impl Iterator<Item = u32>,
        fds: &mut ReceivedDescriptors,
    ) -> Result<(), ImageError> {
        users.for_each(|user| self.sessions.take(user));
        for (until, socket, user, pid) in saved.waiting {
            let newcomer = Newcomer { socket: fds.take(socket)?, user, pid };
            self.waiting.push_back((times.at(until), newcomer));
        }
        let silent = saved.silent.into_iter();
        self.silent = silent.map(|(until, session)| (times.at(until), session)).collect();
        Ok(())
    }

    /// When there is something to do although nobody comes or goes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.front().map(|(until, _)| *until);
        let silent = self.silent.front().map(|(until, _)| *until);
        waiting.into_iter().chain(silent).min()
    }

    /// Whether anybody waits.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// How many sessions so many descriptors are enough for.
fn max_sessions(descriptors: Option<u64>) -> usize {
    let descriptors = descriptors.unwrap_or(u64::MAX).saturating_sub(DESCRIPTORS_OF_DAEMON);
    let enough_for = usize::try_from(descriptors / DESCRIPTORS_PER_SESSION).unwrap_or(usize::MAX);
    enough_for.min(MAX_SESSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn newcomer(uid: u32) -> Newcomer {
        let (socket, _) = rustix::pipe::pipe().unwrap();
        Newcomer { socket, user: User { uid, gid: uid }, pid: 1 }
    }

    /// Lets programs of a user come until one has to wait; returns how many are in.
    fn fill(admission: &mut Admission, now: Instant, uid: u32) -> u64 {
        for session in 0.. {
            admission.arrive(now, newcomer(uid)).map_err(|(_, error)| error).unwrap();
            match admission.next() {
                Some(next) => admission.begin(now, next.user.uid, session),
                None => return session,
            }
        }
        unreachable!("there is not so much room")
    }

    #[test]
    fn a_program_waits_a_moment_for_another_of_its_user_to_go() {
        let now = Instant::now();
        let mut admission = Admission::with_sessions(256);
        fill(&mut admission, now, 7);
        assert!(admission.next().is_none() && admission.next_refused(now).is_none());
        assert_eq!(admission.deadline(), Some(now + ROOM_TIMEOUT));
        admission.end(7);
        assert_eq!(admission.next().map(|next| next.user.uid), Some(7));
    }

    #[test]
    fn a_program_that_has_waited_in_vain_is_refused_with_the_reason() {
        let now = Instant::now();
        let mut admission = Admission::with_sessions(256);
        fill(&mut admission, now, 7);
        let later = now + ROOM_TIMEOUT;
        assert!(admission.next_refused(later - Duration::from_nanos(1)).is_none());
        let (_, error) = admission.next_refused(later).unwrap();
        assert!(error.message.contains("user 7 has"), "{}", error.message);
        assert!(!admission.has_waiting());
    }

    #[test]
    fn programs_that_wait_keep_none_of_another_user_waiting() {
        let now = Instant::now();
        let mut admission = Admission::with_sessions(256);
        fill(&mut admission, now, 7);
        let refused = (1..1000).find(|_| admission.arrive(now, newcomer(7)).is_err());
        assert_eq!(refused, Some(MAX_WAITING_OF_USER), "one waits already");
        assert!(admission.arrive(now, newcomer(8)).is_ok());
        assert_eq!(admission.next().map(|next| next.user.uid), Some(8));
    }

    #[test]
    fn a_session_is_due_when_its_time_to_say_hello_is_over() {
        let now = Instant::now();
        let mut admission = Admission::with_sessions(256);
        admission.begin(now, 7, 1);
        admission.begin(now + Duration::from_secs(1), 7, 2);
        assert_eq!(admission.next_due(now), None);
        assert_eq!(admission.next_due(now + HELLO_TIMEOUT), Some(1));
        assert_eq!(admission.next_due(now + HELLO_TIMEOUT), None);
        assert_eq!(admission.deadline(), Some(now + Duration::from_secs(1) + HELLO_TIMEOUT));
    }

    #[test]
    fn there_are_no_more_sessions_than_descriptors_for_them() {
        assert_eq!(max_sessions(None), MAX_SESSIONS);
        assert_eq!(max_sessions(Some(1024)), 192);
        assert_eq!(max_sessions(Some(10)), 0);
    }
}
