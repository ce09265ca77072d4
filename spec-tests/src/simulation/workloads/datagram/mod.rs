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

/// Set in the `wr_id`s of these programs, far from those of other programs.
const WR_ID: u64 = 1 << 48;

/// All datagram programs of a world, and their messages.
#[derive(Debug)]
pub struct DatagramWorkloads {
    /// The QPs, with their programs.
    pub workloads: Vec<DatagramWorkload>,
    /// Receive queues, of one QP or of many.
    pub receives: Vec<Receives>,
    /// All messages, sent or still to be.
    pub messages: Vec<Message>,
    /// Forged packets are sent to them: anything may arrive and fail, but no work request may
    /// complete twice or get lost.
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
    /// Index of its [`Receives`].
    pub receives: usize,
    /// The Q_Key that a datagram must have.
    qkey: Qkey,
    /// The messages that it sends, in order.
    outgoing: Vec<usize>,
    posted: usize,
    ended: usize,
    /// One of its sends failed; those posted after it are flushed.
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
    /// Its receivers, all of which have its Q_Key.
    to: Vec<usize>,
    wqe: SendWqe,
    bytes: Vec<u8>,
    /// Where a WRITE puts it: the region of the responder, and the place there.
    place: Option<(Mr, usize)>,
    /// Where it goes, for a datagram.
    dgid: Option<IpAddr>,
    /// The error that it must complete with.
    expected_error: Option<WcStatus>,
    state: SendState,
    /// How often it was delivered to each program.
    deliveries: BTreeMap<usize, u64>,
}

/// The state of a message at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
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
        match self.wqe.wr.op {
            urxe_types::SendOp::Send(Extra::Imm(imm)) => Some(imm),
            urxe_types::SendOp::Write { imm, .. } => imm,
            _ => None,
        }
    }
}

impl DatagramWorkloads {
    /// No programs.
    pub fn none(pd: PdId) -> DatagramWorkloads {
        DatagramWorkloads {
            workloads: Vec::new(),
            receives: Vec::new(),
            messages: Vec::new(),
            attacked: false,
            pd,
            network: Network::default(),
        }
    }

    /// Whether everything is posted and has ended.
    pub fn are_done(&self, world: &World) -> bool {
        self.workloads.iter().all(|workload| {
            let host = &world.nodes[workload.end.node].host;
            let queue = &host.sends[workload.end.send_queue.0 as usize];
            workload.posted == workload.outgoing.len() && queue.is_idle()
        })
    }

    /// When the next program posts.
    pub(crate) fn next_burst(&self, world: &World) -> Option<Instant> {
        let sends = self.workloads.iter().filter_map(|workload| {
            let host = &world.nodes[workload.end.node].host;
            let room = host.sends[workload.end.send_queue.0 as usize].room();
            workload.next_burst.filter(|_| room > 0)
        });
        sends.chain(self.receives.iter().filter_map(Receives::next_burst)).min()
    }

    /// Posts what it is time to post.
    pub(crate) fn post(&mut self, world: &mut World, rng: &mut Rng) {
        for receives in &mut self.receives {
            receives.post(world, rng);
        }
        for workload in &mut self.workloads {
            workload.post(world, rng, &mut self.messages);
        }
    }

    /// Handles a completion; `false` if it is of another program.
    pub(crate) fn on_completion(
        &mut self,
        world: &mut World,
        node: usize,
        completed: &Completed,
    ) -> bool {
        let of = |workload: &DatagramWorkload| {
            workload.end.node == node && workload.end.qpn == completed.completion.qpn
        };
        let Some(number) = self.workloads.iter().position(of) else { return false };
        let Completion { wr_id, .. } = completed.completion;
        let workload = &mut self.workloads[number];
        match (wr_id & RECV_WR_ID, self.attacked) {
            (0, false) => workload.on_send(&mut self.messages, &completed.completion),
            (0, true) => {}
            (_, false) => self.on_receive(world, number, completed),
            (_, true) => self.receives[workload.receives].ended(world, wr_id),
        }
        true
    }

    fn on_receive(&mut self, world: &mut World, number: usize, completed: &Completed) {
        let Completed { completion, data } = completed;
        let workload = &mut self.workloads[number];
        self.receives[workload.receives].ended(world, completion.wr_id);
        match completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlush => {
                assert_eq!(world.state(&workload.end), Some(QpState::Err), "flushed");
                return;
            }
            status => panic!("receive {:#x}: {status:?}", completion.wr_id),
        }
        let written = completion.opcode == WcOpcode::RecvRdmaWithImm;
        let is_datagram = workload.qp_type == QpType::Ud;
        let header = if is_datagram { GRH_LEN } else { 0 };
        let length = completion.byte_len as usize - header;
        let found = match (written, completion.extra) {
            (false, _) => &data[header..header + length],
            (true, _) => &[],
        };
        let id = match (completion.extra, found.first_chunk()) {
            (Extra::Imm(imm), _) => imm as usize,
            (_, Some(id)) => u64::from_le_bytes(*id) as usize,
            _ => panic!("a message that was not sent: {found:02x?}"),
        };
        let message = self.messages.get_mut(id);
        let message = message.unwrap_or_else(|| panic!("a message that was not sent: {id}"));
        assert!(message.to.contains(&number), "message {id} is for {:?}", message.to);
        assert!(
            matches!(message.state, SendState::Posted | SendState::Sent),
            "message {id} was not sent"
        );
        assert_eq!((written, length), (message.place.is_some(), message.bytes.len()), "{id}");
        match message.place {
            Some((mr, at)) => {
                let window = world.nodes[workload.end.node].host.memory.program(mr.region);
                assert!(window[at..at + length] == message.bytes, "message {id} is not there");
            }
            None => assert!(found == message.bytes, "message {id} was changed"),
        }
        let imm = message.immediate().map_or(Extra::None, Extra::Imm);
        assert_eq!((completion.extra, completion.grh.is_some()), (imm, is_datagram));
        assert_eq!(completion.solicited, message.wqe.wr.solicited);
        workload.received += 1;
        *message.deliveries.entry(number).or_default() += 1;
        let (from, dgid) = (message.from, message.dgid);
        self.check_order(number, id);
        let sender = &self.workloads[from].end;
        assert_eq!(completion.src_qpn, sender.qpn);
        if let Some(dgid) = dgid {
            check_grh(&data[..GRH_LEN], world.nodes[sender.node].addr, dgid);
        }
    }

    /// Messages of a connection arrive in order and once, except on UC and an unreliable network.
    fn check_order(&mut self, number: usize, id: usize) {
        let Network { duplicates, reorders } = self.network;
        let workload = &mut self.workloads[number];
        let is_reliable = workload.qp_type == QpType::Rc;
        if is_reliable || !duplicates {
            let message = &self.messages[id];
            assert_eq!(message.deliveries[&number], 1, "message {id} came twice");
        }
        let is_ordered = match workload.qp_type {
            QpType::Rc => true,
            QpType::Uc => !duplicates && !reorders,
            QpType::Ud => false,
        };
        let before = workload.newest.insert(self.messages[id].from, id);
        assert!(!is_ordered || before.is_none_or(|before| before < id), "{before:?}, then {id}");
    }

    /// Arms limits that were reached again, and takes failed send queues back to RTS.
    pub(crate) fn handle_events(&mut self, world: &mut World, rng: &mut Rng) {
        for receives in &mut self.receives {
            receives.handle_limit_event(world, rng);
        }
        for workload in self.workloads.iter_mut().filter(|workload| workload.failed) {
            let end = &workload.end;
            let host = &mut world.nodes[end.node].host;
            if host.send_queue(end.send_queue).is_idle() {
                assert_eq!(world.state(end), Some(QpState::Sqe));
                world.modify(end, &QpAttr { state: Some(QpState::Rts), ..QpAttr::default() });
                workload.failed = false;
            }
        }
    }

    /// Stops posting receives, and takes all QPs to ERR.
    pub fn end(&mut self, world: &mut World) {
        for receives in &mut self.receives {
            receives.stop();
        }
        for workload in &mut self.workloads {
            workload.next_burst = None;
            world.set_state(&workload.end, QpState::Err);
        }
    }

    /// Checks, after [`end`](Self::end), that every work request has completed and every event
    /// came.
    ///
    /// # Panics
    /// If it was.
    pub fn check_end(&self, world: &World) {
        for receives in &self.receives {
            receives.check_end(world);
        }
        for workload in &self.workloads {
            let DatagramWorkload { end, receives, outgoing, received, qp_type, .. } = workload;
            let node = &world.nodes[end.node];
            let count = |event| node.host.events.iter().filter(|&&found| found == event).count();
            let is_shared = self.receives[*receives].srq.is_some();
            assert_eq!(count(AsyncEvent::LastWqeReached(end.qpn)), usize::from(is_shared));
            assert!(node.host.sends[end.send_queue.0 as usize].is_idle(), "sends never ended");
            if self.attacked {
                continue;
            }
            let counters = node.device.qp_counters(end.qpn).expect("the QP is there");
            let states = outgoing.iter().map(|&message| self.messages[message].state);
            let sent = states.filter(|&state| state == SendState::Sent).count() as u64;
            assert_eq!(counters.get(Counter::SentMessages), sent);
            if *qp_type == QpType::Ud {
                assert_eq!(counters.get(Counter::ReceivedMessages), *received);
            }
        }
        for message in self.messages.iter().filter(|_| !self.attacked) {
            assert_ne!(message.state, SendState::NotPosted);
            if self.workloads[message.from].qp_type == QpType::Rc && message.takes_receive() {
                assert!(
                    message.deliveries.values().copied().eq([1]),
                    "lost on a reliable connection"
                );
            }
            self.check_window(world, message);
        }
    }

    /// The memory of a WRITE has its bytes or zeros: packets of it may have been lost.
    fn check_window(&self, world: &World, message: &Message) {
        let Some((mr, at)) = message.place else { return };
        let node = self.workloads[message.to[0]].end.node;
        let found = &world.nodes[node].host.memory.program(mr.region)[at..];
        let pairs = || found.iter().zip(&message.bytes);
        let is_whole = pairs().all(|(found, byte)| found == byte);
        match self.workloads[message.from].qp_type {
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
        for (number, workload) in self.workloads.iter().enumerate() {
            let counters = world.nodes[workload.end.node].device.qp_counters(workload.end.qpn);
            let counters = counters.expect("the QP is there");
            let is_mine = |message: &&Message| {
                message.state == SendState::Sent
                    && message.to.contains(&number)
                    && message.takes_receive()
            };
            let expected = self.messages.iter().filter(is_mine).count() as u64;
            let dropped = [Counter::DropNoReceive, Counter::DropReceiveTooShort]
                .map(|counter| counters.get(counter));
            assert_eq!(workload.received + dropped.iter().sum::<u64>(), expected);
        }
    }

    /// The progress of all programs.
    pub(crate) fn summary(&self, world: &World) -> String {
        let line = |workload: &DatagramWorkload| {
            let DatagramWorkload { end, qp_type, posted, ended, outgoing, .. } = workload;
            let (node, qpn, state, of) = (end.node, end.qpn, world.state(end), outgoing.len());
            format!("\n  node {node} {qpn} {qp_type:?} {state:?}: {posted}, {ended} of {of}")
        };
        self.workloads.iter().map(line).collect()
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
            messages[number].state = SendState::Posted;
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
        let mut end = |workload: &mut DatagramWorkload| {
            assert!(workload.ended < workload.posted, "{number} is not due");
            let ended = workload.outgoing[workload.ended];
            workload.ended += 1;
            let message = &mut messages[ended];
            message.state = SendState::Sent;
            if ended == number {
                let expected = match message.expected_error {
                    _ if workload.failed => WcStatus::WrFlush,
                    Some(status) => status,
                    None => WcStatus::Success,
                };
                assert_eq!(status, expected, "message {number}");
                if status != WcStatus::Success {
                    workload.failed = true;
                    message.state = SendState::Failed;
                }
                return true;
            }
            assert!(
                !message.wqe.wr.signaled && message.expected_error.is_none(),
                "{ended} never completed"
            );
            false
        };
        while !end(self) {}
    }

    /// If the send queue is empty, unsignaled sends have completed too.
    fn retire_idle_sends(&mut self, world: &mut World, messages: &mut [Message]) {
        let host = &mut world.nodes[self.end.node].host;
        if !host.send_queue(self.end.send_queue).is_idle() {
            return;
        }
        for &number in &self.outgoing[self.ended..self.posted] {
            let message = &mut messages[number];
            assert!(
                !message.wqe.wr.signaled && message.expected_error.is_none(),
                "{number} never completed"
            );
            message.state = SendState::Sent;
        }
        self.ended = self.posted;
    }
}

impl DatagramWorkloads {
    /// Completes the unsignaled sends of empty send queues.
    pub(crate) fn retire_idle_sends(&mut self, world: &mut World) {
        for workload in self.workloads.iter_mut().filter(|_| !self.attacked) {
            workload.retire_idle_sends(world, &mut self.messages);
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
