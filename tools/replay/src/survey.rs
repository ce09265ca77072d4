//! What the responder must have been like, as far as the capture tells: path MTU, first PSN,
//! receives, rights.
//!
//! A responder has state that no packet shows. Where an answer can only be explained by such
//! state (an RNR NAK by an empty receive queue), the replay's responder is given it, so that what
//! is compared is what the answers must be under it.

use crate::flows::{Direction, Flows};
use crate::trace::{Captured, Trace};
use std::collections::HashMap;
use urxe_types::{Access, PathMtu, Psn};
use urxe_wire::{NakCode, Operation, Syndrome, Transport};

/// So many packets later, a PSN is that of another request.
const WINDOW: usize = 1 << 20;

/// What became of a request, other than that it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It never arrived: the responder asked for it, though it was sent.
    Lost,
    /// No receive was posted for it.
    NoReceive,
    /// Its message met a receive of just so many bytes.
    ReceiveTooShort(u32),
    /// Its message met a receive that failed behind so many bytes, on the responder's own side.
    ReceiveFailed(u32),
    /// The responder failed in carrying it out.
    Failed,
    /// Its key was refused.
    Refused,
}

/// Where the path MTU is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MtuFrom {
    /// From the packets that must be full.
    FullPackets,
    /// Only that it is at least this: the largest packet fits.
    LargestPacket,
}

/// What is known of one direction of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub(crate) direction: Direction,
    pub(crate) transport: Transport,
    /// The first packet that begins a message; `None` if none does.
    pub(crate) start: Option<usize>,
    pub(crate) mtu: PathMtu,
    pub(crate) mtu_from: MtuFrom,
    /// By packet.
    pub(crate) fates: HashMap<usize, Fate>,
    /// The timer code of RNR NAKs.
    pub(crate) min_rnr_timer: Option<u8>,
    /// What the responder's QP does not let its peer do.
    pub(crate) denied: Access,
    /// From here on the responder's QP was in ERR, having refused a request for good.
    pub(crate) ended_at: Option<usize>,
    /// Where each PSN was requested last.
    pub(crate) last_of: HashMap<Psn, usize>,
    /// Responses, in order.
    pub(crate) responses: Vec<usize>,
}

/// A message under way, as the requester sends it.
#[derive(Clone, Copy)]
struct Sent {
    index: usize,
    /// Where its message begins.
    start: usize,
    /// Bytes of the message before it.
    before: u32,
}

impl Survey {
    /// Looks at both flows of a direction.
    pub(crate) fn of(trace: &Trace, flows: &Flows, direction: Direction) -> Survey {
        let requests = &flows.flows[direction.requests];
        let (mtu, mtu_from) = path_mtu(trace, flows, direction);
        let starts = |&&i: &&usize| {
            let opcode = trace.packets[i].headers.bth.opcode;
            opcode.is_request() && opcode.position().starts()
        };
        let mut survey = Survey {
            direction,
            transport: requests.transport,
            start: requests.packets.iter().find(starts).copied(),
            mtu,
            mtu_from,
            fates: HashMap::new(),
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
    fn walk(&mut self, trace: &Trace, flows: &Flows) {
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
                    Some(begun) if !packet.headers.bth.opcode.position().starts() => begun,
                    _ => Sent { index, start: index, before: 0 },
                };
                let same = sent.entry(psn).or_default();
                // PSNs come again in the end.
                same.retain(|before| index - before.index < WINDOW);
                same.push(Sent { index, ..begun });
                let before = begun.before.saturating_add(packet.payload.len() as u32);
                message = Some(Sent { before, ..begun });
                self.last_of.insert(psn, index);
                continue;
            }
            self.responses.push(index);
            let Some(aeth) = packet.headers.aeth else { continue };
            if let Syndrome::RnrNak { timer } = aeth.syndrome {
                self.min_rnr_timer.get_or_insert(timer);
            }
            // What refuses a request speaks of all that was sent of it before.
            for &asked in sent.get(&psn).into_iter().flatten() {
                let request = &trace.packets[asked.index];
                match aeth.syndrome {
                    Syndrome::Ack { .. } => done |= rights(request),
                    Syndrome::Nak(NakCode::SequenceError) => lost.push((psn, asked)),
                    Syndrome::RnrNak { .. } if takes_receive(request) => {
                        self.fates.entry(asked.index).or_insert(Fate::NoReceive);
                    }
                    Syndrome::Nak(code) => self.on_refusal(index, code, asked, request, done),
                    _ => {}
                }
            }
        }
        for (psn, sent) in lost {
            // What is sent again was lost before; what is not had arrived after all.
            if self.last_of.get(&psn).is_some_and(|&last| last > sent.index) {
                self.fates.entry(sent.index).or_insert(Fate::Lost);
            }
        }
    }

    /// The responder has refused a request for good.
    fn on_refusal(
        &mut self,
        index: usize,
        code: NakCode,
        asked: Sent,
        request: &Captured,
        done: Access,
    ) {
        self.ended_at.get_or_insert(index);
        let sends = is_send(request);
        let fate = match code {
            NakCode::RemoteAccess => Fate::Refused,
            NakCode::InvalidRequest if sends => Fate::ReceiveTooShort(asked.before),
            NakCode::RemoteOperational if sends => Fate::ReceiveFailed(asked.before),
            NakCode::RemoteOperational => Fate::Failed,
            NakCode::InvalidRequest => {
                // Nothing that was allowed before is denied.
                let needs = rights(request);
                if !done.intersects(needs) {
                    self.denied |= needs;
                }
                return;
            }
            _ => return,
        };
        let at = if fate == Fate::Failed { asked.index } else { asked.start };
        self.fates.entry(at).or_insert(fate);
    }

    /// Whether a key that this request names must have opened what it asks for.
    pub(crate) fn grants(&self, index: usize) -> bool {
        self.start.is_some_and(|start| index >= start)
            && self.ended_at.is_none_or(|end| index < end)
            && self.fates.get(&index) != Some(&Fate::Refused)
    }
}

/// The right that a request needs of the QP.
pub(crate) fn rights(request: &Captured) -> Access {
    match request.headers.bth.opcode.operation() {
        Operation::Write | Operation::WriteImm | Operation::AtomicWrite => Access::REMOTE_WRITE,
        Operation::ReadRequest => Access::REMOTE_READ,
        Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
        Operation::Flush => Access::FLUSH_GLOBAL,
        _ => Access::empty(),
    }
}

pub(crate) fn is_send(request: &Captured) -> bool {
    let operation = request.headers.bth.opcode.operation();
    matches!(operation, Operation::Send | Operation::SendImm | Operation::SendInv)
}

/// Whether a receive is taken when this packet arrives.
fn takes_receive(request: &Captured) -> bool {
    let opcode = request.headers.bth.opcode;
    match opcode.operation() {
        Operation::WriteImm => true,
        _ => is_send(request) && opcode.position().starts(),
    }
}

/// The path MTU: the size of the packets that must be full, of which most are believed.
fn path_mtu(trace: &Trace, flows: &Flows, direction: Direction) -> (PathMtu, MtuFrom) {
    let both = [Some(direction.requests), flows.partner[direction.requests]];
    let mut sizes: HashMap<usize, u64> = HashMap::new();
    let mut largest = 0;
    for &i in both.into_iter().flatten().flat_map(|flow| &flows.flows[flow].packets) {
        let Captured { headers, payload, intact: true, .. } = &trace.packets[i] else { continue };
        largest = largest.max(payload.len());
        if !headers.bth.opcode.position().ends() {
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
