//! Work requests of a test, ready to be posted.

use super::bench::{Bench, QKEY, wr_id};
use super::plan::{Atomic, Transport, Verb};
use crate::error::Error;
use urxe_verbs::{Ah, Inline, Payload, RemoteBuf, SendWr, Sge};

/// The work requests of one queue pair for messages of one length, computed in advance as far as
/// possible.
#[derive(Debug)]
pub(super) struct Requests {
    qp: usize,
    verb: Verb,
    atomic: Atomic,
    /// For each place, its local and remote memory.
    places: Vec<([Sge; 1], RemoteBuf)>,
    inline: Option<Vec<u8>>,
    /// The destination of datagrams.
    to: Option<(Ah, u32)>,
    /// Whether each carries its number, so that the other end knows which one arrived.
    numbered: bool,
}

impl Requests {
    /// For queue pair `qp` and messages of `size`.
    pub(super) fn new(bench: &Bench, qp: usize, size: u32) -> Result<Self, Error> {
        let (plan, verb) = (&bench.plan, bench.plan.test.verb());
        let place = |number| {
            let local = bench.memory.sge(bench.memory.outgoing(qp, number), size)?;
            // Atomics of a queue pair all work on one number.
            let number = if verb == Verb::Atomic { 0 } else { number };
            let remote = bench.memory.incoming(qp, number) as u64;
            Ok(([local], bench.remote.slice(remote..)?))
        };
        let places = (0..bench.memory.slots()).map(place).collect::<Result<_, Error>>()?;
        let inline = (size > 0 && size <= plan.inline).then(|| vec![0; size as usize]);
        let to = bench.qps[qp].to.clone();
        let numbered = match plan.transport {
            Transport::Rc => false,
            Transport::Uc => plan.verify || verb == Verb::Write,
            Transport::Ud => plan.verify,
        };
        Ok(Requests { qp, verb, atomic: plan.atomic, places, inline, to, numbered })
    }

    /// The work request of message `number`.
    pub(super) fn get(&self, number: u64) -> SendWr<'_> {
        let wr_id = wr_id(self.qp, number);
        let (sge, remote) = &self.places[(number % self.places.len() as u64) as usize];
        let payload = || match &self.inline {
            None => Payload::from(sge),
            Some(data) => Payload::from(Inline(data)),
        };
        let wr = match (self.verb, self.numbered) {
            (Verb::Write, false) => SendWr::write(wr_id, payload(), *remote),
            (Verb::Write, true) => SendWr::write_imm(wr_id, payload(), *remote, number as u32),
            (Verb::Send, false) => SendWr::send(wr_id, payload()),
            (Verb::Send, true) => SendWr::send_imm(wr_id, payload(), number as u32),
            (Verb::Read, _) => SendWr::read(wr_id, sge, *remote),
            (Verb::Atomic, _) => match self.atomic {
                Atomic::Cas => SendWr::compare_swap(wr_id, sge, *remote, number, number + 1),
                Atomic::Faa => SendWr::fetch_add(wr_id, sge, *remote, 1),
            },
        };
        match &self.to {
            Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
            None => wr,
        }
    }

    /// Sets the last byte of inline data, if there are any; else it is to be set in memory.
    pub(super) fn set_last_inline(&mut self, value: u8) -> bool {
        let last = self.inline.as_mut().and_then(|data| data.last_mut());
        last.map(|byte| *byte = value).is_some()
    }
}
