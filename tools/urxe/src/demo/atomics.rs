//! The atomics of the demo: all of a round work on one number, so that each result shows whether
//! those before it were executed once, and in order.

use super::message::{Operation, Round};
use crate::pattern::Pattern;

/// The number before the round.
pub(super) fn initial(round: &Round) -> u64 {
    Pattern::new(round.operation as u64, round.first).number()
}

/// The compare and swap values of message number `index`. Every second one does not match, and must
/// change nothing.
pub(super) fn compare_swap(round: &Round, index: u32) -> (u64, u64) {
    let present = value_before(round, index);
    let matches = index.is_multiple_of(2);
    (if matches { present } else { !present }, swap(round, index))
}

/// What every FETCH-AND-ADD of the round adds.
pub(super) fn add(round: &Round) -> u64 {
    Pattern::new(!0, round.first).number()
}

/// The number before message `index` is executed, which it must return; with the length of the
/// round as `index`, the number at the end.
pub(super) fn value_before(round: &Round, index: u32) -> u64 {
    match round.operation {
        Operation::FetchAndAdd => {
            initial(round).wrapping_add(add(round).wrapping_mul(u64::from(index)))
        }
        // The last one that matched was the last with an even index.
        _ => index.checked_sub(1).map_or(initial(round), |last| swap(round, last & !1)),
    }
}

fn swap(round: &Round, index: u32) -> u64 {
    Pattern::new(round.operation as u64, round.first + 1 + u64::from(index)).number()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(operation: Operation) -> Round {
        Round { operation, size: 8, count: 9, first: 1000 }
    }

    #[test]
    fn compare_and_swap_carried_out_one_by_one_gives_the_values_expected() {
        let round = round(Operation::CompareAndSwap);
        let mut value = initial(&round);
        for index in 0..round.count {
            assert_eq!(value, value_before(&round, index));
            let (compare, swap) = compare_swap(&round, index);
            assert_eq!(value == compare, index % 2 == 0);
            if value == compare {
                value = swap;
            }
        }
        assert_eq!(value, value_before(&round, round.count));
    }

    #[test]
    fn fetch_and_add_carried_out_one_by_one_gives_the_values_expected() {
        let round = round(Operation::FetchAndAdd);
        let mut value = initial(&round);
        for index in 0..round.count {
            assert_eq!(value, value_before(&round, index));
            value = value.wrapping_add(add(&round));
        }
        assert_eq!(value, value_before(&round, round.count));
    }
}
