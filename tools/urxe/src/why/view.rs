//! The history of a QP as text and as JSON.

use crate::units;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::{Cause, Counter, traffic};
use urxe_shm::control::{FailedRequest, Happening, HistoryEntry, QpHistory};
use urxe_types::{Posted, Traffic, WcOpcode, WcStatus};

/// Everything that happened to some QPs.
#[derive(Serialize)]
pub(super) struct Histories {
    pub(super) histories: Vec<HistoryView>,
}

/// The same, of which text shows a line or two each.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Failures {
    pub(super) histories: Histories,
}

/// What happened to one QP.
#[derive(Serialize)]
pub(super) struct HistoryView {
    device: String,
    qpn: String,
    program: String,
    uid: u32,
    r#type: &'static str,
    /// The last, if it has ended.
    state: &'static str,
    peer: Option<IpAddr>,
    peer_qpn: Option<String>,
    path_mtu: Option<u32>,
    /// `None` where it never runs out.
    ack_timeout_ms: Option<f64>,
    retry_cnt: Option<u8>,
    rnr_retry: Option<u8>,
    /// How long ago it was destroyed, or ended with what served it; `None`: it is there.
    destroyed_s_ago: Option<f64>,
    /// How long ago the last packet came for it; `None`: never.
    heard_s_ago: Option<f64>,
    /// How long ago the first of the events was.
    began_s_ago: f64,
    events: Vec<EventView>,
    /// Since the last of the events.
    traffic_since: TrafficView,
    /// Events that were not kept, between the oldest and the newest.
    left_out: u32,
    /// The first work request that failed.
    failed: Option<FailedView>,
    /// How long ago it failed.
    failed_s_ago: Option<f64>,
    /// Why, and what to do.
    reason: Option<String>,
    /// What it has counted, but for what is 0.
    counters: BTreeMap<String, u64>,
}

/// Something that happened.
#[derive(Serialize)]
struct EventView {
    /// Since the first event.
    at_s: f64,
    /// How often.
    times: u32,
    /// From the first time to the last.
    span_s: f64,
    /// `modified`, `failed`, `heard`, `slot_ended`, or the name of a counter.
    event: String,
    /// The state that it went to.
    state: Option<&'static str>,
    /// What it means.
    meaning: String,
    /// Since the event before.
    traffic: TrafficView,
}

/// The traffic of some time.
#[derive(Serialize)]
#[serde(transparent)]
struct TrafficView(Traffic);

impl TrafficView {
    fn is_none(&self) -> bool {
        self.0 == Traffic::default()
    }
}

/// What a QP has counted in all.
fn total(history: &QpHistory) -> Traffic {
    let counted = |counter: Counter| {
        let found = history.counters.iter().find(|(name, _)| name == counter.name());
        found.map_or(0, |&(_, value)| value)
    };
    traffic(counted)
}

/// A work request that failed.
#[derive(Serialize)]
struct FailedView {
    /// As in `ibv_wc_opcode`.
    opcode: &'static str,
    wr_id: u64,
    length: u32,
    status: &'static str,
    vendor_err: u32,
}

impl HistoryView {
    /// One of a device.
    pub(super) fn new(device: &str, history: &QpHistory) -> HistoryView {
        let began = history.entries.first().map_or(Duration::ZERO, |entry| entry.at);
        let last_of = |is_meant: fn(&Happening) -> bool| {
            history.entries.iter().rev().find(|entry| is_meant(&entry.what))
        };
        let failed = last_of(|what| matches!(what, Happening::Failed { .. }));
        let failed = failed.or_else(|| last_of(|what| matches!(what, Happening::SlotEnded(_))));
        let seconds = |time: Duration| time.as_secs_f64();
        let attr = &history.attr;
        let counted = history.entries.iter().map(|entry| entry.traffic);
        let before: Vec<Traffic> = std::iter::once(Traffic::default()).chain(counted).collect();
        let events = history.entries.iter().zip(&before);
        let last = before.last().copied().unwrap_or_default();
        HistoryView {
            device: device.to_owned(),
            qpn: hex(history.qpn),
            program: history.program.clone(),
            uid: history.uid,
            r#type: history.qp_type.name(),
            state: history.state.name(),
            peer: attr.av.map(|av| av.dgid),
            peer_qpn: attr.dest_qpn.map(|qpn| hex(qpn.get())),
            path_mtu: attr.path_mtu.map(|mtu| mtu.bytes() as u32),
            ack_timeout_ms: attr
                .timeout
                .and_then(|code| urxe_types::TimeCode::new(code).ack_timeout())
                .map(|timeout| seconds(timeout) * 1e3),
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            destroyed_s_ago: history.gone.map(seconds),
            heard_s_ago: history.heard.map(seconds),
            began_s_ago: seconds(began),
            events: events.map(|(entry, before)| EventView::new(began, entry, before)).collect(),
            traffic_since: TrafficView(total(history).since(&last)),
            left_out: history.left_out,
            failed: history.failed.as_ref().map(FailedView::new),
            failed_s_ago: failed.map(|entry| seconds(entry.at)),
            reason: history.reason.clone(),
            counters: history.counters.iter().cloned().collect(),
        }
    }

    fn has_lost_its_slot(&self) -> bool {
        self.events.last().is_some_and(|event| event.event == "slot_ended")
    }

    /// Which of two failed first.
    pub(super) fn failed_before(&self, other: &HistoryView) -> Ordering {
        let ago = |history: &HistoryView| history.failed_s_ago.unwrap_or(f64::INFINITY);
        ago(other).total_cmp(&ago(self))
    }
}

impl EventView {
    fn new(began: Duration, entry: &HistoryEntry, before: &Traffic) -> EventView {
        let (event, state, meaning) = match &entry.what {
            Happening::Modified(state) => {
                ("modified", Some(state.name()), "Its program took it there.".to_owned())
            }
            Happening::Failed { state, cause } => {
                let cause = Cause::from_number(*cause);
                let text = cause.map_or("The cause is unknown here.", Cause::text);
                ("failed", Some(state.name()), text.to_owned())
            }
            Happening::Heard => ("heard", None, "The first packet came for it.".to_owned()),
            Happening::SlotEnded(how) => ("slot_ended", None, how.clone()),
            Happening::Counted(name) => {
                let counter = Counter::ALL.iter().find(|counter| counter.name() == name);
                let meaning = counter.map_or("", |counter| counter.meaning());
                (name.as_str(), None, meaning.to_owned())
            }
        };
        EventView {
            at_s: began.saturating_sub(entry.at).as_secs_f64(),
            times: entry.times,
            span_s: entry.span.as_secs_f64(),
            event: event.to_owned(),
            state,
            meaning,
            traffic: TrafficView(entry.traffic.since(before)),
        }
    }
}

impl FailedView {
    fn new(failed: &FailedRequest) -> FailedView {
        FailedView {
            opcode: WcOpcode::from_raw(failed.opcode).map_or("unknown", opcode_name),
            wr_id: failed.wr_id,
            length: failed.length,
            status: WcStatus::from_raw(failed.status).name(),
            vendor_err: failed.vendor_err,
        }
    }
}

/// The name in `ibv_wc_opcode`.
const fn opcode_name(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "IBV_WC_SEND",
        WcOpcode::RdmaWrite => "IBV_WC_RDMA_WRITE",
        WcOpcode::RdmaRead => "IBV_WC_RDMA_READ",
        WcOpcode::CompareSwap => "IBV_WC_COMP_SWAP",
        WcOpcode::FetchAdd => "IBV_WC_FETCH_ADD",
        WcOpcode::BindMw => "IBV_WC_BIND_MW",
        WcOpcode::LocalInvalidate => "IBV_WC_LOCAL_INV",
        WcOpcode::Flush => "IBV_WC_FLUSH",
        WcOpcode::AtomicWrite => "IBV_WC_ATOMIC_WRITE",
        WcOpcode::Recv => "IBV_WC_RECV",
        WcOpcode::RecvRdmaWithImm => "IBV_WC_RECV_RDMA_WITH_IMM",
    }
}

impl fmt::Display for HistoryView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HistoryView { device, qpn, program, r#type, state, .. } = self;
        write!(f, "QP {qpn} on {device}, {type} of {program}: ")?;
        match self.destroyed_s_ago {
            Some(ago) if self.has_lost_its_slot() => {
                writeln!(f, "ended {} ago with what served it, in {state}", seconds(ago))?;
            }
            Some(ago) => writeln!(f, "destroyed {} ago, in {state}", seconds(ago))?,
            None => writeln!(f, "in {state}")?,
        }
        if let (Some(peer), Some(peer_qpn)) = (self.peer, &self.peer_qpn) {
            write!(f, "  to QP {peer_qpn} at {peer}")?;
            if let Some(mtu) = self.path_mtu {
                write!(f, ", path MTU {mtu}")?;
            }
            if let Some(retries) = self.retry_cnt {
                let timeout = self.ack_timeout_ms.map(|ms| seconds(ms / 1e3));
                let timeout = timeout.unwrap_or_else(|| "none".to_owned());
                write!(f, ", ACK timeout {timeout}, retry_cnt {retries}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "\n  {} ago:", seconds(self.began_s_ago))?;
        for (index, event) in self.events.iter().enumerate() {
            if index > 0 && self.left_out > 0 && index == self.events.len() / 2 {
                writeln!(
                    f,
                    "               ({} more, not kept)",
                    units::count(self.left_out.into())
                )?;
            }
            if !event.traffic.is_none() {
                writeln!(f, "  {INDENT}{}", event.traffic)?;
            }
            writeln!(f, "  {event}")?;
        }
        if !self.traffic_since.is_none() {
            writeln!(f, "  {INDENT}{}", self.traffic_since)?;
        }
        if let Some(failed) = &self.failed {
            let FailedView { opcode, wr_id, length, status, vendor_err } = failed;
            writeln!(
                f,
                "\n  First failed: {opcode} with wr_id {wr_id}, {length} bytes: {status}, \
                 vendor_err {vendor_err:#x}"
            )?;
        }
        match &self.reason {
            Some(reason) if self.failed.is_none() => writeln!(f, "\n  Why: {reason}")?,
            Some(reason) => writeln!(f, "  Why: {reason}")?,
            None => writeln!(f, "\n  It has not failed.")?,
        }
        match (self.heard_s_ago, self.failed_s_ago) {
            (None, _) => writeln!(f, "  No packet ever came for it."),
            (Some(heard), Some(failed)) if heard > failed => {
                writeln!(f, "  The last packet came {} before that.", seconds(heard - failed))
            }
            (Some(heard), _) => writeln!(f, "  The last packet came {} ago.", seconds(heard)),
        }
    }
}

/// So many of something that has a name for one and a name for more, if there are any.
fn counted((count, one, more): (u64, &str, &str)) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{} {more}", units::count(count))),
    }
}

/// As far as the time of an event goes.
const INDENT: &str = "              ";

impl fmt::Display for TrafficView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Posted { sends, writes, reads, atomics, flushes, local } = self.0.posted;
        let posted = [
            (sends, "SEND", "SENDs"),
            (writes, "WRITE", "WRITEs"),
            (reads, "READ", "READs"),
            (atomics, "atomic", "atomics"),
            (flushes, "FLUSH", "FLUSHes"),
            (local, "bind or local invalidation", "binds or local invalidations"),
        ];
        let mut told: Vec<String> = posted.into_iter().filter_map(counted).collect();
        if let Some(last) = told.last_mut() {
            last.push_str(" posted");
        }
        let traffic = [
            (self.0.sent_messages, "work request done", "work requests done"),
            (self.0.received_messages, "message received", "messages received"),
            (self.0.sent_packets, "packet sent", "packets sent"),
            (self.0.received_packets, "packet received", "packets received"),
        ];
        told.extend(traffic.into_iter().filter_map(counted));
        write!(f, "({})", told.join(", "))
    }
}

impl fmt::Display for EventView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:>11}  ", seconds(self.at_s))?;
        match (self.event.as_str(), self.state) {
            ("modified", Some(state)) => return write!(f, "its program took it to {state}"),
            // The reason stands at the end.
            ("failed", Some(state)) => return write!(f, "it failed, and went to {state}"),
            ("slot_ended", _) => return write!(f, "it ended, because {}", self.meaning),
            (event, _) => write!(f, "{event}")?,
        }
        if self.times > 1 {
            write!(f, ", {} times", units::count(self.times.into()))?;
            if self.span_s > 0.0 {
                write!(f, " in {}", seconds(self.span_s))?;
            }
        }
        write!(f, ": {}", self.meaning)
    }
}

impl fmt::Display for Histories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.histories.is_empty() {
            return writeln!(f, "{NONE_FAILED}");
        }
        for (index, history) in self.histories.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            history.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let histories = &self.histories.histories;
        if histories.is_empty() {
            return writeln!(f, "{NONE_FAILED}");
        }
        for history in histories {
            let HistoryView { device, qpn, program, reason, .. } = history;
            let ago = seconds(history.failed_s_ago.unwrap_or_default());
            let reason = reason.as_deref().unwrap_or_default();
            writeln!(f, "QP {qpn} on {device}, of {program}, {ago} ago:\n  {reason}")?;
        }
        writeln!(f, "\nurxe why QPN tells what happened to one of them.")
    }
}

const NONE_FAILED: &str = "No QP that may be seen has failed lately.";

fn hex(number: u32) -> String {
    format!("{number:#08x}")
}

/// A time in the unit that shows it best.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 60.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.3} s"),
        s => format!("{:.3} ms", s * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::{QpAttr, QpState, QpType};

    fn history() -> QpHistory {
        let entry = |ms: u64, times, span, what| HistoryEntry {
            at: Duration::from_millis(ms),
            span: Duration::from_millis(span),
            times,
            what,
            traffic: Traffic::default(),
        };
        let failed = Happening::Failed { state: QpState::Err, cause: Cause::AckTimeout as u32 };
        QpHistory {
            qpn: 0x11,
            program: "server[7]".into(),
            uid: 1000,
            qp_type: QpType::Rc,
            state: QpState::Err,
            attr: QpAttr { retry_cnt: Some(7), timeout: Some(14), ..QpAttr::default() },
            gone: None,
            heard: None,
            entries: vec![
                entry(2000, 1, 0, Happening::Modified(QpState::Rts)),
                entry(1900, 8, 469, Happening::Counted("ack_timeouts".into())),
                entry(1400, 1, 0, failed),
            ],
            left_out: 0,
            failed: Some(FailedRequest {
                at: Duration::from_millis(1400),
                opcode: 1,
                wr_id: 5,
                length: 64,
                status: WcStatus::RetryExceeded as u32,
                vendor_err: Cause::AckTimeout as u32,
            }),
            reason: Some("The peer did not answer.".into()),
            counters: vec![("ack_timeouts".into(), 8)],
        }
    }

    #[test]
    fn a_history_tells_what_happened_and_when() {
        let text = HistoryView::new("urxe0", &history()).to_string();
        for part in [
            "QP 0x000011 on urxe0, RC of server[7]: in ERR",
            "2.000 s ago:",
            "+   0.000 ms  its program took it to RTS",
            "+ 100.000 ms  ack_timeouts, 8 times in 469.000 ms: Times that the ACK timeout ran",
            "+ 600.000 ms  it failed, and went to ERR",
            "First failed: IBV_WC_RDMA_WRITE with wr_id 5, 64 bytes: IBV_WC_RETRY_EXC_ERR",
            "Why: The peer did not answer.",
            "No packet ever came for it.",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn the_traffic_between_two_events_is_told_between_them() {
        let mut history = history();
        let traffic = |sent_packets, received_packets, sent_messages| Traffic {
            sent_packets,
            received_packets,
            sent_messages,
            received_messages: 0,
            posted: Posted { writes: sent_packets / 100, local: 1, ..Posted::default() },
        };
        history.entries[1].traffic = traffic(1_204, 17, 12);
        history.entries[2].traffic = traffic(1_211, 17, 12);
        history.counters.extend([
            ("sent_packets".into(), 1_212),
            ("received_packets".into(), 17),
            ("posted_writes".into(), 12),
            ("posted_local".into(), 1),
        ]);
        let view = HistoryView::new("urxe0", &history);
        let text = view.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
        let told = "(12 WRITEs, 1 bind or local invalidation posted, 12 work requests done, \
                    1,204 packets sent, 17 packets received)";
        assert_eq!(at(told) + 1, at("ack_timeouts"), "{text}");
        assert_eq!(at("(7 packets sent)") + 1, at("it failed, and went"), "{text}");
        assert_eq!(at("(1 packet sent)"), at("it failed, and went") + 1, "{text}");
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["events"][1]["traffic"]["sent_messages"], 12);
        assert_eq!(json["events"][1]["traffic"]["posted"]["writes"], 12);
        assert_eq!(json["traffic_since"]["sent_packets"], 1);
    }

    #[test]
    fn text_and_json_say_the_same() {
        let histories = Histories { histories: vec![HistoryView::new("urxe0", &history())] };
        let json = serde_json::to_value(&histories).unwrap();
        let history = &json["histories"][0];
        assert_eq!((&history["qpn"], &history["state"]), (&"0x000011".into(), &"ERR".into()));
        assert_eq!(history["events"][1]["times"], 8);
        assert_eq!(history["failed"]["status"], "IBV_WC_RETRY_EXC_ERR");
        assert_eq!(history["counters"]["ack_timeouts"], 8);
    }

    #[test]
    fn a_qp_whose_slot_was_killed_ends_with_that() {
        let mut history = history();
        history.entries.truncate(2);
        history.entries.push(HistoryEntry {
            at: Duration::from_millis(40),
            what: Happening::SlotEnded("worker 7 of user 1000 was killed by SIGKILL".into()),
            ..history.entries[1].clone()
        });
        (history.gone, history.state) = (Some(Duration::from_millis(40)), QpState::Rts);
        let view = HistoryView::new("urxe0", &history);
        assert_eq!(view.failed_s_ago, Some(0.04));
        let text = view.to_string();
        for part in [
            "server[7]: ended 40.000 ms ago with what served it, in RTS",
            "+    1.960 s  it ended, because worker 7 of user 1000 was killed by SIGKILL",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn failures_are_sorted_by_when_they_were() {
        let older = HistoryView::new("urxe0", &history());
        let mut newer = history();
        newer.entries[2].at = Duration::from_millis(1);
        let newer = HistoryView::new("urxe0", &newer);
        assert_eq!(older.failed_before(&newer), Ordering::Less);
    }
}
