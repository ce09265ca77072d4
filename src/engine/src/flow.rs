//! From an address vector to the headers that it stands for.

use std::net::IpAddr;
use urxe_types::AddressVector;
use urxe_wire::{Flow, ROCE_PORT};

/// The hop limit where the address vector leaves it at 0, which nothing would survive.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Why an address vector leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// No GID stands at this index.
    #[error("ah_attr sgid_index {0}: the GID table has nothing at this index")]
    NoSuchGid(u8),
    /// Source and destination are not of one address family.
    #[error(
        "ah_attr dgid {dgid}: cannot be reached from {sgid}, which is of another address family; choose another sgid_index"
    )]
    FamilyMismatch {
        /// The destination.
        dgid: IpAddr,
        /// The device's own GID.
        sgid: IpAddr,
    },
    /// The destination is no single host, and the transport needs one.
    #[error("ah_attr dgid {0}: is not the address of a host")]
    NotAHost(IpAddr),
    /// The destination is neither a host nor a multicast group.
    #[error("ah_attr dgid {0}: is not the address of a host or a multicast group")]
    NoDestination(IpAddr),
}

/// The outer headers towards one host. The source port is still to be chosen.
pub(crate) fn flow_to_host(gids: &[Option<IpAddr>], av: &AddressVector) -> Result<Flow, FlowError> {
    match av.dgid.is_multicast() || is_nowhere(av.dgid) {
        true => Err(FlowError::NotAHost(av.dgid)),
        false => flow(gids, av),
    }
}

/// The outer headers towards one host or a multicast group, as a datagram may have. The source
/// port is still to be chosen.
pub(crate) fn flow_to_any(gids: &[Option<IpAddr>], av: &AddressVector) -> Result<Flow, FlowError> {
    match is_nowhere(av.dgid) {
        true => Err(FlowError::NoDestination(av.dgid)),
        false => flow(gids, av),
    }
}

fn is_nowhere(dgid: IpAddr) -> bool {
    dgid.is_unspecified() || matches!(dgid, IpAddr::V4(v4) if v4.is_broadcast())
}

fn flow(gids: &[Option<IpAddr>], av: &AddressVector) -> Result<Flow, FlowError> {
    let index = av.sgid_index;
    let sgid = gids.get(usize::from(index)).copied().flatten();
    let src = sgid.ok_or(FlowError::NoSuchGid(index))?;
    let dst = av.dgid;
    // ADDR-002
    if src.is_ipv4() != dst.is_ipv4() {
        return Err(FlowError::FamilyMismatch { dgid: dst, sgid: src });
    }
    Ok(Flow {
        src,
        dst,
        src_port: ROCE_PORT,
        traffic_class: av.traffic_class,
        hop_limit: if av.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { av.hop_limit },
        flow_label: av.flow_label & 0xf_ffff,
    })
}
