//! The payload of a selective acknowledgement: which packets behind a missing one have arrived.
//!
//! The packet's PSN is the last one done in order, so the one after it is missing. Bit i of the
//! payload, counted from the lowest bit of the first byte, stands for the i-th PSN behind the
//! missing one: it is set if that packet has arrived. Bytes of zeros at the end are left out, and
//! the length is filled up to a multiple of 4.

/// Which packets behind a missing one have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyBitmap {
    bytes: [u8; EarlyBitmap::MAX_LEN],
    len: usize,
}

impl EarlyBitmap {
    /// The longest payload: what the smallest path MTU carries.
    pub const MAX_LEN: usize = 256;

    /// How many PSNs behind the missing one can be told of.
    pub const PSNS: u32 = 8 * EarlyBitmap::MAX_LEN as u32;

    /// Of packets that have arrived, by how far each is behind the first that may have; what is
    /// too far is left out.
    pub fn of(offsets: impl IntoIterator<Item = u32>) -> EarlyBitmap {
        let mut bitmap = EarlyBitmap { bytes: [0; EarlyBitmap::MAX_LEN], len: 0 };
        for offset in offsets.into_iter().filter(|&offset| offset < EarlyBitmap::PSNS) {
            let at = (offset / 8) as usize;
            bitmap.bytes[at] |= 1 << (offset % 8);
            // REPAIR-002
            bitmap.len = bitmap.len.max((at + 1).next_multiple_of(4));
        }
        bitmap
    }

    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// What a payload tells, whatever it is: how far each packet that has arrived is behind the
    /// first that may have, in order.
    pub fn offsets(payload: &[u8]) -> impl Iterator<Item = u32> + '_ {
        // REPAIR-003
        let bytes = payload.iter().take(EarlyBitmap::MAX_LEN);
        (0..).zip(bytes).flat_map(|(at, &byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| 8 * at + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn bits_count_from_the_lowest_of_the_first_byte() {
        assert_eq!(EarlyBitmap::of([0]).bytes(), [1, 0, 0, 0]);
        assert_eq!(EarlyBitmap::of([7, 8, 15, 7]).bytes(), [0x80, 0x81, 0, 0]);
        assert_eq!(EarlyBitmap::of([33]).bytes(), [0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(EarlyBitmap::of([]).bytes(), []);
    }

    #[test]
    fn offsets_too_far_are_left_out() {
        let last = EarlyBitmap::PSNS - 1;
        let bitmap = EarlyBitmap::of([last, last + 1, u32::MAX]);
        assert_eq!(bitmap.bytes().len(), EarlyBitmap::MAX_LEN);
        assert!(EarlyBitmap::offsets(bitmap.bytes()).eq([last]));
        assert!(EarlyBitmap::offsets(&[0xff; 4096]).eq(0..EarlyBitmap::PSNS));
    }

    proptest! {
        #[test]
        fn offsets_survive(
            offsets in proptest::collection::btree_set(0..EarlyBitmap::PSNS, 0..99),
        ) {
            let bitmap = EarlyBitmap::of(offsets.iter().copied());
            prop_assert_eq!(bitmap.bytes().len() % 4, 0);
            let last_word = bitmap.bytes().rchunks(4).next();
            prop_assert!(last_word.is_none_or(|word| word != [0; 4]), "a word that says nothing");
            let again: BTreeSet<u32> = EarlyBitmap::offsets(bitmap.bytes()).collect();
            prop_assert_eq!(again, offsets);
        }

        #[test]
        fn any_payload_is_read(payload in proptest::collection::vec(any::<u8>(), 0..600)) {
            let offsets: Vec<u32> = EarlyBitmap::offsets(&payload).collect();
            prop_assert!(offsets.is_sorted());
            prop_assert!(offsets.iter().all(|&offset| offset < EarlyBitmap::PSNS));
        }
    }
}
