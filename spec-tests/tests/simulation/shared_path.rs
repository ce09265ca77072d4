//! A QP whose peer keeps it waiting, and another on the same path.

use crate::pair::{LIMIT, MTU, Operation, Pair, link};
use std::time::Duration;
use urxe_engine::{Counter, PdId};
use urxe_port::Chance;
use urxe_spec_tests::simulation::plan::PlannedSend;
use urxe_spec_tests::simulation::queues::send_wqe;
use urxe_spec_tests::simulation::world::{End, EndAttr, Mr, World, everything};
use urxe_types::{Access, Extra, Lkey, QpState, SendOp, Sge};

/// Of another program.
const PD: PdId = PdId(2);

/// Bytes that it writes.
const LEN: usize = 65_536;

/// Of the path.
const ROUND_TRIP: Duration = Duration::from_micros(20);

/// Another QP, whose messages are of one size.
pub(crate) struct Another {
    end: End,
    peer: End,
    local: Mr,
    remote: Mr,
    len: usize,
}

impl Another {
    pub(crate) fn new(world: &mut World, attr: &EndAttr, depth: usize, len: usize) -> Another {
        let local = world.nodes[0].reg_mr(PD, 0, Access::LOCAL_WRITE, vec![0; len]);
        let remote = world.nodes[1].reg_mr(PD, 0, everything(), vec![0; len]);
        let ends = [0, 1].map(|node| {
            let cq = world.nodes[node].host.add_cq(depth);
            world.create_qp(node, PD, (cq, cq), (depth, 1))
        });
        world.connect(&ends, &[attr.clone(), attr.clone()], MTU);
        let [end, peer] = ends;
        Another { end, peer, local, remote, len }
    }

    pub(crate) fn post(&self, world: &mut World, operation: Operation) {
        self.post_op(world, operation.on(&self.remote));
    }

    pub(crate) fn post_op(&self, world: &mut World, op: SendOp) {
        let Another { end, local, len, .. } = self;
        let sge = Sge { addr: local.addr, length: *len as u32, lkey: Lkey(local.key) };
        let wqe = send_wqe(1, op, vec![sge]);
        world.post_send(end, &PlannedSend::new(wqe, *len));
        world.ring(end);
    }

    /// Its peer goes.
    pub(crate) fn lose_peer(&self, world: &mut World) {
        assert!(world.destroy_qp(&self.peer));
    }

    /// How long a message takes.
    pub(crate) fn message(&self, world: &mut World, operation: Operation) -> Duration {
        self.post(world, operation);
        let begun = world.now();
        while world.nodes[0].host.cq(self.end.send_cq).poll().is_none() {
            world.step(begun + LIMIT);
            assert!(world.now() < begun + LIMIT, "stuck");
        }
        world.now() - begun
    }
}

/// How long the first message of another QP takes.
fn message_of_another(world: &mut World, operation: Operation, attr: &EndAttr) -> Duration {
    Another::new(world, attr, 1, LEN).message(world, operation)
}

/// Lets time pass.
pub(crate) fn pass(world: &mut World, time: Duration) {
    let until = world.now() + time;
    while world.now() < until {
        world.step(until);
    }
}

/// A pair on a path of which enough is known, on which a share of the packets was lost until now.
fn after_loss(attr: &EndAttr, operation: Operation, len: usize, loss: f64) -> Pair {
    let link_then = link(ROUND_TRIP, Chance::percent(loss));
    let mut pair = Pair::new(link_then, attr.clone(), len, 256, 1);
    pair.run(operation, 300, 4);
    pair.set_link(link(ROUND_TRIP, Chance::NEVER));
    pair
}

/// CONG-032, whether the peer has told what it keeps, as where packets were lost before, or not.
#[test]
fn sends_that_wait_for_a_receive_keep_no_other_program_waiting() {
    // 491 ms.
    let attr = EndAttr { min_rnr_timer: 31, ..EndAttr::generous() };
    for (loss, len) in [(0.0, 64), (0.0, 4096), (0.0, LEN), (5.0, 64), (5.0, 4096), (5.0, LEN)] {
        let mut pair = after_loss(&attr, Operation::Write, len, loss);
        (0..256).for_each(|wr_id| pair.send(wr_id, SendOp::Send(Extra::None)));
        pair.world.ring(&pair.ends[0]);
        pass(&mut pair.world, Duration::from_millis(1));
        assert_eq!(pair.count(0, Counter::RnrNaksReceived), 1);
        let took = message_of_another(&mut pair.world, Operation::Write, &attr);
        assert!(took < Duration::from_micros(100), "{took:?} beside SENDs of {len} bytes");
    }
}

/// CONG-033. The program of the peer has ended, say.
#[test]
fn requests_to_a_qp_that_has_gone_keep_no_other_program_waiting() {
    let attr = EndAttr::generous();
    let cases = [(0.0, 64), (0.0, 4096), (0.0, LEN), (5.0, 64), (5.0, 4096), (5.0, LEN)];
    for (operation, (loss, len)) in [Operation::Write, Operation::Read]
        .into_iter()
        .flat_map(|one| cases.map(|case| (one, case)))
    {
        let mut pair = after_loss(&attr, operation, len, loss);
        assert!(pair.world.destroy_qp(&pair.ends[1]));
        let op = pair.op(operation);
        (0..256).for_each(|wr_id| pair.send(wr_id, op));
        pair.world.ring(&pair.ends[0]);
        let mut took = [50, 1_000, 3_000, 60_000, 5_000, 50_000].map(|pause| {
            pass(&mut pair.world, Duration::from_micros(pause));
            message_of_another(&mut pair.world, operation, &attr).as_micros()
        });
        let case = format!("{operation:?} of {len} bytes, {loss} % lost before: {took:?} us");
        took.sort_unstable();
        // Once, until it is known that others are answered; and not again when the ACK timeout has
        // all sent again that is not answered.
        assert!(took[5] < 2000, "{case}");
        assert!(took[4] < 100, "{case}");
        let state = pair.world.state(&pair.ends[0]);
        assert_eq!(state, Some(QpState::Rts), "it still waits: {case}");
    }
}

/// How long each of many messages of a QP takes that has its peer, in microseconds, the shortest
/// first: one in a millisecond, one of four of which does what the others on its path do.
fn messages(
    world: &mut World,
    one: &Another,
    operation: Operation,
    others: Operation,
) -> Vec<u128> {
    let mut took: Vec<_> = (0..400)
        .map(|number| {
            pass(world, Duration::from_millis(1));
            // Of both, for what is heard on one lane is heard of the other.
            let operation = if number % 4 == 3 { others } else { operation };
            one.message(world, operation).as_micros()
        })
        .collect();
    took.sort_unstable();
    took
}

/// Each of two operations with each.
fn operations() -> Vec<(Operation, Operation)> {
    let both = [Operation::Write, Operation::Read];
    both.map(|lost| both.map(|answered| (lost, answered))).concat()
}

/// CONG-035, CONG-036. They are sent to at once, and again after each ACK timeout.
#[test]
fn however_many_qps_have_no_peer_one_that_has_goes_on() {
    let attr = EndAttr::generous();
    for (lost, answered) in operations() {
        let mut world = after_loss(&attr, answered, LEN, 0.0).world;
        let one = Another::new(&mut world, &attr, 1, LEN);
        one.message(&mut world, answered);
        for _ in 0..200 {
            let another = Another::new(&mut world, &attr, 16, LEN);
            another.lose_peer(&mut world);
            (0..16).for_each(|_| another.post(&mut world, lost));
        }
        let took = messages(&mut world, &one, answered, lost);
        let case = format!("{answered:?} beside {lost:?}: {:?} us", &took[350..]);
        assert!(took[370] < 100 && took[399] < 3000, "{case}");
    }
}

/// CONG-033. They were answered until now, and go in the midst of messages, as where all programs
/// of a job are killed: of each it must be found out, and of many at once.
#[test]
fn when_the_peers_of_many_qps_go_at_once_one_that_has_its_peer_goes_on() {
    let attr = EndAttr::generous();
    let near = (ROUND_TRIP, 0.0, 200, Duration::from_millis(50));
    let far = (Duration::from_millis(50), 1.0, 50, Duration::from_millis(1200));
    for ((round_trip, loss, many, longest), (lost, answered)) in
        [near, far].iter().flat_map(|path| operations().into_iter().map(move |both| (path, both)))
    {
        let link = link(*round_trip, Chance::percent(*loss));
        let mut pair = Pair::new(link, attr.clone(), LEN, 256, 1);
        pair.run(answered, 300, 4);
        let world = &mut pair.world;
        let one = Another::new(world, &attr, 1, LEN);
        one.message(world, answered);
        let others: Vec<_> = (0..*many).map(|_| Another::new(world, &attr, 17, LEN)).collect();
        others.iter().for_each(|another| another.post(world, lost));
        pass(world, *round_trip * 100);
        for another in &others {
            (0..16).for_each(|_| another.post(world, lost));
        }
        pass(world, *round_trip * 3 / 2);
        for another in &others {
            another.lose_peer(world);
        }
        let took = messages(world, &one, answered, lost);
        let case =
            format!("{answered:?} beside {lost:?} over {round_trip:?}: {:?} us", &took[380..]);
        assert!(took[390] < round_trip.as_micros() * 5, "{case}");
        assert!(took[399] < longest.as_micros(), "{case}");
    }
}

/// CONG-034. Whether the peer tells what it keeps, as where packets were lost before, or not; and
/// whether the window is known already, or only that of answers.
#[test]
fn however_many_qps_wait_for_a_receive_another_program_goes_on() {
    // 10 us and 491 ms.
    let timers = [1, 31];
    let cases = [Operation::Write, Operation::Read]
        .map(|operation| [0.0, 1.0].map(|loss| timers.map(|timer| (operation, loss, timer))));
    for (operation, loss, timer) in cases.concat().concat() {
        let attr = EndAttr { min_rnr_timer: timer, ..EndAttr::generous() };
        let mut pair = after_loss(&attr, operation, LEN, loss);
        let world = &mut pair.world;
        let one = Another::new(world, &attr, 1, LEN);
        one.message(world, operation);
        let others: Vec<_> = (0..200).map(|_| Another::new(world, &attr, 16, LEN)).collect();
        for another in &others {
            (0..16).for_each(|_| another.post_op(world, SendOp::Send(Extra::None)));
        }
        let took = messages(world, &one, operation, operation);
        let case =
            format!("{operation:?}, {loss} % lost before, code {timer}: {:?} us", &took[380..]);
        assert!(took[390] < 100 && took[399] < 5000, "{case}");
        assert!(pair.count(0, Counter::RnrNaksReceived) >= 200);
    }
}
