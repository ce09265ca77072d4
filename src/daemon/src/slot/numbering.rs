//! The numbers by which objects of a device are shown that each slot counts for itself.

use urxe_types::Slot;

/// The number that is shown for what a slot has under a number: no other slot shows the same, and
/// where there is but one slot for programs, it is its own.
pub(crate) fn shown(slot: Slot, number: u32) -> u32 {
    // The broker has no objects.
    let (slots, index) = (slot.count().get() as u32 - 1, slot.id().index() as u32 - 1);
    // SLOT-007: there are 63 slots at most, and 2^20 objects of a kind in each.
    number.saturating_mul(slots).saturating_add(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use urxe_types::SlotCount;

    #[test]
    fn no_two_slots_show_the_same_number_and_the_only_one_its_own() {
        for slots in [1, 2, 63] {
            let count = SlotCount::try_from(slots + 1).unwrap();
            let numbers =
                count.slots().skip(1).flat_map(|slot| (0..100).map(move |n| shown(slot, n)));
            assert_eq!(numbers.collect::<BTreeSet<u32>>().len(), 100 * slots);
        }
        let only = SlotCount::try_from(2).unwrap().slot(1).unwrap();
        assert_eq!([0, 7, 1 << 20].map(|number| shown(only, number)), [0, 7, 1 << 20]);
        let last = SlotCount::MAX.slot(63).unwrap();
        assert_eq!(shown(last, (1 << 20) - 1), (63 << 20) - 1);
    }
}
