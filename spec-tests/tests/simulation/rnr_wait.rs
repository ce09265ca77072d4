//! A QP that waits because its peer has no receive, and another on the same path.

use crate::pair::{LIMIT, MTU, Operation, Pair, link};
use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::{Counter, PdId};
use urxe_port::Chance;
use urxe_spec_tests::simulation::plan::PlannedSend;
use urxe_spec_tests::simulation::queues::send_wqe;
use urxe_spec_tests::simulation::world::{EndAttr, World, everything};
use urxe_types::{Access, Extra, Lkey, Rkey, SendOp, Sge};

/// Of another program.
const PD: PdId = PdId(2);

/// Bytes that it writes.
const LEN: usize = 65_536;

/// Of the path.
const ROUND_TRIP: Duration = Duration::from_micros(20);

/// How long the first WRITE of another QP takes.
fn write_of_another(world: &mut World, attr: EndAttr) -> Duration {
    let local = world.nodes[0].reg_mr(PD, 0, Access::LOCAL_WRITE, vec![0; LEN]);
    let remote = world.nodes[1].reg_mr(PD, 0, everything(), vec![0; LEN]);
    let ends = [0, 1].map(|node| {
        let cq = world.nodes[node].host.add_cq(1);
        world.create_qp(node, PD, (cq, cq), (1, 1))
    });
    world.connect(&ends, &[attr.clone(), attr], MTU);
    let op = SendOp::Write { remote_addr: remote.addr, rkey: Rkey(remote.key), imm: None };
    let sge = Sge { addr: local.addr, length: LEN as u32, lkey: Lkey(local.key) };
    world.post_send(&ends[0], &PlannedSend::new(send_wqe(1, op, vec![sge]), LEN));
    world.ring(&ends[0]);
    let begun = world.now();
    while world.nodes[0].host.cq(ends[0].send_cq).poll().is_none() {
        world.step(begun + LIMIT);
        assert!(world.now() < begun + LIMIT, "stuck");
    }
    world.now() - begun
}

/// CONG-032, whether the peer has told what it keeps, as where packets were lost before, or not.
#[test]
fn sends_that_wait_for_a_receive_keep_no_other_program_waiting() {
    // 491 ms.
    let attr = EndAttr { min_rnr_timer: 31, ..EndAttr::generous() };
    for (loss, len) in [(0.0, 64), (0.0, 4096), (0.0, LEN), (5.0, 64), (5.0, 4096), (5.0, LEN)] {
        let mut pair =
            Pair::new(link(ROUND_TRIP, Chance::percent(loss)), attr.clone(), len, 256, 1);
        pair.run(Operation::Write, 300, 4);
        let addrs = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        for [from, to] in [addrs, [addrs[1], addrs[0]]] {
            pair.world.network.set_link(from, to, link(ROUND_TRIP, Chance::NEVER));
        }
        (0..256).for_each(|wr_id| pair.send(wr_id, SendOp::Send(Extra::None)));
        pair.world.ring(&pair.ends[0]);
        let refused = pair.world.now() + Duration::from_millis(1);
        while pair.world.now() < refused {
            pair.world.step(refused);
        }
        assert_eq!(pair.count(0, Counter::RnrNaksReceived), 1);
        let took = write_of_another(&mut pair.world, attr.clone());
        assert!(took < Duration::from_micros(100), "{took:?} beside SENDs of {len} bytes");
    }
}
