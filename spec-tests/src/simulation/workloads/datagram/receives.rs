//! A receive queue that is filled again and again: that of one QP, or a shared one.

use crate::rng::Rng;
use crate::simulation::host::RECV_WR_ID;
use crate::simulation::queues::Entry;
use crate::simulation::workloads::datagram::WR_ID;
use crate::simulation::workloads::rc::Pace;
use crate::simulation::world::{Mr, World};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use urxe_engine::{AsyncEvent, QueueId, SrqId};
use urxe_types::{Lkey, RecvWqe, Sge};

/// Receives of one queue: a few places in memory, each posted again when its receive has ended.
#[derive(Debug)]
pub struct Receives {
    pub node: usize,
    pub queue: QueueId,
    /// Its SRQ, if it is one.
    pub srq: Option<SrqId>,
    /// Identifies it in `wr_id`s.
    number: u64,
    mr: Mr,
    len: usize,
    /// Places that are not posted.
    free: Vec<usize>,
    /// Receives that are posted, with their places.
    posted: BTreeMap<u64, usize>,
    next: u64,
    pace: Pace,
    next_burst: Option<Instant>,
    stopped: bool,
    /// Times that the limit was armed.
    armed: usize,
    limits_seen: usize,
}

impl Receives {
    /// An empty queue, with `places` places of `len` bytes each in `mr`.
    pub(crate) fn new(
        (node, queue, srq): (usize, QueueId, Option<SrqId>),
        number: u64,
        mr: Mr,
        (places, len): (usize, usize),
        pace: Pace,
    ) -> Receives {
        Receives {
            node,
            queue,
            srq,
            number,
            mr,
            len,
            free: (0..places).collect(),
            posted: BTreeMap::new(),
            next: 0,
            pace,
            next_burst: None,
            stopped: false,
            armed: 0,
            limits_seen: 0,
        }
    }

    pub(crate) fn next_burst(&self) -> Option<Instant> {
        self.next_burst
    }

    /// Posts everything.
    pub(crate) fn fill(&mut self, world: &mut World, rng: &mut Rng) {
        self.post_some(world, rng, usize::MAX);
    }

    /// Posts what it is time to post.
    pub(crate) fn post(&mut self, world: &mut World, rng: &mut Rng) {
        if self.next_burst.is_none_or(|at| at > world.now()) {
            return;
        }
        let burst = rng.range(self.pace.burst.clone()) as usize;
        self.post_some(world, rng, burst);
        let is_more = !self.free.is_empty();
        self.next_burst = is_more.then(|| world.now() + rng.micros(self.pace.gap.clone()));
    }

    fn post_some(&mut self, world: &mut World, rng: &mut Rng, burst: usize) {
        for place in self.free.drain(..burst.min(self.free.len())) {
            let wr_id = RECV_WR_ID | WR_ID | self.number << 32 | self.next;
            self.next += 1;
            let first = rng.range(0..=self.len as u64) as u32;
            let addr = self.mr.addr + (place * self.len) as u64;
            let lkey = Lkey(self.mr.key);
            let rest = Sge { addr: addr + u64::from(first), length: self.len as u32 - first, lkey };
            let wqe = RecvWqe { wr_id, sges: vec![Sge { addr, length: first, lkey }, rest] };
            let host = &mut world.nodes[self.node].host;
            host.learn_sink(wr_id, &wqe.sges);
            host.recv_queue(self.queue).post(Entry::Good(wqe));
            self.posted.insert(wr_id, place);
        }
    }

    /// A receive has ended.
    pub(crate) fn ended(&mut self, world: &World, wr_id: u64) {
        let place = self.posted.remove(&wr_id);
        self.free.push(place.unwrap_or_else(|| panic!("{wr_id:#x} ended twice")));
        if !self.stopped {
            let gap = Duration::from_micros(*self.pace.gap.start());
            self.next_burst.get_or_insert(world.now() + gap);
        }
    }

    /// Stops posting.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.next_burst = None;
    }

    /// Arms the limit event for fewer than `limit` posted receives.
    pub(crate) fn arm(&mut self, world: &mut World, limit: u32) {
        let Some(srq) = self.srq else { return };
        let node = &mut world.nodes[self.node];
        node.device.modify_srq(&mut node.host, srq, limit).expect("the SRQ is there");
        self.armed += 1;
    }

    fn limits_reached(&self, world: &World) -> usize {
        let events = &world.nodes[self.node].host.events;
        let mine = self.srq.map(AsyncEvent::SrqLimit);
        events.iter().filter(|&&event| Some(event) == mine).count()
    }

    /// Arms the limit again if it was reached.
    pub(crate) fn handle_limit_event(&mut self, world: &mut World, rng: &mut Rng) {
        let reached = self.limits_reached(world);
        if reached > self.limits_seen && !self.stopped {
            self.limits_seen = reached;
            // A limit above what is posted would be reached at once.
            let limit = rng.range(1..=self.posted.len().max(1) as u64) as u32;
            self.arm(world, limit);
        }
    }

    /// Checks that every receive has ended or is still posted, and that the limit event came once
    /// for each time that it was armed and reached.
    pub(crate) fn check_end(&self, world: &World) {
        let node = &world.nodes[self.node];
        let waiting = node.host.recvs[self.queue.0 as usize].posted();
        assert_eq!(waiting, self.posted.len(), "receives were lost");
        match self.srq.and_then(|srq| node.device.query_srq(srq)) {
            None => assert_eq!(waiting, 0, "receives were not flushed"),
            Some(info) => {
                let waits = usize::from(info.limit > 0);
                assert_eq!(self.limits_reached(world) + waits, self.armed, "limit events");
            }
        }
    }
}
