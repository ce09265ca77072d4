//! The replay itself: packet after packet, requests to our engine and responses beside its
//! answers.

use crate::finding::Freedom;
use crate::flows::Flows;
use crate::lane::{After, Lane, Life, Said, Surroundings};
use crate::machine::{Answer, Machine};
use crate::memory::{Beginnings, Fills, stretch};
use crate::survey::{Fate, Survey};
use crate::trace::{Captured, Trace};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;
use urxe_engine::Counter;
use urxe_types::Psn;
use urxe_wire::{Syndrome, Transport};

/// A connection that is unreliable is judged by what our engine takes of it, and these are the
/// reasons not to that are the requester's fault.
const REFUSALS: [Counter; 4] = [
    Counter::DropInvalidRequest,
    Counter::DropRemoteAccess,
    Counter::DropBadQkey,
    Counter::DropDatagramTooLong,
];

/// Those that come of packets lost on the way.
const LOSSES: [Counter; 2] = [Counter::UcGaps, Counter::DropMessagePart];

/// A replay of a whole capture.
pub(crate) struct Replay<'a> {
    trace: &'a Trace,
    flows: &'a Flows,
    pub(crate) lanes: Vec<Lane>,
    /// By flow: the lane whose requests it holds.
    requests_of: HashMap<usize, usize>,
    /// By flow: the lane whose responses it holds.
    responses_of: HashMap<usize, usize>,
    machines: HashMap<IpAddr, Machine>,
    /// The number of the last packet that shows a host's program active.
    active: HashMap<IpAddr, usize>,
    /// By lane: where a PSN was answered well, for the last time.
    done: Vec<HashMap<Psn, usize>>,
    /// What must have been in memory when a request came.
    fills: Fills,
}

impl<'a> Replay<'a> {
    /// Sets everything up, and runs it.
    pub(crate) fn run(trace: &'a Trace, flows: &'a Flows) -> Replay<'a> {
        let surveys: Vec<Survey> =
            flows.directions(trace).map(|direction| Survey::of(trace, flows, direction)).collect();
        let (mut keys, fills) = Beginnings::of(trace, flows, &surveys);
        let epoch = Instant::now();
        let mut replay = Replay {
            trace,
            flows,
            lanes: Vec::new(),
            requests_of: HashMap::new(),
            responses_of: HashMap::new(),
            machines: HashMap::new(),
            active: HashMap::new(),
            done: Vec::new(),
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
            replay.machines.entry(host).or_insert_with(|| Machine::new(host, keys, epoch));
            let well = survey.responses.iter().filter(|&&i| is_good(&trace.packets[i]));
            replay.done.push(well.map(|&i| (trace.packets[i].headers.bth.psn, i)).collect());
            replay.lanes.push(Lane::new(survey));
        }
        for index in 0..trace.packets.len() {
            replay.packet(index);
        }
        for number in 0..replay.lanes.len() {
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
                // Its program posted it at some time before.
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
        let lane = &mut self.lanes[number];
        lane.last_frame = packet.frame;
        let mut unused = |why: &str| lane.findings.unused.add(why.to_owned(), packet.frame, 1);
        if !packet.intact {
            return unused("request with a wrong ICRC, which every receiver drops");
        }
        if lane.budget == 0 {
            return unused("request behind READs of far more than the capture holds");
        }
        if lane.survey.fates.get(&index) == Some(&Fate::Lost) {
            return lane.findings.freedoms.add(Freedom::RequestLost, packet.frame, 1);
        }
        if lane.survey.transport == Transport::Rc {
            self.find_again(number, index, packet);
        }
        if self.lanes[number].life.is_none() && !self.begin(number, packet) {
            let why = "packet of a message whose beginning is not replayed".to_owned();
            return self.lanes[number].findings.unused.add(why, packet.frame, 1);
        }
        self.feed(number, index, packet);
    }

    /// Looks whether the replay has lost the connection: the capture lacks requests that the
    /// responder had, or its QP was connected anew.
    fn find_again(&mut self, number: usize, index: usize, packet: &Captured) {
        let lane = &self.lanes[number];
        let host = packet.outer.flow.dst;
        let Some(machine) = self.machines.get(&host) else { return };
        let (Some(life), Some(expected)) = (&lane.life, machine.expected(number)) else { return };
        let psn = packet.headers.bth.psn;
        let answered = self.done[number].get(&psn).is_some_and(|&answer| answer > index);
        let is_anew = machine.has_failed(number) && answered;
        let never_comes = lane.survey.last_of.get(&expected).is_none_or(|&last| last < index);
        let is_gap = expected.precedes(psn) && never_comes && self.is_taken(number, psn, index);
        if is_anew {
            let says = format!("the connection was made anew before frame {}", packet.frame);
            self.lanes[number].findings.inferred.push(says);
            self.lose(number);
        } else if is_gap && psn != life.first {
            let says = format!(
                "the responder had requests that the capture lacks: PSN {expected} to {}",
                psn.prev()
            );
            self.lanes[number].findings.inferred.push(says);
            self.lose(number);
        }
    }

    /// Whether the captured responder took this request, or one not far behind it.
    fn is_taken(&self, number: usize, psn: Psn, index: usize) -> bool {
        /// Nobody leaves more packets than this to one ACK.
        const NEAR: u32 = 1024;
        let answered = |psn: Psn| self.done[number].get(&psn).is_some_and(|&at| at > index);
        (0..NEAR).any(|ahead| answered(psn + ahead))
    }

    /// Forgets the connection; the next message begins it again.
    fn lose(&mut self, number: usize) {
        self.lanes[number].end();
    }

    /// Begins with this packet, if a message does.
    fn begin(&mut self, number: usize, packet: &Captured) -> bool {
        if !packet.headers.bth.opcode.position().starts() {
            return false;
        }
        let lane = &mut self.lanes[number];
        if let Some(machine) = self.machines.get_mut(&packet.outer.flow.dst) {
            machine.connect(number, &lane.survey, packet);
        }
        lane.pkey = Some(packet.headers.bth.pkey);
        lane.life = Some(Life::new(packet.headers.bth.psn));
        true
    }

    /// Hands a request to our engine and keeps what it says.
    fn feed(&mut self, number: usize, index: usize, packet: &Captured) {
        let host = packet.outer.flow.dst;
        let Some(machine) = self.machines.get_mut(&host) else { return };
        let lane = &mut self.lanes[number];
        let fate = lane.survey.fates.get(&index).copied();
        for fill in self.fills.remove(&index).into_iter().flatten() {
            if let Some(bytes) = machine.program.bytes(fill.rkey) {
                bytes.fill(fill.addr, &fill.data, &fill.new);
            }
        }
        let received = machine.program.received;
        let answers = machine.request(number, index, packet, fate, lane.budget);
        lane.replayed += 1;
        if machine.program.received > received {
            self.active.insert(host, index + 1);
        }
        for answer in answers {
            self.keep(index, packet, answer);
        }
        let lane = &mut self.lanes[number];
        if lane.budget == 0
            && let Some(machine) = self.machines.get_mut(&host)
        {
            machine.disconnect(number);
        }
    }

    fn keep(&mut self, index: usize, packet: &Captured, answer: Answer) {
        let Some(lane) = self.lanes.get_mut(answer.survey) else { return };
        lane.budget = lane.budget.saturating_sub(1);
        let mtu = lane.survey.mtu.bytes() as u64;
        let Some(life) = &mut lane.life else { return };
        let psn = answer.headers.bth.psn;
        let place = stretch(packet.headers.reth, packet.headers.atomic).and_then(|place| {
            let number = u64::try_from(psn.diff(packet.headers.bth.psn)).ok()?;
            let addr = place.addr.wrapping_add(number * mtu);
            let machine = self.machines.get_mut(&packet.outer.flow.dst)?;
            let bytes = machine.program.bytes(place.rkey)?;
            Some((place.rkey, addr, bytes.touched(addr, answer.payload.len().max(8))))
        });
        let Answer { headers, payload, .. } = answer;
        let said = Said { headers, payload, to: index + 1, from: place };
        life.says(said, packet.headers.bth.ack_req);
    }

    fn response(&mut self, number: usize, index: usize, packet: &Captured) {
        let host = packet.outer.flow.src;
        let Some(machine) = self.machines.get_mut(&host) else { return };
        let expected = machine.expected(number);
        let mut around = Surroundings {
            expected,
            active: self.active.get(&host).copied().unwrap_or(0),
            number: index + 1,
            program: &mut machine.program,
        };
        let after = self.lanes[number].judge(packet, &mut around);
        if after == After::LostTrack {
            self.lose(number);
        }
    }

    /// Ends a lane.
    fn end(&mut self, number: usize) {
        self.lose(number);
        let lane = &mut self.lanes[number];
        let flow = &self.flows.flows[lane.survey.direction.requests];
        let Some(machine) = self.machines.get_mut(&flow.dst) else { return };
        let frame = lane.last_frame;
        for trouble in machine.troubles.drain(..) {
            lane.findings.unused.add(
                format!("our engine could not be set up: {trouble}"),
                frame,
                1,
            );
        }
        if lane.survey.transport == Transport::Rc {
            return;
        }
        for counter in REFUSALS {
            let count = machine.counted(number, counter);
            if count > 0 {
                lane.findings.differences.push(crate::finding::Difference {
                    frame,
                    field: counter.name(),
                    captured: format!("{count} packets"),
                    expected: "none".to_owned(),
                    says: counter.meaning().to_owned(),
                });
            }
        }
        for counter in LOSSES {
            let count = machine.counted(number, counter);
            lane.findings.freedoms.add(Freedom::RequestLost, frame, count);
        }
    }
}

/// Whether a response says that something was done.
fn is_good(packet: &Captured) -> bool {
    packet.intact
        && packet.headers.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}
