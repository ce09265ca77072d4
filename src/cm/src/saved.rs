//! A manager as a value that can be written down and read in another process, which goes on with
//! its connections.
//!
//! What is under way to or from a peer is not part of it: messages that wait to be sent, and
//! requests that wait for a listener, come again as if the network had lost them.

use crate::connection::Conn;
use crate::counters::CmCounters;
use crate::listener::{ListenerId, Listeners};
use crate::manager::{Config, ConnId, Manager, RequestKey};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Instant;
use urxe_types::{Qpn, TimeOffset};
use urxe_wire::mad::{CommId, ServiceId};

/// All that a manager knows at a time, to be [restored](Manager::restore).
#[derive(Debug, Serialize, Deserialize)]
pub struct Saved {
    listeners: Listeners,
    conns: Vec<SavedConn>,
    by_request: Vec<(RequestKey, ConnId)>,
    by_qpn: Vec<((IpAddr, Qpn), ConnId)>,
    /// In the order in which no program had them any more.
    lingering: Vec<ConnId>,
    /// By name.
    counters: Vec<(String, u64)>,
}

/// A connection, with its times.
#[derive(Debug, Serialize, Deserialize)]
struct SavedConn {
    conn: Conn,
    mra_deadline: Option<TimeOffset>,
    asked_whether_lost: Option<TimeOffset>,
    deadline: Option<TimeOffset>,
}

/// Why a manager cannot be [restored](Manager::restore).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// One number for two connections.
    #[error("connection {0}: is there twice, expected once")]
    Twice(ConnId),
    /// A table names a connection that is not there.
    #[error("connection {0}: a table names it, and it is not there")]
    NoConnection(ConnId),
    /// A listener that cannot be, or that a request waits at and that is not there.
    #[error("listener {0}: expected to be there, once, with a key of its own")]
    Listener(ListenerId),
}

impl Manager {
    /// Writes down all that it knows, with times as they are seen from `now`. Its events have been
    /// [polled](Self::poll_event).
    pub fn save(&self, now: Instant) -> Saved {
        let offset = |time: Option<Instant>| time.map(|time| TimeOffset::of(time, now));
        let conns = self.conns.values().map(|conn| SavedConn {
            conn: conn.clone(),
            mra_deadline: offset(conn.mra_deadline),
            asked_whether_lost: offset(conn.asked_whether_lost),
            deadline: offset(conn.deadline),
        });
        Saved {
            listeners: self.listeners.clone(),
            conns: conns.collect(),
            by_request: self.by_request.iter().map(|(key, id)| (*key, *id)).collect(),
            by_qpn: self.by_qpn.iter().map(|(key, id)| (*key, *id)).collect(),
            lingering: self.lingering.values().copied().collect(),
            counters: self.counters.iter().map(|(name, value, _)| (name.into(), value)).collect(),
        }
    }

    /// A manager that goes on where another one was, at the time `now` as it was seen from there.
    ///
    /// # Errors
    /// If that was none that a manager can be in.
    pub fn restore(config: Config, now: Instant, saved: Saved) -> Result<Manager, RestoreError> {
        let Saved { listeners, conns, by_request, by_qpn, lingering, counters } = saved;
        let mut manager = Manager::new(config);
        manager.listeners = listeners;
        // UPGRADE-009
        for SavedConn { mut conn, mra_deadline, asked_whether_lost, deadline } in conns {
            let time = |offset: Option<TimeOffset>| offset.map(|offset| offset.from(now));
            conn.mra_deadline = time(mra_deadline);
            conn.asked_whether_lost = time(asked_whether_lost);
            conn.deadline = time(deadline);
            let id = conn.id;
            if manager.conns.insert(id, conn).is_some() {
                return Err(RestoreError::Twice(id));
            }
        }
        // UPGRADE-008
        let known = |id: &ConnId| manager.conns.contains_key(id);
        let named = by_request.iter().map(|(_, id)| id).chain(by_qpn.iter().map(|(_, id)| id));
        if let Some(id) = named.chain(&lingering).find(|id| !known(id)) {
            return Err(RestoreError::NoConnection(*id));
        }
        let waiting = manager.conns.values().filter(|conn| conn.in_backlog);
        let waiting = waiting.filter_map(|conn| Some((conn.listener?, conn.id)));
        manager.listeners.index(waiting).map_err(RestoreError::Listener)?;
        manager.by_request = by_request.into_iter().collect();
        manager.by_qpn = by_qpn.into_iter().collect();
        for id in lingering {
            manager.reindex(id);
        }
        let ids: Vec<ConnId> = manager.conns.keys().copied().collect();
        ids.into_iter().for_each(|id| manager.reindex(id));
        manager.counters = CmCounters::default();
        for (name, value) in counters {
            manager.counters.go_on_from(&name, value);
        }
        Ok(manager)
    }
}

/// How a communication ID is written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "CommId")]
pub(crate) struct CommIdAsNumber(u32);

/// How a service ID is written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ServiceId")]
pub(crate) struct ServiceIdAsNumber(u64);

/// How a message is written down that is kept to be sent again.
pub(crate) mod saved_message {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use urxe_wire::mad::{MAD_LEN, Mad};

    type Kept = Option<Box<[u8; MAD_LEN]>>;

    pub(crate) fn serialize<S: Serializer>(message: &Kept, to: S) -> Result<S::Ok, S::Error> {
        message.as_ref().map(|message| message.as_slice()).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kept, D::Error> {
        let kept: Option<Vec<u8>> = Option::deserialize(from)?;
        let boxed = |bytes: Vec<u8>| {
            let len = bytes.len();
            let message = <Box<[u8; MAD_LEN]>>::try_from(bytes).map_err(|_| {
                D::Error::custom(format!("{len} bytes of a message, expected {MAD_LEN}"))
            })?;
            // UPGRADE-008: peers are not sent what they cannot read.
            Mad::parse(&message).map_err(D::Error::custom)?;
            Ok(message)
        };
        kept.map(boxed).transpose()
    }
}
