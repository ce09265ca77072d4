//! What exists on a device, as [`Request::Resources`](super::Request::Resources) asks for it.

use super::{CmPortSpace, Cursor, WhyCopied};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use urxe_types::{Access, Gid, MwType, QpState, QpType};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResourceKind {
    /// Queue pairs, by QPN.
    Qp,
    Cq,
    Srq,
    /// Memory registrations, by key.
    Mr,
    /// Memory windows, by rkey.
    Mw,
    /// Ids of the connection manager that are bound to the device, or listen on it among others.
    CmId,
}

/// Objects of one kind, or part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcePage {
    /// By rising number within each part of the device.
    pub resources: Vec<Resource>,
    /// Where the next page begins, if there is more.
    pub next: Option<Cursor>,
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// Its number on this device: QPN, key, or the device's own count.
    pub number: u32,
    /// Name and process id of the program that owns it.
    pub program: String,
    /// The user that it runs as.
    pub uid: u32,
    /// The number of its protection domain; 0 for a CQ or an id, which are in none.
    pub pd: u32,
    /// What only its kind has.
    pub detail: ResourceDetail,
}

/// What only one kind of object has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResourceDetail {
    Qp {
        /// Its transport.
        qp_type: QpType,
        state: QpState,
        send_cq: u32,
        recv_cq: u32,
        /// The SRQ that it takes receives from.
        srq: Option<u32>,
        /// Its peer's address and QPN, if it is connected.
        peer: Option<(Gid, u32)>,
        /// The number of the path that it goes, as in [`PathState`](super::PathState), if it is a
        /// connected RC QP.
        path: Option<u32>,
        /// The PSN of the next new request packet.
        sq_psn: u32,
        /// The PSN expected next.
        rq_psn: u32,
        /// The number of the cause of its last failure.
        cause: Option<u32>,
    },
    Cq {
        /// Completions it holds.
        cqe: u32,
        /// Completions in it that the program has not read.
        unread: u32,
        /// QPs that use it.
        qps: u32,
        /// It was overrun, and takes no more.
        failed: bool,
    },
    Srq {
        /// Work requests it holds.
        max_wr: u32,
        /// Work requests posted and not taken.
        posted: u32,
        /// Its limit; 0 if disarmed.
        limit: u32,
        /// QPs that use it.
        qps: u32,
    },
    Mr {
        /// Address of its first byte, as work requests name it.
        iova: u64,
        /// Bytes.
        length: u64,
        /// What is allowed.
        access: Access,
        /// Why it is reached by system calls; none if by loads and stores.
        copied: Option<WhyCopied>,
        /// That is so in its first and its last page only.
        has_mapped_pages: bool,
    },
    Mw {
        /// Its kind.
        mw_type: MwType,
        /// What it opens; `None` if it is bound to nothing.
        bound: Option<BoundTo>,
    },
    /// An id of the connection manager.
    CmId {
        space: CmPortSpace,
        /// The transport of its QP.
        qp_type: QpType,
        /// How far it is.
        state: CmIdState,
        /// The QP that its program named.
        qpn: Option<u32>,
        /// Its own address, without the interface of a link-local one; may be the wildcard.
        local: Option<SocketAddr>,
        /// The peer's.
        peer: Option<SocketAddr>,
    },
}

/// How far an id of the connection manager is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CmIdState {
    /// It has an address.
    Bound,
    /// It knows its device and its peer's address.
    AddrResolved,
    /// It knows the path.
    RouteResolved,
    /// It listens.
    Listening,
    /// It is connected, or is to be.
    Connected,
    /// Its connection has come to nothing or has ended, or its question is answered.
    Over,
}

/// What a memory window opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundTo {
    /// Key of the MR.
    pub mr: u32,
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// What the peer may do.
    pub access: Access,
    /// The only QP that it opens to; a window of type 1 opens to all.
    pub qpn: Option<u32>,
}
