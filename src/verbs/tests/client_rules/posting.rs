//! Lists of work requests, doorbells and states.

use crate::fake_daemon::{FakeDaemon, State};
use crate::small_qp;
use std::sync::mpsc::{TryRecvError, channel};
use urxe_shm::control::Request;
use urxe_shm::ring::entry::Taken;
use urxe_types::{RecvWqe, Rkey, SendOp, SendWqe};
use urxe_verbs::{
    Access, InitAttr, Inline, PathMtu, PostReason, QpInit, QpState, RecvWr, RemoteBuf, SendWr, Wc,
};

#[test]
fn requests_before_a_bad_one_are_posted_and_none_behind_it() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let send = |wr_id| SendWr::send(wr_id, Inline(b"fits"));
    let error = qp.post_send(&[send(1), SendWr::send(2, Inline(&[0; 17])), send(3)]).unwrap_err();
    assert_eq!((error.posted, error.wr_id), (1, 2));
    assert!(error.to_string().contains("17 bytes of inline data"), "{error}");
    assert_eq!(daemon.state.lock().unwrap().complete_sends(), [1]);

    let error = qp.post_send(&[send(4), send(5), send(6), send(7), send(8)]).unwrap_err();
    assert_eq!((error.posted, error.wr_id), (3, 7));
    assert_eq!(error.reason, PostReason::QueueFull { capacity: 3 });
    assert_eq!(error.errno(), libc::ENOMEM);
    assert_eq!(daemon.state.lock().unwrap().complete_sends(), [4, 5, 6]);

    let recv = |wr_id| RecvWr::new(wr_id, &[]);
    let error = qp.post_recv(&[recv(1), recv(2), recv(3), recv(4)]).unwrap_err();
    assert_eq!((error.posted, error.wr_id), (3, 4));
    qp.post_send(&[]).unwrap();
    qp.post_recv(&[]).unwrap();
}

#[test]
fn the_daemon_finds_what_was_posted() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let mr = qp.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let remote = RemoteBuf { addr: 0x7000, rkey: 9, len: 64 };
    let sge = mr.sge(8..24).unwrap();
    qp.post_send(&[SendWr::write_imm(1, &[sge], remote, 7).signaled().fence()]).unwrap();
    qp.post_send(&[SendWr::send(2, Inline(b"hello")).solicited()]).unwrap();
    qp.post_recv(&[RecvWr::new(3, &[sge])]).unwrap();

    let mut state = daemon.state.lock().unwrap();
    let fake = state.qps.values_mut().next().unwrap();
    let mut take = || {
        let mut wqe = SendWqe::default();
        assert_eq!(fake.send_queue.take(&mut wqe, &mut vec![]), Ok(Taken::Ready));
        wqe
    };
    let (write, send) = (take(), take());
    let expected = SendOp::Write { remote_addr: 0x7000, rkey: Rkey(9), imm: Some(7) };
    assert_eq!((write.wr.wr_id, write.wr.op), (1, expected));
    assert!(write.wr.signaled && write.wr.fence && !write.wr.solicited);
    assert_eq!(write.sges, [sge]);
    assert!(send.wr.solicited && !send.wr.signaled);
    assert_eq!(send.inline.as_deref(), Some(&b"hello"[..]));
    let mut recv = RecvWqe::default();
    assert_eq!(fake.recv_queue.as_mut().unwrap().take(&mut recv), Ok(Taken::Ready));
    assert_eq!(recv, RecvWqe { wr_id: 3, sges: vec![sge] });
}

#[test]
fn a_list_rings_once_and_wakes_only_a_sleeping_daemon() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let mut state = daemon.state.lock().unwrap();
    let slot = state.qps.values().next().unwrap().slot;
    let wake = state.wake.as_ref().unwrap().try_clone().unwrap();
    let woken = || {
        let mut times = [0; 8];
        rustix::io::read(&wake, &mut times).map_or(0, |_| u64::from_ne_bytes(times))
    };
    let post_list = |state: &mut State| {
        qp.post_send(&[1, 2, 3].map(|wr_id| SendWr::send(wr_id, Inline(b"x")))).unwrap();
        assert_eq!(state.complete_sends(), [1, 2, 3]);
        assert_eq!(cq.poll(&mut [Wc::default(); 4]).unwrap(), 3);
    };

    post_list(&mut state);
    assert_eq!(state.rung(), [slot]);
    assert_eq!(woken(), 0, "it was awake");
    assert!(state.doorbells.as_ref().unwrap().fall_asleep());
    post_list(&mut state);
    assert_eq!(woken(), 1);
    post_list(&mut state);
    assert_eq!(woken(), 0, "it was woken before");
    assert_eq!(state.rung(), [slot]);
    // A receive has no doorbell.
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    assert_eq!(state.rung(), []);

    // Rung a second time, one that sleeps again at once would be woken a second time.
    let doorbells = state.doorbells.take().unwrap();
    std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        scope.spawn(move || {
            while ended.try_recv() == Err(TryRecvError::Empty) {
                doorbells.take(u32::MAX, |_| ());
                let _ = doorbells.fall_asleep();
            }
        });
        let mut lists = 0;
        while lists < 200 {
            post_list(&mut state);
            match woken() {
                // It does not sleep yet.
                0 => std::thread::yield_now(),
                times => {
                    assert_eq!(times, 1);
                    lists += 1;
                }
            }
        }
        drop(end);
    });
}

#[test]
fn receives_ring_the_doorbell_in_the_error_state() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    qp.to_error().unwrap();
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    let state = daemon.state.lock().unwrap();
    assert_eq!(state.rung(), [state.qps.values().next().unwrap().slot]);
}

#[test]
fn a_queue_pair_takes_work_only_in_the_right_states() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(&QpInit::new(&cq)).unwrap();
    let peer = qp.endpoint().unwrap();
    let send = || qp.post_send(&[SendWr::send(1, Inline(b"x"))]);
    let recv = || qp.post_recv(&[RecvWr::new(2, &[])]);

    let error = recv().unwrap_err();
    assert_eq!(
        error.to_string(),
        "work request 2 (number 0 of the list, from 0) was not posted: the QP is in RESET, \
         expected any other state"
    );
    qp.to_init(InitAttr::new(Access::default())).unwrap();
    recv().unwrap();
    let refused = |state| {
        let reason = send().unwrap_err().reason;
        assert!(matches!(reason, PostReason::State { state: at, .. } if at == state), "{reason}");
    };
    refused(QpState::Init);
    qp.to_rtr(urxe_verbs::RtrAttr::new(peer.qpn, peer.psn, peer.gid)).unwrap();
    recv().unwrap();
    refused(QpState::Rtr);
    qp.to_rts(urxe_verbs::RtsAttr::new(peer.psn)).unwrap();
    send().unwrap();
    qp.to_error().unwrap();
    send().unwrap();
    qp.to_reset().unwrap();
    refused(QpState::Reset);
}

#[test]
fn a_reset_empties_the_queues() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let fill = || {
        qp.post_send(&[1, 2, 3].map(|wr_id| SendWr::send(wr_id, Inline(b"x")))).unwrap();
        qp.post_recv(&[1, 2, 3].map(|wr_id| RecvWr::new(wr_id, &[]))).unwrap();
    };
    fill();
    qp.to_reset().unwrap();
    qp.connect(&qp.endpoint().unwrap(), Access::default()).unwrap();
    assert_eq!(daemon.state.lock().unwrap().complete_sends(), []);
    fill();
    assert_eq!(daemon.state.lock().unwrap().complete_sends(), [1, 2, 3]);
}

#[test]
fn to_rtr_takes_the_mtu_of_the_port_and_connect_the_smaller_one() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let peer = qp.endpoint().unwrap();
    assert_eq!(peer.mtu, PathMtu::Mtu1024);
    let last_mtu = || {
        let state = daemon.state.lock().unwrap();
        state.requests.iter().rev().find_map(|request| match request {
            Request::ModifyQp { attr, .. } => attr.path_mtu,
            _ => None,
        })
    };
    qp.connect(&urxe_verbs::QpEndpoint { mtu: PathMtu::Mtu512, ..peer }, Access::default())
        .unwrap();
    assert_eq!(last_mtu(), Some(PathMtu::Mtu512));
    qp.connect(&urxe_verbs::QpEndpoint { mtu: PathMtu::Mtu4096, ..peer }, Access::default())
        .unwrap();
    assert_eq!(last_mtu(), Some(PathMtu::Mtu1024));
    let rtr = urxe_verbs::RtrAttr::new(peer.qpn, peer.psn, peer.gid);
    qp.to_rtr(urxe_verbs::RtrAttr { path_mtu: Some(PathMtu::Mtu256), ..rtr }).unwrap();
    assert_eq!(last_mtu(), Some(PathMtu::Mtu256));
    qp.to_rtr(rtr).unwrap();
    assert_eq!(last_mtu(), Some(PathMtu::Mtu1024));
}
