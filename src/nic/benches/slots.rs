//! What a message costs where several data paths run at once, by the processor time of each one's
//! thread: as much as alone, for they share nothing. All threads are on one processor, so this
//! shows on two cores what more would show; what waits for a lock or for a cache line of another
//! is in the figure.

#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

#[allow(dead_code, reason = "the test of the data path needs more of it")]
#[path = "../tests/node/mod.rs"]
mod node;

use node::{connected, run};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use urxe_port::sim::{Link, SimNetwork};

/// Data paths at once.
const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// Messages of each, and bytes of a message.
const MESSAGES: u64 = 100_000;
const BYTES: u32 = 64;

/// Messages that are under way at a time.
const BURST: u64 = 8;

/// How often all is measured; the median counts.
const ROUNDS: usize = 5;

fn main() {
    stay_on_one_processor();
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); COUNTS.len()];
    for _ in 0..ROUNDS {
        for (of_count, count) in rounds.iter_mut().zip(COUNTS) {
            of_count.push(nanoseconds_per_message(count));
        }
    }
    let medians: Vec<f64> = rounds.into_iter().map(median).collect();
    println!("data paths at once, processor time of a message of {BYTES} bytes, by that alone");
    for (count, median) in COUNTS.into_iter().zip(&medians) {
        println!("{count:>3} {median:>8.0} ns {:>6.2}", median / medians[0]);
    }
}

/// Every thread that is started from now on is there too.
fn stay_on_one_processor() {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

/// Of so many data paths at once, each with a peer in its own thread: the mean.
fn nanoseconds_per_message(count: usize) -> f64 {
    let start = Arc::new(Barrier::new(count));
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let start = Arc::clone(&start);
            thread::spawn(move || exchange(&start))
        })
        .collect();
    let times = threads.into_iter().map(|thread| thread.join().unwrap());
    times.sum::<Duration>().as_nanos() as f64 / count as f64 / MESSAGES as f64
}

/// The processor time that all messages of one take.
fn exchange(start: &Barrier) -> Duration {
    let mut now = Instant::now();
    let network = SimNetwork::new(7, Link::default());
    let [mut a, mut b] = connected(&network, now);
    start.wait();
    let before = processor_time();
    for burst in 0..MESSAGES / BURST {
        for wr_id in burst * BURST..(burst + 1) * BURST {
            b.post_recv(wr_id, BYTES);
            a.send(wr_id, BYTES);
        }
        run(&network, [&mut a, &mut b], &mut now);
        for _ in 0..BURST {
            assert_eq!(a.poll().map(|sent| sent.status), Some(0));
            assert_eq!(b.poll().map(|received| received.status), Some(0));
        }
    }
    processor_time() - before
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
