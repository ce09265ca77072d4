//! How the slots of a daemon are divided among users.

use crate::limits::{MAX_MAPPED_MRS_OF_ALL, MAX_MAPPED_MRS_OF_GUEST};
use std::ops::Range;
use urxe_slot::Numbering;
use urxe_types::SlotCount;

/// How many slots there can be, and whom they serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotPlan {
    /// All that there can be, the broker's included.
    pub(crate) count: SlotCount,
    /// Those of the daemon's own user: the first behind the broker's.
    own: usize,
    /// They serve programs of all users, and there are no others.
    serve_all: bool,
}

impl SlotPlan {
    /// One slot for the programs of all users.
    pub(crate) fn one_for_all() -> SlotPlan {
        // Of the two, the first is the broker's.
        let count = SlotCount::try_from(2).unwrap_or(SlotCount::MAX);
        SlotPlan { count, own: 1, serve_all: true }
    }

    /// So many for the daemon's own user, and one for each other user, as many as are left. `None`
    /// if the daemon cannot have so many, or is to have none.
    pub(crate) fn with_own(own: usize) -> Option<SlotPlan> {
        let count = SlotCount::MAX;
        (1..count.get()).contains(&own).then_some(SlotPlan { count, own, serve_all: false })
    }

    /// The slots of the daemon's own user.
    pub(crate) fn own(self) -> Range<usize> {
        1..self.own + 1
    }

    /// The slots that each belong to one other user.
    pub(crate) fn of_others(self) -> Range<usize> {
        self.own + 1..self.count.get()
    }

    /// Whether a slot of the daemon's own user serves those of all others too.
    pub(crate) fn serve_all(self) -> bool {
        self.serve_all
    }

    /// The sockets that an address begins with: those of the slots that are in use most likely.
    pub(crate) fn sockets(self) -> SlotCount {
        SlotCount::try_from(self.own + 1).unwrap_or(self.count)
    }

    /// The numbers by which a slot shows its objects.
    pub(crate) fn numbering(self, slot: usize) -> Numbering {
        let (own, index) = (self.own as u32, (slot as u32).saturating_sub(1));
        // SLOT-007: there are 2^20 objects of a kind in each, so that those of the first end before
        // the others begin.
        match index < own {
            true => Numbering { first: index, step: own },
            false => Numbering { first: index << 20, step: 1 },
        }
    }

    /// How many registrations a slot may have mapped that is a thread.
    pub(crate) fn max_mapped_in_thread(self, slot: usize) -> usize {
        match self.own().contains(&slot) {
            true => MAX_MAPPED_MRS_OF_ALL / self.own,
            false => MAX_MAPPED_MRS_OF_GUEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_slots_show_the_same_number_and_the_only_one_its_own() {
        let ends = || (0..50).chain((1 << 20) - 50..1 << 20);
        for own in [1, 2, 62, 63] {
            let plan = SlotPlan::with_own(own).unwrap();
            let slots = plan.own().chain(plan.of_others());
            assert_eq!(slots.clone().count(), 63);
            let numbers: Vec<u32> = slots
                .flat_map(|slot| ends().map(move |number| plan.numbering(slot).shown(number)))
                .collect();
            assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len());
        }
        let only = SlotPlan::one_for_all().numbering(1);
        assert_eq!([0, 7, 1 << 20].map(|number| only.shown(number)), [0, 7, 1 << 20]);
    }

    #[test]
    fn a_process_never_has_more_mapped_than_it_can() {
        for own in 1..=63 {
            let plan = SlotPlan::with_own(own).unwrap();
            let slots = plan.own().chain(plan.of_others());
            let mapped: usize = slots.map(|slot| plan.max_mapped_in_thread(slot)).sum();
            assert!(mapped < 60_000, "{mapped}");
        }
    }

    #[test]
    fn there_are_slots_for_the_daemons_own_user_at_least() {
        assert_eq!(SlotPlan::with_own(0), None);
        assert_eq!(SlotPlan::with_own(64), None);
        assert!(SlotPlan::with_own(63).unwrap().of_others().is_empty());
        let one = SlotPlan::one_for_all();
        assert!(one.serve_all() && one.of_others().is_empty());
        assert_eq!((one.own(), one.sockets().get()), (1..2, 2));
    }
}
