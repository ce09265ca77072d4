//! What is sent again although nothing was lost: packets counted in a network that drops nothing,
//! with ACK timeouts shorter than the round trip, and with receivers that are not ready.

use crate::pair::{LIMIT, MTU, Operation, Pair, link};
use std::time::Duration;
use urxe_engine::Counter;
use urxe_port::Chance;
use urxe_spec_tests::simulation::host::RECV_WR_ID;
use urxe_spec_tests::simulation::world::EndAttr;
use urxe_types::{Extra, SendOp};

/// Carries out 200 operations, 4 at a time; the packets sent again, and the timeouts.
fn with_timeout(timeout: u8, round_trip: Duration, operation: Operation, len: usize) -> (u64, u64) {
    let attr = EndAttr { timeout, ..EndAttr::generous() };
    let mut pair = Pair::new(link(round_trip, Chance::NEVER), attr, len, 4, 1);
    pair.run(operation, 200, 4);
    (pair.count(0, Counter::RetransmittedPackets), pair.count(0, Counter::AckTimeouts))
}

#[test]
fn an_ack_timeout_shorter_than_the_round_trip_repeats_nothing() {
    for timeout in 1..=5 {
        for round_trip in [20, 200, 500].map(Duration::from_micros) {
            for (operation, len) in [
                (Operation::Write, 64),
                (Operation::Write, 65_536),
                (Operation::Read, 65_536),
                (Operation::FetchAdd, 8),
            ] {
                let repeated = with_timeout(timeout, round_trip, operation, len);
                assert_eq!(repeated, (0, 0), "{timeout} {round_trip:?} {operation:?} {len}");
            }
        }
    }
}

/// Packets are repeated before the path is known, and none after that.
#[test]
fn a_path_longer_than_probe_interval_and_ack_timeout_causes_few_repeats() {
    for (timeout, most_repeated, most_timeouts) in [(4, 150, 3), (14, 5, 0)] {
        for round_trip in [2, 10].map(Duration::from_millis) {
            for (operation, len) in
                [(Operation::Write, 1 << 20), (Operation::Read, 1 << 20), (Operation::FetchAdd, 8)]
            {
                let (repeated, timeouts) = with_timeout(timeout, round_trip, operation, len);
                let figures = format!("{repeated} repeated, {timeouts} timeouts: code {timeout}");
                assert!(
                    repeated <= most_repeated && timeouts <= most_timeouts,
                    "{figures}, {round_trip:?}, {operation:?} of {len} bytes"
                );
            }
        }
    }
}

const MESSAGES: u64 = 500;

/// A program that posts its receives late.
#[derive(Clone, Copy, Debug)]
struct SlowReceiver {
    /// Bytes of a message.
    len: usize,
    /// SENDs under way.
    depth: u64,
    /// Receives that it posts at once.
    burst: u64,
    /// When it does so, after the last one was used.
    gap: Duration,
    min_rnr_timer: u8,
}

/// Sends [`MESSAGES`] to such a program. The packets sent again, and the RNR NAKs.
fn slow_receiver(receiver: SlowReceiver) -> (u64, u64) {
    let SlowReceiver { len, depth, burst, gap, min_rnr_timer } = receiver;
    let attr = EndAttr { min_rnr_timer, ..EndAttr::generous() };
    let path = link(Duration::from_micros(20), Chance::NEVER);
    let mut pair = Pair::new(path, attr, len, depth as usize, burst as usize);
    let (mut sends, mut sent, mut receives, mut received) = (0, 0, 0, 0);
    let mut next_post = Some(pair.world.now() + gap);
    while sent < MESSAGES || received < MESSAGES {
        while sends < MESSAGES && sends - sent < depth {
            pair.send(sends, SendOp::Send(Extra::None));
            sends += 1;
        }
        pair.world.ring(&pair.ends[0]);
        if next_post.is_some_and(|at| at <= pair.world.now()) {
            for _ in 0..burst.min(MESSAGES - receives) {
                pair.receive(RECV_WR_ID | receives);
                receives += 1;
            }
            next_post = None;
        }
        let limit = pair.world.now() + LIMIT;
        pair.world.step(next_post.unwrap_or(limit).min(limit));
        assert!(pair.world.now() < limit, "stuck: {sent} sent, {received} received");
        sent += pair.completions(0) as u64;
        received += pair.completions(1) as u64;
        if next_post.is_none() && received == receives && receives < MESSAGES {
            next_post = Some(pair.world.now() + gap);
        }
    }
    (pair.count(0, Counter::RetransmittedPackets), pair.count(1, Counter::RnrNaksSent))
}

/// The packet that an RNR NAK refuses is sent again, and hardly another one behind it: what went
/// before the first NAK, and where the receiver was taken to have more than it had.
#[test]
fn an_rnr_nak_repeats_hardly_more_than_the_refused_packet() {
    for (len, burst) in [(64, 1), (4096, 1), (65_536, 1), (64, 8), (4096, 64)] {
        for gap in [5, 50, 500].map(Duration::from_micros) {
            // 10 us, 640 us and 1.28 ms.
            for timer in [1, 12, 14] {
                let receiver = SlowReceiver { len, depth: 16, burst, gap, min_rnr_timer: timer };
                let (repeated, rnr_naks) = slow_receiver(receiver);
                let figures =
                    format!("{repeated} packets repeated for {rnr_naks} RNR NAKs: {receiver:?}");
                assert!(repeated <= rnr_naks + 350, "{figures}");
                assert!(rnr_naks <= 7 * MESSAGES / burst, "{figures}");
            }
        }
    }
}

/// As fabtests does it: many SENDs under way, and a program that posts as many receives again only
/// when all were used. What the receiver has refused is sent again, and not what came behind it.
#[test]
fn receives_that_come_late_make_few_repeats_however_many_sends_are_under_way() {
    for (len, burst) in [(64, 64), (1024, 64), (4096, 16), (16_384, 4), (65_536, 1)] {
        for gap in [5, 50, 2_000].map(Duration::from_micros) {
            let receiver = SlowReceiver { len, depth: 64, burst, gap, min_rnr_timer: 12 };
            let (repeated, rnr_naks) = slow_receiver(receiver);
            let useful = MESSAGES * len.div_ceil(MTU.bytes()) as u64;
            assert!(
                repeated * 10 <= useful,
                "{repeated} packets repeated for {rnr_naks} RNR NAKs, {useful} needed: {receiver:?}"
            );
        }
    }
}
