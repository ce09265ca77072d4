//! A world with programs in it that are running.

use crate::rng::Rng;
use crate::simulation::queues::Completed;
use crate::simulation::scenario::PD;
use crate::simulation::workloads::datagram::DatagramWorkloads;
use crate::simulation::workloads::rc::RcWorkload;
use crate::simulation::world::{Mr, World};
use std::time::{Duration, Instant};
use urxe_engine::CqId;

/// A world with programs in it.
pub struct Traffic {
    pub world: World,
    /// Both ends of every connection.
    pub workloads: Vec<RcWorkload>,
    /// The counter of each node, to which all add.
    pub counters: Vec<Mr>,
    /// The programs of the other transports, if there are any.
    pub datagrams: DatagramWorkloads,
    rng: Rng,
    /// Steps since something completed.
    steps: u64,
}

/// A run that takes more steps than this without a completion hangs in a loop. (A long message to
/// a peer that keeps nothing of what comes early, over a network that reorders half of it, takes
/// many, and there may be many such messages.)
const MAX_STEPS: u64 = 2_000_000;

impl Traffic {
    /// Programs that are about to begin.
    pub fn new(world: World, workloads: Vec<RcWorkload>, counters: Vec<Mr>, rng: Rng) -> Traffic {
        let datagrams = DatagramWorkloads::none(PD);
        let none = Vec::new();
        let mut traffic = Traffic { world, workloads: none, counters, datagrams, rng, steps: 0 };
        for workload in workloads {
            traffic.add(workload);
        }
        traffic
    }

    /// Adds a program that is about to begin.
    pub fn add(&mut self, mut workload: RcWorkload) {
        workload.begin(self.world.now(), &mut self.rng);
        self.workloads.push(workload);
    }

    /// Runs until all programs are done.
    pub fn run_to_end(&mut self, limit: Duration) {
        self.run_until(limit, |traffic| {
            let datagrams = &traffic.datagrams;
            traffic.workloads.iter().all(RcWorkload::is_done) && datagrams.are_done(&traffic.world)
        });
    }

    /// Runs until `done`, for at most `limit` of virtual time from the beginning.
    ///
    /// # Panics
    /// If it does not come to that, or a check fails.
    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Traffic) -> bool) {
        let end = self.world.now() + limit - self.world.elapsed();
        self.see();
        while !done(self) {
            self.turn(end);
            assert!(self.world.now() < end || done(self), "stuck: {}", self.summary());
        }
    }

    /// Runs for a time.
    ///
    /// # Panics
    /// If a check fails.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.turn(end);
        }
    }

    /// Advances time to the next event, or to `end`, and lets all programs do what is due then.
    fn turn(&mut self, end: Instant) {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "endless: {}", self.summary());
        let bursts = self.workloads.iter().filter_map(|workload| workload.next_burst(&self.world));
        let bursts = bursts.chain(self.datagrams.next_burst(&self.world));
        let until = bursts.min().map_or(end, |at| at.min(end));
        self.world.step(until);
        for workload in &mut self.workloads {
            workload.post(&mut self.world, &mut self.rng);
        }
        self.datagrams.post(&mut self.world, &mut self.rng);
        self.see();
    }

    /// Lets the engines see what was posted, and the programs what was completed.
    fn see(&mut self) {
        self.world.transmit();
        self.poll();
    }

    /// Runs until no event is left.
    ///
    /// # Panics
    /// If the engines do not come to rest.
    pub fn run_to_rest(&mut self) {
        self.see();
        while let Some(next) = self.world.next_event() {
            self.turn(next);
        }
    }

    /// Compares all memory with what must be there.
    ///
    /// # Panics
    /// If it is something else.
    pub fn check_memory(&self) {
        for workload in &self.workloads {
            workload.check_memory(&self.world);
        }
        for (number, (node, counter)) in self.world.nodes.iter().zip(&self.counters).enumerate() {
            let adders = || self.workloads.iter().filter(|workload| workload.window.node == number);
            if adders().any(|workload| workload.count_unknown) {
                continue;
            }
            let sum = adders().fold(0u64, |sum, workload| sum.wrapping_add(workload.counted));
            let found = node.host.memory.program(counter.region);
            assert_eq!(found, sum.to_ne_bytes(), "additions were lost or done twice");
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
        for workload in &mut self.workloads {
            workload.retire_idle_sends(&mut self.world);
        }
        self.datagrams.retire_idle_sends(&mut self.world);
        self.datagrams.handle_events(&mut self.world, &mut self.rng);
    }

    fn on_completion(&mut self, node: usize, cq: CqId, completed: Completed) {
        self.steps = 0;
        let now = self.world.now();
        self.world.trace.completion(now, node, &completed.completion);
        if self.datagrams.on_completion(&mut self.world, node, &completed) {
            return;
        }
        let qpn = completed.completion.qpn;
        let workload =
            self.workloads.iter_mut().rev().find(|p| p.end.node == node && p.end.qpn == qpn);
        let workload =
            workload.unwrap_or_else(|| panic!("completion of QP {qpn}, which has no program"));
        workload.on_completion(&mut self.world, cq, completed);
    }

    /// The progress of all programs.
    fn summary(&self) -> String {
        let lines =
            self.workloads.iter().map(|workload| format!("\n  {}", workload.summary(&self.world)));
        let workloads = lines.collect::<String>();
        format!("{:?}{workloads}{}", self.world.elapsed(), self.datagrams.summary(&self.world))
    }
}
