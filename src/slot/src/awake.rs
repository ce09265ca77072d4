//! Which sessions' doorbells are looked at in every turn: those that have rung of late.
//!
//! A session that has not rung for [`REST_AFTER`] is told through its doorbell page that the daemon
//! sleeps, as all are before it really does. The next ring then also writes to the session's
//! eventfd, which costs the program a system call, and the session is looked at again. So a
//! program that does nothing costs the others nothing.

use crate::limits::REST_AFTER;
use std::time::Instant;

/// A session, as far as it is told whether the daemon looks at it.
pub(crate) trait Rest {
    /// Tells the program that the daemon is about to look at it no more; `false` if it must not,
    /// because a bell was rung.
    fn fall_asleep(&self) -> bool;

    /// Tells the program that the daemon looks at it.
    fn wake_up(&self);
}

/// The sessions that are looked at, in the order of their keys, with when they rang last.
#[derive(Debug, Default)]
pub(crate) struct Awake(Vec<(u32, Instant)>);

impl Awake {
    /// Has a session looked at from now on.
    pub(crate) fn wake(&mut self, now: Instant, key: u32, session: &impl Rest) {
        session.wake_up();
        match self.0.binary_search_by_key(&key, |&(key, _)| key) {
            Ok(at) => self.0[at].1 = now,
            Err(at) => self.0.insert(at, (key, now)),
        }
    }

    /// Looks at the sessions, which `find` finds: `take` takes the doorbells of one, and says
    /// whether there were any. Returns whether any session had.
    pub(crate) fn look<'a, S: Rest + 'a>(
        &mut self,
        now: Instant,
        find: impl Fn(u32) -> Option<&'a S>,
        mut take: impl FnMut(&S) -> bool,
    ) -> bool {
        let mut any_rang = false;
        self.0.retain_mut(|(key, rang_at)| {
            let Some(session) = find(*key) else { return false };
            if take(session) {
                *rang_at = now;
                any_rang = true;
                return true;
            }
            // SHARE-007
            now.duration_since(*rang_at) < REST_AFTER || !session.fall_asleep()
        });
        any_rang
    }

    /// Tells all of them that the daemon is about to sleep; `false` if it must not.
    pub(crate) fn fall_asleep<'a, S: Rest + 'a>(
        &self,
        find: impl Fn(u32) -> Option<&'a S>,
    ) -> bool {
        self.0.iter().all(|&(key, _)| find(key).is_none_or(S::fall_asleep))
    }

    /// Tells all of them that the daemon is awake.
    pub(crate) fn wake_up<'a, S: Rest + 'a>(&self, find: impl Fn(u32) -> Option<&'a S>) {
        self.0.iter().filter_map(|&(key, _)| find(key)).for_each(S::wake_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::time::Duration;

    const SESSIONS: u32 = 4;

    #[derive(Default)]
    struct Session {
        asleep: Cell<bool>,
        bell: Cell<bool>,
        /// The program has written to the eventfd, and the daemon was not told yet.
        wakes: Cell<bool>,
        looks: Cell<u32>,
    }

    impl Rest for Session {
        fn fall_asleep(&self) -> bool {
            self.asleep.set(!self.bell.get());
            self.asleep.get()
        }

        fn wake_up(&self) {
            self.asleep.set(false);
        }
    }

    impl Session {
        fn ring(&self) {
            self.bell.set(true);
            if self.asleep.replace(false) {
                self.wakes.set(true);
            }
        }

        fn take(&self) -> bool {
            self.looks.set(self.looks.get() + 1);
            self.bell.replace(false)
        }
    }

    /// The daemon and its sessions.
    struct Model {
        awake: Awake,
        sessions: Vec<Option<Session>>,
        now: Instant,
    }

    impl Model {
        fn new() -> Model {
            let (awake, now) = (Awake::default(), Instant::now());
            let mut model = Model { awake, sessions: Vec::new(), now };
            (0..SESSIONS).for_each(|_| model.open());
            model
        }

        fn open(&mut self) {
            let session = Session::default();
            self.awake.wake(self.now, self.sessions.len() as u32, &session);
            self.sessions.push(Some(session));
        }

        fn turn(&mut self) -> bool {
            for (key, session) in (0u32..).zip(&self.sessions) {
                if let Some(session) = session
                    && session.wakes.replace(false)
                {
                    self.awake.wake(self.now, key, session);
                }
            }
            let find = |key: u32| self.sessions[key as usize].as_ref();
            self.awake.look(self.now, find, Session::take)
        }

        /// The daemon sleeps, if it may, while `meanwhile` happens.
        fn sleep(&mut self, meanwhile: impl FnOnce(&Model)) {
            let find = |key: u32| self.sessions[key as usize].as_ref();
            let sleeps = self.awake.fall_asleep(find);
            meanwhile(self);
            let rang = |session: &Session| session.bell.get();
            let woken = |session: &Session| session.wakes.get();
            let is_rung = self.sessions.iter().flatten().any(rang);
            let is_woken = self.sessions.iter().flatten().any(woken);
            assert!(!sleeps || !is_rung || is_woken, "asleep for ever");
            self.awake.wake_up(find);
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Ring(u32),
        Turn,
        Sleep(Option<u32>),
        Wait(u32),
        Close(u32),
        Open,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..SESSIONS).prop_map(Op::Ring),
            3 => Just(Op::Turn),
            2 => prop::option::of(0..SESSIONS).prop_map(Op::Sleep),
            2 => (1..4000u32).prop_map(Op::Wait),
            1 => (0..SESSIONS).prop_map(Op::Close),
            1 => Just(Op::Open),
        ]
    }

    proptest! {
        /// Whenever sessions ring, come and go, and whenever the daemon sleeps: each ring is seen
        /// in the next turn, and the daemon does not sleep over one.
        #[test]
        fn no_ring_is_missed_by_a_daemon_that_looks_at_few(
            ops in prop::collection::vec(op(), 0..100),
        ) {
            let mut model = Model::new();
            for op in ops {
                match op {
                    Op::Ring(key) => {
                        model.sessions[key as usize].iter().for_each(Session::ring);
                    }
                    Op::Turn => {
                        model.turn();
                        let rings = model.sessions.iter().flatten().filter(|it| it.bell.get());
                        prop_assert_eq!(rings.count(), 0);
                    }
                    Op::Sleep(ring) => model.sleep(|model| {
                        let key = ring.map_or(usize::MAX, |key| key as usize);
                        model.sessions.get(key).iter().for_each(|session| {
                            session.iter().for_each(Session::ring);
                        });
                    }),
                    Op::Wait(us) => model.now += Duration::from_micros(us.into()),
                    Op::Close(key) => model.sessions[key as usize] = None,
                    Op::Open => model.open(),
                }
            }
        }
    }

    #[test]
    fn a_session_that_does_not_ring_is_looked_at_no_more() {
        let mut model = Model::new();
        let looks = |model: &Model, key: usize| model.sessions[key].as_ref().unwrap().looks.get();
        for turn in 1..=100 {
            model.now += REST_AFTER / 10;
            model.sessions[0].iter().for_each(Session::ring);
            assert!(model.turn());
            assert_eq!(looks(&model, 0), turn);
        }
        // SHARE-007
        assert!((1..SESSIONS as usize).all(|key| looks(&model, key) <= 11));
    }
}
