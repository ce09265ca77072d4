//! Asynchronous events: each that applies, once, of the right object; and what a QP tells of
//! itself.

use crate::harness::{ALL, End, Kind, QKEY, attrs, av, connected, eventually, read_events, start};
use urxe_shm::control::event::{COMM_EST, QP_ACCESS_ERR, QP_FATAL, QP_REQ_ERR, SQ_DRAINED};
use urxe_shm::control::{QpQueried, Reply, Request};
use urxe_types::{Access, Extra, Qkey, QpAttr, QpState, QpType, Qpn, Rkey, SendData, SendOp};

const SEND: SendOp = SendOp::Send(Extra::None);

fn to_state(end: &mut End, state: QpState) {
    let attr = QpAttr { state: Some(state), ..QpAttr::default() };
    end.client.modify(&end.qp, attr).unwrap();
}

fn query(end: &mut End) -> QpQueried {
    match end.client.call(Request::QueryQp { qp: end.qp.created.qp }).unwrap() {
        Reply::QpAttr(queried) => queried,
        other => panic!("{other:?}"),
    }
}

/// The kinds of the end's events, all of which must be of its QP.
fn kinds(end: &End) -> Vec<u32> {
    let of_qp = u64::from(end.qp.created.qp.0);
    let events = read_events(&end.events);
    assert!(events.iter().all(|e| (e.object, e.user_handle) == (of_qp, 0xaa)), "{events:?}");
    events.iter().map(|event| event.kind).collect()
}

#[test]
fn the_first_packet_in_rtr_is_told_once() {
    let (first, second) = (start(1), start(1));
    let mut a = End::new(&first, 0, Kind::Shared, 64);
    let mut b = End::new(&second, 0, Kind::Shared, 64);
    a.connect(b.addr, b.qp.created.qpn);
    let [init, rtr, rts] = attrs(a.addr, a.qp.created.qpn);
    b.client.modify(&b.qp, init).unwrap();
    b.client.modify(&b.qp, rtr).unwrap();
    for wr_id in 0..3 {
        b.post_recv(wr_id, &[]);
        a.exchange(SEND, &[]);
        b.cq.wait(1);
    }
    assert_eq!(kinds(&b), [COMM_EST]);
    b.client.modify(&b.qp, rts).unwrap();
    b.post_recv(3, &[]);
    a.exchange(SEND, &[]);
    assert_eq!(kinds(&b), Vec::<u32>::new());
    assert_eq!(kinds(&a), Vec::<u32>::new());
}

#[test]
fn a_drained_send_queue_is_told_once_and_drains_until_then() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 64);
    // Nobody takes it yet.
    a.post_send(1, SEND, SendData::Inline(b"x"));
    eventually("it is under way", || {
        (b.client.counter("urxe0", "received_packets") > 0).then_some(())
    });
    to_state(&mut a, QpState::Sqd);
    assert!(query(&mut a).sq_draining);
    assert_eq!(kinds(&a), Vec::<u32>::new());
    b.post_recv(1, &[b.mr.sge(0, 64)]);
    a.cq.wait(1);
    assert!(!query(&mut a).sq_draining);
    assert_eq!(kinds(&a), [SQ_DRAINED]);
    // What was posted meanwhile waits for RTS.
    b.post_recv(2, &[b.mr.sge(0, 64)]);
    a.post_send(2, SEND, SendData::Inline(b"y"));
    assert_eq!(a.client.state(&a.qp), QpState::Sqd);
    assert_eq!(a.cq.poll(), []);
    to_state(&mut a, QpState::Rts);
    assert_eq!(a.cq.wait(1)[0].wr_id, 2);
    assert_eq!(kinds(&a), Vec::<u32>::new());
}

#[test]
fn an_error_of_the_peer_is_told_once_at_the_responder() {
    for (offset, kind) in [(0, QP_ACCESS_ERR), (4, QP_REQ_ERR)] {
        let (first, second) = (start(1), start(1));
        let (mut a, mut b) = connected(&first, &second, Kind::Shared, 64);
        let rkey = if kind == QP_ACCESS_ERR { Rkey(b.mr.rkey.0 ^ 0x100) } else { b.mr.rkey };
        let remote_addr = b.mr.addr + offset;
        let sge = a.mr.sge(0, 8);
        let op = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
        a.post_send(1, op, SendData::Sges(&[sge]));
        assert_ne!(a.cq.wait(1)[0].status, 0);
        eventually("the responder has failed", || {
            (b.client.state(&b.qp) == QpState::Err).then_some(())
        });
        assert_eq!(kinds(&b), [kind]);
        assert_eq!(kinds(&a), Vec::<u32>::new(), "the requester has its completion");
    }
}

#[test]
fn a_destroyed_qp_says_nothing_more() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 64);
    let qp = b.qp.created.qp;
    b.client.call(Request::DestroyQp { qp }).unwrap();
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(1), imm: None };
    a.post_send(1, write, SendData::Inline(b"x"));
    eventually("the packet has come", || {
        (b.client.counter("urxe0", "drop_unknown_qp") > 0).then_some(())
    });
    // Its send queue is scribbled over, and its doorbell is rung.
    b.client.memory.write(b.qp.created.send_ring.offset + 128, &[0xff; 4]).unwrap();
    b.client.ring(&b.qp);
    let other = b.client.create_qp(b.pd, b.cq.handle, crate::harness::CAPS);
    assert_eq!(b.client.state(&other), QpState::Reset);
    let events = read_events(&b.events);
    assert!(events.iter().all(|event| event.kind != QP_FATAL), "{events:?}");
    assert_eq!(events.len(), 0, "{events:?}");
}

#[test]
fn a_qp_tells_all_that_was_set() {
    let daemon = start(1);
    let mut a = End::new(&daemon, 0, Kind::Shared, 64);
    let steps = attrs(a.addr, Qpn::new(77));
    a.connect(a.addr, Qpn::new(77));
    let queried = query(&mut a);
    let [init, rtr, rts] = steps;
    let expected = QpAttr {
        state: Some(QpState::Rts),
        cur_state: None,
        qkey: None,
        access: init.access,
        pkey_index: init.pkey_index,
        port: init.port,
        sq_psn: rts.sq_psn,
        max_rd_atomic: rts.max_rd_atomic,
        timeout: rts.timeout,
        retry_cnt: rts.retry_cnt,
        rnr_retry: rts.rnr_retry,
        ..rtr
    };
    assert_eq!(queried.attr, expected);
    assert_eq!((queried.caps, queried.sq_sig_all), (a.qp.created.caps, true));
    assert!(!queried.sq_draining);

    // In RTS these may still change.
    let changes =
        QpAttr { access: Some(Access::REMOTE_READ), min_rnr_timer: Some(3), ..QpAttr::default() };
    a.client.modify(&a.qp, changes).unwrap();
    let attr = query(&mut a).attr;
    assert_eq!((attr.access, attr.min_rnr_timer), (Some(Access::REMOTE_READ), Some(3)));
    to_state(&mut a, QpState::Reset);
    let attr = query(&mut a).attr;
    assert_eq!(attr, QpAttr { state: Some(QpState::Reset), ..QpAttr::default() });

    let mut d = End::datagram(&daemon, 0, Kind::Shared, 64);
    let attr = query(&mut d).attr;
    assert_eq!((attr.qkey, attr.state), (Some(QKEY), Some(QpState::Rts)));
    let qkey = Some(Qkey(QKEY.0 + 1));
    d.client.modify(&d.qp, QpAttr { qkey, ..QpAttr::default() }).unwrap();
    assert_eq!(query(&mut d).attr.qkey, qkey);

    let mut u = End::of_type(daemon.socket(), "urxe0", QpType::Uc, Kind::Shared, 64);
    for attr in crate::harness::unreliable_attrs(u.addr, Qpn::new(5)) {
        u.client.modify(&u.qp, attr).unwrap();
    }
    let attr = query(&mut u).attr;
    assert_eq!((attr.av, attr.dest_qpn), (Some(av(u.addr)), Some(Qpn::new(5))));
    assert_eq!((attr.timeout, attr.max_rd_atomic), (None, None));
    let refused =
        u.client.modify(&u.qp, QpAttr { access: Some(ALL), timeout: Some(1), ..QpAttr::default() });
    assert!(refused.unwrap_err().message.contains("timeout"));
}
