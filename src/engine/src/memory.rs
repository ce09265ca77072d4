//! Memory keys: what a key opens, and for whom.

use crate::attr::{Access, PdId};
use crate::cause::Cause;
use crate::host::RegionId;
use crate::limits::MAX_MR;
use crate::table::IntMap;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// What an MR is registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrSpec {
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The address of its first byte, in the terms that work requests use (`iova`).
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What may be done with it.
    pub access: Access,
    /// The memory behind it.
    pub region: RegionId,
}

/// Why an MR was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegMrError {
    /// The range runs over the end of the address space.
    #[error("MR of {length} bytes at {addr:#x}: must end below 2^64")]
    Wraps {
        /// Its address.
        addr: u64,
        /// Its length.
        length: u64,
    },
    /// Remote write or atomic access without local write access, which IBTA forbids.
    #[error("MR access {0:#x}: remote write and remote atomic need local write (1) as well")]
    RemoteWithoutLocalWrite(u32),
    /// The device has no room for another.
    #[error("the device has {MAX_MR} MRs, and can have no more")]
    TooMany,
}

/// Why an access through a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// No such key in this protection domain.
    Key,
    /// Outside of the MR.
    Bounds,
    /// The MR does not give this right.
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

/// The MRs of a device by key. One key serves as lkey and rkey, as in rxe; keys are random, so
/// that a peer cannot guess one from another.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    by_key: IntMap<Mr>,
}

#[derive(Debug)]
struct Mr {
    spec: MrSpec,
    /// A SEND with invalidate closed it: the key opens nothing until the MR is deregistered.
    invalidated: bool,
}

impl MrTable {
    pub(crate) fn insert(&mut self, spec: MrSpec, rng: &mut ChaCha8Rng) -> Result<u32, RegMrError> {
        let remote_writes = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        if spec.access.0 & remote_writes != 0 && !spec.access.contains(Access::LOCAL_WRITE) {
            return Err(RegMrError::RemoteWithoutLocalWrite(spec.access.0));
        }
        if spec.addr.checked_add(spec.length).is_none() {
            return Err(RegMrError::Wraps { addr: spec.addr, length: spec.length });
        }
        if self.by_key.len() >= MAX_MR {
            return Err(RegMrError::TooMany);
        }
        // At most one key in 8,192 is taken, so this ends at once.
        let key = loop {
            let key = rng.next_u32();
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        self.by_key.insert(key, Mr { spec, invalidated: false });
        Ok(key)
    }

    pub(crate) fn remove(&mut self, key: u32) -> Option<MrSpec> {
        self.by_key.remove(&key).map(|mr| mr.spec)
    }

    /// The MR that a key opens in a protection domain.
    fn get(&self, key: u32, pd: PdId) -> Option<&MrSpec> {
        let mr = self.by_key.get(&key)?;
        (mr.spec.pd == pd && !mr.invalidated).then_some(&mr.spec)
    }

    /// Whether a peer may close this key by a SEND with invalidate.
    pub(crate) fn may_invalidate(&self, key: u32, pd: PdId) -> bool {
        self.get(key, pd).is_some_and(|mr| mr.access.contains(Access::REMOTE_INVALIDATE))
    }

    /// Closes a key.
    pub(crate) fn invalidate(&mut self, key: u32) {
        if let Some(mr) = self.by_key.get_mut(&key) {
            mr.invalidated = true;
        }
    }

    /// Checks an access of `len` bytes at `addr`: the key, its protection domain, the bounds and
    /// the rights, in this order.
    pub(crate) fn check(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Span, KeyError> {
        let mr = self.get(key, pd).ok_or(KeyError::Key)?;
        let offset = addr.checked_sub(mr.addr).ok_or(KeyError::Bounds)?;
        if offset.checked_add(len).is_none_or(|end| end > mr.length) {
            return Err(KeyError::Bounds);
        }
        if !mr.access.contains(access) {
            return Err(KeyError::Rights);
        }
        Ok(Span { region: mr.region, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    const PD: PdId = PdId(1);

    fn table(addr: u64, length: u64, access: Access) -> (MrTable, u32) {
        let mut table = MrTable::default();
        let spec = MrSpec { pd: PD, addr, length, access, region: RegionId(7) };
        let key = table.insert(spec, &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        (table, key)
    }

    #[test]
    fn an_access_inside_is_granted_with_its_offset() {
        let (table, key) = table(0x1000, 0x100, Access::REMOTE_READ);
        let span = table.check(key, PD, 0x1010, 0xf0, Access::REMOTE_READ);
        assert_eq!(span, Ok(Span { region: RegionId(7), offset: 0x10 }));
    }

    #[test]
    fn key_bounds_and_rights_are_told_apart() {
        let (table, key) = table(0x1000, 0x100, Access::REMOTE_READ);
        let check = |key, pd, addr, len, access| table.check(key, pd, addr, len, access);
        assert_eq!(check(key ^ 1, PD, 0x1000, 1, Access(0)), Err(KeyError::Key));
        assert_eq!(check(key, PdId(2), 0x1000, 1, Access(0)), Err(KeyError::Key));
        assert_eq!(check(key, PD, 0xfff, 1, Access(0)), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, 0x10ff, 2, Access(0)), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, u64::MAX, u64::MAX, Access(0)), Err(KeyError::Bounds));
        assert_eq!(check(key, PD, 0x1000, 1, Access::REMOTE_WRITE), Err(KeyError::Rights));
    }

    #[test]
    fn only_a_key_that_allows_it_is_invalidated_and_then_opens_nothing() {
        let (plain, key) = table(0, 8, Access::LOCAL_WRITE);
        assert!(!plain.may_invalidate(key, PD));
        let (mut open, key) = table(0, 8, Access::REMOTE_INVALIDATE);
        assert!(open.may_invalidate(key, PD));
        assert!(!open.may_invalidate(key, PdId(2)));
        open.invalidate(key);
        assert!(!open.may_invalidate(key, PD));
        assert_eq!(open.check(key, PD, 0, 1, Access(0)), Err(KeyError::Key));
        assert_eq!(open.remove(key).map(|mr| mr.region), Some(RegionId(7)));
    }

    #[test]
    fn impossible_registrations_are_refused() {
        let mut table = MrTable::default();
        let mut insert = |addr, length, access| {
            let spec = MrSpec { pd: PD, addr, length, access, region: RegionId(0) };
            table.insert(spec, &mut ChaCha8Rng::seed_from_u64(1))
        };
        assert!(matches!(insert(u64::MAX, 2, Access(0)), Err(RegMrError::Wraps { .. })));
        assert_eq!(insert(0, 1, Access::REMOTE_WRITE), Err(RegMrError::RemoteWithoutLocalWrite(2)));
    }
}
