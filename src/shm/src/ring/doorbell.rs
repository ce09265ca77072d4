//! How a program says "look at this QP", and how a sleeping daemon is woken.
//!
//! A session has one bit for each of its QPs' doorbells, 64 to a word, and one summary bit for
//! each word. Ringing sets the bit, then its summary bit; the daemon clears a summary bit before
//! it takes the word behind it. So nothing can overflow, no ring is lost, and a program that
//! scribbles here can only ring its own bells. The daemon goes through the words in a circle, and
//! a bounded number of bells further each time, so that a program that rings many gets no more of
//! its time than others.
//!
//! Before it blocks, the daemon says so in `asleep` and then looks once more; after ringing, the
//! program looks whether the daemon is asleep, and if so writes to the session's eventfd. A
//! full fence on both sides makes sure that one of them sees the other.
//!
//! ```text
//!    0  asleep, u32
//!   64  summary, 32 words of 64 bits
//! 1024  what is told of completions: see [`completion_notifier`](crate::ring::completion_notifier)
//! 4096  bells, 2,048 words of 64 bits
//! ```

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use crate::memory::region::{AccessError, Mapping, Window};
#[cfg(not(loom))]
use std::cell::Cell;
#[cfg(not(loom))]
use std::sync::Arc;

/// Doorbells of a session: the most QPs it can have.
pub const SLOTS: u32 = 131_072;

/// Where in the session's memfd the doorbells lie.
pub const DOORBELL_OFFSET: u64 = 0;

/// Bytes that the doorbells take: five pages, of which only those become memory that are used.
pub const DOORBELL_SIZE: u64 = 4096 + WORDS as u64 * 8;

const WORDS: usize = SLOTS as usize / 64;
#[cfg(not(loom))]
const SUMMARY_WORDS: usize = WORDS / 64;

/// Where the doorbells live.
pub(crate) trait Bells {
    /// Not 0 while the daemon is, or is about to be, blocked.
    fn asleep(&self) -> &AtomicU32;
    /// Bit `i % 64` of word `i / 64` says to look at word `i` of the bells.
    fn summary(&self) -> &[AtomicU64];
    /// Bit `slot % 64` of word `slot / 64` is the slot's bell.
    fn bells(&self) -> &[AtomicU64];
}

/// Rings a bell; says whether the daemon has to be woken. A slot that does not exist is ignored.
pub(crate) fn ring(shared: &impl Bells, slot: u32) -> bool {
    let word = slot as usize / 64;
    let Some(bells) = shared.bells().get(word) else { return false };
    // Release: whoever takes this bit sees what was posted before. Read-modify-write even if the
    // bit is set already, for it may have been set before we posted.
    bells.fetch_or(1 << (slot % 64), Ordering::AcqRel);
    shared.summary()[word / 64].fetch_or(1 << (word % 64), Ordering::AcqRel);
    fence(Ordering::SeqCst);
    shared.asleep().load(Ordering::Relaxed) != 0 && shared.asleep().swap(0, Ordering::Relaxed) != 0
}

/// How far the daemon has got with a session's bells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// How often it has been through all of them.
    rounds: u64,
    /// The word of bells that is looked at next.
    word: usize,
}

impl Position {
    /// Where it is when it has been through all of them once more.
    fn after_a_round(self) -> Position {
        Position { rounds: self.rounds + 1, ..self }
    }
}

/// Takes bells that were rung, below `slots`, from `position` on: all of them once, but no more
/// than `budget` allows, of which each word that is taken and each bell in it is one, and which the
/// last word may exceed.
pub(crate) fn take(
    shared: &impl Bells,
    slots: u32,
    position: &mut Position,
    mut budget: u32,
    mut rung: impl FnMut(u32),
) {
    // Also those that no slot has: what a program sets there would keep the daemon awake.
    let words = summary_words(slots) * 64;
    let bells = &shared.bells()[..(slots as usize).div_ceil(64)];
    let end = position.after_a_round();
    // SHARE-002
    while *position < end && budget > 0 {
        let Position { rounds, word } = *position;
        if word >= words {
            *position = Position { rounds: rounds + 1, word: 0 };
            continue;
        }
        let summary = &shared.summary()[word / 64];
        let ahead = summary.load(Ordering::Relaxed) >> (word % 64);
        if ahead == 0 {
            position.word = (word / 64 + 1) * 64;
            continue;
        }
        let word = word + ahead.trailing_zeros() as usize;
        position.word = word + 1;
        budget -= 1;
        // Acquire: the bells behind this bit are rung.
        summary.fetch_and(!(1 << (word % 64)), Ordering::AcqRel);
        let Some(bells) = bells.get(word) else { continue };
        for bit in bits(bells.swap(0, Ordering::AcqRel)) {
            let slot = word as u32 * 64 + bit;
            if slot < slots {
                budget = budget.saturating_sub(1);
                rung(slot);
            }
        }
    }
}

/// Says that the daemon is about to block; `false` if it must not, because bells were rung.
pub(crate) fn fall_asleep(shared: &impl Bells, slots: u32) -> bool {
    shared.asleep().store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    // Only what `take` clears: anything else, once set, would keep the daemon awake for ever.
    let summary = &shared.summary()[..summary_words(slots)];
    let silent = summary.iter().all(|word| word.load(Ordering::Relaxed) == 0);
    if !silent {
        wake_up(shared);
    }
    silent
}

/// Says that the daemon is awake, so that programs need not wake it.
pub(crate) fn wake_up(shared: &impl Bells) {
    shared.asleep().store(0, Ordering::Relaxed);
}

/// Summary words that stand for the first `slots` slots.
fn summary_words(slots: u32) -> usize {
    (slots as usize).div_ceil(64 * 64)
}

/// The indices of the bits set in a word, from the lowest.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(not(loom))]
#[derive(Clone, Debug)]
struct MappedBells(Window);

#[cfg(not(loom))]
impl MappedBells {
    fn new(mapping: Arc<Mapping>) -> Result<Self, AccessError> {
        Window::new(mapping, DOORBELL_OFFSET, DOORBELL_SIZE).map(Self)
    }
}

#[cfg(not(loom))]
impl Bells for MappedBells {
    fn asleep(&self) -> &AtomicU32 {
        self.0.atomic_u32(0)
    }
    fn summary(&self) -> &[AtomicU64] {
        self.0.words(64, SUMMARY_WORDS)
    }
    fn bells(&self) -> &[AtomicU64] {
        self.0.words(4096, WORDS)
    }
}

/// The program's side of a session's doorbells.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub struct DoorbellWriter(MappedBells);

#[cfg(not(loom))]
impl DoorbellWriter {
    /// The doorbells in a mapping of the session's memfd from its first byte on.
    pub fn new(mapping: Arc<Mapping>) -> Result<Self, AccessError> {
        MappedBells::new(mapping).map(Self)
    }

    /// Makes the daemon look at a QP. If the answer is `true`, the daemon sleeps, and the caller
    /// has to write to the session's eventfd, now.
    #[must_use = "a sleeping daemon has to be woken"]
    pub fn ring(&self, slot: u32) -> bool {
        ring(&self.0, slot)
    }
}

/// The daemon's side of a session's doorbells.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct DoorbellReader {
    bells: MappedBells,
    slots: u32,
    position: Cell<Position>,
}

#[cfg(not(loom))]
impl DoorbellReader {
    /// The doorbells in a mapping of the session's memfd from its first byte on. No slot is
    /// looked at before [`set_slots`](Self::set_slots).
    pub fn new(mapping: Arc<Mapping>) -> Result<Self, AccessError> {
        Ok(Self { bells: MappedBells::new(mapping)?, slots: 0, position: Cell::default() })
    }

    /// Says that slots below `slots`, and only those, were ever handed out, at most [`SLOTS`].
    /// This is what bounds the work that a program can make by scribbling on its doorbells.
    pub fn set_slots(&mut self, slots: u32) {
        self.slots = slots.min(SLOTS);
    }

    /// Calls `rung` for slots that were rung, and no more often than `budget` and a few times: the
    /// others have their turns next. What was posted before the ring can be seen now.
    pub fn take(&self, budget: u32, rung: impl FnMut(u32)) {
        let mut position = self.position.get();
        take(&self.bells, self.slots, &mut position, budget, rung);
        self.position.set(position);
    }

    /// Where the reader is when every slot that is rung by now was taken.
    pub fn after_a_round(&self) -> Position {
        self.position.get().after_a_round()
    }

    /// Whether the reader has come to a position.
    pub fn has_reached(&self, position: Position) -> bool {
        self.position.get() >= position
    }

    /// Says that the daemon is about to block on (among others) the session's eventfd. If the
    /// answer is `false`, bells were rung: take them and do not block. If it is `true`, a ring
    /// from now on comes with a write to the eventfd.
    #[must_use = "the daemon must not block if bells were rung"]
    pub fn fall_asleep(&self) -> bool {
        fall_asleep(&self.bells, self.slots)
    }

    /// Says that the daemon is awake, so that programs need not wake it.
    pub fn wake_up(&self) {
        wake_up(&self.bells);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::region::create_memfd;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn session() -> (Arc<Mapping>, DoorbellWriter, DoorbellReader) {
        let fd = create_memfd("doorbells", DOORBELL_SIZE).unwrap();
        let mapping = Arc::new(Mapping::new(&fd, 0, DOORBELL_SIZE as usize).unwrap());
        let writer = DoorbellWriter::new(mapping.clone()).unwrap();
        let reader = DoorbellReader::new(mapping.clone()).unwrap();
        (mapping, writer, reader)
    }

    /// All that is rung, in rising order.
    fn taken(reader: &DoorbellReader) -> Vec<u32> {
        let mut slots = Vec::new();
        reader.take(u32::MAX, |slot| slots.push(slot));
        slots.sort_unstable();
        slots
    }

    proptest! {
        /// What is rung is taken once, and nothing else is.
        #[test]
        fn each_bell_rung_is_taken_once(
            rounds in prop::collection::vec(prop::collection::vec(0..SLOTS, 0..40), 0..6),
        ) {
            let (_, writer, mut reader) = session();
            reader.set_slots(SLOTS);
            for slots in rounds {
                for &slot in &slots {
                    prop_assert!(!writer.ring(slot), "the daemon does not sleep");
                }
                let expected: BTreeSet<u32> = slots.into_iter().collect();
                prop_assert_eq!(taken(&reader), expected.into_iter().collect::<Vec<_>>());
            }
        }

        /// However many bells are rung, and rung again, so many are taken at a time, and each of
        /// them before any is taken twice.
        #[test]
        fn bells_beyond_the_budget_have_their_turn_before_any_has_two(
            slots in prop::collection::btree_set(0..SLOTS, 1..300), budget in 1..100u32,
        ) {
            let (_, writer, mut reader) = session();
            reader.set_slots(SLOTS);
            let mut waiting = slots.clone();
            let end = reader.after_a_round();
            let mut turns = 0;
            while !reader.has_reached(end) {
                turns += 1;
                prop_assert!(turns <= slots.len() + 1, "each takes one of them at least");
                for &slot in &slots {
                    let _ = writer.ring(slot);
                }
                prop_assert!(!reader.fall_asleep(), "some are left");
                let mut count = 0;
                reader.take(budget, |slot| {
                    count += 1;
                    // SHARE-002
                    assert!(waiting.remove(&slot) || waiting.is_empty(), "slot {slot} has two");
                });
                prop_assert!(count < budget + 64);
            }
            prop_assert!(waiting.is_empty(), "{waiting:?} are left behind");
        }

        /// Scribbling rings only bells that exist, and costs no more than these.
        #[test]
        fn a_scribbling_program_rings_its_own_bells(
            bytes: Vec<u8>, offset in 0..12_000u64, slots in 0..300u32,
        ) {
            let (mapping, _, mut reader) = session();
            reader.set_slots(slots);
            let _ = mapping.write(offset, &bytes);
            let taken = taken(&reader);
            prop_assert!(taken.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(taken.iter().all(|&slot| slot < slots));
            prop_assert!(reader.fall_asleep(), "nothing is left that keeps the daemon awake");
        }
    }

    #[test]
    fn the_first_and_last_slots_have_bells_and_others_have_none() {
        let (_, writer, mut reader) = session();
        reader.set_slots(u32::MAX);
        for slot in [0, 63, 64, 4095, 4096, SLOTS - 1, SLOTS, u32::MAX] {
            assert!(!writer.ring(slot));
        }
        assert_eq!(taken(&reader), [0, 63, 64, 4095, 4096, SLOTS - 1]);
    }

    #[test]
    fn slots_that_were_not_handed_out_are_not_looked_at() {
        let (_, writer, mut reader) = session();
        let _ = writer.ring(5);
        let _ = writer.ring(6);
        reader.set_slots(6);
        assert_eq!(taken(&reader), [5]);
    }

    #[test]
    fn a_daemon_does_not_fall_asleep_over_a_rung_bell() {
        let (_, writer, mut reader) = session();
        reader.set_slots(10);
        assert!(!writer.ring(9));
        assert!(!reader.fall_asleep());
        assert!(!writer.ring(9), "and is not asleep afterwards");
    }

    #[test]
    fn a_sleeping_daemon_is_woken_once() {
        let (_, writer, mut reader) = session();
        reader.set_slots(10);
        assert!(reader.fall_asleep());
        assert!(writer.ring(1));
        assert!(!writer.ring(2), "somebody is already waking it");
        assert!(!reader.fall_asleep());
        assert_eq!(taken(&reader), [1, 2]);
        assert!(reader.fall_asleep());
        reader.wake_up();
        assert!(!writer.ring(1), "it woke up for another reason");
    }
}
