//! Programs that exchange messages over every transport service, with receive queues of their own
//! and with shared ones.
//!
//! What arrives says itself which message it is, so nothing needs to be known of what the network
//! did: whatever completes must be one of the messages that were sent to this QP, whole and
//! unmixed. How often and in which order depends on the transport.

mod draw;
mod receives;

pub use receives::Receives;

use crate::rng::Rng;
use crate::simulation::host::RECV_WR_ID;
use crate::simulation::queues::{Completed, Entry};
use crate::simulation::workloads::rc::Pace;
use crate::simulation::world::{End, Mr, World};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;
use urxe_engine::{AsyncEvent, Counter, PdId};
use urxe_types::{Completion, Extra, Qkey, QpAttr, QpState, QpType, SendWqe, WcOpcode, WcStatus};
use urxe_wire::GRH_LEN;

/// Put into the `wr_id`s of datagram_workloads, far from those of other programs.
const WR_ID: u64 = 1 << 48;

/// All datagram programs of a world, and what they have to say to each other.
#[derive(Debug)]
pub struct DatagramWorkloads {
    /// The QPs, with their programs.
    pub datagram_workloads: Vec<DatagramWorkload>,
    /// Receive queues, of one QP or of many.
    pub receives: Vec<Receives>,
    /// All messages, sent or still to be.
    pub messages: Vec<Message>,
    /// Somebody sends what no program of it has sent: anything may arrive and fail, but nothing may
    /// end twice or get lost.
    pub attacked: bool,
    /// The protection domain of the QPs.
    pd: PdId,
    network: Network,
}

/// What the network may do to a message.
#[derive(Clone, Copy, Debug, Default)]
struct Network {
    duplicates: bool,
    reorders: bool,
}

/// A QP, and the program behind it.
#[derive(Debug)]
pub struct DatagramWorkload {
    /// Its QP.
    pub end: End,
    /// The transport service.
    pub qp_type: QpType,
    /// Which [`Receives`] it takes from.
    pub receives: usize,
    /// What a datagram must carry to be taken.
    qkey: Qkey,
    /// The messages that it sends, in order.
    outgoing: Vec<usize>,
    posted: usize,
    ended: usize,
    /// One of its sends failed; those posted since are flushed.
    failed: bool,
    pace: Pace,
    next_burst: Option<Instant>,
    /// Messages that were received, or whose WRITE was completed by immediate data.
    pub received: u64,
    /// The newest message from each sender.
    newest: BTreeMap<usize, usize>,
}

/// A message.
#[derive(Debug)]
pub struct Message {
    from: usize,
    /// The programs that it is for, all of which have its Q_Key.
    to: Vec<usize>,
    wqe: SendWqe,
    bytes: Vec<u8>,
    /// Where a WRITE puts it: the region of the responder, and the place there.
    place: Option<(Mr, usize)>,
    /// Where it goes, for a datagram.
    dgid: Option<IpAddr>,
    /// The error that it cannot but end with.
    expected_error: Option<WcStatus>,
    fate: Fate,
    /// How often it was delivered to each program.
    deliveries: BTreeMap<usize, u64>,
}

/// What became of a message at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    NotPosted,
    Posted,
    Sent,
    Failed,
}

impl Message {
    /// It completes a receive at the responder.
    fn takes_receive(&self) -> bool {
        self.place.is_none() || self.immediate().is_some()
    }

    fn immediate(&self) -> Option<u32> {
        match self.wqe.op {
            urxe_types::SendOp::Send(Extra::Imm(imm)) => Some(imm),
            urxe_types::SendOp::Write { imm, .. } => imm,
            _ => None,
        }
    }
}

impl DatagramWorkloads {
    /// Nobody.
    pub fn none(pd: PdId) -> DatagramWorkloads {
        DatagramWorkloads {
            datagram_workloads: Vec::new(),
            receives: Vec::new(),
            messages: Vec::new(),
            attacked: false,
            pd,
            network: Network::default(),
        }
    }

    /// Whether everything is posted and has ended.
    pub fn are_done(&self, world: &World) -> bool {
        self.datagram_workloads.iter().all(|datagram_workload| {
            let host = &world.nodes[datagram_workload.end.node].host;
            let queue = &host.sends[datagram_workload.end.send_queue.0 as usize];
            datagram_workload.posted == datagram_workload.outgoing.len() && queue.is_idle()
        })
    }

    /// When somebody posts next.
    pub(crate) fn next_burst(&self, world: &World) -> Option<Instant> {
        let sends = self.datagram_workloads.iter().filter_map(|datagram_workload| {
            let host = &world.nodes[datagram_workload.end.node].host;
            let room = host.sends[datagram_workload.end.send_queue.0 as usize].room();
            datagram_workload.next_burst.filter(|_| room > 0)
        });
        sends.chain(self.receives.iter().filter_map(Receives::next_burst)).min()
    }

    /// Posts what it is time to post.
    pub(crate) fn post(&mut self, world: &mut World, rng: &mut Rng) {
        for receives in &mut self.receives {
            receives.post(world, rng);
        }
        for datagram_workload in &mut self.datagram_workloads {
            datagram_workload.post(world, rng, &mut self.messages);
        }
    }

    /// Is told of a completion; `false` if it is nobody's here.
    pub(crate) fn see_completion(
        &mut self,
        world: &mut World,
        node: usize,
        completed: &Completed,
    ) -> bool {
        let of = |datagram_workload: &DatagramWorkload| {
            datagram_workload.end.node == node
                && datagram_workload.end.qpn == completed.completion.qpn
        };
        let Some(number) = self.datagram_workloads.iter().position(of) else { return false };
        let Completion { wr_id, .. } = completed.completion;
        let datagram_workload = &mut self.datagram_workloads[number];
        match (wr_id & RECV_WR_ID, self.attacked) {
            (0, false) => datagram_workload.on_send(&mut self.messages, &completed.completion),
            (0, true) => {}
            (_, false) => self.on_receive(world, number, completed),
            (_, true) => self.receives[datagram_workload.receives].ended(world, wr_id),
        }
        true
    }

    fn on_receive(&mut self, world: &mut World, number: usize, completed: &Completed) {
        let Completed { completion, data } = completed;
        let datagram_workload = &mut self.datagram_workloads[number];
        self.receives[datagram_workload.receives].ended(world, completion.wr_id);
        match completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlush => {
                assert_eq!(world.state(&datagram_workload.end), Some(QpState::Err), "flushed");
                return;
            }
            status => panic!("receive {:#x}: {status:?}", completion.wr_id),
        }
        let written = completion.opcode == WcOpcode::RecvRdmaWithImm;
        let is_datagram = datagram_workload.qp_type == QpType::Ud;
        let header = if is_datagram { GRH_LEN } else { 0 };
        let length = completion.byte_len as usize - header;
        let found = match (written, completion.extra) {
            (false, _) => &data[header..header + length],
            (true, _) => &[],
        };
        let id = match (completion.extra, found.first_chunk()) {
            (Extra::Imm(imm), _) => imm as usize,
            (_, Some(id)) => u64::from_le_bytes(*id) as usize,
            _ => panic!("a message that nobody sent: {found:02x?}"),
        };
        let message = self.messages.get_mut(id);
        let message = message.unwrap_or_else(|| panic!("a message that nobody sent: {id}"));
        assert!(message.to.contains(&number), "message {id} is for {:?}", message.to);
        assert!(matches!(message.fate, Fate::Posted | Fate::Sent), "message {id} was not sent");
        assert_eq!((written, length), (message.place.is_some(), message.bytes.len()), "{id}");
        match message.place {
            Some((mr, at)) => {
                let window = world.nodes[datagram_workload.end.node].host.memory.program(mr.region);
                assert!(window[at..at + length] == message.bytes, "message {id} is not there");
            }
            None => assert!(found == message.bytes, "message {id} was changed"),
        }
        let imm = message.immediate().map_or(Extra::None, Extra::Imm);
        assert_eq!((completion.extra, completion.grh.is_some()), (imm, is_datagram));
        assert_eq!(completion.solicited, message.wqe.solicited);
        datagram_workload.received += 1;
        *message.deliveries.entry(number).or_default() += 1;
        let (from, dgid) = (message.from, message.dgid);
        self.check_order(number, id);
        let sender = &self.datagram_workloads[from].end;
        assert_eq!(completion.src_qpn, sender.qpn);
        if let Some(dgid) = dgid {
            check_grh(&data[..GRH_LEN], world.nodes[sender.node].addr, dgid);
        }
    }

    /// A connection never goes back, unless a network may that nobody repairs.
    fn check_order(&mut self, number: usize, id: usize) {
        let Network { duplicates, reorders } = self.network;
        let datagram_workload = &mut self.datagram_workloads[number];
        let is_reliable = datagram_workload.qp_type == QpType::Rc;
        if is_reliable || !duplicates {
            let message = &self.messages[id];
            assert_eq!(message.deliveries[&number], 1, "message {id} came twice");
        }
        let is_ordered = match datagram_workload.qp_type {
            QpType::Rc => true,
            QpType::Uc => !duplicates && !reorders,
            QpType::Ud => false,
        };
        let before = datagram_workload.newest.insert(self.messages[id].from, id);
        assert!(!is_ordered || before.is_none_or(|before| before < id), "{before:?}, then {id}");
    }

    /// Sees to what was told apart from completions: limits that were reached are armed again, and
    /// send queues that failed are taken up again.
    pub(crate) fn see_events(&mut self, world: &mut World, rng: &mut Rng) {
        for receives in &mut self.receives {
            receives.see_limit(world, rng);
        }
        for datagram_workload in
            self.datagram_workloads.iter_mut().filter(|datagram_workload| datagram_workload.failed)
        {
            let end = &datagram_workload.end;
            let host = &mut world.nodes[end.node].host;
            if host.send_queue(end.send_queue).is_idle() {
                assert_eq!(world.state(end), Some(QpState::Sqe));
                world.modify(end, &QpAttr { state: Some(QpState::Rts), ..QpAttr::default() });
                datagram_workload.failed = false;
            }
        }
    }

    /// Posts no more receives, and takes all QPs to ERR.
    pub fn end(&mut self, world: &mut World) {
        for receives in &mut self.receives {
            receives.stop();
        }
        for datagram_workload in &mut self.datagram_workloads {
            datagram_workload.next_burst = None;
            world.set_state(&datagram_workload.end, QpState::Err);
        }
    }

    /// Checks, after [`end`](Self::end), that nothing was lost on the way but messages.
    ///
    /// # Panics
    /// If it was.
    pub fn check_end(&self, world: &World) {
        for receives in &self.receives {
            receives.check_end(world);
        }
        for datagram_workload in &self.datagram_workloads {
            let DatagramWorkload { end, receives, outgoing, received, qp_type, .. } =
                datagram_workload;
            let node = &world.nodes[end.node];
            let count = |event| node.host.events.iter().filter(|&&found| found == event).count();
            let is_shared = self.receives[*receives].srq.is_some();
            assert_eq!(count(AsyncEvent::LastWqeReached(end.qpn)), usize::from(is_shared));
            assert!(node.host.sends[end.send_queue.0 as usize].is_idle(), "sends never ended");
            if self.attacked {
                continue;
            }
            let counters = node.device.qp_counters(end.qpn).expect("the QP is there");
            let fates = outgoing.iter().map(|&message| self.messages[message].fate);
            let sent = fates.filter(|&fate| fate == Fate::Sent).count() as u64;
            assert_eq!(counters.get(Counter::SentMessages), sent);
            if *qp_type == QpType::Ud {
                assert_eq!(counters.get(Counter::ReceivedMessages), *received);
            }
        }
        for message in self.messages.iter().filter(|_| !self.attacked) {
            assert_ne!(message.fate, Fate::NotPosted);
            if self.datagram_workloads[message.from].qp_type == QpType::Rc
                && message.takes_receive()
            {
                assert!(
                    message.deliveries.values().copied().eq([1]),
                    "lost on a reliable connection"
                );
            }
            self.check_window(world, message);
        }
    }

    /// What a WRITE put somewhere is the message or nothing, byte by byte: it may have been lost
    /// in its midst.
    fn check_window(&self, world: &World, message: &Message) {
        let Some((mr, at)) = message.place else { return };
        let node = self.datagram_workloads[message.to[0]].end.node;
        let found = &world.nodes[node].host.memory.program(mr.region)[at..];
        let pairs = || found.iter().zip(&message.bytes);
        let is_whole = pairs().all(|(found, byte)| found == byte);
        match self.datagram_workloads[message.from].qp_type {
            QpType::Rc => assert!(is_whole, "a WRITE is not there"),
            _ => assert!(pairs().all(|(&found, &byte)| found == byte || found == 0)),
        }
    }

    /// Checks that a network which loses nothing has lost nothing: what did not arrive is counted
    /// by its receiver.
    ///
    /// # Panics
    /// If something is missing.
    pub fn check_nothing_lost(&self, world: &World) {
        for (number, datagram_workload) in self.datagram_workloads.iter().enumerate() {
            let counters = world.nodes[datagram_workload.end.node]
                .device
                .qp_counters(datagram_workload.end.qpn);
            let counters = counters.expect("the QP is there");
            let is_mine = |message: &&Message| {
                message.fate == Fate::Sent
                    && message.to.contains(&number)
                    && message.takes_receive()
            };
            let expected = self.messages.iter().filter(is_mine).count() as u64;
            let dropped = [Counter::DropNoReceive, Counter::DropReceiveTooShort]
                .map(|counter| counters.get(counter));
            assert_eq!(datagram_workload.received + dropped.iter().sum::<u64>(), expected);
        }
    }

    /// How far everybody is.
    pub(crate) fn summary(&self, world: &World) -> String {
        let line = |datagram_workload: &DatagramWorkload| {
            let DatagramWorkload { end, qp_type, posted, ended, outgoing, .. } = datagram_workload;
            let (node, qpn, state, of) = (end.node, end.qpn, world.state(end), outgoing.len());
            format!("\n  node {node} {qpn} {qp_type:?} {state:?}: {posted}, {ended} of {of}")
        };
        self.datagram_workloads.iter().map(line).collect()
    }
}

impl DatagramWorkload {
    fn post(&mut self, world: &mut World, rng: &mut Rng, messages: &mut [Message]) {
        if self.next_burst.is_none_or(|at| at > world.now()) {
            return;
        }
        let queue = world.nodes[self.end.node].host.send_queue(self.end.send_queue);
        let left = self.outgoing.len() - self.posted;
        let burst = (rng.range(self.pace.burst.clone()) as usize).min(queue.room()).min(left);
        for &number in &self.outgoing[self.posted..self.posted + burst] {
            queue.post(Entry::Good(messages[number].wqe.clone()));
            messages[number].fate = Fate::Posted;
        }
        self.posted += burst;
        let is_more = burst < left;
        self.next_burst = is_more.then(|| world.now() + rng.micros(self.pace.gap.clone()));
        world.ring(&self.end);
    }

    /// A send has ended, and with it those before it that asked for no completion.
    fn on_send(&mut self, messages: &mut [Message], completion: &Completion) {
        let Completion { wr_id, status, .. } = *completion;
        let number = (wr_id & !WR_ID) as usize;
        let mut end = |datagram_workload: &mut DatagramWorkload| {
            assert!(datagram_workload.ended < datagram_workload.posted, "{number} is not due");
            let ended = datagram_workload.outgoing[datagram_workload.ended];
            datagram_workload.ended += 1;
            let message = &mut messages[ended];
            message.fate = Fate::Sent;
            if ended == number {
                let expected = match message.expected_error {
                    _ if datagram_workload.failed => WcStatus::WrFlush,
                    Some(status) => status,
                    None => WcStatus::Success,
                };
                assert_eq!(status, expected, "message {number}");
                if status != WcStatus::Success {
                    datagram_workload.failed = true;
                    message.fate = Fate::Failed;
                }
                return true;
            }
            assert!(
                !message.wqe.signaled && message.expected_error.is_none(),
                "{ended} never completed"
            );
            false
        };
        while !end(self) {}
    }

    /// Looks whether the send queue is empty: then what asked for no completion has ended too.
    fn see_idle_sends(&mut self, world: &mut World, messages: &mut [Message]) {
        let host = &mut world.nodes[self.end.node].host;
        if !host.send_queue(self.end.send_queue).is_idle() {
            return;
        }
        for &number in &self.outgoing[self.ended..self.posted] {
            let message = &mut messages[number];
            assert!(
                !message.wqe.signaled && message.expected_error.is_none(),
                "{number} never completed"
            );
            message.fate = Fate::Sent;
        }
        self.ended = self.posted;
    }
}

impl DatagramWorkloads {
    /// Looks for send queues that are empty.
    pub(crate) fn see_idle_sends(&mut self, world: &mut World) {
        for datagram_workload in self.datagram_workloads.iter_mut().filter(|_| !self.attacked) {
            datagram_workload.see_idle_sends(world, &mut self.messages);
        }
    }
}

/// The header in front of a datagram names its sender and where it went.
fn check_grh(grh: &[u8], src: IpAddr, dst: IpAddr) {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            assert_eq!(grh[..20], [0; 20]);
            assert_eq!(grh[32..], [src.octets(), dst.octets()].concat());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            assert_eq!(grh[8..], [src.octets(), dst.octets()].concat());
        }
        _ => panic!("{src} and {dst} are of two families"),
    }
}
