//! Test data: bytes that depend on their message and on their position in it.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The bytes of one message. Two messages with different keys differ in almost every byte, so a
/// packet that lands in the wrong message, or at the wrong place of the right one, shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(u64);

impl Pattern {
    /// The pattern of message number `index` of some `stream`.
    pub(crate) fn new(stream: u64, index: u64) -> Self {
        let of_stream = SplitMix64::seed_from_u64(stream).next_u64();
        Pattern(SplitMix64::seed_from_u64(of_stream ^ index).next_u64())
    }

    /// Writes the whole message.
    pub(crate) fn fill(self, buf: &mut [u8]) {
        for (chunk, word) in buf.chunks_mut(8).zip(self.words()) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// Compares a whole message.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<(), Mismatch> {
        for (i, (chunk, word)) in bytes.chunks(8).zip(self.words()).enumerate() {
            let expected = &word.to_le_bytes()[..chunk.len()];
            if chunk == expected {
                continue;
            }
            let wrong = chunk.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
            let (found, expected) = (chunk[wrong], expected[wrong]);
            return Err(Mismatch { offset: i * 8 + wrong, found, expected });
        }
        Ok(())
    }

    /// A number that depends on the message.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    fn words(self) -> impl Iterator<Item = u64> {
        let mut rng = SplitMix64::seed_from_u64(self.0);
        std::iter::repeat_with(move || rng.next_u64())
    }
}

/// The first byte that is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset} is {found:#04x}, expected {expected:#04x}")]
pub(crate) struct Mismatch {
    pub(crate) offset: usize,
    pub(crate) found: u8,
    pub(crate) expected: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_message_passes_its_check() {
        for len in [0, 1, 7, 8, 9, 4096, 5000] {
            let mut bytes = vec![0; len];
            Pattern::new(3, 4).fill(&mut bytes);
            assert_eq!(Pattern::new(3, 4).check(&bytes), Ok(()));
        }
    }

    #[test]
    fn one_wrong_bit_is_found_where_it_is() {
        let pattern = Pattern::new(1, 2);
        for offset in [0, 1, 99] {
            let mut bytes = [0; 100];
            pattern.fill(&mut bytes);
            bytes[offset] ^= 0x10;
            let mismatch = pattern.check(&bytes).unwrap_err();
            assert_eq!((mismatch.offset, mismatch.found), (offset, bytes[offset]));
            assert_eq!(mismatch.expected, bytes[offset] ^ 0x10);
        }
    }

    #[test]
    fn another_message_or_another_place_does_not_pass() {
        let mut bytes = [0; 64];
        Pattern::new(1, 2).fill(&mut bytes);
        assert!(Pattern::new(1, 3).check(&bytes).is_err());
        assert!(Pattern::new(2, 2).check(&bytes).is_err());
        assert!(Pattern::new(1, 2).check(&bytes[8..]).is_err());
    }
}
