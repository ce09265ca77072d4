//! What the library promises by itself, whatever a daemon does: order of destruction, lists of
//! work requests, events, and what happens when the daemon dies or the program forks.

mod completion_queues;
mod connections;
mod datagrams;
#[path = "../fake_daemon/mod.rs"]
mod fake_daemon;
mod memory_windows;
mod posting;
mod shared_receives;

use fake_daemon::FakeDaemon;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use urxe_shm::control::Request;
use urxe_shm::control::event;
use urxe_verbs::{
    Access, AsyncEvent, Context, Cq, Error, Inline, PostReason, Qp, QpCaps, QpInit, RecvWr, SendWr,
    Wc,
};

/// Long enough that nothing that works reaches it.
const WAIT: Option<Duration> = Some(Duration::from_secs(20));
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
            Request::CloseDevice { .. } => "context",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, ["qp", "cq", "channel", "mr", "pd", "context"]);
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
fn asynchronous_events_name_their_object() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let srq = qp.pd().create_srq(&Default::default()).unwrap();
    let say = |user_handle, kind| daemon.state.lock().unwrap().say(user_handle, kind);
    let next = || context.async_event(WAIT).unwrap().unwrap();
    let token = daemon.state.lock().unwrap().qps.values().next().unwrap().token;
    let srq_token = daemon.state.lock().unwrap().srqs.values().next().unwrap().token;
    assert!(context.async_event(NOT_AT_ALL).unwrap().is_none());
    // Of an object that never was, of a kind that nobody knows, and then one that counts.
    say(999, event::QP_FATAL);
    say(token, 12345);
    say(token, event::QP_ACCESS_ERR);
    assert!(matches!(next(), AsyncEvent::QpAccessError(of) if of == qp));
    say(token, event::LAST_WQE_REACHED);
    assert!(matches!(next(), AsyncEvent::LastWqeReached(of) if of == qp));
    say(srq_token, event::SRQ_LIMIT);
    assert!(matches!(next(), AsyncEvent::SrqLimit(of) if of == srq));
    say(srq_token, event::SRQ_ERR);
    assert!(matches!(next(), AsyncEvent::SrqError(of) if of == srq));
    for (kind, number) in [(event::PORT_ERR, 1), (event::PORT_ACTIVE, 1), (event::GID_CHANGE, 1)] {
        say(number, kind);
    }
    assert!(matches!(next(), AsyncEvent::PortError(1)));
    assert!(matches!(next(), AsyncEvent::PortActive(1)));
    assert!(matches!(next(), AsyncEvent::GidChange(1)));
    assert!(context.async_event(NOT_AT_ALL).unwrap().is_none());
    assert!(context.async_fd().as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn events_of_objects_that_are_gone_are_never_seen() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let srq = qp.pd().create_srq(&Default::default()).unwrap();
    let state = daemon.state.lock().unwrap();
    state.say(state.qps.values().next().unwrap().token, event::QP_FATAL);
    state.say(state.srqs.values().next().unwrap().token, event::SRQ_LIMIT);
    state.say(state.cqs.values().next().unwrap().token, event::CQ_ERR);
    drop(state);
    drop((qp, srq));
    let left = context.async_event(WAIT).unwrap().unwrap();
    assert!(matches!(left, AsyncEvent::CqError(of) if of == cq));
    assert!(context.async_event(NOT_AT_ALL).unwrap().is_none());
}

#[test]
fn objects_of_a_device_are_listed_page_by_page() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let all = context.resources(urxe_verbs::ResourceKind::Cq).unwrap();
    assert_eq!(all.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_hole_in_the_gid_table_is_no_gid() {
    let daemon = FakeDaemon::start();
    let gids = ["192.0.2.1", "::", "fe80::1"].map(|text| text.parse().unwrap());
    daemon.state.lock().unwrap().gids = gids.to_vec();
    let context = daemon.open();
    assert_eq!(context.gids(1).unwrap(), [(0, gids[0]), (2, gids[2])]);
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
fn a_program_that_polls_seldom_notices_a_dead_daemon_too() {
    let mut daemon = FakeDaemon::start();
    let cq = daemon.open().create_cq(8, None).unwrap();
    let poll = || cq.poll(&mut [Wc::default()]);
    assert_eq!(poll().unwrap(), 0);
    daemon.kill();
    let error = (0..20).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        poll().err()
    });
    assert!(matches!(error, Some(Error::DaemonGone { .. })), "{error:?}");
}

#[test]
fn a_full_queue_of_a_dead_daemon_says_that_it_is_dead() {
    let mut daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    daemon.kill();
    let says_so = (0..2000).any(|_| match qp.post_send(&[SendWr::send(1, Inline(b"x"))]) {
        Ok(()) => false,
        Err(error) => {
            // A child that another test forks has the daemon's sockets for a moment.
            std::thread::sleep(Duration::from_millis(1));
            matches!(error.reason, PostReason::DaemonGone { .. })
        }
    });
    assert!(says_so);
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
    let srq = qp.pd().create_srq(&Default::default()).unwrap();
    let before = daemon.state.lock().unwrap().requests.len();
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
            forked(cq.resize(100)),
            forked(srq.modify(None, Some(1))),
            srq.post_recv(&[RecvWr::new(1, &[])])
                .is_err_and(|error| error.reason == PostReason::Forked),
            qp.post_send(&[SendWr::send(1, Inline(b"x"))])
                .is_err_and(|error| error.reason == PostReason::Forked),
            qp.post_recv(&[RecvWr::new(1, &[])])
                .is_err_and(|error| error.reason == PostReason::Forked),
        ];
        drop((context, channel, cq, qp, mr, srq));
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
    let _pd = context.alloc_pd().unwrap();
    // What the child had asked would have come first.
    let requests = daemon.state.lock().unwrap().requests[before..].to_vec();
    assert!(matches!(requests[..], [Request::AllocPd { .. }]), "{requests:?}");
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let (one, two) = (FakeDaemon::start(), FakeDaemon::start());
    let (here, there) = (one.open(), two.open());
    let channel = there.create_comp_channel().unwrap();
    assert!(matches!(here.create_cq(8, Some(&channel)), Err(Error::ForeignObject { .. })));
    let cq = there.create_cq(8, None).unwrap();
    let pd = here.alloc_pd().unwrap();
    let error = pd.create_qp(&QpInit::new(&cq)).unwrap_err();
    assert!(matches!(error, Error::ForeignObject { .. }), "{error}");
    let own = here.create_cq(8, None).unwrap();
    let srq = there.alloc_pd().unwrap().create_srq(&Default::default()).unwrap();
    let error = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&own) }).unwrap_err();
    assert!(error.to_string().starts_with("the SRQ belongs to another context"), "{error}");
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
    let nothing = pd.alloc_mr(0, Access::LOCAL_WRITE).unwrap();
    nothing.write_at(0, b"").unwrap();
    assert!(matches!(nothing.write_at(0, b"x"), Err(Error::OutOfBounds { size: 0, .. })));
    assert!(nothing.atomic_u64(0).is_err());
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
    assert!(matches!(nowhere, Err(Error::Memory { .. })));
    // SAFETY: as above.
    let null = unsafe { pd.reg_mr(std::ptr::null_mut(), 64, Access::default()) };
    assert!(null.unwrap_err().to_string().contains("null"));
}
