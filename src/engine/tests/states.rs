//! What a QP does in each state, and what `modify_qp` refuses.

mod script;

use script::*;
use urxe_engine::{
    AddressVector, AsyncEvent, Attribute, Counter, Extra, ModifyQpError, QpAttr, QpState, SendOp,
    Status,
};
use urxe_wire::{Opcode, PathMtu, Syndrome};

const SEND: SendOp = SendOp::Send(Extra::None);

// RESET and INIT.

#[test]
fn sends_posted_before_rts_go_out_in_rts() {
    let mut t = Script::in_reset();
    t.enter_init(&usual()).unwrap();
    t.post(1, SEND, &[]);
    t.expect_nothing();
    t.enter_rtr(&usual()).unwrap();
    t.expect_nothing();
    t.enter_rts(&usual()).unwrap();
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
}

#[test]
fn reset_forgets_and_begins_anew() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.sent();
    t.enter(QpState::Reset);
    t.expect_no_completion();
    t.connect(&usual());
    t.post(2, SEND, &[]);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).ack_req());
    t.receive(&[ack(200, 1)]);
    t.expect_send(2, Status::Success);
}

// SQD.

#[test]
fn a_draining_queue_ends_what_it_began_and_says_so_once() {
    let mut t = Script::new();
    t.post(1, SEND, &[]);
    t.sent();
    t.enter(QpState::Sqd);
    t.post(2, SEND, &[]);
    t.expect_nothing();
    assert_eq!(t.program.events, []);
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, Status::Success);
    assert_eq!(t.program.events, [AsyncEvent::SqDrained(t.qpn)]);
    t.enter(QpState::Rts);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
}

#[test]
fn an_idle_queue_is_drained_at_once() {
    let mut t = Script::new();
    t.enter(QpState::Sqd);
    assert_eq!(t.program.events, [AsyncEvent::SqDrained(t.qpn)]);
}

#[test]
fn a_draining_qp_serves_its_peer() {
    let mut t = Script::new();
    let key = t.key;
    t.enter(QpState::Sqd);
    t.receive(&[
        pkt(Opcode::RC_WRITE_ONLY, 100).reth(VA, key, 1).payload(b"x").ack_req(),
        pkt(Opcode::RC_FETCH_ADD, 101).atomic(VA + 8, key, 5, 0),
    ]);
    t.expect(ack(100, 1));
    t.expect(pkt(Opcode::RC_ATOMIC_ACK, 101).aeth(Syndrome::ACK, 2).original(0));
    assert_eq!(t.memory(0, 1), b"x");
}

// ERR.

#[test]
fn an_answer_in_a_state_that_asks_nothing_is_counted() {
    let mut t = Script::in_reset();
    t.enter_init(&usual()).unwrap();
    t.enter_rtr(&usual()).unwrap();
    t.receive(&[ack(200, 1)]);
    t.enter(QpState::Err);
    t.receive(&[ack(200, 1)]);
    assert_eq!(t.counted(Counter::DropQpNotReady), 2);
}

#[test]
fn going_to_err_flushes_sends_and_receives_in_order() {
    let mut t = Script::new();
    for wr_id in 1..=2 {
        t.post(wr_id, SEND, &[]);
    }
    t.sent();
    t.post_with(3, SEND, &[], |wqe| wqe.signaled = false);
    t.post_recv(10, &[]);
    t.post_recv(11, &[]);
    t.enter(QpState::Err);
    for wr_id in 1..=3 {
        t.expect_send(wr_id, Status::WrFlush);
    }
    t.expect_recv(10, Status::WrFlush);
    t.expect_recv(11, Status::WrFlush);
    t.expect_no_completion();
}

#[test]
fn what_is_posted_in_err_is_flushed_at_the_doorbell() {
    let mut t = Script::new();
    t.enter(QpState::Err);
    t.post_recv(1, &[]);
    t.post(2, SEND, &[]);
    t.expect_nothing();
    t.expect_send(2, Status::WrFlush);
    t.expect_recv(1, Status::WrFlush);
}

#[test]
fn a_receive_in_use_is_flushed_first() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 4096)]);
    t.post_recv(2, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU))]);
    t.enter(QpState::Err);
    t.expect_recv(1, Status::WrFlush);
    t.expect_recv(2, Status::WrFlush);
}

// What modify_qp refuses. It changes nothing then.

#[test]
fn an_attribute_that_is_missing_is_named() {
    let mut t = Script::in_reset();
    let error = t.enter_init(&QpAttr { port: None, ..usual() }).unwrap_err();
    let expected = ModifyQpError::Missing {
        attribute: Attribute::Port,
        from: QpState::Reset,
        to: QpState::Init,
    };
    assert_eq!(error, expected);
    assert_eq!(error.to_string(), "port_num: must be given to go from Reset to Init");
    assert_eq!(t.state(), QpState::Reset);
}

#[test]
fn an_attribute_that_does_not_belong_is_named() {
    let mut t = Script::new();
    let change = QpAttr { timeout: Some(3), ..QpAttr::default() };
    assert!(matches!(
        t.modify(&change),
        Err(ModifyQpError::NotAllowed { attribute: Attribute::Timeout, .. })
    ));
}

#[test]
fn a_value_out_of_range_is_named_with_its_range() {
    let mut t = Script::in_reset();
    t.enter_init(&usual()).unwrap();
    t.enter_rtr(&usual()).unwrap();
    let error = t.enter_rts(&QpAttr { retry_cnt: Some(8), ..usual() }).unwrap_err();
    assert_eq!(error.to_string(), "retry_cnt 8: must be 0 to 7");
}

#[test]
fn a_path_mtu_beyond_the_link_is_refused() {
    let mut t = Script::in_reset();
    t.enter_init(&usual()).unwrap();
    let error = t.enter_rtr(&QpAttr { path_mtu: Some(PathMtu::Mtu4096), ..usual() }).unwrap_err();
    assert_eq!(error.to_string(), "path_mtu 4096: the device's link carries at most 1024");
}

#[test]
fn a_path_that_cannot_be_is_refused() {
    let path = |dgid: &str, sgid_index| {
        let av =
            usual().av.map(|av| AddressVector { dgid: dgid.parse().unwrap(), sgid_index, ..av });
        let mut t = Script::in_reset();
        t.enter_init(&usual()).unwrap();
        t.enter_rtr(&QpAttr { av, ..usual() }).unwrap_err().to_string()
    };
    assert_eq!(
        path("10.0.0.2", 1),
        "ah_attr sgid_index 1: the GID table has nothing at this index"
    );
    assert!(path("fe80::1", 0).contains("another address family"));
    assert!(path("224.0.0.1", 0).contains("not the address of a host"));
    assert!(path("0.0.0.0", 0).contains("not the address of a host"));
}

#[test]
fn a_jump_over_states_is_refused() {
    let mut t = Script::in_reset();
    let error = t.enter_rts(&usual()).unwrap_err();
    assert!(matches!(error, ModifyQpError::NoTransition { .. }));
}

#[test]
fn a_wrong_current_state_is_refused() {
    let mut t = Script::new();
    let change = QpAttr { cur_state: Some(QpState::Sqd), ..QpAttr::default() };
    let expected = ModifyQpError::WrongCurrentState { given: QpState::Sqd, actual: QpState::Rts };
    assert_eq!(t.modify(&change), Err(expected));
}
