//! QP1, as scripts: the device's own end of connection management.

mod script;

use script::*;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::mad::{MAD_LEN, MadSource};
use urxe_wire::{Datagram, Deth, Opcode, datagram_source_port};

const MAD: [u8; MAD_LEN] = [7; MAD_LEN];

/// A management datagram of the peer's QP1.
fn mad() -> Pkt {
    pkt(Opcode::UD_SEND_ONLY, 9).deth(Qkey::GSI, 1).payload(&MAD).to(Qpn::GSI)
}

#[test]
fn a_mad_is_handed_to_the_host_with_where_it_came_from() {
    let mut t = Script::in_reset();
    t.receive_from(PEER, &mad());
    let source = MadSource { flow: flow(PEER, LOCAL), src_qpn: Qpn::GSI };
    assert_eq!(t.program.mads, [(source, MAD)]);
    assert_eq!(t.counted(Counter::MadsReceived), 1);
    t.expect_nothing();
}

#[test]
fn datagrams_other_than_mads_are_dropped_and_counted() {
    let mut t = Script::in_reset();
    for (counter, packet) in [
        (Counter::DropBadQkey, mad().deth(Qkey(0x8001_0001), 1)),
        (Counter::DropBadMad, mad().payload(&[7; MAD_LEN - 1])),
        (Counter::DropBadMad, mad().payload(&[7; MAD_LEN + 1])),
        (Counter::DropWrongTransport, pkt(Opcode::RC_SEND_ONLY, 9).payload(&MAD).to(Qpn::GSI)),
    ] {
        let before = t.counted(counter);
        t.receive_from(PEER, &packet);
        assert_eq!(t.counted(counter), before + 1);
    }
    assert!(t.program.mads.is_empty());
}

#[test]
fn a_mad_is_sent_from_qp1_with_the_qkey_of_qp1() {
    let mut t = Script::in_reset();
    let to = usual().av.unwrap();
    for psn in 0..2 {
        t.device.send_mad(&to, Qpn::GSI, &MAD).unwrap();
        let (sent_along, sent) = t.next_sent();
        let source_port = datagram_source_port(Qpn::GSI);
        assert_eq!(
            (sent_along.src, sent_along.dst, sent_along.src_port),
            (LOCAL, PEER, source_port)
        );
        let expected = pkt(Opcode::UD_SEND_ONLY, psn).payload(&MAD).to(Qpn::GSI);
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
        assert_eq!(sent.headers.body, Datagram { deth, imm: None }.into());
        assert_eq!(sent, expected.deth(Qkey::GSI, 1));
    }
    t.expect_nothing();
    assert_eq!(t.counted(Counter::MadsSent), 2);
}

#[test]
fn mads_that_cannot_be_sent_do_not_pile_up() {
    let mut t = Script::in_reset();
    for _ in 0..limits::MAX_WAITING_MADS + 3 {
        t.device.send_mad(&usual().av.unwrap(), Qpn::GSI, &MAD).unwrap();
    }
    assert_eq!(t.counted(Counter::MadsNotSent), 3);
    assert_eq!(t.sent().len(), limits::MAX_WAITING_MADS);
}

#[test]
fn a_mad_goes_to_one_host_that_can_be_reached() {
    let mut t = Script::in_reset();
    let mut refuse = |dgid: &str| {
        let to = AddressVector { dgid: dgid.parse().unwrap(), ..usual().av.unwrap() };
        t.device.send_mad(&to, Qpn::GSI, &MAD).unwrap_err().to_string()
    };
    assert!(refuse("239.1.2.3").contains("not the address of a host"));
    assert!(refuse("fe80::1").contains("another address family"));
}
