//! SIDR: the QPs of datagram services.

use crate::script::*;
use urxe_cm::*;
use urxe_types::{Pkey, Qkey, Qpn};
use urxe_wire::mad::*;

const UDP: ServiceId = ServiceId::ip(PortSpace::Udp, PORT);
const QKEY: Qkey = Qkey(0x0123_4567);

fn sidr_req() -> SidrReq {
    SidrReq {
        request_id: PEER_ID,
        pkey: Pkey::DEFAULT,
        service_id: UDP,
        private_data: with_ip_cm_header(socket(PEER, 50000), LOCAL, b"hello"),
    }
}

fn sidr_rep(ours: ConnId, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id: CommId(ours.0),
        status,
        qpn: PEER_QPN,
        service_id: UDP,
        qkey: QKEY,
        information_len: 0,
        information: [0; SidrRep::INFORMATION_LEN],
        private_data: padded(b"welcome"),
    }
}

fn listening() -> Script {
    let mut t = Script::new();
    let service = Service::Datagrams;
    t.cm.listen(t.now, &Listen { space: PortSpace::Udp, service, ..listen() }).unwrap();
    t
}

fn resolving() -> (Script, ConnId) {
    let mut t = Script::new();
    let resolve = Resolve {
        space: PortSpace::Udp,
        src: socket(LOCAL, 40000),
        dst: socket(PEER, PORT),
        traffic_class: 0,
        private_data: b"hello",
    };
    let conn = t.cm.resolve(t.now, &resolve).unwrap();
    let Message::SidrReq(req) = t.sent() else { panic!() };
    assert_eq!((req.request_id, req.service_id), (CommId(conn.0), UDP));
    let expected: [u8; SidrReq::PRIVATE_LEN] =
        with_ip_cm_header(socket(LOCAL, 40000), PEER, b"hello");
    assert_eq!(req.private_data, expected);
    (t, conn)
}

#[test]
fn duplicate_sidr_req_is_answered_with_the_same_sidr_rep() {
    let mut t = listening();
    t.receive(sidr_req());
    let Event::SidrRequest { conn, request, .. } = t.event() else { panic!() };
    assert_eq!((request.src, request.dst), (socket(PEER, 50000), socket(LOCAL, PORT)));
    assert_eq!(request.private_data, padded(b"hello"));
    t.receive(sidr_req());
    t.assert_dropped(CmCounter::DropDuplicate, 0);
    let answer =
        SidrAnswer { status: SidrStatus::Valid, qpn: QPN, qkey: QKEY, private_data: b"welcome" };
    t.cm.answer(t.now, conn, &answer).unwrap();
    for _ in 0..2 {
        let Message::SidrRep(rep) = t.sent() else { panic!() };
        assert_eq!((rep.request_id, rep.service_id, rep.status), (PEER_ID, UDP, SidrStatus::Valid));
        assert_eq!((rep.qpn, rep.qkey, rep.private_data), (QPN, QKEY, padded(b"welcome")));
        t.receive(sidr_req());
    }
    t.sent();
    assert_eq!((t.cm.poll_event(), t.cm.state(conn)), (None, None));
    assert_eq!(t.run_next_timer(), Timing::default().linger());
    assert!(t.cm.is_empty());
}

#[test]
fn sidr_rep_is_reported_and_ends_the_resolution() {
    for status in [SidrStatus::Valid, SidrStatus::Unsupported, SidrStatus::Other(77)] {
        let (mut t, conn) = resolving();
        t.receive(sidr_rep(conn, status));
        let Event::SidrReply { conn: reported, reply } = t.event() else { panic!() };
        assert_eq!((reported, reply.status, reply.qpn, reply.qkey), (conn, status, PEER_QPN, QKEY));
        assert_eq!(reply.private_data, padded(b"welcome"));
        assert!(t.cm.is_empty());
        t.receive(sidr_rep(conn, status));
        t.assert_dropped(CmCounter::DropUnknown, 0);
    }
}

#[test]
fn unanswered_sidr_req_is_retried_and_given_up() {
    let (mut t, conn) = resolving();
    let (waited, sent) = t.run_all_timers();
    assert_eq!((waited, sent), (Timing::default().give_up(), vec!["SIDR REQ"; 15]));
    assert_eq!(t.event(), Event::Unreachable { conn });
    assert!(t.cm.is_empty());
}

#[test]
fn sidr_req_without_listener_or_header_is_refused() {
    let mut t = listening();
    for (req, status) in [
        (
            SidrReq { service_id: ServiceId::ip(PortSpace::Udp, 1), ..sidr_req() },
            SidrStatus::Unsupported,
        ),
        (SidrReq { service_id: ServiceId(7), ..sidr_req() }, SidrStatus::Unsupported),
        (SidrReq { private_data: [1; SidrReq::PRIVATE_LEN], ..sidr_req() }, SidrStatus::Rejected),
    ] {
        t.receive(req);
        let Message::SidrRep(rep) = t.sent() else { panic!() };
        assert_eq!((rep.request_id, rep.status, rep.qpn), (PEER_ID, status, Qpn::default()));
    }
    assert!(t.cm.is_empty());
    // A listener for connections gets no SIDR requests, even in one port space.
    t.receive(Req { service_id: UDP, ..req() });
    assert_eq!(t.sent_rej().reason, Reason::InvalidServiceId);
}

#[test]
fn sidr_req_waits_for_the_next_listener_of_its_port() {
    let mut t = Script::new();
    // As perftest does it: first a connection, then datagrams at the same port.
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    t.cm.unlisten(t.now, listener);
    t.receive(sidr_req());
    t.assert_silent();
    let datagrams = Listen { space: PortSpace::Udp, service: Service::Datagrams, ..listen() };
    t.cm.listen(t.now, &datagrams).unwrap();
    t.requested();
    assert_eq!(t.count(CmCounter::RequestsHeld), 1);
}

#[test]
fn sidr_req_is_rejected_by_reject_and_by_destroy() {
    for goes in [true, false] {
        let mut t = listening();
        t.receive(sidr_req());
        let conn = t.requested();
        match goes {
            true => t.cm.destroy(t.now, conn),
            false => t.cm.reject(t.now, conn, b"").unwrap(),
        }
        let Message::SidrRep(rep) = t.sent() else { panic!() };
        assert_eq!((rep.status, t.cm.pending_requests()), (SidrStatus::Rejected, 0));
    }
    let (mut t, conn) = resolving();
    t.cm.destroy(t.now, conn);
    t.assert_silent();
    assert!(t.cm.is_empty());
}

#[test]
fn sidr_reqs_count_in_the_backlog() {
    let mut t = listening();
    for n in 1..=2 {
        t.receive(SidrReq { request_id: CommId(n), ..sidr_req() });
        t.requested();
    }
    t.receive(sidr_req());
    t.assert_dropped(CmCounter::DropBacklog, 0);
}
