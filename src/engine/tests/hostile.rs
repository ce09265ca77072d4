//! Packets that no conforming peer sends: each is dropped under a name, and harms nobody.

mod script;

use script::*;
use std::net::SocketAddr;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{DONT_FRAGMENT, Flow, Ident, NakCode, Opcode, Outer, ROCE_PORT};

/// These bytes arrive with a valid ICRC in place of the last four.
fn receive_raw(t: &mut Script, bytes: &[u8]) {
    let flow = flow(PEER, LOCAL);
    let mut tx = TxBatch::new(TxLimits::SINGLE, 8192);
    let bytes = tx.push_raw(&flow, bytes).to_vec();
    let outer = Outer { flow, ident: Ident::Known { ident: 0, fragment: DONT_FRAGMENT } };
    t.device.handle_datagram(t.now, &mut t.program, &outer, &bytes);
    t.device.end_of_batch(t.now, &mut t.program);
}

/// A BTH with this opcode for this QP and the PSN that it expects, and then zeros.
fn raw(opcode: u8, pad: u8, qpn: Qpn, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let [_, q0, q1, q2] = qpn.get().to_be_bytes();
    bytes[..12].copy_from_slice(&[
        opcode,
        0x40 | pad << 4,
        0xff,
        0xff,
        0,
        q0,
        q1,
        q2,
        0x80,
        0,
        0,
        100,
    ]);
    bytes
}

#[test]
fn an_opcode_that_is_not_one_is_counted_whatever_the_qp() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut t = Script::of(qp_type);
        let unknown = (0..=255).filter(|&opcode| Opcode::from_byte(opcode).is_none());
        let mut count = 0;
        for opcode in unknown {
            let mut bytes = raw(opcode, 0, t.qpn, 48);
            // In the place of the next request it would be a bad one.
            bytes[11] = 99;
            receive_raw(&mut t, &bytes);
            count += 1;
        }
        assert_eq!(t.counted(Counter::DropUnknownOpcode), count);
        assert_eq!(t.state(), QpState::Rts);
    }
}

#[test]
fn every_opcode_of_every_length_and_pad_is_answered_or_counted() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for opcode in 0..=255 {
            for pad in 0..4 {
                for len in (16..=80).step_by(4) {
                    let mut t = Script::of(qp_type);
                    t.post_recv(1, &[t.sge(0, 100)]);
                    let bytes = raw(opcode, pad, t.qpn, len);
                    receive_raw(&mut t, &bytes);
                    // Each packet that belongs to a QP is counted as received, whatever becomes of
                    // it: that says nothing.
                    let received = [Counter::ReceivedPackets, Counter::ReceivedBytes];
                    let is_counted = Counter::ALL
                        .iter()
                        .any(|counter| !received.contains(counter) && t.counted(*counter) > 0);
                    let is_answered = !t.sent().is_empty() || !t.program.completions.is_empty();
                    assert!(
                        is_counted || is_answered,
                        "{qp_type:?} opcode {opcode:#x} pad {pad} length {len}"
                    );
                }
            }
        }
    }
}

#[test]
fn padding_beyond_the_payload_is_malformed() {
    let mut t = Script::new();
    let bytes = raw(Opcode::RC_SEND_ONLY.byte(), 3, t.qpn, 16);
    receive_raw(&mut t, &bytes);
    assert_eq!(t.counted(Counter::DropMalformed), 1);
    t.expect_nothing();
}

#[test]
fn a_congestion_notification_is_counted_and_answered_with_nothing() {
    let mut t = Script::new();
    t.receive(&[pkt(Opcode::CNP, 0).payload(&[0; 16])]);
    assert_eq!(t.counted(Counter::CnpsReceived), 1);
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn the_special_qpns_are_no_ones() {
    let mut t = Script::new();
    for qpn in [0, 2, 0x10] {
        t.receive_from(PEER, &pkt(Opcode::RC_SEND_ONLY, 100).to(Qpn::new(qpn)));
    }
    assert_eq!(t.counted(Counter::DropUnknownQp), 3);
}

/// A WRITE of the peer, or what looks like one.
fn write(t: &Script, psn: u32) -> Pkt {
    pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, t.key, 1).payload(&[7]).ack_req().to(t.qpn)
}

#[test]
fn a_packet_that_no_qp_has_ends_no_batch_of_another() {
    let mut t = Script::new();
    for psn in 100..110 {
        t.receive_from(PEER, &write(&t, psn));
        t.receive_from(PEER, &write(&t, psn).to(Qpn::new(0x80_0000 + psn)));
    }
    t.device.end_of_batch(t.now, &mut t.program);
    assert_eq!(t.program.stores.iter().filter(|&&store| store == Store::Sync).count(), 1);
    t.expect(ack(109, 10));
    t.expect_nothing();
    assert_eq!(t.counted(Counter::DropUnknownQp), 10);
}

#[test]
fn packets_from_an_address_of_our_own_by_another_port_than_ours_are_dropped() {
    let mut t = Script::new();
    t.device.set_guarded_addrs([PEER].into());
    let forged = Flow { src_port: 0xc000, ..flow(PEER, LOCAL) };
    let ours = Flow { src_port: ROCE_PORT, ..forged };
    // Neither a request in its turn, nor one that would end the QP, nor an answer.
    let bad = pkt(Opcode::RC_SEND_MIDDLE, 100).payload(&[0; 8]).to(t.qpn);
    let last = nak(NakCode::RemoteAccess, 200, 0).to(t.qpn);
    for packet in [write(&t, 100), bad, last, write(&t, 100).to(Qpn::GSI)] {
        t.receive_along(&forged, &packet);
    }
    // It would be an invalid request.
    let mut reserved = TxBatch::new(TxLimits::SINGLE, 8192);
    let bytes = reserved.push_raw(&forged, &raw(0x1f, 0, t.qpn, 32)).to_vec();
    let ident = Ident::Known { ident: 0, fragment: DONT_FRAGMENT };
    let outer = Outer { flow: forged, ident };
    t.device.handle_datagram(t.now, &mut t.program, &outer, &bytes);
    t.device.end_of_batch(t.now, &mut t.program);
    t.expect_nothing();
    assert_eq!((t.counted(Counter::DropForgedLocal), t.state()), (5, QpState::Rts));
    t.receive_along(&ours, &write(&t, 100));
    t.device.end_of_batch(t.now, &mut t.program);
    t.expect(ack(100, 1));
    let stranger = Flow { src: "10.0.0.7".parse().unwrap(), ..forged };
    // SHARE-135: they may be refused unseen.
    let may_refuse =
        |t: &Script, flow: &Flow| t.device.may_refuse(SocketAddr::new(flow.src, flow.src_port));
    let of_all = [&forged, &ours, &stranger].map(|flow| may_refuse(&t, flow));
    assert_eq!(of_all, [true, false, true]);
    t.receive_along(&stranger, &write(&t, 101));
    assert_eq!(t.counted(Counter::DropWrongAddress), 1, "other addresses have any port");
    // Until they are our own.
    t.device.set_guarded_addrs([PEER, stranger.src].into());
    t.receive_along(&stranger, &write(&t, 101));
    assert_eq!(t.counted(Counter::DropForgedLocal), 6);
    t.device.set_guarded_addrs([].into());
    let of_all = [&forged, &ours, &stranger].map(|flow| may_refuse(&t, flow));
    assert_eq!(of_all, [false, false, true], "the peer of a QP may be there");
}

#[test]
fn packets_between_guarded_addresses_leave_from_the_port_that_nobody_else_has() {
    let mut t = Script::in_reset();
    t.device.set_guarded_addrs([PEER].into());
    t.connect(&usual());
    let from_there = Flow { src_port: ROCE_PORT, ..flow(PEER, LOCAL) };
    t.receive_along(&from_there, &write(&t, 100));
    t.device.end_of_batch(t.now, &mut t.program);
    assert_eq!(t.next_sent().0.src_port, ROCE_PORT);
    // One that was connected before goes on from there: else it would be taken for forged.
    let mut before = Script::new();
    before.receive(&[write(&t, 100)]);
    assert_ne!(before.next_sent().0.src_port, ROCE_PORT);
    before.device.set_guarded_addrs([PEER].into());
    before.receive_along(&from_there, &write(&t, 101));
    before.device.end_of_batch(t.now, &mut before.program);
    assert_eq!(before.next_sent().0.src_port, ROCE_PORT);
}

#[test]
fn requests_ahead_from_another_port_are_answered_by_a_nak_once_in_a_while() {
    let mut t = Script::new();
    let stranger = Flow { src_port: 0x1234, ..flow(PEER, LOCAL) };
    let mut naks = 0;
    for psn in 100..200 {
        // What the peer sends in its turn ends each gap that it has not made.
        t.receive(&[write(&t, psn)]);
        t.receive_along(&stranger, &write(&t, psn + 50));
        t.device.end_of_batch(t.now, &mut t.program);
        naks += t.sent().iter().filter(|sent| sent.headers.bth.psn == Psn::new(psn + 1)).count();
    }
    assert_eq!((naks, t.counted(Counter::SequenceNaksSent)), (1, 1));
    assert_eq!(t.counted(Counter::ForeignNaksHeldBack), 99);
    t.wait(limits::FOREIGN_NAK_INTERVAL);
    t.receive_along(&stranger, &write(&t, 250));
    t.device.end_of_batch(t.now, &mut t.program);
    t.expect(nak(NakCode::SequenceError, 200, 100));
    t.receive(&[write(&t, 200)]);
    t.expect(ack(200, 101));
}
