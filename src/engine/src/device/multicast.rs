//! Multicast groups: which UD QPs a datagram to a group goes to.

use super::shares::ShareKey;
use crate::limits::{MAX_GROUP_MEMBERS, MAX_MULTICAST_GROUPS};
use std::collections::BTreeMap;
use std::net::IpAddr;
use urxe_types::Qpn;

/// Why a QP was not attached to a group, or not detached from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum McastError {
    /// There is no such QP.
    #[error("QP {0}: does not exist")]
    NoSuchQp(Qpn),
    /// Only datagrams can go to a group.
    #[error("QP {0}: must be UD to receive from a multicast group")]
    NotUd(Qpn),
    /// The address is of one host.
    #[error("gid {0}: must be the address of a multicast group")]
    NotMulticast(IpAddr),
    /// The QP is no member of this group.
    #[error("gid {group}: QP {qpn} is not attached to this group")]
    NotAttached { qpn: Qpn, group: IpAddr },
    /// The device has no room for another group.
    #[error("the device is in {MAX_MULTICAST_GROUPS} multicast groups, and can be in no more")]
    TooManyGroups,
    /// The group has no room for another QP.
    #[error("gid {0}: {MAX_GROUP_MEMBERS} QPs are attached to this group, and no more can be")]
    TooManyMembers(IpAddr),
}

/// QPs of one share in a group, in the order of their coming.
#[derive(Debug)]
struct Members {
    share: ShareKey,
    qpns: Vec<Qpn>,
}

/// The groups of a device, each with its QPs.
#[derive(Debug, Default)]
pub(crate) struct MulticastTable {
    groups: BTreeMap<IpAddr, Vec<Members>>,
}

impl MulticastTable {
    /// Adds a QP of a share to a group. Returns whether it is the group's first.
    pub(super) fn attach(
        &mut self,
        qpn: Qpn,
        share: ShareKey,
        group: IpAddr,
    ) -> Result<bool, McastError> {
        check_group(group)?;
        let Some(shares) = self.groups.get_mut(&group) else {
            if self.groups.len() >= MAX_MULTICAST_GROUPS {
                return Err(McastError::TooManyGroups);
            }
            self.groups.insert(group, vec![Members { share, qpns: vec![qpn] }]);
            return Ok(true);
        };
        // MCAST-004
        if shares.iter().any(|members| members.qpns.contains(&qpn)) {
            return Ok(false);
        }
        if shares.iter().map(|members| members.qpns.len()).sum::<usize>() >= MAX_GROUP_MEMBERS {
            return Err(McastError::TooManyMembers(group));
        }
        match shares.iter_mut().find(|members| members.share == share) {
            Some(members) => members.qpns.push(qpn),
            None => shares.push(Members { share, qpns: vec![qpn] }),
        }
        Ok(false)
    }

    /// Takes a QP out of a group. Returns whether it was the group's last.
    pub(super) fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, McastError> {
        check_group(group)?;
        let not_attached = McastError::NotAttached { qpn, group };
        let shares = self.groups.get_mut(&group).ok_or(not_attached)?;
        if !take_out(shares, qpn) {
            return Err(not_attached);
        }
        let was_last = shares.is_empty();
        if was_last {
            self.groups.remove(&group);
        }
        Ok(was_last)
    }

    /// The groups that have members.
    pub(super) fn groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.groups.keys().copied()
    }

    /// The QPs of a group.
    pub(super) fn members(&self, group: IpAddr) -> impl Iterator<Item = Qpn> + '_ {
        let shares = self.groups.get(&group).into_iter().flatten();
        shares.flat_map(|members| members.qpns.iter().copied())
    }

    /// The share that came to a group as number `index`, and how many QPs it has there.
    pub(super) fn share(&self, group: IpAddr, index: usize) -> Option<(ShareKey, usize)> {
        let members = self.groups.get(&group)?.get(index)?;
        Some((members.share, members.qpns.len()))
    }

    /// Of that share, the QP that came as number `member`.
    pub(super) fn member(&self, group: IpAddr, share: usize, member: usize) -> Option<Qpn> {
        self.groups.get(&group)?.get(share)?.qpns.get(member).copied()
    }

    /// Takes a QP out of all its groups.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.groups.retain(|_, shares| {
            take_out(shares, qpn);
            !shares.is_empty()
        });
    }
}

/// Takes a QP out of a group. Returns whether it was there.
fn take_out(shares: &mut Vec<Members>, qpn: Qpn) -> bool {
    let found = shares.iter().enumerate().find_map(|(share, members)| {
        Some((share, members.qpns.iter().position(|&member| member == qpn)?))
    });
    let Some((share, member)) = found else { return false };
    let qpns = &mut shares[share].qpns;
    qpns.remove(member);
    if qpns.is_empty() {
        shares.remove(share);
    }
    true
}

fn check_group(group: IpAddr) -> Result<(), McastError> {
    // MCAST-006
    group.is_multicast().then_some(()).ok_or(McastError::NotMulticast(group))
}
