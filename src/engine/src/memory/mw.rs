//! Memory windows: keys that open a part of an MR, by a work request and not by a verb.

use super::{KeyTable, Object, Opening, index, with_program_bits};
use crate::cause::Cause;
use crate::ids::PdId;
use crate::limits::MAX_MW;
use rand_chacha::ChaCha8Rng;
use urxe_types::{Access, Lkey, MwType, Qpn, Rkey};

/// Why a window was not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocMwError {
    /// The device has no room for another.
    #[error("the device has {MAX_MW} memory windows, and can have no more")]
    TooMany,
}

/// What `query_mw` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwInfo {
    /// The protection domain it belongs to.
    pub pd: PdId,
    pub mw_type: MwType,
    /// Its present key.
    pub rkey: Rkey,
    /// What it opens; `None` while it is not bound.
    pub bound: Option<MwBinding>,
}

/// What a bound window opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBinding {
    pub mr: Lkey,
    /// Its first byte, in the MR's terms.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// What the peer may do, and whether its addresses count from 0.
    pub access: Access,
    /// The QP that it was bound on: the only one that it opens to, if it is of type 2.
    pub qpn: Qpn,
}

/// What a bind asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    /// The window's present key.
    pub(crate) mw: Rkey,
    /// Gives the low 8 bits of the key that it shall have.
    pub(crate) new_rkey: Rkey,
    /// What it shall open.
    pub(crate) binding: MwBinding,
}

/// What a window can give.
const WINDOW_RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::ZERO_BASED);

/// An allocated window.
#[derive(Debug)]
pub(super) struct Mw {
    mw_type: MwType,
    bound: Option<(MwBinding, Opening)>,
}

impl Mw {
    /// What it opens to the peer of a QP.
    pub(super) fn opening(&self, qpn: Qpn) -> Option<&Opening> {
        // MW-005, MW-023: what is not bound opens nothing.
        let (binding, opening) = self.bound.as_ref()?;
        // MW-008, MW-009
        let is_its_qp = binding.qpn == qpn || fault!(WindowOpensToOthers);
        (self.mw_type == MwType::One || is_its_qp).then_some(opening)
    }
}

impl KeyTable {
    /// Allocates a window that opens nothing; its first key.
    pub(crate) fn alloc_mw(
        &mut self,
        pd: PdId,
        mw_type: MwType,
        rng: &mut ChaCha8Rng,
    ) -> Result<Rkey, AllocMwError> {
        if self.mws >= MAX_MW {
            return Err(AllocMwError::TooMany);
        }
        self.mws += 1;
        Ok(Rkey(self.insert(pd, Object::Mw(Mw { mw_type, bound: None }), rng)))
    }

    /// Frees the window with the index of this key; whether there was one.
    pub(crate) fn dealloc_mw(&mut self, rkey: Rkey) -> bool {
        if self.mw(rkey).is_none() {
            return false;
        }
        // MW-030
        self.unbind(rkey);
        self.remove(rkey.0);
        self.mws -= 1;
        true
    }

    /// What the window with the index of this key is, and opens.
    pub(crate) fn query_mw(&self, rkey: Rkey) -> Option<MwInfo> {
        let entry = self.by_index.get(&index(rkey.0))?;
        let Object::Mw(mw) = &entry.object else { return None };
        let bound = mw.bound.map(|(binding, _)| binding);
        Some(MwInfo { pd: entry.pd, mw_type: mw.mw_type, rkey: Rkey(entry.key), bound })
    }

    /// Binds a window, for a work request of a QP of this protection domain. A bind that is
    /// refused changes nothing.
    pub(crate) fn bind_mw(&mut self, pd: PdId, bind: &Bind) -> Result<(), Cause> {
        // MW-010
        let window = self.query_mw(bind.mw).filter(|window| window.rkey == bind.mw);
        let window = window.ok_or(Cause::BindNoWindow)?;
        // MW-012, MW-041
        if window.pd != pd {
            return Err(Cause::BindPd);
        }
        let opening = match (window.mw_type, bind.binding.length) {
            // MW-021
            (MwType::One, 0) => None,
            // MW-020
            (MwType::Two, 0) => return Err(Cause::BindNothing),
            (MwType::Two, _) if window.bound.is_some() => return Err(Cause::BindTwice),
            _ => Some(self.check_bind(pd, window.mw_type, &bind.binding)?),
        };

        // MW-022: all refusals are behind us, and nothing was changed.
        self.unbind(bind.mw);
        if let Some(mr) = opening.and_then(|_| self.mr(bind.binding.mr)) {
            mr.windows += 1;
        }
        if window.mw_type == MwType::Two {
            self.bound_on.insert((bind.binding.qpn.get(), index(bind.mw.0)));
        }
        if let Some(entry) = self.get_mut(bind.mw.0) {
            // MW-011
            entry.key = with_program_bits(bind.mw.0, bind.new_rkey.0);
        }
        if let Some(mw) = self.mw(bind.mw) {
            mw.bound = opening.map(|opening| (bind.binding, opening));
        }
        Ok(())
    }

    /// What a window will open, if the MR lets it.
    fn check_bind(&self, pd: PdId, mw_type: MwType, bind: &MwBinding) -> Result<Opening, Cause> {
        let MwBinding { addr, length, access, .. } = *bind;
        // MW-018: asked for as with an MR, where the peer's right to write needs it. It is not the
        // window's to give.
        let access = access.difference(Access::LOCAL_WRITE);
        let zero_based = access.contains(Access::ZERO_BASED);
        // MW-019
        if !WINDOW_RIGHTS.contains(access) || (zero_based && mw_type == MwType::One) {
            return Err(Cause::BindAccess);
        }
        let entry = self.by_index.get(&index(bind.mr.0)).filter(|entry| entry.key == bind.mr.0);
        // MW-013
        let entry = entry.ok_or(Cause::BindNoMr)?;
        let Object::Mr(mr) = &entry.object else { return Err(Cause::BindNoMr) };
        // MW-012, MW-041
        if entry.pd != pd {
            return Err(Cause::BindPd);
        }
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let flushes = access.intersects(Access::FLUSH_GLOBAL);
        let of_mr = mr.opening.access;
        // MW-002, MW-014, MW-015, MW-016: and none of the region's other rights.
        let allows = of_mr.contains(Access::MW_BIND)
            && !of_mr.contains(Access::ZERO_BASED)
            && (!writes || of_mr.contains(Access::LOCAL_WRITE))
            && (!flushes || of_mr.contains(Access::FLUSH_GLOBAL));
        if !allows {
            return Err(Cause::BindRights);
        }
        // MW-017
        let span = mr.opening.span(addr, length, Access::empty()).map_err(|_| Cause::BindBounds)?;
        // MW-001, MW-004
        let base = if zero_based { 0 } else { addr };
        let length = if fault!(WindowTwiceAsLong) { length * 2 } else { length };
        let access = if fault!(WindowRightsOfRegion) { of_mr } else { access };
        Ok(Opening { base, length, access, region: span.region, offset: span.offset })
    }

    /// Whether a key is one that a QP may close: that of a type 2 window that is bound on it.
    pub(crate) fn may_invalidate(&self, rkey: Rkey, (pd, qpn): (PdId, Qpn)) -> bool {
        match self.get(rkey.0, pd) {
            // MW-024, MW-026, MEM-011: no region, no type 1 window, no other QP's.
            Some(Object::Mw(mw)) => mw.mw_type == MwType::Two && mw.opening(qpn).is_some(),
            _ => false,
        }
    }

    /// Closes a window: its key opens nothing until it is bound again.
    pub(crate) fn unbind(&mut self, rkey: Rkey) {
        let Some((binding, _)) = self.mw(rkey).and_then(|mw| mw.bound.take()) else { return };
        self.bound_on.remove(&(binding.qpn.get(), index(rkey.0)));
        if let Some(mr) = self.mr(binding.mr) {
            mr.windows -= 1;
        }
    }

    /// Closes the type 2 windows that were bound on a QP, which is no more.
    pub(crate) fn unbind_all_on(&mut self, qpn: Qpn) {
        let of_qp = (qpn.get(), 0)..=(qpn.get(), u32::MAX);
        // MW-029
        while let Some(&of_window @ (_, index)) = self.bound_on.range(of_qp.clone()).next() {
            self.bound_on.remove(&of_window);
            self.unbind(Rkey(index << 8));
        }
    }

    /// The window with the index of this key.
    fn mw(&mut self, rkey: Rkey) -> Option<&mut Mw> {
        match &mut self.get_mut(rkey.0)?.object {
            Object::Mw(mw) => Some(mw),
            Object::Mr(_) => None,
        }
    }
}
