//! An entry of the table, which shows by itself whether it is whole.

use std::ops::Range;

/// The longest value, in bytes.
pub const VALUE_MAX: usize = 48;

/// Bytes of an entry: key, CRC, length and value. One that is all 0 is free.
pub const ENTRY_SIZE: usize = 64;

const KEY: Range<usize> = 0..8;
const CRC: Range<usize> = 8..12;
const LENGTH: Range<usize> = 12..16;
const VALUE: Range<usize> = 16..64;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: u64,
    /// The value, of at most [`VALUE_MAX`] bytes.
    pub value: Vec<u8>,
}

/// Bytes that are no entry: some of them are older than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

impl Entry {
    /// As it stands in memory. What is longer than a value can be is cut.
    pub fn to_bytes(&self) -> [u8; ENTRY_SIZE] {
        let value = &self.value[..self.value.len().min(VALUE_MAX)];
        let mut bytes = [0; ENTRY_SIZE];
        bytes[KEY].copy_from_slice(&self.key.to_le_bytes());
        bytes[LENGTH].copy_from_slice(&(value.len() as u32).to_le_bytes());
        bytes[VALUE][..value.len()].copy_from_slice(value);
        let crc = crc(&bytes);
        bytes[CRC].copy_from_slice(&crc);
        bytes
    }

    /// What stands in memory; none if the entry is free.
    ///
    /// # Errors
    /// [`Torn`] if the bytes do not belong together, as when they were read while they were
    /// written.
    pub fn from_bytes(bytes: &[u8; ENTRY_SIZE]) -> Result<Option<Entry>, Torn> {
        if *bytes == [0; ENTRY_SIZE] {
            return Ok(None);
        }
        if bytes[CRC] != crc(bytes) {
            return Err(Torn);
        }
        Ok(Some(Entry::unchecked(bytes)))
    }

    /// The same without a look at the CRC.
    fn unchecked(bytes: &[u8; ENTRY_SIZE]) -> Entry {
        let number = |range: Range<usize>| {
            bytes[range].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let length = number(LENGTH).min(VALUE_MAX as u64) as usize;
        let value = bytes[VALUE][..length].to_vec();
        Entry { key: number(KEY), value }
    }
}

/// Of everything but the CRC itself.
fn crc(bytes: &[u8; ENTRY_SIZE]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CRC.start]);
    hasher.update(&bytes[CRC.end..]);
    hasher.finalize().to_le_bytes()
}

#[cfg(test)]
pub(super) fn without_check(bytes: &[u8; ENTRY_SIZE]) -> Entry {
    Entry::unchecked(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_survives_memory_and_no_mixture_of_two_does(
            key: u64, value in prop::collection::vec(any::<u8>(), 0..=VALUE_MAX),
            cut in 1usize..8,
        ) {
            let old = Entry { key, value };
            let new = Entry { key, value: vec![7; VALUE_MAX] };
            let (old_bytes, new_bytes) = (old.to_bytes(), new.to_bytes());
            prop_assert_eq!(Entry::from_bytes(&old_bytes), Ok(Some(old)));
            let mut mixture = new_bytes;
            mixture[8 * cut..].copy_from_slice(&old_bytes[8 * cut..]);
            if mixture != new_bytes && mixture != old_bytes {
                prop_assert_eq!(Entry::from_bytes(&mixture), Err(Torn));
            }
        }

        #[test]
        fn no_bytes_panic(bytes: [u8; 32]) {
            let mut all = [0; ENTRY_SIZE];
            all[..32].copy_from_slice(&bytes);
            let _ = (Entry::from_bytes(&all), without_check(&all));
        }
    }
}
