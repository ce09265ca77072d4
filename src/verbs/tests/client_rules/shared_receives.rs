//! Shared receive queues.

use crate::fake_daemon::FakeDaemon;
use urxe_shm::control::Request;
use urxe_shm::ring::entry::Taken;
use urxe_types::RecvWqe;
use urxe_verbs::{PostReason, QpInit, RecvWr, SrqInit};

/// The receives that the daemon finds in the only SRQ.
fn taken(daemon: &FakeDaemon) -> Vec<u64> {
    let mut state = daemon.state.lock().unwrap();
    let queue = &mut state.srqs.values_mut().next().unwrap().queue;
    let mut taken = Vec::new();
    let mut wqe = RecvWqe::default();
    while queue.take(&mut wqe).unwrap() == Taken::Ready {
        taken.push(wqe.wr_id);
    }
    taken
}

fn recvs<const N: usize>(wr_ids: [u64; N]) -> [RecvWr<'static>; N] {
    wr_ids.map(|wr_id| RecvWr::new(wr_id, &[]))
}

#[test]
fn receives_are_posted_to_the_srq_and_not_to_its_queue_pairs() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None).unwrap();
    let srq = pd.create_srq(&SrqInit { max_wr: 3, ..SrqInit::default() }).unwrap();
    let qp = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
    assert!(qp.srq() == Some(srq.clone()));
    assert_eq!((qp.caps().max_recv_wr, srq.srqn()), (0, 0x21));
    // No state keeps from posting.
    srq.post_recv(&recvs([1, 2])).unwrap();
    assert_eq!(taken(&daemon), [1, 2]);
    let error = srq.post_recv(&recvs([3, 4, 5, 6])).unwrap_err();
    assert_eq!((error.posted, error.wr_id), (3, 6));
    assert_eq!(error.reason, PostReason::QueueFull { capacity: 3 });
    let error = qp.post_recv(&recvs([7])).unwrap_err();
    assert_eq!((error.reason, error.posted), (PostReason::SharedReceives, 0));
    qp.to_reset().unwrap();
    assert_eq!(taken(&daemon), [3, 4, 5], "a reset of a queue pair does not touch it");
}

#[test]
fn an_srq_outlives_its_queue_pairs() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None).unwrap();
    let srq = pd.create_srq(&SrqInit::default()).unwrap();
    let qp = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
    drop(srq);
    drop(qp);
    let requests = &daemon.state.lock().unwrap().requests;
    let [.., first, second] = &requests[..] else { panic!() };
    assert!(matches!(first, Request::DestroyQp { .. }), "{first:?}");
    assert!(matches!(second, Request::DestroySrq { .. }), "{second:?}");
}

#[test]
fn another_size_keeps_what_is_posted() {
    let daemon = FakeDaemon::start();
    let pd = daemon.open().alloc_pd().unwrap();
    let srq = pd.create_srq(&SrqInit { max_wr: 3, limit: 1, ..SrqInit::default() }).unwrap();
    srq.post_recv(&recvs([1, 2, 3])).unwrap();
    srq.modify(Some(7), None).unwrap();
    srq.post_recv(&recvs([4, 5, 6, 7])).unwrap();
    assert!(srq.post_recv(&recvs([8])).is_err());
    assert_eq!(taken(&daemon), [1, 2, 3, 4, 5, 6, 7]);
    srq.modify(None, Some(5)).unwrap();
    let attr = srq.query().unwrap();
    assert_eq!((attr.max_wr, attr.limit), (7, 5));
    srq.post_recv(&recvs([9])).unwrap();
    assert_eq!(taken(&daemon), [9]);
}
