//! The manager: all connections of a device, and its clock.

use crate::connection::{Books, Conn, State};
use crate::counters::{CmCounter, CmCounters};
use crate::event::Event;
use crate::limits::{MAX_LINGERING, MAX_OUTGOING};
use crate::listener::Listeners;
use crate::parameters::Path;
use crate::schedule::{Repeats, Timing};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::time::Instant;
use urxe_types::{PathMtu, Qpn};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::mad::{CommId, ServiceId};

/// A connection, or the resolution of a service: the manager's own number, random, and the
/// communication ID on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        CommId(self.0).fmt(f)
    }
}

/// What a manager is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which adapter we are: the `node_guid` of the device.
    pub guid: u64,
    /// Seed of numbers and PSNs: unpredictable in the daemon, fixed in a simulation.
    pub seed: u64,
    /// Largest path MTU that the link carries.
    pub active_mtu: PathMtu,
    /// READs and atomics that a QP may have outstanding in either direction (`max_qp_rd_atom`).
    pub max_rd_atomic: u8,
    /// How long what is waited for.
    pub timing: Timing,
}

/// A management datagram to be sent: `Device::send_mad` of the engine does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// From where to where; its flow label is that of the connection's packets.
    pub path: Path,
    /// To which QP: 1.
    pub qpn: Qpn,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

/// The connection manager of a device.
///
/// # Order of calls
///
/// The methods are of four kinds:
///
/// 1. *Commands* of programs, at any time: [`listen`](Self::listen), [`connect`](Self::connect),
///    [`accept`](Self::accept), [`destroy`](Self::destroy) and their kin.
/// 2. *Input*: [`handle_mad`](Self::handle_mad) for each management datagram that
///    `Host::mad` of the engine was given; [`handle_timeout`](Self::handle_timeout) when
///    [`poll_timeout`](Self::poll_timeout) has come.
/// 3. *Output*: after any of these, [`poll_mad`](Self::poll_mad) and
///    [`poll_event`](Self::poll_event) until they return `None`.
/// 4. *Questions*: [`state`](Self::state), [`qp_attr`](Self::qp_attr),
///    [`counters`](Self::counters) and so on.
///
/// `now` never runs backwards from one call to the next.
pub struct Manager {
    pub(crate) config: Config,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) listeners: Listeners,
    conns: BTreeMap<ConnId, Conn>,
    /// Connections that peers asked for, by the peer's number.
    by_request: HashMap<RequestKey, ConnId>,
    /// Connections by the peer's QP.
    by_qpn: HashMap<(IpAddr, Qpn), ConnId>,
    deadlines: BTreeSet<(Instant, ConnId)>,
    /// Connections that no program knows of any more, the oldest first.
    lingering: BTreeMap<u64, ConnId>,
    lingered: u64,
    /// Requests that no program has answered yet.
    requests: usize,
    out: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    pub(crate) counters: CmCounters,
}

/// A peer, its number, and whether it is the number of a connection or of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    pub(crate) peer: IpAddr,
    pub(crate) number: CommId,
    pub(crate) sidr: bool,
}

/// What a connection needs of its manager.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut CmCounters,
    out: &'a mut VecDeque<Outgoing>,
}

impl Cx<'_> {
    pub(crate) fn send(&mut self, path: Path, qpn: Qpn, mad: &[u8; MAD_LEN]) {
        match self.out.len() >= MAX_OUTGOING {
            true => self.counters.add(CmCounter::DropNotSent, 1),
            false => self.out.push_back(Outgoing { path, qpn, mad: *mad }),
        }
    }
}

impl Manager {
    /// A manager without connections and listeners.
    pub fn new(config: Config) -> Manager {
        Manager {
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            config,
            listeners: Listeners::default(),
            conns: BTreeMap::new(),
            by_request: HashMap::new(),
            by_qpn: HashMap::new(),
            deadlines: BTreeSet::new(),
            lingering: BTreeMap::new(),
            lingered: 0,
            requests: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Changes the largest path MTU that the link carries. Connections keep the one that they have.
    pub fn set_active_mtu(&mut self, active_mtu: PathMtu) {
        self.config.active_mtu = active_mtu;
    }

    /// The next management datagram to be sent.
    pub fn poll_mad(&mut self) -> Option<Outgoing> {
        self.out.pop_front()
    }

    /// The next thing that a program is to be told.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None` if nothing is waited for.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sees to everything whose time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.with(now, id, |conn, cx| conn.on_deadline(cx));
        }
    }

    /// Where a connection stands; `None` if it is gone.
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.owned(conn).map(|conn| conn.state)
    }

    /// The path of a connection, and of its packets.
    pub fn path(&self, conn: ConnId) -> Option<Path> {
        self.owned(conn).map(|conn| conn.path)
    }

    /// How many connections and resolutions it knows of, those included that no program does.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether it knows of none.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// How many of them no program has answered yet.
    pub fn unanswered(&self) -> usize {
        self.requests
    }

    /// What it has counted.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// How many of them programs know of.
    pub(crate) fn owned_len(&self) -> usize {
        self.conns.len() - self.lingering.len()
    }

    pub(crate) fn owned(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id).filter(|conn| conn.owned)
    }

    pub(crate) fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id)
    }

    pub(crate) fn conns(&self) -> impl Iterator<Item = &Conn> {
        self.conns.values()
    }

    pub(crate) fn find_request(&self, key: RequestKey) -> Option<ConnId> {
        self.by_request.get(&key).copied()
    }

    /// The connection with this QP of a peer.
    pub(crate) fn find_qpn(&self, peer: IpAddr, qpn: Qpn) -> Option<ConnId> {
        self.by_qpn.get(&(peer, qpn)).copied()
    }

    pub(crate) fn occupy_qpn(&mut self, peer: IpAddr, qpn: Qpn, conn: ConnId) {
        self.by_qpn.insert((peer, qpn), conn);
    }

    /// A connection as it begins. It is not known yet.
    pub(crate) fn new_conn(&mut self, state: State, path: Path, service_id: ServiceId) -> Conn {
        let id = loop {
            // CM-025
            let id = ConnId(self.rng.next_u32());
            // 0 stands for no number on the wire.
            if id.0 != 0 && !self.conns.contains_key(&id) {
                break id;
            }
        };
        let max_retries = self.config.timing.max_retries;
        Conn {
            id,
            state,
            listener: None,
            in_backlog: false,
            owned: true,
            gone: false,
            path,
            peer_gsi: Qpn::GSI,
            tid: u64::from(self.rng.next_u32()) << 32 | u64::from(id.0),
            service_id,
            remote_id: CommId::NONE,
            terms: None,
            message: None,
            repeats: Repeats::new(&self.config.timing, max_retries),
            max_retries,
            patience: None,
            extensions: 0,
            deadline: None,
            books: Books::default(),
        }
    }

    /// Makes a connection known.
    pub(crate) fn insert(&mut self, conn: Conn) {
        if conn.is_passive() {
            self.by_request.insert(request_key(&conn), conn.id);
        }
        if let Some(qpn) = conn.remote_qpn() {
            self.by_qpn.insert((conn.path.peer, qpn), conn.id);
        }
        let id = conn.id;
        self.counters.add(CmCounter::Begun, 1);
        self.conns.insert(id, conn);
        self.write_down(id);
    }

    /// Gives the place of a request in its listener's backlog back.
    pub(crate) fn vacate_backlog(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && std::mem::take(&mut conn.in_backlog)
            && let Some(listener) = conn.listener
        {
            self.listeners.vacate(listener);
        }
    }

    /// What has to do with no connection.
    pub(crate) fn without(&mut self, now: Instant) -> Cx<'_> {
        Cx {
            now,
            config: &self.config,
            events: &mut self.events,
            counters: &mut self.counters,
            out: &mut self.out,
        }
    }

    /// Does something with a connection, then writes down what became of it.
    pub(crate) fn with<R>(
        &mut self,
        now: Instant,
        id: ConnId,
        action: impl FnOnce(&mut Conn, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let conn = self.conns.get_mut(&id)?;
        let mut cx = Cx {
            now,
            config: &self.config,
            events: &mut self.events,
            counters: &mut self.counters,
            out: &mut self.out,
        };
        let result = action(conn, &mut cx);
        self.write_down(id);
        if self.lingering.len() > MAX_LINGERING
            && let Some((_, &oldest)) = self.lingering.first_key_value()
        {
            self.counters.add(CmCounter::ForgottenEarly, 1);
            self.forget(oldest);
        }
        Some(result)
    }

    /// Brings the manager's books up to date with a connection.
    fn write_down(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.gone {
            return self.forget(id);
        }
        if conn.books.deadline != conn.deadline {
            if let Some(before) = conn.books.deadline.take() {
                self.deadlines.remove(&(before, id));
            }
            if let Some(at) = conn.deadline {
                self.deadlines.insert((at, id));
            }
            conn.books.deadline = conn.deadline;
        }
        if conn.books.request != conn.is_request() {
            conn.books.request = conn.is_request();
            match conn.books.request {
                true => self.requests += 1,
                false => self.requests -= 1,
            }
        }
        if !conn.owned && conn.books.lingering.is_none() {
            self.lingered += 1;
            conn.books.lingering = Some(self.lingered);
            self.lingering.insert(self.lingered, id);
        }
        // What was refused has no QP on our side, and keeps none of the peer's from others.
        if conn.state == State::Answered
            && let Some(qpn) = conn.remote_qpn()
            && self.by_qpn.get(&(conn.path.peer, qpn)) == Some(&id)
        {
            self.by_qpn.remove(&(conn.path.peer, qpn));
        }
        if !conn.is_request() {
            self.vacate_backlog(id);
        }
    }

    fn forget(&mut self, id: ConnId) {
        self.vacate_backlog(id);
        let Some(conn) = self.conns.remove(&id) else { return };
        self.counters.add(CmCounter::Forgotten, 1);
        if let Some(at) = conn.books.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Some(place) = conn.books.lingering {
            self.lingering.remove(&place);
        }
        self.requests -= usize::from(conn.books.request);
        if conn.is_passive() && self.by_request.get(&request_key(&conn)) == Some(&id) {
            self.by_request.remove(&request_key(&conn));
        }
        if let Some(qpn) = conn.remote_qpn()
            && self.by_qpn.get(&(conn.path.peer, qpn)) == Some(&id)
        {
            self.by_qpn.remove(&(conn.path.peer, qpn));
        }
    }
}

fn request_key(conn: &Conn) -> RequestKey {
    RequestKey { peer: conn.path.peer, number: conn.remote_id, sidr: conn.terms.is_none() }
}
