//! A program that carries out a plan, and checks every completion.

use crate::rng::Rng;
use crate::simulation::arena::{Arena, check_memory};
use crate::simulation::host::{RECV_WR_ID, completion_opcode, has_sink};
use crate::simulation::plan::{Effect, PlannedRecv, PlannedSend};
use crate::simulation::queues::Completed;
use crate::simulation::world::{End, Mr, World};
use std::ops::{Range, RangeInclusive};
use std::time::Instant;
use urxe_engine::{Cause, CqId};
use urxe_types::{Completion, QpState, WcStatus};

/// How fast a program posts.
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
    pub status: WcStatus,
    /// Why, in the engine's terms.
    pub cause: Cause,
}

/// The progress of one queue of a program.
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

impl Progress {
    /// The work requests to be posted now, of `count` in all, where there is room for `room`.
    fn burst(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        pace: &Pace,
        room: usize,
        count: usize,
    ) -> Range<usize> {
        let first = self.posted;
        if self.next_burst.is_some_and(|at| at <= now) {
            let burst = rng.range(pace.burst.clone()) as usize;
            self.posted += burst.min(room).min(count - first);
            let is_more = self.posted < count;
            self.next_burst = is_more.then(|| now + rng.micros(pace.gap.clone()));
        }
        first..self.posted
    }
}

/// A part of the responder's memory that one requester writes to.
#[derive(Debug)]
pub struct Window {
    pub node: usize,
    pub mr: Mr,
    /// Memory windows that are bound to it.
    pub open_windows: Vec<u32>,
    /// The expected content.
    pub model: Vec<u8>,
    /// Ranges whose content is not known, because of failed work requests.
    pub unknown: Vec<Range<usize>>,
}

/// One end of a connection, and the program behind it.
#[derive(Debug)]
pub struct RcWorkload {
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
    /// Binds that its QP did before the plan began.
    pub binds_before: u64,
    /// Its memory.
    pub arena: Arena,
    /// The peer's memory that it may write to.
    pub window: Window,
    /// The peer's node's counter: what this program's completed requests added, and whether some
    /// may have added without completing.
    pub counted: u64,
    /// A failed request may have added to the counter.
    pub count_unknown: bool,
    /// The expected result of its work.
    pub expects: Expects,
    abandoned: bool,
}

/// The expected result of a program's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expects {
    /// It succeeds.
    Success,
    /// It succeeds until one work request fails, and what comes after is flushed.
    Failure,
    /// Anything, because of an attack or a CQ that is too small; but nothing completes twice, or
    /// out of order. Memory is not checked.
    Anything,
}

impl RcWorkload {
    /// A program that has a QP and memory, and has not begun its work.
    pub fn new(
        end: End,
        arena: Arena,
        window: Window,
        (sends, recvs): (Vec<PlannedSend>, Vec<PlannedRecv>),
        (send_pace, recv_pace): (Pace, Pace),
    ) -> RcWorkload {
        RcWorkload {
            end,
            sends,
            recvs,
            send_progress: Progress::default(),
            recv_progress: Progress::default(),
            send_pace,
            recv_pace,
            binds_before: 0,
            arena,
            window,
            counted: 0,
            count_unknown: false,
            expects: Expects::Success,
            abandoned: false,
        }
    }

    /// Everything it is to post is posted and has ended.
    pub fn is_done(&self) -> bool {
        self.send_progress.ended == self.sends.len() && self.recv_progress.ended == self.recvs.len()
    }

    /// A work request of this program succeeded: its effect is expected from now on.
    fn send_succeeded(&mut self, world: &mut World, index: usize, found: Option<Vec<u8>>) {
        let host = &mut world.nodes[self.end.node].host;
        let send = &self.sends[index];
        let sges = &send.wqe.sges;
        if has_sink(&send.wqe.wr.op) {
            let found = found.unwrap_or_else(|| host.program_gather(sges));
            if let Some(answer) = &send.answer {
                assert_same(&found, answer, format_args!("{:#x}: answer", send.wqe.wr.wr_id));
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

    /// A work request failed: its effect may be there, or a part of it.
    fn send_failed(&mut self, index: usize) {
        let send = &self.sends[index];
        if has_sink(&send.wqe.wr.op) {
            self.arena.mark_unknown(&send.wqe.sges);
        }
        match &send.effect {
            Effect::None => {}
            Effect::Window { at, bytes } => self.window.unknown.push(*at..at + bytes.len()),
            Effect::Counter { .. } => self.count_unknown = true,
        }
        self.send_progress.ended += 1;
    }

    /// Handles a completion.
    pub(crate) fn on_completion(&mut self, world: &mut World, cq: CqId, completed: Completed) {
        match completed.completion.wr_id & RECV_WR_ID {
            0 => {
                assert_eq!(cq, self.end.send_cq);
                self.on_send(world, completed);
            }
            _ => {
                assert_eq!(cq, self.end.recv_cq);
                self.on_recv(world, completed);
            }
        }
    }

    fn on_send(&mut self, world: &mut World, completed: Completed) {
        let Completed { completion, data } = completed;
        let Completion { wr_id, status, .. } = completion;
        let number = wr_id as u32 as usize;
        let Progress { posted, ended, failed, .. } = self.send_progress;
        assert!((ended..posted).contains(&number), "completion of {wr_id:#x}, which is not due");
        assert_eq!(self.sends[number].wqe.wr.wr_id, wr_id);
        if self.expects == Expects::Anything {
            self.send_progress.ended = number + 1;
            return;
        }
        if let Some(failed) = failed {
            assert_eq!(number, ended, "flushed out of order after {failed:?}");
            assert_eq!(status, WcStatus::WrFlush, "{wr_id:#x}, after {failed:?}");
            return self.send_failed(number);
        }
        for index in ended..number {
            let send = &self.sends[index];
            assert!(!send.wqe.wr.signaled, "no completion of {:#x}", send.wqe.wr.wr_id);
            self.send_succeeded(world, index, None);
        }
        if status != WcStatus::Success {
            self.send_progress.failed = Some(self.first_failure(world, number, &completion));
            return self.send_failed(number);
        }
        let send = &self.sends[number];
        assert!(send.wqe.wr.signaled, "a completion of {wr_id:#x}, which asked for none");
        assert_eq!(completion.opcode, completion_opcode(&send.wqe.wr.op));
        assert_eq!(completion.byte_len as usize, send.len);
        assert_eq!(completion.vendor_err, 0);
        self.send_succeeded(world, number, Some(data));
    }

    fn on_recv(&mut self, world: &mut World, completed: Completed) {
        let Completed { completion, data } = completed;
        let Completion { wr_id, status, .. } = completion;
        let number = wr_id as u32 as usize;
        let Progress { posted, ended, failed, .. } = self.recv_progress;
        let lost = world.nodes[self.end.node].host.overruns > 0;
        assert!(number == ended || number > ended && lost, "{wr_id:#x} where {ended} is due");
        assert!(number < posted);
        let recv = &self.recvs[number];
        assert_eq!(recv.wqe.wr_id, wr_id);
        self.recv_progress.ended = number + 1;
        if self.expects == Expects::Anything {
            return;
        }
        if status != WcStatus::Success {
            match failed {
                Some(failed) => {
                    assert_eq!(status, WcStatus::WrFlush, "{wr_id:#x} after {failed:?}")
                }
                None => {
                    self.recv_progress.failed =
                        Some(self.first_failure(world, number, &completion));
                    self.arena.mark_unknown(&self.recvs[number].wqe.sges);
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
        // The memory belongs to the program again, which changes it.
        let junk = vec![!0xa5; data.len()];
        world.nodes[self.end.node].host.program_scatter(&recv.wqe.sges, &junk);
        self.arena.scatter(&recv.wqe.sges, &junk);
    }

    fn first_failure(&self, world: &World, index: usize, completion: &Completion) -> Failed {
        if self.expects == Expects::Success {
            let counters = world.nodes[self.end.node].device.qp_counters(self.end.qpn);
            let counted = counters.into_iter().flat_map(|counters| counters.iter());
            let counted = counted.filter(|(_, value, _)| *value > 0);
            let counted: Vec<_> = counted.map(|(name, value, _)| (name, value)).collect();
            panic!("work request {index}: {completion:?}; the QP has counted {counted:?}");
        }
        let cause = Cause::from_number(completion.vendor_err);
        let cause = cause.filter(|&cause| cause != Cause::None).expect("an error says why");
        Failed { index, status: completion.status, cause }
    }

    /// If the send queue is empty, unsignaled sends have completed too.
    pub(crate) fn retire_idle_sends(&mut self, world: &mut World) {
        if !world.nodes[self.end.node].host.send_queue(self.end.send_queue).is_idle() {
            return;
        }
        match self.expects {
            Expects::Anything => self.send_progress.ended = self.send_progress.posted,
            _ if self.send_progress.failed.is_some() => return,
            _ => {}
        }
        for index in self.send_progress.ended..self.send_progress.posted {
            let send = &self.sends[index];
            assert!(!send.wqe.wr.signaled, "{:#x} retired without completion", send.wqe.wr.wr_id);
            self.send_succeeded(world, index, None);
        }
    }

    /// Will begin soon after `now`.
    pub(crate) fn begin(&mut self, now: Instant, rng: &mut Rng) {
        let mut first = |pace: &Pace| Some(now + rng.micros(0..=*pace.gap.end()));
        self.send_progress.next_burst = first(&self.send_pace);
        self.recv_progress.next_burst = first(&self.recv_pace);
    }

    /// When it posts next. Where the queue is full it does not wait for a time but for a place.
    pub(crate) fn next_burst(&self, world: &World) -> Option<Instant> {
        let host = &world.nodes[self.end.node].host;
        let can_send = host.sends[self.end.send_queue.0 as usize].room() > 0;
        let can_recv = host.recvs[self.end.recv_queue.0 as usize].room() > 0;
        let next_send = self.send_progress.next_burst.filter(|_| can_send);
        let next_recv = self.recv_progress.next_burst.filter(|_| can_recv);
        [next_send, next_recv].into_iter().flatten().min()
    }

    /// Posts what it is time to post.
    pub(crate) fn post(&mut self, world: &mut World, rng: &mut Rng) {
        let RcWorkload { end, sends, recvs, .. } = self;
        let room = world.nodes[end.node].host.recv_queue(end.recv_queue).room();
        let due = self.recv_progress.burst(world.now(), rng, &self.recv_pace, room, recvs.len());
        if !due.is_empty() {
            world.note(end, format_args!("posts {} receives", due.len()));
            recvs[due].iter().for_each(|recv| world.post_recv(end, recv));
            // Receives have no doorbell; in ERR one is needed to flush them.
            if world.state(end) == Some(QpState::Err) {
                world.ring(end);
            }
        }
        let room = world.nodes[end.node].host.send_queue(end.send_queue).room();
        let due = self.send_progress.burst(world.now(), rng, &self.send_pace, room, sends.len());
        if !due.is_empty() {
            world.note(end, format_args!("posts {} sends", due.len()));
            sends[due].iter().for_each(|send| world.post_send(end, send));
            world.ring(end);
        }
    }

    /// Stops posting sends.
    pub fn stop_sending(&mut self) {
        self.send_progress.next_burst = None;
    }

    /// Stops posting receives.
    pub fn stop_receiving(&mut self) {
        self.recv_progress.next_burst = None;
    }

    /// Stops posting.
    pub fn stop(&mut self) {
        self.stop_sending();
        self.stop_receiving();
    }

    /// Whether its QP was reset or destroyed.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether all sends have ended that were posted or are still to be.
    pub fn has_sent(&self) -> bool {
        let Progress { posted, ended, next_burst, .. } = &self.send_progress;
        ended == posted && next_burst.is_none()
    }

    /// The QP was reset or destroyed: what is posted will never complete, and nothing more is
    /// posted.
    pub fn abandon(&mut self) {
        self.stop();
        self.abandoned = true;
        self.lose_sends();
        for index in self.recv_progress.ended..self.recv_progress.posted {
            self.arena.mark_unknown(&self.recvs[index].wqe.sges);
        }
        self.recv_progress.ended = self.recv_progress.posted;
    }

    /// The sends that are posted will never complete: their effects may be there, or parts of them.
    pub fn lose_sends(&mut self) {
        for index in self.send_progress.ended..self.send_progress.posted {
            self.send_failed(index);
        }
    }

    /// Its progress.
    pub(crate) fn summary(&self, world: &World) -> String {
        let progress = |progress: &Progress, of: usize| {
            format!("{} posted, {} ended of {of}", progress.posted, progress.ended)
        };
        format!(
            "node {} {} {:?}: sends {}; receives {}",
            self.end.node,
            self.end.qpn,
            world.state(&self.end),
            progress(&self.send_progress, self.sends.len()),
            progress(&self.recv_progress, self.recvs.len()),
        )
    }

    /// Compares the memory that this program uses and writes to with what must be there.
    pub(crate) fn check_memory(&self, world: &World) {
        if self.expects == Expects::Anything {
            return;
        }
        self.arena.check(&world.nodes[self.end.node].host);
        let Window { node, mr, model, unknown, .. } = &self.window;
        let found = world.nodes[*node].host.memory.program(mr.region);
        check_memory("window", found, model, unknown);
    }
}

/// Compares bytes, and reports the first that differs.
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
