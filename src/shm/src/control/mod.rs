//! Requests of a program and replies of the daemon.
//!
//! One request, one reply, in order; a request that fails is answered by [`Reply::Error`] and
//! has changed nothing. All limits, states and rights are the daemon's to judge, so that every
//! kind of client behaves alike.
//!
//! Objects are named by handles. A handle means something only in the session that got it, and
//! **no number is used twice in one session** for the same kind of object: a handle kept too long
//! names nothing, and never something else. When the connection ends, the daemon frees
//! everything that the session made.
//!
//! Any request may be answered by an error with one of these numbers, besides those that it
//! names itself: `EPROTO` (a reply's worth of nonsense: wrong descriptors, or not yet
//! [`Request::Hello`]), `ENOENT` (no such handle in this session), `ENOMEM` (the session's
//! quota, or the device's limit for this kind of object, is used up).
//!
//! [`channel`]: the socket that messages travel on. [`event`]: what the daemon says unasked,
//! through pipes.

mod attr;
mod capture;
pub mod channel;
pub mod closing;
mod cm;
mod codec;
mod cursor;
pub mod errnos;
pub mod event;
mod handle;
mod history;
mod on_exec;
mod path;
pub mod peer;
mod rate;
mod reply;
mod request;
mod resource;
mod socket;
pub(crate) mod socket_path;
mod stats;
#[cfg(test)]
mod tests;

pub use attr::{DeviceAttr, DeviceInfo, OdpCaps, PortAttr, QpCaps, QpQueried, SrqAttr};
pub use capture::{CaptureSpec, CaptureStream, MAX_CAPTURE_ITEMS, MAX_CAPTURE_NAME};
pub use cm::{
    CM_MAX_PRIVATE_DATA, CmConnParam, CmEvent, CmEventKind, CmEventParam, CmOption, CmPath,
    CmPortSpace, CmReply, CmRequest, CmRoute, CmSubject, CmUdParam,
};
pub use codec::{DecodeError, TooLong, decode, encode};
pub use cursor::Cursor;
pub use handle::{
    AhHandle, CmChannelHandle, CmIdHandle, CmMulticastHandle, CompChannelHandle, ContextHandle,
    CqHandle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle,
};
pub use history::{FailedRequest, Happening, HistoryEntry, HistoryPage, HistorySubject, QpHistory};
pub use on_exec::close_on_exec;
pub use path::{LaneState, PathCut, PathHold, PathPage, PathState, RoundTripState};
pub use rate::LinkRate;
pub use reply::{ControlError, QpCreated, Reply, RingLocation};
pub use request::{Backing, Request, WhyCopied};
pub use resource::{BoundTo, CmIdState, Resource, ResourceDetail, ResourceKind, ResourcePage};
pub use stats::{CounterInfo, QpStats, StatsPage};

/// Version of everything this crate lays down: messages, rings and doorbells. It stands, outside
/// of the encoding, at the head of each message; two sides with different versions do not talk.
/// What broker and slots say to each other is part of it: programs that run their own slot, and
/// workers after an upgrade of the daemon, are not of the same build.
pub const PROTOCOL_VERSION: u16 = 12;

/// Longest message in bytes. The longest that exists is a page of statistics, with a name and a
/// meaning for each counter; 64 KiB hold several hundred, and are well below the 208 KiB that a
/// Unix socket takes at once by default.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Most file descriptors that travel with one message: [`Reply::Hello`] and [`Reply::HostSlot`]
/// have two, everything else between program and daemon at most one; within the daemon the sockets
/// of an address are three.
pub const MAX_FDS: usize = 3;
