//! The state of a responder as inferred from the capture: path MTU, first PSN, receives, rights.
//!
//! A responder has state that no packet shows. Where a response can only be explained by such
//! state (an RNR NAK by an empty receive queue), our responder is put into it, so that responses
//! are compared under equal conditions.

use crate::flow_table::{Direction, FlowTable};
use crate::trace::{Captured, Trace};
use std::collections::HashMap;
use urxe_types::{Access, PathMtu, Psn};
use urxe_wire::{NakCode, Request, Syndrome, Transport};

/// After this many packets, a PSN belongs to another request.
const WINDOW: usize = 1 << 20;

/// What happened to a request that was not executed normally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It never arrived: the responder asked for it again.
    Lost,
    /// No receive was posted for it.
    NoReceive,
    /// The receive of its message has only so many bytes.
    ReceiveTooShort(u32),
    /// The receive of its message failed after so many bytes, on the responder's own side.
    ReceiveFailed(u32),
    /// The responder failed while executing it.
    Failed,
    /// Its key was refused.
    Refused,
}

/// What the path MTU is inferred from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MtuFrom {
    /// FIRST and MIDDLE packets, which are full.
    FullPackets,
    /// The largest packet: it is at least this.
    LargestPacket,
}

/// What is known about one direction of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub(crate) direction: Direction,
    pub(crate) transport: Transport,
    /// The first packet that begins a message; `None` if none does.
    pub(crate) start: Option<usize>,
    pub(crate) mtu: PathMtu,
    pub(crate) mtu_from: MtuFrom,
    /// By packet.
    pub(crate) outcomes: HashMap<usize, Outcome>,
    /// The timer code of RNR NAKs.
    pub(crate) min_rnr_timer: Option<u8>,
    /// Access that the responder's QP does not grant.
    pub(crate) denied: Access,
    /// The packet after which the responder's QP was in ERR: it refused a request with a fatal NAK.
    pub(crate) ended_at: Option<usize>,
    /// The last request of each PSN.
    pub(crate) last_of: HashMap<Psn, usize>,
    /// Responses, in order.
    pub(crate) responses: Vec<usize>,
}

/// A request packet and its message.
#[derive(Clone, Copy)]
struct Sent {
    index: usize,
    /// The first packet of its message.
    start: usize,
    /// Bytes of the message before it.
    before: u32,
}

impl Survey {
    /// Analyses both flows of a direction.
    pub(crate) fn of(trace: &Trace, flows: &FlowTable, direction: Direction) -> Survey {
        let requests = &flows.flows[direction.requests];
        let (mtu, mtu_from) = path_mtu(trace, flows, direction);
        let starts = |&&i: &&usize| {
            let body = &trace.packets[i].headers.body;
            body.is_request() && body.starts()
        };
        let mut survey = Survey {
            direction,
            transport: requests.transport,
            start: requests.packets.iter().find(starts).copied(),
            mtu,
            mtu_from,
            outcomes: HashMap::new(),
            min_rnr_timer: None,
            denied: Access::empty(),
            ended_at: None,
            last_of: HashMap::new(),
            responses: Vec::new(),
        };
        survey.walk(trace, flows);
        survey
    }

    /// Goes through requests and responses in their order.
    fn walk(&mut self, trace: &Trace, flows: &FlowTable) {
        let of = |flow: Option<usize>| flow.map_or(&[][..], |flow| &flows.flows[flow].packets);
        let requests = of(Some(self.direction.requests)).iter();
        let mut all: Vec<usize> = requests.chain(of(self.direction.responses)).copied().collect();
        all.sort_unstable();
        let mut sent: HashMap<Psn, Vec<Sent>> = HashMap::new();
        let mut lost = Vec::new();
        let mut done = Access::empty();
        let mut message: Option<Sent> = None;
        for index in all {
            let packet = &trace.packets[index];
            let in_requests = flows.of_packet[index] == Some(self.direction.requests);
            if in_requests != packet.is_request() || !packet.intact {
                continue;
            }
            let psn = packet.headers.bth.psn;
            if in_requests {
                let begun = match message {
                    Some(begun) if !packet.headers.body.starts() => begun,
                    _ => Sent { index, start: index, before: 0 },
                };
                let same = sent.entry(psn).or_default();
                // PSNs wrap around.
                same.retain(|before| index - before.index < WINDOW);
                same.push(Sent { index, ..begun });
                let before = begun.before.saturating_add(packet.payload.len() as u32);
                message = Some(Sent { before, ..begun });
                self.last_of.insert(psn, index);
                continue;
            }
            self.responses.push(index);
            let Some(aeth) = packet.headers.body.aeth() else { continue };
            if let Syndrome::RnrNak { timer } = aeth.syndrome {
                self.min_rnr_timer.get_or_insert(timer.code());
            }
            // A NAK applies to every earlier transmission of the request.
            for &earlier in sent.get(&psn).into_iter().flatten() {
                let request = &trace.packets[earlier.index];
                match aeth.syndrome {
                    Syndrome::Ack { .. } => done |= rights(request),
                    Syndrome::Nak(NakCode::SequenceError) => lost.push((psn, earlier)),
                    Syndrome::RnrNak { .. } if consumes_receive(request) => {
                        self.outcomes.entry(earlier.index).or_insert(Outcome::NoReceive);
                    }
                    Syndrome::Nak(code) => self.on_refusal(index, code, earlier, request, done),
                    _ => {}
                }
            }
        }
        for (psn, sent) in lost {
            // A request that is sent again was lost before; any other had arrived after all.
            if self.last_of.get(&psn).is_some_and(|&last| last > sent.index) {
                self.outcomes.entry(sent.index).or_insert(Outcome::Lost);
            }
        }
    }

    /// The responder has refused a request with a fatal NAK.
    fn on_refusal(
        &mut self,
        index: usize,
        code: NakCode,
        sent: Sent,
        request: &Captured,
        done: Access,
    ) {
        self.ended_at.get_or_insert(index);
        let sends = is_send(request);
        let outcome = match code {
            NakCode::RemoteAccess => Outcome::Refused,
            NakCode::InvalidRequest if sends => Outcome::ReceiveTooShort(sent.before),
            NakCode::RemoteOperational if sends => Outcome::ReceiveFailed(sent.before),
            NakCode::RemoteOperational => Outcome::Failed,
            NakCode::InvalidRequest => {
                // Access that was used before is not denied.
                let needs = rights(request);
                if !done.intersects(needs) {
                    self.denied |= needs;
                }
                return;
            }
            _ => return,
        };
        let at = if outcome == Outcome::Failed { sent.index } else { sent.start };
        self.outcomes.entry(at).or_insert(outcome);
    }

    /// Whether the key of this request must have granted it.
    pub(crate) fn grants(&self, index: usize) -> bool {
        self.start.is_some_and(|start| index >= start)
            && self.ended_at.is_none_or(|end| index < end)
            && self.outcomes.get(&index) != Some(&Outcome::Refused)
    }
}

/// The access that a request needs.
pub(crate) fn rights(request: &Captured) -> Access {
    match request.request() {
        None | Some(Request::Send(_)) => Access::empty(),
        Some(Request::Write(_) | Request::AtomicWrite(_)) => Access::REMOTE_WRITE,
        Some(Request::Read(_)) => Access::REMOTE_READ,
        Some(Request::CompareSwap(_) | Request::FetchAdd(_)) => Access::REMOTE_ATOMIC,
        Some(Request::Flush { .. }) => Access::FLUSH_GLOBAL,
    }
}

pub(crate) fn is_send(request: &Captured) -> bool {
    request.is_request() && matches!(request.request(), None | Some(Request::Send(_)))
}

/// Whether this packet consumes a receive.
fn consumes_receive(request: &Captured) -> bool {
    match request.request() {
        Some(Request::Write(part)) => matches!(part.end(), Some(Some(_))),
        _ => is_send(request) && request.headers.body.starts(),
    }
}

/// The path MTU: the most frequent size of the packets that must be full.
fn path_mtu(trace: &Trace, flows: &FlowTable, direction: Direction) -> (PathMtu, MtuFrom) {
    let both = [Some(direction.requests), flows.partner[direction.requests]];
    let mut sizes: HashMap<usize, u64> = HashMap::new();
    let mut largest = 0;
    for &i in both.into_iter().flatten().flat_map(|flow| &flows.flows[flow].packets) {
        let Captured { headers, payload, intact: true, .. } = &trace.packets[i] else { continue };
        largest = largest.max(payload.len());
        if !headers.body.ends() {
            *sizes.entry(payload.len()).or_insert(0) += 1;
        }
    }
    let known = |bytes: usize| PathMtu::from_bytes(u32::try_from(bytes).unwrap_or(0));
    let full = sizes.into_iter().filter_map(|(bytes, count)| Some((count, known(bytes)?)));
    match full.max() {
        Some((_, mtu)) => (mtu, MtuFrom::FullPackets),
        None => {
            let fits = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() >= largest);
            (fits.unwrap_or(PathMtu::Mtu4096), MtuFrom::LargestPacket)
        }
    }
}
