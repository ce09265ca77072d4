//! Programs connect through connection managers on every kind of network, and are killed at every
//! step.

use std::time::Duration;
use urxe_cm::{CmCounter, Timing};
use urxe_port::{Chance, Impairment};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::{self, NetworkProfile};
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::workloads::cm::{
    CLIENT, CmBehavior, CmWorkload, Death, Notice, SERVER, is_valid_order,
};

/// Longer than the slowest run takes, in virtual time.
const LIMIT: Duration = Duration::from_secs(1200);

const WAIT: Duration = Duration::from_secs(10);

fn behavior(delay: u64) -> CmBehavior {
    CmBehavior {
        delay: delay / 2..=delay,
        rejects: 0,
        declines: 0,
        server_ends: 50,
        wait: WAIT,
        backlog: 128,
    }
}

/// A network in which a share of all datagrams is lost, and others are duplicated or delayed.
fn lossy(rng: &mut Rng, drop: f64) -> NetworkProfile {
    let mut profile = NetworkProfile::calm(rng);
    let impairment = &mut profile.link.impairment;
    *impairment = Impairment {
        drop: Chance::percent(drop),
        duplicate: Chance::percent(2.0),
        reorder: Chance::percent(5.0),
        ..impairment.clone()
    };
    profile
}

fn begin(
    rng: &mut Rng,
    profile: &NetworkProfile,
    behavior: CmBehavior,
    count: u64,
    prints: bool,
) -> CmWorkload {
    let nodes: [_; 2] = scenario::draw_nodes(rng);
    let world = scenario::world(rng, &nodes, profile, prints);
    CmWorkload::new(world, rng.fork(), behavior, count, Duration::from_millis(200))
}

fn run_to_rest(cm_workload: &mut CmWorkload) {
    while !cm_workload.is_at_rest() {
        cm_workload.step();
        let known = [cm_workload.known(CLIENT), cm_workload.known(SERVER)];
        assert!(cm_workload.world.elapsed() < LIMIT, "still known: {known:?}");
    }
}

fn check_finished(cm_workload: &CmWorkload) {
    for side in [CLIENT, SERVER] {
        for (notices, _) in cm_workload.finished(side) {
            assert!(is_valid_order(side, notices), "side {side}: {notices:?}");
        }
    }
}

fn succeed(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let drop = rng.pick(&[0.0, 1.0, 5.0, 20.0]);
    let profile = lossy(&mut rng, drop);
    let count = rng.range(1..=40);
    let mut cm_workload = begin(&mut rng, &profile, behavior(5_000), count, prints);
    run_to_rest(&mut cm_workload);
    check_finished(&cm_workload);
    for side in [CLIENT, SERVER] {
        let finished = cm_workload.finished(side);
        assert_eq!(finished.len() as u64, count, "side {side}");
        // The client may be disconnected before its message is acknowledged.
        let good = |(notices, exchanged): &(Vec<Notice>, bool)| {
            notices.contains(&Notice::Over) && (*exchanged || side == CLIENT)
        };
        assert!(finished.iter().all(good), "side {side}: {finished:?}");
    }
}

/// Every request is accepted.
pub(crate) const SUCCEED: Family = Family {
    name: "connections_succeed_whatever_is_lost",
    first: 500_000,
    runs: 100,
    run: succeed,
};

#[test]
fn connections_succeed_whatever_is_lost() {
    SUCCEED.check();
}

fn refuse(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let drop = rng.pick(&[0.0, 5.0, 20.0]);
    let profile = lossy(&mut rng, drop);
    let behavior = CmBehavior { rejects: 40, declines: 40, backlog: 3, ..behavior(300_000) };
    let mut cm_workload = begin(&mut rng, &profile, behavior, 20, prints);
    run_to_rest(&mut cm_workload);
    check_finished(&cm_workload);
    // Every request has a response, and none was handled twice.
    assert_eq!(cm_workload.finished(CLIENT).len(), 20);
    assert_eq!(cm_workload.finished(SERVER).len(), 20);
    let unreachable = |(notices, _): &(Vec<Notice>, bool)| notices.contains(&Notice::Unreachable);
    assert!(!cm_workload.finished(CLIENT).iter().any(unreachable));
}

/// Many requests are refused.
pub(crate) const REFUSE: Family =
    Family { name: "refusals_arrive_whatever_is_lost", first: 510_000, runs: 100, run: refuse };

#[test]
fn refusals_arrive_whatever_is_lost() {
    REFUSE.check();
}

fn interrupt(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let mut profile = NetworkProfile::stormy(&mut rng);
    for (from, lasts) in &mut profile.partitions {
        (*from, *lasts) = (rng.micros(0..=400_000), rng.micros(0..=90_000_000));
    }
    let behavior = CmBehavior { rejects: 10, declines: 10, ..behavior(20_000) };
    let count = rng.range(1..=20);
    let mut cm_workload = begin(&mut rng, &profile, behavior, count, prints);
    run_to_rest(&mut cm_workload);
    check_finished(&cm_workload);
    assert_eq!(cm_workload.finished(CLIENT).len() as u64, count);
}

/// The network is interrupted for longer than the connection managers try.
pub(crate) const INTERRUPT: Family = Family {
    name: "every_event_is_reported_once_whatever_is_lost",
    first: 520_000,
    runs: 150,
    run: interrupt,
};

#[test]
fn every_event_is_reported_once_whatever_is_lost() {
    INTERRUPT.check();
}

/// Kills one side after so many steps. Returns whether there was anything left to do then.
fn kill_after(steps: u32, side: usize, death: Death, seed: u64, calm: bool, prints: bool) -> bool {
    let mut rng = Rng::new(seed);
    let drop = if calm { 0.0 } else { 15.0 };
    let profile = if calm { NetworkProfile::calm(&mut rng) } else { lossy(&mut rng, drop) };
    let mut cm_workload = begin(&mut rng, &profile, behavior(5_000), 1, prints);
    for _ in 0..steps {
        cm_workload.step();
    }
    let busy = !cm_workload.is_at_rest();
    cm_workload.kill(side, death);
    let killed = cm_workload.world.elapsed();
    let timing = Timing::default();
    // The other side of an established connection is not notified, and disconnects itself.
    let documented = WAIT + timing.give_up() + timing.linger();
    // One side may have asked the other to wait before it died.
    let asked = timing.service_timeout.duration() + timing.response_timeout.duration();
    let documented = documented + if calm { Duration::ZERO } else { asked };
    while !cm_workload.is_at_rest() {
        cm_workload.step();
        let took = cm_workload.world.elapsed() - killed;
        let known = [cm_workload.known(CLIENT), cm_workload.known(SERVER)];
        assert!(took <= documented, "{death:?} of {side} after {steps} steps: {known:?} {took:?}");
    }
    check_finished(&cm_workload);
    busy
}

fn kill(seed: u64, prints: bool) {
    for calm in [true, false] {
        for side in [CLIENT, SERVER] {
            for death in [Death::Program, Death::Machine] {
                let busy = (0..1000)
                    .take_while(|&steps| kill_after(steps, side, death, seed, calm, prints));
                let steps = busy.count();
                assert!((10..1000).contains(&steps), "{steps} steps");
            }
        }
    }
}

/// One side is killed after each of its steps.
pub(crate) const KILL: Family = Family {
    name: "no_connection_is_left_after_a_side_is_killed_at_any_step",
    first: 530_000,
    runs: 6,
    run: kill,
};

#[test]
fn no_connection_is_left_after_a_side_is_killed_at_any_step() {
    KILL.check();
}

#[test]
fn a_thousand_connections_through_one_listener() {
    let mut rng = Rng::new(540_000);
    let profile = lossy(&mut rng, 5.0);
    let mut cm_workload = begin(&mut rng, &profile, behavior(50_000), 1000, false);
    run_to_rest(&mut cm_workload);
    let exchanged = cm_workload.finished(SERVER).iter().filter(|(_, exchanged)| *exchanged).count();
    assert_eq!((cm_workload.finished(CLIENT).len(), exchanged), (1000, 1000));
    let counters = cm_workload.manager(SERVER).expect("it lives").counters();
    assert_eq!(counters.get(CmCounter::Established), 1000);
}
