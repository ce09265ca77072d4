//! Memberships in multicast groups.
//!
//! RoCEv2 has no subnet administrator to ask: a receiver has the network deliver
//! what is sent to the group's address, and the port sees to that when a QP is attached to it. So
//! to join takes no time, and cannot fail.

use super::connect::UDP_QKEY;
use super::events::ud_param;
use super::id::Phase;
use super::{Cm, PendingEvent};
use crate::broker::device::RdmaDevice;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use urxe_cm::Path;
use urxe_shm::control::{CmEventKind, ControlError};
use urxe_slot::refusal::refuse;
use urxe_types::{QpType, Qpn};

/// A membership of an id in a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Membership {
    /// Its handle in the session that has it.
    pub(super) handle: u32,
    pub(super) user_handle: u64,
    /// The key of the id.
    pub(super) id: u32,
    /// Events that were taken.
    pub(super) taken: u32,
    /// The number of its event.
    pub(super) event: Option<u64>,
}

impl Cm {
    /// Joins a group; returns the membership's key.
    pub(super) fn join(
        &mut self,
        devices: &[RdmaDevice],
        key: u32,
        handle: u32,
        user_handle: u64,
        group: SocketAddr,
    ) -> Result<u32, ControlError> {
        let id = self.id(key)?;
        let is_bound = matches!(id.phase, Phase::Bound | Phase::AddrResolved);
        let (true, Some(device), Some(src)) = (is_bound, id.device, id.src) else {
            return Err(id.cannot("join a group"));
        };
        if id.qp_type != QpType::Ud {
            return Err(refuse(Errno::INVAL, "only ids for datagrams join groups"));
        }
        if !group.ip().is_multicast() || group.is_ipv4() != src.is_ipv4() {
            let sentence = format!("group {group}: expected a multicast address of {src}'s family");
            return Err(refuse(Errno::INVAL, sentence));
        }
        let path = Path::between(src, group, id.traffic_class);
        let param = ud_param(&devices[device], &path, Qpn::MULTICAST, UDP_QKEY, &[]);
        let membership = Membership { handle, user_handle, id: key, taken: 0, event: None };
        let membership = self.memberships.insert(membership);
        let membership = membership
            .ok_or_else(|| refuse(Errno::NOMEM, "the daemon can have no more memberships"))?;
        self.id_mut(key)?.memberships.push(membership);
        let (kind, status) = (CmEventKind::MulticastJoin, 0);
        let event = PendingEvent::Event { membership: Some(membership), kind, status, param };
        let event = self.enqueue(key, event);
        if let Some(membership) = self.memberships.get_mut(membership) {
            membership.event = event;
        }
        Ok(membership)
    }

    /// Leaves a group. Returns how many events of the membership were taken.
    pub(super) fn leave(&mut self, membership: u32) -> u32 {
        let Some(Membership { id: key, taken, event, .. }) = self.memberships.remove(membership)
        else {
            return 0;
        };
        if let Some(id) = self.ids.get_mut(key) {
            id.memberships.retain(|known| *known != membership);
        }
        if let Some(event) = event {
            self.withdraw(key, event);
        }
        taken
    }
}
