//! What a responder refuses, as scripts: rights, protection domains, resources; and what a refusal
//! does to what comes behind it.

mod script;

use script::*;
use urxe_engine::{AsyncEvent, Counter, MrSpec, PdId, RegionId};
use urxe_types::{Access, QpAttr, QpState, WcStatus};
use urxe_wire::{NakCode, Opcode};

/// One request of each kind that needs a right, with that right.
fn requests(key: u32) -> [(Access, Pkt); 3] {
    let write = pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x");
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, key, 8);
    let add = pkt(Opcode::RC_FETCH_ADD, 100).atomic(VA, key, 1, 0);
    [(Access::REMOTE_WRITE, write), (Access::REMOTE_READ, read), (Access::REMOTE_ATOMIC, add)]
}

/// The usual rights but for one.
fn all_but(one: Access) -> Access {
    usual().access.unwrap() - one
}

#[test]
fn each_operation_has_a_flag_of_the_qp() {
    for number in 0..3 {
        let (flag, _) = requests(0)[number];
        let mut t = Script::with(QpAttr { access: Some(all_but(flag)), ..usual() });
        let (_, request) = requests(t.key)[number].clone();
        t.receive(&[request]);
        t.expect(nak(NakCode::InvalidRequest, 100, 0));
        assert_eq!(t.program.events, [AsyncEvent::QpRequestError(t.qpn)]);

        let mut t = Script::with(QpAttr { access: Some(flag), ..usual() });
        let (_, request) = requests(t.key)[number].clone();
        t.receive(&[request]);
        assert_eq!(t.state(), QpState::Rts, "{flag:?} alone is enough");
    }
}

/// A key for the script's memory with these rights, in this protection domain.
fn another_key(t: &mut Script, pd: PdId, access: Access) -> u32 {
    let spec = MrSpec { pd, addr: VA, length: 64, access, region: RegionId(0) };
    t.device.reg_mr(spec).unwrap().lkey.0
}

#[test]
fn each_operation_has_a_right_of_the_mr() {
    for number in 0..3 {
        let (right, _) = requests(0)[number];
        let mut t = Script::new();
        let key = another_key(&mut t, PD, all_but(right));
        let (_, request) = requests(key)[number].clone();
        t.receive(&[request]);
        t.expect(nak(NakCode::RemoteAccess, 100, 0));
        t.expect_nothing();
        assert_eq!(t.program.events, [AsyncEvent::QpAccessError(t.qpn)]);
        assert_eq!(t.memory(0, 8), [0; 8]);
    }
}

#[test]
fn a_key_of_another_protection_domain_opens_nothing() {
    for number in 0..3 {
        let mut t = Script::new();
        let key = another_key(&mut t, PdId(2), all_but(Access::default()));
        let (_, request) = requests(key)[number].clone();
        t.receive(&[request]);
        t.expect(nak(NakCode::RemoteAccess, 100, 0));
        t.expect_nothing();
        assert_eq!(t.memory(0, 8), [0; 8]);
    }
}

#[test]
fn a_qp_that_takes_no_reads_refuses_the_first() {
    let mut t = Script::with(QpAttr { max_dest_rd_atomic: Some(0), ..usual() });
    let key = t.key;
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, key, 1)]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
}

#[test]
fn requests_behind_a_refused_one_are_not_executed() {
    let mut t = Script::new();
    let key = t.key;
    t.post_recv(1, &[t.sge(8, 8)]);
    t.receive(&[
        pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key ^ 1, 1).payload(b"x"),
        pkt(Opcode::RC_WRITE_ONLY, 101).reth(VA, key, 1).payload(b"y").ack_req(),
        pkt(Opcode::RC_SEND_ONLY, 100).payload(b"z").ack_req(),
    ]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
    t.expect_nothing();
    t.expect_recv(1, WcStatus::WrFlush);
    t.expect_no_completion();
    assert_eq!(t.memory(0, 16), [0; 16]);
    assert_eq!(t.counted(Counter::DropQpNotReady), 2);
}

#[test]
fn each_failure_of_a_request_has_its_event_once() {
    let mut t = Script::new();
    t.receive(&[pkt(Opcode::RC_SEND_MIDDLE, 100), pkt(Opcode::RC_SEND_MIDDLE, 100)]);
    t.enter(QpState::Err);
    assert_eq!(t.program.events, [AsyncEvent::QpRequestError(t.qpn)]);

    let mut t = Script::new();
    let write = pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, t.key ^ 1, 1).payload(b"x");
    t.receive(&[write.clone(), write]);
    t.enter(QpState::Err);
    assert_eq!(t.program.events, [AsyncEvent::QpAccessError(t.qpn)]);
}

#[test]
fn rights_that_are_changed_count_from_the_next_request_on() {
    let mut t = Script::with(QpAttr { access: Some(Access::REMOTE_READ), ..usual() });
    let key = t.key;
    let write = |psn| pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA, key, 1).payload(b"x").ack_req();
    t.modify(&QpAttr { access: Some(Access::REMOTE_WRITE), ..QpAttr::default() }).unwrap();
    t.receive(&[write(100)]);
    t.expect(ack(100, 1));
    t.modify(&QpAttr { access: Some(Access::REMOTE_READ), ..QpAttr::default() }).unwrap();
    t.receive(&[write(101)]);
    t.expect(nak(NakCode::InvalidRequest, 101, 1));
}

#[test]
fn fewer_reads_may_be_allowed_while_some_are_being_answered() {
    let mut t = Script::new();
    let (key, data) = (t.key, bytes(1, 600));
    t.fill(0, &data);
    let read = |psn| pkt(Opcode::RC_READ_REQUEST, psn).reth(VA, key, 600);
    t.receive(&[read(100), read(103), read(106)]);
    t.enter(QpState::Sqd);
    t.modify(&QpAttr { max_dest_rd_atomic: Some(1), ..QpAttr::default() }).unwrap();
    let payload: Vec<_> = t.sent().into_iter().flat_map(|response| response.payload).collect();
    assert!(payload == data.repeat(3), "all three are answered in full");
    t.receive(&[read(106)]);
    assert_eq!(t.sent().len(), 3, "and the last can be asked for again");
    t.receive(&[read(109), read(112)]);
    t.expect(pkt(Opcode::RC_READ_RESPONSE_FIRST, 109).payload(&data[..256]).aeth(ACK, 4));
    assert_eq!(t.sent().last().unwrap().headers.body.aeth().unwrap().syndrome, TOO_MANY);
}

const ACK: urxe_wire::Syndrome = urxe_wire::Syndrome::ACK;
const TOO_MANY: urxe_wire::Syndrome = urxe_wire::Syndrome::Nak(NakCode::InvalidRequest);
