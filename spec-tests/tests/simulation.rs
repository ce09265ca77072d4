//! Random work on a bad network: what RC promises holds all the same.

use std::time::Duration;
use urxe_engine::{Counter, QpState};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::scene::{self, Connection, Weather};
use urxe_spec_tests::seeds::for_each_seed;
use urxe_spec_tests::traffic::{Party, Traffic};

/// Longer than the slowest run takes, in virtual time.
const LIMIT: Duration = Duration::from_secs(600);

/// Everything succeeds, and memory is what it must be. Returns the hash of the run.
fn run(seed: u64, prints: bool, weather: impl Fn(&mut Rng) -> Weather) -> u64 {
    let mut rng = Rng::new(seed);
    let weather = weather(&mut rng);
    let nodes = scene::draw_nodes(&mut rng);
    let count = rng.pick(&[1, 1, 2, 4]);
    let connections: Vec<Connection> = (0..count).map(|_| Connection::draw(&mut rng)).collect();
    if prints {
        eprintln!("{weather:#?}\n{nodes:#?}\n{connections:#?}");
    }
    let mut world = scene::world(&mut rng, &nodes, &weather, prints);
    let counters = scene::counters(&mut rng, &mut world);
    let mut parties: Vec<Party> = Vec::new();
    for (number, connection) in (0..).zip(&connections) {
        parties.extend(connection.make(&mut rng, &mut world, number, &counters));
    }
    let mut traffic = Traffic::new(world, parties, rng.fork());
    traffic.run_to_end(LIMIT);
    traffic.run_to_rest();
    for party in &traffic.parties {
        party.check_memory(&traffic.world);
        assert_eq!(traffic.world.state(&party.end), Some(QpState::Rts));
    }
    check_counters(&traffic, weather.is_calm());
    traffic.world.trace.hash()
}

fn check_counters(traffic: &Traffic, calm: bool) {
    for (number, node) in traffic.world.nodes.iter().enumerate() {
        let count = |counter| node.device.counters().get(counter);
        let sent: usize = traffic
            .parties
            .iter()
            .filter(|party| party.end.node == number)
            .map(|party| party.sends.len())
            .sum();
        let received: usize = traffic
            .parties
            .iter()
            .filter(|party| party.window.node == number)
            .map(|party| party.sends.len())
            .sum();
        assert_eq!(count(Counter::SentMessages), sent as u64);
        assert_eq!(count(Counter::ReceivedMessages), received as u64);
        for never in [
            Counter::GhostResponses,
            Counter::BadResponses,
            Counter::FatalNaksReceived,
            Counter::InvalidRequestNaksSent,
            Counter::RemoteAccessNaksSent,
            Counter::RemoteOperationalNaksSent,
            Counter::RetriesExceeded,
            Counter::RnrRetriesExceeded,
            Counter::LocalErrors,
            Counter::FlushedRequests,
            Counter::CqOverruns,
            Counter::DropTooShort,
            Counter::DropUnknownOpcode,
            Counter::DropMalformed,
            Counter::DropBadPkey,
            Counter::DropUnknownQp,
            Counter::DropWrongTransport,
            Counter::DropWrongAddress,
            Counter::DropQpNotReady,
        ] {
            assert_eq!(count(never), 0, "{}", never.name());
        }
        if calm {
            for never in [Counter::DropBadIcrc, Counter::AckTimeouts] {
                assert_eq!(count(never), 0, "{}", never.name());
            }
        }
    }
}

#[test]
fn everything_succeeds_in_calm_weather() {
    for_each_seed("everything_succeeds_in_calm_weather", 0, 300, |seed, prints| {
        run(seed, prints, Weather::calm);
    });
}

#[test]
fn everything_succeeds_in_any_weather() {
    for_each_seed("everything_succeeds_in_any_weather", 10_000, 300, |seed, prints| {
        run(seed, prints, Weather::stormy);
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    for_each_seed("the_same_seed_is_the_same_run", 20_000, 20, |seed, prints| {
        let first = run(seed, prints, Weather::stormy);
        assert_eq!(run(seed, false, Weather::stormy), first);
        assert_ne!(run(seed + 1, false, Weather::stormy), first);
    });
}
