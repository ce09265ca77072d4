//! Bandwidth: as many messages under way as the depth allows, on every queue pair.

use super::bench::{Arrival, Bench, Lane, of_wr_id};
use super::partner::{Finished, Partner};
use super::progress::Progress;
use super::report::{Received, Row};
use super::requests::Requests;
use super::verify::Verifier;
use crate::error::Error;
use std::time::{Duration, Instant};
use urxe_verbs::{SendWr, Wc};

/// Receives that are posted again together.
const RECEIVES: u32 = 16;

/// After so long without a message, and the client done, those that are missing are lost.
const SILENCE: Duration = Duration::from_millis(300);

/// The client's part: posts, and takes completions, until it was enough.
pub(super) fn run(bench: &mut Bench, partner: &mut Partner, size: u32) -> Result<Finished, Error> {
    let requests = (0..bench.lanes.len()).map(|lane| Requests::new(bench, lane, size));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let Bench { plan, sends, lanes, verifier, .. } = bench;
    let (burst, window) = (u64::from(plan.burst(size)), u64::from(plan.window()));
    let first: Vec<u64> = lanes.iter().map(|lane| lane.posted).collect();
    let done = |lanes: &[Lane]| -> Vec<u64> {
        lanes.iter().zip(&first).map(|(lane, first)| lane.completed - first).collect()
    };
    let mut list = Vec::with_capacity(burst as usize);
    let mut progress = Progress::new(size);
    let begun = Instant::now();
    loop {
        let elapsed = begun.elapsed();
        for (index, lane) in lanes.iter_mut().enumerate() {
            loop {
                let count = plan.amount.left(lane.posted - first[index], elapsed).min(burst);
                if count == 0 || lane.posted - lane.completed + count > window {
                    break;
                }
                post(lane, index, &requests[index], count, size, &mut list, verifier)?;
            }
        }
        if lanes.iter().all(|lane| lane.posted == lane.completed) {
            break;
        }
        let wcs = sends.wait()?;
        if wcs.is_empty() {
            partner.check()?;
        }
        for wc in wcs {
            let (index, number) = of_wr_id(wc.check()?.wr_id);
            if let Some(verifier) = verifier {
                let ended = lanes[index].completed..=number;
                ended.into_iter().try_for_each(|number| verifier.came_back(index, number, size))?;
            }
            lanes[index].completed = number + 1;
        }
        progress.tick(elapsed, || done(lanes).iter().sum());
    }
    let (elapsed, messages) = (begun.elapsed(), done(lanes));
    let row = Row::bandwidth(size, messages.iter().sum(), elapsed);
    Ok(Finished { messages, row })
}

/// Posts the next `count` messages as a list, and has the last one signaled.
fn post<'a>(
    lane: &mut Lane,
    index: usize,
    requests: &'a Requests,
    count: u64,
    size: u32,
    list: &mut Vec<SendWr<'a>>,
    verifier: &mut Option<Verifier>,
) -> Result<(), Error> {
    list.clear();
    for number in lane.posted..lane.posted + count {
        if let Some(verifier) = verifier {
            verifier.before_post(index, number, size)?;
        }
        list.push(requests.get(number));
    }
    if let Some(last) = list.last_mut() {
        *last = last.signaled();
    }
    lane.qp.post_send(list)?;
    lane.posted += count;
    Ok(())
}

/// The server's part where it must receive: takes messages and posts receives again, until the
/// client says that it is done and all have come; or, where messages can be lost, no more come.
pub(super) fn receive(
    bench: &mut Bench,
    partner: &mut Partner,
    size: u32,
) -> Result<Finished, Error> {
    let before: u64 = bench.lanes.iter().map(|lane| lane.received).sum();
    let is_reliable = bench.plan.transport.is_reliable();
    let mut finished: Option<Finished> = None;
    let (mut received, mut first, mut last) = (0, None, Instant::now());
    let mut arrived: Vec<Wc> = Vec::new();
    loop {
        if let Some(mut finished) = finished.take_if(|finished| {
            let sent: u64 = finished.messages.iter().sum();
            received >= sent || !is_reliable && last.elapsed() > SILENCE
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
            let Arrival { lane, number, len, .. } = arrival;
            if len != size {
                let what = format!("QP {lane}, message {number}: {len} bytes, expected {size}");
                return Err(Error::WrongData(what));
            }
            if let Some(verifier) = &mut bench.verifier {
                verifier.received(&arrival, size)?;
            }
        }
        received = bench.lanes.iter().map(|lane| lane.received).sum::<u64>() - before;
        bench.refill(RECEIVES)?;
    }
}
