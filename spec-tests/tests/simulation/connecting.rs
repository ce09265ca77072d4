//! Programs connect through connection managers in all weathers, and die at every step of it.

use std::time::Duration;
use urxe_engine::cm::{CmCounter, Timing};
use urxe_port::{Chance, Impairment};
use urxe_spec_tests::rendezvous::{CLIENT, Death, Habits, Rendezvous, SERVER, Told, makes_sense};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::scene::{self, Weather};
use urxe_spec_tests::seeds::for_each_seed;

/// Longer than the slowest run takes, in virtual time.
const LIMIT: Duration = Duration::from_secs(1200);

const PATIENCE: Duration = Duration::from_secs(10);

fn habits(think: u64) -> Habits {
    Habits {
        think: think / 2..=think,
        refuses: 0,
        declines: 0,
        server_ends: 50,
        patience: PATIENCE,
        backlog: 128,
    }
}

/// Weather in which a share of all datagrams is lost, and others come twice or late.
fn lossy(rng: &mut Rng, drop: f64) -> Weather {
    let mut weather = Weather::calm(rng);
    let impairment = &mut weather.link.impairment;
    *impairment = Impairment {
        drop: Chance::percent(drop),
        duplicate: Chance::percent(2.0),
        reorder: Chance::percent(5.0),
        ..impairment.clone()
    };
    weather
}

fn begin(rng: &mut Rng, weather: &Weather, habits: Habits, count: u64, prints: bool) -> Rendezvous {
    let nodes: [_; 2] = scene::draw_nodes(rng);
    let world = scene::world(rng, &nodes, weather, prints);
    Rendezvous::new(world, rng.fork(), habits, count, Duration::from_millis(200))
}

fn run_to_rest(rendezvous: &mut Rendezvous) {
    while !rendezvous.is_at_rest() {
        rendezvous.step();
        let known = [rendezvous.known(CLIENT), rendezvous.known(SERVER)];
        assert!(rendezvous.world.elapsed() < LIMIT, "still known: {known:?}");
    }
}

fn check_past(rendezvous: &Rendezvous) {
    for side in [CLIENT, SERVER] {
        for (told, _) in rendezvous.past(side) {
            assert!(makes_sense(side, told), "side {side}: {told:?}");
        }
    }
}

#[test]
fn connections_succeed_whatever_is_lost() {
    for_each_seed("connections_succeed_whatever_is_lost", 500_000, 100, |seed, prints| {
        let mut rng = Rng::new(seed);
        let drop = rng.pick(&[0.0, 1.0, 5.0, 20.0]);
        let weather = lossy(&mut rng, drop);
        let count = rng.range(1..=40);
        let mut rendezvous = begin(&mut rng, &weather, habits(5_000), count, prints);
        run_to_rest(&mut rendezvous);
        check_past(&rendezvous);
        for side in [CLIENT, SERVER] {
            let past = rendezvous.past(side);
            assert_eq!(past.len() as u64, count, "side {side}");
            // The client may be disconnected before its message is acknowledged.
            let good = |(told, talked): &(Vec<Told>, bool)| {
                told.contains(&Told::Over) && (*talked || side == CLIENT)
            };
            assert!(past.iter().all(good), "side {side}: {past:?}");
        }
    });
}

#[test]
fn refusals_arrive_whatever_is_lost() {
    for_each_seed("refusals_arrive_whatever_is_lost", 510_000, 100, |seed, prints| {
        let mut rng = Rng::new(seed);
        let drop = rng.pick(&[0.0, 5.0, 20.0]);
        let weather = lossy(&mut rng, drop);
        let habits = Habits { refuses: 40, declines: 40, backlog: 3, ..habits(300_000) };
        let mut rendezvous = begin(&mut rng, &weather, habits, 20, prints);
        run_to_rest(&mut rendezvous);
        check_past(&rendezvous);
        // Nobody who asked is left without an answer, and nothing was asked twice.
        assert_eq!(rendezvous.past(CLIENT).len(), 20);
        assert_eq!(rendezvous.past(SERVER).len(), 20);
        let unreachable = |(told, _): &(Vec<Told>, bool)| told.contains(&Told::Unreachable);
        assert!(!rendezvous.past(CLIENT).iter().any(unreachable));
    });
}

#[test]
fn nobody_is_told_anything_twice_in_any_weather() {
    for_each_seed("nobody_is_told_anything_twice", 520_000, 150, |seed, prints| {
        let mut rng = Rng::new(seed);
        let mut weather = Weather::stormy(&mut rng);
        for (from, lasts) in &mut weather.partitions {
            (*from, *lasts) = (rng.micros(0..=400_000), rng.micros(0..=90_000_000));
        }
        let habits = Habits { refuses: 10, declines: 10, ..habits(20_000) };
        let count = rng.range(1..=20);
        let mut rendezvous = begin(&mut rng, &weather, habits, count, prints);
        run_to_rest(&mut rendezvous);
        check_past(&rendezvous);
        assert_eq!(rendezvous.past(CLIENT).len() as u64, count);
    });
}

/// Kills one side after so many steps. Returns whether there was anything left to do then.
fn kill_after(steps: u32, side: usize, death: Death, seed: u64, calm: bool, prints: bool) -> bool {
    let mut rng = Rng::new(seed);
    let drop = if calm { 0.0 } else { 15.0 };
    let weather = if calm { Weather::calm(&mut rng) } else { lossy(&mut rng, drop) };
    let mut rendezvous = begin(&mut rng, &weather, habits(5_000), 1, prints);
    for _ in 0..steps {
        rendezvous.step();
    }
    let busy = !rendezvous.is_at_rest();
    rendezvous.kill(side, death);
    let killed = rendezvous.world.elapsed();
    let timing = Timing::default();
    // A survivor with an established connection hears nothing, and gives up at some time itself.
    let documented = PATIENCE + timing.give_up() + timing.keep_answer();
    // One side may have asked the other to wait before it died.
    let asked = timing.service_timeout.duration() + timing.response_timeout.duration();
    let documented = documented + if calm { Duration::ZERO } else { asked };
    while !rendezvous.is_at_rest() {
        rendezvous.step();
        let took = rendezvous.world.elapsed() - killed;
        let known = [rendezvous.known(CLIENT), rendezvous.known(SERVER)];
        assert!(took <= documented, "{death:?} of {side} after {steps} steps: {known:?} {took:?}");
    }
    check_past(&rendezvous);
    busy
}

#[test]
fn nothing_is_left_after_a_death_at_any_step() {
    for_each_seed("nothing_is_left_after_a_death", 530_000, 6, |seed, prints| {
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
    });
}

#[test]
fn a_thousand_connections_through_one_listener() {
    let mut rng = Rng::new(540_000);
    let weather = lossy(&mut rng, 5.0);
    let mut rendezvous = begin(&mut rng, &weather, habits(50_000), 1000, false);
    run_to_rest(&mut rendezvous);
    let talked = rendezvous.past(SERVER).iter().filter(|(_, talked)| *talked).count();
    assert_eq!((rendezvous.past(CLIENT).len(), talked), (1000, 1000));
    let counters = rendezvous.manager(SERVER).expect("it lives").counters();
    assert_eq!(counters.get(CmCounter::Established), 1000);
}
