//! Memory regions: what they are registered with.

use super::{KeyTable, Object, Opening};
use crate::ids::{PdId, RegionId};
use crate::limits::MAX_MR;
use rand_chacha::ChaCha8Rng;
use urxe_types::{Access, Lkey, Rkey};

/// What an MR is registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrSpec {
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The address of its first byte, in the terms that work requests use (`iova`). Of no meaning
    /// for a zero-based MR, whose first byte is at 0.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What may be done with it.
    pub access: Access,
    /// The memory behind it.
    pub region: RegionId,
}

/// The keys of an MR. They are one number, as in rxe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// What our own work requests name it by.
    pub lkey: Lkey,
    /// What the peer's requests name it by.
    pub rkey: Rkey,
}

/// Why an MR was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegMrError {
    /// The range runs over the end of the address space.
    #[error("MR of {length} bytes at {addr:#x}: must end below 2^64")]
    Wraps { addr: u64, length: u64 },
    /// Remote write or atomic access without local write access, which IBTA forbids.
    #[error("MR access {0:#x}: remote write and remote atomic need local write (1) as well")]
    RemoteWithoutLocalWrite(u32),
    /// The peer was to FLUSH for persistence, which no memory of a program has.
    #[error(
        "MR access {0:#x}: flush persistent (0x200) needs persistent memory, of which this device has none; flush global (0x100) is possible"
    )]
    NotPersistent(u32),
    /// The device has no room for another.
    #[error("the device has {MAX_MR} MRs, and can have no more")]
    TooMany,
}

/// Why an MR was not deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeregMrError {
    /// There is no such MR.
    #[error("key {:#x}: is of no MR", .0.0)]
    NoSuchMr(Lkey),
    /// Windows are bound to it.
    #[error("key {:#x}: {windows} memory windows are bound to the MR; close or free them first", .key.0)]
    WindowsBound {
        /// The MR's key.
        key: Lkey,
        /// Windows bound to it.
        windows: u32,
    },
}

/// A registered MR.
#[derive(Debug)]
pub(super) struct Mr {
    pub(super) opening: Opening,
    /// Windows bound to it.
    pub(super) windows: u32,
}

impl KeyTable {
    /// Registers memory; its keys.
    pub(crate) fn reg_mr(
        &mut self,
        spec: MrSpec,
        rng: &mut ChaCha8Rng,
    ) -> Result<MrKeys, RegMrError> {
        let MrSpec { pd, length, access, region, .. } = spec;
        // MEM-002
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(RegMrError::RemoteWithoutLocalWrite(access.bits()));
        }
        // FAW-005
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(RegMrError::NotPersistent(access.bits()));
        }
        // MEM-015
        let base = if access.contains(Access::ZERO_BASED) { 0 } else { spec.addr };
        // MEM-003
        if base.checked_add(length).is_none() {
            return Err(RegMrError::Wraps { addr: base, length });
        }
        if self.mrs >= MAX_MR {
            return Err(RegMrError::TooMany);
        }
        self.mrs += 1;
        let opening = Opening { base, length, access, region, offset: 0 };
        let key = self.insert(pd, Object::Mr(Mr { opening, windows: 0 }), rng);
        Ok(MrKeys { lkey: Lkey(key), rkey: Rkey(key) })
    }

    /// Deregisters memory; what was behind it.
    pub(crate) fn dereg_mr(&mut self, key: Lkey) -> Result<RegionId, DeregMrError> {
        let mr = self.mr(key).ok_or(DeregMrError::NoSuchMr(key))?;
        let (windows, region) = (mr.windows, mr.opening.region);
        // MW-028
        if windows > 0 {
            return Err(DeregMrError::WindowsBound { key, windows });
        }
        self.remove(key.0);
        self.mrs -= 1;
        Ok(region)
    }

    /// The MR of this very key.
    pub(super) fn mr(&mut self, key: Lkey) -> Option<&mut Mr> {
        match self.get_mut(key.0) {
            Some(entry) if entry.key == key.0 => match &mut entry.object {
                Object::Mr(mr) => Some(mr),
                Object::Mw(_) => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    fn reg(addr: u64, length: u64, access: Access) -> Result<MrKeys, RegMrError> {
        let spec = MrSpec { pd: PdId(1), addr, length, access, region: RegionId(0) };
        KeyTable::default().reg_mr(spec, &mut ChaCha8Rng::seed_from_u64(1))
    }

    #[test]
    fn impossible_registrations_are_refused() {
        assert_eq!(
            reg(u64::MAX, 2, Access::empty()),
            Err(RegMrError::Wraps { addr: u64::MAX, length: 2 })
        );
        assert_eq!(reg(0, 1, Access::REMOTE_WRITE), Err(RegMrError::RemoteWithoutLocalWrite(2)));
        let persistent = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        assert_eq!(reg(0, 1, persistent), Err(RegMrError::NotPersistent(0x300)));
    }

    #[test]
    fn a_zero_based_mr_has_no_address_that_could_wrap() {
        assert!(reg(u64::MAX, 2, Access::ZERO_BASED).is_ok());
    }
}
