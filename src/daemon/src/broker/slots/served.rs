//! Whom the slots serve, and which have begun to.

use super::Slots;

impl Slots {
    /// Whether one slot serves the programs of all users.
    pub(crate) fn serve_all(&self) -> bool {
        self.plan.serve_all()
    }

    /// Whether a slot may have programs of a user who is not the daemon's own.
    pub(crate) fn may_serve(&self, slot: usize, uid: u32) -> bool {
        self.plan.serve_all() || self.entries.get(slot).is_some_and(|it| it.user == Some(uid))
    }

    /// A slot that has begun since the last time.
    pub(crate) fn take_one_that_began(&mut self) -> Option<usize> {
        self.began.pop()
    }

    /// How many sessions a slot serves, and whose it is, if not the daemon's own user's.
    pub(crate) fn served_by(&self, slot: usize) -> (usize, Option<u32>) {
        self.entries.get(slot).map_or((0, None), |entry| (entry.sessions, entry.user))
    }
}
