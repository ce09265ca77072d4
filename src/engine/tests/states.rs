//! What a QP does in each state, and what `modify_qp` refuses.

mod script;

use script::*;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{Opcode, Syndrome};

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
    t.expect_send(2, WcStatus::Success);
}

#[test]
fn reset_forgets_a_message_under_way() {
    let mut t = Script::of(QpType::Uc);
    t.post_recv(1, &[t.sge(0, 1000)]);
    t.receive(&[pkt(Opcode::UC_SEND_FIRST, 100).payload(&[1; MTU])]);
    t.enter(QpState::Reset);
    t.connect(&usual_uc());
    t.post_recv(2, &[t.sge(0, 1000)]);
    t.receive(&[pkt(Opcode::UC_SEND_LAST, 100), pkt(Opcode::UC_SEND_ONLY, 101)]);
    t.expect_recv(2, WcStatus::Success);
    t.expect_no_completion();
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
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.program.events, [AsyncEvent::SqDrained(t.qpn)]);
    t.enter(QpState::Rts);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
}

#[test]
fn a_fenced_request_does_not_begin_in_sqd() {
    let mut t = Script::new();
    t.post(1, SendOp::Read { remote_addr: 0, rkey: Rkey(1) }, &[t.sge(0, 1)]);
    t.post_with(2, SEND, &[], |wqe| wqe.wr.fence = true);
    assert_eq!(t.sent().len(), 1);
    t.enter(QpState::Sqd);
    assert!(t.device.query_qp(t.qpn).unwrap().sq_draining);
    t.receive(&[pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).aeth(Syndrome::ACK, 1).payload(b"x")]);
    t.expect_send(1, WcStatus::Success);
    t.expect_nothing();
    assert_eq!(t.program.events, [AsyncEvent::SqDrained(t.qpn)]);
    assert!(!t.device.query_qp(t.qpn).unwrap().sq_draining);
    t.enter(QpState::Rts);
    t.expect(pkt(Opcode::RC_SEND_ONLY, 201).ack_req());
    assert_eq!(t.program.events.len(), 1);
}

#[test]
fn a_bad_request_not_begun_before_sqd_fails_after_it() {
    let mut t = Script::new();
    t.post(1, SendOp::Read { remote_addr: 0, rkey: Rkey(1) }, &[t.sge(0, 1)]);
    t.post(2, SEND, &[Sge { addr: 0, ..t.sge(0, 1) }]);
    assert_eq!(t.sent().len(), 1);
    t.enter(QpState::Sqd);
    t.receive(&[pkt(Opcode::RC_READ_RESPONSE_ONLY, 200).aeth(Syndrome::ACK, 1).payload(b"x")]);
    t.expect_send(1, WcStatus::Success);
    t.expect_no_completion();
    assert_eq!(t.program.events, [AsyncEvent::SqDrained(t.qpn)]);
    t.enter(QpState::Rts);
    t.expect_send(2, WcStatus::LocalProtection);
}

#[test]
fn a_long_message_of_which_all_that_was_sent_is_acknowledged_still_drains() {
    let mut t = Script::new();
    t.post(1, SEND, &[t.sge(0, 65_536), t.sge(0, 65_536)]);
    let sent = t.sent().len() as u32;
    assert_eq!(sent, 205, "the first window");
    t.enter(QpState::Sqd);
    t.receive(&[ack(200 + sent - 1, 0)]);
    assert_eq!(t.program.events, []);
    assert_eq!(t.sent().len(), 512 - 205, "what has begun is sent to its end");
    t.receive(&[ack(200 + 511, 1)]);
    t.expect_send(1, WcStatus::Success);
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

#[test]
fn an_idle_queue_has_drained_at_once_and_each_time_anew() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut t = Script::of(qp_type);
        for times in 1..=2 {
            t.enter(QpState::Sqd);
            t.enter(QpState::Sqd);
            assert_eq!(t.program.events, vec![AsyncEvent::SqDrained(t.qpn); times]);
            t.enter(QpState::Rts);
        }
    }
}

#[test]
fn a_message_that_nobody_acknowledges_drains_with_its_last_packet() {
    let mut t = Script::of(QpType::Uc);
    t.post(1, SEND, &[t.sge(0, 600)]);
    t.post(2, SEND, &[]);
    let mut tx = TxBatch::new(TxLimits::SINGLE, 1);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    t.enter(QpState::Sqd);
    assert_eq!(t.program.events, []);
    assert_eq!(t.sent().len(), 2);
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.program.events, [AsyncEvent::SqDrained(t.qpn)]);
    t.enter(QpState::Rts);
    t.expect(pkt(Opcode::UC_SEND_ONLY, 203));
}

#[test]
fn the_path_can_be_changed_in_sqd() {
    let mut t = Script::new();
    t.enter(QpState::Sqd);
    let av = usual().av.map(|av| AddressVector { traffic_class: 0x40, ..av });
    t.modify(&QpAttr { av, timeout: Some(20), ..QpAttr::default() }).unwrap();
    t.enter(QpState::Rts);
    t.post(1, SEND, &[]);
    assert_eq!(t.next_sent().0.traffic_class, 0x40);
}

// SQE: a send that failed on our own side, where the peer knows nothing of it.

/// A QP of this type, brought to SQE by the second of three sends.
fn in_sqe(qp_type: QpType) -> Script {
    let mut t = Script::of(qp_type);
    for wr_id in 1..=3 {
        let mut sge = t.sge(0, 1);
        sge.lkey.0 ^= u32::from(wr_id == 2);
        post_to_peer(&mut t, wr_id, &[sge]);
    }
    t
}

/// Posts a SEND that works on every transport.
fn post_to_peer(t: &mut Script, wr_id: u64, sges: &[Sge]) {
    let path = DatagramPath::Vector(usual().av.unwrap());
    let to = Destination { path, qpn: Qpn::new(PEER_QPN), qkey: QKEY };
    t.post_with(wr_id, SEND, sges, |wqe| wqe.wr.to = Some(to));
}

#[test]
fn a_send_that_fails_here_stops_the_sends_of_uc_and_ud_and_not_their_receives() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut t = in_sqe(qp_type);
        t.post_recv(10, &[t.sge(0, 100)]);
        assert_eq!(t.sent().len(), 1);
        t.expect_send(1, WcStatus::Success);
        assert_eq!(t.expect_send(2, WcStatus::LocalProtection).vendor_err, Cause::LocalKey as u32);
        t.expect_send(3, WcStatus::WrFlush);
        assert_eq!((t.state(), t.program.retired), (QpState::Sqe, 3));

        t.expect_no_completion();
        t.receive(&[match qp_type {
            QpType::Uc => pkt(Opcode::UC_SEND_ONLY, 100),
            _ => pkt(Opcode::UD_SEND_ONLY, 100).deth(QKEY, 1),
        }]);
        t.expect_recv(10, WcStatus::Success);
        assert_eq!(t.program.events, []);
    }
}

#[test]
fn requests_posted_in_sqe_are_flushed_and_later_ones_are_sent() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut t = in_sqe(qp_type);
        t.sent();
        t.program.completions.clear();
        post_to_peer(&mut t, 4, &[]);
        t.expect_nothing();
        t.expect_send(4, WcStatus::WrFlush);
        t.enter(QpState::Rts);
        t.expect_nothing();
        post_to_peer(&mut t, 5, &[]);
        assert_eq!(t.sent().len(), 1);
        t.expect_send(5, WcStatus::Success);
    }
}

#[test]
fn from_sqe_a_qp_may_go_on_to_err() {
    let mut t = in_sqe(QpType::Uc);
    t.sent();
    t.program.completions.clear();
    t.post_recv(10, &[]);
    t.enter(QpState::Err);
    t.expect_recv(10, WcStatus::WrFlush);
}

#[test]
fn a_send_that_fails_here_ends_an_rc_qp() {
    let mut t = in_sqe(QpType::Rc);
    t.sent();
    t.receive(&[ack(200, 1)]);
    t.expect_send(1, WcStatus::Success);
    t.expect_send(2, WcStatus::LocalProtection);
    t.expect_send(3, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_message_broken_off_in_its_midst_leaves_a_gap_for_the_peer_to_see() {
    let mut t = Script::of(QpType::Uc);
    t.post(1, SEND, &[t.sge(0, 256), Sge { addr: 0, ..t.sge(0, 1) }]);
    t.expect_nothing();
    t.expect_send(1, WcStatus::LocalProtection);
    t.enter(QpState::Rts);
    t.post(2, SEND, &[t.sge(0, 600)]);
    assert_eq!(t.sent().len(), 3);
    t.expect_send(2, WcStatus::Success);
    t.post(3, SEND, &[t.sge(0, 600)]);
    let mut tx = TxBatch::new(TxLimits::SINGLE, 1);
    t.device.poll_transmit(t.now, &mut t.program, &mut tx);
    t.program.unmapped = true;
    t.expect_nothing();
    t.expect_send(3, WcStatus::LocalProtection);
    t.program.unmapped = false;
    t.enter(QpState::Rts);
    t.post(4, SEND, &[]);
    t.expect(pkt(Opcode::UC_SEND_ONLY, 206));
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
    t.post_with(3, SEND, &[], |wqe| wqe.wr.signaled = false);
    t.post_recv(10, &[]);
    t.post_recv(11, &[]);
    t.enter(QpState::Err);
    for wr_id in 1..=3 {
        t.expect_send(wr_id, WcStatus::WrFlush);
    }
    t.expect_recv(10, WcStatus::WrFlush);
    t.expect_recv(11, WcStatus::WrFlush);
    t.expect_no_completion();
}

#[test]
fn requests_posted_in_err_are_flushed_at_the_doorbell() {
    let mut t = Script::new();
    t.enter(QpState::Err);
    t.post_recv(1, &[]);
    t.post(2, SEND, &[]);
    t.expect_nothing();
    t.expect_send(2, WcStatus::WrFlush);
    t.expect_recv(1, WcStatus::WrFlush);
}

#[test]
fn every_transport_flushes_its_sends_and_receives() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut t = Script::in_reset_of(qp_type);
        t.enter_init(&usual_of(qp_type)).unwrap();
        t.post(1, SEND, &[]);
        t.post_recv(2, &[]);
        t.enter(QpState::Err);
        t.expect_send(1, WcStatus::WrFlush);
        t.expect_recv(2, WcStatus::WrFlush);
        t.post(3, SEND, &[]);
        t.post_recv(4, &[]);
        t.expect_nothing();
        t.expect_send(3, WcStatus::WrFlush);
        t.expect_recv(4, WcStatus::WrFlush);
    }
}

#[test]
fn a_receive_in_use_is_flushed_first() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(0, 4096)]);
    t.post_recv(2, &[]);
    t.receive(&[pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU))]);
    t.enter(QpState::Err);
    t.expect_recv(1, WcStatus::WrFlush);
    t.expect_recv(2, WcStatus::WrFlush);
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
    assert_eq!(
        error.to_string(),
        "port_num: must be given to go from RESET to INIT, expected IBV_QP_PORT in attr_mask"
    );
    assert_eq!(t.state(), QpState::Reset);
}

#[test]
fn an_attribute_that_the_transport_lacks_is_named() {
    let mut t = Script::in_reset_of(QpType::Ud);
    t.enter_init(&usual_ud()).unwrap();
    let error = t.enter_rtr(&QpAttr { av: usual().av, ..usual_ud() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ah_attr: cannot be changed when going from INIT to RTR, expected attr_mask without IBV_QP_AV"
    );
    let mut t = Script::in_reset_of(QpType::Uc);
    let error = t.enter_init(&QpAttr { qkey: Some(QKEY), ..usual_uc() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "qkey: cannot be changed when going from RESET to INIT, expected attr_mask without IBV_QP_QKEY"
    );
}

#[test]
fn a_pkey_index_and_a_port_that_are_not_there_are_named() {
    let mut t = Script::in_reset();
    let error = t.enter_init(&QpAttr { pkey_index: Some(1), ..usual() }).unwrap_err();
    assert_eq!(error.to_string(), "pkey_index 1: must be 0, the only one");
    let error = t.enter_init(&QpAttr { port: Some(2), ..usual() }).unwrap_err();
    assert_eq!(error.to_string(), "port_num 2: must be 1, the only one");
}

#[test]
fn set_attributes_are_queried() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let t = Script::of(qp_type);
        assert_eq!(t.device.query_qp(t.qpn).unwrap().attr, usual_of(qp_type));
    }
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
    let expected =
        "path_mtu 4096: the way to the peer is over the device's link, which carries at most 1024";
    assert_eq!(error.to_string(), expected);
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
