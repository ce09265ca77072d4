//! The active side.

use crate::script::*;
use std::time::Duration;
use urxe_cm::*;
use urxe_types::{PathMtu, QpState, QpType, Qpn, TimeCode};
use urxe_wire::mad::*;

#[test]
fn req_fields_are_those_of_rdma_cm() {
    let (t, conn, req) = Script::req_sent();
    assert_eq!((req.local_comm_id, req.service_id), (CommId(conn.0), SERVICE));
    assert_eq!((req.local_ca_guid, req.local_qpn), (0x1234, QPN));
    assert_eq!((req.remote_response_timeout.code(), req.max_cm_retries), (20, 15));
    assert_eq!((req.transport, req.path_mtu), (TransportService::Rc, Some(PathMtu::Mtu1024)));
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 3));
    assert_eq!((req.primary.local_gid, req.primary.remote_gid), (LOCAL, PEER));
    assert_eq!(req.primary.flow_label, (40000 * 31 + 7174) & 0xf_ffff);
    let expected: [u8; Req::PRIVATE_LEN] = with_ip_cm_header(socket(LOCAL, 40000), PEER, b"hello");
    assert_eq!(req.private_data, expected);
    assert_eq!(t.cm.state(conn), Some(State::ReqSent));
}

#[test]
fn accepted_connection_is_established_by_sending_an_rtu() {
    let (mut t, conn, req) = Script::req_sent();
    t.receive(rep(conn));
    let Event::ConnectResponse { conn: reported, response } = t.event() else { panic!() };
    assert_eq!(reported, conn);
    assert_eq!(response.private_data, padded(b"welcome"));
    assert_eq!(response.offered.qpn, PEER_QPN);
    assert_eq!((response.offered.responder_resources, response.offered.initiator_depth), (5, 2));

    let rtr = t.cm.qp_attr(conn, QpState::Rtr, 1).unwrap();
    assert_eq!((rtr.dest_qpn, rtr.rq_psn), (Some(PEER_QPN), Some(req.starting_psn)));
    assert_eq!((rtr.path_mtu, rtr.max_dest_rd_atomic), (Some(PathMtu::Mtu1024), Some(4)));
    assert_eq!((rtr.av.unwrap().dgid, rtr.av.unwrap().sgid_index), (PEER, 1));
    let rts = t.cm.qp_attr(conn, QpState::Rts, 1).unwrap();
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (Some(PEER_PSN), Some(2)));
    assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.timeout), (Some(7), Some(5), Some(17)));

    t.cm.establish(t.now, conn, b"go").unwrap();
    let Message::Rtu(rtu) = t.sent() else { panic!() };
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (CommId(conn.0), PEER_ID));
    assert_eq!(rtu.private_data, padded(b"go"));
    assert_eq!(t.cm.state(conn), Some(State::Established));
    assert_eq!(t.cm.poll_timeout(), None);
    t.assert_silent();
}

#[test]
fn qp_attributes_for_rtr_need_the_peers_qpn() {
    let (t, conn, _) = Script::req_sent();
    assert!(t.cm.qp_attr(conn, QpState::Init, 0).is_some());
    assert_eq!(t.cm.qp_attr(conn, QpState::Rtr, 0), None);
    assert_eq!(t.cm.qp_attr(conn, QpState::Rts, 0), None);
    assert_eq!(t.cm.qp_attr(conn, QpState::Err, 0), None);
}

#[test]
fn unanswered_req_is_retried_15_times_and_given_up() {
    let (mut t, conn, _) = Script::req_sent();
    let (waited, sent) = t.run_all_timers();
    assert_eq!(sent[..15], ["REQ"; 15]);
    // The peer may have received one of them.
    assert_eq!(sent[15..], ["REJ"]);
    assert_eq!(waited, Timing::default().give_up());
    assert_eq!(t.event(), Event::Unreachable { conn });
    assert!(t.cm.is_empty());
    assert_eq!((t.count(CmCounter::Repeats), t.count(CmCounter::GivenUp)), (15, 1));
}

#[test]
fn retries_are_identical_to_the_first_message() {
    let (mut t, _, req) = Script::req_sent();
    for _ in 0..3 {
        t.run_next_timer();
        assert_eq!(t.sent(), Message::Req(req));
    }
}

#[test]
fn mra_extends_the_wait_without_using_up_retries() {
    let (mut t, conn, _) = Script::req_sent();
    let start = t.now;
    t.receive(mra(conn, Received::Req, 24));
    t.receive(mra(conn, Received::Req, 24));
    t.assert_dropped(CmCounter::DropDuplicate, 0);
    // The peer's reply may get lost, so the REQ is sent on.
    while t.now - start < TimeCode::new(24).duration() {
        assert_eq!(t.run_next_timer(), TimeCode::new(20).duration());
        assert_eq!(t.sent().name(), "REQ");
    }
    // No longer than the kernel's service timeout.
    let start = t.now;
    t.receive(mra(conn, Received::Req, 31));
    let (waited, _) = t.run_all_timers();
    assert_eq!(t.now - start, waited);
    let most = TimeCode::new(24).duration() + Timing::default().give_up();
    assert!(waited > TimeCode::new(24).duration() && waited <= most, "{waited:?}");
}

#[test]
fn mras_extend_the_wait_15_times_at_most() {
    let (mut t, conn, _) = Script::req_sent();
    let start = t.now;
    while !t.cm.is_empty() {
        t.receive(mra(conn, Received::Req, 31));
        t.run_next_timer();
        while t.cm.poll_mad().is_some() {}
    }
    assert_eq!(t.event(), Event::Unreachable { conn });
    assert!(t.now - start < Duration::from_secs(20 * 60));
}

#[test]
fn rejection_is_reported_with_its_reason() {
    for reason in [Reason::InvalidServiceId, Reason::Consumer, Reason::StaleConnection] {
        let (mut t, conn, _) = Script::req_sent();
        t.receive(rej(CommId(conn.0), Rejected::Req, reason));
        let private_data = padded(b"no");
        assert_eq!(t.event(), Event::Rejected { conn, reason, ari: Ari::NONE, private_data });
        assert!(t.cm.is_empty());
        t.receive(rej(CommId(conn.0), Rejected::Req, reason));
        t.assert_dropped(CmCounter::DropUnknown, 0);
    }
}

#[test]
fn duplicate_rep_is_answered_with_the_same_rtu() {
    let (mut t, conn) = Script::established_active();
    for _ in 0..3 {
        t.receive(rep(conn));
        assert_eq!(t.sent().name(), "RTU");
    }
    assert_eq!(t.cm.poll_event(), None);
}

#[test]
fn duplicate_rep_before_establish_is_answered_with_an_mra() {
    let (mut t, conn) = Script::rep_received();
    t.receive(rep(conn));
    let Message::Mra(mra) = t.sent() else { panic!() };
    assert_eq!((mra.received, mra.service_timeout.code()), (Received::Rep, 24));
    assert_eq!((mra.local_comm_id, mra.remote_comm_id), (CommId(conn.0), PEER_ID));
}

#[test]
fn duplicate_of_a_rejected_rep_gets_the_same_rej() {
    let (mut t, conn) = Script::rep_received();
    t.cm.reject(t.now, conn, b"no").unwrap();
    for _ in 0..2 {
        let rejection = t.sent_rej();
        assert_eq!((rejection.rejected, rejection.reason), (Rejected::Rep, Reason::Consumer));
        assert_eq!(rejection.private_data, padded(b"no"));
        // The REJ was lost.
        t.receive(rep(conn));
    }
    assert_eq!(t.sent_rej().reason, Reason::Consumer);
    assert_eq!(t.cm.state(conn), None);
    assert_eq!(t.run_all_timers(), (Timing::default().linger(), vec![]));
    assert!(t.cm.is_empty());
}

#[test]
fn rep_for_an_unknown_connection_is_rejected_with_reason_6() {
    let (mut t, conn, _) = Script::req_sent();
    t.cm.destroy(t.now, conn);
    let rejection = t.sent_rej();
    assert_eq!((rejection.rejected, rejection.reason), (Rejected::Nothing, Reason::Timeout));
    assert_eq!(rejection.ari, Ari::guid(0x1234));
    assert!(t.cm.is_empty());
    t.receive(rep(conn));
    let rejection = t.sent_rej();
    assert_eq!((rejection.rejected, rejection.reason), (Rejected::Rep, Reason::InvalidCommId));
    assert_eq!((rejection.local_comm_id, rejection.remote_comm_id), (CommId(conn.0), PEER_ID));
}

#[test]
fn rep_of_a_connected_qp_is_stale_and_ends_the_old_connection() {
    let (mut t, first) = Script::established_active();
    let second = t.cm.connect(t.now, &connect()).unwrap();
    t.sent();
    t.receive(Rep { local_comm_id: CommId(0x6666), ..rep(second) });
    let [Message::Rej(rejection), Message::Dreq(dreq)] = t.all_sent()[..] else { panic!() };
    assert_eq!((rejection.rejected, rejection.reason), (Rejected::Rep, Reason::StaleConnection));
    // The peer has lost the first connection, so it is disconnected.
    assert_eq!(dreq.local_comm_id, CommId(first.0));
    assert_eq!(t.cm.state(second), Some(State::ReqSent));
}

#[test]
fn rep_of_a_qp_in_timewait_is_taken() {
    let (mut t, old) = Script::established_active();
    t.peer_disconnects(old);
    let conn = t.cm.connect(t.now, &connect()).unwrap();
    assert_eq!(t.sent().name(), "REQ");
    t.receive(Rep { local_comm_id: CommId(0x6666), ..rep(conn) });
    assert!(matches!(t.event(), Event::ConnectResponse { .. }));
    assert_eq!(t.cm.state(conn), Some(State::RepReceived));
}

#[test]
fn two_sides_that_connect_to_each_other_have_two_connections() {
    let (mut t, ours, _) = Script::req_sent();
    t.cm.listen(t.now, &listen()).unwrap();
    t.receive(req());
    let theirs = t.requested();
    assert_ne!(ours, theirs);
    t.cm.accept(t.now, theirs, &ACCEPT).unwrap();
    assert_eq!(t.sent().name(), "REP");
    t.receive(Rep { local_comm_id: CommId(0x6666), local_qpn: Qpn::new(0x23), ..rep(ours) });
    assert!(matches!(t.event(), Event::ConnectResponse { conn, .. } if conn == ours));
    t.receive(rtu(theirs));
    assert!(matches!(t.event(), Event::Established { conn, .. } if conn == theirs));
}

#[test]
fn invalid_connect_is_refused_with_its_cause() {
    let mut t = Script::new();
    let mut refuse = |connect: Connect<'_>| t.cm.connect(t.now, &connect).unwrap_err().to_string();
    let long = [0; Connect::PRIVATE_LEN + 1];
    for (connect, text) in [
        (Connect { dst: "[::1]:1".parse().unwrap(), ..connect() }, "another address family"),
        (Connect { dst: "239.1.2.3:1".parse().unwrap(), ..connect() }, "not the address of a host"),
        (Connect { src: "0.0.0.0:1".parse().unwrap(), ..connect() }, "not the address of a host"),
        (Connect { qp_type: QpType::Ud, ..connect() }, "datagram"),
        (
            Connect { private_data: &long, ..connect() },
            "57 bytes of private data; there is room for 56",
        ),
    ] {
        assert!(refuse(connect).contains(text), "{text}");
    }
    assert!(t.cm.is_empty());
    t.assert_silent();
}

#[test]
fn commands_in_the_wrong_state_are_refused_with_that_state() {
    let (mut t, conn, _) = Script::req_sent();
    let states = [
        t.cm.accept(t.now, conn, &ACCEPT),
        t.cm.establish(t.now, conn, b""),
        t.cm.disconnect(t.now, conn, b""),
        t.cm.reject(t.now, conn, b""),
    ];
    for refused in states {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("in the state ReqSent"), "{text}");
    }
    let gone = ConnId(conn.0 ^ 1);
    let text = t.cm.disconnect(t.now, gone, b"").unwrap_err().to_string();
    assert!(text.contains("does not exist"), "{text}");
    let (mut t, conn) = Script::req_received();
    let text = t.cm.reject(t.now, conn, &[0; 149]).unwrap_err().to_string();
    assert!(text.contains("149 bytes of private data; there is room for 148"), "{text}");
}
