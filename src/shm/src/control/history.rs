//! What happened to QPs, as [`Request::Histories`](super::Request::Histories) asks for it.
//!
//! Times are told as how long ago they were when the daemon answered.

use super::Cursor;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use urxe_types::{QpAttr, QpState, QpType, Traffic};

/// Whose histories are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistorySubject {
    /// Of the QP of this number, and of those that had it and ended lately.
    Qp(u32),
    /// Of the QPs that failed last, whether they are there or have ended lately.
    Failed,
}

/// Histories of QPs, or part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// First those of parts of the device that have ended. Then by rising QPN within each part; of
    /// one QPN the one that ended first comes first.
    pub histories: Vec<QpHistory>,
    /// Where the next page begins, if there is more.
    pub next: Option<Cursor>,
}

/// What happened to a QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpHistory {
    /// Its number on the wire.
    pub qpn: u32,
    /// Name and process id of its program.
    pub program: String,
    /// The user that it runs as.
    pub uid: u32,
    /// Its transport.
    pub qp_type: QpType,
    /// Its state, or the last that it had.
    pub state: QpState,
    /// Its attributes, or the last that it had.
    pub attr: QpAttr,
    /// When it was destroyed, or ended with what served it; `None`: it is still there.
    pub gone: Option<Duration>,
    /// When the last packet came for it; `None`: never.
    pub heard: Option<Duration>,
    /// What happened, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Entries that were not kept, between the oldest and the newest.
    pub left_out: u32,
    /// The first work request that ended badly, and was not only flushed.
    pub failed: Option<FailedRequest>,
    /// Why it failed, if it has: what to do, the peer, and what was seen of it.
    pub reason: Option<String>,
    /// What it has counted: the names, as in [`StatsPage`](super::StatsPage), of what is not 0.
    pub counters: Vec<(String, u64)>,
}

/// Something that happened to a QP, once or again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When it happened first.
    pub at: Duration,
    /// How long after the first time the last one was.
    pub span: Duration,
    /// How often it happened.
    pub times: u32,
    /// What happened.
    pub what: Happening,
    /// What had been counted of the QP when it happened first.
    pub traffic: Traffic,
}

/// What happened to a QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Happening {
    /// Its program took it to this state.
    Modified(QpState),
    /// It failed, and went to this state.
    Failed {
        /// ERR or SQE.
        state: QpState,
        /// The number of the cause.
        cause: u32,
    },
    /// The first packet came for it.
    Heard,
    /// This was counted: the name of its counter.
    Counted(String),
    /// The part of the daemon that served it ended, and the QP with it: how, as a sentence without
    /// its end.
    SlotEnded(String),
}

/// A work request that ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRequest {
    /// When.
    pub at: Duration,
    /// Its number in `ibv_wc_opcode`.
    pub opcode: u32,
    /// The program's own number of it.
    pub wr_id: u64,
    /// Its bytes, if it was a send.
    pub length: u32,
    /// Its number in `ibv_wc_status`.
    pub status: u32,
    /// The number of its cause.
    pub vendor_err: u32,
}
