//! Who listens where.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use urxe_types::QpType;
use urxe_wire::mad::{PortSpace, ServiceId};

/// A listener: the manager's own number, never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

impl fmt::Display for ListenerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `rdma_listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The port space of the port.
    pub space: PortSpace,
    /// The port; choosing one is not the manager's affair.
    pub port: u16,
    /// On which addresses.
    pub on: ListenOn,
    /// For what.
    pub service: Service,
    /// How many requests may wait until the program [takes](crate::Manager::take_request) them.
    pub backlog: usize,
}

/// On which addresses somebody listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenOn {
    /// On all of them.
    Any,
    /// On all of IPv4.
    AnyV4,
    /// On all of IPv6.
    AnyV6,
    /// On this one.
    Address(IpAddr),
}

/// What somebody listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Connections of this type: RC or UC.
    Connected(QpType),
    /// Questions for a QP that takes datagrams.
    Datagrams,
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) service: Service,
    backlog: usize,
    /// Requests that the program has not taken yet.
    waiting: usize,
    place: ListenKey,
}

/// Where one listens: a service on some addresses, for connections or for datagrams.
type ListenKey = (ServiceId, ListenOn, bool);

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    places: HashMap<ListenKey, ListenerId>,
    listeners: HashMap<ListenerId, Listener>,
    last: u64,
}

impl Listeners {
    pub(crate) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Adds a listener, if its place is free.
    pub(crate) fn insert(&mut self, listen: &Listen) -> Option<ListenerId> {
        let Listen { space, port, on, service, backlog } = *listen;
        let place = (ServiceId::ip(space, port), on, service == Service::Datagrams);
        // CM-023
        if self.places.contains_key(&place) {
            return None;
        }
        self.last += 1;
        let id = ListenerId(self.last);
        self.places.insert(place, id);
        self.listeners.insert(id, Listener { service, backlog, waiting: 0, place });
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: ListenerId) -> bool {
        let removed = self.listeners.remove(&id);
        removed.is_some_and(|listener| self.places.remove(&listener.place).is_some())
    }

    /// Who listens for this service on this address, the most particular of them.
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
            .find_map(|on| self.places.get(&(service, on, datagrams)))?;
        Some((*id, self.listeners.get(id)?.service))
    }

    /// Whether requests wait for the program to take them.
    pub(crate) fn has_waiting(&self, id: ListenerId) -> bool {
        self.listeners.get(&id).is_some_and(|listener| listener.waiting > 0)
    }

    /// Takes a place in the backlog, if there is one.
    pub(crate) fn occupy(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.listeners.get_mut(&id) else { return false };
        let free = listener.waiting < listener.backlog;
        listener.waiting += usize::from(free);
        free
    }

    /// Gives a place in the backlog back.
    pub(crate) fn vacate(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }
}
