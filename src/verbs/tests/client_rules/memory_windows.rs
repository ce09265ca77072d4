//! Memory windows: their keys, and what can be known to be wrong before a bind is posted.

use crate::fake_daemon::FakeDaemon;
use crate::small_qp;
use urxe_shm::ring::entry::Taken;
use urxe_types::{Lkey, Rkey, SendOp, SendWqe};
use urxe_verbs::{Access, BindInfo, MwType, PostReason, RemoteBuf, SendWr};

const OPEN: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

/// The operations that the daemon finds in the only QP.
fn posted(daemon: &FakeDaemon) -> Vec<SendOp> {
    let mut state = daemon.state.lock().unwrap();
    let queue = &mut state.qps.values_mut().next().unwrap().send_queue;
    let mut ops = Vec::new();
    let mut wqe = SendWqe::default();
    while queue.take(&mut wqe, &mut vec![]).unwrap() == Taken::Ready {
        ops.push(wqe.wr.op);
    }
    queue.retire(ops.len() as u32);
    ops
}

#[test]
fn a_bind_of_type_1_draws_the_next_key_each_time() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let pd = qp.pd();
    let mr = pd.alloc_mr(4096, BINDABLE).unwrap();
    let mw = pd.alloc_mw(MwType::One).unwrap();
    let index = mw.rkey() & !0xff;
    assert_eq!(mw.rkey(), index | 0xfe, "as the fake daemon makes them");
    let info = mr.bind_info(64..128, OPEN).unwrap();
    let there = qp.bind_mw(1, &mw, info).unwrap();
    assert_eq!(there, RemoteBuf { addr: mr.addr() + 64, rkey: index | 0xff, len: 64 });
    // The last 8 bits go round, and leave the others alone.
    assert_eq!(qp.bind_mw(2, &mw, BindInfo::NOTHING).unwrap().rkey, index);
    assert_eq!(mw.rkey(), index);
    let (addr, access) = (mr.addr() + 64, OPEN);
    let bind = |mw, new_rkey| SendOp::BindMw {
        mw: Rkey(mw),
        new_rkey: Rkey(new_rkey),
        mr: mr.lkey(),
        addr,
        length: 64,
        access,
    };
    let unbind = SendOp::BindMw {
        mw: Rkey(index | 0xff),
        new_rkey: Rkey(index),
        mr: Lkey(0),
        addr: 0,
        length: 0,
        access: Access::empty(),
    };
    assert_eq!(posted(&daemon), [bind(index | 0xfe, index | 0xff), unbind]);
}

#[test]
fn binds_of_type_2_in_one_list_follow_each_other() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let pd = qp.pd();
    let mr = pd.alloc_mr(4096, BINDABLE).unwrap();
    let mw = pd.alloc_mw(MwType::Two).unwrap();
    let first = mw.rkey();
    let (second, third) = (first & !0xff | 7, first & !0xff | 9);
    let info = mr.bind_info(..8, OPEN).unwrap();
    qp.post_send(&[
        SendWr::bind_mw(1, &mw, second, info),
        SendWr::local_inv(2, second),
        SendWr::bind_mw(3, &mw, third, info),
    ])
    .unwrap();
    let keys = posted(&daemon).into_iter().map(|op| match op {
        SendOp::BindMw { mw, new_rkey, .. } => (mw.0, new_rkey.0),
        SendOp::LocalInvalidate { key } => (key.0, key.0),
        other => panic!("{other:?}"),
    });
    assert!(keys.eq([(first, second), (second, second), (second, third)]));
    assert_eq!(mw.rkey(), third);
}

#[test]
fn a_bind_that_is_not_posted_leaves_the_key() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let qp = small_qp(&context, &cq);
    let pd = qp.pd();
    let mr = pd.alloc_mr(4096, BINDABLE).unwrap();
    let (one, two) = (pd.alloc_mw(MwType::One).unwrap(), pd.alloc_mw(MwType::Two).unwrap());
    let foreign = context.alloc_pd().unwrap().alloc_mw(MwType::Two).unwrap();
    let info = mr.bind_info(..8, OPEN).unwrap();
    let reason = |wr: SendWr<'_>| qp.post_send(&[wr]).unwrap_err().reason;
    let before = (one.rkey(), two.rkey());

    let wrong = reason(SendWr::bind_mw(1, &one, one.next_rkey(), info));
    assert!(matches!(wrong, PostReason::WindowType { .. }), "{wrong}");
    let wrong = qp.bind_mw(1, &two, info).unwrap_err().reason;
    assert!(matches!(wrong, PostReason::WindowType { .. }), "{wrong}");
    let wrong = reason(SendWr::bind_mw(1, &foreign, foreign.next_rkey(), info));
    assert_eq!(wrong, PostReason::ForeignObject { what: "the memory window" });
    for rkey in [two.rkey(), two.next_rkey() ^ 0x100] {
        let wrong = reason(SendWr::bind_mw(1, &two, rkey, info));
        assert_eq!(wrong, PostReason::WindowKey { rkey, present: two.rkey() });
    }
    let wrong = reason(SendWr::bind_mw(1, &two, two.next_rkey(), BindInfo::NOTHING));
    assert_eq!(wrong, PostReason::EmptyWindow);
    let zero_based = mr.bind_info(..8, OPEN | Access::ZERO_BASED).unwrap();
    assert_eq!(qp.bind_mw(1, &one, zero_based).unwrap_err().reason, PostReason::ZeroBasedWindow);
    let rkey = two.next_rkey();
    assert_eq!(zero_based.remote_buf(rkey), RemoteBuf { addr: 0, rkey, len: 8 });

    assert_eq!((one.rkey(), two.rkey()), before);
    assert_eq!(posted(&daemon), []);
    // Nor does one for which there is no room.
    let error = qp.post_send(&[SendWr::local_inv(1, 5); 4]).unwrap_err();
    assert_eq!(error.posted, 3);
    assert!(qp.bind_mw(1, &one, info).is_err());
    assert_eq!(one.rkey(), before.0);
}

#[test]
fn only_memory_that_was_registered_for_it_can_be_opened_by_a_window() {
    let daemon = FakeDaemon::start();
    let pd = daemon.open().alloc_pd().unwrap();
    let plain = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let error = plain.bind_info(.., OPEN).unwrap_err();
    assert!(error.to_string().contains("expected MW_BIND"), "{error}");
    let read_only = pd.alloc_mr(64, Access::MW_BIND).unwrap();
    read_only.bind_info(.., Access::REMOTE_READ).unwrap();
    for write in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert!(read_only.bind_info(.., write).is_err());
    }
    assert!(read_only.bind_info(60..65, Access::REMOTE_READ).is_err(), "out of bounds");
}
