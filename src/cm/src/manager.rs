//! The manager: all connections of a device, by communication ID, peer and deadline; its queues of
//! messages and events.

use crate::connection::{Conn, Indexed, State};
use crate::counters::{CmCounter, CmCounters};
use crate::event::Event;
use crate::held::{Held, HeldRequest};
use crate::limits::{
    MAX_LINGERING, MAX_OUTGOING, REFUSALS_EACH, REFUSALS_IN_ALL, REPEATS_EACH, REPEATS_IN_ALL,
};
use crate::listener::Listeners;
use crate::parameters::Path;
use crate::saved::CommIdAsNumber;
use crate::timing::{Retries, Timing};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::time::Instant;
use urxe_types::{PathMtu, Qpn, ReplyLimit};
use urxe_wire::mad::{CommId, MAD_LEN, ServiceId};

/// A connection, or the resolution of a service: our communication ID of it, a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnId(pub u32);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        CommId(self.0).fmt(f)
    }
}

/// What a manager is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `node_guid` of the device.
    pub guid: u64,
    /// Seed of communication IDs and PSNs: unpredictable in the daemon, fixed in a simulation.
    pub seed: u64,
    /// Largest path MTU that the link carries.
    pub active_mtu: PathMtu,
    /// READs and atomics that a QP may have outstanding in either direction (`max_qp_rd_atom`).
    pub max_rd_atomic: u8,
    /// Timeouts and retries.
    pub timing: Timing,
}

/// A management datagram to be sent: `Device::send_mad` of the engine does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The path of the connection.
    pub path: Path,
    /// The QP it goes to: 1, unless the peer uses another.
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
///    [`accept`](Self::accept), [`destroy`](Self::destroy) and so on.
/// 2. *Input*: [`handle_mad`](Self::handle_mad) for each management datagram that
///    `Host::mad` of the engine was given; [`handle_timeout`](Self::handle_timeout) when
///    [`poll_timeout`](Self::poll_timeout) has come.
/// 3. *Output*: after any of these, [`poll_mad`](Self::poll_mad) and
///    [`poll_event`](Self::poll_event) until they return `None`.
/// 4. *Queries*: [`state`](Self::state), [`qp_attr`](Self::qp_attr),
///    [`counters`](Self::counters) and so on.
///
/// `now` never runs backwards from one call to the next.
pub struct Manager {
    pub(crate) config: Config,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) listeners: Listeners,
    pub(crate) held: Held,
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    /// Connections of the passive side, by the peer's communication ID.
    pub(crate) by_request: HashMap<RequestKey, ConnId>,
    /// Connections by the peer's QP.
    pub(crate) by_qpn: HashMap<(IpAddr, Qpn), ConnId>,
    deadlines: BTreeSet<(Instant, ConnId)>,
    /// Connections that no program has any more, in the order in which that came to be.
    pub(crate) lingering: BTreeMap<u64, ConnId>,
    pub(crate) linger_seq: u64,
    /// Requests that no program has accepted, answered or rejected yet.
    pending_requests: usize,
    /// What is sent to those who may have been named by somebody else: replies without a
    /// connection, and repeats of answers.
    pub(crate) refusals: ReplyLimit,
    repeats: ReplyLimit,
    out: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    pub(crate) counters: CmCounters,
}

/// A peer's REQ, or SIDR REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RequestKey {
    pub(crate) peer: IpAddr,
    #[serde(with = "CommIdAsNumber")]
    pub(crate) comm_id: CommId,
    pub(crate) sidr: bool,
}

/// What a connection needs of its manager.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut CmCounters,
    repeats: &'a mut ReplyLimit,
    out: &'a mut VecDeque<Outgoing>,
}

impl Context<'_> {
    pub(crate) fn send(&mut self, path: Path, qpn: Qpn, mad: &[u8; MAD_LEN]) {
        match self.out.len() >= MAX_OUTGOING {
            true => self.counters.add(CmCounter::DropNotSent, 1),
            false => self.out.push_back(Outgoing { path, qpn, mad: *mad }),
        }
    }

    /// Whether an answer may be sent once more to an address that may be forged.
    pub(crate) fn may_repeat(&mut self, peer: IpAddr) -> bool {
        // CM-203, COUNT-019
        let may_repeat = self.repeats.take(self.now, peer);
        self.counters.add(CmCounter::RepeatsHeldBack, u64::from(!may_repeat));
        may_repeat
    }
}

impl Manager {
    /// A manager without connections and listeners.
    pub fn new(config: Config) -> Manager {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        // The first stream makes numbers that everybody is told.
        rng.set_stream(1);
        let mut secret = || [rng.next_u64(), rng.next_u64()];
        let refusals = ReplyLimit::new(secret(), REFUSALS_EACH, REFUSALS_IN_ALL);
        let repeats = ReplyLimit::new(secret(), REPEATS_EACH, REPEATS_IN_ALL);
        Manager {
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            refusals,
            repeats,
            held: Held::new(config.timing.listener_gap.duration()),
            config,
            listeners: Listeners::default(),
            conns: BTreeMap::new(),
            by_request: HashMap::new(),
            by_qpn: HashMap::new(),
            deadlines: BTreeSet::new(),
            lingering: BTreeMap::new(),
            linger_seq: 0,
            pending_requests: 0,
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

    /// The next event for a program.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None` if no timer runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        deadline.into_iter().chain(self.held.poll_timeout()).min()
    }

    /// Handles all timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.update(now, id, |conn, cx| conn.handle_timeout(cx));
        }
        // CM-061
        while let Some(HeldRequest { from, mad, .. }) = self.held.take_expired(now) {
            self.handle_message(now, &from, &mad);
        }
    }

    /// The state of a connection; `None` if it is over for its program.
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.owned(conn).map(|conn| conn.state)
    }

    /// The path of a connection, and of its packets.
    pub fn path(&self, conn: ConnId) -> Option<Path> {
        self.owned(conn).map(|conn| conn.path)
    }

    /// How many connections and resolutions there are, with those that no program has any more.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// How many of them no program has accepted, answered or rejected yet.
    pub fn pending_requests(&self) -> usize {
        self.pending_requests
    }

    /// The counters.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// How many of them programs have.
    pub(crate) fn owned_len(&self) -> usize {
        self.conns.len() - self.lingering.len()
    }

    pub(crate) fn owned(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id).filter(|conn| conn.owned)
    }

    pub(crate) fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id)
    }

    pub(crate) fn find_by_request(&self, key: RequestKey) -> Option<ConnId> {
        self.by_request.get(&key).copied()
    }

    /// The connection with this QP of a peer.
    pub(crate) fn find_by_qpn(&self, peer: IpAddr, qpn: Qpn) -> Option<ConnId> {
        self.by_qpn.get(&(peer, qpn)).copied()
    }

    pub(crate) fn index_qpn(&mut self, peer: IpAddr, qpn: Qpn, conn: ConnId) {
        self.by_qpn.insert((peer, qpn), conn);
    }

    /// A new connection, which is still to be [inserted](Self::insert).
    pub(crate) fn new_conn(&mut self, state: State, path: Path, service_id: ServiceId) -> Conn {
        let id = loop {
            // CM-025
            let id = ConnId(self.rng.next_u32());
            // 0 stands for none on the wire.
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
            retries: Retries::new(&self.config.timing, max_retries),
            max_retries,
            mra_deadline: None,
            mras_received: 0,
            asked_whether_lost: None,
            deadline: None,
            indexed: Indexed::default(),
        }
    }

    /// Adds a connection to the tables.
    pub(crate) fn insert(&mut self, conn: Conn) {
        if conn.is_passive() {
            self.by_request.insert(request_key(&conn), conn.id);
        }
        if let Some(key) = qpn_key(&conn) {
            self.by_qpn.insert(key, conn.id);
        }
        let id = conn.id;
        self.counters.add(CmCounter::Begun, 1);
        self.conns.insert(id, conn);
        self.reindex(id);
    }

    /// Takes a request out of its listener's backlog.
    pub(crate) fn leave_backlog(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && std::mem::take(&mut conn.in_backlog)
            && let Some(listener) = conn.listener
        {
            self.listeners.leave_backlog(listener, id);
        }
    }

    /// The context of what concerns no connection that is in the tables.
    pub(crate) fn context(&mut self, now: Instant) -> Context<'_> {
        Context {
            now,
            config: &self.config,
            events: &mut self.events,
            counters: &mut self.counters,
            repeats: &mut self.repeats,
            out: &mut self.out,
        }
    }

    /// Does something with a connection, and brings the indexes up to date.
    pub(crate) fn update<R>(
        &mut self,
        now: Instant,
        id: ConnId,
        action: impl FnOnce(&mut Conn, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let conn = self.conns.get_mut(&id)?;
        let mut cx = Context {
            now,
            config: &self.config,
            events: &mut self.events,
            counters: &mut self.counters,
            repeats: &mut self.repeats,
            out: &mut self.out,
        };
        let result = action(conn, &mut cx);
        self.reindex(id);
        if self.lingering.len() > MAX_LINGERING
            && let Some((_, &oldest)) = self.lingering.first_key_value()
        {
            self.counters.add(CmCounter::ForgottenEarly, 1);
            self.forget(oldest);
        }
        Some(result)
    }

    /// Brings the indexes up to date with a connection.
    pub(crate) fn reindex(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.gone {
            return self.forget(id);
        }
        if conn.indexed.deadline != conn.deadline {
            if let Some(before) = conn.indexed.deadline.take() {
                self.deadlines.remove(&(before, id));
            }
            if let Some(at) = conn.deadline {
                self.deadlines.insert((at, id));
            }
            conn.indexed.deadline = conn.deadline;
        }
        if conn.indexed.request != conn.is_request() {
            conn.indexed.request = conn.is_request();
            match conn.indexed.request {
                true => self.pending_requests += 1,
                false => self.pending_requests -= 1,
            }
        }
        if !conn.owned && conn.indexed.lingering.is_none() {
            self.linger_seq += 1;
            conn.indexed.lingering = Some(self.linger_seq);
            self.lingering.insert(self.linger_seq, id);
        }
        let (is_request, state) = (conn.is_request(), conn.state);
        // What was rejected or has ended has no QP here: the peer may connect that QP of its own
        // again.
        if matches!(state, State::Lingering | State::TimeWait) {
            let key = qpn_key(conn);
            self.unindex_qpn(key, id);
        }
        if !is_request {
            self.leave_backlog(id);
        }
    }

    fn forget(&mut self, id: ConnId) {
        self.leave_backlog(id);
        let Some(conn) = self.conns.remove(&id) else { return };
        self.counters.add(CmCounter::Forgotten, 1);
        if let Some(at) = conn.indexed.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Some(seq) = conn.indexed.lingering {
            self.lingering.remove(&seq);
        }
        self.pending_requests -= usize::from(conn.indexed.request);
        if conn.is_passive() && self.by_request.get(&request_key(&conn)) == Some(&id) {
            self.by_request.remove(&request_key(&conn));
        }
        self.unindex_qpn(qpn_key(&conn), id);
    }

    fn unindex_qpn(&mut self, key: Option<(IpAddr, Qpn)>, id: ConnId) {
        if let Some(key) = key
            && self.by_qpn.get(&key) == Some(&id)
        {
            self.by_qpn.remove(&key);
        }
    }
}

fn qpn_key(conn: &Conn) -> Option<(IpAddr, Qpn)> {
    Some((conn.path.peer, conn.remote_qpn()?))
}

fn request_key(conn: &Conn) -> RequestKey {
    RequestKey { peer: conn.path.peer, comm_id: conn.remote_id, sidr: conn.terms.is_none() }
}
