//! Memory keys: what a key opens, and for whom.
//!
//! MRs and windows share one table and one space of keys. The upper 24 bits of a key are an
//! index that is drawn at random, so that a peer cannot guess one key from another. The low 8
//! bits belong to the program, which changes them with each bind of a window (`ibv_inc_rkey`).

mod mr;
mod mw;

pub use mr::{DeregMrError, MrKeys, MrSpec, RegMrError};
pub(crate) use mw::Bind;
pub use mw::{AllocMwError, MwBinding, MwInfo};

use crate::cause::Cause;
use crate::ids::{PdId, RegionId};
use crate::seeded;
use crate::table::IntMap;
use mr::Mr;
use mw::Mw;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use std::collections::BTreeSet;
use urxe_types::{Access, Lkey, Qpn, Rkey};

/// Why an access through a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// No such key in this protection domain, or it is a window that is not open to this QP.
    Key,
    /// Outside of the MR or window.
    Bounds,
    /// The MR or window does not give this right.
    Rights,
}

impl KeyError {
    /// The cause when it was our own program's lkey.
    pub(crate) fn local_cause(self) -> Cause {
        match self {
            KeyError::Key => Cause::LocalKey,
            KeyError::Bounds => Cause::LocalBounds,
            KeyError::Rights => Cause::LocalRights,
        }
    }
}

/// A checked stretch of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) region: RegionId,
    pub(crate) offset: u64,
}

/// What an MR, or a bound window, opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opening {
    /// The address of its first byte, in the terms that go with its key.
    base: u64,
    /// Bytes.
    length: u64,
    access: Access,
    region: RegionId,
    /// Where its first byte is in the region.
    offset: u64,
}

impl Opening {
    /// Checks bounds and rights, in this order.
    fn span(&self, addr: u64, len: u64, access: Access) -> Result<Span, KeyError> {
        // MEM-001: bounds and rights; key and protection domain are looked at in `get`.
        let within = addr.checked_sub(self.base).ok_or(KeyError::Bounds)?;
        if within.checked_add(len).is_none_or(|end| end > self.length) {
            if len <= self.length && seeded::takes_outside(access) {
                return Ok(Span { region: self.region, offset: self.offset });
            }
            return Err(KeyError::Bounds);
        }
        let may = self.access.contains(access)
            || seeded::takes_without_right(access)
            || fault!(RegionRightsNotChecked);
        if !may {
            return Err(KeyError::Rights);
        }
        Ok(Span { region: self.region, offset: self.offset + within })
    }
}

/// The MRs and windows of a device, by the index in their keys.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    by_index: IntMap<Entry>,
    mrs: usize,
    mws: usize,
    /// The type 2 windows that are bound: QPN, and index.
    bound_on: BTreeSet<(u32, u32)>,
}

#[derive(Debug)]
struct Entry {
    /// Index and program's bits, as they are now.
    key: u32,
    pd: PdId,
    object: Object,
}

#[derive(Debug)]
enum Object {
    Mr(Mr),
    Mw(Mw),
}

/// The index in a key.
fn index(key: u32) -> u32 {
    key >> 8
}

/// A key with the program's bits of another. Whatever else stands in the other is of no meaning, as
/// in rxe and in hardware: the index of an object never changes.
fn with_program_bits(key: u32, other: u32) -> u32 {
    key & !0xff | other & 0xff
}

impl KeyTable {
    /// Puts an object under a new key.
    fn insert(&mut self, pd: PdId, object: Object, rng: &mut ChaCha8Rng) -> u32 {
        // At most one index in 16 is taken, so this ends soon.
        let key = loop {
            // HOST-018, MEM-004: what comes next is not what was there before.
            let key = rng.next_u32();
            // MEM-016
            if index(key) != 0 && !self.by_index.contains_key(&index(key)) {
                break key;
            }
        };
        self.by_index.insert(index(key), Entry { key, pd, object });
        key
    }

    fn remove(&mut self, key: u32) {
        self.by_index.remove(&index(key));
    }

    /// The object with the index of this key, whatever the program's bits are.
    fn get_mut(&mut self, key: u32) -> Option<&mut Entry> {
        self.by_index.get_mut(&index(key))
    }

    /// The object of this very key in a protection domain.
    fn get(&self, key: u32, pd: PdId) -> Option<&Object> {
        let entry = self.by_index.get(&index(key))?;
        // MEM-001, MW-006: only the present key opens, and only in its protection domain.
        let is_key = entry.key == key || fault!(KeyLowByteNotChecked);
        (is_key && entry.pd == pd).then_some(&entry.object)
    }

    /// Checks an access of our own program, of `len` bytes at `addr`: the key, its protection
    /// domain, the bounds and the rights, in this order. Only MRs open anything to it.
    pub(crate) fn local(
        &self,
        lkey: Lkey,
        pd: PdId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Span, KeyError> {
        match self.get(lkey.0, pd) {
            // MW-007: a window is no memory of the program's own.
            Some(Object::Mr(mr)) => mr.opening.span(addr, len, access),
            _ => Err(KeyError::Key),
        }
    }

    /// Checks an access of the peer of a QP, in the same order.
    pub(crate) fn remote(
        &self,
        rkey: Rkey,
        (pd, qpn): (PdId, Qpn),
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Span, KeyError> {
        self.opening(rkey, (pd, qpn)).ok_or(KeyError::Key)?.span(addr, len, access)
    }

    /// Checks an access of the peer of a QP to all that a key opens.
    pub(crate) fn remote_all(
        &self,
        rkey: Rkey,
        scope: (PdId, Qpn),
        access: Access,
    ) -> Result<Span, KeyError> {
        let opening = self.opening(rkey, scope).ok_or(KeyError::Key)?;
        // FAW-002: all of it lies inside.
        opening.span(opening.base, opening.length, access)
    }

    /// What a key opens to the peer of a QP.
    fn opening(&self, rkey: Rkey, (pd, qpn): (PdId, Qpn)) -> Option<&Opening> {
        match self.get(rkey.0, pd)? {
            Object::Mr(mr) => Some(&mr.opening),
            Object::Mw(mw) => mw.opening(qpn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    const PD: PdId = PdId(1);
    const QP: (PdId, Qpn) = (PD, Qpn::new(0x11));

    fn table(addr: u64, length: u64, access: Access) -> (KeyTable, MrKeys) {
        let mut table = KeyTable::default();
        let spec = MrSpec { pd: PD, addr, length, access, region: RegionId(7) };
        let key = table.reg_mr(spec, &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        (table, key)
    }

    #[test]
    fn an_access_inside_is_granted_with_its_offset() {
        let (table, MrKeys { lkey, rkey }) = table(0x1000, 0x100, Access::REMOTE_READ);
        let span = Ok(Span { region: RegionId(7), offset: 0x10 });
        assert_eq!(table.local(lkey, PD, 0x1010, 0xf0, Access::empty()), span);
        assert_eq!(table.remote(rkey, QP, 0x1010, 0xf0, Access::REMOTE_READ), span);
    }

    #[test]
    fn key_bounds_and_rights_are_told_apart() {
        let (table, keys) = table(0x1000, 0x100, Access::REMOTE_READ);
        let key = keys.lkey.0;
        let check = |key, pd, addr, len, access| table.local(Lkey(key), pd, addr, len, access);
        assert_eq!(
            check(key ^ 1, PD, 0x1000, 1, Access::empty()),
            Err(KeyError::Key),
            "program's bits"
        );
        assert_eq!(check(key ^ 256, PD, 0x1000, 1, Access::empty()), Err(KeyError::Key), "index");
        assert_eq!(check(key, PdId(2), 0x1000, 1, Access::empty()), Err(KeyError::Key));
        assert_eq!(check(key, PD, 0xfff, 1, Access::empty()), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, 0x10ff, 2, Access::empty()), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, u64::MAX, u64::MAX, Access::empty()), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, 0x1080, u64::MAX, Access::empty()), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, 0x1000, 1, Access::REMOTE_WRITE), Err(KeyError::Rights));
    }

    #[test]
    fn a_zero_based_mr_counts_from_its_first_byte() {
        let (table, MrKeys { lkey, .. }) = table(0x1000, 0x100, Access::ZERO_BASED);
        let span = table.local(lkey, PD, 0x10, 0xf0, Access::empty());
        assert_eq!(span, Ok(Span { region: RegionId(7), offset: 0x10 }));
        assert_eq!(table.local(lkey, PD, 0x1000, 1, Access::empty()), Err(KeyError::Bounds));
    }

    #[test]
    fn keys_differ_in_index_and_an_index_is_never_zero() {
        let mut table = KeyTable::default();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let spec =
            MrSpec { pd: PD, addr: 0, length: 8, access: Access::empty(), region: RegionId(0) };
        let mut seen = BTreeSet::new();
        for _ in 0..10_000 {
            let key = table.reg_mr(spec, &mut rng).unwrap().lkey.0;
            assert!(key >> 8 != 0 && seen.insert(key >> 8));
        }
    }
}
