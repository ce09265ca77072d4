//! A QP among others on its path: of programs that have much to do, that have ended on the other
//! side, that post no receives. Whatever these do, its messages take no longer than the path makes
//! them, and than it takes to find out who has gone.

use crate::pair::{Operation, Pair, RATE, link};
use crate::shared_path::{Another, pass};
use std::time::Duration;
use urxe_engine::limits::MAX_PROBE_INTERVAL;
use urxe_port::Chance;
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::world::{EndAttr, World};
use urxe_types::{Extra, SendOp};

/// What becomes of the peers of some QPs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Peers {
    /// They stay.
    Stay,
    /// They have gone before anything is sent.
    HaveGone,
    /// They go so long after that.
    Go(Duration),
}

/// Some QPs that do the same.
#[derive(Debug)]
struct Neighbours {
    count: usize,
    /// Messages of each.
    messages: usize,
    len: usize,
    /// `None`: SENDs, for which there is no receive.
    operation: Option<Operation>,
    /// A message of each is done before.
    are_answered: bool,
    peers: Peers,
}

impl Neighbours {
    fn draw(rng: &mut Rng, round_trip: Duration) -> Neighbours {
        let operations = [Operation::Write, Operation::Read, Operation::FetchAdd];
        let operation = if rng.percent(30) { None } else { Some(rng.pick(&operations)) };
        let after = rng.micros(0..=round_trip.as_micros() as u64 * 3 + 500);
        Neighbours {
            count: rng.range(1..=100) as usize,
            messages: rng.range(1..=16) as usize,
            len: match operation {
                Some(Operation::FetchAdd) => 8,
                _ => rng.pick(&[64, 4096, 65_536]),
            },
            operation,
            are_answered: operation.is_some() && rng.percent(50),
            peers: rng.pick(&[Peers::Stay, Peers::HaveGone, Peers::Go(after)]),
        }
    }

    /// How many of them a silent path may let try before a QP of which `is_answered` says whether
    /// its peer has answered: those come first of whose peers most is known.
    fn tried_before(&self, is_answered: bool) -> usize {
        let may_be_answered = self.are_answered || matches!(self.peers, Peers::Go(_));
        match self.peers {
            Peers::Stay => 0,
            Peers::HaveGone | Peers::Go(_) if is_answered && !may_be_answered => 0,
            Peers::HaveGone | Peers::Go(_) => self.count,
        }
    }

    /// Bytes that the path has to carry for them.
    fn bytes(&self) -> u64 {
        (self.count * self.messages * self.len) as u64
    }

    fn make(&self, world: &mut World, attr: &EndAttr) -> Vec<Another> {
        let make = |_| Another::new(world, attr, self.messages + 1, self.len);
        let others: Vec<Another> = (0..self.count).map(make).collect();
        if let Some(operation) = self.operation.filter(|_| self.are_answered) {
            for other in &others {
                other.message(world, operation);
            }
        }
        others
    }

    fn begin(&self, world: &mut World, others: &[Another]) {
        for other in others {
            if self.peers == Peers::HaveGone {
                other.lose_peer(world);
            }
            for _ in 0..self.messages {
                match self.operation {
                    Some(operation) => other.post(world, operation),
                    None => other.post_op(world, SendOp::Send(Extra::None)),
                }
            }
        }
    }
}

/// How long it takes on a short path that is silent until so many QPs have tried: one at first, at
/// the second probe, and twice as many after each pause, which is twice as long as the one before
/// (CONG-033).
fn until_tried(qps: usize) -> Duration {
    let (mut tried, mut time, mut pause) =
        (1, Duration::from_millis(10), Duration::from_millis(14));
    while tried < qps {
        tried = tried * 2 + 1;
        time += pause;
        pause = (pause * 2).min(MAX_PROBE_INTERVAL);
    }
    time
}

fn run(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let round_trip = Duration::from_micros(rng.pick(&[4, 20, 100, 1_000, 10_000]));
    let loss = rng.pick(&[0.0, 0.0, 1.0, 5.0]);
    let operation = rng.pick(&[Operation::Write, Operation::Read]);
    let attr = EndAttr {
        min_rnr_timer: rng.pick(&[1, 12, 20, 31]),
        timeout: rng.range(8..=16) as u8,
        ..EndAttr::generous()
    };
    let link_then = link(round_trip, Chance::percent(loss));
    let mut pair = Pair::new(link_then, attr.clone(), 4096, 64, 1);
    let messages_before = rng.range(0..=200) as usize;
    pair.run(operation, messages_before, 4);
    if rng.percent(80) {
        pair.set_link(link(round_trip, Chance::NEVER));
    }
    let world = &mut pair.world;
    let some: Vec<Neighbours> =
        (0..rng.range(1..=3)).map(|_| Neighbours::draw(&mut rng, round_trip)).collect();
    if prints {
        eprintln!("{round_trip:?}, {loss} % lost, {operation:?}, {attr:?}\n{some:#?}");
    }
    let one = Another::new(world, &attr, 1, 65_536);
    let is_answered = rng.percent(50);
    if is_answered {
        one.message(world, rng.pick(&[Operation::Write, Operation::Read]));
    }
    let others: Vec<Vec<Another>> = some.iter().map(|some| some.make(world, &attr)).collect();
    for (some, others) in some.iter().zip(&others) {
        some.begin(world, others);
    }
    let begun = world.now();
    for (some, others) in some.iter().zip(&others) {
        if let Peers::Go(after) = some.peers {
            let until = begun + after;
            if world.now() < until {
                let time = until - world.now();
                pass(world, time);
            }
            others.iter().for_each(|other| other.lose_peer(world));
        }
    }
    let bytes: u64 = some.iter().map(Neighbours::bytes).sum();
    let busy = Duration::from_secs_f64(bytes as f64 * 8.0 / RATE as f64);
    // What must be found out of some of them takes some time, and much of it on a long path.
    let found_out = Duration::from_millis(300) + round_trip * 500;
    // As long as nothing is known of the path, nothing is taken for silence before 750 ms, and
    // twice as many try every 250 ms then, 16 at first.
    let unknown = if messages_before == 0 { Duration::from_secs(3) } else { Duration::ZERO };
    let before: usize = some.iter().map(|some| some.tried_before(is_answered)).sum();
    let limit = found_out + until_tried(before + 1) + unknown + busy * 8;
    for number in 0..50 {
        let time = rng.micros(0..=round_trip.as_micros() as u64 * 2 + 500);
        pass(world, time);
        let operation = rng.pick(&[Operation::Write, Operation::Read]);
        let took = one.message(world, operation);
        if prints {
            eprintln!("message {number}: {operation:?}, {took:?}");
        }
        assert!(took < limit, "message {number}, {operation:?}, took {took:?} of {limit:?}");
    }
}

/// Of QPs whose neighbours do anything.
pub(crate) const FAMILY: Family =
    Family { name: "a_qp_goes_on_whatever_its_neighbours_do", first: 170_000, runs: 100, run };

#[test]
fn a_qp_goes_on_whatever_its_neighbours_do() {
    FAMILY.check();
}
