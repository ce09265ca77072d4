//! Bandwidth: as many messages under way as the depth allows, on every queue pair.

use super::bench::{Bench, Lane, of_wr_id};
use super::partner::{Finished, Partner};
use super::progress::Progress;
use super::report::Row;
use super::requests::Requests;
use super::verify::Verifier;
use crate::error::Error;
use std::time::Instant;
use urxe_verbs::SendWr;

/// Receives that are posted again together.
const RECEIVES: u32 = 16;

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
/// client says that it is done and all have come.
pub(super) fn receive(
    bench: &mut Bench,
    partner: &mut Partner,
    size: u32,
) -> Result<Finished, Error> {
    let first: Vec<u64> = bench.lanes.iter().map(|lane| lane.received).collect();
    let mut finished: Option<Finished> = None;
    loop {
        if let Some(finished) = finished.take_if(|finished| {
            let mut all = bench.lanes.iter().zip(&first).zip(&finished.messages);
            all.all(|((lane, first), &messages)| lane.received - first >= messages)
        }) {
            return Ok(finished);
        }
        let Bench { recvs, lanes, verifier, .. } = bench;
        let wcs = recvs.wait()?;
        if wcs.is_empty() && finished.is_none() {
            finished = partner.finished()?;
        }
        for wc in wcs {
            let (index, number) = of_wr_id(wc.check()?.wr_id);
            if wc.byte_len != size {
                let found = wc.byte_len;
                let what = format!("QP {index}, message {number}: {found} bytes, expected {size}");
                return Err(Error::WrongData(what));
            }
            if let Some(verifier) = verifier {
                verifier.received(index, number, size)?;
            }
            lanes[index].received = number + 1;
        }
        for index in 0..bench.lanes.len() {
            while bench.receives_missing(index) >= RECEIVES.min(bench.plan.receives()) {
                bench.post_receives(index, RECEIVES.min(bench.plan.receives()))?;
            }
        }
    }
}
