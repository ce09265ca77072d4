//! Slots: the parts of a device that share nothing, told apart by the upper bits of a QPN.

use crate::Qpn;
use std::fmt;
use std::ops::RangeInclusive;

/// Upper bits of a QPN that name its slot.
pub const SLOT_BITS: u32 = 6;

/// Lower bits of a QPN: those that tell the QPs of one slot apart.
const QPN_BITS: u32 = 24 - SLOT_BITS;

/// Where the numbers that QPs are given begin in a slot, as in rxe: 0 and 1 are the management
/// QPs and the others are left free.
const FIRST_QPN: u32 = 0x11;

/// The number of a slot, from 0 to 63. Slot 0 is the broker's: it has QP0 and QP1, and gets what
/// belongs to no other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(u8);

/// How many slots a device has, from 1 to 64, and so which QPN belongs to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCount(u8);

/// One of the slots of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    id: SlotId,
    count: SlotCount,
}

/// A number that is to be a number of slots, and is not from 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} slots: expected 1 to {max}, of which the first is the broker's", max = SlotCount::MAX.0)]
pub struct NoSlotCount(pub usize);

/// A slot that a device does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot}: the device has slots 0 to {last}", last = .count.0 - 1)]
pub struct NoSuchSlot {
    /// The number asked for.
    pub slot: usize,
    /// How many slots there are.
    pub count: SlotCount,
}

impl SlotId {
    /// The slot of QP0 and QP1, and of what belongs to no other.
    pub const BROKER: SlotId = SlotId(0);

    /// Where the slot stands in a list of all slots.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number that the upper bits of a QPN are, whether or not its device has such a slot. A
    /// sender, which cannot know how many slots its peer has, goes by this.
    pub const fn named_by(qpn: Qpn) -> SlotId {
        SlotId((qpn.get() >> QPN_BITS) as u8)
    }
}

impl SlotCount {
    /// A device that is one slot: every QPN is its own.
    pub const ONE: SlotCount = SlotCount(1);

    /// As many as the bits of a QPN can name.
    pub const MAX: SlotCount = SlotCount(1 << SLOT_BITS);

    /// How many slots, the broker's included.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// The slot that gets what is sent to a QPN: the one named by its upper bits, if there is such
    /// a slot; the broker's otherwise, and for the multicast QPN, which is everybody's.
    pub fn slot_of(self, qpn: Qpn) -> SlotId {
        let named = SlotId::named_by(qpn);
        // SLOT-050
        if named.0 < self.0 && qpn != Qpn::MULTICAST { named } else { SlotId::BROKER }
    }

    /// The slot of a number.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn slot(self, slot: usize) -> Result<Slot, NoSuchSlot> {
        match u8::try_from(slot) {
            Ok(id) if id < self.0 => Ok(Slot { id: SlotId(id), count: self }),
            _ => Err(NoSuchSlot { slot, count: self }),
        }
    }

    /// All slots, the broker's first.
    pub fn slots(self) -> impl DoubleEndedIterator<Item = Slot> {
        (0..self.0).map(move |id| Slot { id: SlotId(id), count: self })
    }
}

impl TryFrom<usize> for SlotCount {
    type Error = NoSlotCount;

    fn try_from(count: usize) -> Result<SlotCount, NoSlotCount> {
        match u8::try_from(count) {
            Ok(count) if (1..=SlotCount::MAX.0).contains(&count) => Ok(SlotCount(count)),
            _ => Err(NoSlotCount(count)),
        }
    }
}

impl Slot {
    /// The only slot of its device.
    pub const ALONE: Slot = Slot { id: SlotId::BROKER, count: SlotCount::ONE };

    /// Its number.
    pub const fn id(self) -> SlotId {
        self.id
    }

    /// How many slots its device has.
    pub const fn count(self) -> SlotCount {
        self.count
    }

    /// Whether it gets what is sent to this QPN.
    pub fn gets(self, qpn: Qpn) -> bool {
        self.count.slot_of(qpn) == self.id
    }

    /// The QP from which the slot itself asks: QP1, if it is the broker's, and else one that
    /// stands to its other numbers as QP1 to the broker's, so that the answers come to this slot.
    pub const fn management_qpn(self) -> Qpn {
        // SLOT-059
        Qpn::new(self.lowest() | Qpn::GSI.get())
    }

    /// The numbers that its QPs have. A slot that is alone has those of all.
    pub fn qpns(self) -> RangeInclusive<u32> {
        let highest = match self.count {
            SlotCount::ONE => u32::MAX,
            _ => self.lowest() | ((1 << QPN_BITS) - 1),
        };
        // HOST-022
        self.lowest() | FIRST_QPN..=highest.min(Qpn::MULTICAST.get() - 1)
    }

    const fn lowest(self) -> u32 {
        (self.id.0 as u32) << QPN_BITS
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(slots: usize) -> SlotCount {
        slots.try_into().unwrap()
    }

    #[test]
    fn every_qpn_belongs_to_one_slot_that_the_device_has() {
        for slots in [1, 2, 8, 63, 64].map(count) {
            for qpn in (0..1 << 24).step_by(997).chain([0, 1, 0x3_ffff, 0x4_0000, 0xff_fffe]) {
                let qpn = Qpn::new(qpn);
                let own: Vec<Slot> = slots.slots().filter(|slot| slot.gets(qpn)).collect();
                assert_eq!(own, [slots.slot(slots.slot_of(qpn).index()).unwrap()], "{qpn}");
            }
        }
    }

    #[test]
    fn a_qpn_that_names_no_slot_is_the_brokers() {
        assert_eq!(count(8).slot_of(Qpn::GSI), SlotId::BROKER);
        assert_eq!(count(8).slot_of(Qpn::new(7 << 18 | 5)).index(), 7);
        assert_eq!(count(8).slot_of(Qpn::new(8 << 18)), SlotId::BROKER);
        assert_eq!(SlotCount::MAX.slot_of(Qpn::new(0xff_fffe)).index(), 63);
        assert_eq!(SlotCount::MAX.slot_of(Qpn::MULTICAST), SlotId::BROKER);
    }

    #[test]
    fn the_numbers_of_a_slots_qps_are_its_own_and_none_is_special() {
        for slots in [1, 2, 8, 64].map(count) {
            let mut after_last = 0;
            for slot in slots.slots() {
                let qpns = slot.qpns();
                assert_eq!(*qpns.start(), after_last + 0x11);
                assert_eq!(slot.management_qpn().get(), after_last + 1);
                let all = [slot.management_qpn().get(), *qpns.start(), *qpns.end()];
                assert!(all.into_iter().all(|qpn| slot.gets(Qpn::new(qpn))));
                after_last = qpns.end() + 1;
            }
        }
        assert_eq!(*Slot::ALONE.qpns().end(), 0xff_fffe);
        assert_eq!(*SlotCount::MAX.slot(63).unwrap().qpns().end(), 0xff_fffe);
    }

    #[test]
    fn counts_and_numbers_out_of_range_are_refused_with_the_range() {
        for wrong in [0, 65, 256 + 1] {
            let refused = SlotCount::try_from(wrong).unwrap_err();
            let sentence = "slots: expected 1 to 64, of which the first is the broker's";
            assert_eq!(refused.to_string(), format!("{wrong} {sentence}"));
        }
        let refused = count(8).slot(8).unwrap_err();
        assert_eq!(refused.to_string(), "slot 8: the device has slots 0 to 7");
        assert!(count(8).slot(256).is_err());
    }
}
