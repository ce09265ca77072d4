//! Checking what arrives: `--verify`.
//!
//! Message number n of a queue pair has contents of its own, and a place that nothing else uses
//! while it is under way. On unreliable transports each carries its number. What a READ returns
//! depends on its place.

use super::bench::{Areas, Arrival, BenchQp};
use super::plan::{Plan, Verb};
use crate::error::Error;
use crate::pattern::Pattern;
use std::sync::atomic::Ordering;

/// The content of places before a READ or an atomic returns into them.
const UNWRITTEN: u8 = 0xa5;

/// Fills and checks the places of messages.
#[derive(Debug)]
pub(super) struct Verifier {
    verb: Verb,
    memory: Areas,
    scratch: Vec<u8>,
}

impl Verifier {
    /// A verifier, if the plan asks for it.
    pub(super) fn wanted(plan: &Plan, memory: &Areas) -> Option<Self> {
        let (verb, memory) = (plan.test.verb(), memory.clone());
        plan.verify.then(|| Verifier { verb, memory, scratch: Vec::new() })
    }

    /// Server, at the beginning: fills the memory that will be read.
    pub(super) fn prepare(&mut self, plan: &Plan) -> Result<(), Error> {
        if self.verb != Verb::Read {
            return Ok(());
        }
        for qp in 0..plan.qps as usize {
            for slot in 0..self.memory.slots() {
                self.fill(self.memory.incoming(qp, slot), pattern(qp, slot), plan.max_size())?;
            }
        }
        Ok(())
    }

    /// Client, before message `number` is posted: fills what is sent, or marks the place of the
    /// result unwritten.
    pub(super) fn before_post(&mut self, qp: usize, number: u64, size: u32) -> Result<(), Error> {
        let place = self.memory.outgoing(qp, number);
        match self.verb {
            Verb::Write | Verb::Send => self.fill(place, pattern(qp, number), size),
            Verb::Read | Verb::Atomic => {
                Ok(self.memory.mr.fill(place..place + size as usize, UNWRITTEN)?)
            }
        }
    }

    /// Client, when message `number` has completed: checks its result, if it has one.
    pub(super) fn completed(&mut self, qp: usize, number: u64, size: u32) -> Result<(), Error> {
        let place = self.memory.outgoing(qp, number);
        let result = match self.verb {
            Verb::Write | Verb::Send => return Ok(()),
            Verb::Read => self.check(place, pattern(qp, number % self.memory.slots()), size),
            // Every atomic so far has raised the number by one.
            Verb::Atomic => self.check_word(place, number),
        };
        result.map_err(|what| wrong(&format!("QP {qp}, message {number}, result"), &what))
    }

    /// Receiver: checks a message that arrived.
    pub(super) fn received(&mut self, arrival: &Arrival, size: u32) -> Result<(), Error> {
        let &Arrival { qp, number, place, .. } = arrival;
        let result = self.check(place, pattern(qp, number), size);
        result.map_err(|what| wrong(&format!("QP {qp}, message {number}, received"), &what))
    }

    /// Server, when `messages` of a length have completed on a queue pair: checks its memory.
    pub(super) fn at_the_end(
        &mut self,
        index: usize,
        qp: &BenchQp,
        messages: u64,
        size: u32,
    ) -> Result<(), Error> {
        let result = match self.verb {
            Verb::Read | Verb::Send => return Ok(()),
            Verb::Write => {
                let left = messages.min(self.memory.slots());
                (qp.posted - left..qp.posted).try_for_each(|number| {
                    self.check(self.memory.incoming(index, number), pattern(index, number), size)
                        .map_err(|what| format!("message {number}: {what}"))
                })
            }
            Verb::Atomic => self.check_word(self.memory.incoming(index, 0), qp.posted),
        };
        result.map_err(|what| wrong(&format!("QP {index}, memory at the end"), &what))
    }

    fn fill(&mut self, place: usize, pattern: Pattern, size: u32) -> Result<(), Error> {
        self.scratch.resize(size as usize, 0);
        pattern.fill(&mut self.scratch);
        Ok(self.memory.mr.write_at(place, &self.scratch)?)
    }

    fn check(&mut self, place: usize, pattern: Pattern, size: u32) -> Result<(), String> {
        self.scratch.resize(size as usize, 0);
        self.memory.mr.read_at(place, &mut self.scratch).map_err(|error| error.to_string())?;
        pattern.check(&self.scratch).map_err(|mismatch| mismatch.to_string())
    }

    fn check_word(&self, place: usize, expected: u64) -> Result<(), String> {
        let word = self.memory.mr.atomic_u64(place).map_err(|error| error.to_string())?;
        let found = word.load(Ordering::SeqCst);
        let equal = found == expected;
        equal.then_some(()).ok_or_else(|| format!("the number is {found}, expected {expected}"))
    }
}

/// Only 32 bits of a message's number count: on unreliable transports it is immediate data.
fn pattern(qp: usize, number: u64) -> Pattern {
    Pattern::new(qp as u64, u64::from(number as u32))
}

fn wrong(which: &str, what: &str) -> Error {
    Error::WrongData(format!("{which}: {what}"))
}
