//! What posting and polling cost by themselves: the other ends of the rings are emptied and filled
//! on the same thread, by a daemon without a NIC.
//!
//! `cargo bench -p urxe-verbs`. Prints the smallest time of many batches, in nanoseconds.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

#[path = "../tests/fake_daemon/mod.rs"]
mod fake_daemon;

use fake_daemon::{FakeDaemon, State};
use std::hint::black_box;
use std::time::Instant;
use urxe_shm::ring::entry::Taken;
use urxe_shm::ring::layout::CqEntry;
use urxe_types::{Lkey, SendWqe};
use urxe_verbs::{Access, Cq, Inline, Qp, QpInit, RemoteBuf, SendWr, Sge, Wc};

const BATCHES: u32 = 2000;
const CALLS: u32 = 100;

fn main() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(255, None).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(&QpInit::new(&cq)).unwrap();
    qp.connect(&qp.endpoint().unwrap(), Access::default()).unwrap();
    let mut bench =
        Bench { qp, cq, wcs: [Wc::default(); 32], wqe: SendWqe::default(), buffer: vec![] };

    let mut state = daemon.state.lock().unwrap();
    let remote = RemoteBuf { addr: 0x1000, rkey: 1, len: 64 };
    let sge = [Sge { addr: 0x1000, length: 64, lkey: Lkey(1) }];
    let write = SendWr::write(1, &sge, remote).signaled();
    let inline = SendWr::write(1, Inline(&[7; 64]), remote).signaled();
    let list = [write; 32];

    report("clock and loop alone", 1, || ());
    report("empty poll", 1, || assert_eq!(bench.cq.poll(&mut bench.wcs).unwrap(), 0));
    report("post 1 + take, complete, retire + poll 1", 1, || bench.round(&mut state, &[write]));
    report("the same with 64 bytes inline", 1, || bench.round(&mut state, &[inline]));
    report("the same with a list of 32, per work request", 32, || bench.round(&mut state, &list));
    let (post, poll) = bench.parts(&mut state, &[write]);
    line("post 1 alone", post);
    line("poll 1 alone", poll);
    let (post, poll) = bench.parts(&mut state, &list);
    line("post of a list of 32, per work request", post / 32.0);
    line("poll of 32, per completion", poll / 32.0);
}

struct Bench {
    qp: Qp,
    cq: Cq,
    wcs: [Wc; 32],
    wqe: SendWqe,
    buffer: Vec<u8>,
}

impl Bench {
    fn round(&mut self, state: &mut State, wrs: &[SendWr<'_>]) {
        self.qp.post_send(black_box(wrs)).unwrap();
        self.serve(state, wrs.len());
        assert_eq!(self.cq.poll(&mut self.wcs).unwrap(), wrs.len());
    }

    /// The daemon's part: takes `count` work requests, completes and retires them.
    fn serve(&mut self, state: &mut State, count: usize) {
        let qp = state.qps.values_mut().next().unwrap();
        let cq = state.cqs.values_mut().next().unwrap();
        for _ in 0..count {
            self.buffer =
                self.wqe.inline.take().unwrap_or_else(|| std::mem::take(&mut self.buffer));
            let taken = qp.send_queue.take(&mut self.wqe, &mut self.buffer);
            assert_eq!(taken, Ok(Taken::Ready));
            let entry = CqEntry { wr_id: self.wqe.wr.wr_id, ..Default::default() };
            cq.ring.push(&entry, false).unwrap();
        }
        assert!(!cq.ring.publish(), "nobody has armed it");
        qp.send_queue.retire(count as u32);
    }

    /// Posting and polling timed apart from everything else, in batches without a clock between.
    fn parts(&mut self, state: &mut State, wrs: &[SendWr<'_>]) -> (f64, f64) {
        let calls = 96 / wrs.len();
        let (mut post, mut poll) = (f64::MAX, f64::MAX);
        for _ in 0..BATCHES {
            let start = Instant::now();
            for _ in 0..calls {
                self.qp.post_send(black_box(wrs)).unwrap();
            }
            post = post.min(start.elapsed().as_nanos() as f64 / calls as f64);
            self.serve(state, calls * wrs.len());
            let start = Instant::now();
            for _ in 0..calls {
                assert_eq!(self.cq.poll(&mut self.wcs[..wrs.len()]).unwrap(), wrs.len());
            }
            poll = poll.min(start.elapsed().as_nanos() as f64 / calls as f64);
        }
        (post, poll)
    }
}

/// The smallest time of a call, of many batches of calls.
fn report(name: &str, per: u32, mut call: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(CALLS * per));
    }
    line(name, best);
}

fn line(name: &str, nanoseconds: f64) {
    println!("{nanoseconds:8.1} ns  {name}");
}
