//! What a replay found, for people and for programs.

use crate::finding::{Difference, Findings, Freedom, Seen, Tally};
use crate::flows::Flows;
use crate::judge::Replay;
use crate::lane::Lane;
use crate::survey::{MtuFrom, Survey};
use crate::trace::Trace;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use urxe_types::Access;
use urxe_wire::Transport;

/// Differences of one direction that are shown as text.
const SHOWN: usize = 20;

/// A whole capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    capture: String,
    packets: u64,
    other_frames: u64,
    /// Responses that were compared.
    pub compared: u64,
    /// Those of them that differ.
    pub differing: u64,
    /// All differences: a response may have several.
    pub differences: u64,
    directions: Vec<DirectionReport>,
    unused: Vec<Line>,
}

/// One direction of a connection.
#[derive(Clone, Debug, Serialize)]
struct DirectionReport {
    transport: &'static str,
    requester: IpAddr,
    responder: IpAddr,
    /// The responder's QP.
    qpn: String,
    /// The requester's QP, where responses show it.
    requester_qpn: Option<String>,
    requests: u64,
    replayed: u64,
    responses: u64,
    compared: u64,
    differing: u64,
    inferred: Vec<String>,
    differences: Vec<Difference>,
    freedoms: Vec<FreedomLine>,
    unused: Vec<Line>,
}

/// A freedom that was taken.
#[derive(Clone, Debug, Serialize)]
struct FreedomLine {
    freedom: Freedom,
    #[serde(flatten)]
    seen: Seen,
    says: &'static str,
}

/// Something that could not be used, and why.
#[derive(Clone, Debug, Serialize)]
struct Line {
    why: String,
    #[serde(flatten)]
    seen: Seen,
}

impl Report {
    /// Of a replay that is through.
    pub(crate) fn new(capture: String, trace: &Trace, flows: &Flows, replay: Replay<'_>) -> Report {
        let directions: Vec<DirectionReport> =
            replay.lanes.into_iter().map(|lane| DirectionReport::new(trace, flows, lane)).collect();
        let mut unused = Tally::default();
        for (why, seen) in &trace.unused {
            unused.add(why.clone(), seen.first_frame, seen.count);
        }
        for flow in flows.orphans(trace) {
            for &i in &flows.flows[flow].packets {
                let packet = &trace.packets[i];
                if !packet.is_request() {
                    let why = "response whose request is not in the capture".to_owned();
                    unused.add(why, packet.frame, 1);
                }
            }
        }
        let sum = |of: fn(&DirectionReport) -> u64| directions.iter().map(of).sum();
        Report {
            capture,
            packets: trace.packets.len() as u64,
            other_frames: trace.others,
            compared: sum(|direction| direction.compared),
            differing: sum(|direction| direction.differing),
            differences: sum(|direction| direction.differences.len() as u64),
            directions,
            unused: lines(unused),
        }
    }
}

impl DirectionReport {
    fn new(trace: &Trace, flows: &Flows, lane: Lane) -> DirectionReport {
        let direction = lane.survey.direction;
        let requests = &flows.flows[direction.requests];
        let count = |flow: Option<usize>, of_requests: bool| {
            let packets = flow.map_or(&[][..], |flow| &flows.flows[flow].packets);
            let packets = packets.iter().map(|&i| &trace.packets[i]);
            packets.filter(|packet| packet.is_request() == of_requests).count() as u64
        };
        let partner = flows.partner[direction.requests].map(|flow| flows.flows[flow].qpn);
        let inferred = inferred(&lane.survey);
        let Findings { differences, freedoms, unused, inferred: later, compared } = lane.findings;
        let differing: HashSet<u64> = differences.iter().map(|found| found.frame).collect();
        let freedoms = freedoms.0.into_iter();
        DirectionReport {
            transport: match requests.transport {
                Transport::Rc => "RC",
                Transport::Uc => "UC",
                Transport::Ud => "UD",
                Transport::Cnp => "CNP",
            },
            requester: requests.src,
            responder: requests.dst,
            qpn: requests.qpn.to_string(),
            requester_qpn: partner.map(|qpn| qpn.to_string()),
            requests: count(Some(direction.requests), true),
            replayed: lane.replayed,
            responses: count(direction.responses, false),
            compared,
            differing: differing.len() as u64,
            inferred: inferred.into_iter().chain(later).collect(),
            differences,
            freedoms: freedoms
                .map(|(freedom, seen)| FreedomLine { freedom, seen, says: freedom.says() })
                .collect(),
            unused: lines(unused),
        }
    }
}

fn lines(unused: Tally<String>) -> Vec<Line> {
    unused.0.into_iter().map(|(why, seen)| Line { why, seen }).collect()
}

/// What the capture does not say outright, and the replay took for so.
fn inferred(survey: &Survey) -> Vec<String> {
    let mtu = survey.mtu.bytes();
    let mut inferred = match (survey.transport, survey.mtu_from) {
        (Transport::Ud, _) => Vec::new(),
        (_, MtuFrom::FullPackets) => {
            vec![format!("path MTU {mtu}: the size of its FIRST and MIDDLE packets")]
        }
        (_, MtuFrom::LargestPacket) => {
            vec![format!("path MTU {mtu}, or more: no message takes two packets")]
        }
    };
    if let Some(timer) = survey.min_rnr_timer {
        inferred.push(format!("min_rnr_timer {timer}: as the RNR NAKs say"));
    }
    let denied = [
        (Access::REMOTE_WRITE, "WRITE"),
        (Access::REMOTE_READ, "READ"),
        (Access::REMOTE_ATOMIC, "atomics"),
        (Access::FLUSH_GLOBAL, "FLUSH"),
    ];
    for (right, name) in denied {
        if survey.denied.intersects(right) {
            inferred.push(format!("the responder's QP does not allow {name}: it says so"));
        }
    }
    let mut fates: Vec<_> = survey.fates.values().map(fate).collect();
    fates.sort_unstable();
    for same in fates.chunk_by(|a, b| a == b) {
        inferred.push(format!("{} x {}", same.len(), same[0]));
    }
    inferred
}

fn fate(fate: &crate::survey::Fate) -> &'static str {
    use crate::survey::Fate;
    match fate {
        Fate::Lost => "a request was lost on its way: the responder asks for it",
        Fate::NoReceive => "no receive was posted: the responder says so by RNR NAK",
        Fate::ReceiveTooShort(_) => "the receive was too short: the responder refuses the SEND",
        Fate::ReceiveFailed(_) => "the receive failed on the responder's side: it says so",
        Fate::Failed => "the responder failed on its own side: it says so",
        Fate::Refused => "the rkey did not open what was asked for: the responder says so",
    }
}

/// "1 thing", "2 things".
fn number(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of RoCEv2", self.capture, number(self.packets, "packet"))?;
        match self.other_frames {
            0 => writeln!(f)?,
            others => writeln!(f, ", {} of something else", number(others, "frame"))?,
        }
        for direction in &self.directions {
            write!(f, "\n{direction}")?;
        }
        if !self.unused.is_empty() {
            writeln!(f, "\nNot used")?;
            for line in &self.unused {
                writeln!(f, "  {line}")?;
            }
        }
        writeln!(f, "\n{}", self.verdict())
    }
}

impl Report {
    fn verdict(&self) -> String {
        let compared = number(self.compared, "response");
        match (self.compared, self.differences) {
            (0, 0) => {
                "Nothing to compare: the capture holds no response to a request that was replayed."
                    .to_owned()
            }
            (_, 0) => format!("Same: {compared} compared, and our engine answers likewise."),
            (_, differences) => format!(
                "DIFFERENT: {compared} compared, {} differ ({}).",
                self.differing,
                number(differences, "difference"),
            ),
        }
    }
}

impl fmt::Display for DirectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.requester)?;
        if let Some(qpn) = &self.requester_qpn {
            write!(f, " qp {qpn}")?;
        }
        writeln!(f, " -> {} qp {}", self.responder, self.qpn)?;
        let (requests, responses) =
            (number(self.requests, "request"), number(self.responses, "response"));
        writeln!(
            f,
            "  {requests}, {} replayed; {responses}, {} compared",
            self.replayed, self.compared
        )?;
        for inferred in &self.inferred {
            writeln!(f, "  taken for so    {inferred}")?;
        }
        for Difference { frame, field, captured, expected, says } in
            self.differences.iter().take(SHOWN)
        {
            writeln!(
                f,
                "  DIFFERENT       frame {frame}, {field}: {captured}; our engine: {expected}"
            )?;
            writeln!(f, "                  {says}")?;
        }
        if self.differences.len() > SHOWN {
            let more = self.differences.len() - SHOWN;
            writeln!(f, "  DIFFERENT       {more} more, which --json shows")?;
        }
        for FreedomLine { seen, says, .. } in &self.freedoms {
            writeln!(f, "  allowed         {seen}: {says}")?;
        }
        for line in &self.unused {
            writeln!(f, "  not used        {line}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.seen, self.why)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x, first in frame {}", self.count, self.first_frame)
    }
}

#[cfg(test)]
impl Report {
    /// The fields that differ.
    pub(crate) fn fields(&self) -> Vec<String> {
        let found = self.directions.iter().flat_map(|direction| &direction.differences);
        found.map(|difference| difference.field.to_owned()).collect()
    }

    /// How often a freedom was taken.
    pub(crate) fn freedoms(&self, freedom: Freedom) -> u64 {
        let found = self.directions.iter().flat_map(|direction| &direction.freedoms);
        found.filter(|line| line.freedom == freedom).map(|line| line.seen.count).sum()
    }
}
