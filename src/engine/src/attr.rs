//! What a QP is made with and what `modify_qp` may change.

use crate::ids::{CqId, PdId, QueueId, ShareId, SrqId};
use crate::tuning::Tuning;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use urxe_types::{PathMtu, Psn, QpAttr, QpState, QpType, Slot};
use urxe_wire::{ROCE_PORT, SourcePorts};

/// Where a QP takes its receives from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvSource {
    /// A receive queue of its own, in the host's numbers.
    Own(QueueId),
    Shared(SrqId),
}

/// What a QP is created with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Its transport service.
    pub qp_type: QpType,
    pub pd: PdId,
    /// Where its send completions go.
    pub send_cq: CqId,
    /// Where its receive completions go.
    pub recv_cq: CqId,
    /// Its send queue, in the host's numbers.
    pub send_queue: QueueId,
    /// Where it receives from.
    pub recv: RecvSource,
    /// Whose it is, in turns to send.
    pub share: ShareId,
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

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device's own addresses: the first entries of its GID table, by index. Entries come and
    /// go ([`Device::set_gid`](crate::Device::set_gid)); the others keep their index.
    pub gids: Vec<Option<IpAddr>>,
    /// The UDP source ports that packets can leave from. The ICRC covers it.
    pub source_ports: SourcePorts,
    /// Largest path MTU that its link carries.
    pub active_mtu: PathMtu,
    /// Addresses of this machine that are not the device's own. What goes to these and to its own
    /// never leaves the machine, so that every path MTU is carried there.
    pub local_addrs: BTreeSet<IpAddr>,
    /// Addresses from which nobody sends but this device and others that are driven together with
    /// it, its own among them: packets between these leave from UDP port 4791, which nobody else
    /// has there, and what comes from one of them by another port is forged.
    pub guarded_addrs: BTreeSet<IpAddr>,
    /// Which QPNs are its own: those of one slot of a device of several.
    pub slot: Slot,
    /// Seed of keys and QPNs: unpredictable in the daemon, fixed in a simulation.
    pub seed: u64,
    /// What an answer may take longer than usual, at least, before the requester probes for a lost
    /// tail.
    pub min_probe: Duration,
    /// How it behaves on the wire.
    pub tuning: Tuning,
}

impl DeviceConfig {
    /// Whether an address is of this machine.
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        addr.is_loopback() || self.gids.contains(&Some(addr)) || self.local_addrs.contains(&addr)
    }

    /// The UDP source port of a flow to this address that would have the port `wanted`.
    pub(crate) fn source_port(&self, dst: IpAddr, wanted: u16) -> u16 {
        // HOSTILE-010: nothing spreads flows within a machine. A group may have members here.
        match dst.is_multicast() || self.guarded_addrs.contains(&dst) {
            true => ROCE_PORT,
            false => self.source_ports.of_flow(wanted),
        }
    }
}

/// What `query_qp` tells.
#[derive(Clone, Debug)]
pub struct QpInfo {
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
    /// The place of its path among the [paths](crate::Device::paths), if it is RC and knows its
    /// peer.
    pub path: Option<u32>,
}
