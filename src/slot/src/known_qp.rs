//! What is known of a QP when one asks what happened to it, also for a while after it has ended.

use crate::resources::failure;
use crate::session::Program;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use urxe_engine::{Happening, History, HistoryEntry, QpInfo, traffic};
use urxe_nic::{Nic, OwnerId, QpStatus};
use urxe_shm::control::{self, QpHistory};
use urxe_types::{Qpn, Traffic};

/// How many are kept of those that ended after they had failed.
const MOST_FAILED: usize = 64;

/// How many are kept of the others that ended.
const MOST_OTHERS: usize = 32;

/// A QP with what happened to it.
#[derive(Debug)]
pub(crate) struct KnownQp {
    qpn: Qpn,
    program: Program,
    info: QpInfo,
    history: History,
    /// What it has counted of ordinary traffic.
    traffic: Traffic,
    /// What it has counted, but for what is 0.
    counters: Vec<(&'static str, u64)>,
    /// Why it failed, in sentences.
    reason: Option<String>,
    /// When it ended, if it has.
    ended: Option<Instant>,
}

impl KnownQp {
    /// A QP that is there.
    pub(crate) fn of(
        nic: &Nic,
        programs: &BTreeMap<OwnerId, Program>,
        qpn: Qpn,
    ) -> Option<KnownQp> {
        let QpStatus { info, owner, .. } = nic.query_qp(qpn)?;
        let history = nic.device().qp_history(qpn)?.clone();
        let counters = nic.device().qp_counters(qpn)?;
        // HISTORY-012
        let failure = history.failure();
        let reason = failure.and_then(|(_, cause)| failure::reason(nic, qpn, cause as u32));
        let traffic = traffic(|counter| counters.get(counter));
        let counters = counters.iter().filter(|&(_, value, _)| value > 0);
        let counters = counters.map(|(name, value, _)| (name, value)).collect();
        let program = programs.get(&owner)?.clone();
        Some(KnownQp { qpn, program, info, history, traffic, counters, reason, ended: None })
    }

    /// The same of one that ends now.
    pub(crate) fn that_ends(self, now: Instant) -> KnownQp {
        KnownQp { ended: Some(now), ..self }
    }

    /// Whose it is or was.
    pub(crate) fn uid(&self) -> u32 {
        self.program.uid
    }

    /// Its number on the wire.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Whether it failed of itself.
    pub(crate) fn has_failed(&self) -> bool {
        self.history.failure().is_some()
    }

    /// What it has counted of ordinary traffic.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The same for a program that asks.
    pub(crate) fn shown(&self, now: Instant) -> QpHistory {
        let ago = |at: Instant| now.saturating_duration_since(at);
        let failed = self.history.failed_request().map(|failed| control::FailedRequest {
            at: ago(failed.at),
            opcode: failed.opcode as u32,
            wr_id: failed.wr_id,
            length: failed.length,
            status: failed.status as u32,
            vendor_err: failed.vendor_err,
        });
        let entry = |entry: HistoryEntry| control::HistoryEntry {
            at: ago(entry.at),
            span: entry.span(),
            times: entry.times,
            traffic: entry.traffic,
            what: match entry.what {
                Happening::Modified(state) => control::Happening::Modified(state),
                Happening::Failed(state, cause) => {
                    control::Happening::Failed { state, cause: cause as u32 }
                }
                Happening::Heard => control::Happening::Heard,
                Happening::Counted(counter) => control::Happening::Counted(counter.name().into()),
            },
        };
        let counters = self.counters.iter();
        QpHistory {
            qpn: self.qpn.get(),
            program: self.program.name.to_string(),
            uid: self.program.uid,
            qp_type: self.info.init.qp_type,
            state: self.info.state,
            attr: self.info.attr.clone(),
            gone: self.ended.map(ago),
            heard: self.history.heard().map(ago),
            entries: self.history.entries().map(entry).collect(),
            left_out: self.history.left_out(),
            failed,
            reason: self.reason.clone(),
            counters: counters.map(|&(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}

/// The QPs that ended last.
#[derive(Debug, Default)]
pub(crate) struct EndedQps {
    failed: VecDeque<KnownQp>,
    others: VecDeque<KnownQp>,
}

impl EndedQps {
    /// Keeps one that has ended, in the place of the one that ended first if there is no room.
    pub(crate) fn keep(&mut self, qp: KnownQp) {
        // HISTORY-011
        let (kept, most) = match qp.has_failed() {
            true => (&mut self.failed, MOST_FAILED),
            false => (&mut self.others, MOST_OTHERS),
        };
        if kept.len() >= most {
            kept.pop_front();
        }
        kept.push_back(qp);
    }

    /// Those that had failed, the one that ended first first.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &KnownQp> {
        self.failed.iter()
    }

    /// All of them, in no particular order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &KnownQp> {
        self.others.iter().chain(&self.failed)
    }
}
