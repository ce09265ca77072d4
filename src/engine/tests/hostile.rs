//! Packets that no conforming peer sends: each is dropped under a name, and harms nobody.

mod script;

use script::*;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{DONT_FRAGMENT, Ident, Opcode, Outer};

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
                    let counted = t.device.counters().iter().any(|(_, value, _)| value > 0);
                    assert!(counted, "{qp_type:?} opcode {opcode:#x} pad {pad} length {len}");
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
