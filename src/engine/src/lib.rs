//! The RoCEv2 transports, and nothing else: requester, responder and completer of reliably (RC)
//! and unreliably (UC) connected QPs and of datagram QPs (UD).
//!
//! The engine does no I/O. Time, bytes, memory, queues and randomness are arguments: packets come
//! in as byte slices and go out into a [`TxBatch`](urxe_wire::batch::TxBatch); work requests,
//! program memory and completions are behind the [`Host`] trait; `now` is told with each call. So
//! the same engine runs in the daemon and in a simulated network, and a run of the latter can be
//! repeated to the bit.
//!
//! # How to drive it
//!
//! [`Device`] says in which order to call what. In short: hand in every datagram of a receive
//! batch, then [`end_of_batch`](Device::end_of_batch); tell of doorbells and of timers that ran
//! out; then let [`poll_transmit`](Device::poll_transmit) fill batches until it has no more.
//!
//! # Where things are
//!
//! `device/` has the tables and the QPs of a device: `device/verbs.rs` makes and changes objects,
//! `device/data_path.rs` takes packets in, puts packets out, and has the one way into a QP. Beside
//! them is one file for each table (SRQs, address handles, multicast groups, CQs) and for QP1,
//! which belongs to the device itself; the connection manager, which talks through it, is a crate
//! of its own. `memory/` knows what a key opens.
//!
//! `qp/` is one QP: `qp/common.rs` is what does not depend on the service, `qp/send_queue/` the
//! work requests under way, and the services are `qp/rc/`, `qp/uc.rs` and `qp/ud.rs`. In `qp/rc/`,
//! the requester turns work requests into packets, the responder executes the peer's requests and
//! answers them, and the completer turns answers into completions; none of them knows another. What
//! was sent and what became of it is the send queue's score (`qp/send_queue/scoreboard.rs`), by
//! which single packets are repeated; what comes early waits in `qp/rc/responder/early.rs`.
//! `qp/message.rs` is what a request on a connection must pass first, and `qp/receive.rs` what a
//! message is put into. `qp/transport.rs` brings what happens to the service, and sees to
//! failures. `qp/state.rs` and `qp/modify.rs` are `ibv_modify_qp`, which resolves attributes to
//! what the service works with (`qp/parameters.rs`). `qp/history.rs` remembers what was out of the
//! ordinary.
//!
//! `path/` is what QPs with the same pair of addresses and traffic class share: round trip, what
//! the peer was seen to do, and in each direction a lane, whose window, and rate if it has one, say
//! how much may be under way. QPs that are held wait there and take turns. `path/congestion/` makes
//! window and rate of marks, notifications, delay and loss. `qp/notification.rs` sends and takes
//! CNPs, and `device/capabilities.rs` asks peers what they understand beside the standard.
//! `tuning.rs` has what can be chosen of all this, [`limits`] what cannot.
//!
//! # What is trusted
//!
//! Nothing that comes from outside. A packet is checked before it changes anything, and so is a
//! work request; what is dropped is counted under its reason ([`Counter`]), and what fails says
//! why ([`Cause`]).

#![forbid(unsafe_code)]

#[macro_use]
pub mod seeded;

mod attr;
mod cause;
mod counters;
mod device;
mod flow;
mod host;
mod ids;
pub mod limits;
mod memory;
mod path;
mod qp;
mod table;
mod tuning;

pub use attr::{DeviceConfig, QpInfo, QpInit, RecvSource, SrqInit};
pub use cause::Cause;
pub use counters::{Counter, Counters};
pub use device::{
    AhError, CreateQpError, CreateSrqError, DestroySrqError, Device, McastError, ModifySrqError,
    Repeat, Sender, SrqInfo,
};
pub use flow::FlowError;
pub use host::{AsyncEvent, AtomicOp, CqOverrun, Host, MemoryFault, Taken};
pub use ids::{CqId, PdId, QueueId, RegionId, ShareId, SrqId};
pub use memory::{AllocMwError, DeregMrError, MrKeys, MrSpec, MwBinding, MwInfo, RegMrError};
pub use path::{CutCause, Held, LaneInfo, PathInfo, RoundTripInfo};
pub use qp::{
    Attribute, FailedRequest, Happening, History, HistoryEntry, MAX_HISTORY_ENTRIES, ModifyQpError,
    traffic,
};
pub use tuning::{
    CongestionControl, CongestionParameters, EarlyLimits, Ecn, RateParameters, Tuning, WireForm,
};
