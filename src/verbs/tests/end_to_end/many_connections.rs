//! Many connections of few threads.

use crate::{Net, Side, WAIT};
use std::collections::HashMap;
use std::time::Duration;
use urxe_verbs::cm::{ConnParam, Connection, Event};
use urxe_verbs::*;

const CONNECTIONS: u64 = 1000;

/// How many are asked for and not yet there, at most.
const ON_THEIR_WAY: usize = 64;

/// A small queue pair whose receives are shared.
fn small_qp(side: &Side, srq: &Srq) -> Qp {
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 8,
    };
    side.pd.create_qp(&QpInit { caps, srq: Some(srq), ..QpInit::new(&side.cq) }).unwrap()
}

fn shared_receives(side: &Side) -> Srq {
    side.pd.create_srq(&SrqInit { max_wr: 1000, max_sge: 1, limit: 0 }).unwrap()
}

#[test]
fn a_thousand_connections_are_opened_used_and_closed_through_one_listener() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let before = near.context.resources(ResourceKind::Qp).unwrap().len();
    let listener = {
        let channel = far.context.create_event_channel().unwrap();
        channel.listen((far.context.device().address, 0).into(), 0).unwrap()
    };
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&far, &listener.channel()));
        use_them_all(&near, to);
        assert_eq!(serving.join().unwrap(), (0..CONNECTIONS).sum::<u64>());
    });
    // Nothing is left of them, and there is room for another.
    assert_eq!(near.context.resources(ResourceKind::Qp).unwrap().len(), before);
    let channel = near.context.create_event_channel().unwrap();
    let end = channel.connect(to, &near.qp, &ConnParam::default()).unwrap();
    let request = listener.wait(WAIT).unwrap().unwrap();
    let far_end = request.accept(&far.qp, &ConnParam::default()).unwrap();
    end.wait_established(WAIT).unwrap();
    drop(far_end);
}

/// Opens all of them, sends a number on each, and closes all of them.
fn use_them_all(near: &Side, to: std::net::SocketAddr) {
    let channel = near.context.create_event_channel().unwrap();
    let srq = shared_receives(near);
    let (mut open, mut on_their_way) = (Vec::new(), Vec::new());
    while open.len() < CONNECTIONS as usize {
        while on_their_way.len() < ON_THEIR_WAY
            && open.len() + on_their_way.len() < CONNECTIONS as usize
        {
            let qp = small_qp(near, &srq);
            on_their_way.push(channel.connect(to, &qp, &ConnParam::default()).unwrap());
        }
        match channel.next_event(WAIT).unwrap() {
            Some(Event::Established(end)) => {
                on_their_way.retain(|other| *other != end);
                open.push(end);
            }
            other => panic!("{other:?} after {} connections", open.len()),
        }
    }
    for (number, end) in open.iter().enumerate() {
        let number = (number as u64).to_be_bytes();
        end.qp().post_send(&[SendWr::send(1, Inline(&number)).signaled()]).unwrap();
        near.done();
    }
    for end in &open {
        end.disconnect().unwrap();
    }
    for end in &open {
        assert!(end.wait_disconnected(WAIT).unwrap());
    }
}

/// Accepts all of them, and takes the numbers. Returns their sum.
fn serve(far: &Side, channel: &urxe_verbs::cm::EventChannel) -> u64 {
    let srq = shared_receives(far);
    let room = |wr_id: u64| far.mr.sge(wr_id as usize * 8..wr_id as usize * 8 + 8).unwrap();
    let post = |wr_id: u64| srq.post_recv(&[RecvWr::new(wr_id, &[room(wr_id)])]).unwrap();
    (0..1000).for_each(post);
    let mut open: HashMap<u32, Connection> = HashMap::new();
    let (mut ended, mut sum) = (0, 0);
    while ended < CONNECTIONS {
        // A thread that polls looks at both, and sleeps at neither for long.
        match channel.next_event(Some(Duration::from_millis(1))).unwrap() {
            Some(Event::ConnectRequest(request)) => {
                let end = request.accept(&small_qp(far, &srq), &ConnParam::default()).unwrap();
                open.insert(end.qp().qpn(), end);
            }
            Some(Event::Disconnected(end)) => {
                open.remove(&end.qp().qpn()).unwrap();
                ended += 1;
            }
            Some(Event::Established(_) | Event::TimewaitExit(_)) | None => {}
            other => panic!("{other:?}"),
        }
        let mut wcs = [Wc::default(); 16];
        let count = far.cq.poll(&mut wcs).unwrap();
        for wc in &wcs[..count] {
            let wr_id = wc.check().unwrap().wr_id;
            let bytes = far.bytes(wr_id as usize * 8, 8);
            sum += u64::from_be_bytes(bytes.try_into().unwrap());
            post(wr_id);
        }
    }
    sum
}
