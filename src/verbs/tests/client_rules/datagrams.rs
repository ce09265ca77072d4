//! UC and UD queue pairs, address handles, multicast groups.

use crate::fake_daemon::FakeDaemon;
use std::net::IpAddr;
use urxe_shm::control::Request;
use urxe_shm::ring::entry::Taken;
use urxe_types::{AhId, DatagramPath, Destination, Qkey, Qpn, SendWqe};
use urxe_verbs::{
    Access, AddressVector, Ah, Context, Grh, Inline, Lkey, MULTICAST_QPN, PathMtu, Pd, PostReason,
    Qp, QpAttr, QpEndpoint, QpInit, QpState, QpType, RemoteBuf, SendWr, Sge, Wc,
};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));

fn qp_of(context: &Context, pd: &Pd, qp_type: QpType) -> Qp {
    let cq = context.create_cq(8, None).unwrap();
    pd.create_qp(&QpInit { qp_type, ..QpInit::new(&cq) }).unwrap()
}

fn ready(context: &Context, pd: &Pd, qp_type: QpType) -> Qp {
    let qp = qp_of(context, pd, qp_type);
    match qp_type {
        QpType::Ud => qp.start_datagrams(0x1111).unwrap(),
        _ => qp.connect(&qp.endpoint().unwrap(), Access::default()).unwrap(),
    }
    qp
}

/// The attributes of every transition so far.
fn transitions(daemon: &FakeDaemon) -> Vec<QpAttr> {
    let state = daemon.state.lock().unwrap();
    let attrs = state.requests.iter().filter_map(|request| match request {
        Request::ModifyQp { attr, .. } => Some(attr.clone()),
        _ => None,
    });
    attrs.collect()
}

#[test]
fn each_transport_sets_the_attributes_that_it_has() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    ready(&context, &pd, QpType::Uc);
    let [init, rtr, rts] = &transitions(&daemon)[..] else { panic!() };
    assert_eq!((init.access, init.qkey), (Some(Access::default()), None));
    assert!(rtr.av.is_some() && rtr.dest_qpn.is_some() && rtr.rq_psn.is_some());
    assert_eq!(
        (rtr.path_mtu, rtr.max_dest_rd_atomic, rtr.min_rnr_timer),
        (Some(PathMtu::Mtu1024), None, None)
    );
    let nothing_else =
        QpAttr { state: Some(QpState::Rts), sq_psn: rts.sq_psn, ..QpAttr::default() };
    assert_eq!(*rts, nothing_else);

    ready(&context, &pd, QpType::Ud);
    let [init, rtr, rts] = &transitions(&daemon)[3..] else { panic!() };
    assert_eq!((init.access, init.qkey), (None, Some(Qkey(0x1111))));
    assert_eq!((init.port, init.pkey_index), (Some(1), Some(0)));
    assert_eq!(*rtr, QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() });
    assert!(rts.sq_psn.is_some() && rts.timeout.is_none() && rts.rnr_retry.is_none());
}

#[test]
fn a_transport_is_started_in_its_own_way_only() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let datagrams = qp_of(&context, &pd, QpType::Ud);
    let error = datagrams.connect(&datagrams.endpoint().unwrap(), Access::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "transport of the queue pair is UD, expected RC or UC: UD has no connections"
    );
    let error = qp_of(&context, &pd, QpType::Uc).start_datagrams(1).unwrap_err();
    assert!(error.to_string().contains("is UC, expected UD"), "{error}");
    assert_eq!(transitions(&daemon), [], "nothing was asked of the daemon");
}

#[test]
fn a_connection_can_begin_at_any_gid() {
    let daemon = FakeDaemon::start();
    let here: IpAddr = "2001:db8::5".parse().unwrap();
    daemon.state.lock().unwrap().gids = vec!["192.0.2.1".parse().unwrap(), here];
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let qp = qp_of(&context, &pd, QpType::Uc);
    assert_eq!(qp.endpoint_at(1).unwrap().gid, here);
    let gid = "2001:db8::6".parse().unwrap();
    let remote = QpEndpoint { qpn: 5, psn: 6, mtu: PathMtu::Mtu512, gid };
    qp.connect_from(1, &remote, Access::default()).unwrap();
    let rtr = &transitions(&daemon)[1];
    assert_eq!(rtr.av.map(|av| (av.sgid_index, av.dgid)), Some((1, gid)));
    assert_eq!(rtr.path_mtu, Some(PathMtu::Mtu512));
}

#[test]
fn an_operation_the_transport_lacks_is_refused_by_name() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let remote = RemoteBuf { addr: 0, rkey: 1, len: 8 };
    let sge = [Sge { addr: 0, length: 8, lkey: Lkey(1) }];
    let ah = pd.create_ah(&AddressVector::to(PEER)).unwrap();
    let (uc, ud) = (ready(&context, &pd, QpType::Uc), ready(&context, &pd, QpType::Ud));
    let reason = |qp: &Qp, wr: SendWr<'_>| qp.post_send(&[wr]).unwrap_err().reason;
    for (wr, operation) in [
        (SendWr::read(1, &sge, remote), "READ"),
        (SendWr::fetch_add(1, &sge, remote, 1), "FETCH-AND-ADD"),
        (SendWr::atomic_write(1, &sge, remote), "ATOMIC WRITE"),
        (SendWr::flush(1, remote, urxe_verbs::FlushPlacement::GLOBAL), "FLUSH"),
        (SendWr::send_inv(1, &sge, 5), "SEND with invalidate"),
    ] {
        assert_eq!(reason(&uc, wr), PostReason::Operation { operation, transport: "UC" });
        let wr = wr.to(&ah, 5, 1);
        assert_eq!(reason(&ud, wr), PostReason::Operation { operation, transport: "UD" });
    }
    uc.post_send(&[SendWr::write(1, &sge, remote)]).unwrap();
    let reason = reason(&ud, SendWr::write(1, &sge, remote).to(&ah, 5, 1));
    assert_eq!(reason.to_string(), "WRITE on a UD QP, which has no such operation");
}

#[test]
fn a_datagram_needs_a_destination_and_nothing_else_has_one() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let (pd, other) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let handle = |pd: &Pd, ip| pd.create_ah(&AddressVector::to(ip)).unwrap();
    let (ah, foreign, group) = (handle(&pd, PEER), handle(&other, PEER), handle(&pd, GROUP));
    let qp = ready(&context, &pd, QpType::Ud);
    let send = || SendWr::send(1, Inline(b"x"));
    let reason = |wr: SendWr<'_>| qp.post_send(&[wr]).unwrap_err().reason;
    let to = |ah: &Ah, qpn| reason(send().to(ah, qpn, 1));
    assert_eq!(reason(send()), PostReason::NoDestination);
    assert_eq!(to(&foreign, 5), PostReason::ForeignObject { what: "the address handle" });
    for wrong in [to(&group, 5), to(&ah, 0x100_0000)] {
        assert!(matches!(wrong, PostReason::DestinationQpn { .. }), "{wrong}");
    }
    qp.post_send(&[send().to(&group, MULTICAST_QPN, 1), send().to(&ah, 5, 0x8000_0000)]).unwrap();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let connected = ready(&context, &pd, qp_type);
        let reason = connected.post_send(&[send().to(&ah, 5, 1)]).unwrap_err().reason;
        assert!(matches!(reason, PostReason::Destination { .. }), "{reason}");
    }
}

#[test]
fn the_daemon_finds_where_a_datagram_goes() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let ah = pd.create_ah(&AddressVector::to(PEER)).unwrap();
    let qp = ready(&context, &pd, QpType::Ud);
    qp.post_send(&[SendWr::send_imm(1, Inline(b"x"), 7).to(&ah, 0x22, 0x3333)]).unwrap();
    let mut state = daemon.state.lock().unwrap();
    let fake = state.qps.values_mut().next().unwrap();
    let mut wqe = SendWqe::default();
    assert_eq!(fake.send_queue.take(&mut wqe, &mut vec![]), Ok(Taken::Ready));
    let Some(Destination { path: DatagramPath::Handle(number), qpn, qkey }) = wqe.wr.to else {
        panic!("{wqe:?}")
    };
    assert!(number > AhId(0x100), "the fake daemon's numbers begin there");
    assert_eq!((qpn, qkey), (Qpn::new(0x22), Qkey(0x3333)));
    let created = state.requests.iter().find_map(|request| match request {
        Request::CreateAh { av, .. } => Some(*av),
        _ => None,
    });
    assert_eq!(created, Some(AddressVector::to(PEER)));
}

#[test]
fn a_datagram_can_be_answered_from_where_it_came_to() {
    let daemon = FakeDaemon::start();
    let gids = ["fe80::5", "2001:db8::5", "2001:db8::6"].map(|text| text.parse().unwrap());
    daemon.state.lock().unwrap().gids = gids.to_vec();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let grh = |source: &str, destination: &str| {
        let mut bytes = [0; Grh::LEN];
        bytes[..8].copy_from_slice(&[0x62, 0, 0, 0, 0, 20, 17, 63]);
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        bytes[8..24].copy_from_slice(&octets(source));
        bytes[24..].copy_from_slice(&octets(destination));
        bytes
    };
    let wc = Wc { grh: true, ..Wc::default() };
    let answer = |source, destination| {
        pd.create_ah_from_wc(&wc, &grh(source, destination)).unwrap().address_vector()
    };
    let peer = "2001:db8::9";
    let direct = answer(peer, "2001:db8::6");
    assert_eq!((direct.sgid_index, direct.traffic_class), (2, 0x20));
    assert_eq!(direct.dgid, peer.parse::<IpAddr>().unwrap());
    assert_eq!(answer(peer, "ff0e::77").sgid_index, 1, "the first that reaches the sender");
    assert_eq!(answer("fe80::9", "ff02::77").sgid_index, 0);

    assert!(pd.create_ah_from_wc(&wc, &[0; Grh::LEN]).is_err());
    let error = pd.create_ah_from_wc(&Wc::default(), &grh(peer, peer)).unwrap_err();
    assert!(error.to_string().contains("expected of a datagram"), "{error}");
}

#[test]
fn groups_are_attached_and_detached_by_address() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let pd = context.alloc_pd().unwrap();
    let qp = ready(&context, &pd, QpType::Ud);
    qp.attach_mcast(GROUP).unwrap();
    qp.detach_mcast(GROUP).unwrap();
    let state = daemon.state.lock().unwrap();
    let [.., attach, detach] = &state.requests[..] else { panic!() };
    assert!(matches!(attach, Request::AttachMcast { gid, .. } if gid.to_ip() == GROUP));
    assert!(matches!(detach, Request::DetachMcast { gid, .. } if gid.to_ip() == GROUP));
}
