//! Shares of several programs in what a device does, as scripts.

mod script;

use script::*;
use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::limits::{COPIES_PER_BATCH, IDLE_TURNS, ROUND_COST, TIMERS_PER_CALL};
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::Opcode;
use urxe_wire::batch::{TxBatch, TxLimits};

const GREEDY: ShareId = ShareId(1);
const OTHER: ShareId = ShareId(2);

/// Another QP in RTS, of this program.
fn another(t: &mut Script, qp_type: QpType, share: ShareId) -> Qpn {
    let qpn = t.create_with(|init| QpInit { qp_type, share, ..init });
    t.connect(&usual_of(qp_type));
    qpn
}

#[test]
fn a_program_with_thousands_of_rung_qps_delays_another_by_one_round() {
    let mut t = Script::of(QpType::Rc);
    let rung: Vec<Qpn> = (0..3000).map(|_| another(&mut t, QpType::Rc, GREEDY)).collect();
    another(&mut t, QpType::Rc, OTHER);
    rung.iter().for_each(|&qpn| t.device.ring_doorbell(qpn));
    t.post(1, SendOp::Send(Extra::None), &[]);
    let mut calls = 0;
    loop {
        let mut tx = TxBatch::new(TxLimits::SINGLE, 1 << 18);
        calls += 1;
        assert!(t.device.poll_transmit(t.now, &mut t.program, &mut tx), "some are left");
        if !tx.is_empty() {
            break;
        }
        rung.iter().for_each(|&qpn| t.device.ring_doorbell(qpn));
    }
    // SHARE-003: a turn without a packet costs one.
    assert!(calls <= ROUND_COST / IDLE_TURNS as usize + 1, "{calls}");
}

#[test]
fn multicast_copies_beyond_a_programs_share_are_dropped_and_counted() {
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let mut t = Script::of(QpType::Ud);
    const MEMBERS: usize = 20;
    for _ in 0..MEMBERS {
        let qpn = another(&mut t, QpType::Ud, GREEDY);
        t.device.attach_mcast(qpn, group).unwrap();
    }
    let other = another(&mut t, QpType::Ud, OTHER);
    t.device.attach_mcast(other, group).unwrap();
    let datagrams = COPIES_PER_BATCH / MEMBERS + 10;
    let packet = pkt(Opcode::UD_SEND_ONLY, 7).deth(QKEY, 0x77).payload(b"x").to(Qpn::MULTICAST);
    for batch in 1..=2 {
        for _ in 0..datagrams {
            t.receive_along(&flow(PEER, group), &packet);
        }
        t.device.end_of_batch(t.now, &mut t.program);
        // SHARE-004: nobody has posted a receive, so each copy is counted where it ends.
        let left_out = (datagrams * MEMBERS - COPIES_PER_BATCH) as u64;
        assert_eq!(t.counted(Counter::DropMulticastShare), batch * left_out);
        let copies = (COPIES_PER_BATCH + datagrams) as u64;
        assert_eq!(t.counted(Counter::DropNoReceive), batch * copies);
        let other = t.device.qp_counters(other).unwrap().get(Counter::DropNoReceive);
        assert_eq!(other, batch * datagrams as u64);
    }
}

#[test]
fn timers_of_thousands_are_seen_to_a_few_at_a_time() {
    let mut t = Script::of(QpType::Rc);
    let qps = 2 * TIMERS_PER_CALL as u64 + 1;
    for _ in 0..qps {
        another(&mut t, QpType::Rc, GREEDY);
        t.post(1, SendOp::Send(Extra::None), &[]);
    }
    t.sent();
    t.now += Duration::from_secs(10);
    let mut seen_to = 0;
    while seen_to < qps {
        assert!(t.device.poll_timeout().is_some_and(|at| at <= t.now), "{seen_to} of {qps}");
        t.device.handle_timeout(t.now, &mut t.program);
        // SHARE-005
        let now = t.counted(Counter::AckTimeouts);
        assert!(now > seen_to && now - seen_to <= TIMERS_PER_CALL as u64);
        seen_to = now;
    }
}
