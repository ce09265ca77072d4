//! SRQs: many QPs, one queue; its limit, its size, and its end.

use crate::harness::{Client, End, Kind, Random, Srq, eventually, read_events, start};
use rustix::io::Errno;
use urxe_daemon::Handle;
use urxe_shm::control::event::{LAST_WQE_REACHED, SRQ_ERR, SRQ_LIMIT};
use urxe_shm::control::{Reply, Request, ResourceDetail, ResourceKind};
use urxe_types::{Extra, QpAttr, QpState, QpType, SendData, SendOp};

const FLUSHED: u32 = 5;

const PRODUCER: u64 = 128;

const SEND: SendOp = SendOp::Send(Extra::None);

/// A program with an SRQ and so many QPs that use it, each connected to a program of its own.
fn shared(first: &Handle, second: &Handle, peers: usize, max_wr: u32) -> (Vec<End>, End, Srq) {
    let mut b = End::new(second, 0, Kind::Shared, 1 << 16);
    let srq = b.client.create_srq(b.pd, max_wr);
    let mut ends = Vec::new();
    for _ in 0..peers {
        let mut a = End::new(first, 0, Kind::Shared, 1 << 16);
        b.qp = b.client.create_qp_of(b.pd, b.cq.handle, QpType::Rc, Some(srq.handle)).unwrap();
        assert_eq!(b.qp.created.recv_ring, None);
        assert_eq!((b.qp.created.caps.max_recv_wr, b.qp.created.caps.max_recv_sge), (0, 0));
        a.connect(b.addr, b.qp.created.qpn);
        b.connect(a.addr, a.qp.created.qpn);
        ends.push(a);
    }
    (ends, b, srq)
}

fn to_state(end: &mut End, state: QpState) {
    let attr = QpAttr { state: Some(state), ..QpAttr::default() };
    end.client.modify(&end.qp, attr).unwrap();
}

#[test]
fn many_qps_take_from_one_queue_in_the_order_of_posting() {
    let (first, second) = (start(1), start(1));
    let (mut ends, mut b, mut srq) = shared(&first, &second, 3, 50);
    for wr_id in 0..50 {
        srq.post(wr_id, &[b.mr.sge(wr_id as usize * 100, 100)]);
    }
    let mut random = Random::new(5);
    for wr_id in 0..50 {
        let sender = random.below(3) as usize;
        let data = random.bytes(1 + wr_id as usize);
        ends[sender].mr.write(0, &data);
        let sge = ends[sender].mr.sge(0, data.len());
        ends[sender].exchange(SEND, &[sge]);
        let received = b.cq.wait(1)[0];
        assert_eq!((received.status, received.wr_id), (0, wr_id));
        assert_eq!(received.src_qp, ends[sender].qp.created.qpn.get());
        assert_eq!(b.mr.read(wr_id as usize * 100, data.len()), data);
    }
}

#[test]
fn the_limit_is_told_once_each_time_it_is_armed() {
    let (first, second) = (start(1), start(1));
    let (mut ends, mut b, mut srq) = shared(&first, &second, 1, 20);
    let a = &mut ends[0];
    let limits = |b: &End| {
        let events = read_events(&b.events);
        assert!(events.iter().all(|e| (e.kind, e.user_handle) == (SRQ_LIMIT, 0x5c)), "{events:?}");
        events.len()
    };
    for wr_id in 0..10 {
        srq.post(wr_id, &[]);
    }
    let mut take = |b: &mut End| {
        a.exchange(SEND, &[]);
        b.cq.wait(1);
    };
    assert_eq!(b.client.modify_srq(&mut srq, None, Some(8)).unwrap().limit, 8);
    take(&mut b);
    take(&mut b);
    assert_eq!(limits(&b), 0, "8 are left, which is not fewer");
    take(&mut b);
    assert_eq!(limits(&b), 1);
    let Ok(Reply::SrqAttr(attr)) = b.client.call(Request::QuerySrq { srq: srq.handle }) else {
        panic!()
    };
    assert_eq!((attr.limit, attr.max_wr), (0, 31), "it is disarmed");
    take(&mut b);
    assert_eq!(limits(&b), 0);
    // Below already: at once.
    assert_eq!(b.client.modify_srq(&mut srq, None, Some(20)).unwrap().limit, 0);
    assert_eq!(limits(&b), 1);
    b.client.modify_srq(&mut srq, None, Some(5)).unwrap();
    b.client.modify_srq(&mut srq, None, Some(0)).unwrap();
    take(&mut b);
    take(&mut b);
    assert_eq!(limits(&b), 0);

    let refused = b.client.modify_srq(&mut srq, None, Some(32)).unwrap_err();
    assert_eq!(refused.errno, Errno::INVAL.raw_os_error());
    assert!(refused.message.contains("srq_limit 32: expected at most 31"), "{refused:?}");
}

#[test]
fn a_limit_given_from_the_beginning_waits_for_receives_to_be_taken() {
    let (first, second) = (start(1), start(1));
    let mut b = End::new(&second, 0, Kind::Shared, 64);
    let attr = urxe_shm::control::SrqAttr { max_wr: 7, max_sge: 1, limit: 2 };
    let request = Request::CreateSrq { pd: b.pd, attr, user_handle: 1 };
    let Ok(Reply::Srq { attr, .. }) = b.client.call(request) else { panic!() };
    assert_eq!(attr.limit, 2);
    assert_eq!(read_events(&b.events), []);
    drop(first);
}

#[test]
fn a_resized_srq_keeps_what_is_posted_and_goes_on() {
    let (first, second) = (start(1), start(1));
    let (mut ends, mut b, mut srq) = shared(&first, &second, 1, 100);
    let a = &mut ends[0];
    let mut random = Random::new(8);
    let (mut posted, mut taken) = (0, 0);
    for _ in 0..100 {
        for _ in 0..random.below(8) {
            if posted - taken < 60 {
                srq.post(posted, &[b.mr.sge(posted as usize % 100, 64)]);
                posted += 1;
            }
        }
        let max_wr = 60 + random.below(500) as u32;
        let attr = b.client.modify_srq(&mut srq, Some(max_wr), None).unwrap();
        assert!(attr.max_wr >= max_wr && attr.max_sge == 4);
        for _ in 0..random.below(6).min(posted - taken) {
            a.exchange(SEND, &[a.mr.sge(0, 64)]);
            let received = b.cq.wait(1)[0];
            assert_eq!((received.status, received.wr_id), (0, taken));
            taken += 1;
        }
    }
    let left = (posted - taken) as u32;
    assert!(left > 0 && taken > 50, "{posted} posted, {taken} taken");
    let listed = b.client.resources("urxe0", ResourceKind::Srq);
    assert_eq!(listed[0].number, srq.number);
    let expected = ResourceDetail::Srq { max_wr: srq.attr.max_wr, posted: left, limit: 0, qps: 1 };
    assert_eq!(listed[0].detail, expected);

    for (max_wr, limit, sentence) in [
        (0, None, "max_wr 0: expected 1 to"),
        (1 << 20, None, "max_wr 1048576: expected 1 to"),
        (100, Some(128), "srq_limit 128: expected at most 127"),
    ] {
        let refused = b.client.modify_srq(&mut srq, Some(max_wr), limit).unwrap_err();
        assert!(refused.message.contains(sentence), "{refused:?}");
    }
    while posted - taken < 10 {
        srq.post(posted, &[]);
        posted += 1;
    }
    let refused = b.client.modify_srq(&mut srq, Some(3), None).unwrap_err();
    assert!(refused.message.contains("receives are posted"), "{refused:?}");
    a.exchange(SEND, &[]);
    assert_eq!(b.cq.wait(1)[0].wr_id, taken);
}

#[test]
fn a_qp_that_fails_says_that_it_takes_no_more_once_and_after_its_last_completion() {
    let (first, second) = (start(1), start(1));
    let (mut ends, mut b, mut srq) = shared(&first, &second, 2, 20);
    for wr_id in 0..5 {
        srq.post(wr_id, &[b.mr.sge(0, 64)]);
    }
    ends[1].exchange(SEND, &[]);
    b.cq.wait(1);
    b.post_send(7, SEND, SendData::Inline(b"x"));
    to_state(&mut b, QpState::Err);
    b.cq.wait(1);
    to_state(&mut b, QpState::Err);
    b.post_send(8, SEND, SendData::Inline(b"x"));
    assert_eq!(b.cq.wait(1)[0].status, FLUSHED);
    let events = read_events(&b.events);
    let last: Vec<_> = events.iter().filter(|event| event.kind == LAST_WQE_REACHED).collect();
    assert_eq!(last.len(), 1, "{events:?}");
    assert_eq!(last[0].object, u64::from(b.qp.created.qp.0));
    // The receives are still there, for the other QP.
    ends[0].exchange(SEND, &[]);
    assert_eq!(b.cq.wait(1)[0].wr_id, 1);
}

#[test]
fn a_scribbled_srq_is_told_once_and_harms_no_other_program() {
    let (first, second) = (start(1), start(1));
    let (mut ends, mut b, srq) = shared(&first, &second, 2, 20);
    let (mut others, mut witness, mut witness_srq) = shared(&first, &second, 1, 20);
    b.client.memory.write(srq.offset + PRODUCER, &0xdead_beefu32.to_ne_bytes()).unwrap();
    for end in &mut ends {
        end.post_send(1, SEND, SendData::Sges(&[]));
    }
    eventually("both senders know", || {
        let ended = ends.iter_mut().all(|end| end.client.state(&end.qp) == QpState::Err);
        ended.then_some(())
    });
    let events = read_events(&b.events);
    let told: Vec<_> = events.iter().filter(|event| event.kind == SRQ_ERR).collect();
    assert_eq!(told.len(), 1, "{events:?}");
    assert_eq!((told[0].user_handle, told[0].object), (0x5c, srq.handle.0.into()));
    assert_eq!(b.client.counter("urxe0", "broken_receive_queues"), 1);

    witness_srq.post(3, &[]);
    others[0].exchange(SEND, &[]);
    assert_eq!(witness.cq.wait(1)[0].wr_id, 3);
}

/// SHARE-133: the program says that it has posted as many as can be.
#[test]
fn an_srq_with_more_receives_than_are_moved_at_a_time_is_not_resized() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let mut srq = client.create_srq(pd, 100_000);
    let posted = srq.attr.max_wr;
    client.memory.write(srq.offset + PRODUCER, &posted.to_ne_bytes()).unwrap();
    let error = client.modify_srq(&mut srq, Some(posted), None).unwrap_err();
    assert_eq!(error.errno, Errno::BUSY.raw_os_error(), "{error}");
    assert!(error.message.contains(&posted.to_string()), "{error}");
    let Reply::SrqAttr(attr) = client.call(Request::QuerySrq { srq: srq.handle }).unwrap() else {
        panic!()
    };
    assert_eq!(attr, srq.attr);
}

#[test]
fn random_entries_and_death_in_an_srq_harm_no_other_program() {
    let (first, second) = (start(1), start(1));
    let (mut others, mut witness, mut witness_srq) = shared(&first, &second, 1, 20);
    let mut random = Random::new(12);
    for round in 0..20 {
        let (mut ends, b, srq) = shared(&first, &second, 2, 31);
        for slot in 0..31 {
            let at = srq.offset + 384 + slot * 128;
            let mut bytes = random.bytes(128);
            bytes[28..32].copy_from_slice(&(random.below(6) as u32).to_ne_bytes());
            b.client.memory.write(at, &bytes).unwrap();
        }
        b.client.memory.write(srq.offset + PRODUCER, &31u32.to_ne_bytes()).unwrap();
        for end in &mut ends {
            for wr_id in 0..20 {
                end.post_send(wr_id, SEND, SendData::Inline(b"anybody?"));
            }
        }
        for _ in 0..random.below(100) {
            std::thread::yield_now();
        }
        if round % 2 == 0 {
            drop(b);
        } else {
            drop(ends);
        }
        witness_srq.post(round, &[]);
        others[0].exchange(SEND, &[]);
        assert_eq!(witness.cq.wait(1)[0].wr_id, round);
    }
    eventually("all are buried", || {
        (witness.client.resources("urxe0", ResourceKind::Srq).len() == 1).then_some(())
    });
}
