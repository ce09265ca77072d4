//! The replay itself: hands each request to our engine, and compares each response with those of
//! the engine.

use crate::comparison::{Comparison, Context, Next, Response, Session};
use crate::finding::Tolerance;
use crate::flow_table::FlowTable;
use crate::memory::{Fills, InitialMemory, named_range};
use crate::reference::{EngineResponse, ReferenceHost};
use crate::survey::{Outcome, Survey};
use crate::trace::{Captured, Trace};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;
use urxe_engine::Counter;
use urxe_types::Psn;
use urxe_wire::{Syndrome, Transport};

/// Unreliable connections have no responses: they are judged by what our engine accepts. These
/// drops are the requester's fault.
const REFUSALS: [Counter; 4] = [
    Counter::DropInvalidRequest,
    Counter::DropRemoteAccess,
    Counter::DropBadQkey,
    Counter::DropDatagramTooLong,
];

/// These come of packets that were lost on the way.
const LOSSES: [Counter; 2] = [Counter::UcGaps, Counter::DropMessagePart];

/// A replay of a whole capture.
pub(crate) struct Replay<'a> {
    trace: &'a Trace,
    flows: &'a FlowTable,
    pub(crate) comparisons: Vec<Comparison>,
    /// By flow: the comparison whose requests are in it.
    requests_of: HashMap<usize, usize>,
    /// By flow: the comparison whose responses are in it.
    responses_of: HashMap<usize, usize>,
    references: HashMap<IpAddr, ReferenceHost>,
    /// By host: the number of the last packet that shows activity of its programs.
    active: HashMap<IpAddr, usize>,
    /// By comparison: the last successful response of each PSN.
    answered: Vec<HashMap<Psn, usize>>,
    /// Initial content of memory.
    fills: Fills,
}

impl<'a> Replay<'a> {
    /// Sets everything up, and runs it.
    pub(crate) fn run(trace: &'a Trace, flows: &'a FlowTable) -> Replay<'a> {
        let surveys: Vec<Survey> =
            flows.directions(trace).map(|direction| Survey::of(trace, flows, direction)).collect();
        let (mut keys, fills) = InitialMemory::of(trace, flows, &surveys);
        let epoch = Instant::now();
        let mut replay = Replay {
            trace,
            flows,
            comparisons: Vec::new(),
            requests_of: HashMap::new(),
            responses_of: HashMap::new(),
            references: HashMap::new(),
            active: HashMap::new(),
            answered: Vec::new(),
            fills,
        };
        for (number, survey) in surveys.into_iter().enumerate() {
            let direction = survey.direction;
            replay.requests_of.insert(direction.requests, number);
            if let Some(responses) = direction.responses {
                replay.responses_of.insert(responses, number);
            }
            let host = flows.flows[direction.requests].dst;
            let keys = keys.remove(&host).unwrap_or_default();
            replay.references.entry(host).or_insert_with(|| ReferenceHost::new(host, keys, epoch));
            let successful = survey.responses.iter().filter(|&&i| is_success(&trace.packets[i]));
            let by_psn = successful.map(|&i| (trace.packets[i].headers.bth.psn, i));
            replay.answered.push(by_psn.collect());
            replay.comparisons.push(Comparison::new(survey));
        }
        for index in 0..trace.packets.len() {
            replay.packet(index);
        }
        for number in 0..replay.comparisons.len() {
            replay.end(number);
        }
        replay
    }

    fn packet(&mut self, index: usize) {
        let packet = &self.trace.packets[index];
        let Some(flow) = self.flows.of_packet[index] else { return };
        match packet.is_request() {
            true => {
                if let Some(&number) = self.requests_of.get(&flow) {
                    self.request(number, index, packet);
                }
                // Its program posted it before.
                self.active.insert(packet.outer.flow.src, index + 1);
            }
            false => {
                if let Some(&number) = self.responses_of.get(&flow) {
                    self.response(number, index, packet);
                }
            }
        }
    }

    fn request(&mut self, number: usize, index: usize, packet: &Captured) {
        let comparison = &mut self.comparisons[number];
        comparison.last_frame = packet.frame;
        let mut unused =
            |reason: &str| comparison.findings.unused.add(reason.to_owned(), packet.frame, 1);
        if !packet.intact {
            return unused("request with a wrong ICRC, which every receiver drops");
        }
        if comparison.budget == 0 {
            return unused("request after READs of far more data than the capture holds");
        }
        if comparison.survey.outcomes.get(&index) == Some(&Outcome::Lost) {
            return comparison.findings.tolerances.add(Tolerance::RequestLost, packet.frame, 1);
        }
        if comparison.survey.transport == Transport::Rc {
            self.resync(number, index, packet);
        }
        if self.comparisons[number].session.is_none() && !self.start_session(number, packet) {
            let reason = "packet of a message whose first packet is not replayed".to_owned();
            return self.comparisons[number].findings.unused.add(reason, packet.frame, 1);
        }
        self.replay_request(number, index, packet);
    }

    /// Ends the session if the capture lacks requests that the responder had, or if its QP was
    /// connected again.
    fn resync(&mut self, number: usize, index: usize, packet: &Captured) {
        let comparison = &self.comparisons[number];
        let host = packet.outer.flow.dst;
        let Some(reference) = self.references.get(&host) else { return };
        let (Some(session), Some(expected)) = (&comparison.session, reference.expected(number))
        else {
            return;
        };
        let psn = packet.headers.bth.psn;
        let answered = self.answered[number].get(&psn).is_some_and(|&answer| answer > index);
        let is_reconnected = reference.has_failed(number) && answered;
        let is_absent = comparison.survey.last_of.get(&expected).is_none_or(|&last| last < index);
        let is_gap = expected.precedes(psn) && is_absent && self.was_executed(number, psn, index);
        if is_reconnected {
            let inferred = format!("the connection was made again before frame {}", packet.frame);
            self.comparisons[number].findings.inferred.push(inferred);
            self.end_session(number);
        } else if is_gap && psn != session.first {
            let inferred = format!(
                "the responder had requests that the capture lacks: PSN {expected} to {}",
                psn.prev()
            );
            self.comparisons[number].findings.inferred.push(inferred);
            self.end_session(number);
        }
    }

    /// Whether the captured responder executed this request, or one not far after it.
    fn was_executed(&self, number: usize, psn: Psn, index: usize) -> bool {
        /// No responder coalesces the ACKs of more packets than this.
        const NEAR: u32 = 1024;
        let answered = |psn: Psn| self.answered[number].get(&psn).is_some_and(|&at| at > index);
        (0..NEAR).any(|ahead| answered(psn + ahead))
    }

    /// Ends the session; the next message starts another one.
    fn end_session(&mut self, number: usize) {
        self.comparisons[number].end();
    }

    /// Starts a session with this packet, if it is the first of a message.
    fn start_session(&mut self, number: usize, packet: &Captured) -> bool {
        if !packet.headers.body.starts() {
            return false;
        }
        let comparison = &mut self.comparisons[number];
        if let Some(reference) = self.references.get_mut(&packet.outer.flow.dst) {
            reference.connect(number, &comparison.survey, packet);
        }
        comparison.pkey = Some(packet.headers.bth.pkey);
        comparison.session = Some(Session::new(packet.headers.bth.psn));
        true
    }

    /// Hands a request to our engine and records its responses.
    fn replay_request(&mut self, number: usize, index: usize, packet: &Captured) {
        let host = packet.outer.flow.dst;
        let Some(reference) = self.references.get_mut(&host) else { return };
        let comparison = &mut self.comparisons[number];
        let outcome = comparison.survey.outcomes.get(&index).copied();
        for fill in self.fills.remove(&index).into_iter().flatten() {
            if let Some(bytes) = reference.program.bytes(fill.rkey) {
                bytes.fill(fill.addr, &fill.data, &fill.new);
            }
        }
        let received = reference.program.received;
        let responses = reference.request(number, index, packet, outcome, comparison.budget);
        comparison.replayed += 1;
        if reference.program.received > received {
            self.active.insert(host, index + 1);
        }
        for response in responses {
            self.record_response(index, packet, response);
        }
        let comparison = &mut self.comparisons[number];
        if comparison.budget == 0
            && let Some(reference) = self.references.get_mut(&host)
        {
            reference.disconnect(number);
        }
    }

    fn record_response(&mut self, index: usize, packet: &Captured, response: EngineResponse) {
        let Some(comparison) = self.comparisons.get_mut(response.survey) else { return };
        comparison.budget = comparison.budget.saturating_sub(1);
        let mtu = comparison.survey.mtu.bytes() as u64;
        let Some(session) = &mut comparison.session else { return };
        let psn = response.headers.bth.psn;
        let source = packet.request().as_ref().and_then(named_range).and_then(|range| {
            let number = u64::try_from(psn.diff(packet.headers.bth.psn)).ok()?;
            let addr = range.addr.wrapping_add(number * mtu);
            let reference = self.references.get_mut(&packet.outer.flow.dst)?;
            let bytes = reference.program.bytes(range.rkey)?;
            Some((range.rkey, addr, bytes.touched(addr, response.payload.len().max(8))))
        });
        let EngineResponse { headers, payload, .. } = response;
        let response = Response { headers, payload, to: index + 1, source };
        session.add(response, packet.headers.bth.ack_req);
    }

    fn response(&mut self, number: usize, index: usize, packet: &Captured) {
        let host = packet.outer.flow.src;
        let Some(reference) = self.references.get_mut(&host) else { return };
        let expected = reference.expected(number);
        let mut context = Context {
            expected,
            active: self.active.get(&host).copied().unwrap_or(0),
            number: index + 1,
            program: &mut reference.program,
        };
        let next = self.comparisons[number].compare(packet, &mut context);
        if next == Next::Resync {
            self.end_session(number);
        }
    }

    /// Ends a comparison and adds what our engine counted.
    fn end(&mut self, number: usize) {
        self.end_session(number);
        let comparison = &mut self.comparisons[number];
        let flow = &self.flows.flows[comparison.survey.direction.requests];
        let Some(reference) = self.references.get_mut(&flow.dst) else { return };
        let frame = comparison.last_frame;
        for error in reference.setup_errors.drain(..) {
            comparison.findings.unused.add(
                format!("our engine could not be set up: {error}"),
                frame,
                1,
            );
        }
        if comparison.survey.transport == Transport::Rc {
            return;
        }
        for counter in REFUSALS {
            let count = reference.counter(number, counter);
            if count > 0 {
                comparison.findings.differences.push(crate::finding::Difference {
                    frame,
                    field: counter.name(),
                    captured: format!("{count} packets"),
                    expected: "none".to_owned(),
                    explanation: counter.meaning().to_owned(),
                });
            }
        }
        for counter in LOSSES {
            let count = reference.counter(number, counter);
            comparison.findings.tolerances.add(Tolerance::RequestLost, frame, count);
        }
    }
}

/// Whether a response reports success.
fn is_success(packet: &Captured) -> bool {
    packet.intact
        && packet
            .headers
            .body
            .aeth()
            .is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}
