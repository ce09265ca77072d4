//! What the library promises by itself, whatever a daemon does: order of destruction, lists of
//! work requests, events, and what happens when the daemon dies or the program forks.

mod fake_daemon;

use fake_daemon::FakeDaemon;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use urxe_shm::control::Request;
use urxe_shm::entry::Taken;
use urxe_shm::event::{self, EventRecord};
use urxe_verbs::{
    Access, AsyncEvent, Context, Cq, Error, InitAttr, Inline, PostReason, Qp, QpCaps, QpInit,
    QpState, RecvWr, RemoteBuf, SendWr, Wc,
};

/// Long enough that nothing that works reaches it.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
const NOT_AT_ALL: Option<Duration> = Some(Duration::ZERO);

/// A QP in RTS, with room for 3 work requests of 1 entry or 16 inline bytes on either side.
fn small_qp(context: &Context, cq: &Cq) -> Qp {
    let caps = QpCaps {
        max_send_wr: 3,
        max_recv_wr: 3,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 16,
    };
    let qp = context.alloc_pd().unwrap().create_qp(&QpInit { caps, ..QpInit::new(cq) }).unwrap();
    qp.connect(&qp.endpoint().unwrap(), Access::default()).unwrap();
    qp
}

#[test]
fn objects_are_destroyed_in_order_whatever_the_order_of_drops() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let made = daemon.state.lock().unwrap().requests.len();
    // The foundations first.
    drop((context, pd, channel, cq));
    assert_eq!(daemon.state.lock().unwrap().requests.len(), made, "something is still in use");
    drop(qp);
    drop(mr);
    let order: Vec<_> = daemon.state.lock().unwrap().requests[made..]
        .iter()
        .map(|request| match request {
            Request::DestroyQp { .. } => "qp",
            Request::DestroyCq { .. } => "cq",
            Request::DestroyCompChannel { .. } => "channel",
            Request::DeregMr { .. } => "mr",
            Request::DeallocPd { .. } => "pd",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, ["qp", "cq", "channel", "mr", "pd"]);
}

#[test]
fn a_clone_keeps_its_object() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let again = pd.clone();
    drop(pd);
    let last = |daemon: &FakeDaemon| daemon.state.lock().unwrap().requests.last().cloned().unwrap();
    assert!(matches!(last(&daemon), Request::AllocPd { .. }));
    drop(again);
    assert!(matches!(last(&daemon), Request::DeallocPd { .. }));
}

#[test]
fn what_stands_before_a_bad_work_request_is_posted_and_nothing_behind_it() {
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
    let (mut sges, mut inline) = (vec![], vec![]);
    let mut take = || match fake.send_queue.take(&mut sges, &mut inline).unwrap() {
        Taken::Ready(wqe) => wqe.wr,
        other => panic!("{other:?}"),
    };
    let (write, send) = (take(), take());
    let expected = urxe_shm::entry::SendOp::Write { remote_addr: 0x7000, rkey: 9, imm: Some(7) };
    assert_eq!((write.wr_id, write.op), (1, expected));
    assert!(write.signaled && write.fence && !write.solicited);
    assert_eq!(sges, [sge]);
    assert!(send.solicited && !send.signaled);
    assert_eq!(inline, b"hello");
    let mut sges = vec![];
    let Taken::Ready(recv) = fake.recv_queue.take(&mut sges).unwrap() else { panic!() };
    assert_eq!((recv.wr_id, recv.length), (3, 16));
    assert_eq!(sges, [sge]);
}

#[test]
fn a_list_rings_once_and_wakes_only_a_sleeping_daemon() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let state = daemon.state.lock().unwrap();
    let slot = state.qps.values().next().unwrap().slot;
    let wake = state.wake.as_ref().unwrap();
    let woken = || rustix::io::read(wake, &mut [0; 8]).is_ok();
    let post = || qp.post_send(&[SendWr::send(1, Inline(b"x"))]).unwrap();

    post();
    assert_eq!(state.rung(), [slot]);
    assert!(!woken(), "it was awake");
    assert!(state.panel.as_ref().unwrap().fall_asleep());
    post();
    assert!(woken());
    post();
    assert!(!woken(), "it was woken before");
    assert_eq!(state.rung(), [slot]);
    // A receive has no doorbell.
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    assert_eq!(state.rung(), []);
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
    assert_eq!(peer.mtu, 1024);
    let last_mtu = || {
        let state = daemon.state.lock().unwrap();
        state.requests.iter().rev().find_map(|request| match request {
            Request::ModifyQp { attr, .. } => attr.path_mtu,
            _ => None,
        })
    };
    qp.connect(&urxe_verbs::QpEndpoint { mtu: 512, ..peer }, Access::default()).unwrap();
    assert_eq!(last_mtu(), Some(512));
    qp.connect(&urxe_verbs::QpEndpoint { mtu: 4096, ..peer }, Access::default()).unwrap();
    assert_eq!(last_mtu(), Some(1024));
    let rtr = urxe_verbs::RtrAttr::new(peer.qpn, peer.psn, peer.gid);
    qp.to_rtr(urxe_verbs::RtrAttr { path_mtu: Some(256), ..rtr }).unwrap();
    assert_eq!(last_mtu(), Some(256));
    qp.to_rtr(rtr).unwrap();
    assert_eq!(last_mtu(), Some(1024));
}

#[test]
fn completions_come_out_in_order_and_only_as_many_as_fit() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    for wr_id in 1..=5 {
        daemon.state.lock().unwrap().complete(token, wr_id, false);
    }
    let mut wcs = [Wc::default(); 2];
    assert_eq!(cq.poll(&mut wcs).unwrap(), 2);
    assert_eq!(wcs.map(|wc| wc.wr_id), [1, 2]);
    assert_eq!(cq.poll(&mut []).unwrap(), 0);
    let mut rest = vec![Wc::default()];
    assert_eq!(cq.poll_into(&mut rest).unwrap(), 3);
    assert_eq!(rest[1..].iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(cq.poll(&mut wcs).unwrap(), 0);
}

#[test]
fn wait_finds_completions_from_before_and_from_after_it_began() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let mut wcs = [Wc::default(); 4];
    assert_eq!(cq.wait(&mut wcs, NOT_AT_ALL).unwrap(), 0);
    daemon.state.lock().unwrap().complete(token, 1, false);
    // That one made an event, the CQ being armed still; it must not be mistaken for the next.
    assert_eq!(cq.wait(&mut wcs, PATIENCE).unwrap(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            daemon.state.lock().unwrap().complete(token, 2, false);
        });
        assert_eq!(cq.wait(&mut wcs, PATIENCE).unwrap(), 1);
        assert_eq!(wcs[0].wr_id, 2);
    });
    assert_eq!(cq.wait(&mut wcs, Some(Duration::from_millis(5))).unwrap(), 0);
    let unheard = context.create_cq(8, None).unwrap();
    assert!(unheard.wait(&mut wcs, PATIENCE).unwrap_err().to_string().contains("channel"));
}

#[test]
fn threads_that_share_a_channel_each_wake_for_their_own_queue() {
    const ROUNDS: u64 = 200;
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    std::thread::scope(|scope| {
        let state = &daemon.state;
        let queues: Vec<_> = (0..3)
            .map(|_| {
                let cq = context.create_cq(8, Some(&channel)).unwrap();
                let (say, hear) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut wcs = [Wc::default()];
                        assert_eq!(cq.wait(&mut wcs, PATIENCE).unwrap(), 1, "nobody woke us");
                        assert_eq!(wcs[0].wr_id, round);
                        say.send(()).unwrap();
                    }
                });
                hear
            })
            .collect();
        let mut tokens: Vec<_> = state.lock().unwrap().cqs.values().map(|cq| cq.token).collect();
        tokens.sort_unstable();
        for round in 0..ROUNDS {
            for &token in &tokens {
                state.lock().unwrap().complete(token, round, false);
            }
            for hear in &queues {
                hear.recv().unwrap();
            }
        }
    });
}

#[test]
fn a_channel_names_the_queue_and_forgets_those_that_are_gone() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let kept = context.create_cq(8, Some(&channel)).unwrap();
    let kept_token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let lost = context.create_cq(8, Some(&channel)).unwrap();
    let tokens: Vec<_> = daemon.state.lock().unwrap().cqs.values().map(|cq| cq.token).collect();
    let lost_token = tokens.into_iter().find(|&token| token != kept_token).unwrap();

    lost.req_notify(false).unwrap();
    kept.req_notify(true).unwrap();
    daemon.state.lock().unwrap().complete(lost_token, 1, false);
    daemon.state.lock().unwrap().complete(kept_token, 1, false);
    drop(lost);
    assert!(channel.wait(NOT_AT_ALL).unwrap().is_none(), "only solicited events were asked for");
    daemon.state.lock().unwrap().complete(kept_token, 2, true);
    assert!(channel.wait(PATIENCE).unwrap() == Some(kept));
    assert!(channel.wait(NOT_AT_ALL).unwrap().is_none());
}

#[test]
fn asynchronous_events_name_their_object() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let say = |user_handle, kind| {
        let record = EventRecord { user_handle, kind, ..Default::default() };
        let state = daemon.state.lock().unwrap();
        rustix::io::write(state.async_events.as_ref().unwrap(), &record.to_bytes()).unwrap();
    };
    let token = daemon.state.lock().unwrap().qps.values().next().unwrap().token;
    assert!(context.async_event(NOT_AT_ALL).unwrap().is_none());
    // Of an object that never was, of a kind that nobody knows, and then one that counts.
    say(999, event::QP_FATAL);
    say(token, 12345);
    say(token, event::QP_ACCESS_ERR);
    let event = context.async_event(PATIENCE).unwrap().unwrap();
    assert!(matches!(event, AsyncEvent::QpAccessError(of) if of == qp));
    say(1, event::PORT_ERR);
    let event = context.async_event(PATIENCE).unwrap().unwrap();
    assert!(matches!(event, AsyncEvent::PortError(1)));
    assert!(context.async_event(NOT_AT_ALL).unwrap().is_none());
    assert!(context.async_fd().as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_dead_daemon_is_an_error_everywhere_after_its_last_completions() {
    let mut daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    qp.post_send(&[SendWr::send(1, Inline(b"x"))]).unwrap();
    daemon.state.lock().unwrap().complete_sends();
    daemon.kill();

    let mut wcs = [Wc::default(); 4];
    assert_eq!(cq.poll(&mut wcs).unwrap(), 1, "what it has completed is completed");
    // By polling alone, without another call that would notice.
    let error = (0..1_000_000).find_map(|_| cq.poll(&mut wcs).err()).expect("nobody noticed");
    assert!(matches!(error, Error::DaemonGone { .. }));
    assert!(error.to_string().contains("urxe-verbs-fake"), "{error}");
    assert!(cq.poll(&mut wcs).is_err(), "and it stays so");
    let reason = qp.post_send(&[SendWr::send(1, Inline(b"x"))]).unwrap_err().reason;
    assert!(matches!(reason, PostReason::DaemonGone { .. }));
    assert!(matches!(qp.query(), Err(Error::DaemonGone { .. })));
    assert!(matches!(context.alloc_pd(), Err(Error::DaemonGone { .. })));
    assert!(matches!(context.async_event(None), Err(Error::DaemonGone { .. })));
}

#[test]
fn a_full_queue_of_a_dead_daemon_says_that_it_is_dead() {
    let mut daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    daemon.kill();
    let post = || qp.post_send(&[SendWr::send(1, Inline(b"x"))]);
    let error = (0..4).find_map(|_| post().err()).unwrap();
    assert!(matches!(error.reason, PostReason::DaemonGone { .. }), "{error}");
}

#[test]
fn the_death_of_the_daemon_wakes_those_who_wait() {
    let mut daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    std::thread::scope(|scope| {
        let waits: [_; 3] = [
            scope.spawn(|| cq.wait(&mut [Wc::default()], None).map(drop)),
            scope.spawn(|| channel.wait(None).map(drop)),
            scope.spawn(|| context.async_event(None).map(drop)),
        ];
        std::thread::sleep(Duration::from_millis(20));
        daemon.kill();
        for wait in waits {
            assert!(matches!(wait.join().unwrap(), Err(Error::DaemonGone { .. })));
        }
    });
}

#[test]
fn a_fork_cannot_touch_its_parents_objects() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    let qp = small_qp(&context, &cq);
    let mr = qp.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    // SAFETY: the child uses only what is promised to work in one, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked { .. }));
        let right = [
            forked(context.alloc_pd().map(drop)),
            forked(qp.to_error()),
            forked(cq.poll(&mut [Wc::default()]).map(drop)),
            forked(cq.req_notify(false)),
            forked(cq.wait(&mut [Wc::default()], None).map(drop)),
            forked(channel.wait(None).map(drop)),
            forked(context.async_event(None).map(drop)),
            qp.post_send(&[SendWr::send(1, Inline(b"x"))])
                .is_err_and(|error| error.reason == PostReason::Forked),
            qp.post_recv(&[RecvWr::new(1, &[])])
                .is_err_and(|error| error.reason == PostReason::Forked),
        ];
        drop((context, channel, cq, qp, mr));
        let wrong = right.iter().position(|&right| !right);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(wrong.map_or(0, |index| index as i32 + 1)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    // And the parent's are as they were.
    qp.post_send(&[SendWr::send(1, Inline(b"x"))]).unwrap();
    assert_eq!(daemon.state.lock().unwrap().complete_sends(), [1]);
    assert_eq!(cq.poll(&mut [Wc::default()]).unwrap(), 1);
    context.alloc_pd().unwrap();
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let (one, two) = (FakeDaemon::start(), FakeDaemon::start());
    let (here, there) = (one.open(), two.open());
    let channel = there.create_comp_channel().unwrap();
    assert!(matches!(here.create_cq(8, Some(&channel)), Err(Error::ForeignObject { .. })));
    let cq = there.create_cq(8, None).unwrap();
    let error = here.alloc_pd().unwrap().create_qp(&QpInit::new(&cq)).unwrap_err();
    assert!(matches!(error, Error::ForeignObject { .. }), "{error}");
}

#[test]
fn a_refusal_carries_the_daemons_words() {
    let daemon = FakeDaemon::start();
    let error = daemon.open().query_device().unwrap_err();
    assert_eq!(error.errno(), libc::ENOSYS);
    assert!(
        error.to_string().starts_with("query_device failed: the fake daemon has no"),
        "{error}"
    );
}

#[test]
fn no_daemon_is_an_error_that_names_the_socket() {
    let options = urxe_verbs::OpenOptions::new().socket("/nonexistent/urxed.sock");
    let error = Context::open(&options).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/urxed.sock"), "{error}");
    assert_eq!(error.errno(), libc::ENOENT);
}

#[test]
fn memory_is_reached_by_copies_and_atomics_within_its_bounds() {
    let daemon = FakeDaemon::start();
    let pd = daemon.open().alloc_pd().unwrap();
    let mr = pd.alloc_mr(24, Access::LOCAL_WRITE).unwrap();
    let bytes = |offset, len| {
        let mut buf = vec![0xa5; len];
        mr.read_at(offset, &mut buf).map(|()| buf)
    };
    assert_eq!(bytes(0, 24).unwrap(), [0; 24]);
    mr.write_at(21, b"end").unwrap();
    mr.fill(..2, 7).unwrap();
    assert_eq!(bytes(0, 3).unwrap(), [7, 7, 0]);
    assert_eq!(bytes(21, 3).unwrap(), b"end");
    for outside in [
        mr.write_at(22, b"end"),
        mr.write_at(usize::MAX, b"end"),
        mr.fill(20..25, 0),
        bytes(24, 1).map(drop),
        mr.atomic_u64(17).map(drop),
        mr.sge(0..25).map(drop),
        mr.remote_buf(25..).map(drop),
    ] {
        assert!(matches!(outside, Err(Error::OutOfBounds { size: 24, .. })), "{outside:?}");
    }
    mr.atomic_u64(8).unwrap().store(0x0102, Ordering::Release);
    assert_eq!(bytes(8, 8).unwrap(), 0x0102u64.to_ne_bytes());
    assert!(matches!(mr.atomic_u64(4), Err(Error::Misaligned { offset: 4 })));

    let sge = mr.sge(8..).unwrap();
    assert_eq!((sge.addr, sge.length, sge.lkey), (mr.addr() + 8, 16, mr.lkey()));
    let remote = mr.remote_buf(..=7).unwrap();
    assert_eq!((remote.addr, remote.len, remote.rkey), (mr.addr(), 8, mr.rkey()));
    assert!(pd.alloc_mr(0, Access::default()).is_err());
}

#[test]
fn memory_from_elsewhere_is_checked_and_not_written_without_the_right() {
    let daemon = FakeDaemon::start();
    let pd = daemon.open().alloc_pd().unwrap();
    let mut buf = vec![1u8; 8192];
    // SAFETY: `buf` outlives the region, and is touched only through it meanwhile.
    let mr = unsafe { pd.reg_mr(buf.as_mut_ptr(), buf.len(), Access::REMOTE_READ) }.unwrap();
    assert!(mr.write_at(0, &[9]).unwrap_err().to_string().contains("LOCAL_WRITE"));
    assert!(mr.fill(.., 9).is_err() && mr.atomic_u64(0).is_err());
    let mut first = [0];
    mr.read_at(0, &mut first).unwrap();
    drop(mr);
    // SAFETY: as above.
    let mr = unsafe { pd.reg_mr(buf.as_mut_ptr(), buf.len(), Access::LOCAL_WRITE) }.unwrap();
    mr.write_at(8191, &[9]).unwrap();
    drop(mr);
    assert_eq!((first[0], buf[8191]), (1, 9));
    // SAFETY: nothing is there, which is what registering has to find out.
    let nowhere = unsafe { pd.reg_mr(std::ptr::without_provenance_mut(64), 64, Access::default()) };
    assert!(matches!(nowhere, Err(Error::Memory(_))));
    // SAFETY: as above.
    let null = unsafe { pd.reg_mr(std::ptr::null_mut(), 64, Access::default()) };
    assert!(null.unwrap_err().to_string().contains("null"));
}
