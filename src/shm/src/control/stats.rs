//! Statistics, as [`Request::Stats`](super::Request::Stats) asks for them.

use super::Cursor;
use serde::{Deserialize, Serialize};
use urxe_types::QpState;

/// A counter: its name, and in a sentence what it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterInfo {
    /// Short name, in `snake_case`.
    pub name: String,
    /// What it counts.
    pub meaning: String,
}

/// Part of a device's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsPage {
    /// The device's own counters; only in the first page.
    pub device: Vec<(CounterInfo, u64)>,
    /// What the numbers of each QP count; only in the first page.
    pub qp_counters: Vec<CounterInfo>,
    /// QPs, by rising QPN.
    pub qps: Vec<QpStats>,
    /// Where the next page begins, if there are more QPs.
    pub next: Option<Cursor>,
}

/// Statistics of a QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpStats {
    /// Its number on the wire.
    pub qpn: u32,
    pub state: QpState,
    /// Name of the program that owns it.
    pub program: String,
    /// One number for each of [`StatsPage::qp_counters`].
    pub values: Vec<u64>,
}
