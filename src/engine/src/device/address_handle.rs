//! Address handles: paths that datagrams are sent along.

use crate::cause::Cause;
use crate::flow::{FlowError, flow_to_any};
use crate::ids::PdId;
use crate::limits::MAX_AH;
use std::net::IpAddr;
use urxe_types::{AddressVector, AhId, Slab};

/// Why an address handle was not created, or a path to a host not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AhError {
    /// The address vector leads nowhere.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The device has no room for another.
    #[error("the device has {MAX_AH} address handles, and can have no more")]
    TooMany,
}

/// The address handles of a device.
#[derive(Debug, Default)]
pub(crate) struct AhTable {
    /// A handle's number is one more than its key, for none is 0.
    handles: Slab<AddressHandle, 1>,
}

#[derive(Debug)]
struct AddressHandle {
    pd: PdId,
    /// Resolved for each datagram anew: the GID that it names may have changed meanwhile.
    av: AddressVector,
}

impl AhTable {
    /// The path of a handle, for a QP of this protection domain.
    pub(crate) fn get(&self, ah: AhId, pd: PdId) -> Result<&AddressVector, Cause> {
        match self.handles.get(ah.0.wrapping_sub(1)) {
            // UD-008
            None => Err(Cause::NoSuchAddressHandle),
            // UD-007
            Some(handle) if handle.pd != pd => Err(Cause::ForeignAddressHandle),
            Some(handle) => Ok(&handle.av),
        }
    }

    /// Adds a handle, if its path leads anywhere from these GIDs.
    pub(super) fn create(
        &mut self,
        gids: &[Option<IpAddr>],
        pd: PdId,
        av: &AddressVector,
    ) -> Result<AhId, AhError> {
        // UD-009
        flow_to_any(gids, av)?;
        let key = self.handles.insert(AddressHandle { pd, av: *av }).ok_or(AhError::TooMany)?;
        Ok(AhId(key + 1))
    }

    /// Removes a handle. Returns whether it was there.
    pub(super) fn destroy(&mut self, ah: AhId) -> bool {
        self.handles.remove(ah.0.wrapping_sub(1)).is_some()
    }
}
