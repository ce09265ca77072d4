//! What broker and slot say to each other.
//!
//! The broker says [`ToSlot::Start`] first and once. A session is known by a number that no other
//! ever had; a device by its place in [`ToSlot::Start`].

use crate::Numbering;
use crate::port_plan::PortPlan;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::ops::Add;
use urxe_engine::Tuning;
use urxe_nic::PortEvent;
use urxe_shm::control::{
    CaptureSpec, ControlError, Cursor, HistoryPage, HistorySubject, PathPage, QpStats, Reply,
    Request, ResourceKind, ResourcePage,
};
use urxe_types::{PathMtu, QpState, Qpn};

/// What the broker tells a slot.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToSlot {
    /// What it is.
    Start(SlotBeginning),
    /// A device that it is to serve, in their order. The file of its capture comes with this.
    Open(DeviceBeginning),
    /// A device's port gains an address, or joins a multicast group; the sockets come with this.
    AddAddress { device: usize, addr: IpAddr },
    /// A device's port loses an address.
    RemoveAddress { device: usize, addr: IpAddr },
    /// A device is so from now on, and its programs are to be told this of its port.
    Device { device: usize, state: DeviceState, events: Vec<PortEvent> },
    /// A program has connected; its socket comes with this.
    Session { number: u64, uid: u32, pid: u32 },
    /// A program's session is to end.
    EndSession { session: u64 },
    /// The answer to a [`ToBroker::Request`]. The descriptors of the reply come with it.
    Answer { session: u64, answer: Result<Reply, ControlError> },
    /// Whether events wait in a channel of the connection manager, by its handle.
    CmEvents { session: u64, channel: u32, waiting: bool },
    /// Answered by [`ToBroker::Here`], if the slot goes on at all.
    AreYouThere,
    /// Answered by [`ToBroker::Found`] of the same number.
    Question { number: u64, device: usize, viewer: Viewer, subject: Subject },
    /// Packets of a device are to be captured, under a number; the end of a pipe comes with this.
    Tap { number: u64, device: usize, viewer: Viewer, spec: CaptureSpec },
    /// That is over.
    EndTap { number: u64 },
}

/// What a slot tells the broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToBroker {
    /// A program has said who it is.
    Named { session: u64, name: String },
    /// A program asks what is the broker's to answer, and waits.
    Request { session: u64, request: Request },
    /// A program asks for a multicast group that the slot may not join itself, and waits. The
    /// sockets come with [`ToSlot::AddAddress`], before the answer.
    Join { session: u64, device: usize, group: IpAddr },
    /// A program is gone; its objects are being freed.
    Gone { session: u64 },
    /// Nothing is left of a program that is gone.
    Freed { session: u64 },
    /// Data came for a QP whose program may not know that its peer is ready.
    Established { device: usize, qpn: Qpn },
    /// The answer to [`ToSlot::AreYouThere`].
    Here,
    /// The answer to a [`ToSlot::Question`].
    Found { number: u64, found: Found },
    /// Something that a program has done or met, for the daemon's log; so many more of this kind
    /// were left out before.
    Log { session: u64, what: Logged, unlogged: u64 },
}

/// What a slot has to say of a program for the log.
#[derive(Debug, Serialize, Deserialize)]
pub enum Logged {
    /// It has opened a device.
    Opened { device: usize },
    /// Its request was refused.
    Refused(ControlError),
    /// A QP of it has failed, and went to this state.
    QpFailed { device: usize, qpn: Qpn, state: QpState, cause: u32, sentence: String },
}

/// What a slot has to know of itself in the beginning.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SlotBeginning {
    /// Which slot it is.
    pub slot: usize,
    /// Of how many, the broker's included.
    pub slots: usize,
    /// How many devices it is to serve: so many [`ToSlot::Open`] follow.
    pub devices: usize,
    pub tuning: Tuning,
    pub numbering: Numbering,
    /// Registrations that it may have mapped.
    pub max_mapped_mrs: usize,
}

/// What a slot has to know of a device in the beginning.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceBeginning {
    pub name: String,
    pub guid: [u8; 8],
    /// Makes the device's numbers unpredictable.
    pub seed: u64,
    pub port: PortPlan,
    pub state: DeviceState,
}

/// What changes of a device as the machine's links and addresses do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// The GID table, with the addresses that can be used.
    pub gids: Vec<Option<IpAddr>>,
    /// The GID table as it is shown: with those that cannot be used yet.
    pub shown_gids: Vec<Option<IpAddr>>,
    /// The largest path MTU of its link.
    pub mtu: PathMtu,
    /// What it is on, and whether that works.
    pub link: LinkState,
    /// The addresses of this machine that are on one link only.
    pub local_addrs: Vec<IpAddr>,
}

/// What a device is known to be on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Packets can pass: `IBV_PORT_ACTIVE`, else `IBV_PORT_DOWN`.
    pub active: bool,
    pub interface: Option<String>,
    /// Its number.
    pub index: Option<u32>,
    /// Its speed in Mbit/s when it last changed, where the kernel knows it.
    pub speed_mbps: Option<u32>,
}

/// Whose objects may be seen: those of one user, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Viewer {
    User(u32),
    Everybody,
}

impl Viewer {
    /// Whether objects of this user may be seen.
    pub fn may_see(self, uid: u32) -> bool {
        self == Viewer::Everybody || self == Viewer::User(uid)
    }
}

/// What the broker asks about a device of a slot, for a program that asks about the whole device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Subject {
    /// A page of objects of a kind, behind the one of this number.
    Resources { kind: ResourceKind, after: Option<u32> },
    /// A page of paths.
    Paths { after: Option<u32> },
    /// A page of what happened to QPs, behind a QPN.
    Histories { of: HistorySubject, after: Option<u32> },
    /// So many QPs at most with their counters.
    Qps { after: Option<u32>, most: usize },
    /// The counters of the device.
    Counts,
}

/// What a slot finds. Where a page goes on is said of this slot alone.
#[derive(Debug, Serialize, Deserialize)]
pub enum Found {
    Resources(ResourcePage),
    Paths(PathPage),
    Histories(HistoryPage),
    Qps { qps: Vec<QpStats>, next: Option<Cursor> },
    Counts(Counts),
}

/// What a slot has counted and what it has, each in the order in which its set is listed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counts {
    pub engine: Vec<u64>,
    pub port: Vec<u64>,
    pub nic: Vec<u64>,
    pub daemon: Vec<u64>,
    pub objects: Vec<u64>,
    pub paths: Vec<u64>,
}

/// Counter by counter.
impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        let sum = |one: Vec<u64>, other: Vec<u64>| {
            one.into_iter().zip(other).map(|(one, other)| one.saturating_add(other)).collect()
        };
        Counts {
            engine: sum(self.engine, other.engine),
            port: sum(self.port, other.port),
            nic: sum(self.nic, other.nic),
            daemon: sum(self.daemon, other.daemon),
            objects: sum(self.objects, other.objects),
            paths: sum(self.paths, other.paths),
        }
    }
}
