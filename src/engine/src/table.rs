//! Tables by the engine's own numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a number that the engine itself chose at random (keys, QPNs): nobody can pick
/// colliding ones, so a multiplication spreads them well enough.
pub(crate) type IntMap<V> = HashMap<u32, V, BuildHasherDefault<Multiply>>;

/// Multiplies by a large odd constant (Knuth's multiplicative hashing).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte) ^ self.0 as u32);
        }
    }

    fn write_u32(&mut self, number: u32) {
        let product = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}
