//! Latency: one message under way at a time, each of them timed.

use super::bench::{Arrival, Bench, BenchQp, of_wr_id};
use super::partner::{Finished, Partner};
use super::plan::Verb;
use super::progress::Progress;
use super::report::Row;
use super::requests::Requests;
use crate::completions::{Completions, Idle};
use crate::error::Error;
use crate::latency::Latencies;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use urxe_verbs::SendWr;

/// How long to wait for a reply that can be lost.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Of messages whose completion is not waited for, every Nth is signaled.
const SIGNAL_EVERY: u64 = 16;

/// The client's part: sends, and waits for the reply, until it was enough.
pub(super) fn run(bench: &mut Bench, partner: &mut Partner, size: u32) -> Result<Finished, Error> {
    match bench.plan.test.verb() {
        Verb::Write => {
            let mut pinger = WritePing::new(bench, size)?;
            measure(bench, partner, size, 2, |bench, partner, number| {
                pinger.set(bench, number)?;
                let posted = Instant::now();
                pinger.post(bench, partner, number)?;
                pinger.wait(bench, partner, number, |partner| partner.check().map(|()| false))?;
                Ok(posted.elapsed())
            })
        }
        Verb::Send => {
            let requests = Requests::new(bench, 0, size)?;
            measure(bench, partner, size, 2, |bench, partner, number| {
                prepare(bench, number, size)?;
                let posted = Instant::now();
                post(bench, partner, requests.get(number))?;
                let lossy = !bench.plan.transport.is_reliable();
                let arrival = wait_message(bench, |waited| {
                    partner.check()?;
                    Ok(lossy && waited > TIMEOUT)
                })?;
                let elapsed = posted.elapsed();
                let Some(arrival) = arrival else {
                    return Err(Error::Failed(format!(
                        "message {number} or its reply was lost; this transport does not repeat \
                         it, so latency can be measured only where nothing is lost"
                    )));
                };
                received(bench, &arrival, size)?;
                Ok(elapsed)
            })
        }
        Verb::Read | Verb::Atomic => {
            let requests = Requests::new(bench, 0, size)?;
            measure(bench, partner, size, 1, |bench, partner, number| {
                prepare(bench, number, size)?;
                let posted = Instant::now();
                let Bench { sends, qps, .. } = bench;
                qps[0].qp.post_send(&[requests.get(number).signaled()])?;
                while qps[0].completed <= number {
                    reap(sends, &mut qps[0], partner)?;
                }
                let elapsed = posted.elapsed();
                if let Some(verifier) = &mut bench.verifier {
                    verifier.completed(0, number, size)?;
                }
                Ok(elapsed)
            })
        }
    }
}

/// Repeats `one` message until it was enough; a latency is its time divided by `trips`.
fn measure(
    bench: &mut Bench,
    partner: &mut Partner,
    size: u32,
    trips: u32,
    mut one: impl FnMut(&mut Bench, &mut Partner, u64) -> Result<Duration, Error>,
) -> Result<Finished, Error> {
    let first = bench.qps[0].posted;
    let mut latencies = Latencies::new();
    let mut progress = Progress::new(size);
    let begun = Instant::now();
    loop {
        let (elapsed, number) = (begun.elapsed(), bench.qps[0].posted);
        // At least one, or there would be no figure.
        if number > first && bench.plan.amount.left(number - first, elapsed) == 0 {
            let row = Row::latency(size, elapsed, &latencies);
            return Ok(Finished { messages: vec![number - first], row });
        }
        latencies.record(one(bench, partner, number)? / trips);
        bench.qps[0].posted = number + 1;
        progress.tick(elapsed, || number - first);
    }
}

/// The server's part of a ping-pong: replies to each message with one of its own, until the client
/// has finished.
pub(super) fn reply(
    bench: &mut Bench,
    partner: &mut Partner,
    size: u32,
) -> Result<Finished, Error> {
    let mut finished = None;
    let mut is_done = |partner: &mut Partner| {
        finished = partner.finished()?;
        Ok(finished.is_some())
    };
    if bench.plan.test.verb() == Verb::Write {
        let mut pinger = WritePing::new(bench, size)?;
        loop {
            let number = bench.qps[0].posted;
            if !pinger.wait(bench, partner, number, &mut is_done)? {
                break;
            }
            // Not before: the device may be reading the last reply until its receiver has sent the
            // next message.
            pinger.set(bench, number)?;
            pinger.post(bench, partner, number)?;
            bench.qps[0].posted = number + 1;
        }
    } else {
        let requests = Requests::new(bench, 0, size)?;
        loop {
            let number = bench.qps[0].posted;
            prepare(bench, number, size)?;
            let Some(arrival) = wait_message(bench, |_| is_done(partner))? else { break };
            post(bench, partner, requests.get(number))?;
            bench.qps[0].posted = number + 1;
            received(bench, &arrival, size)?;
        }
    }
    finished.ok_or_else(|| Error::Failed("the client ended the test without a result".into()))
}

/// Fills the place of a message, if it is to be checked.
fn prepare(bench: &mut Bench, number: u64, size: u32) -> Result<(), Error> {
    match &mut bench.verifier {
        Some(verifier) => verifier.before_post(0, number, size),
        None => Ok(()),
    }
}

/// Waits for the next message, or until `give_up`, which is given the time so far, returns true.
fn wait_message(
    bench: &mut Bench,
    mut give_up: impl FnMut(Duration) -> Result<bool, Error>,
) -> Result<Option<Arrival>, Error> {
    let begun = Instant::now();
    loop {
        // One is under way at a time.
        if let Some(&wc) = bench.recvs.wait()?.first() {
            return bench.arrival(&wc).map(Some);
        }
        if give_up(begun.elapsed())? {
            return Ok(None);
        }
    }
}

/// Checks a message, if that is wanted, and posts a receive in its place.
fn received(bench: &mut Bench, arrival: &Arrival, size: u32) -> Result<(), Error> {
    if let Some(verifier) = &mut bench.verifier {
        verifier.received(arrival, size)?;
    }
    bench.refill(1)
}

/// Posts a message whose completion is not waited for.
fn post(bench: &mut Bench, partner: &mut Partner, wr: SendWr<'_>) -> Result<(), Error> {
    let window = u64::from(bench.plan.window());
    let Bench { sends, qps, .. } = bench;
    let qp = &mut qps[0];
    while qp.posted - qp.completed >= window {
        reap(sends, qp, partner)?;
    }
    let signaled = (qp.posted + 1).is_multiple_of(SIGNAL_EVERY.min(window));
    Ok(qp.qp.post_send(&[if signaled { wr.signaled() } else { wr }])?)
}

/// Waits a moment for sends to complete.
fn reap(sends: &mut Completions, qp: &mut BenchQp, partner: &mut Partner) -> Result<(), Error> {
    let wcs = sends.wait()?;
    if wcs.is_empty() {
        partner.check()?;
    }
    for wc in wcs {
        qp.completed = of_wr_id(wc.check()?.wr_id).1 + 1;
    }
    Ok(())
}

/// A ping-pong of WRITEs without completions: each side polls the last byte in its memory until it
/// is that of the next message.
struct WritePing {
    requests: Requests,
    /// Where the last byte of an outgoing message is.
    outgoing: usize,
    /// The 8 bytes around the last byte of an incoming one, and which of them it is.
    word: usize,
    byte: usize,
}

impl WritePing {
    fn new(bench: &Bench, size: u32) -> Result<Self, Error> {
        let last = size as usize - 1;
        let incoming = bench.memory.incoming(0, 0) + last;
        Ok(WritePing {
            requests: Requests::new(bench, 0, size)?,
            outgoing: bench.memory.outgoing(0, 0) + last,
            word: incoming & !7,
            byte: incoming & 7,
        })
    }

    /// The last byte of a message: never the same twice in a row, and never that of cleared memory.
    fn mark(number: u64) -> u8 {
        (number % 255) as u8 + 1
    }

    fn set(&mut self, bench: &Bench, number: u64) -> Result<(), Error> {
        let mark = Self::mark(number);
        if self.requests.set_last_inline(mark) {
            return Ok(());
        }
        Ok(bench.memory.mr.write_at(self.outgoing, &[mark])?)
    }

    fn post(&self, bench: &mut Bench, partner: &mut Partner, number: u64) -> Result<(), Error> {
        post(bench, partner, self.requests.get(number))
    }

    /// Waits for message `number`, or until `give_up` returns true; `false` then.
    fn wait(
        &self,
        bench: &mut Bench,
        partner: &mut Partner,
        number: u64,
        mut give_up: impl FnMut(&mut Partner) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let Bench { poll, sends, qps, memory, .. } = bench;
        let word: &AtomicU64 = memory.mr.atomic_u64(self.word)?;
        let mut idle = Idle::new(*poll);
        while word.load(Ordering::Acquire).to_ne_bytes()[self.byte] != Self::mark(number) {
            // Only a completion shows that the connection broke, or the daemon is gone. And where
            // this process runs the data path itself, to poll is what keeps it going.
            for wc in sends.poll()? {
                qps[0].completed = of_wr_id(wc.check()?.wr_id).1 + 1;
            }
            if !idle.pause() {
                continue;
            }
            if give_up(partner)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
