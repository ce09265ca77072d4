//! The passive side.

use crate::script::*;
use std::net::IpAddr;
use std::time::Duration;
use urxe_cm::limits::MAX_REQUESTS;
use urxe_cm::*;
use urxe_types::{Access, PathMtu, Psn, QpState, QpType, Qpn, TimeCode};
use urxe_wire::Flow;
use urxe_wire::mad::*;

#[test]
fn req_is_reported_with_its_parameters() {
    let mut t = Script::new();
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    t.receive(req());
    let Event::ConnectRequest { listener: reported, conn, request } = t.event() else { panic!() };
    assert_eq!(reported, listener);
    assert_eq!((request.src, request.dst), (socket(PEER, 50000), socket(LOCAL, PORT)));
    assert_eq!((request.qp_type, request.retry_count), (QpType::Rc, 6));
    assert_eq!(request.private_data, padded(b"hello"));
    // The peer's initiator depth is our responder resources.
    assert_eq!((request.offered.responder_resources, request.offered.initiator_depth), (5, 2));
    assert_eq!((request.offered.qpn, request.offered.rnr_retry_count), (PEER_QPN, 5));
    assert_eq!(t.cm.path(conn).unwrap().flow_label, 0x12345);
    assert_eq!(t.cm.pending_requests(), 1);
    t.assert_silent();
}

#[test]
fn accepted_request_is_established_by_the_rtu() {
    let (mut t, conn) = Script::req_received();
    t.cm.accept(t.now, conn, &ACCEPT).unwrap();
    let (_, mad) = t.sent_to();
    let Message::Rep(rep) = mad.message else { panic!() };
    assert_eq!((mad.tid, rep.remote_comm_id, rep.local_qpn), (TID, PEER_ID, QPN));
    // Our depth of 3 is cut to the 2 that the peer takes.
    assert_eq!((rep.responder_resources, rep.initiator_depth), (4, 2));
    assert_eq!(rep.private_data, padded(b"welcome"));

    let init = t.cm.qp_attr(conn, QpState::Init, 0).unwrap();
    let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    assert_eq!(init.access, Some(Access::REMOTE_WRITE | reads));
    let rtr = t.cm.qp_attr(conn, QpState::Rtr, 0).unwrap();
    assert_eq!((rtr.dest_qpn, rtr.rq_psn), (Some(PEER_QPN), Some(rep.starting_psn)));
    assert_eq!((rtr.path_mtu, rtr.max_dest_rd_atomic), (Some(PathMtu::Mtu1024), Some(4)));
    assert_eq!(rtr.av.unwrap().flow_label, 0x12345);
    let rts = t.cm.qp_attr(conn, QpState::Rts, 0).unwrap();
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (Some(PEER_PSN), Some(2)));
    assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.timeout), (Some(6), Some(5), Some(19)));

    t.receive(rtu(conn));
    assert_eq!(t.event(), Event::Established { conn, private_data: padded(b"go") });
    assert_eq!((t.cm.state(conn), t.cm.poll_timeout()), (Some(State::Established), None));
    t.receive(rtu(conn));
    t.assert_dropped(CmCounter::DropDuplicate, 0);
    t.receive(req());
    t.assert_dropped(CmCounter::DropDuplicate, 1);
}

#[test]
fn data_before_the_rtu_establishes_the_connection() {
    let (mut t, conn) = Script::rep_sent();
    t.cm.communication_established(t.now, conn);
    assert_eq!(t.event(), Event::Established { conn, private_data: [0; Rtu::PRIVATE_LEN] });
    t.cm.communication_established(t.now, conn);
    t.receive(rtu(conn));
    t.assert_dropped(CmCounter::DropDuplicate, 0);
}

#[test]
fn duplicate_req_is_answered_with_an_mra_or_the_same_rep() {
    let (mut t, conn) = Script::req_received();
    t.receive(req());
    let Message::Mra(mra) = t.sent() else { panic!() };
    assert_eq!((mra.received, mra.service_timeout.code()), (Received::Req, 24));
    assert_eq!((mra.local_comm_id, mra.remote_comm_id), (CommId(conn.0), PEER_ID));
    t.cm.accept(t.now, conn, &ACCEPT).unwrap();
    let rep = t.sent();
    t.receive(req());
    assert_eq!(t.sent(), rep);
    assert_eq!(t.cm.poll_event(), None);
}

#[test]
fn unanswered_rep_is_retried_and_given_up() {
    let (mut t, conn) = Script::rep_sent();
    let (waited, sent) = t.run_all_timers();
    assert_eq!(sent[..15], ["REP"; 15]);
    assert_eq!(sent[15..], ["REJ"]);
    let timing = Timing::default();
    assert_eq!(waited, timing.give_up() + timing.linger());
    assert_eq!(t.event(), Event::Unreachable { conn });
    assert!(t.cm.is_empty());
}

#[test]
fn rep_is_retried_as_often_as_the_req_allows() {
    let mut t = Script::new();
    t.cm.listen(t.now, &listen()).unwrap();
    t.receive(Req { max_cm_retries: 2, ..req() });
    let conn = t.requested();
    t.cm.accept(t.now, conn, &ACCEPT).unwrap();
    assert_eq!(t.sent().name(), "REP");
    assert_eq!(t.run_all_timers().1, ["REP", "REP", "REJ"]);
}

#[test]
fn rep_is_not_given_up_before_a_peer_that_allows_few_retries_can_have_answered() {
    for (max_cm_retries, code) in [(0, 20), (1, 20), (3, 20), (0, 22), (2, 17)] {
        let mut t = Script::new();
        t.cm.listen(t.now, &listen()).unwrap();
        let local_response_timeout = TimeCode::new(code);
        t.receive(Req { max_cm_retries, local_response_timeout, ..req() });
        let conn = t.requested();
        t.cm.accept(t.now, conn, &ACCEPT).unwrap();
        let (mut waited, mut sent) = (Duration::ZERO, t.all_sent());
        while t.cm.state(conn).is_some() {
            waited += t.run_next_timer();
            sent.extend(t.all_sent());
        }
        assert_eq!(t.event(), Event::Unreachable { conn });
        let timeout = local_response_timeout.duration();
        assert!(waited >= timeout * (u32::from(max_cm_retries) + 1), "{waited:?}");
        let reps = sent.iter().filter(|message| message.name() == "REP").count();
        assert_eq!(reps, usize::from(max_cm_retries) + 1);
    }
}

#[test]
fn mra_extends_the_wait_for_the_rtu() {
    let (mut t, conn) = Script::rep_sent();
    t.receive(mra(conn, Received::Rep, 24));
    assert_eq!(t.run_next_timer(), TimeCode::new(20).duration());
    assert_eq!(t.sent().name(), "REP");
    t.receive(mra(conn, Received::Req, 24));
    t.assert_dropped(CmCounter::DropOutOfPlace, 0);
}

#[test]
fn duplicate_of_a_rejected_req_gets_the_same_rej() {
    let (mut t, conn) = Script::req_received();
    t.cm.reject(t.now, conn, b"no").unwrap();
    for _ in 0..2 {
        let rej = t.sent_rej();
        assert_eq!((rej.rejected, rej.reason), (Rejected::Req, Reason::Consumer));
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(conn.0), PEER_ID));
        assert_eq!(rej.private_data, padded(b"no"));
        t.receive(req());
    }
    t.sent();
    assert_eq!((t.cm.poll_event(), t.cm.state(conn), t.cm.pending_requests()), (None, None, 0));
    assert_eq!(t.run_all_timers().0, Timing::default().linger());
    assert!(t.cm.is_empty());
}

#[test]
fn qp_of_a_rejected_req_may_send_another_req() {
    let (mut t, conn) = Script::req_received();
    t.cm.reject(t.now, conn, b"").unwrap();
    t.sent();
    t.receive(Req { local_comm_id: CommId(0x6666), ..req() });
    assert_ne!(t.requested(), conn);
}

#[test]
fn rej_for_timeout_ends_a_request() {
    for ours in [true, false] {
        let (mut t, conn) = Script::req_received();
        // It knows our communication ID from an MRA, if it got one.
        let ours = if ours { CommId(conn.0) } else { CommId::NONE };
        t.receive(rej(ours, Rejected::Nothing, Reason::Timeout));
        assert!(matches!(t.event(), Event::Rejected { reason: Reason::Timeout, .. }));
        assert_eq!((t.cm.state(conn), t.cm.pending_requests()), (None, 0));
        // A late duplicate of the REQ is no new request.
        t.receive(req());
        t.assert_dropped(CmCounter::DropDuplicate, 0);
        assert_eq!(t.run_all_timers().1, [""; 0]);
        assert!(t.cm.is_empty());
    }
}

#[test]
fn req_to_a_port_without_listener_is_rejected_with_reason_8() {
    let mut t = Script::new();
    t.receive(req());
    let rej = t.sent_rej();
    assert_eq!((rej.rejected, rej.reason.code()), (Rejected::Req, 8));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId::NONE, PEER_ID));
    assert_eq!(t.count(CmCounter::RefusedNoListener), 1);
    assert!(t.cm.is_empty());
    // At another port than the listener, and after it has ended.
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    t.receive(Req { service_id: ServiceId::ip(PortSpace::Tcp, PORT + 1), ..req() });
    assert_eq!(t.sent_rej().reason, Reason::InvalidServiceId);
    assert!(t.cm.unlisten(t.now, listener));
    assert!(!t.cm.unlisten(t.now, listener));
    t.advance(GAP);
    t.receive(req());
    assert_eq!(t.sent_rej().reason, Reason::InvalidServiceId);
}

/// How long a request waits where a listener has just ended.
const GAP: Duration = Duration::from_nanos(4096 << 15);

/// A listener has begun and ended at [`PORT`].
fn listener_has_ended() -> Script {
    let mut t = Script::new();
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    t.cm.unlisten(t.now, listener);
    t
}

#[test]
fn req_between_two_listeners_of_a_port_waits_for_the_second() {
    let mut t = listener_has_ended();
    t.receive(req());
    t.receive(req());
    assert_eq!(t.count(CmCounter::RequestsHeld), 1);
    assert_eq!(t.count(CmCounter::DropDuplicate), 1);
    t.assert_silent();
    // A listener of another service is not the one; the request goes on waiting.
    let datagrams = Listen { space: PortSpace::Udp, service: Service::Datagrams, ..listen() };
    t.cm.listen(t.now, &datagrams).unwrap();
    t.assert_silent();
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    let Some(Event::ConnectRequest { listener: of, .. }) = t.cm.poll_event() else {
        panic!("the request is shown to the listener that came")
    };
    assert_eq!(of, listener);
    assert_eq!(t.cm.poll_timeout(), None);
}

#[test]
fn held_req_is_refused_when_no_listener_comes() {
    let mut t = listener_has_ended();
    t.now += GAP / 2;
    t.receive(req());
    t.assert_silent();
    let due = t.now + GAP;
    assert_eq!(t.cm.poll_timeout(), Some(due));
    t.now = due;
    t.cm.handle_timeout(t.now);
    assert_eq!(t.sent_rej().reason, Reason::InvalidServiceId);
    assert_eq!(t.cm.poll_timeout(), None);
    assert!(t.cm.is_empty());
}

#[test]
fn held_requests_are_bounded() {
    let mut t = listener_has_ended();
    let held = u32::try_from(limits::MAX_HELD).unwrap();
    for id in 1..=held {
        t.receive(Req { local_comm_id: CommId(id), ..req() });
    }
    t.assert_silent();
    t.receive(Req { local_comm_id: CommId(held + 1), ..req() });
    assert_eq!(t.sent_rej().reason, Reason::InvalidServiceId);
}

#[test]
fn req_for_a_service_that_is_no_port_is_rejected_with_reason_8() {
    let mut t = Script::new();
    t.cm.listen(t.now, &listen()).unwrap();
    // Some that only differ from the listener's in their high bits, with any private data.
    for id in [7, SERVICE.0 | 1 << 40, u64::MAX] {
        for private_data in [req().private_data, [0; Req::PRIVATE_LEN]] {
            t.receive(Req { service_id: ServiceId(id), private_data, ..req() });
            assert_eq!(t.sent_rej().reason.code(), 8);
        }
    }
    assert_eq!(t.count(CmCounter::RefusedNoListener), 6);
    assert!(t.cm.is_empty());
}

#[test]
fn unacceptable_req_is_rejected_with_its_reason() {
    let mut t = Script::new();
    t.cm.listen(t.now, &listen()).unwrap();
    let elsewhere = CmPath { remote_gid: STRANGER, ..req().primary };
    let spoofed = CmPath { local_gid: STRANGER, ..req().primary };
    let mut wrong_version = req().private_data;
    wrong_version[0] = 1;
    for (req, reason, counter) in [
        (
            Req { transport: TransportService::Rd, ..req() },
            Reason::InvalidTransport,
            CmCounter::RefusedTransport,
        ),
        (
            Req { transport: TransportService::Uc, ..req() },
            Reason::InvalidTransport,
            CmCounter::RefusedTransport,
        ),
        (Req { primary: elsewhere, ..req() }, Reason::InvalidGid, CmCounter::RefusedAddresses),
        (Req { primary: spoofed, ..req() }, Reason::InvalidGid, CmCounter::RefusedAddresses),
        (
            Req { path_mtu: Some(PathMtu::Mtu2048), ..req() },
            Reason::InvalidPathMtu,
            CmCounter::RefusedPathMtu,
        ),
        (Req { path_mtu: None, ..req() }, Reason::InvalidPathMtu, CmCounter::RefusedPathMtu),
        (Req { private_data: wrong_version, ..req() }, Reason::Consumer, CmCounter::RefusedHeader),
        (
            Req { private_data: with_ip_cm_header(socket(PEER, 1), STRANGER, b""), ..req() },
            Reason::Consumer,
            CmCounter::RefusedHeader,
        ),
    ] {
        let before = t.count(counter);
        t.receive(req);
        let rej = t.sent_rej();
        assert_eq!((rej.reason, t.count(counter)), (reason, before + 1));
        if reason == Reason::InvalidPathMtu {
            assert_eq!(rej.ari.information(), [3 << 4]);
        }
    }
    assert!(t.cm.is_empty());
}

#[test]
fn most_specific_listener_gets_the_request() {
    let ids: Vec<CommId> = (1..=4).map(CommId).collect();
    let mut t = Script::new();
    let mut expected = Vec::new();
    let places = [ListenOn::Any, ListenOn::AnyV4, ListenOn::Address(LOCAL)];
    for (on, id) in places.into_iter().zip(&ids) {
        let listener = t.cm.listen(t.now, &Listen { on, ..listen() }).unwrap();
        expected.push(listener);
        t.receive(Req { local_comm_id: *id, local_qpn: Qpn::new(0x30 + id.0), ..req() });
        let Event::ConnectRequest { listener: reported, .. } = t.event() else { panic!() };
        assert_eq!(reported, listener);
    }
    for on in [ListenOn::AnyV6, ListenOn::Address(STRANGER)] {
        t.cm.listen(t.now, &Listen { on, ..listen() }).unwrap();
    }
    t.receive(req());
    let Event::ConnectRequest { listener: reported, .. } = t.event() else { panic!() };
    assert_eq!(Some(&reported), expected.last());
}

#[test]
fn address_and_port_have_one_listener_until_it_ends() {
    let mut t = Script::new();
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    assert_eq!(t.cm.listen(t.now, &listen()), Err(ListenError::AddressInUse(SERVICE)));
    let text = t.cm.listen(t.now, &listen()).unwrap_err().to_string();
    assert_eq!(text, "tcp:7174: somebody listens on this address and port already");
    t.cm.listen(t.now, &Listen { port: 1, ..listen() }).unwrap();
    t.cm.listen(t.now, &Listen { on: ListenOn::Address(LOCAL), ..listen() }).unwrap();
    t.cm.unlisten(t.now, listener);
    t.cm.listen(t.now, &listen()).unwrap();
}

#[test]
fn full_backlog_drops_requests_until_the_program_takes_some() {
    let mut t = Script::new();
    t.cm.listen(t.now, &listen()).unwrap();
    let request =
        |n: u32| Req { local_comm_id: CommId(n), local_qpn: Qpn::new(0x100 + n), ..req() };
    t.receive(request(1));
    let first = t.requested();
    t.receive(request(2));
    let second = t.requested();
    t.receive(request(3));
    t.assert_dropped(CmCounter::DropBacklog, 0);
    t.cm.take_request(first);
    t.cm.take_request(first);
    t.receive(request(3));
    t.requested();
    t.receive(request(4));
    t.assert_dropped(CmCounter::DropBacklog, 1);
    // A request that was rejected was taken.
    t.cm.reject(t.now, second, b"").unwrap();
    t.sent();
    t.receive(request(4));
    t.requested();
}

#[test]
fn pending_requests_are_bounded() {
    let mut t = Script::new();
    t.cm.listen(t.now, &Listen { backlog: usize::MAX, ..listen() }).unwrap();
    let flood = 3 * MAX_REQUESTS as u32;
    for n in 1..=flood {
        t.receive(Req { local_comm_id: CommId(n), local_qpn: Qpn::new(0x100 + n), ..req() });
    }
    assert_eq!((t.cm.len(), t.cm.pending_requests()), (MAX_REQUESTS, MAX_REQUESTS));
    assert_eq!(t.count(CmCounter::DropTooManyRequests), u64::from(flood) - MAX_REQUESTS as u64);
}

#[test]
fn listener_that_takes_no_requests_blocks_no_other_listener() {
    let mut t = Script::new();
    t.cm.listen(t.now, &Listen { backlog: usize::MAX, ..listen() }).unwrap();
    let request =
        |n: u32| Req { local_comm_id: CommId(n), local_qpn: Qpn::new(0x100 + n), ..req() };
    for n in 1..=MAX_REQUESTS as u32 {
        t.receive(request(n));
    }
    while t.cm.poll_event().is_some() {}
    let other = Listen { port: listen().port + 1, backlog: 10, ..listen() };
    t.cm.listen(t.now, &other).unwrap();
    let service_id = ServiceId::ip(other.space, other.port);
    let request = |n: u32| Req { service_id, ..request(0x10_0000 + n) };
    for n in 1..=3 {
        t.receive(request(n));
        let conn = t.requested();
        t.receive(request(n + 3));
        t.assert_dropped(CmCounter::DropTooManyRequests, u64::from(n) - 1);
        t.cm.take_request(conn);
    }
}

#[test]
fn lingering_connections_are_bounded_and_block_no_new_ones() {
    let mut t = Script::new();
    t.cm.listen(t.now, &listen()).unwrap();
    let most = urxe_cm::limits::MAX_LINGERING as u32;
    for n in 1..=most + 10 {
        t.receive(Req { local_comm_id: CommId(n), ..req() });
        let conn = t.requested();
        t.cm.reject(t.now, conn, b"").unwrap();
        t.sent();
    }
    assert_eq!((t.cm.len(), t.count(CmCounter::ForgottenEarly)), (most as usize, 10));
    t.run_all_timers();
    assert!(t.cm.is_empty());
}

#[test]
fn unlisten_rejects_the_requests_that_were_not_taken() {
    let mut t = Script::new();
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    t.receive(req());
    let taken = t.requested();
    t.cm.take_request(taken);
    t.receive(Req { local_comm_id: CommId(1), local_qpn: Qpn::new(1), ..req() });
    t.requested();
    t.cm.unlisten(t.now, listener);
    let rej = t.sent_rej();
    assert_eq!((rej.remote_comm_id, rej.reason), (CommId(1), Reason::Consumer));
    t.cm.accept(t.now, taken, &ACCEPT).unwrap();
    assert_eq!(t.sent().name(), "REP");
}

/// SHARE-126
#[test]
fn unlisten_rejects_its_own_requests_and_those_of_no_other_listener() {
    let mut t = Script::new();
    let listeners = [0, 1].map(|at| {
        let listen = Listen { port: PORT + at, backlog: 10, ..listen() };
        t.cm.listen(t.now, &listen).unwrap()
    });
    for n in 1..=6u16 {
        let service_id = ServiceId::ip(PortSpace::Tcp, PORT + n % 2);
        let number = u32::from(n);
        let (local_comm_id, local_qpn) = (CommId(number), Qpn::new(0x100 + number));
        t.receive(Req { local_comm_id, local_qpn, service_id, ..req() });
        t.requested();
    }
    for (listener, numbers) in listeners.into_iter().zip([[2, 4, 6], [1, 3, 5]]) {
        assert!(t.cm.unlisten(t.now, listener));
        let mut rejected = Vec::new();
        while let Some(sent) = t.cm.poll_mad() {
            match Mad::parse(&sent.mad).unwrap().message {
                Message::Rej(rej) => rejected.push(rej.remote_comm_id.0),
                other => panic!("{other}"),
            }
        }
        rejected.sort_unstable();
        assert_eq!(rejected, numbers);
        t.assert_silent();
    }
}

#[test]
fn destroy_rejects_a_connection_that_is_not_established() {
    let (mut t, conn) = Script::req_received();
    t.cm.destroy(t.now, conn);
    assert_eq!(t.sent_rej().rejected, Rejected::Req);

    let (mut t, conn) = Script::rep_sent();
    t.cm.destroy(t.now, conn);
    assert_eq!(t.sent_rej().rejected, Rejected::Nothing);
    // Sent before the REJ arrived.
    t.receive(rtu(conn));
    assert_eq!(t.sent_rej().reason, Reason::Consumer);
    assert_eq!(t.cm.poll_event(), None);
    t.run_all_timers();
    assert!(t.cm.is_empty());
}

/// A REQ of the connected QP of the peer, for another connection.
fn reborn() -> Req {
    Req { local_comm_id: CommId(0x6666), starting_psn: Psn::new(9), ..req() }
}

#[test]
fn req_of_a_connected_qp_is_stale_and_the_old_connection_ends_when_the_peer_does_not_know_it() {
    let (mut t, conn) = Script::established_passive();
    let reborn = reborn();
    t.receive(reborn);
    let [Message::Rej(rej), Message::Dreq(dreq)] = t.all_sent()[..] else { panic!() };
    assert_eq!((rej.reason.code(), rej.remote_comm_id), (10, CommId(0x6666)));
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (CommId(conn.0), PEER_ID));
    t.receive(drep(conn));
    let cause = DisconnectCause::Unconfirmed;
    assert_eq!(t.event(), Event::Disconnected { conn, cause });
    t.receive(reborn);
    t.requested();
}

#[test]
fn qp_of_a_connection_in_timewait_may_send_another_req() {
    let (mut t, old) = Script::established_passive();
    t.peer_disconnects(old);
    // Late duplicates of the first REQ are none of it.
    t.receive(req());
    t.assert_dropped(CmCounter::DropDuplicate, 0);
    t.receive(reborn());
    let new = t.requested();
    t.run_next_timer();
    assert_eq!(t.event(), Event::TimewaitExit { conn: old });
    // The old one's end takes the new one's place from nobody.
    assert_eq!(t.cm.state(new), Some(State::ReqReceived));
    t.receive(Req { local_comm_id: CommId(0x6667), ..reborn() });
    assert_eq!(t.sent_rej().reason, Reason::StaleConnection);
}

#[test]
fn req_with_a_used_comm_id_is_stale() {
    let (mut t, conn) = Script::established_passive();
    t.receive(Req { local_qpn: Qpn::new(0x99), ..req() });
    let first = t.cm.poll_mad().unwrap();
    let Message::Rej(rej) = Mad::parse(&first.mad).unwrap().message else { panic!() };
    assert_eq!(rej.reason, Reason::StaleConnection);
    assert_eq!(t.sent().name(), "DREQ");
    assert_eq!(t.cm.state(conn), Some(State::Established));
}

#[test]
fn forged_reqs_end_no_connection_that_its_peer_still_has() {
    for (mut t, conn) in [Script::established_passive(), Script::established_active()] {
        // The peer's own manager, which has the connection, is asked and says nothing.
        for _ in 0..3 {
            t.receive(reborn());
            let [Message::Rej(_), Message::Dreq(dreq)] = t.all_sent()[..] else { panic!() };
            assert_eq!(dreq.remote_qpn, Qpn::new(0), "a QP that no connection has");
            // Many in a row are one question.
            for _ in 0..100 {
                t.receive(reborn());
            }
            assert!(t.all_sent().iter().all(|message| message.name() == "REJ"));
            t.now += Timing::default().first_wait.duration();
        }
        // Nor do answers of somebody who does not know what was asked.
        t.receive(Drep { remote_comm_id: CommId(conn.0 ^ 1), ..drep(conn) });
        t.receive(Drep { local_comm_id: CommId(0x6666), ..drep(conn) });
        t.run_all_timers();
        assert_eq!(t.cm.state(conn), Some(State::Established));
        assert_eq!(t.cm.poll_event(), None);
    }
}

#[test]
fn asking_whether_a_connection_is_lost_does_not_end_it() {
    for (mut t, conn) in [Script::established_passive(), Script::established_active()] {
        t.receive(Dreq { remote_qpn: Qpn::new(0), ..dreq(conn) });
        t.assert_silent();
        assert_eq!(t.cm.state(conn), Some(State::Established));
    }
}

#[test]
fn drep_that_answers_nothing_ends_no_connection() {
    let (mut t, conn) = Script::established_passive();
    t.receive(drep(conn));
    t.assert_silent();
    assert_eq!(t.cm.state(conn), Some(State::Established));
}

#[test]
fn rej_without_our_number_ends_no_established_connection() {
    let (mut t, conn) = Script::established_passive();
    t.receive(rej(CommId::NONE, Rejected::Nothing, Reason::Timeout));
    t.assert_silent();
    assert_eq!(t.cm.state(conn), Some(State::Established));
}

#[test]
fn uc_connections_are_requested_and_accepted_as_rc_ones() {
    let mut t = Script::new();
    let service = Service::Connected(QpType::Uc);
    t.cm.listen(t.now, &Listen { service, ..listen() }).unwrap();
    t.receive(Req { transport: TransportService::Uc, ..req() });
    let conn = t.requested();
    let rts = t.cm.qp_attr(conn, QpState::Rts, 0).unwrap();
    assert_eq!((rts.timeout, rts.retry_cnt, rts.max_rd_atomic), (None, None, None));
    let init = t.cm.qp_attr(conn, QpState::Init, 0).unwrap();
    assert_eq!(init.access, Some(Access::REMOTE_WRITE));
    t.receive(Req { local_comm_id: CommId(1), local_qpn: Qpn::new(1), ..req() });
    assert_eq!(t.sent_rej().reason, Reason::InvalidTransport);
}

#[test]
fn captured_req_of_kernel_rxe_is_accepted() {
    let capture = include_bytes!("../../../../interop/captures/6.1/cm-reject-no-listener.pcap");
    // Headers of the file, the record, Ethernet, IPv4, UDP, BTH and DETH.
    let mad = &capture[24 + 16 + 14 + 20 + 8 + 20..][..MAD_LEN];
    let [kernel, ours]: [IpAddr; 2] = ["10.78.0.1", "10.78.0.2"].map(|ip| ip.parse().unwrap());
    let flow = Flow { src: kernel, dst: ours, ..source(PEER).flow };
    let from = MadSource { flow, src_qpn: Qpn::GSI };
    let mut t = Script::new();
    t.cm.listen(t.now, &Listen { port: 9999, ..listen() }).unwrap();
    t.cm.handle_mad(t.now, &from, mad.try_into().unwrap());
    let Event::ConnectRequest { conn, request, .. } = t.event() else { panic!() };
    assert_eq!((request.src, request.dst), (socket(kernel, 0x8c10), socket(ours, 9999)));
    assert_eq!((request.offered.qpn, request.retry_count), (Qpn::new(0x34), 7));
    assert_eq!((request.offered.responder_resources, request.offered.initiator_depth), (1, 1));
    assert_eq!(t.cm.qp_attr(conn, QpState::Rts, 0).unwrap().sq_psn, Some(Psn::new(0xe41c2e)));
}
