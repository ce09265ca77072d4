//! UC and UD, shared receive queues and multicast groups, beside reliable connections: whatever
//! arrives is a message that was sent, whole; every send completes; no receive is lost.

use crate::{LIMIT, check_connected, check_repeats};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::{self, Connection, NetworkProfile, PD};
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::wide::Wide;
use urxe_spec_tests::simulation::workloads::datagram::DatagramWorkloads;
use urxe_spec_tests::simulation::workloads::rc::RcWorkload;
use urxe_spec_tests::simulation::workloads::traffic::Traffic;

/// Makes a run; returns its hash.
fn run(seed: u64, prints: bool, profile: impl Fn(&mut Rng) -> NetworkProfile) -> u64 {
    let mut rng = Rng::new(seed);
    let mut profile = profile(&mut rng);
    let mut nodes = scenario::draw_nodes::<3>(&mut rng).to_vec();
    let mut wide = Wide::of(seed);
    if let Some(wide) = &mut wide {
        wide.network(&mut profile);
        nodes = wide.nodes(3);
    }
    let mut world = scenario::world(&mut rng, &nodes, &profile, prints);
    let counters = scenario::counters(&mut rng, &mut world);
    let mut workloads: Vec<RcWorkload> = Vec::new();
    for number in 0..rng.pick(&[0, 0, 1]) {
        let mut connection = Connection::draw(&mut rng);
        if let Some(wide) = &mut wide {
            wide.timeouts(std::slice::from_mut(&mut connection), &profile);
        }
        for style in &mut connection.styles {
            style.count = style.count.min(20);
            style.budget = style.budget.min(100_000);
        }
        workloads.extend(connection.make(&mut rng, &mut world, number, &counters));
    }
    let datagrams = DatagramWorkloads::draw(&mut rng, &mut world, &profile, PD);
    let mut traffic = Traffic::new(world, workloads, counters, rng.fork());
    traffic.datagrams = datagrams;

    traffic.run_to_end(LIMIT);
    traffic.run_to_rest();
    traffic.check_memory();
    check_connected(&traffic, &traffic.workloads);
    if profile.is_calm() {
        traffic.datagrams.check_nothing_lost(&traffic.world);
    }
    traffic.datagrams.end(&mut traffic.world);
    traffic.run_to_rest();
    traffic.datagrams.check_end(&traffic.world);
    traffic.world.trace.hash()
}

/// Nothing is lost.
pub(crate) const CALM: Family = Family {
    name: "datagrams_arrive_as_they_were_sent_and_none_is_lost_on_a_perfect_network",
    first: 100_000,
    runs: 300,
    run: |seed, prints| {
        run(seed, prints, NetworkProfile::calm);
    },
};

/// Anything may happen to a packet.
pub(crate) const STORMY: Family = Family {
    name: "datagrams_arrive_as_they_were_sent_on_any_network",
    first: 110_000,
    runs: 1_500,
    run: |seed, prints| {
        run(seed, prints, NetworkProfile::stormy);
    },
};

/// Each run is made twice.
pub(crate) const REPEATED: Family = Family {
    name: "messages_are_the_same_with_the_same_seed",
    first: 120_000,
    runs: 10,
    run: |seed, prints| {
        check_repeats(seed, prints, |seed, prints| run(seed, prints, NetworkProfile::stormy));
    },
};

#[test]
fn datagrams_arrive_as_they_were_sent_and_none_is_lost_on_a_perfect_network() {
    CALM.check();
}

#[test]
fn datagrams_arrive_as_they_were_sent_on_any_network() {
    STORMY.check();
}

#[test]
fn messages_are_the_same_with_the_same_seed() {
    REPEATED.check();
}
