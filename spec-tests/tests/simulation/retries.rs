//! When a requester exceeds its retries: not before it has made all of them, and not much later.

use crate::{Draw, LIMIT, check_connected};
use std::time::Duration;
use urxe_engine::{Cause, Counter};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::plan::Mix;
use urxe_spec_tests::simulation::scenario::NetworkProfile;
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::workloads::rc::{Expects, Pace, RcWorkload};
use urxe_spec_tests::simulation::workloads::traffic::Traffic;
use urxe_types::{QpState, WcStatus};

/// A connection of which end A exceeds its retries, and one that goes on.
fn draw(rng: &mut Rng) -> Draw {
    let profile = NetworkProfile::calm(rng);
    let mut draw = Draw::new(rng, profile, 2);
    let victim = &mut draw.connections[0];
    victim.eager = true;
    victim.styles[0].count = 60;
    victim.styles[1].count = 0;
    draw
}

fn make(draw: &Draw, rng: &mut Rng, prints: bool) -> Traffic {
    let mut traffic = draw.make(rng, prints);
    traffic.workloads[0].expects = Expects::Failure;
    traffic.workloads[1].expects = Expects::Failure;
    traffic
}

/// Runs on until A has nothing posted and the others are done; what B has posted is flushed.
fn finish(traffic: &mut Traffic) {
    traffic.run_until(LIMIT, |traffic| {
        traffic.workloads[0].has_sent() && traffic.workloads[2..].iter().all(RcWorkload::is_done)
    });
    for side in [0, 1] {
        traffic.workloads[side].stop();
        let end = traffic.workloads[side].end;
        if traffic.world.state(&end).is_some() {
            traffic.world.set_state(&end, QpState::Err);
        }
    }
    traffic.run_to_rest();
    traffic.check_memory();
    check_connected(traffic, &traffic.workloads[2..]);
}

/// The peer's QP is destroyed: RETRY_EXC_ERR after retry_cnt + 1 timeouts.
fn gone(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let mut draw = draw(&mut rng);
    let victim = &mut draw.connections[0];
    victim.styles[0].mix = Mix { write: 1, ..Mix::default() };
    victim.styles[0].immediate = 0;
    victim.attrs[0].retry_cnt = rng.range(0..=7) as u8;
    victim.attrs[0].timeout = rng.range(11..=15) as u8;
    let attr = victim.attrs[0].clone();
    let mut traffic = make(&draw, &mut rng, prints);

    let ended = rng.index(traffic.workloads[0].sends.len());
    traffic.run_until(LIMIT, |traffic| traffic.workloads[0].send_progress.ended >= ended);
    let at = traffic.world.elapsed();
    let b = traffic.workloads[1].end;
    traffic.world.note(&b, format_args!("is destroyed"));
    traffic.world.destroy_qp(&b);
    traffic.workloads[1].abandon();
    traffic.run_until(LIMIT, |traffic| {
        traffic.workloads[0].send_progress.failed.is_some() || traffic.workloads[0].has_sent()
    });
    if let Some(failed) = traffic.workloads[0].send_progress.failed {
        assert_eq!((failed.status, failed.cause), (WcStatus::RetryExceeded, Cause::AckTimeout));
        let took = traffic.world.elapsed() - at;
        let timeout = Duration::from_nanos(4096 << attr.timeout);
        let due = timeout * (u32::from(attr.retry_cnt) + 1);
        // The last response may have been under way, and so may the first unanswered
        // packet.
        let round_trip = round_trip(&draw);
        let earliest = due.saturating_sub(round_trip);
        // On a path of which nothing is known it may be four times as long.
        let latest = if ended == 0 { due * 4 } else { due };
        assert!((earliest..=latest + round_trip).contains(&took), "took {took:?}, due {due:?}");
    }
    finish(&mut traffic);
}

/// The peer never posts a receive: RNR_RETRY_EXC_ERR after rnr_retry tries.
fn never_ready(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let mut draw = draw(&mut rng);
    let victim = &mut draw.connections[0];
    victim.styles[0].mix = Mix { send: 1, write: 1, ..Mix::default() };
    victim.attrs[0].rnr_retry = rng.range(0..=6) as u8;
    let tries = u64::from(victim.attrs[0].rnr_retry) + 1;
    let mut traffic = make(&draw, &mut rng, prints);
    traffic.workloads[1].stop_receiving();
    let first = traffic.workloads[0].sends.iter().position(|send| send.consumes_receive());
    finish(&mut traffic);

    let failed = traffic.workloads[0].send_progress.failed;
    assert_eq!(failed.map(|failed| failed.index), first);
    let Some(failed) = failed else { return };
    assert_eq!((failed.status, failed.cause), (WcStatus::RnrRetryExceeded, Cause::RnrRetries));
    let b = traffic.workloads[1].end;
    let counters = traffic.world.nodes[b.node].device.qp_counters(b.qpn).expect("it is there");
    let naks = counters.get(Counter::RnrNaksSent);
    // A probe that crosses a NAK causes another one, and so does what is repeated because of a
    // selective ACK that was sent before the try came.
    let a = traffic.workloads[0].end;
    let counters = traffic.world.nodes[a.node].device.qp_counters(a.qpn).expect("it is there");
    let is_quiet = round_trip(&draw) < draw.nodes[0].min_probe.min(draw.nodes[1].min_probe)
        && counters.get(Counter::SelectiveAcksReceived) == 0;
    assert!(naks == tries || !is_quiet && naks > tries, "{naks} NAKs for {tries} tries");
}

/// The peer posts its receives late, one by one, but each before the retries are exceeded: every
/// message has all retries.
fn late(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let mut draw = draw(&mut rng);
    let victim = &mut draw.connections[0];
    victim.styles[0].mix = Mix { send: 1, write: 1, ..Mix::default() };
    victim.attrs[0].rnr_retry = rng.range(3..=6) as u8;
    // Code 14 is 1.28 ms.
    victim.attrs[1].min_rnr_timer = 14;
    let mut traffic = draw.make(&mut rng, prints);
    traffic.workloads[1].recv_pace = Pace { burst: 1..=1, gap: 500..=1_000 };
    traffic.run_to_end(LIMIT);
    traffic.check_memory();
    check_connected(&traffic, &traffic.workloads);
}

/// The longest that a packet and its response take.
fn round_trip(draw: &Draw) -> Duration {
    2 * *draw.profile.link.impairment.delay.end() + Duration::from_micros(10)
}

/// The peer is destroyed.
pub(crate) const GONE: Family = Family {
    name: "retries_for_a_peer_that_is_gone_are_exceeded_in_time",
    first: 50_000,
    runs: 100,
    run: gone,
};

#[test]
fn retries_for_a_peer_that_is_gone_are_exceeded_in_time() {
    GONE.check();
}

/// The peer posts no receive.
pub(crate) const NEVER_READY: Family = Family {
    name: "rnr_retries_for_a_peer_without_receives_are_exceeded",
    first: 60_000,
    runs: 100,
    run: never_ready,
};

#[test]
fn rnr_retries_for_a_peer_without_receives_are_exceeded() {
    NEVER_READY.check();
}

/// The peer posts its receives late.
pub(crate) const LATE: Family = Family {
    name: "a_peer_that_posts_receives_late_exceeds_no_retries",
    first: 65_000,
    runs: 100,
    run: late,
};

#[test]
fn a_peer_that_posts_receives_late_exceeds_no_retries() {
    LATE.check();
}
