//! Bandwidth: as many messages under way as the depth allows, on every queue pair.

use super::bench::{Arrival, Bench, BenchQp, of_wr_id};
use super::partner::{Finished, Partner};
use super::progress::Progress;
use super::report::{Received, Row};
use super::requests::Requests;
use super::samples::Samples;
use super::verify::Verifier;
use crate::error::Error;
use std::time::{Duration, Instant};
use urxe_verbs::{SendWr, Wc};

/// Receives that are posted again together.
const RECEIVES: u32 = 16;

/// After so long without a message, when the client has finished, those missing are lost.
const LOST_AFTER: Duration = Duration::from_millis(300);

/// The client's part: posts, and takes completions, until it was enough.
pub(super) fn run(bench: &mut Bench, partner: &mut Partner, size: u32) -> Result<Finished, Error> {
    let requests = (0..bench.qps.len()).map(|qp| Requests::new(bench, qp, size));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let Bench { plan, sends, qps, verifier, .. } = bench;
    let (burst, window) = (u64::from(plan.burst(size)), u64::from(plan.window()));
    let first: Vec<u64> = qps.iter().map(|qp| qp.posted).collect();
    let done = |qps: &[BenchQp]| -> Vec<u64> {
        qps.iter().zip(&first).map(|(qp, first)| qp.completed - first).collect()
    };
    let mut list = Vec::with_capacity(burst as usize);
    let mut progress = Progress::new(size);
    let mut samples = Samples::new();
    let begun = Instant::now();
    loop {
        let elapsed = begun.elapsed();
        for (index, qp) in qps.iter_mut().enumerate() {
            loop {
                let count = plan.amount.left(qp.posted - first[index], elapsed).min(burst);
                if count == 0 || qp.posted - qp.completed + count > window {
                    break;
                }
                post(qp, index, &requests[index], count, size, &mut list, verifier)?;
            }
        }
        if qps.iter().all(|qp| qp.posted == qp.completed) {
            break;
        }
        let wcs = sends.wait()?;
        if wcs.is_empty() {
            partner.check()?;
        }
        for wc in wcs {
            let (index, number) = of_wr_id(wc.check()?.wr_id);
            if let Some(verifier) = verifier {
                let ended = qps[index].completed..=number;
                ended.into_iter().try_for_each(|number| verifier.completed(index, number, size))?;
            }
            qps[index].completed = number + 1;
        }
        progress.tick(elapsed, || done(qps).iter().sum());
        samples.tick(elapsed, || (begun.elapsed(), done(qps).iter().sum()));
    }
    let (elapsed, messages) = (begun.elapsed(), done(qps));
    let mut row = Row::bandwidth(size, messages.iter().sum(), elapsed);
    row.curve = samples.gbit_s(size, elapsed, row.iterations);
    Ok(Finished { messages, row })
}

/// Posts the next `count` messages as a list, and has the last one signaled.
fn post<'a>(
    qp: &mut BenchQp,
    index: usize,
    requests: &'a Requests,
    count: u64,
    size: u32,
    list: &mut Vec<SendWr<'a>>,
    verifier: &mut Option<Verifier>,
) -> Result<(), Error> {
    list.clear();
    for number in qp.posted..qp.posted + count {
        if let Some(verifier) = verifier {
            verifier.before_post(index, number, size)?;
        }
        list.push(requests.get(number));
    }
    if let Some(last) = list.last_mut() {
        *last = last.signaled();
    }
    qp.qp.post_send(list)?;
    qp.posted += count;
    Ok(())
}

/// The server's part of a test that receives: takes messages and posts receives again, until the
/// client has finished and all have arrived; or, on unreliable transports, no more arrive.
pub(super) fn receive(
    bench: &mut Bench,
    partner: &mut Partner,
    size: u32,
) -> Result<Finished, Error> {
    let before: u64 = bench.qps.iter().map(|qp| qp.received).sum();
    let is_reliable = bench.plan.transport.is_reliable();
    let mut finished: Option<Finished> = None;
    let (mut received, mut first, mut last) = (0, None, Instant::now());
    let mut arrived: Vec<Wc> = Vec::new();
    loop {
        if let Some(mut finished) = finished.take_if(|finished| {
            let sent: u64 = finished.messages.iter().sum();
            received >= sent || !is_reliable && last.elapsed() > LOST_AFTER
        }) {
            let sent = finished.messages.iter().sum();
            let elapsed = first.map_or(Duration::ZERO, |first| last - first);
            let count = Received::new(size, received, sent, elapsed);
            finished.row.received = (!is_reliable).then_some(count);
            return Ok(finished);
        }
        arrived.clear();
        arrived.extend_from_slice(bench.recvs.wait()?);
        if arrived.is_empty() {
            if finished.is_none() {
                finished = partner.finished()?;
            }
            continue;
        }
        last = Instant::now();
        first.get_or_insert(last);
        for wc in &arrived {
            let arrival = bench.arrival(wc)?;
            let Arrival { qp, number, len, .. } = arrival;
            if len != size {
                let what = format!("QP {qp}, message {number}: {len} bytes, expected {size}");
                return Err(Error::WrongData(what));
            }
            if let Some(verifier) = &mut bench.verifier {
                verifier.received(&arrival, size)?;
            }
        }
        received = bench.qps.iter().map(|qp| qp.received).sum::<u64>() - before;
        bench.refill(RECEIVES)?;
    }
}
