//! What the daemon answers.

use super::{
    AhHandle, CaptureStream, CmReply, CmRequest, CompChannelHandle, ContextHandle, CounterInfo,
    CqHandle, DeviceAttr, DeviceInfo, HistoryPage, MrHandle, MwHandle, PathPage, PdHandle,
    PortAttr, QpCaps, QpHandle, QpQueried, Request, ResourcePage, SrqAttr, SrqHandle, StatsPage,
};
#[cfg(doc)]
use crate::ring::{doorbell::DoorbellWriter, geometry::Geometry};
use serde::{Deserialize, Serialize};
use urxe_types::{AhId, Gid, Lkey, Qpn, Rkey};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request failed, and has changed nothing.
    Error(ControlError),
    /// The request did what it says; there is nothing more to tell.
    Done,
    /// Answer to [`Request::Hello`]. Comes with two descriptors, in this order: the session's
    /// memfd, with the doorbells at [`DOORBELL_OFFSET`](crate::ring::doorbell::DOORBELL_OFFSET) and
    /// rings elsewhere; and the eventfd to write to when a doorbell asks for a wake-up.
    Hello {
        /// How long the memfd may ever grow, in bytes: a program maps this much once. What lies
        /// beyond the present end must not be touched.
        memory_limit: u64,
    },
    /// Answer to [`Request::ListDevices`].
    Devices(Vec<DeviceInfo>),
    /// Answer to [`Request::ListCauses`]: each number with a sentence that a person can act on.
    Causes(Vec<(u32, String)>),
    /// Answer to [`Request::OpenDevice`]. Comes with one descriptor: the read end of the
    /// asynchronous event pipe.
    Context(ContextHandle),
    /// Answer to [`Request::QueryDevice`].
    Device(DeviceAttr),
    /// Answer to [`Request::QueryPort`].
    Port(PortAttr),
    /// Answer to [`Request::QueryGid`].
    Gid(Gid),
    /// Answer to [`Request::AllocPd`].
    Pd(PdHandle),
    /// Answer to [`Request::RegMr`].
    Mr {
        mr: MrHandle,
        /// Key for the program's own work requests.
        lkey: Lkey,
        /// Key for peers.
        rkey: Rkey,
    },
    /// Answer to [`Request::CreateCompChannel`]. Comes with one descriptor: the read end of the
    /// pipe.
    CompChannel(CompChannelHandle),
    /// Answer to [`Request::CreateCq`].
    Cq {
        cq: CqHandle,
        /// Completions it holds: what was asked for, or more.
        cqe: u32,
        /// Its ring, of shape [`Geometry::completion`](Geometry::completion).
        ring: RingLocation,
    },
    /// Answer to [`Request::ResizeCq`].
    CqResized {
        /// Completions it holds: what was asked for, or more.
        cqe: u32,
        /// Its new ring, with the unread completions from index 0 on.
        ring: RingLocation,
    },
    /// Answer to [`Request::CreateSrq`].
    Srq {
        srq: SrqHandle,
        /// Its number.
        srqn: u32,
        /// What it holds: what was asked for, or more.
        attr: SrqAttr,
        /// Its ring, of shape [`Geometry::recv`](Geometry::recv).
        ring: RingLocation,
    },
    /// Answer to [`Request::ModifySrq`].
    SrqModified {
        /// What it holds now.
        attr: SrqAttr,
        /// Its new ring, if the size was changed, with the posted receives from index 0 on.
        ring: Option<RingLocation>,
    },
    /// Answer to [`Request::QuerySrq`].
    SrqAttr(SrqAttr),
    /// Answer to [`Request::CreateAh`].
    Ah {
        ah: AhHandle,
        /// Its number in work requests (`ah_num`), never 0.
        ah_num: AhId,
    },
    /// Answer to [`Request::AllocMw`].
    Mw {
        mw: MwHandle,
        /// Its first rkey, which opens nothing.
        rkey: Rkey,
    },
    /// Answer to [`Request::CreateQp`].
    Qp(QpCreated),
    /// Answer to [`Request::QueryQp`].
    QpAttr(QpQueried),
    /// Answer to [`Request::ExplainFailure`]: in sentences, the cause with what to do, the peer,
    /// and what was seen of it where that matters.
    Reason(String),
    /// Answer to [`Request::Resources`].
    Resources(ResourcePage),
    /// Answer to [`Request::Paths`].
    Paths(PathPage),
    /// Answer to [`Request::Histories`].
    Histories(HistoryPage),
    /// Answer to [`Request::Stats`].
    Stats(StatsPage),
    /// Answer to [`Request::BeginCapture`].
    CaptureBegun {
        /// What the places of counters in records mean.
        counters: Vec<CounterInfo>,
    },
    /// Answer to [`Request::NextCaptureStream`]: the next stream, with one descriptor, a pipe from
    /// which records are read until the data path ends; or none at present.
    CaptureStream(Option<CaptureStream>),
    /// Answer to [`Request::Cm`].
    Cm(CmReply),
    /// Answer to [`Request::HostSlot`]. Comes with two descriptors, in this order: the slot's end
    /// of the link to the broker, for who runs the slot; and a connected socket, whose first
    /// request is to be [`Request::Hello`], for a session in it. When the last session has ended,
    /// so does the link.
    HostSlot {
        /// The number of the slot.
        slot: u8,
    },
}

impl Reply {
    /// The request that destroys the object that this one tells of, if the object is of no use
    /// without the descriptor that comes with the reply.
    pub(super) fn destroys_what_was_made(&self) -> Option<Request> {
        match *self {
            Reply::Context(context) => Some(Request::CloseDevice { context }),
            Reply::CompChannel(channel) => Some(Request::DestroyCompChannel { channel }),
            Reply::Cm(CmReply::Channel(channel)) => {
                Some(Request::Cm(CmRequest::DestroyChannel { channel }))
            }
            _ => None,
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// The error number that the kernel would give.
    pub errno: i32,
    /// What was wrong, in a sentence that names the parameter, its value and what was expected.
    pub message: String,
}

/// Where a ring lies in the session's memfd: the kernel's `mminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingLocation {
    /// Offset in bytes, a multiple of the page size.
    pub offset: u64,
    /// Length in bytes, a multiple of the page size.
    pub size: u32,
}

/// A QP was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCreated {
    pub qp: QpHandle,
    /// Its number on the wire.
    pub qpn: Qpn,
    /// What its queues hold: what was asked for, or more.
    pub caps: QpCaps,
    /// Its SQ, of shape [`Geometry::send`](Geometry::send).
    pub send_ring: RingLocation,
    /// Its RQ, of shape [`Geometry::recv`](Geometry::recv), unless it has an SRQ.
    pub recv_ring: Option<RingLocation>,
    /// Its doorbell: what to [`ring`](DoorbellWriter::ring) after posting sends.
    pub doorbell_slot: u32,
}
