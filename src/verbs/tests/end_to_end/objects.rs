//! Shared receive queues, memory windows, FLUSH and ATOMIC WRITE, completion queues, events.

use crate::{ALL, Net, Side, WAIT};
use std::sync::atomic::Ordering;
use std::time::Duration;
use urxe_verbs::*;

const A_MOMENT: Option<Duration> = Some(Duration::from_millis(30));

/// Two connected queue pairs, of which the far one takes its receives from an SRQ.
fn over(near: &Side, far: &Side, srq: &Srq) -> (Qp, Qp) {
    let from = near.pd.create_qp(&QpInit::new(&near.cq)).unwrap();
    let to = far.pd.create_qp(&QpInit { srq: Some(srq), ..QpInit::new(&far.cq) }).unwrap();
    from.connect(&to.endpoint().unwrap(), ALL).unwrap();
    to.connect(&from.endpoint().unwrap(), ALL).unwrap();
    (from, to)
}

#[test]
fn queue_pairs_share_the_receives_of_an_srq_which_warns_once_when_few_are_left() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let srq = far.pd.create_srq(&SrqInit { max_wr: 7, max_sge: 1, limit: 0 }).unwrap();
    let (one, two) = (over(&near, &far, &srq), over(&near, &far, &srq));
    let post = |wr_id: u64| {
        let at = wr_id as usize * 10;
        srq.post_recv(&[RecvWr::new(wr_id, &[far.mr.sge(at..at + 10).unwrap()])]).unwrap();
    };
    (1..=4).for_each(post);
    srq.modify(None, Some(3)).unwrap();
    assert!(far.context.async_event(A_MOMENT).unwrap().is_none(), "enough are left");
    for (qp, text) in [(&one, b"a"), (&two, b"b"), (&one, b"c")] {
        qp.0.post_send(&[SendWr::send(1, Inline(text))]).unwrap();
        let wc = far.done();
        assert_eq!(wc.qpn, qp.1.qpn());
        assert_eq!(far.bytes(wc.wr_id as usize * 10, 1), text);
    }
    let event = far.context.async_event(WAIT).unwrap().unwrap();
    assert!(matches!(event, AsyncEvent::SrqLimit(of) if of == srq));
    assert!(far.context.async_event(A_MOMENT).unwrap().is_none(), "only once");
    assert_eq!(srq.query().unwrap().limit, 0);
    // Another size keeps the one that is left.
    srq.modify(Some(100), None).unwrap();
    (5..=60).for_each(post);
    for wr_id in 4..=60 {
        one.0.post_send(&[SendWr::send(1, Inline(b""))]).unwrap();
        assert_eq!(far.done().wr_id, wr_id);
    }
}

#[test]
fn a_queue_pair_of_an_srq_says_that_it_takes_no_more_and_leaves_the_rest_to_others() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let srq = far.pd.create_srq(&SrqInit::default()).unwrap();
    let (one, two) = (over(&near, &far, &srq), over(&near, &far, &srq));
    srq.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    one.1.to_error().unwrap();
    let event = far.context.async_event(WAIT).unwrap().unwrap();
    assert!(matches!(event, AsyncEvent::LastWqeReached(of) if of == one.1));
    assert!(far.context.async_event(A_MOMENT).unwrap().is_none(), "only once");
    two.0.post_send(&[SendWr::send(1, Inline(b""))]).unwrap();
    assert_eq!((far.done().wr_id, two.1.srq()), (1, Some(srq)));
}

/// Memory that windows can be bound to.
fn bindable(side: &Side) -> Mr {
    side.pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
}

#[test]
fn a_window_of_type_1_opens_its_part_to_peers_until_it_is_bound_anew() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let (mr, mw) = (bindable(&far), far.pd.alloc_mw(MwType::One).unwrap());
    let part = mr.bind_info(1024..2048, Access::REMOTE_WRITE).unwrap();
    let there = far.qp.bind_mw(1, &mw, part).unwrap();
    assert_eq!((far.done().opcode, there.rkey), (WcOpcode::BindMw, mw.rkey()));
    let write = |to| near.qp.post_send(&[SendWr::write(1, Inline(b"through"), to).signaled()]);
    write(there).unwrap();
    near.done();
    let mut text = [0; 7];
    mr.read_at(1024, &mut text).unwrap();
    assert_eq!(&text, b"through");
    // Nothing else of the region is open.
    let again = far.qp.bind_mw(2, &mw, BindInfo::NOTHING).unwrap();
    assert_ne!((far.done().wr_id, again.rkey), (1, there.rkey));
    write(there).unwrap();
    assert_eq!(near.next().status, WcStatus::RemoteAccess);
}

#[test]
fn a_region_with_a_window_bound_to_it_is_not_deregistered_and_stays_as_it_was() {
    let Net { near, far, daemon: _daemon } = Net::new();
    for mw_type in [MwType::One, MwType::Two] {
        let (mr, mw) = (bindable(&far), far.pd.alloc_mw(mw_type).unwrap());
        let part = mr.bind_info(..64, Access::REMOTE_WRITE).unwrap();
        let there = match mw_type {
            MwType::One => far.qp.bind_mw(1, &mw, part).unwrap(),
            MwType::Two => {
                let rkey = mw.next_rkey();
                far.qp.post_send(&[SendWr::bind_mw(1, &mw, rkey, part).signaled()]).unwrap();
                part.remote_buf(rkey)
            }
        };
        far.done();
        let (mr, error) = mr.deregister().unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY);
        assert!(error.to_string().contains("1 memory windows are bound"), "{error}");
        near.qp.post_send(&[SendWr::write(2, Inline(b"in"), there).signaled()]).unwrap();
        near.done();
        let clone = mr.clone();
        let (mr, error) = mr.deregister().unwrap_err();
        assert!(error.to_string().contains("clone"), "{error}");
        drop((clone, mw));
        mr.deregister().unwrap();
    }
}

#[test]
fn a_window_opens_no_more_than_its_part_and_its_rights() {
    for wrong in 0..3 {
        let Net { near, far, daemon: _daemon } = Net::new();
        let (mr, mw) = (bindable(&far), far.pd.alloc_mw(MwType::One).unwrap());
        let part = mr.bind_info(1024..2048, Access::REMOTE_WRITE).unwrap();
        let there = far.qp.bind_mw(1, &mw, part).unwrap();
        far.done();
        let sge = [near.mr.sge(..8).unwrap()];
        near.qp
            .post_send(&[match wrong {
                0 => SendWr::write(1, &sge, RemoteBuf { addr: there.addr - 1, ..there }),
                1 => SendWr::write(1, &sge, RemoteBuf { addr: there.addr + 1017, ..there }),
                _ => SendWr::read(1, &sge, there),
            }])
            .unwrap();
        assert_eq!(near.next().status, WcStatus::RemoteAccess, "{wrong}");
    }
}

#[test]
fn a_window_of_type_2_is_closed_by_its_owner_or_by_a_send_of_the_peer() {
    for by_peer in [false, true] {
        let Net { near, far, daemon: _daemon } = Net::new();
        let (mr, mw) = (bindable(&far), far.pd.alloc_mw(MwType::Two).unwrap());
        let part = mr.bind_info(..64, Access::REMOTE_WRITE).unwrap();
        let rkey = mw.next_rkey();
        far.qp.post_send(&[SendWr::bind_mw(1, &mw, rkey, part).signaled()]).unwrap();
        assert_eq!(far.done().opcode, WcOpcode::BindMw);
        let write = SendWr::write(1, Inline(b"in"), part.remote_buf(rkey)).signaled();
        near.qp.post_send(&[write]).unwrap();
        near.done();
        if by_peer {
            far.qp.post_recv(&[RecvWr::new(2, &[])]).unwrap();
            near.qp.post_send(&[SendWr::send_inv(2, Inline(b""), rkey).signaled()]).unwrap();
            assert_eq!(far.done().invalidated_rkey, Some(rkey));
            near.done();
        } else {
            far.qp.post_send(&[SendWr::local_inv(2, rkey).signaled()]).unwrap();
            assert_eq!(far.done().opcode, WcOpcode::LocalInvalidate);
        }
        // It can be bound again, and the old key stays closed.
        let next = mw.next_rkey();
        far.qp.post_send(&[SendWr::bind_mw(3, &mw, next, part).signaled()]).unwrap();
        far.done();
        let write_again = SendWr::write(3, Inline(b"in"), part.remote_buf(next)).signaled();
        near.qp.post_send(&[write_again, write]).unwrap();
        assert_eq!(near.done().wr_id, 3);
        assert_eq!(near.next().status, WcStatus::RemoteAccess);
    }
}

#[test]
fn an_atomic_write_and_a_flush_end_when_the_data_are_there() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let rights = ALL | Access::FLUSH_GLOBAL;
    far.qp.modify(&QpAttr { access: Some(rights), ..QpAttr::default() }).unwrap();
    let mr = far.pd.alloc_mr(64, rights).unwrap();
    let word = mr.remote_buf(8..16).unwrap();
    let value = 0x0102_0304_0506_0708u64;
    near.qp
        .post_send(&[
            SendWr::write(1, Inline(b"flushed"), mr.remote_buf(..7).unwrap()),
            SendWr::flush(2, mr.remote_buf(..8).unwrap(), FlushPlacement::GLOBAL).signaled(),
            SendWr::atomic_write(3, Inline(&value.to_ne_bytes()), word).signaled(),
        ])
        .unwrap();
    let (flush, write) = (near.done(), near.done());
    assert_eq!((flush.wr_id, flush.opcode), (2, WcOpcode::Flush));
    assert_eq!((write.wr_id, write.opcode), (3, WcOpcode::AtomicWrite));
    assert_eq!(mr.atomic_u64(8).unwrap().load(Ordering::Acquire), value);
    let persistent = far.pd.alloc_mr(64, ALL | Access::FLUSH_PERSISTENT).unwrap_err();
    assert_eq!(persistent.errno(), libc::EOPNOTSUPP, "{persistent}");
}

#[test]
fn a_completion_queue_changes_its_size_under_traffic() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let there = far.mr.remote_buf(..8).unwrap();
    let mut seen = Vec::new();
    for wr_id in 0..300 {
        near.qp.post_send(&[SendWr::write(wr_id, Inline(b"x"), there).signaled()]).unwrap();
        if wr_id % 50 == 49 {
            near.cq.resize(if wr_id % 100 == 99 { 200 } else { 2000 }).unwrap();
            while seen.len() as u64 <= wr_id {
                near.cq.poll_into(&mut seen).unwrap();
            }
        }
    }
    assert!(seen.iter().map(|wc| wc.wr_id).eq(0..300));
    assert!(near.cq.resize(0).is_err());
}

#[test]
fn an_overrun_is_told_once_and_stops_its_queue_pairs() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let cq = near.context.create_cq(1, None).unwrap();
    let qp = near.pd.create_qp(&QpInit::new(&cq)).unwrap();
    qp.connect(&far.qp.endpoint().unwrap(), ALL).unwrap();
    far.qp.connect(&qp.endpoint().unwrap(), ALL).unwrap();
    let there = far.mr.remote_buf(..8).unwrap();
    let write = |wr_id| SendWr::write(wr_id, Inline(b"x"), there).signaled();
    qp.post_send(&[1, 2, 3, 4].map(write)).unwrap();
    let mut events = Vec::new();
    while let Some(event) =
        near.context.async_event(if events.is_empty() { WAIT } else { A_MOMENT }).unwrap()
    {
        events.push(event);
    }
    let of_cq = events.iter().filter(|event| matches!(event, AsyncEvent::CqError(of) if *of == cq));
    assert_eq!(of_cq.count(), 1, "{events:?}");
    assert_eq!(qp.query().unwrap().attr.state, Some(QpState::Err));
}

#[test]
fn objects_of_a_program_can_be_listed() {
    let Net { near, far: _far, daemon: _daemon } = Net::new();
    let srq = near.pd.create_srq(&SrqInit::default()).unwrap();
    let mw = near.pd.alloc_mw(MwType::Two).unwrap();
    let all = |kind| near.context.resources(kind).unwrap();
    let qps = all(ResourceKind::Qp);
    assert!(qps.iter().any(|qp| qp.number == near.qp.qpn()));
    let state = |qp: &Resource| match qp.detail {
        ResourceDetail::Qp { state, qp_type, .. } => (state, qp_type),
        _ => panic!("{qp:?}"),
    };
    assert_eq!(state(&qps[0]), (QpState::Rts, QpType::Rc));
    assert!(all(ResourceKind::Mr).iter().any(|mr| mr.number == near.mr.rkey()));
    assert!(all(ResourceKind::Mw).iter().any(|one| one.number == mw.rkey()));
    assert_eq!((all(ResourceKind::Srq).len(), all(ResourceKind::Cq).len()), (1, 1));
    drop(srq);
    assert!(all(ResourceKind::Srq).is_empty());
}
