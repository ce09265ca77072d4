//! What objects exist, whose they are, and how they do.

use crate::harness::{CAPS, Client, End, Kind, attrs, connected, start};
use rustix::io::Errno;
use std::net::IpAddr;
use urxe_shell::testing::needs_root;
use urxe_shm::control::{
    Cursor, PathPage, QpCaps, Reply, Request, Resource, ResourceDetail, ResourceKind,
};
use urxe_types::{Gid, QpState, QpType, Qpn};

const KINDS: [ResourceKind; 6] = [
    ResourceKind::Qp,
    ResourceKind::Cq,
    ResourceKind::Srq,
    ResourceKind::Mr,
    ResourceKind::Mw,
    ResourceKind::CmId,
];

fn numbers(resources: &[Resource]) -> Vec<u32> {
    resources.iter().map(|resource| resource.number).collect()
}

#[test]
fn objects_are_listed_with_owner_and_state() {
    let (first, second) = (start(1), start(1));
    let (mut a, b) = connected(&first, &second, Kind::Shared, 4096);
    let me = format!("test[{}]", std::process::id());
    let qps = a.client.resources("urxe0", ResourceKind::Qp);
    let cqs = a.client.resources("urxe0", ResourceKind::Cq);
    let mrs = a.client.resources("urxe0", ResourceKind::Mr);
    for resource in [&qps, &cqs, &mrs].into_iter().flatten() {
        assert_eq!(resource.program, me);
        assert_eq!(resource.uid, rustix::process::getuid().as_raw());
    }
    let ([qp], [cq], [mr]) = (&qps[..], &cqs[..], &mrs[..]) else { panic!("{qps:?}") };
    assert_eq!(qp.number, a.qp.created.qpn.get());
    let ResourceDetail::Qp { path: Some(path), .. } = qp.detail else { panic!("{qp:?}") };
    let request = Request::Paths { device: "urxe0".into(), from: Cursor::default() };
    let Reply::Paths(paths) = a.client.call(request).unwrap() else { panic!("no paths") };
    let its = paths.paths.iter().find(|shown| shown.number == path);
    assert!(its.is_some_and(|its| its.peer == b.addr), "{path}: {paths:?}");
    let expected = ResourceDetail::Qp {
        qp_type: QpType::Rc,
        state: QpState::Rts,
        send_cq: cq.number,
        recv_cq: cq.number,
        srq: None,
        peer: Some((Gid::from(b.addr), b.qp.created.qpn.get())),
        path: Some(path),
        sq_psn: 0xff_fff0,
        rq_psn: 0xff_fff0,
        cause: None,
    };
    assert_eq!(qp.detail, expected);
    let expected = ResourceDetail::Cq { cqe: 511, unread: 0, qps: 1, failed: false };
    assert_eq!(cq.detail, expected);
    let expected = ResourceDetail::Mr {
        iova: a.mr.addr,
        length: 4096,
        access: crate::harness::ALL,
        copied: None,
        has_mapped_pages: false,
    };
    assert_eq!((mr.number, &mr.detail), (a.mr.rkey.0, &expected));
    assert_eq!(mr.pd, qp.pd);

    // Two receives that are flushed, and not read.
    a.post_recv(1, &[]);
    a.post_recv(2, &[]);
    let err = urxe_types::QpAttr { state: Some(QpState::Err), ..Default::default() };
    a.client.modify(&a.qp, err).unwrap();
    let cqs = a.client.resources("urxe0", ResourceKind::Cq);
    assert!(matches!(cqs[0].detail, ResourceDetail::Cq { unread: 2, .. }), "{cqs:?}");

    drop(b);
    a.client.call(Request::CloseDevice { context: a.context }).unwrap();
    for kind in KINDS {
        assert_eq!(a.client.resources("urxe0", kind), [], "{kind:?}");
    }
}

#[test]
fn lists_come_in_pages_in_order() {
    const COUNT: usize = 900;
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let small = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() };
    let (mut qpns, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..COUNT {
        let cq = client.create_cq(context, 1, None).handle;
        qpns.push(client.try_create_qp(pd, cq, cq, small).unwrap().qpn.get());
        keys.push(client.process_mr(pd, 1).lkey.0);
    }
    keys.sort_unstable();
    qpns.sort_unstable();
    assert_eq!(numbers(&client.resources("urxe0", ResourceKind::Qp)), qpns);
    assert_eq!(numbers(&client.resources("urxe0", ResourceKind::Mr)), keys);
    let cqs = numbers(&client.resources("urxe0", ResourceKind::Cq));
    assert_eq!(cqs.len(), COUNT);
    assert!(cqs.is_sorted_by(|a, b| a < b));
}

#[test]
fn a_list_behind_the_last_number_is_empty_and_of_no_device_is_refused() {
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
    end.client.create_qp(end.pd, end.cq.handle, CAPS);
    for kind in KINDS {
        let request = Request::Resources { device: "urxe0".into(), kind, from: BEHIND_ALL };
        let reply = end.client.call(request).unwrap();
        assert_eq!(reply, urxe_shm::control::Reply::Resources(Default::default()));
        let from = Cursor::default();
        let request = Request::Resources { device: "urxe7".into(), kind, from };
        let error = end.client.call(request).unwrap_err();
        assert_eq!(error.errno, Errno::NODEV.raw_os_error());
    }
}

const BEHIND_ALL: Cursor = Cursor { slot: u8::MAX, after: Some(u32::MAX) };

fn paths(client: &mut Client, from: Cursor) -> PathPage {
    let reply = client.call(Request::Paths { device: "urxe0".into(), from }).unwrap();
    let Reply::Paths(page) = reply else { panic!("{reply:?}") };
    page
}

#[test]
fn paths_are_listed_for_those_who_may_see_all_programs() {
    let (first, second) = (start(1), start(1));
    let (mut a, b) = connected(&first, &second, Kind::Shared, 4096);
    let page = paths(&mut a.client, Cursor::default());
    let [path] = &page.paths[..] else { panic!("{page:?}") };
    assert_eq!((path.local, path.peer, path.qps), (a.addr, b.addr, 1));
    assert!(path.outward.window > 0 && path.outward.in_flight == 0, "{path:?}");
    assert_eq!(paths(&mut a.client, BEHIND_ALL), PathPage::default());
    let request = Request::Paths { device: "urxe7".into(), from: Cursor::default() };
    assert_eq!(a.client.call(request).unwrap_err().errno, Errno::NODEV.raw_os_error());
    if rustix::process::geteuid().is_root() {
        let mut other = Client::of_ordinary_user(first.socket());
        assert_eq!(paths(&mut other, Cursor::default()), PathPage::default());
    } else {
        needs_root("needs root, to be two users");
    }
}

#[test]
fn paths_come_in_pages_in_order() {
    const COUNT: usize = 600;
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
    for peer in 0..COUNT {
        let qp = end.client.create_qp(end.pd, end.cq.handle, CAPS);
        let peer = IpAddr::from([127, 200, (peer / 256) as u8, peer as u8]);
        for attr in attrs(peer, Qpn::new(0x11)) {
            end.client.modify(&qp, attr).unwrap();
        }
    }
    let (mut all, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        let page = paths(&mut end.client, cursor);
        all.extend(page.paths.iter().map(|path| path.number));
        from = page.next;
    }
    assert_eq!(all.len(), COUNT);
    assert!(all.is_sorted_by(|a, b| a < b));
}
