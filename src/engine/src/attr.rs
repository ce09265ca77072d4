//! What a QP is made with and what `modify_qp` may change.

use crate::host::{CqId, QueueId};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use urxe_wire::{PathMtu, Psn, Qkey, Qpn};

/// A protection domain: the host's own number. Objects work together only inside one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// The transport service of a QP: `ibv_qp_type`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection: in order, but what is lost stays lost.
    Uc = 3,
    /// Unreliable datagram: one packet, to anybody.
    Ud = 4,
}

/// The QP states of the verbs, with `ibv_qp_state`'s numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just made, or set back: does nothing.
    Reset = 0,
    /// Receives may be posted; nothing moves.
    Init = 1,
    /// Ready to receive: the responder works.
    Rtr = 2,
    /// Ready to send: requester and responder work.
    Rts = 3,
    /// Send queue draining: what has begun ends, nothing new begins.
    Sqd = 4,
    /// Send queue error (not RC): the responder still works.
    Sqe = 5,
    /// Error: everything is flushed.
    Err = 6,
}

/// Rights on memory, or of a QP's peer: `ibv_access_flags`, with the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(pub u32);

impl Access {
    /// The owner's receives and reads may write.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may WRITE.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The peer may READ.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may do atomics.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// Windows may be bound to the MR.
    pub const MW_BIND: Access = Access(1 << 4);
    /// Addresses count from 0 at the first byte.
    pub const ZERO_BASED: Access = Access(1 << 5);
    /// The peer may FLUSH for global visibility.
    pub const FLUSH_GLOBAL: Access = Access(1 << 8);
    /// The peer may FLUSH for persistence.
    pub const FLUSH_PERSISTENT: Access = Access(1 << 9);

    /// Whether all of `other`'s rights are among these.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// These rights, but for `other`'s.
    pub(crate) fn without(self, other: Access) -> Access {
        Access(self.0 & !other.0)
    }

    /// Whether any of `other`'s rights is among these.
    pub fn intersects(self, other: Access) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Where a QP takes its receives from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvSource {
    /// A receive queue of its own, in the host's numbers.
    Own(QueueId),
    /// A shared receive queue.
    Shared(SrqId),
}

/// What a QP is created with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Its transport service.
    pub qp_type: QpType,
    /// Its protection domain.
    pub pd: PdId,
    /// Where its send completions go.
    pub send_cq: CqId,
    /// Where its receive completions go.
    pub recv_cq: CqId,
    /// Its send queue, in the host's numbers.
    pub send_queue: QueueId,
    /// Where it receives from.
    pub recv: RecvSource,
}

impl QpInit {
    /// The SRQ that it receives from, if it does.
    pub fn srq(&self) -> Option<SrqId> {
        match self.recv {
            RecvSource::Own(_) => None,
            RecvSource::Shared(srq) => Some(srq),
        }
    }
}

/// A shared receive queue: the engine's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// What an SRQ is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Its protection domain: that of the memory its receives name, whatever the QP's is.
    pub pd: PdId,
    /// The queue, in the host's numbers.
    pub queue: QueueId,
    /// Its first limit, looked at when receives are taken (the queue is empty yet); 0 is none.
    pub limit: u32,
}

/// An address handle: the engine's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AhId(pub u32);

/// Kinds of memory window: `ibv_mw_type`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MwType {
    /// Bound by `ibv_bind_mw`; opens to every QP of its protection domain.
    One = 1,
    /// Type 2B: bound by a posted work request; opens to the QP that it was bound on only.
    Two = 2,
}

/// The path to the peer: the part of `ibv_ah_attr` that RoCEv2 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's address: its GID as an IP address.
    pub dgid: IpAddr,
    /// Index of our own GID in the device's table.
    pub sgid_index: u8,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub tclass: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; also chooses the UDP source port where the port lets us.
    pub flow_label: u32,
}

/// `ibv_qp_attr` with its mask: what is `Some` is to be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to go to; `None` changes attributes in the current state.
    pub state: Option<QpState>,
    /// The state the caller believes the QP to be in.
    pub cur_state: Option<QpState>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// Index into the P_Key table; only 0 exists.
    pub pkey_index: Option<u16>,
    /// Port number; only 1 exists.
    pub port: Option<u8>,
    /// The path to the peer.
    pub av: Option<AddressVector>,
    /// Largest payload of a packet.
    pub path_mtu: Option<PathMtu>,
    /// The peer's QPN.
    pub dest_qpn: Option<Qpn>,
    /// UD: what a datagram must carry to be taken.
    pub qkey: Option<Qkey>,
    /// First PSN expected.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs, atomics and ATOMIC WRITEs that we may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// READs, atomics and ATOMIC WRITEs that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code (0 to 31) of the time a peer shall wait when we have no receive posted.
    pub min_rnr_timer: Option<u8>,
    /// Code (0 to 31): the ACK timeout is 4.096 us << code, but never less than the path needs; 0
    /// waits for ever.
    pub timeout: Option<u8>,
    /// Tries (0 to 7) after a timeout or a sequence error, each meaning just that many.
    pub retry_cnt: Option<u8>,
    /// Tries (0 to 6) after an RNR NAK; 7 is for ever.
    pub rnr_retry: Option<u8>,
}

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device's own addresses: the first entries of its GID table, by index. Entries come and
    /// go ([`Device::set_gid`](crate::Device::set_gid)); the others keep their index.
    pub gids: Vec<Option<IpAddr>>,
    /// The UDP source port of all packets, where the port cannot choose it for each flow. The
    /// ICRC covers it.
    pub source_port: Option<u16>,
    /// Largest path MTU that its link carries.
    pub active_mtu: PathMtu,
    /// Addresses of this machine that are not the device's own. What goes to these and to its own
    /// never leaves the machine, so that every path MTU is carried there.
    pub local_addrs: BTreeSet<IpAddr>,
    /// Seed of keys and QPNs: unpredictable in the daemon, fixed in a simulation.
    pub seed: u64,
    /// How long the requester waits, at least, before it probes for a lost tail.
    pub min_probe: Duration,
}

impl DeviceConfig {
    /// Whether an address is of this machine.
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        addr.is_loopback() || self.gids.contains(&Some(addr)) || self.local_addrs.contains(&addr)
    }
}

/// What `query_qp` tells.
#[derive(Clone, Debug)]
pub struct QpInfo {
    /// The state it is in.
    pub state: QpState,
    /// The attributes as they were set; `state` and `cur_state` are not among them.
    pub attr: QpAttr,
    /// What it was created with.
    pub init: QpInit,
    /// In SQD: work that had begun has not ended yet.
    pub sq_draining: bool,
    /// The PSN of the next new request packet.
    pub sq_psn: Psn,
    /// The PSN expected next.
    pub rq_psn: Psn,
}
