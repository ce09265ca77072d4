//! QPs in ERR with receive queues of their own. What is posted there has to be flushed, and the
//! stock `librxe` does not say when it posts a receive: so they are looked at from time to time.
//! However many of them a program has, those of the others are looked at as often.

use crate::limits::{LOOKS_PER_OWNER, LOOKS_PER_TURN};
use crate::objects::OwnerId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Those of one program.
#[derive(Debug, Default)]
struct Failed {
    qpns: BTreeSet<u32>,
    /// The one looked at last.
    last: u32,
}

impl Failed {
    /// The next few in the circle, each once at most.
    fn next(&mut self, count: usize, looks: &mut Vec<u32>) {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let before = (Bound::Unbounded, Bound::Included(self.last));
        let circle = self.qpns.range(behind).chain(self.qpns.range(before)).take(count);
        looks.extend(circle);
        self.last = looks.last().copied().unwrap_or_default();
    }
}

/// Those of all programs.
#[derive(Debug, Default)]
pub(crate) struct FailedQps {
    by_owner: BTreeMap<OwnerId, Failed>,
    /// The program whose QPs were looked at last.
    last: Option<OwnerId>,
}

impl FailedQps {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// Whether a QP is among them.
    pub(crate) fn contains(&self, owner: OwnerId, qpn: u32) -> bool {
        self.by_owner.get(&owner).is_some_and(|failed| failed.qpns.contains(&qpn))
    }

    /// Adds a QP of a program.
    pub(crate) fn insert(&mut self, owner: OwnerId, qpn: u32) {
        self.by_owner.entry(owner).or_default().qpns.insert(qpn);
    }

    /// Takes a QP of a program out.
    pub(crate) fn remove(&mut self, owner: OwnerId, qpn: u32) {
        if let Some(failed) = self.by_owner.get_mut(&owner) {
            failed.qpns.remove(&qpn);
            if failed.qpns.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }

    /// Those to be looked at now: a few of each program, of as many programs as fit into a turn.
    pub(crate) fn next_looks(&mut self) -> Vec<u32> {
        let mut looks = Vec::new();
        for _ in 0..self.by_owner.len() {
            if looks.len() >= LOOKS_PER_TURN {
                break;
            }
            let behind = (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let next = self.by_owner.range(behind).next().or(self.by_owner.iter().next());
            let Some((&owner, _)) = next else { break };
            self.last = Some(owner);
            // SHARE-011
            let failed = self.by_owner.get_mut(&owner);
            failed.into_iter().for_each(|failed| failed.next(LOOKS_PER_OWNER, &mut looks));
        }
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_qps_of_a_program_are_looked_at_as_often_however_many_another_has() {
        let mut failed = FailedQps::default();
        (0..10_000).for_each(|qpn| failed.insert(OwnerId(1), qpn));
        failed.insert(OwnerId(2), 20_000);
        let mut seen = BTreeSet::new();
        for _ in 0..10_000 / LOOKS_PER_OWNER + 1 {
            let looks = failed.next_looks();
            // SHARE-011
            assert!(looks.contains(&20_000) && looks.len() <= LOOKS_PER_OWNER + 1);
            seen.extend(looks);
        }
        assert_eq!(seen.len(), 10_001, "each has its turn");
    }

    #[test]
    fn looks_of_one_turn_are_bounded_and_all_programs_have_theirs() {
        let mut failed = FailedQps::default();
        for owner in 0..1000 {
            (0..100).for_each(|qpn| failed.insert(OwnerId(owner), owner as u32 * 100 + qpn));
        }
        let mut owners = BTreeSet::new();
        for _ in 0..1000 * LOOKS_PER_OWNER / LOOKS_PER_TURN + 1 {
            let looks = failed.next_looks();
            assert!(looks.len() < LOOKS_PER_TURN + LOOKS_PER_OWNER);
            owners.extend(looks.iter().map(|qpn| qpn / 100));
        }
        assert_eq!(owners.len(), 1000);
    }

    #[test]
    fn none_is_looked_at_twice_in_a_turn_or_after_it_is_gone() {
        let mut failed = FailedQps::default();
        (0..3).for_each(|qpn| failed.insert(OwnerId(1), qpn));
        let mut looks = failed.next_looks();
        looks.sort_unstable();
        assert_eq!(looks, [0, 1, 2]);
        assert!(failed.contains(OwnerId(1), 2) && !failed.contains(OwnerId(2), 2));
        (0..3).for_each(|qpn| failed.remove(OwnerId(1), qpn));
        assert!(failed.is_empty() && failed.next_looks().is_empty());
    }
}
