//! The results of a replay, as text and as JSON.

use crate::comparison::Comparison;
use crate::finding::{Difference, Findings, Occurrences, Tally, Tolerance};
use crate::flow_table::FlowTable;
use crate::replay::Replay;
use crate::survey::{MtuFrom, Outcome, Survey};
use crate::trace::Trace;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use urxe_types::Access;
use urxe_wire::Transport;

/// Differences of one direction that the text shows at most.
const SHOWN: usize = 20;

/// A whole capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the capture.
    pub capture: String,
    /// Packets of RoCEv2.
    pub packets: u64,
    /// Frames of other protocols.
    pub other_frames: u64,
    /// Responses that were compared.
    pub compared: u64,
    /// Those of them that differ.
    pub differing: u64,
    /// All differences; a response may have several.
    pub differences: u64,
    /// Every direction of every connection.
    pub directions: Vec<DirectionReport>,
    /// Packets that belong to no direction.
    pub unused: Vec<Unused>,
}

/// One direction of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    /// RC, UC or UD.
    pub transport: &'static str,
    /// The address that sends requests.
    pub requester: IpAddr,
    /// The address that is judged.
    pub responder: IpAddr,
    /// The responder's QP.
    pub qpn: String,
    /// The requester's QP, where responses show it.
    pub requester_qpn: Option<String>,
    /// Requests in the capture.
    pub requests: u64,
    /// Those of them that were handed to our engine.
    pub replayed: u64,
    /// Responses in the capture.
    pub responses: u64,
    /// Those of them that were compared.
    pub compared: u64,
    /// Those of them that differ.
    pub differing: u64,
    /// State of the responder that was inferred, in sentences.
    pub inferred: Vec<String>,
    /// Where the responder is not as the standard requires.
    pub differences: Vec<Difference>,
    /// Where it deviates and may.
    #[serde(rename = "freedoms")]
    pub tolerances: Vec<Tolerated>,
    /// Packets that were not replayed or compared.
    pub unused: Vec<Unused>,
}

/// A deviation that was tolerated.
#[derive(Clone, Debug, Serialize)]
pub struct Tolerated {
    /// Which one.
    #[serde(rename = "freedom")]
    pub tolerance: Tolerance,
    /// How often it was seen.
    #[serde(flatten)]
    pub seen: Occurrences,
    /// Why it is no error, in a sentence.
    #[serde(rename = "says")]
    pub explanation: &'static str,
}

/// Packets that could not be used, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Unused {
    /// Why.
    #[serde(rename = "why")]
    pub reason: String,
    /// How many.
    #[serde(flatten)]
    pub seen: Occurrences,
}

impl Report {
    /// The report of a finished replay.
    pub(crate) fn new(
        capture: String,
        trace: &Trace,
        flows: &FlowTable,
        replay: Replay<'_>,
    ) -> Report {
        let directions: Vec<DirectionReport> = replay
            .comparisons
            .into_iter()
            .map(|comparison| DirectionReport::new(trace, flows, comparison))
            .collect();
        let mut unused = trace.unused.clone();
        for flow in flows.orphans(trace) {
            for &i in &flows.flows[flow].packets {
                let packet = &trace.packets[i];
                if !packet.is_request() {
                    let reason = "response whose request is not in the capture".to_owned();
                    unused.add(reason, packet.frame, 1);
                }
            }
        }
        let sum = |of: fn(&DirectionReport) -> u64| directions.iter().map(of).sum();
        Report {
            capture,
            packets: trace.packets.len() as u64,
            other_frames: trace.other_frames,
            compared: sum(|direction| direction.compared),
            differing: sum(|direction| direction.differing),
            differences: sum(|direction| direction.differences.len() as u64),
            directions,
            unused: by_reason(unused),
        }
    }
}

impl DirectionReport {
    fn new(trace: &Trace, flows: &FlowTable, comparison: Comparison) -> DirectionReport {
        let direction = comparison.survey.direction;
        let requests = &flows.flows[direction.requests];
        let count = |flow: Option<usize>, of_requests: bool| {
            let packets = flow.map_or(&[][..], |flow| &flows.flows[flow].packets);
            let packets = packets.iter().map(|&i| &trace.packets[i]);
            packets.filter(|packet| packet.is_request() == of_requests).count() as u64
        };
        let partner = flows.partner[direction.requests].map(|flow| flows.flows[flow].qpn);
        let inferred = inferred(&comparison.survey);
        let Findings { differences, tolerances, unused, inferred: later, compared } =
            comparison.findings;
        let differing: HashSet<u64> = differences.iter().map(|found| found.frame).collect();
        let tolerances = tolerances.0.into_iter();
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
            replayed: comparison.replayed,
            responses: count(direction.responses, false),
            compared,
            differing: differing.len() as u64,
            inferred: inferred.into_iter().chain(later).collect(),
            differences,
            tolerances: tolerances
                .map(|(tolerance, seen)| {
                    let explanation = tolerance.explanation();
                    Tolerated { tolerance, seen, explanation }
                })
                .collect(),
            unused: by_reason(unused),
        }
    }
}

fn by_reason(unused: Tally<String>) -> Vec<Unused> {
    unused.0.into_iter().map(|(reason, seen)| Unused { reason, seen }).collect()
}

/// What the survey inferred about the responder.
fn inferred(survey: &Survey) -> Vec<String> {
    let mtu = survey.mtu.bytes();
    let mut inferred = match (survey.transport, survey.mtu_from) {
        (Transport::Ud, _) => Vec::new(),
        (_, MtuFrom::FullPackets) => {
            vec![format!("path MTU {mtu}: the size of FIRST and MIDDLE packets")]
        }
        (_, MtuFrom::LargestPacket) => {
            vec![format!("path MTU {mtu}, or more: no message has two packets")]
        }
    };
    if let Some(timer) = survey.min_rnr_timer {
        inferred.push(format!("min_rnr_timer {timer}: from the RNR NAKs"));
    }
    let denied = [
        (Access::REMOTE_WRITE, "WRITE"),
        (Access::REMOTE_READ, "READ"),
        (Access::REMOTE_ATOMIC, "atomics"),
        (Access::FLUSH_GLOBAL, "FLUSH"),
    ];
    for (right, name) in denied {
        if survey.denied.intersects(right) {
            inferred.push(format!("the responder's QP does not allow {name}: from its NAK"));
        }
    }
    let mut outcomes: Vec<_> = survey.outcomes.values().map(describe).collect();
    outcomes.sort_unstable();
    for same in outcomes.chunk_by(|a, b| a == b) {
        inferred.push(format!("{} x {}", same.len(), same[0]));
    }
    inferred
}

fn describe(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Lost => "a request was lost on its way: the responder asks for it again",
        Outcome::NoReceive => "no receive was posted: from its RNR NAK",
        Outcome::ReceiveTooShort(_) => "the receive was too short: the responder refuses the SEND",
        Outcome::ReceiveFailed(_) => "the receive failed on the responder's side: from its NAK",
        Outcome::Failed => "the responder failed on its own side: from its NAK",
        Outcome::Refused => "the rkey did not grant the access: from the responder's NAK",
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
            others => writeln!(f, ", {} of other protocols", number(others, "frame"))?,
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
            (_, 0) => format!("Same: {compared} compared, and our engine's are the same."),
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
            writeln!(f, "  inferred        {inferred}")?;
        }
        for Difference { frame, field, captured, expected, explanation } in
            self.differences.iter().take(SHOWN)
        {
            writeln!(
                f,
                "  DIFFERENT       frame {frame}, {field}: {captured}; our engine: {expected}"
            )?;
            writeln!(f, "                  {explanation}")?;
        }
        if self.differences.len() > SHOWN {
            let more = self.differences.len() - SHOWN;
            writeln!(f, "  DIFFERENT       {more} more, which --json shows")?;
        }
        for Tolerated { seen, explanation, .. } in &self.tolerances {
            writeln!(f, "  allowed         {seen}: {explanation}")?;
        }
        for line in &self.unused {
            writeln!(f, "  not used        {line}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.seen, self.reason)
    }
}

impl fmt::Display for Occurrences {
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

    /// How often a deviation was tolerated.
    pub(crate) fn tolerances(&self, tolerance: Tolerance) -> u64 {
        let found = self.directions.iter().flat_map(|direction| &direction.tolerances);
        found.filter(|line| line.tolerance == tolerance).map(|line| line.seen.count).sum()
    }
}
