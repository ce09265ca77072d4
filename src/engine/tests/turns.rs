//! QPs that wait for their turn on a path, as scripts: what becomes of them when they go another
//! way, begin anew, or are answered meanwhile.

mod script;

use script::*;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{NakCode, Opcode};

const SEND: SendOp = SendOp::Send(Extra::None);
const MS: Duration = Duration::from_millis(1);

/// Another peer.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

fn path_to(t: &Script, peer: IpAddr) -> PathInfo {
    t.device.paths().find(|path| path.peer == peer).unwrap()
}

/// Another QP on the path, whose first PSN is 5000, sends until it waits.
fn fill_the_window(t: &mut Script) {
    t.create(QpType::Rc, None);
    t.connect(&QpAttr { sq_psn: Some(Psn::new(5000)), ..usual() });
    for wr_id in 0..3 {
        t.post(wr_id, SEND, &[t.sge(0, 1 << 15)]);
    }
    t.sent();
    assert_eq!(path_to(t, PEER).outward.waiting, 1);
}

/// The QP goes to another peer, without being drained.
fn go_elsewhere(t: &mut Script) {
    t.enter(QpState::Sqd);
    let av = usual().av.map(|av| AddressVector { dgid: ELSEWHERE, ..av });
    t.modify(&QpAttr { state: Some(QpState::Sqd), av, ..QpAttr::default() }).unwrap();
}

/// The PSNs below 5000 that the device sends now.
fn psns_sent(t: &mut Script) -> Vec<u32> {
    let psns = t.sent().into_iter().map(|packet| packet.headers.bth.psn.get());
    psns.filter(|&psn| psn < 5000).collect()
}

#[test]
fn a_qp_that_waits_and_goes_another_way_waits_on_the_old_one_no_more() {
    let mut t = Script::new();
    for wr_id in 0..3 {
        t.post(wr_id, SEND, &[t.sge(0, 1 << 15)]);
    }
    t.sent();
    assert_eq!(path_to(&t, PEER).outward.waiting, 1);
    go_elsewhere(&mut t);
    let old = path_to(&t, PEER).outward;
    assert_eq!((old.waiting, old.in_flight), (0, 0));
    t.enter(QpState::Rts);
    let sent = psns_sent(&mut t);
    assert_eq!(sent.first(), Some(&200));
    assert!(path_to(&t, ELSEWHERE).outward.in_flight > 0);
    assert_eq!(path_to(&t, ELSEWHERE).outward.waiting, 1);
}

#[test]
fn a_qp_that_begins_anew_has_no_turn_from_before() {
    let mut t = Script::new();
    let waits = t.qpn;
    fill_the_window(&mut t);
    for _ in 0..3 {
        t.select(waits);
        t.post(1, SEND, &[]);
        t.sent();
        assert_eq!(path_to(&t, PEER).outward.waiting, 2);
        t.enter(QpState::Reset);
        assert_eq!(path_to(&t, PEER).outward.waiting, 1);
        t.connect(&usual());
    }
}

#[test]
fn a_qp_that_is_destroyed_leaves_its_room_to_those_that_wait() {
    let mut t = Script::new();
    let waits = t.qpn;
    fill_the_window(&mut t);
    let fills = t.qpn;
    t.select(waits);
    t.post(1, SEND, &[]);
    assert_eq!(psns_sent(&mut t), []);
    assert!(t.device.destroy_qp(t.now, fills));
    assert_eq!(psns_sent(&mut t), [200]);
}

#[test]
fn an_answer_on_another_way_is_no_sample_of_what_was_sent_on_the_old_one() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    assert_eq!(psns_sent(&mut t), [200]);
    t.wait(100 * MS);
    go_elsewhere(&mut t);
    t.enter(QpState::Rts);
    assert_eq!(psns_sent(&mut t), [200]);
    t.wait(MS);
    let (outer, datagram) = datagram(ELSEWHERE, &ack(200, 1).to(t.qpn));
    t.device.handle_datagram(t.now, &mut t.program, &outer, &datagram);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(path_to(&t, ELSEWHERE).round_trip, None);
}

#[test]
fn a_packet_that_was_never_sent_is_not_probed_for() {
    let mut t = Script::probing_after(MS, usual());
    let probes = t.qpn;
    t.post(1, SEND, &[]);
    assert_eq!(psns_sent(&mut t), [200]);
    fill_the_window(&mut t);
    t.select(probes);
    t.post(2, SEND, &[]);
    assert_eq!(psns_sent(&mut t), []);
    // It is about to probe when the answer comes.
    t.wait(MS);
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(psns_sent(&mut t), [], "it waits for its turn");
}

#[test]
fn an_answer_to_a_probe_tells_nothing_of_what_is_sent_behind_it() {
    let mut t = Script::probing_after(MS, usual());
    let probes = t.qpn;
    (1..=3).for_each(|wr_id| t.post(wr_id, SEND, &[]));
    assert_eq!(psns_sent(&mut t), [200, 201, 202]);
    fill_the_window(&mut t);
    let fills = t.qpn;
    t.select(probes);
    t.receive(&[nak(NakCode::SequenceError, 200, 0)]);
    assert_eq!(psns_sent(&mut t), [], "it waits for its turn");
    t.wait(MS);
    assert_eq!(psns_sent(&mut t), [200], "the probe");
    assert!(t.device.destroy_qp(t.now, fills));
    assert_eq!(psns_sent(&mut t), [200, 201, 202]);
    t.receive(&[ack(200, 1)]);
    assert_eq!(psns_sent(&mut t), [], "what is behind the probe is on its way");
    t.receive(&[ack(202, 3)]);
    for wr_id in 1..=3 {
        t.expect_send(wr_id, WcStatus::Success);
    }
}

#[test]
fn a_probe_that_has_no_room_in_a_batch_goes_with_the_next() {
    let mut t = Script::probing_after(MS, usual());
    t.post(1, SEND, &[]);
    t.post_recv(2, &[]);
    assert_eq!(psns_sent(&mut t), [200]);
    t.wait(MS);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY, 100).ack_req()]);
    let mut tx = TxBatch::new(TxLimits::SINGLE, 0);
    assert!(t.device.poll_transmit(t.now, &mut t.program, &mut tx), "there is more");
    assert_eq!(tx.len(), 1, "there is room for the ACK alone");
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
}
