//! Programs that carry out plans, and check whatever they are told.

use crate::arena::{Arena, check_memory};
use crate::host::{RECV_WR_ID, completion_opcode, has_sink};
use crate::plan::{Effect, PlannedRecv, PlannedSend};
use crate::queues::Completed;
use crate::rng::Rng;
use crate::world::{End, Mr, World};
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};
use urxe_engine::{Cause, Completion, CqId, QpState, Sge, Status};

/// How a program goes about its work.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Work requests that it posts at once.
    pub burst: RangeInclusive<u64>,
    /// Microseconds between one burst and the next.
    pub gap: RangeInclusive<u64>,
}

impl Pace {
    /// As fast as it can.
    pub fn eager() -> Pace {
        Pace { burst: 64..=64, gap: 1..=1 }
    }

    /// Draws a pace: mostly fast, sometimes so slow that the other side has to wait.
    pub fn draw(rng: &mut Rng) -> Pace {
        let gap = rng.pick(&[1, 1, 30, 400, 3_000]);
        Pace { burst: 1..=rng.pick(&[1, 4, 64]), gap: gap / 2..=gap }
    }
}

/// A work request that did not succeed, the first of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its number in the plan.
    pub index: usize,
    /// How it ended.
    pub status: Status,
    /// Why, in the engine's terms.
    pub cause: Option<Cause>,
}

/// How far one queue of a program is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Work requests posted.
    pub posted: usize,
    /// Work requests that have ended, the oldest ones.
    pub ended: usize,
    /// The one that took the QP to ERR, or was flushed first.
    pub failed: Option<Failed>,
    next_burst: Option<Instant>,
}

/// A part of the responder's memory that one requester writes to.
#[derive(Debug)]
pub struct Window {
    /// Its node.
    pub node: usize,
    /// Its MR.
    pub mr: Mr,
    /// What must be there.
    pub model: Vec<u8>,
    /// Where nobody can say.
    pub forgotten: Vec<Range<usize>>,
}

/// One end of a connection, and the program behind it.
#[derive(Debug)]
pub struct Party {
    /// Its QP.
    pub end: End,
    /// What it sends.
    pub sends: Vec<PlannedSend>,
    /// What it receives.
    pub recvs: Vec<PlannedRecv>,
    /// How far its sends are.
    pub send_progress: Progress,
    /// How far its receives are.
    pub recv_progress: Progress,
    /// How fast it sends.
    pub send_pace: Pace,
    /// How fast it posts receives.
    pub recv_pace: Pace,
    /// Its memory.
    pub arena: Arena,
    /// The peer's memory that it may write to.
    pub window: Window,
    /// The peer's node's counter: what this party's completed requests added, and whether some
    /// may have added without completing.
    pub counted: u64,
    /// Some request of unknown fate may have added to the counter.
    pub count_unknown: bool,
    /// Errors are expected here.
    pub may_fail: bool,
}

/// A world with programs in it.
pub struct Traffic {
    /// The world.
    pub world: World,
    /// Both ends of every connection.
    pub parties: Vec<Party>,
    rng: Rng,
    steps: u64,
}

/// A run that takes more steps than this hangs in a loop.
const MAX_STEPS: u64 = 2_000_000;

impl Party {
    /// Everything it is to post is posted and has ended.
    pub fn is_done(&self) -> bool {
        self.send_progress.ended == self.sends.len() && self.recv_progress.ended == self.recvs.len()
    }

    /// A work request of this party succeeded: what it did is from now on expected to be there.
    fn send_succeeded(&mut self, world: &mut World, index: usize, found: Option<Vec<u8>>) {
        let host = &mut world.nodes[self.end.node].host;
        let send = &self.sends[index];
        let sges = &send.wqe.sges;
        if has_sink(&send.wqe.op) {
            let found = found.unwrap_or_else(|| host.program_gather(sges));
            if let Some(answer) = &send.answer {
                assert_same(&found, answer, format_args!("{:#x}: answer", send.wqe.wr_id));
            }
            self.arena.scatter(sges, &found);
        }
        match &send.effect {
            Effect::None => {}
            Effect::Window { at, bytes } => {
                self.window.model[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Effect::Counter { add } => self.counted = self.counted.wrapping_add(*add),
        }
        if send.reuses_memory {
            let junk = vec![!0x5a; send.len];
            host.program_scatter(sges, &junk);
            self.arena.scatter(sges, &junk);
        }
        self.send_progress.ended += 1;
    }

    /// A work request ended without success: what it was to do may be done, or half done.
    fn send_failed(&mut self, index: usize) {
        let send = &self.sends[index];
        if has_sink(&send.wqe.op) {
            self.arena.forget(&send.wqe.sges);
        }
        match &send.effect {
            Effect::None => {}
            Effect::Window { at, bytes } => self.window.forgotten.push(*at..at + bytes.len()),
            Effect::Counter { .. } => self.count_unknown = true,
        }
        self.send_progress.ended += 1;
    }

    fn on_send(&mut self, world: &mut World, completed: Completed) {
        let Completed { completion, data } = completed;
        let Completion { wr_id, status, .. } = completion;
        let number = wr_id as u32 as usize;
        let Progress { posted, ended, failed, .. } = self.send_progress;
        assert!((ended..posted).contains(&number), "completion of {wr_id:#x}, which is not due");
        assert_eq!(self.sends[number].wqe.wr_id, wr_id);
        if let Some(failed) = failed {
            assert_eq!(number, ended, "flushed out of order after {failed:?}");
            assert_eq!(status, Status::WrFlush, "{wr_id:#x}, after {failed:?}");
            return self.send_failed(number);
        }
        for index in ended..number {
            let send = &self.sends[index];
            assert!(!send.wqe.signaled, "no completion of {:#x}", send.wqe.wr_id);
            self.send_succeeded(world, index, None);
        }
        if status != Status::Success {
            self.send_progress.failed = Some(self.first_failure(number, &completion));
            return self.send_failed(number);
        }
        let send = &self.sends[number];
        assert!(send.wqe.signaled, "a completion of {wr_id:#x}, which asked for none");
        assert_eq!(completion.opcode, completion_opcode(&send.wqe.op));
        assert_eq!(completion.byte_len as usize, send.len);
        assert_eq!(completion.vendor_err, 0);
        self.send_succeeded(world, number, Some(data));
    }

    fn on_recv(&mut self, world: &mut World, completed: Completed) {
        let Completed { completion, data } = completed;
        let Completion { wr_id, status, .. } = completion;
        let number = wr_id as u32 as usize;
        let Progress { posted, ended, failed, .. } = self.recv_progress;
        assert_eq!(number, ended, "receives end in order");
        assert!(number < posted);
        let recv = &self.recvs[number];
        assert_eq!(recv.wqe.wr_id, wr_id);
        self.recv_progress.ended += 1;
        if status != Status::Success {
            match failed {
                Some(failed) => assert_eq!(status, Status::WrFlush, "{wr_id:#x} after {failed:?}"),
                None => {
                    self.recv_progress.failed = Some(self.first_failure(number, &completion));
                    self.arena.forget(&self.recvs[number].wqe.sges);
                }
            }
            return;
        }
        assert_eq!(failed, None, "{wr_id:#x} succeeds in ERR");
        assert_eq!(completion.opcode, recv.opcode);
        assert_eq!(completion.byte_len as usize, recv.byte_len, "{wr_id:#x}");
        assert_eq!(completion.extra, recv.extra);
        assert_eq!(completion.solicited, recv.solicited);
        assert_eq!(completion.vendor_err, 0);
        let mut expected = self.arena.gather(&recv.wqe.sges);
        expected[..recv.data.len()].copy_from_slice(&recv.data);
        assert_same(&data, &expected, format_args!("{wr_id:#x}: received"));
        // The program may do with the memory what it likes, and nobody else may.
        let junk = vec![!0xa5; data.len()];
        world.nodes[self.end.node].host.program_scatter(&recv.wqe.sges, &junk);
        self.arena.scatter(&recv.wqe.sges, &junk);
    }

    fn first_failure(&self, index: usize, completion: &Completion) -> Failed {
        assert!(self.may_fail, "work request {index} failed: {completion:?}");
        let status = completion.status;
        Failed { index, status, cause: Cause::from_number(completion.vendor_err) }
    }

    /// The send queue is empty: what asked for no completion has ended too.
    fn on_idle_sends(&mut self, world: &mut World) {
        if self.send_progress.failed.is_some() {
            return;
        }
        for index in self.send_progress.ended..self.send_progress.posted {
            let send = &self.sends[index];
            assert!(!send.wqe.signaled, "{:#x} retired without completion", send.wqe.wr_id);
            self.send_succeeded(world, index, None);
        }
    }

    /// The QP goes to RESET: what is posted will never complete.
    pub fn on_reset(&mut self) {
        for index in self.send_progress.ended..self.send_progress.posted {
            self.send_failed(index);
        }
        for index in self.recv_progress.ended..self.recv_progress.posted {
            self.arena.forget(&self.recvs[index].wqe.sges);
        }
        self.recv_progress.ended = self.recv_progress.posted;
        self.send_progress.failed = None;
        self.recv_progress.failed = None;
    }

    /// Compares the memory that this party uses and writes to with what must be there.
    pub fn check_memory(&self, world: &World) {
        self.arena.check(&world.nodes[self.end.node].host);
        let Window { node, mr, model, forgotten } = &self.window;
        let found = world.nodes[*node].host.memory.program(mr.region);
        check_memory("window", found, model, forgotten);
    }
}

impl Traffic {
    /// Programs that are about to begin.
    pub fn new(world: World, mut parties: Vec<Party>, mut rng: Rng) -> Traffic {
        let now = world.now();
        for party in &mut parties {
            for (pace, progress) in [
                (&party.send_pace, &mut party.send_progress),
                (&party.recv_pace, &mut party.recv_progress),
            ] {
                progress.next_burst = Some(now + rng.micros(0..=*pace.gap.end()));
            }
        }
        Traffic { world, parties, rng, steps: 0 }
    }

    /// Runs until every party is done.
    pub fn run_to_end(&mut self, limit: Duration) {
        self.run_until(limit, |traffic| traffic.parties.iter().all(Party::is_done));
    }

    /// Runs until `done`, for at most `limit` of virtual time from the beginning.
    ///
    /// # Panics
    /// If it does not come to that, or a check fails.
    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Traffic) -> bool) {
        let end = self.world.now() + limit - self.world.elapsed();
        loop {
            self.poll();
            if done(self) {
                return;
            }
            let until = self.next_burst().unwrap_or(end).min(end);
            self.world.step(until);
            self.steps += 1;
            let stuck = self.world.now() >= end || self.steps > MAX_STEPS;
            assert!(!stuck, "stuck after {} steps: {}", self.steps, self.summary());
            self.post();
        }
    }

    /// When somebody posts next. A program whose queue is full does not wait for a time but for
    /// a place.
    fn next_burst(&mut self) -> Option<Instant> {
        let Traffic { world, parties, .. } = self;
        let next = parties.iter().flat_map(|party| {
            let host = &mut world.nodes[party.end.node].host;
            let can_send = host.send_queue(party.end.send_queue).room() > 0;
            let can_recv = host.recv_queue(party.end.recv_queue).room() > 0;
            [
                party.send_progress.next_burst.filter(|_| can_send),
                party.recv_progress.next_burst.filter(|_| can_recv),
            ]
        });
        next.flatten().min()
    }

    /// Lets the rest of the time pass in which anything moves.
    ///
    /// # Panics
    /// If the engines do not come to rest.
    pub fn run_to_rest(&mut self) {
        let limit = self.world.now() + Duration::from_secs(3600);
        while self.world.step(limit) {
            self.poll();
            self.steps += 1;
            assert!(self.steps < MAX_STEPS, "no rest: {}", self.summary());
        }
    }

    /// Polls all CQs.
    pub fn poll(&mut self) {
        for node in 0..self.world.nodes.len() {
            for cq in 0..self.world.nodes[node].host.cqs.len() {
                while let Some(completed) = self.world.nodes[node].host.cq(CqId(cq as u32)).poll() {
                    self.on_completion(node, CqId(cq as u32), completed);
                }
            }
        }
        for party in &mut self.parties {
            let host = &mut self.world.nodes[party.end.node].host;
            if host.send_queue(party.end.send_queue).is_idle() {
                party.on_idle_sends(&mut self.world);
            }
        }
    }

    fn on_completion(&mut self, node: usize, cq: CqId, completed: Completed) {
        let now = self.world.now();
        self.world.trace.completion(now, node, &completed.completion);
        let qpn = completed.completion.qpn;
        let party = self.parties.iter_mut().find(|p| p.end.node == node && p.end.qpn == qpn);
        let party = party.unwrap_or_else(|| panic!("completion of QP {qpn}, which is nobody's"));
        match completed.completion.wr_id & RECV_WR_ID {
            0 => {
                assert_eq!(cq, party.end.send_cq);
                party.on_send(&mut self.world, completed);
            }
            _ => {
                assert_eq!(cq, party.end.recv_cq);
                party.on_recv(&mut self.world, completed);
            }
        }
    }

    /// Lets every program post whose time has come.
    fn post(&mut self) {
        for index in 0..self.parties.len() {
            self.post_recvs(index);
            self.post_sends(index);
        }
    }

    fn post_sends(&mut self, index: usize) {
        let Traffic { world, parties, rng, .. } = self;
        let Party { end, sends, send_progress: progress, send_pace: pace, .. } =
            &mut parties[index];
        if progress.next_burst.is_none_or(|at| at > world.now()) {
            return;
        }
        let burst = rng.range(pace.burst.clone()) as usize;
        let room = world.nodes[end.node].host.send_queue(end.send_queue).room();
        let count = burst.min(room).min(sends.len() - progress.posted);
        for send in &sends[progress.posted..progress.posted + count] {
            world.post_send(end, send.wqe.clone());
        }
        if count > 0 {
            world.ring(end);
        }
        progress.posted += count;
        let left = progress.posted < sends.len();
        progress.next_burst = left.then(|| world.now() + rng.micros(pace.gap.clone()));
    }

    fn post_recvs(&mut self, index: usize) {
        let Traffic { world, parties, rng, .. } = self;
        let Party { end, recvs, recv_progress: progress, recv_pace: pace, .. } =
            &mut parties[index];
        if progress.next_burst.is_none_or(|at| at > world.now()) {
            return;
        }
        let burst = rng.range(pace.burst.clone()) as usize;
        let room = world.nodes[end.node].host.recv_queue(end.recv_queue).room();
        let count = burst.min(room).min(recvs.len() - progress.posted);
        for recv in &recvs[progress.posted..progress.posted + count] {
            world.post_recv(end, recv.wqe.clone());
        }
        // The rings have no doorbell for receives; in ERR somebody has to look after them.
        if count > 0 && world.state(end) == Some(QpState::Err) {
            world.ring(end);
        }
        progress.posted += count;
        let left = progress.posted < recvs.len();
        progress.next_burst = left.then(|| world.now() + rng.micros(pace.gap.clone()));
    }

    /// How far everybody is.
    fn summary(&self) -> String {
        let line = |party: &Party| {
            format!(
                "\n  node {} {} {:?}: sends {} posted, {} ended of {}; receives {} posted, {} ended of {}",
                party.end.node,
                party.end.qpn,
                self.world.state(&party.end),
                party.send_progress.posted,
                party.send_progress.ended,
                party.sends.len(),
                party.recv_progress.posted,
                party.recv_progress.ended,
                party.recvs.len(),
            )
        };
        format!("{:?}{}", self.world.elapsed(), self.parties.iter().map(line).collect::<String>())
    }
}

/// Compares bytes, and names the first that differs.
fn assert_same(found: &[u8], expected: &[u8], what: std::fmt::Arguments<'_>) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(at) = (0..found.len()).find(|&i| found[i] != expected[i]) {
        panic!(
            "{what}: byte {at} of {} is {:#x}, and must be {:#x}",
            found.len(),
            found[at],
            expected[at]
        );
    }
}

/// The bytes of a list.
pub fn list_len(sges: &[Sge]) -> usize {
    sges.iter().map(|sge| sge.length as usize).sum()
}
