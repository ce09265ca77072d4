//! Random work, with the results that are expected.
//!
//! A plan is made before the run and has the effect and the result of every work request. That is
//! possible because of the order that RC guarantees: requests of one QP are executed in the
//! order in which they were posted, except that a READ may still be gathering its data while later
//! requests are executed, unless they are fenced. So each direction of a connection has a window
//! of the responder's memory to itself, and wherever a request would write to what an earlier READ
//! may still be reading, or gather from what it may still be writing, the plan has a fence.

use crate::rng::Rng;
use crate::simulation::arena::Arena;
use crate::simulation::host::RECV_WR_ID;
use crate::simulation::queues::send_wqe;
use crate::simulation::world::Mr;
use std::ops::Range;
use urxe_types::{
    Access, Extra, FlushPlacement, FlushSelectivity, Lkey, MwType, PathMtu, RecvWqe, Rkey, SendOp,
    SendWqe, Sge, WcOpcode,
};

/// How often, relatively, each kind of work is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    pub send: u64,
    pub write: u64,
    pub read: u64,
    pub compare_swap: u64,
    pub fetch_add: u64,
    pub atomic_write: u64,
    pub flush: u64,
    /// Binding and closing windows of the requester's own.
    pub local: u64,
}

/// What kind of work a plan is made of.
#[derive(Clone, Debug)]
pub struct Style {
    /// Payload of a packet: sizes keep close to its multiples.
    pub mtu: PathMtu,
    /// Work requests.
    pub count: usize,
    /// Longest message, in bytes.
    pub max_message: usize,
    /// All messages together, in bytes.
    pub budget: usize,
    /// The operations.
    pub mix: Mix,
    /// Entries in a scatter/gather list.
    pub max_sge: usize,
    /// Percent of requests that carry a completion.
    pub signaled: u64,
    /// Percent of requests that are fenced without need.
    pub fenced: u64,
    /// Percent of SENDs and WRITEs that are inline, where short enough.
    pub inline: u64,
    /// Percent of SENDs and WRITEs that have immediate data.
    pub immediate: u64,
}

impl Style {
    /// Draws a style.
    pub fn draw(rng: &mut Rng, mtu: PathMtu, with_reads: bool) -> Style {
        let mut weights = [(); 5].map(|()| rng.pick(&[0, 1, 1, 4]));
        if !with_reads {
            weights[2..].fill(0);
        }
        weights[rng.index(2)] += 1;
        let [send, write, read, compare_swap, fetch_add] = weights;
        let mix = Mix { send, write, read, compare_swap, fetch_add, ..Mix::default() };
        let max_message = rng.pick(&[64, 2_000, 20_000, 60_000, 400_000]);
        Style {
            mtu,
            count: rng.pick(&[1, 4, 20, 60, 120]),
            max_message,
            budget: max_message.max(rng.pick(&[20_000, 200_000, 800_000])),
            mix,
            max_sge: rng.pick(&[1, 2, 5, 32]),
            signaled: rng.pick(&[100, 100, 50, 5]),
            fenced: rng.pick(&[0, 10]),
            inline: rng.pick(&[0, 50]),
            immediate: rng.pick(&[0, 30]),
        }
    }

    /// Draws how much of it is ATOMIC WRITE, FLUSH and local operations.
    pub fn enrich(&mut self, rng: &mut Rng, with_reads: bool) {
        let mut weight = || rng.pick(&[0, 1, 1, 4]);
        self.mix.atomic_write = if with_reads { weight() } else { 0 };
        self.mix.flush = weight();
        self.mix.local = weight();
    }

    fn message_len(&self, rng: &mut Rng, budget: usize) -> usize {
        let max = self.max_message.min(budget) as u64;
        let mtu = self.mtu.bytes() as u64;
        let len = match rng.range(0..=9) {
            0 => 0,
            1 | 2 => rng.range(0..=64),
            3..=8 => {
                let packets = rng.range(1..=(max / mtu).max(1));
                let packets = if rng.percent(80) { rng.range(1..=packets.min(6)) } else { packets };
                (packets * mtu + rng.range(0..=2)).saturating_sub(1)
            }
            _ => rng.range(0..=max),
        };
        len.min(max) as usize
    }
}

/// A work request to be posted, with its expected result.
#[derive(Clone, Debug)]
pub struct PlannedSend {
    /// The work request.
    pub wqe: SendWqe,
    /// Bytes of the message.
    pub len: usize,
    /// What it does at the responder.
    pub effect: Effect,
    /// The data returned into its scatter list; `None` if there is none, or it is not known.
    pub answer: Option<Vec<u8>>,
    /// The program changes the memory of its list as soon as it has completed.
    pub reuses_memory: bool,
    /// What is posted is malformed, except for its number.
    pub malformed: bool,
}

impl PlannedSend {
    /// A work request that has no effect and brings no answer.
    pub fn new(wqe: SendWqe, len: usize) -> PlannedSend {
        PlannedSend {
            wqe,
            len,
            effect: Effect::None,
            answer: None,
            reuses_memory: false,
            malformed: false,
        }
    }

    /// Whether it sends nothing to the responder.
    pub fn is_local(&self) -> bool {
        matches!(self.wqe.wr.op, SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. })
    }

    /// Whether it consumes a receive at the responder.
    pub fn consumes_receive(&self) -> bool {
        matches!(self.wqe.wr.op, SendOp::Send(_) | SendOp::Write { imm: Some(_), .. })
    }
}

/// What a work request does at the responder.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Nothing, or only the receive that it consumes.
    None,
    /// Changes bytes of the window.
    Window {
        /// Where.
        at: usize,
        /// To what.
        bytes: Vec<u8>,
    },
    /// Adds to the counter that all share.
    Counter {
        /// How much.
        add: u64,
    },
}

/// A receive to be posted, with the message that it gets.
#[derive(Clone, Debug)]
pub struct PlannedRecv {
    /// The work request.
    pub wqe: RecvWqe,
    /// The opcode of its completion.
    pub opcode: WcOpcode,
    /// The length in its completion.
    pub byte_len: usize,
    /// What its memory begins with then: nothing for a WRITE with immediate data.
    pub data: Vec<u8>,
    /// What its completion brings.
    pub extra: Extra,
    /// The message had the solicited bit.
    pub solicited: bool,
    /// What is posted is malformed, except for its number.
    pub malformed: bool,
}

/// The work of one direction of a connection.
#[derive(Debug)]
pub struct Plan {
    /// What the requester posts.
    pub sends: Vec<PlannedSend>,
    /// What the responder posts.
    pub recvs: Vec<PlannedRecv>,
    /// The window's content before.
    pub window: Vec<u8>,
}

/// Makes a plan, one work request after the other.
pub struct Planner<'a> {
    /// What the work is like.
    pub style: &'a Style,
    /// Randomness.
    pub rng: Rng,
    /// Memory of the requester's program.
    pub local: &'a mut Arena,
    /// Memory of the responder's program.
    pub remote: &'a mut Arena,
    /// The window, and its content before the first request.
    pub window: (Mr, Vec<u8>),
    /// Windows of the responder that open the same, but that may count from another address.
    pub open_windows: Vec<OpenWindow>,
    /// The shared counter.
    pub counter: Mr,
    /// Keys of the responder that a SEND may invalidate.
    pub lent: Vec<u32>,
    /// Memory of the requester's program that it binds windows to, and the windows.
    pub own: (Mr, Vec<OwnWindow>),
    /// Put into the `wr_id`s, so that they are unique on a node.
    pub number: u64,
}

/// A key that opens the responder's window.
#[derive(Clone, Copy, Debug)]
pub struct OpenWindow {
    pub rkey: u32,
    /// The address of the first byte, in the terms that go with it.
    pub addr: u64,
}

/// A memory window of the requester's program.
#[derive(Clone, Copy, Debug)]
pub struct OwnWindow {
    pub mw_type: MwType,
    /// The key that it has after all requests so far.
    pub rkey: u32,
    /// Whether it is bound then.
    pub is_bound: bool,
}

/// The key with the program's bits counted up by one: `ibv_inc_rkey`.
pub fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}

/// What the planner knows of the run so far.
struct Progress {
    /// The window after all requests so far.
    window: Vec<u8>,
    /// What READs may still be reading.
    reading: Vec<Range<usize>>,
    /// Requests whose returned data were not overwritten since.
    answers: Vec<usize>,
}

impl Planner<'_> {
    /// Makes the plan; it is shorter than the style says when the budget or the memory runs out.
    pub fn plan(mut self) -> Plan {
        let before = self.window.1.clone();
        let mut progress =
            Progress { window: before.clone(), reading: Vec::new(), answers: Vec::new() };
        let mut plan = Plan { sends: Vec::new(), recvs: Vec::new(), window: before };
        let mut budget = self.style.budget;
        for _ in 0..self.style.count {
            let len = self.style.message_len(&mut self.rng, budget);
            let Some((send, recv)) = self.next(len, &mut progress, &plan) else { break };
            budget = budget.saturating_sub(send.len);
            plan.sends.push(send);
            plan.recvs.extend(recv);
        }
        plan
    }

    fn next(
        &mut self,
        len: usize,
        progress: &mut Progress,
        plan: &Plan,
    ) -> Option<(PlannedSend, Option<PlannedRecv>)> {
        let mix = &self.style.mix;
        let weights = [
            mix.send,
            mix.write,
            mix.read,
            mix.compare_swap,
            mix.fetch_add,
            mix.atomic_write,
            mix.flush,
            mix.local,
        ];
        let mut drawn = self.rng.range(0..=weights.iter().sum::<u64>() - 1);
        let kind = weights.iter().position(|&weight| {
            let here = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            here
        });
        let number = plan.sends.len();
        match kind {
            Some(0) => self.send(len, progress, plan),
            Some(1) => self.write(len, progress, plan),
            Some(2) => self.read(len, progress, number).map(|send| (send, None)),
            Some(3) => self.compare_swap(progress, number).map(|send| (send, None)),
            Some(4) => self.fetch_add(progress, number).map(|send| (send, None)),
            Some(5) => self.atomic_write(progress, number).map(|send| (send, None)),
            Some(6) => Some((self.flush(progress, number), None)),
            _ => Some((self.local(progress, number), None)),
        }
    }

    fn send(
        &mut self,
        len: usize,
        progress: &mut Progress,
        plan: &Plan,
    ) -> Option<(PlannedSend, Option<PlannedRecv>)> {
        let (mut send, data) = self.outgoing(len, progress, plan)?;
        let lent = if self.rng.percent(10) { self.lent.pop() } else { None };
        let extra = match (lent, self.immediate()) {
            (Some(key), _) => Extra::Invalidate(Rkey(key)),
            (None, Some(imm)) => Extra::Imm(imm),
            (None, None) => Extra::None,
        };
        send.wqe.wr.op = SendOp::Send(extra);
        let spare = if self.rng.percent(30) { self.rng.range(1..=3_000) as usize } else { 0 };
        let recv = self.recv(plan.recvs.len(), data.len() + spare)?;
        let recv = PlannedRecv {
            wqe: recv,
            opcode: WcOpcode::Recv,
            byte_len: data.len(),
            data,
            extra,
            solicited: send.wqe.wr.solicited,
            malformed: false,
        };
        Some((send, Some(recv)))
    }

    fn write(
        &mut self,
        len: usize,
        progress: &mut Progress,
        plan: &Plan,
    ) -> Option<(PlannedSend, Option<PlannedRecv>)> {
        let len = len.min(progress.window.len());
        let (mut send, data) = self.outgoing(len, progress, plan)?;
        let at = self.rng.range(0..=(progress.window.len() - data.len()) as u64) as usize;
        let imm = self.immediate();
        let (remote_addr, rkey) = self.remote(at);
        send.wqe.wr.op = SendOp::Write { remote_addr, rkey, imm };
        progress.change(at, &data, &mut send.wqe);
        let recv = match imm {
            None => None,
            Some(imm) => {
                let spare = self.rng.pick(&[0, 100]);
                Some(PlannedRecv {
                    wqe: self.recv(plan.recvs.len(), spare)?,
                    opcode: WcOpcode::RecvRdmaWithImm,
                    byte_len: data.len(),
                    data: Vec::new(),
                    extra: Extra::Imm(imm),
                    solicited: send.wqe.wr.solicited,
                    malformed: false,
                })
            }
        };
        send.effect = Effect::Window { at, bytes: data };
        Some((send, recv))
    }

    fn read(&mut self, len: usize, progress: &mut Progress, number: usize) -> Option<PlannedSend> {
        let len = len.min(progress.window.len());
        let at = self.rng.range(0..=(progress.window.len() - len) as u64) as usize;
        let (remote_addr, rkey) = self.remote(at);
        let op = SendOp::Read { remote_addr, rkey };
        let mut send = self.incoming(op, len, number)?;
        if send.wqe.wr.fence {
            progress.fence();
        }
        send.answer = Some(progress.window[at..at + len].to_vec());
        progress.reading.push(at..at + len);
        progress.answers.push(number);
        Some(send)
    }

    fn compare_swap(&mut self, progress: &mut Progress, number: usize) -> Option<PlannedSend> {
        let at = self.word(progress)?;
        let was = progress.word(at);
        let compare = if self.rng.percent(60) { was } else { self.rng.next_u64() };
        let swap = self.rng.next_u64();
        let (remote_addr, rkey) = self.remote_word(at);
        let op = SendOp::CompareSwap { remote_addr, rkey, compare, swap };
        let now = if compare == was { swap } else { was };
        self.atomic(op, at, was, now, progress, number)
    }

    fn fetch_add(&mut self, progress: &mut Progress, number: usize) -> Option<PlannedSend> {
        let add = self.rng.next_u64();
        if self.rng.percent(40) {
            let rkey = Rkey(self.counter.key);
            let op = SendOp::FetchAdd { remote_addr: self.counter.addr, rkey, add };
            let mut send = self.incoming(op, 8, number)?;
            if send.wqe.wr.fence {
                progress.fence();
            }
            send.effect = Effect::Counter { add };
            return Some(send);
        }
        let at = self.word(progress)?;
        let was = progress.word(at);
        let (remote_addr, rkey) = self.remote_word(at);
        let op = SendOp::FetchAdd { remote_addr, rkey, add };
        self.atomic(op, at, was, was.wrapping_add(add), progress, number)
    }

    /// An atomic on the window that finds `was` and leaves `now`.
    fn atomic(
        &mut self,
        op: SendOp,
        at: usize,
        was: u64,
        now: u64,
        progress: &mut Progress,
        number: usize,
    ) -> Option<PlannedSend> {
        let mut send = self.incoming(op, 8, number)?;
        let bytes = now.to_ne_bytes().to_vec();
        progress.change(at, &bytes, &mut send.wqe);
        send.effect = Effect::Window { at, bytes };
        send.answer = Some(was.to_ne_bytes().to_vec());
        progress.answers.push(number);
        Some(send)
    }

    fn atomic_write(&mut self, progress: &mut Progress, number: usize) -> Option<PlannedSend> {
        let at = self.word(progress)?;
        let (remote_addr, rkey) = self.remote_word(at);
        let mut send = self.blank(SendOp::AtomicWrite { remote_addr, rkey }, 8, number);
        let bytes = if self.rng.percent(self.style.inline) {
            let bytes = self.rng.bytes(8);
            send.wqe.inline = Some(bytes.clone());
            bytes
        } else {
            send.wqe.sges = self.local.cut(&mut self.rng, 8, self.style.max_sge)?;
            send.reuses_memory = true;
            self.local.gather(&send.wqe.sges)
        };
        progress.change(at, &bytes, &mut send.wqe);
        send.effect = Effect::Window { at, bytes };
        Some(send)
    }

    fn flush(&mut self, progress: &mut Progress, number: usize) -> PlannedSend {
        let len = self.rng.range(0..=progress.window.len() as u64);
        let at = self.rng.range(0..=progress.window.len() as u64 - len) as usize;
        let (remote_addr, rkey) = self.remote(at);
        let (length, placement) = (len as u32, FlushPlacement::GLOBAL);
        let selectivity = self.rng.pick(&[FlushSelectivity::Range, FlushSelectivity::Mr]);
        let op = SendOp::Flush { remote_addr, rkey, length, placement, selectivity };
        let send = self.blank(op, 0, number);
        if send.wqe.wr.fence {
            progress.fence();
        }
        send
    }

    /// Binds one of the requester's own windows, or closes it. Done twice, it fails.
    fn local(&mut self, progress: &mut Progress, number: usize) -> PlannedSend {
        let (mr, windows) = &mut self.own;
        let index = self.rng.index(windows.len());
        let window = &mut windows[index];
        let (op, waits) = match window.mw_type {
            MwType::Two if window.is_bound => {
                window.is_bound = false;
                (SendOp::LocalInvalidate { key: Rkey(window.rkey) }, true)
            }
            _ => {
                let mw = Rkey(window.rkey);
                window.rkey = next_key(window.rkey);
                let length = match window.mw_type {
                    MwType::One => self.rng.range(0..=8),
                    MwType::Two => self.rng.range(1..=8),
                };
                window.is_bound = length > 0;
                let (new_rkey, lkey) = (Rkey(window.rkey), Lkey(mr.key));
                let access = self.rng.pick(&[Access::REMOTE_READ, Access::REMOTE_WRITE]);
                (SendOp::BindMw { mw, new_rkey, mr: lkey, addr: mr.addr, length, access }, false)
            }
        };
        let send = self.blank(op, 0, number);
        // An invalidation waits for all before it.
        if waits || send.wqe.wr.fence {
            progress.fence();
        }
        send
    }

    /// The address of a place in the responder's window, and a key that opens it.
    fn remote(&mut self, at: usize) -> (u64, Rkey) {
        match self.open_windows.is_empty() {
            true => self.remote_word(at),
            false => {
                let open_window = self.rng.pick(&self.open_windows);
                (open_window.addr + at as u64, Rkey(open_window.rkey))
            }
        }
    }

    /// As [`remote`](Self::remote), where the address must be a multiple of 8.
    fn remote_word(&self, at: usize) -> (u64, Rkey) {
        (self.window.0.addr + at as u64, Rkey(self.window.0.key))
    }

    /// Where an aligned word of the window is, often one of the first few.
    fn word(&mut self, progress: &Progress) -> Option<usize> {
        let first = self.window.0.addr.next_multiple_of(8) - self.window.0.addr;
        let words = (progress.window.len() as u64).checked_sub(first)? / 8;
        let last = words.checked_sub(1)?;
        let last = if self.rng.percent(70) { last.min(3) } else { last };
        Some((first + 8 * self.rng.range(0..=last)) as usize)
    }

    /// A SEND or WRITE of about `len` bytes, with its data. Its operation is still to be filled
    /// in.
    fn outgoing(
        &mut self,
        len: usize,
        progress: &mut Progress,
        plan: &Plan,
    ) -> Option<(PlannedSend, Vec<u8>)> {
        let mut send = self.blank(SendOp::Send(Extra::None), len, plan.sends.len());
        let data = if len <= 256 && self.rng.percent(self.style.inline) {
            // Ignored when there is inline data, so it may be anything.
            send.wqe.sges = vec![Sge { addr: 1, length: u32::MAX, ..Sge::default() }];
            let data = self.rng.bytes(len);
            send.wqe.inline = Some(data.clone());
            data
        } else if !progress.answers.is_empty() && self.rng.percent(20) {
            // Passes on what an earlier request has brought, which takes a fence.
            let number = self.rng.pick(&progress.answers);
            let source = &plan.sends[number];
            let data = source.answer.clone()?;
            if data.len() > self.style.max_message.min(progress.window.len()).min(len.max(64)) {
                return self.outgoing_from_arena(send, len);
            }
            send.wqe.sges.clone_from(&source.wqe.sges);
            send.wqe.wr.fence = true;
            data
        } else {
            return self.outgoing_from_arena(send, len);
        };
        send.len = data.len();
        if send.wqe.wr.fence {
            progress.fence();
        }
        Some((send, data))
    }

    fn outgoing_from_arena(
        &mut self,
        mut send: PlannedSend,
        len: usize,
    ) -> Option<(PlannedSend, Vec<u8>)> {
        send.wqe.sges = self.local.cut(&mut self.rng, len, self.style.max_sge)?;
        send.reuses_memory = true;
        let data = self.local.gather(&send.wqe.sges);
        Some((send, data))
    }

    /// A READ or atomic of `len` bytes.
    fn incoming(&mut self, op: SendOp, len: usize, number: usize) -> Option<PlannedSend> {
        let mut send = self.blank(op, len, number);
        send.wqe.sges = self.local.cut(&mut self.rng, len, self.style.max_sge)?;
        Some(send)
    }

    fn blank(&mut self, op: SendOp, len: usize, number: usize) -> PlannedSend {
        let wr_id = self.number << 32 | number as u64;
        let mut wqe = send_wqe(wr_id, op, Vec::new());
        wqe.wr.fence = self.rng.percent(self.style.fenced);
        wqe.wr.signaled = self.rng.percent(self.style.signaled);
        wqe.wr.solicited = self.rng.percent(20);
        PlannedSend::new(wqe, len)
    }

    fn recv(&mut self, number: usize, len: usize) -> Option<RecvWqe> {
        let sges = self.remote.cut(&mut self.rng, len, self.style.max_sge)?;
        Some(RecvWqe { wr_id: RECV_WR_ID | self.number << 32 | number as u64, sges })
    }

    fn immediate(&mut self) -> Option<u32> {
        self.rng.percent(self.style.immediate).then(|| self.rng.next_u64() as u32)
    }
}

impl Progress {
    /// All READs and atomics before have ended.
    fn fence(&mut self) {
        self.reading.clear();
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.window[at..at + 8].try_into().expect("8 bytes"))
    }

    /// A request changes the window; it has to wait for READs of the same bytes.
    fn change(&mut self, at: usize, bytes: &[u8], wqe: &mut SendWqe) {
        let end = at + bytes.len();
        wqe.wr.fence |= self.reading.iter().any(|range| range.start < end && at < range.end);
        if wqe.wr.fence {
            self.fence();
        }
        self.window[at..end].copy_from_slice(bytes);
    }
}
