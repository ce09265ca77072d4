//! Which addresses nobody but one daemon sends from.

use crate::Nic;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Has all devices of a daemon know each other's addresses: what comes from one of these by another
/// port than theirs is of somebody else on this machine.
pub fn guard_addresses<'a>(nics: impl IntoIterator<Item = &'a mut Nic>) {
    let nics: Vec<&mut Nic> = nics.into_iter().collect();
    let gids = nics.iter().flat_map(|nic| nic.device().gids()).flatten();
    // A link-local address may be another machine's as well, on another link.
    let is_ours_alone =
        |addr: &&IpAddr| !matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let addrs: BTreeSet<IpAddr> = gids.filter(is_ours_alone).copied().collect();
    for nic in nics {
        nic.set_guarded_addrs(addrs.clone());
    }
}
