//! The device itself: what it drops before any QP sees it, its numbers and its counters.

mod script;

use script::*;
use urxe_engine::{Counter, MrSpec, RegionId};
use urxe_types::{Extra, Qkey, QpState, QpType, Qpn, SendOp, SlotCount};
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage, MAD_LEN};
use urxe_wire::{Body, Datagram, Opcode, icrc};

/// A SEND for the script's QP with these bytes changed, and a right ICRC.
fn receive_changed(t: &mut Script, change: impl FnOnce(&mut [u8])) {
    let mut packet = pkt(Opcode::RC_SEND_ONLY, 100);
    packet.headers.bth.dest_qp = t.qpn;
    let (outer, mut bytes) = datagram(PEER, &packet);
    change(&mut bytes);
    icrc::stamp(&outer.flow, 0, &mut bytes);
    t.device.handle_datagram(t.now, &mut t.program, &outer, &bytes);
    t.expect_nothing();
}

#[test]
fn an_opcode_that_does_not_exist_is_counted() {
    let mut t = Script::new();
    for opcode in [0x40, 0xa0, 0xc1, 0xff] {
        receive_changed(&mut t, |bytes| bytes[0] = opcode);
    }
    assert_eq!(t.counted(Counter::DropUnknownOpcode), 4);
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn a_malformed_header_is_counted() {
    let mut t = Script::new();
    receive_changed(&mut t, |bytes| bytes[1] |= 0x01);
    receive_changed(&mut t, |bytes| bytes[1] |= 0x30);
    assert_eq!(t.counted(Counter::DropMalformed), 2, "another version, pad without payload");
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn the_number_of_a_destroyed_qp_stays_unused() {
    let mut t = Script::new();
    let init = t.device.query_qp(t.qpn).unwrap().init;
    assert!(t.device.destroy_qp(t.now, t.qpn));
    for _ in 0..1000 {
        let qpn = t.device.create_qp(init.clone()).unwrap();
        assert_ne!(qpn, t.qpn);
        t.device.destroy_qp(t.now, qpn);
    }
    let late = pkt(Opcode::RC_SEND_ONLY, 100);
    t.receive(&[late]);
    assert_eq!(t.counted(Counter::DropUnknownQp), 1);
}

#[test]
fn the_qps_of_a_slot_have_numbers_of_that_slot() {
    for (count, slot) in [(1, 0), (8, 0), (8, 3), (64, 63)] {
        let slot = SlotCount::try_from(count).unwrap().slot(slot).unwrap();
        let mut t = Script::in_slot(slot);
        let qpns: Vec<Qpn> = (0..100).map(|_| t.create(QpType::Rc, None)).collect();
        assert!(qpns.iter().all(|qpn| slot.qpns().contains(&qpn.get())), "{slot:?}: {qpns:?}");
        assert!(qpns.iter().all(|qpn| slot.gets(*qpn)), "{slot:?}: {qpns:?}");
    }
}

#[test]
fn packets_for_another_slot_are_dropped_under_a_name_of_their_own() {
    let mut t = Script::in_slot(SlotCount::try_from(8).unwrap().slot(3).unwrap());
    let others = [0, Qpn::GSI.get(), 0x11, 2 << 18 | 0x55, 4 << 18, 7 << 18 | 0x3_ffff, 8 << 18];
    for qpn in others {
        t.receive_from(PEER, &pkt(Opcode::RC_SEND_ONLY, 100).to(Qpn::new(qpn)));
    }
    assert_eq!(t.counted(Counter::DropOtherSlot), others.len() as u64);
    assert_eq!(t.counted(Counter::DropUnknownQp), 0);
    for qpn in [3 << 18, 3 << 18 | 0x10, t.qpn.get() ^ 1] {
        t.receive_from(PEER, &pkt(Opcode::RC_SEND_ONLY, 100).to(Qpn::new(qpn)));
    }
    assert_eq!(t.counted(Counter::DropUnknownQp), 3);
    assert_eq!(t.counted(Counter::DropOtherSlot), others.len() as u64);
    t.expect_nothing();
}

#[test]
fn a_qpn_of_no_slot_is_unknown_to_the_broker() {
    let mut t = Script::in_slot(SlotCount::try_from(8).unwrap().slot(0).unwrap());
    for qpn in [0, 2, 8 << 18, 0xff_fffe] {
        t.receive_from(PEER, &pkt(Opcode::RC_SEND_ONLY, 100).to(Qpn::new(qpn)));
    }
    assert_eq!(t.counted(Counter::DropUnknownQp), 4);
    t.receive_from(PEER, &pkt(Opcode::RC_SEND_ONLY, 100).to(Qpn::new(7 << 18)));
    assert_eq!(t.counted(Counter::DropOtherSlot), 1);
}

#[test]
fn a_slot_is_answered_at_a_management_qp_of_its_own() {
    let slot = SlotCount::try_from(8).unwrap().slot(3).unwrap();
    let mut t = Script::in_slot(slot);
    t.device.ask_capabilities(t.now, &flow(LOCAL, PEER));
    let question = t.next_sent().1;
    let Body::Ud(Datagram { deth, .. }) = question.headers.body else { panic!() };
    assert_eq!((deth.src_qp, question.headers.bth.dest_qp), (slot.management_qpn(), Qpn::GSI));
    let bytes: [u8; MAD_LEN] = question.payload.try_into().unwrap();
    let tid = CapabilityMad::parse(&bytes).unwrap().tid;
    let capabilities = Capabilities { selective_ack: true, ..Default::default() };
    let answer = CapabilityMad { tid, message: CapabilityMessage::GetResp(capabilities) }.bytes();
    let answer = pkt(Opcode::UD_SEND_ONLY, 9).deth(Qkey::GSI, 1).payload(&answer);
    // One that goes to QP1 is the broker's.
    t.receive_from(PEER, &answer.clone().to(Qpn::GSI));
    assert_eq!(t.device.peer_capabilities(PEER), None);
    assert_eq!(t.counted(Counter::DropOtherSlot), 1);
    t.receive_from(PEER, &answer.to(slot.management_qpn()));
    assert_eq!(t.device.peer_capabilities(PEER), Some(capabilities));
}

#[test]
fn every_registration_has_a_key_of_its_own() {
    let mut t = Script::new();
    let access = usual().access.unwrap();
    let mut register = || {
        let spec = MrSpec { pd: PD, addr: VA, length: 8, access, region: RegionId(0) };
        t.device.reg_mr(spec).unwrap().lkey.0
    };
    let mut keys: Vec<u32> = (0..1000).map(|_| register()).collect();
    let steps: std::collections::BTreeSet<u32> =
        keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > 990, "one key does not follow from another");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 1000);
}

#[test]
fn a_qp_and_its_device_count_the_same() {
    let mut t = Script::new();
    // What the device does for itself is no QP's.
    t.agree(Capabilities::default());
    let before: Vec<u64> = Counter::ALL.iter().map(|&counter| t.counted(counter)).collect();
    let key = t.key;
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"a").ack_req();
    t.receive(&[write(100), write(100), write(102), pkt(Opcode::UC_SEND_ONLY, 0)]);
    t.post(1, SendOp::Send(Extra::None), &[t.sge(0, 600)]);
    t.sent();
    t.receive(&[rnr(1, 200, 1), ack(9999, 1)]);
    t.enter(QpState::Err);
    let of_qp = t.device.qp_counters(t.qpn).unwrap();
    let mut counted = 0;
    for (&counter, before) in Counter::ALL.iter().zip(before) {
        assert_eq!(t.counted(counter), before + of_qp.get(counter), "{}", counter.name());
        counted += u64::from(of_qp.get(counter) > 0);
    }
    assert!(counted >= 10, "{counted} counters have counted");
}
