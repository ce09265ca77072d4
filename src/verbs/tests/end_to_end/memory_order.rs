//! A program that polls its memory sees what a peer writes there in the order in which it was
//! sent: in memory that the library made, and in memory of the program's own, remapped or not.

use crate::memory::again_with_remap;
use crate::{ALL, Net};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use urxe_shm::memory::remap;
use urxe_verbs::*;

/// Words of the data, which the flag stands behind.
const WORDS: usize = 48;
const FLAG: usize = 60;
const ROUNDS: u64 = 4_000;
/// Pairs of WRITEs that are under way at a time.
const IN_FLIGHT: u64 = 8;

/// How the program learns that new data is there.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Flag,
    FetchAdd,
    LastWord,
}

/// Polls until the last round has come; whenever a round is told of, its data must be there.
fn poll(mr: &Mr, signal: Signal, failed: &AtomicBool) -> u64 {
    let word = |index: usize| mr.atomic_u64(8 * index).unwrap();
    let (flag, words) = match signal {
        Signal::LastWord => (word(WORDS - 1), WORDS - 1),
        _ => (word(FLAG), WORDS),
    };
    let data: Vec<&AtomicU64> = (0..words).map(word).collect();
    let (mut seen, mut looked) = (0, 0);
    while seen < ROUNDS && !failed.load(Ordering::Relaxed) {
        let now = flag.load(Ordering::Acquire);
        if now == seen {
            std::thread::yield_now();
            continue;
        }
        for (index, word) in data.iter().enumerate() {
            let value = word.load(Ordering::Relaxed);
            assert!(value >= now, "{signal:?}: word {index} is of round {value}, not of {now}");
        }
        (seen, looked) = (now, looked + 1);
    }
    looked
}

fn write(net: &Net, mr: &Mr, signal: Signal) {
    let source = &net.near.mr;
    let there = mr.remote_buf(..8 * WORDS).unwrap();
    let flag = mr.remote_buf(8 * FLAG..8 * FLAG + 8).unwrap();
    let mut under_way = 0;
    for round in 1..=ROUNDS {
        let at = (round % (2 * IN_FLIGHT)) as usize * 8 * WORDS;
        let number = round.to_ne_bytes();
        source.write_at(at, &number.repeat(WORDS)).unwrap();
        let from = [source.sge(at..at + 8 * WORDS).unwrap()];
        // What was there before goes to where nobody looks.
        let before = [source.sge(1 << 19..(1 << 19) + 8).unwrap()];
        let data = SendWr::write(round, &from, there);
        let posted = match signal {
            Signal::LastWord => net.near.qp.post_send(&[data.signaled()]),
            Signal::Flag => {
                let flag = SendWr::write(round, Inline(&number), flag).signaled();
                net.near.qp.post_send(&[data, flag])
            }
            Signal::FetchAdd => {
                let add = SendWr::fetch_add(round, &before, flag, 1).signaled();
                net.near.qp.post_send(&[data, add])
            }
        };
        posted.unwrap();
        under_way += 1;
        while under_way == IN_FLIGHT || (round == ROUNDS && under_way > 0) {
            net.near.done();
            under_way -= 1;
        }
    }
}

fn check(net: &Net, mr: &Mr) {
    for signal in [Signal::Flag, Signal::FetchAdd, Signal::LastWord] {
        mr.fill(.., 0).unwrap();
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| poll(mr, signal, &failed));
            let writes = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                write(net, mr, signal);
            }));
            failed.store(writes.is_err(), Ordering::Relaxed);
            let looked = poller.join().unwrap();
            assert!(writes.is_ok() && looked > 0, "{signal:?}: looked {looked} times");
        });
    }
}

#[test]
fn memory_of_the_library_is_seen_to_change_in_order() {
    let net = Net::new();
    check(&net, &net.far.mr);
}

#[test]
fn memory_of_the_program_is_seen_to_change_in_order() {
    check_own_memory();
}

#[test]
fn remapped_memory_is_seen_to_change_in_order() {
    match remap::longest_wanted(0) > 0 {
        true => check_own_memory(),
        false => again_with_remap("memory_order::remapped_memory_is_seen_to_change_in_order"),
    }
}

fn check_own_memory() {
    let net = Net::new();
    // Of whole pages and long enough to be remapped, where that is wanted.
    let mut memory = vec![0u64; (1 << 17) / 8 + 512];
    let start = memory.as_mut_ptr().cast::<u8>();
    let start = start.wrapping_add(start.align_offset(4096));
    // SAFETY: 128 KiB of the vector, which outlives the MR; only the MR's own methods reach it.
    let mr = unsafe { net.far.pd.reg_mr(start, 1 << 17, ALL) }.unwrap();
    check(&net, &mr);
}
