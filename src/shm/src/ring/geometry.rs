//! How large a ring is, computed as the kernel's `rdma_rxe` does it.

use crate::memory::region::page_size;
use crate::ring::layout::{CqEntry, QueueHeader, RecvEntry, SendEntry};
use std::mem::size_of;
use urxe_types::Sge;

/// Shape of one ring: element size, number of slots, and the room behind an entry's fixed part.
///
/// Both sides compute it from the *granted* capacities, and come to the same result: asking for
/// what was granted grants the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes behind the entry's fixed part: SGEs or inline data.
    area: u32,
    element_size: u32,
    slots: u32,
}

/// A ring of this shape cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The ring's length has to fit into the 32 bits that `librxe` reads it from.
    #[error("a ring of {slots} slots of {element_size} bytes is longer than 4 GiB - 1 page")]
    TooLarge {
        /// Slots that would be needed.
        slots: u64,
        /// Bytes of each.
        element_size: u64,
    },
}

impl Geometry {
    /// Of a send queue for `max_wr` work requests, each with up to `max_sge` SGEs or
    /// `max_inline` bytes of inline data. Both share one area, so each may be granted more than
    /// was asked for.
    pub fn send(max_wr: u32, max_sge: u32, max_inline: u32) -> Result<Self, GeometryError> {
        let sges = u64::from(max_sge) * size_of::<Sge>() as u64;
        Self::new(max_wr, size_of::<SendEntry>(), sges.max(u64::from(max_inline)))
    }

    /// Of a receive queue for `max_wr` work requests of up to `max_sge` SGEs each.
    pub fn recv(max_wr: u32, max_sge: u32) -> Result<Self, GeometryError> {
        Self::new(max_wr, size_of::<RecvEntry>(), u64::from(max_sge) * size_of::<Sge>() as u64)
    }

    /// Of a completion queue for `cqe` completions.
    pub fn completion(cqe: u32) -> Result<Self, GeometryError> {
        Self::new(cqe, size_of::<CqEntry>(), 0)
    }

    fn new(capacity: u32, fixed: usize, area: u64) -> Result<Self, GeometryError> {
        const SMALLEST_ELEMENT: u64 = 64;
        let element_size = (fixed as u64 + area).max(SMALLEST_ELEMENT).next_power_of_two();
        let slots = (u64::from(capacity) + 1).next_power_of_two();
        // Neither factor is above 2^37, nor their sum above 2^64.
        let size = slots
            .checked_mul(element_size)
            .and_then(|bytes| bytes.checked_add((size_of::<QueueHeader>() + page_size()) as u64));
        match (size, u32::try_from(area), u32::try_from(element_size), u32::try_from(slots)) {
            (Some(size), Ok(area), Ok(element_size), Ok(slots)) if size <= u64::from(u32::MAX) => {
                Ok(Self { area, element_size, slots })
            }
            _ => Err(GeometryError::TooLarge { slots, element_size }),
        }
    }

    /// Bytes from one element to the next: a power of two, at least 64.
    pub fn element_size(&self) -> u32 {
        self.element_size
    }

    /// Number of slots: a power of two.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Entries that fit at once: one less than there are slots. This is the granted `max_wr` or
    /// `cqe`.
    pub fn capacity(&self) -> u32 {
        self.slots - 1
    }

    /// The granted `max_sge`.
    pub fn max_sge(&self) -> u32 {
        self.area / size_of::<Sge>() as u32
    }

    /// The granted `max_inline` of a send queue, in bytes.
    pub fn max_inline(&self) -> u32 {
        self.area
    }

    /// Length of the whole ring in bytes, header included: a multiple of the page size.
    pub fn size(&self) -> u32 {
        let bytes = self.slots * self.element_size + size_of::<QueueHeader>() as u32;
        bytes.next_multiple_of(page_size() as u32)
    }

    /// Where an element begins, counted from the start of the ring. Indices beyond the last
    /// slot are folded back, so that the result always lies in the ring.
    pub(crate) fn element(&self, index: u32) -> usize {
        size_of::<QueueHeader>() + (index & (self.slots - 1)) as usize * self.element_size as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Element size, slots, max_sge, max_inline and size of a ring.
    fn shape(geometry: Geometry) -> [u32; 5] {
        let Geometry { area: _, element_size, slots } = geometry;
        [element_size, slots, geometry.max_sge(), geometry.max_inline(), geometry.size()]
    }

    #[test]
    fn send_queues_are_as_rxe_makes_them() {
        // 208 + 1 * 16 = 224, in 256; 17 slots are rounded up to 32.
        let page = page_size() as u32;
        let size = (384 + 32 * 256u32).next_multiple_of(page);
        assert_eq!(shape(Geometry::send(16, 1, 0).unwrap()), [256, 32, 1, 16, size]);
        // The larger of both areas is granted to both.
        assert_eq!(shape(Geometry::send(15, 2, 64).unwrap())[..4], [512, 16, 4, 64]);
        assert_eq!(shape(Geometry::send(15, 0, 7).unwrap())[..4], [256, 16, 0, 7]);
        assert_eq!(shape(Geometry::send(0, 0, 0).unwrap())[..4], [256, 1, 0, 0]);
    }

    #[test]
    fn receive_and_completion_queues_are_as_rxe_makes_them() {
        assert_eq!(shape(Geometry::recv(1, 1).unwrap())[..3], [64, 2, 1]);
        assert_eq!(shape(Geometry::recv(100, 4).unwrap())[..3], [128, 128, 4]);
        assert_eq!(shape(Geometry::completion(127).unwrap())[..2], [64, 128]);
        assert_eq!(shape(Geometry::completion(128).unwrap())[..2], [64, 256]);
    }

    #[test]
    fn a_ring_beyond_32_bits_does_not_exist() {
        assert!(Geometry::completion((1 << 25) - 1).is_ok());
        assert_eq!(
            Geometry::completion(1 << 25),
            Err(GeometryError::TooLarge { slots: 1 << 26, element_size: 64 })
        );
    }

    proptest! {
        /// Asking again for what was granted gives the same ring; it holds at least what was
        /// asked for, and all its elements lie within it.
        #[test]
        fn granted_capacities_are_granted_again(wr: u32, sge: u32, inline: u32, small in 0..12u32) {
            let [wr, sge, inline] = [wr, sge, inline].map(|value| value >> (small + 16));
            if let Ok(geometry) = Geometry::send(wr, sge, inline) {
                prop_assert!(geometry.capacity() >= wr);
                prop_assert!(geometry.max_sge() >= sge);
                prop_assert!(geometry.max_inline() >= inline);
                let granted =
                    Geometry::send(geometry.capacity(), geometry.max_sge(), geometry.max_inline());
                prop_assert_eq!(granted, Ok(geometry));
                let end = geometry.element(geometry.capacity()) + geometry.element_size() as usize;
                prop_assert!(end <= geometry.size() as usize);
                prop_assert_eq!(geometry.element(geometry.slots()), geometry.element(0));
            }
            if let Ok(geometry) = Geometry::recv(wr, sge) {
                prop_assert!(geometry.capacity() >= wr && geometry.max_sge() >= sge);
                prop_assert_eq!(
                    Geometry::recv(geometry.capacity(), geometry.max_sge()), Ok(geometry)
                );
            }
        }

        /// No numbers make it panic.
        #[test]
        fn any_capacities_are_answered(wr: u32, sge: u32, inline: u32) {
            let _ = Geometry::send(wr, sge, inline);
            let _ = Geometry::recv(wr, sge);
            let _ = Geometry::completion(wr);
        }
    }
}
