//! What the daemon says unasked: records in a pipe.
//!
//! Completion channels and the asynchronous events of a context are pipes whose read end the
//! program holds, so that `read`, `poll` and `O_NONBLOCK` mean what they always do. Records are
//! shorter than `PIPE_BUF`, so each is written whole or not at all; whoever reads multiples of
//! [`RECORD_LEN`] reads whole ones.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One event.
///
/// The kernel hands a program only the first and the third field. The second is for the reader
/// in between: if the object is no more, the record is stale and must be dropped unseen.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct EventRecord {
    /// The `user_handle` the object was made with; the port's number in a port event.
    pub user_handle: u64,
    /// The object's handle, which no other object of its kind ever had or will have in this
    /// session; the context's in a port event.
    pub object: u64,
    /// [`COMPLETION`] in a completion channel, else `ibv_event_type`.
    pub kind: u32,
    /// Not used.
    pub reserved: u32,
}

/// Length of a record in bytes.
pub const RECORD_LEN: usize = 24;
const _: () = assert!(size_of::<EventRecord>() == RECORD_LEN);

impl EventRecord {
    /// The record as it is written.
    pub fn to_bytes(self) -> [u8; RECORD_LEN] {
        zerocopy::transmute!(self)
    }

    /// The record that was read.
    pub fn from_bytes(bytes: [u8; RECORD_LEN]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

/// [`EventRecord::kind`]: a CQ that was armed has a completion.
pub const COMPLETION: u32 = u32::MAX;
/// [`EventRecord::kind`]: `IBV_EVENT_CQ_ERR`, completions were lost because the CQ was full.
pub const CQ_ERR: u32 = 0;
/// [`EventRecord::kind`]: `IBV_EVENT_QP_FATAL`.
pub const QP_FATAL: u32 = 1;
/// [`EventRecord::kind`]: `IBV_EVENT_QP_REQ_ERR`, an invalid request arrived.
pub const QP_REQ_ERR: u32 = 2;
/// [`EventRecord::kind`]: `IBV_EVENT_QP_ACCESS_ERR`, a request violated access rights.
pub const QP_ACCESS_ERR: u32 = 3;
/// [`EventRecord::kind`]: `IBV_EVENT_COMM_EST`, a packet arrived on a QP still in RTR.
pub const COMM_EST: u32 = 4;
/// [`EventRecord::kind`]: `IBV_EVENT_SQ_DRAINED`.
pub const SQ_DRAINED: u32 = 5;
/// [`EventRecord::kind`]: `IBV_EVENT_DEVICE_FATAL`. No daemon writes it: it is what a program is
/// told when its daemon is gone.
pub const DEVICE_FATAL: u32 = 8;
/// [`EventRecord::kind`]: `IBV_EVENT_PORT_ACTIVE`.
pub const PORT_ACTIVE: u32 = 9;
/// [`EventRecord::kind`]: `IBV_EVENT_PORT_ERR`.
pub const PORT_ERR: u32 = 10;
/// [`EventRecord::kind`]: `IBV_EVENT_SRQ_ERR`, the SRQ cannot be read any more.
pub const SRQ_ERR: u32 = 14;
/// [`EventRecord::kind`]: `IBV_EVENT_SRQ_LIMIT_REACHED`.
pub const SRQ_LIMIT: u32 = 15;
/// [`EventRecord::kind`]: `IBV_EVENT_QP_LAST_WQE_REACHED`.
pub const LAST_WQE_REACHED: u32 = 16;
/// [`EventRecord::kind`]: `IBV_EVENT_GID_CHANGE`.
pub const GID_CHANGE: u32 = 18;
