//! Services and groups for datagrams, found and joined through the connection manager.

use crate::{Net, Side, WAIT};
use std::net::SocketAddr;
use std::time::Duration;
use urxe_verbs::cm::{EventChannel, Membership, ServiceListener, UDP_QKEY, UdParam};
use urxe_verbs::*;

const A_MOMENT: Option<Duration> = Some(Duration::from_millis(100));

/// A UD queue pair with a receive in which it expects something.
fn datagrams(side: &Side, qkey: u32) -> Qp {
    let init = QpInit { qp_type: QpType::Ud, ..QpInit::new(&side.cq) };
    let qp = side.pd.create_qp(&init).unwrap();
    qp.start_datagrams(qkey).unwrap();
    expect(side, &qp);
    qp
}

fn expect(side: &Side, qp: &Qp) {
    qp.post_recv(&[RecvWr::new(1, &[side.mr.sge(..1024).unwrap()])]).unwrap();
}

fn channel(side: &Side) -> EventChannel {
    side.context.create_event_channel().unwrap()
}

fn serve(side: &Side) -> ServiceListener {
    channel(side).listen_for_datagrams((side.context.device().address, 0).into(), 0).unwrap()
}

fn send(side: &Side, qp: &Qp, to: &UdParam, text: &[u8]) {
    let ah = side.pd.create_ah(&to.av).unwrap();
    qp.post_send(&[SendWr::send(2, Inline(text)).to(&ah, to.qpn, to.qkey).signaled()]).unwrap();
    assert_eq!(side.done().wr_id, 2);
}

/// What came, behind what tells of its path.
#[track_caller]
fn assert_came(side: &Side, text: &[u8]) {
    let wc = side.done();
    assert_eq!((wc.wr_id, wc.byte_len as usize), (1, Grh::LEN + text.len()));
    assert_eq!(side.bytes(Grh::LEN, text.len()), text);
}

#[test]
fn a_service_is_found_and_takes_datagrams() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    // The port space's own Q_Key, and one that the server chose.
    for qkey in [UDP_QKEY, 0x1111] {
        let (ours, theirs) = (datagrams(&near, UDP_QKEY), datagrams(&far, qkey));
        let listener = serve(&far);
        let to = listener.local_addr();
        let search = channel(&near).find_service(to, &ours, b"who is there?").unwrap();
        let request = listener.wait(WAIT).unwrap().unwrap();
        assert!(request.private_data().starts_with(b"who is there?\0"));
        assert_eq!(request.private_data().len(), 180);
        assert_eq!(request.local_addr(), to);
        assert_eq!(request.peer_addr().ip(), near.context.device().address);
        assert_eq!(request.device(), "urxe1");
        request.answer(&theirs, b"me").unwrap();
        let found = search.wait_found(WAIT).unwrap();
        assert_eq!((found.qpn, found.qkey), (theirs.qpn(), qkey));
        assert!(found.private_data.starts_with(b"me\0"));
        send(&near, &ours, &found, b"hello");
        assert_came(&far, b"hello");
    }
}

#[test]
fn a_service_that_is_not_there_or_refuses_is_not_found() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let qp = datagrams(&near, UDP_QKEY);
    let listener = serve(&far);
    let to = listener.local_addr();
    let search = channel(&near).find_service(to, &qp, b"").unwrap();
    listener.wait(WAIT).unwrap().unwrap().reject(b"closed").unwrap();
    let error = search.wait_found(WAIT).unwrap_err();
    let text = format!("{to} offers no such service: its program says no (status 2)");
    assert_eq!(error.to_string(), text);
    let Error::NoService { private_data, .. } = error else { panic!("{error}") };
    assert!(private_data.starts_with(b"closed\0"), "{private_data:?}");

    // Not an answer either: a queue pair that is no service.
    let search = channel(&near).find_service(to, &qp, b"").unwrap();
    let error = listener.wait(WAIT).unwrap().unwrap().answer(&far.qp, b"").unwrap_err();
    assert!(error.to_string().starts_with("queue pair is RC, in RESET, expected UD"), "{error}");
    assert!(matches!(search.wait_found(WAIT), Err(Error::NoService { .. })));

    drop(listener);
    let search = channel(&near).find_service(to, &qp, b"").unwrap();
    let error = search.wait_found(WAIT).unwrap_err();
    assert!(matches!(error, Error::NoService { .. }), "{error}");
    assert_eq!(error.errno(), libc::ECONNREFUSED);
}

#[test]
fn members_of_a_group_receive_what_is_sent_to_it_while_they_are() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (ours, theirs) = (datagrams(&near, UDP_QKEY), datagrams(&far, UDP_QKEY));
    let group: SocketAddr = "239.41.7.1:0".parse().unwrap();
    let join = |side: &Side, qp: &Qp| -> Membership {
        channel(side).join_multicast(group, qp).unwrap().wait_joined(WAIT).unwrap()
    };
    let (near_member, far_member) = (join(&near, &ours), join(&far, &theirs));
    assert_eq!(far_member.group(), group);
    let to = near_member.joined().unwrap();
    assert_eq!((to.qpn, to.qkey), (MULTICAST_QPN, UDP_QKEY));
    send(&near, &ours, &to, b"to all");
    assert_came(&far, b"to all");
    // It comes back to who sent it, too.
    assert_came(&near, b"to all");

    expect(&far, &theirs);
    drop(far_member);
    expect(&near, &ours);
    send(&near, &ours, &to, b"to the rest");
    assert_came(&near, b"to the rest");
    assert_eq!(far.cq.wait(&mut [Wc::default()], A_MOMENT).unwrap(), 0, "it has left");
}

#[test]
fn of_two_memberships_in_a_group_the_last_one_counts() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (ours, theirs) = (datagrams(&near, UDP_QKEY), datagrams(&far, UDP_QKEY));
    let group: SocketAddr = "239.41.7.2:0".parse().unwrap();
    let join = || channel(&far).join_multicast(group, &theirs).unwrap().wait_joined(WAIT).unwrap();
    let (first, second) = (join(), join());
    let to = second.joined().unwrap();
    drop(first);
    send(&near, &ours, &to, b"to one");
    assert_came(&far, b"to one");
    expect(&far, &theirs);
    drop(second);
    send(&near, &ours, &to, b"to none");
    assert_eq!(far.cq.wait(&mut [Wc::default()], A_MOMENT).unwrap(), 0, "it has left");
}

#[test]
fn addresses_other_than_groups_are_not_joined() {
    let Net { near, daemon: _daemon, .. } = Net::unconnected();
    let qp = datagrams(&near, UDP_QKEY);
    let error = channel(&near).join_multicast("10.0.0.1:0".parse().unwrap(), &qp).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    let error = channel(&near).join_multicast("[ff05::1]:0".parse().unwrap(), &qp).unwrap_err();
    assert!(error.to_string().starts_with("destination is ff05::1, expected"), "{error}");
}
