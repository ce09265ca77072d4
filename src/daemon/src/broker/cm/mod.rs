//! The connection manager as programs see it: `rdma_cm`.
//!
//! Each device has a [`Manager`](urxe_cm::Manager), which speaks with its peers. Here is
//! what programs make of it: channels, the ids whose events come there, memberships in
//! multicast groups, and the ports, which all programs and devices of this daemon share.
//!
//! ```text
//!  sessions ─► requests.rs ─► bind.rs, connect.rs, multicast.rs ─► a device's manager ─► MADs
//!     ▲             │ handle to key           │ ports.rs, route.rs          │
//!     └── slot ◄─ channel.rs ◄──────────── events.rs ◄──────────────────────┘
//! ```
//!
//! A program that does not take its events blocks no other, and costs a bounded amount: an id
//! has only so many events in its life, requests of peers take places in a listener's backlog, a
//! membership has one event, and an address is not resolved again before it was taken what became
//! of the last one. To take events back costs as much as there are of them, whatever else waits in
//! their channel.

mod bind;
mod channel;
mod connect;
mod events;
mod holdings;
mod id;
mod multicast;
mod ports;
mod requests;
mod route;
mod saved;

use crate::broker::account::Account;
use crate::broker::device::RdmaDevice;
use crate::broker::sessions::Program;
use crate::counters::CmObjectCounters;
use crate::limits::MAX_CM_IDS_OF_ALL;
pub(crate) use channel::ChannelNews;
use channel::{Channels, PendingEvent, QueuedEvent, Request};
pub(crate) use holdings::Holdings;
use id::{Id, Phase};
use multicast::Membership;
use ports::Ports;
pub(crate) use requests::{Answer, free_some, handle, handle_within};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;
use urxe_cm::limits::MAX_LISTENERS;
use urxe_cm::{ConnId, ListenerId};
use urxe_shm::control::{CmEventKind, CmEventParam, ControlError, ResourceDetail};
use urxe_slot::refusal::refuse;
use urxe_types::{Qpn, Slab, index_of};

/// All channels, ids and memberships of all programs.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Cm {
    channels: Channels,
    ids: Slab<Id>,
    /// How many ids each user has.
    #[serde(skip, default = "account_of_ids")]
    id_account: Account,
    /// How many of them listen. Each has one listener of a device at most.
    #[serde(skip, default = "account_of_listeners")]
    listener_account: Account,
    memberships: Slab<Membership>,
    ports: Ports,
    /// The owners of the connections of the devices' managers.
    conn_owners: HashMap<(usize, ConnId), ConnOwner>,
    /// The owners of their listeners: keys of ids.
    listeners: HashMap<(usize, ListenerId), u32>,
    /// Connections that their programs have accepted and their peers not confirmed: device, QPN,
    /// key of the id. Programs name their QPNs themselves, so several may name the same.
    accepted: BTreeSet<(usize, Qpn, u32)>,
    #[serde(skip)]
    pub(crate) counters: CmObjectCounters,
}

/// The owner of a connection of a device's manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ConnOwner {
    /// The id of this key.
    Id(u32),
    /// A listening id, by its key: a request that the program has not taken, and the number of its
    /// event.
    Backlog { listener: u32, event: u64 },
}

impl Cm {
    pub(crate) fn new() -> Cm {
        Cm {
            channels: Channels::default(),
            ids: Slab::default(),
            id_account: account_of_ids(),
            listener_account: account_of_listeners(),
            memberships: Slab::default(),
            ports: Ports::new(),
            conn_owners: HashMap::new(),
            listeners: HashMap::new(),
            accepted: BTreeSet::new(),
            counters: CmObjectCounters::default(),
        }
    }

    /// Whether there is nothing of any program.
    pub(crate) fn is_empty(&self) -> bool {
        let kept = [self.channels.len(), self.ids.len(), self.memberships.len()];
        let noted = [self.conn_owners.len(), self.listeners.len(), self.accepted.len()];
        kept == [0; 3] && noted == [0; 3] && self.ports.is_empty()
    }

    /// A channel that has changed since the last time, for the slot of its session.
    pub(crate) fn next_news(&mut self) -> Option<ChannelNews> {
        self.channels.next_news()
    }

    /// One user may have so many ids at most from now on.
    pub(crate) fn limit_ids(&mut self, most: Option<usize>) {
        self.id_account.limit("cm-ids-per-user", most);
    }

    /// Refuses one more id of a user that has as many as it may.
    fn check_id(&self, user: u32) -> Result<(), ControlError> {
        self.id_account.check(user)?;
        self.ids.next_key().map(drop).ok_or_else(no_more_ids)
    }

    /// Adds an id.
    fn add_id(&mut self, id: Id) -> Result<u32, ControlError> {
        let user = id.program.uid;
        self.check_id(user)?;
        let key = self.ids.insert(id).ok_or_else(no_more_ids)?;
        self.id_account.take(user);
        self.counters.cm_ids_created += 1;
        Ok(key)
    }

    /// The id of a key that a session has.
    fn id(&self, key: u32) -> Result<&Id, ControlError> {
        self.ids.get(key).ok_or_else(gone)
    }

    /// As [`id`](Self::id).
    fn id_mut(&mut self, key: u32) -> Result<&mut Id, ControlError> {
        self.ids.get_mut(key).ok_or_else(gone)
    }

    /// Adds an event of an id to its channel, and returns its number. A request that its program
    /// has not accepted has no events: that it has failed, the program finds out when it accepts.
    fn push_event(
        &mut self,
        key: u32,
        kind: CmEventKind,
        status: i32,
        param: CmEventParam,
    ) -> Option<u64> {
        self.enqueue(key, PendingEvent::Event { membership: None, kind, status, param })
    }

    fn enqueue(&mut self, key: u32, event: PendingEvent) -> Option<u64> {
        let id = self.ids.get_mut(key).filter(|id| id.user_handle.is_some())?;
        let number = self.channels.push(id.channel, QueuedEvent { id: key, event })?;
        id.waiting.insert(number);
        Some(number)
    }

    /// Takes an event of an id back, if its program has not taken it.
    fn withdraw(&mut self, key: u32, number: u64) {
        let Some(id) = self.ids.get_mut(key) else { return };
        if id.waiting.remove(&number) {
            let withdrawn = self.channels.withdraw(id.channel, number);
            self.counters.cm_events_withdrawn += u64::from(withdrawn.is_some());
        }
    }

    /// Refuses a peer's request that its program has not taken.
    fn refuse_request(&mut self, devices: &mut [RdmaDevice], now: Instant, request: &Request) {
        self.conn_owners.remove(&(request.device, request.conn));
        devices[request.device].cm.destroy(now, request.conn);
    }

    /// Ends what an id is about, and takes its events back that were not taken. Returns how many
    /// were.
    fn destroy_id(&mut self, devices: &mut [RdmaDevice], now: Instant, key: u32) -> u32 {
        self.confirmed(key);
        let Some(mut id) = self.ids.remove(key) else { return 0 };
        self.id_account.give_back(id.program.uid);
        self.counters.cm_ids_destroyed += 1;
        match std::mem::replace(&mut id.phase, Phase::Over) {
            Phase::Listening(listeners) => {
                self.listener_account.give_back(id.program.uid);
                for (device, listener) in listeners {
                    self.listeners.remove(&(device, listener));
                    devices[device].cm.unlisten(now, listener);
                }
            }
            Phase::Connected { device, conn } => {
                self.conn_owners.remove(&(device, conn));
                devices[device].cm.destroy(now, conn);
            }
            _ => {}
        }
        if let Some(port) = id.port() {
            self.counters.cm_ports_freed += 1;
            self.ports.release(id.space, port, key);
        }
        for membership in std::mem::take(&mut id.memberships) {
            self.memberships.remove(membership);
        }
        for number in std::mem::take(&mut id.waiting) {
            let Some(queued) = self.channels.withdraw(id.channel, number) else { continue };
            self.counters.cm_events_withdrawn += 1;
            if let PendingEvent::Request(request) = queued.event {
                self.refuse_request(devices, now, &request);
            }
        }
        id.taken
    }

    /// The ids of a device behind a number, with their numbers and programs.
    pub(crate) fn listed(
        &self,
        device: usize,
        after: Option<u32>,
    ) -> impl Iterator<Item = (u32, &Program, ResourceDetail)> {
        let ids = self.ids.iter().map(|(key, id)| (index_of(key), id));
        let ids = ids.filter(move |(number, _)| after.is_none_or(|after| *number > after));
        ids.filter_map(move |(number, id)| Some((number, &id.program, id.detail(device)?)))
    }

    /// Moves an id to another channel, and its waiting events with it. Returns how many of its
    /// events were taken before.
    fn migrate(&mut self, key: u32, channel: u32) -> Result<u32, ControlError> {
        if !self.channels.contains(channel) {
            return Err(gone());
        }
        let id = self.ids.get_mut(key).ok_or_else(gone)?;
        let before = std::mem::replace(&mut id.channel, channel);
        self.channels.migrate(before, channel, id.waiting.iter().copied());
        Ok(id.taken)
    }

    /// The key of the channel that an id is in.
    fn channel_of(&self, key: u32) -> Option<u32> {
        self.ids.get(key).map(|id| id.channel)
    }

    /// The key of the channel that the id of a membership is in.
    fn channel_of_membership(&self, key: u32) -> Option<u32> {
        self.channel_of(self.memberships.get(key)?.id)
    }

    /// The handles of an id's memberships.
    fn memberships_of(&self, key: u32) -> Vec<u32> {
        let keys = self.ids.get(key).into_iter().flat_map(|id| &id.memberships);
        keys.filter_map(|key| Some(self.memberships.get(*key)?.handle)).collect()
    }

    /// An id no longer waits for its peer's answer.
    fn confirmed(&mut self, key: u32) {
        if let Some(id) = self.ids.get_mut(key)
            && let (Some(device), Some(qpn)) = (id.device, id.accepted_qpn.take())
        {
            self.accepted.remove(&(device, qpn, key));
        }
    }
}

fn account_of_ids() -> Account {
    Account::new("ids", MAX_CM_IDS_OF_ALL)
}

fn account_of_listeners() -> Account {
    Account::new("listeners", MAX_LISTENERS)
}

fn no_more_ids() -> ControlError {
    refuse(Errno::NOMEM, "the daemon can have no more ids")
}

/// An id or a channel that a session knows is there; this is never seen.
fn gone() -> ControlError {
    refuse(Errno::NOENT, "it does not exist any more")
}
