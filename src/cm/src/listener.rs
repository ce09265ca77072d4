//! Listeners, and which of them a request is for.

use crate::manager::ConnId;
use crate::saved::ServiceIdAsNumber;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use urxe_types::QpType;
use urxe_wire::mad::{PortSpace, ServiceId};

/// A listener, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListenerId(pub u64);

impl fmt::Display for ListenerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `rdma_listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    pub space: PortSpace,
    /// The port, which the caller has chosen.
    pub port: u16,
    /// On which addresses.
    pub on: ListenOn,
    /// For what.
    pub service: Service,
    /// How many requests may wait until the program [takes](crate::Manager::take_request) them.
    pub backlog: usize,
}

/// The addresses of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ListenOn {
    /// All.
    Any,
    /// All of IPv4.
    AnyV4,
    /// All of IPv6.
    AnyV6,
    /// This one.
    Address(IpAddr),
}

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Service {
    /// Connections of this type: RC or UC.
    Connected(QpType),
    /// SIDR requests, for a UD QP.
    Datagrams,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listener {
    pub(crate) service: Service,
    backlog: usize,
    /// Requests that the program has not taken yet.
    #[serde(skip)]
    waiting: BTreeSet<ConnId>,
    port: u16,
    #[serde(with = "ServiceIdAsNumber")]
    service_id: ServiceId,
    on: ListenOn,
}

impl Listener {
    fn key(&self) -> ListenKey {
        (self.service_id, self.on, self.service == Service::Datagrams)
    }
}

/// Service, addresses, and whether it is for datagrams: what only one listener can have.
type ListenKey = (ServiceId, ListenOn, bool);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Listeners {
    #[serde(skip)]
    by_key: HashMap<ListenKey, ListenerId>,
    listeners: HashMap<ListenerId, Listener>,
    last: u64,
}

impl Listeners {
    /// Puts right what is not written down: which listener has which key, and which requests wait
    /// at each.
    pub(crate) fn index(
        &mut self,
        waiting: impl Iterator<Item = (ListenerId, ConnId)>,
    ) -> Result<(), ListenerId> {
        for (&id, listener) in &mut self.listeners {
            listener.waiting.clear();
            if id.0 > self.last || self.by_key.insert(listener.key(), id).is_some() {
                return Err(id);
            }
        }
        for (id, conn) in waiting {
            self.listeners.get_mut(&id).ok_or(id)?.waiting.insert(conn);
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Adds a listener, if its key is free.
    pub(crate) fn insert(&mut self, listen: &Listen) -> Option<ListenerId> {
        let Listen { space, port, on, service, backlog } = *listen;
        let service_id = ServiceId::ip(space, port);
        let listener =
            Listener { service, backlog, waiting: BTreeSet::new(), port, service_id, on };
        let key = listener.key();
        // CM-023
        if self.by_key.contains_key(&key) {
            return None;
        }
        self.last += 1;
        let id = ListenerId(self.last);
        self.by_key.insert(key, id);
        self.listeners.insert(id, listener);
        Some(id)
    }

    /// Removes a listener; returns its port, if it was there.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<u16> {
        let listener = self.listeners.remove(&id)?;
        self.by_key.remove(&listener.key());
        Some(listener.port)
    }

    /// The listener for this service on this address, the most specific if there are several.
    pub(crate) fn find(
        &self,
        service: ServiceId,
        address: IpAddr,
        datagrams: bool,
    ) -> Option<(ListenerId, Service)> {
        let family = if address.is_ipv4() { ListenOn::AnyV4 } else { ListenOn::AnyV6 };
        // CM-023
        let id = [ListenOn::Address(address), family, ListenOn::Any]
            .into_iter()
            .find_map(|on| self.by_key.get(&(service, on, datagrams)))?;
        Some((*id, self.listeners.get(id)?.service))
    }

    /// The requests that wait for the program to take them.
    pub(crate) fn waiting(&self, id: ListenerId) -> impl Iterator<Item = ConnId> {
        self.listeners.get(&id).into_iter().flat_map(|listener| listener.waiting.iter().copied())
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&self, id: ListenerId) -> bool {
        self.listeners.get(&id).is_some_and(|it| it.waiting.len() < it.backlog)
    }

    /// One more waits.
    pub(crate) fn enter_backlog(&mut self, id: ListenerId, conn: ConnId) {
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.waiting.insert(conn);
        }
    }

    /// One waits no more.
    pub(crate) fn leave_backlog(&mut self, id: ListenerId, conn: ConnId) {
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.waiting.remove(&conn);
        }
    }
}
