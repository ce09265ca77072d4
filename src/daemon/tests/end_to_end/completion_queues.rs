//! Completion queues: another size, too full, and whom they wake.

use crate::harness::{CAPS, Client, End, Kind, Random, connected, eventually, read_events, start};
use rustix::io::Errno;
use urxe_shm::control::event::{COMPLETION, CQ_ERR};
use urxe_shm::control::{Request, ResourceDetail, ResourceKind};
use urxe_shm::ring::geometry::Geometry;
use urxe_slot::limits::{MAX_CQE, MAX_RING_BYTES};
use urxe_types::{Extra, QpAttr, QpState, Qpn, SendData, SendOp};

const FLUSHED: u32 = 5;

/// Offsets into a ring's header.
const PRODUCER: u64 = 128;
const CONSUMER: u64 = 256;

#[test]
fn a_resized_cq_keeps_what_is_unread_and_goes_on() {
    let (first, second) = (start(1), start(1));
    let (mut a, b) = connected(&first, &second, Kind::Shared, 4096);
    let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
    let write = SendOp::Write { remote_addr, rkey, imm: None };
    let mut random = Random::new(3);
    let (mut posted, mut seen) = (0, 0);
    while posted < 2000 {
        for _ in 0..random.below(20) {
            if posted - seen < 100 {
                a.post_send(posted, write, SendData::Inline(b"x"));
                posted += 1;
            }
        }
        // In the middle of the traffic: some unread, some still to come.
        let cqe = 100 + random.below(2000) as u32;
        let granted = a.client.resize_cq(&mut a.cq, cqe).unwrap();
        assert!(granted >= cqe && granted < 2 * cqe);
        for _ in 0..random.below(3) {
            for entry in a.cq.poll() {
                assert_eq!((entry.wr_id, entry.status), (seen, 0));
                seen += 1;
            }
        }
    }
    for entry in a.cq.wait((posted - seen) as usize) {
        assert_eq!((entry.wr_id, entry.status), (seen, 0));
        seen += 1;
    }
    assert_eq!(seen, posted);
}

#[test]
fn a_cq_stays_armed_when_it_is_resized() {
    let daemon = start(1);
    let mut a = End::new(&daemon, 0, Kind::Shared, 64);
    let (channel, pipe) = a.client.comp_channel(a.context);
    for solicited_only in [false, true] {
        let mut cq = a.client.create_cq(a.context, 10, Some(channel));
        let mut qp = a.client.create_qp(a.pd, cq.handle, CAPS);
        cq.ring.arm(solicited_only);
        a.client.resize_cq(&mut cq, 1000).unwrap();
        assert_eq!(read_events(&pipe), []);
        // An error wakes both.
        let [init, ..] = crate::harness::attrs(a.addr, Qpn::new(1));
        a.client.modify(&qp, init).unwrap();
        qp.rq().push(1, &[]).unwrap();
        assert!(!qp.rq().publish());
        let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        a.client.modify(&qp, err).unwrap();
        assert_eq!(cq.wait(1)[0].status, FLUSHED);
        let events = read_events(&pipe);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((events[0].kind, events[0].object), (COMPLETION, cq.handle.0.into()));
    }
}

#[test]
fn a_cq_armed_for_solicited_is_woken_by_solicited_receives_and_errors_only() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 64);
    let (channel, pipe) = b.client.comp_channel(b.context);
    let mut cq = b.client.create_cq(b.context, 10, Some(channel));
    b.qp = b.client.create_qp(b.pd, cq.handle, CAPS);
    b.connect(a.addr, a.qp.created.qpn);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    a.client.modify(&a.qp, reset).unwrap();
    a.connect(b.addr, b.qp.created.qpn);

    cq.ring.arm(true);
    for solicited in [false, true] {
        b.qp.rq().push(1, &[]).unwrap();
        assert!(!b.qp.rq().publish());
        let op = SendOp::Send(Extra::None);
        let wr =
            urxe_types::SendWr { wr_id: 1, op, to: None, fence: false, signaled: true, solicited };
        a.qp.sq.push(&wr, SendData::Sges(&[])).unwrap();
        a.qp.sq.publish();
        a.client.ring(&a.qp);
        assert_eq!(a.cq.wait(1)[0].status, 0);
        assert_eq!(cq.wait(1)[0].status, 0);
        assert_eq!(read_events(&pipe).len(), usize::from(solicited));
    }
}

#[test]
fn a_size_that_makes_no_sense_is_refused_and_changes_nothing() {
    let daemon = start(1);
    let mut a = End::new(&daemon, 0, Kind::Shared, 64);
    let [init, ..] = crate::harness::attrs(a.addr, Qpn::new(1));
    a.client.modify(&a.qp, init).unwrap();
    for wr_id in 0..20 {
        a.post_recv(wr_id, &[]);
    }
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    a.client.modify(&a.qp, err).unwrap();
    for (cqe, sentence) in [
        (0, "cqe 0: expected 1 to 4194303"),
        (1 << 22, "cqe 4194304: expected 1 to 4194303"),
        (19, "cqe 19: 20 completions are unread, expected 20 to 4194303"),
    ] {
        let error = a.client.resize_cq(&mut a.cq, cqe).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL.raw_os_error());
        assert!(error.message.contains(sentence), "{error:?}");
    }
    let handle = a.cq.handle;
    let mut stranger = Client::connect(daemon.socket());
    let error = stranger.call(Request::ResizeCq { cq: handle, cqe: 100 }).unwrap_err();
    assert_eq!(error.errno, Errno::NOENT.raw_os_error());
    assert_eq!(a.client.resize_cq(&mut a.cq, 20), Ok(31));
    assert_eq!(a.cq.wait(20).last().map(|entry| entry.wr_id), Some(19));
}

#[test]
fn the_room_of_the_old_ring_is_used_again() {
    let daemon = start(1);
    let mut a = End::new(&daemon, 0, Kind::Shared, 64);
    // Twice as many as there would be room for if none was given back.
    let size = Geometry::completion(MAX_CQE).unwrap().size();
    for _ in 0..2 * MAX_RING_BYTES / u64::from(size) {
        a.client.resize_cq(&mut a.cq, MAX_CQE).unwrap();
        a.client.resize_cq(&mut a.cq, 10).unwrap();
    }
}

#[test]
fn a_scribbled_ring_is_not_resized_and_harms_no_other_program() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    for (at, nonsense) in [(CONSUMER, 5000u32), (CONSUMER, 3), (PRODUCER, u32::MAX)] {
        let mut cq = a.client.create_cq(a.context, 100, None);
        a.client.memory.write(cq.offset + at, &nonsense.to_ne_bytes()).unwrap();
        let resized = a.client.resize_cq(&mut cq, 200);
        // The producer index is ours, and what stands there is not looked at.
        assert_eq!(resized.is_ok(), at == PRODUCER, "{resized:?}");
        a.client.call(Request::DestroyCq { cq: cq.handle }).unwrap();
    }
    b.post_recv(1, &[b.mr.sge(0, 64)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 64)]);
}

#[test]
fn an_overrun_is_told_once_and_the_cq_takes_no_more() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    let mut cq = a.client.create_cq(a.context, 3, None);
    a.qp = a.client.create_qp(a.pd, cq.handle, CAPS);
    a.connect(b.addr, b.qp.created.qpn);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    b.client.modify(&b.qp, reset.clone()).unwrap();
    b.connect(a.addr, a.qp.created.qpn);
    let write = SendOp::Write { remote_addr: b.mr.addr, rkey: b.mr.rkey, imm: None };
    for wr_id in 0..8 {
        a.post_send(wr_id, write, SendData::Inline(b"x"));
    }
    eventually("the QP has failed", || (a.client.state(&a.qp) == QpState::Err).then_some(()));
    let wr_ids: Vec<u64> = cq.poll().iter().map(|entry| entry.wr_id).collect();
    assert_eq!(wr_ids, [0, 1, 2], "what was there before is unharmed");
    // There is room now, but nobody can tell what is missing.
    a.post_send(9, write, SendData::Inline(b"x"));
    a.client.modify(&a.qp, reset).unwrap();
    a.connect(b.addr, b.qp.created.qpn);
    a.post_send(10, write, SendData::Inline(b"x"));
    eventually("it fails again", || (a.client.state(&a.qp) == QpState::Err).then_some(()));
    assert_eq!(cq.poll(), []);
    let events = read_events(&a.events);
    let told = events.iter().filter(|record| record.kind == CQ_ERR);
    let told: Vec<u64> = told.map(|record| record.object).collect();
    assert_eq!(told, [u64::from(cq.handle.0)]);

    // Another size does not heal it, and whoever lists it sees what is wrong.
    a.client.resize_cq(&mut cq, 100).unwrap();
    a.client.modify(&a.qp, QpAttr { state: Some(QpState::Reset), ..QpAttr::default() }).unwrap();
    a.connect(b.addr, b.qp.created.qpn);
    a.post_send(11, write, SendData::Inline(b"x"));
    eventually("it fails again", || (a.client.state(&a.qp) == QpState::Err).then_some(()));
    assert_eq!(cq.poll(), []);
    assert_eq!(read_events(&a.events).iter().filter(|record| record.kind == CQ_ERR).count(), 0);
    let failed: Vec<bool> = a
        .client
        .resources("urxe0", ResourceKind::Cq)
        .into_iter()
        .map(|cq| matches!(cq.detail, ResourceDetail::Cq { failed: true, .. }))
        .collect();
    assert_eq!(failed, [false, true]);
}
