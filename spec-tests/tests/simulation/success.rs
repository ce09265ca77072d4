//! On a network that loses, doubles, delays, reorders and damages, with long interruptions:
//! everything succeeds, in order, once, and memory has the expected content.

use crate::{Draw, LIMIT, check_connected, check_repeats};
use urxe_engine::Counter;
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::NetworkProfile;
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::workloads::traffic::Traffic;

/// Makes a run; returns its hash.
fn run(seed: u64, prints: bool, profile: impl Fn(&mut Rng) -> NetworkProfile) -> u64 {
    let mut rng = Rng::new(seed);
    let profile = profile(&mut rng);
    let connections = rng.pick(&[1, 1, 2, 4]);
    let draw = Draw::new(&mut rng, profile, connections).enrich(seed);
    let mut traffic = draw.make(&mut rng, prints);
    traffic.run_to_end(LIMIT);
    traffic.run_to_rest();
    traffic.check_memory();
    check_connected(&traffic, &traffic.workloads);
    check_devices(&traffic);
    if draw.profile.is_calm() {
        check_calm(&draw, &traffic);
    }
    traffic.world.trace.hash()
}

/// What arrived is what was sent, and nothing arrived that should not have.
fn check_devices(traffic: &Traffic) {
    for (number, node) in traffic.world.nodes.iter().enumerate() {
        let count = |counter| node.device.counters().get(counter);
        let senders = traffic.workloads.iter().filter(|workload| workload.window.node == number);
        let sends = senders.flat_map(|workload| &workload.sends);
        let received = sends.filter(|send| !send.is_local()).count();
        // A READ may be asked for in several requests.
        assert!(count(Counter::ReceivedMessages) >= received as u64);
        for never in [
            Counter::DropTooShort,
            Counter::DropUnknownOpcode,
            Counter::DropMalformed,
            Counter::DropBadPkey,
            Counter::DropUnknownQp,
        ] {
            assert_eq!(count(never), 0, "{}", never.name());
        }
        let damaged = traffic.world.network.counters().corrupted;
        let duplicated = traffic.world.network.counters().duplicated;
        assert!(count(Counter::DropBadIcrc) <= damaged + duplicated);
    }
}

/// On a network without impairments nothing is sent twice, unless a receive was missing or the
/// response takes longer than the probe interval.
fn check_calm(draw: &Draw, traffic: &Traffic) {
    let nodes = traffic.world.nodes.iter().zip(&draw.nodes);
    let rnr_naks: u64 =
        nodes.clone().map(|(node, _)| node.device.counters().get(Counter::RnrNaksSent)).sum();
    for (node, config) in nodes {
        let count = |counter| node.device.counters().get(counter);
        assert_eq!(count(Counter::DropBadIcrc), 0);
        assert_eq!(count(Counter::AckTimeouts), 0);
        let longest = 2 * *draw.profile.link.impairment.delay.end();
        if rnr_naks == 0 && longest < config.min_probe {
            assert_eq!(count(Counter::RetransmittedPackets), 0);
            assert_eq!(count(Counter::ImpliedNaks), 0);
        }
    }
}

/// Nothing is lost.
pub(crate) const CALM: Family = Family {
    name: "everything_succeeds_on_a_perfect_network",
    first: 0,
    runs: 300,
    run: |seed, prints| {
        run(seed, prints, NetworkProfile::calm);
    },
};

/// Anything may happen to a packet.
pub(crate) const STORMY: Family = Family {
    name: "everything_succeeds_on_any_network",
    first: 10_000,
    runs: 3_000,
    run: |seed, prints| {
        run(seed, prints, NetworkProfile::stormy);
    },
};

/// Each run is made twice.
pub(crate) const REPEATED: Family = Family {
    name: "the_same_seed_is_the_same_run",
    first: 20_000,
    runs: 20,
    run: |seed, prints| {
        check_repeats(seed, prints, |seed, prints| run(seed, prints, NetworkProfile::stormy));
    },
};

#[test]
fn everything_succeeds_on_a_perfect_network() {
    CALM.check();
}

#[test]
fn everything_succeeds_on_any_network() {
    STORMY.check();
}

#[test]
fn the_same_seed_is_the_same_run() {
    REPEATED.check();
}

/// The answer to a READ was lost, and it waited behind a READ of another QP to be sent again: that
/// one's answer, late by 2 ms, was waited for as if nothing were known of the path.
#[test]
fn seed_102509262_a_read_that_waited_for_its_turn_ran_out_of_tries() {
    run(102_509_262, false, NetworkProfile::stormy);
}

/// Receive FETCH ADD and, while its response is on its way, a probe of it; then, in one batch
/// with that probe, the next atomic: with max_dest_rd_atomic 1 it was refused as one too many.
#[test]
fn seed_31_a_repeated_response_counted_as_an_outstanding_request() {
    run(31, false, NetworkProfile::calm);
}
