//! The numbers by which objects of a device are shown that each slot counts for itself.

use serde::{Deserialize, Serialize};

/// The numbers that a slot shows: no other slot shows the same.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Numbering {
    /// That of what the slot has under number 0.
    pub first: u32,
    /// From one to the next.
    pub step: u32,
}

impl Numbering {
    /// The number that is shown for what the slot has under a number.
    pub fn shown(self, number: u32) -> u32 {
        // SLOT-007
        number.saturating_mul(self.step).saturating_add(self.first)
    }
}
