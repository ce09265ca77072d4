//! UC and UD, shared receive queues and multicast groups, beside reliable connections: whatever
//! arrives is a message that was sent, whole; every send ends; no receive is lost.

use crate::{LIMIT, check_connected};
use urxe_spec_tests::messenger::Messengers;
use urxe_spec_tests::party::Party;
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::scene::{self, Connection, PD, Weather};
use urxe_spec_tests::seeds::for_each_seed;
use urxe_spec_tests::traffic::Traffic;

/// Makes a run; returns its hash.
fn run(seed: u64, prints: bool, weather: impl Fn(&mut Rng) -> Weather) -> u64 {
    let mut rng = Rng::new(seed);
    let weather = weather(&mut rng);
    let nodes = scene::draw_nodes::<3>(&mut rng);
    let mut world = scene::world(&mut rng, &nodes, &weather, prints);
    let counters = scene::counters(&mut rng, &mut world);
    let mut parties: Vec<Party> = Vec::new();
    for number in 0..rng.pick(&[0, 0, 1]) {
        let mut connection = Connection::draw(&mut rng);
        for style in &mut connection.styles {
            style.count = style.count.min(20);
            style.budget = style.budget.min(100_000);
        }
        parties.extend(connection.make(&mut rng, &mut world, number, &counters));
    }
    let messengers = Messengers::draw(&mut rng, &mut world, &weather, PD);
    let mut traffic = Traffic::new(world, parties, counters, rng.fork());
    traffic.messengers = messengers;

    traffic.run_to_end(LIMIT);
    traffic.run_to_rest();
    traffic.check_memory();
    check_connected(&traffic, &traffic.parties);
    if weather.is_calm() {
        traffic.messengers.check_nothing_lost(&traffic.world);
    }
    traffic.messengers.end(&mut traffic.world);
    traffic.run_to_rest();
    traffic.messengers.check_end(&traffic.world);
    traffic.world.trace.hash()
}

#[test]
fn what_arrives_was_sent_and_nothing_is_lost_in_calm_weather() {
    let family = "what_arrives_was_sent_and_nothing_is_lost_in_calm_weather";
    for_each_seed(family, 100_000, 300, |seed, prints| {
        run(seed, prints, Weather::calm);
    });
}

#[test]
fn what_arrives_was_sent_in_any_weather() {
    for_each_seed("what_arrives_was_sent_in_any_weather", 110_000, 1_500, |seed, prints| {
        run(seed, prints, Weather::stormy);
    });
}

#[test]
fn messages_are_the_same_with_the_same_seed() {
    for_each_seed("messages_are_the_same_with_the_same_seed", 120_000, 10, |seed, prints| {
        let first = run(seed, prints, Weather::stormy);
        assert_eq!(run(seed, false, Weather::stormy), first);
        assert_ne!(run(seed + 1, false, Weather::stormy), first);
    });
}
