//! A world with programs in it, all at work.

use crate::messenger::Messengers;
use crate::party::Party;
use crate::queues::Completed;
use crate::rng::Rng;
use crate::scene::PD;
use crate::world::{Mr, World};
use std::time::{Duration, Instant};
use urxe_engine::CqId;

/// A world with programs in it.
pub struct Traffic {
    /// The world.
    pub world: World,
    /// Both ends of every connection.
    pub parties: Vec<Party>,
    /// The counter of each node, to which all add.
    pub counters: Vec<Mr>,
    /// The programs that exchange messages over other transports, if there are any.
    pub messengers: Messengers,
    rng: Rng,
    steps: u64,
}

/// A run that takes more steps than this hangs in a loop.
const MAX_STEPS: u64 = 2_000_000;

impl Traffic {
    /// Programs that are about to begin.
    pub fn new(world: World, parties: Vec<Party>, counters: Vec<Mr>, rng: Rng) -> Traffic {
        let messengers = Messengers::none(PD);
        let none = Vec::new();
        let mut traffic = Traffic { world, parties: none, counters, messengers, rng, steps: 0 };
        for party in parties {
            traffic.add(party);
        }
        traffic
    }

    /// Adds a program that is about to begin.
    pub fn add(&mut self, mut party: Party) {
        party.begin(self.world.now(), &mut self.rng);
        self.parties.push(party);
    }

    /// Runs until everybody is done.
    pub fn run_to_end(&mut self, limit: Duration) {
        self.run_until(limit, |traffic| {
            let messengers = &traffic.messengers;
            traffic.parties.iter().all(Party::is_done) && messengers.are_done(&traffic.world)
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

    /// Runs for a while.
    ///
    /// # Panics
    /// If a check fails.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.turn(end);
        }
    }

    /// Lets time pass until the next thing happens, or until `end`, and everybody do what is due
    /// then.
    fn turn(&mut self, end: Instant) {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "endless: {}", self.summary());
        let bursts = self.parties.iter().filter_map(|party| party.next_burst(&self.world));
        let bursts = bursts.chain(self.messengers.next_burst(&self.world));
        let until = bursts.min().map_or(end, |at| at.min(end));
        self.world.step(until);
        for party in &mut self.parties {
            party.post(&mut self.world, &mut self.rng);
        }
        self.messengers.post(&mut self.world, &mut self.rng);
        self.see();
    }

    /// Lets the engines see what was posted, and the programs what was completed.
    fn see(&mut self) {
        self.world.transmit();
        self.poll();
    }

    /// Lets the rest of the time pass in which anything moves.
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
        for party in &self.parties {
            party.check_memory(&self.world);
        }
        for (number, (node, counter)) in self.world.nodes.iter().zip(&self.counters).enumerate() {
            let adders = || self.parties.iter().filter(|party| party.window.node == number);
            if adders().any(|party| party.count_unknown) {
                continue;
            }
            let sum = adders().fold(0u64, |sum, party| sum.wrapping_add(party.counted));
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
        for party in &mut self.parties {
            party.see_idle_sends(&mut self.world);
        }
        self.messengers.see_idle_sends(&mut self.world);
        self.messengers.see_events(&mut self.world, &mut self.rng);
    }

    fn on_completion(&mut self, node: usize, cq: CqId, completed: Completed) {
        let now = self.world.now();
        self.world.trace.completion(now, node, &completed.completion);
        if self.messengers.see_completion(&mut self.world, node, &completed) {
            return;
        }
        let qpn = completed.completion.qpn;
        let party = self.parties.iter_mut().rev().find(|p| p.end.node == node && p.end.qpn == qpn);
        let party = party.unwrap_or_else(|| panic!("completion of QP {qpn}, which is nobody's"));
        party.see_completion(&mut self.world, cq, completed);
    }

    /// How far everybody is.
    fn summary(&self) -> String {
        let lines = self.parties.iter().map(|party| format!("\n  {}", party.summary(&self.world)));
        let parties = lines.collect::<String>();
        format!("{:?}{parties}{}", self.world.elapsed(), self.messengers.summary(&self.world))
    }
}
