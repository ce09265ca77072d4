//! What a FLUSH asks for (IBTA 1.5, annex A19).

use crate::Access;
use bitflags::bitflags;

bitflags! {
    /// How far a FLUSH brings earlier writes: `ibv_placement_type`, with the same bits. Unknown
    /// bits are kept, and are refused where a FLUSH is [judged](FlushPlacement::access).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FlushPlacement: u8 {
        /// Visible to all who see the memory.
        const GLOBAL = 1;
        /// Safe from loss of power.
        const PERSISTENT = 1 << 1;
    }
}

/// Which writes a FLUSH is about: `ibv_selectivity_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushSelectivity {
    /// Those to the range that it names.
    Range,
    /// Those to the whole memory region.
    Mr,
    /// A code without meaning: such a FLUSH is refused.
    Reserved(u8),
}

impl FlushPlacement {
    /// The rights that a FLUSH to there needs; `None` if there is no such placement.
    pub fn access(self) -> Option<Access> {
        if self.is_empty() || !FlushPlacement::all().contains(self) {
            return None;
        }
        let right =
            |placement, right| if self.contains(placement) { right } else { Access::empty() };
        Some(
            right(FlushPlacement::GLOBAL, Access::FLUSH_GLOBAL)
                | right(FlushPlacement::PERSISTENT, Access::FLUSH_PERSISTENT),
        )
    }
}

impl FlushSelectivity {
    /// The selectivity of a code.
    pub const fn from_code(code: u8) -> FlushSelectivity {
        match code {
            0 => FlushSelectivity::Range,
            1 => FlushSelectivity::Mr,
            other => FlushSelectivity::Reserved(other),
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            FlushSelectivity::Range => 0,
            FlushSelectivity::Mr => 1,
            FlushSelectivity::Reserved(code) => code,
        }
    }
}
