//! Multicast groups: which UD QPs a datagram to a group goes to.

use crate::counters::Counter;
use crate::device::Device;
use crate::host::Host;
use crate::limits::{MAX_GROUP_MEMBERS, MAX_MULTICAST_GROUPS};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;
use urxe_types::{QpType, Qpn};
use urxe_wire::{Outer, Packet};

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
    NotAttached {
        /// The QP.
        qpn: Qpn,
        /// The group.
        group: IpAddr,
    },
    /// The device has no room for another group.
    #[error("the device is in {MAX_MULTICAST_GROUPS} multicast groups, and can be in no more")]
    TooManyGroups,
    /// The group has no room for another QP.
    #[error("gid {0}: {MAX_GROUP_MEMBERS} QPs are attached to this group, and no more can be")]
    TooManyMembers(IpAddr),
}

/// The groups of a device, each with its QPs in the order of their coming.
#[derive(Debug, Default)]
pub(crate) struct MulticastTable {
    groups: BTreeMap<IpAddr, Vec<Qpn>>,
}

impl MulticastTable {
    fn member(&self, group: IpAddr, index: usize) -> Option<Qpn> {
        self.groups.get(&group)?.get(index).copied()
    }

    /// Takes a QP out of all its groups.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.groups.retain(|_, members| {
            members.retain(|&member| member != qpn);
            !members.is_empty()
        });
    }
}

impl Device {
    /// Attaches a UD QP to a group: it gets a copy of each datagram to it. To attach it twice is
    /// to attach it once. Returns whether it is the group's first QP, so that the port must join.
    ///
    /// # Errors
    /// If QP or address are not fit for it, or the device or the group is full.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, McastError> {
        self.check_mcast(qpn, group)?;
        let groups = &mut self.multicast.groups;
        let Some(members) = groups.get_mut(&group) else {
            if groups.len() >= MAX_MULTICAST_GROUPS {
                return Err(McastError::TooManyGroups);
            }
            groups.insert(group, vec![qpn]);
            return Ok(true);
        };
        if members.contains(&qpn) {
            return Ok(false);
        }
        if members.len() >= MAX_GROUP_MEMBERS {
            return Err(McastError::TooManyMembers(group));
        }
        members.push(qpn);
        Ok(false)
    }

    /// Detaches a QP from a group. Returns whether it was the group's last QP, so that the port
    /// must leave.
    ///
    /// # Errors
    /// If it was not attached.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, McastError> {
        self.check_mcast(qpn, group)?;
        let groups = &mut self.multicast.groups;
        let not_attached = McastError::NotAttached { qpn, group };
        let members = groups.get_mut(&group).ok_or(not_attached)?;
        let place = members.iter().position(|&member| member == qpn).ok_or(not_attached)?;
        members.remove(place);
        let was_last = members.is_empty();
        if was_last {
            groups.remove(&group);
        }
        Ok(was_last)
    }

    fn check_mcast(&self, qpn: Qpn, group: IpAddr) -> Result<(), McastError> {
        let qp = self.qps.get(&qpn.get()).ok_or(McastError::NoSuchQp(qpn))?;
        if qp.init.qp_type != QpType::Ud {
            return Err(McastError::NotUd(qpn));
        }
        group.is_multicast().then_some(()).ok_or(McastError::NotMulticast(group))
    }

    /// The groups that QPs are attached to: those that the port must be in.
    pub fn mcast_groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.multicast.groups.keys().copied()
    }

    /// A packet for the multicast QPN: every QP of the group that it was addressed to gets it.
    pub(crate) fn handle_multicast(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        outer: &Outer,
        packet: &Packet<'_>,
    ) {
        let group = outer.flow.dst;
        let mut members = 0;
        while let Some(qpn) = self.multicast.member(group, members) {
            self.deliver(now, host, qpn, outer, packet);
            members += 1;
        }
        if members == 0 {
            self.counters.add(Counter::DropNoMulticastMember, 1);
        }
    }
}
