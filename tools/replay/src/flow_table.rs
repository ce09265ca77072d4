//! Packets to one QP are a flow; two flows in opposite directions are a connection.
//!
//! A packet of a connection names the QP that it goes to and not the one that it comes from. So
//! the two flows are paired by PSNs: responses bear those of requests that were sent the other way
//! not long before.

use crate::trace::{Captured, Trace};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use urxe_types::{Psn, Qpn};
use urxe_wire::{Body, Request, Response, Transport};

/// How many of the most recently active flows of requests a response is matched against.
const BUSY_FLOWS: usize = 64;

/// Packets of one transport service, from one address to one QP.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) transport: Transport,
    /// The QP that they go to.
    pub(crate) qpn: Qpn,
    /// Indices into the trace.
    pub(crate) packets: Vec<usize>,
}

/// Requests to one QP, and the flow in which their responses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direction {
    pub(crate) requests: usize,
    pub(crate) responses: Option<usize>,
}

/// All flows of a trace, and which belong together.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowTable {
    pub(crate) flows: Vec<Flow>,
    /// The flow of each packet; `None` if it is of no QP whose traffic is replayed.
    pub(crate) of_packet: Vec<Option<usize>>,
    /// By flow: the one the other way.
    pub(crate) partner: Vec<Option<usize>>,
}

impl FlowTable {
    /// Sorts the packets of a trace. It records those that belong to no flow as unused.
    pub(crate) fn of(trace: &mut Trace) -> FlowTable {
        let mut flows = FlowTable::default();
        let mut by_key = HashMap::new();
        let mut excluded = Vec::new();
        for (i, packet) in trace.packets.iter().enumerate() {
            let reason = exclusion(packet);
            flows.of_packet.push(None);
            if let Some(reason) = reason {
                excluded.push((packet.frame, reason));
                continue;
            }
            let bth = &packet.headers.bth;
            let (src, dst) = (packet.outer.flow.src, packet.outer.flow.dst);
            let transport = packet.headers.body.transport();
            let key = (src, dst, transport, bth.dest_qp);
            let number = *by_key.entry(key).or_insert_with(|| {
                let qpn = bth.dest_qp;
                flows.flows.push(Flow { src, dst, transport, qpn, packets: Vec::new() });
                flows.flows.len() - 1
            });
            flows.flows[number].packets.push(i);
            flows.of_packet[i] = Some(number);
        }
        for (frame, reason) in excluded {
            trace.record_unused(frame, reason.to_owned());
        }
        flows.partner = flows.pair(trace);
        flows
    }

    /// What is to be replayed: every flow with requests.
    pub(crate) fn directions<'a>(
        &'a self,
        trace: &'a Trace,
    ) -> impl Iterator<Item = Direction> + 'a {
        (0..self.flows.len()).filter(|&flow| self.has(trace, flow, true)).map(|requests| {
            let partner = self.partner[requests];
            let responses = partner.filter(|&flow| self.has(trace, flow, false));
            Direction { requests, responses }
        })
    }

    /// Whether a flow has any requests, or any responses.
    fn has(&self, trace: &Trace, flow: usize, requests: bool) -> bool {
        let mut packets = self.flows[flow].packets.iter().map(|&i| &trace.packets[i]);
        packets.any(|packet| packet.is_request() == requests)
    }

    /// Finds the partner of each flow.
    fn pair(&self, trace: &Trace) -> Vec<Option<usize>> {
        let mut votes: Vec<_> = self.votes(trace).into_iter().collect();
        // The most votes first; then the order of the trace, so that it is the same each time.
        votes.sort_by_key(|&(flows, votes)| (std::cmp::Reverse(votes), flows));
        let mut partner = vec![None; self.flows.len()];
        for ((a, b), _) in votes {
            if partner[a].is_none() && partner[b].is_none() {
                partner[a] = Some(b);
                partner[b] = Some(a);
            }
        }
        partner
    }

    /// Each response votes for the flows whose requests it may answer, most for the likeliest one.
    fn votes(&self, trace: &Trace) -> HashMap<(usize, usize), u64> {
        const SAME_PORT: u64 = 4;
        let mut votes = HashMap::new();
        let mut spans: HashMap<usize, Span> = HashMap::new();
        let mut busy: HashMap<(IpAddr, IpAddr), VecDeque<usize>> = HashMap::new();
        for (packet, flow) in trace.packets.iter().zip(&self.of_packet) {
            let (Some(flow), outer) = (*flow, &packet.outer.flow) else { continue };
            if packet.headers.body.transport() != Transport::Rc || !packet.intact {
                continue;
            }
            if packet.is_request() {
                spans.entry(flow).or_insert_with(|| Span::of(packet)).extend(packet);
                let recent = busy.entry((outer.src, outer.dst)).or_default();
                recent.retain(|&other| other != flow);
                recent.push_front(flow);
                recent.truncate(BUSY_FLOWS);
                continue;
            }
            let psn = packet.headers.bth.psn;
            let recent = busy.get(&(outer.dst, outer.src)).into_iter().flatten();
            let candidates =
                recent.filter(|&flow| spans.get(flow).is_some_and(|span| span.has(psn)));
            for (rank, &request_flow) in candidates.enumerate() {
                let same_port = spans[&request_flow].src_port == outer.src_port;
                let vote = u64::from(rank == 0) + u64::from(same_port) * SAME_PORT;
                let key = (request_flow.min(flow), request_flow.max(flow));
                *votes.entry(key).or_insert(0) += vote + 1;
            }
        }
        votes
    }

    /// FlowTable of responses whose requests are not in the capture.
    pub(crate) fn orphans<'a>(&'a self, trace: &'a Trace) -> impl Iterator<Item = usize> + 'a {
        let answered: HashSet<usize> =
            self.directions(trace).filter_map(|direction| direction.responses).collect();
        (0..self.flows.len())
            .filter(move |flow| !answered.contains(flow) && self.has(trace, *flow, false))
    }
}

/// The PSNs that the requests of a flow occupy.
struct Span {
    first: Psn,
    end: Psn,
    src_port: u16,
}

impl Span {
    fn of(packet: &Captured) -> Span {
        let psn = packet.headers.bth.psn;
        Span { first: psn, end: psn, src_port: packet.outer.flow.src_port }
    }

    fn extend(&mut self, packet: &Captured) {
        const SMALLEST_MTU: u32 = 256;
        let Captured { headers, outer, .. } = packet;
        let psns = match headers.body {
            Body::RcRequest(Request::Read(reth)) => reth.len.div_ceil(SMALLEST_MTU).max(1),
            _ => 1,
        };
        let end = headers.bth.psn + psns;
        if self.end.precedes(end) {
            self.end = end;
        }
        if headers.bth.psn.precedes(self.first) {
            self.first = headers.bth.psn;
        }
        self.src_port = outer.flow.src_port;
    }

    fn has(&self, psn: Psn) -> bool {
        !psn.precedes(self.first) && psn.precedes(self.end)
    }
}

/// Why a packet is not replayed, if it is not.
fn exclusion(packet: &Captured) -> Option<&'static str> {
    match (packet.headers.body, packet.headers.bth.dest_qp) {
        (Body::Cnp, _) => Some("congestion notification: it has no response"),
        (Body::RcResponse(Response::SelectiveAck { .. }), _) => {
            Some("selective acknowledgement: urxe's own, and what it tells is in no other response")
        }
        (_, Qpn::GSI) => Some("management datagram (QP1): answered by programs, not by the NIC"),
        _ if packet.outer.flow.src.is_ipv4() != packet.outer.flow.dst.is_ipv4() => {
            Some("addresses of two families")
        }
        _ => None,
    }
}
