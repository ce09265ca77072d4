//! What requests are refused, by which number and in which words; and that a refusal changes
//! nothing.

use crate::harness::{ALL, CAPS, Client, End, Kind, connected, eventually, start};
use crate::hosted::talk;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::os::fd::AsFd;
use urxe_shell::testing::could_not_run;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::closing::has_hung_up;
use urxe_shm::control::{
    Backing, ContextHandle, ControlError, CqHandle, Cursor, PdHandle, QpCaps, QpHandle, Reply,
    Request, SrqAttr, SrqHandle, WhyCopied,
};
use urxe_shm::memory::region::create_memfd;
use urxe_slot::limits;
use urxe_types::{Access, Extra, Gid, MwType, QpAttr, QpState, QpType, Qpn, SendData, SendOp};

fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, ControlError>,
    errno: Errno,
    sentence: &str,
) {
    let error = result.unwrap_err();
    assert_eq!(error.errno, errno.raw_os_error(), "{error:?}");
    assert!(error.message.contains(sentence), "{:?} lacks {sentence:?}", error.message);
}

#[test]
fn hello_comes_first_and_once() {
    let daemon = start(1);
    let mut channel = Channel::connect(daemon.socket()).unwrap();
    let (reply, _) = channel.call(&Request::ListDevices, &[]).unwrap();
    let Reply::Error(error) = reply else { panic!("{reply:?}") };
    assert_refused::<()>(Err(error), Errno::PROTO, "first request must be Hello");

    let mut client = Client::connect(daemon.socket());
    let again = client.call(Request::Hello { program: String::new() });
    assert_refused(again, Errno::PROTO, "before");
}

#[test]
fn hello_takes_no_other_descriptor_than_the_programs_memory() {
    let daemon = start(1);
    let mut channel = Channel::connect(daemon.socket()).unwrap();
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let hello = Request::Hello { program: "liar".into() };
    let (reply, _) = channel.call(&hello, &[pipe.as_fd()]).unwrap();
    let Reply::Error(error) = reply else { panic!("{reply:?}") };
    assert_refused::<()>(Err(error), Errno::INVAL, "not a /proc/<pid>/mem file");
    // And without it, all is well but process memory.
    let (reply, _) = channel.call(&hello, &[]).unwrap();
    assert!(matches!(reply, Reply::Hello { .. }), "{reply:?}");
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let (channel, _pipe) = client.comp_channel(context);
    let cq = client.create_cq(context, 10, Some(channel)).handle;
    let srq = client.create_srq(pd, 10).handle;
    let qp = client.create_qp_of(pd, cq, QpType::Rc, Some(srq)).unwrap();
    let mr = client.shared_mr(pd, 4096);
    let (ah, _) = client.create_ah(pd, [127, 0, 0, 1].into());
    let (mw, _) = client.alloc_mw(pd, MwType::One);

    let dealloc_pd = Request::DeallocPd { pd };
    let destroy_cq = Request::DestroyCq { cq };
    let destroy_channel = Request::DestroyCompChannel { channel };
    let destroy_srq = Request::DestroySrq { srq };
    assert_refused(client.call(dealloc_pd.clone()), Errno::BUSY, "1 memory registration");
    assert_refused(client.call(destroy_cq.clone()), Errno::BUSY, "1 queue pair");
    assert_refused(client.call(destroy_channel.clone()), Errno::BUSY, "1 completion queue");
    client.call(Request::DeregMr { mr: mr.handle }).unwrap();
    assert_refused(client.call(dealloc_pd.clone()), Errno::BUSY, "1 memory window");
    client.call(Request::DeallocMw { mw }).unwrap();
    assert_refused(client.call(dealloc_pd.clone()), Errno::BUSY, "1 queue pair");
    assert_refused(client.call(destroy_srq.clone()), Errno::BUSY, "1 queue pair");
    client.call(Request::DestroyQp { qp: qp.created.qp }).unwrap();
    assert_refused(client.call(dealloc_pd.clone()), Errno::BUSY, "1 shared receive queue");
    client.call(destroy_srq.clone()).unwrap();
    assert_refused(client.call(dealloc_pd.clone()), Errno::BUSY, "1 address handle");
    client.call(Request::DestroyAh { ah }).unwrap();
    client.call(dealloc_pd.clone()).unwrap();
    client.call(destroy_cq.clone()).unwrap();
    client.call(destroy_channel.clone()).unwrap();

    assert_refused(client.call(dealloc_pd), Errno::NOENT, "does not exist");
    assert_refused(client.call(destroy_cq), Errno::NOENT, "does not exist");
    assert_refused(client.call(destroy_channel), Errno::NOENT, "does not exist");
    assert_refused(client.call(destroy_srq), Errno::NOENT, "does not exist");
    assert_refused(client.call(Request::DestroyAh { ah }), Errno::NOENT, "does not exist");
    assert_refused(client.call(Request::DeallocMw { mw }), Errno::NOENT, "does not exist");
}

#[test]
fn no_handle_is_given_twice() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let first = client.alloc_pd(context);
    client.call(Request::DeallocPd { pd: first }).unwrap();
    for _ in 0..100 {
        let pd = client.alloc_pd(context);
        assert_ne!(pd, first);
        client.call(Request::DeallocPd { pd }).unwrap();
    }
}

#[test]
fn handles_of_another_session_do_not_exist() {
    let daemon = start(1);
    let mut owner = End::new(&daemon, 0, Kind::Shared, 4096);
    let mut thief = Client::connect(daemon.socket());
    let qp = owner.qp.created.qp;
    let srq = owner.client.create_srq(owner.pd, 10).handle;
    let (ah, _) = owner.client.create_ah(owner.pd, owner.addr);
    let (mw, _) = owner.client.alloc_mw(owner.pd, MwType::One);
    let av = crate::harness::av(owner.addr);
    let gid = Gid::from(std::net::IpAddr::from([239, 1, 1, 1]));
    let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
    let requests = [
        Request::QueryDevice { context: owner.context },
        Request::AllocPd { context: owner.context },
        Request::DeallocPd { pd: owner.pd },
        Request::DeregMr { mr: owner.mr.handle },
        Request::DestroyCq { cq: owner.cq.handle },
        Request::DestroyQp { qp },
        Request::QueryQp { qp },
        Request::ExplainFailure { qp, cause: 2 },
        Request::ModifyQp { qp, attr: QpAttr::default() },
        Request::CreateSrq { pd: owner.pd, attr, user_handle: 0 },
        Request::ModifySrq { srq, max_wr: None, limit: Some(1) },
        Request::QuerySrq { srq },
        Request::DestroySrq { srq },
        Request::CreateAh { pd: owner.pd, av },
        Request::DestroyAh { ah },
        Request::AllocMw { pd: owner.pd, mw_type: MwType::Two },
        Request::DeallocMw { mw },
        Request::AttachMcast { qp, gid },
        Request::DetachMcast { qp, gid },
        Request::CloseDevice { context: owner.context },
    ];
    for request in requests {
        assert_refused(thief.call(request), Errno::NOENT, "does not exist in this session");
    }
    assert_eq!(owner.client.state(&owner.qp), QpState::Reset);
}

#[test]
fn quotas_end_in_enomem_and_leave_the_rest_alone() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");

    let kept_pd = client.alloc_pd(context);
    for _ in 1..limits::MAX_PDS {
        client.alloc_pd(context);
    }
    let pd = client.call(Request::AllocPd { context });
    assert_refused(pd, Errno::NOMEM, "protection domains: this session has 65536");

    // Each is a descriptor of the daemon's, which is this process.
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    setrlimit(Resource::Nofile, descriptors).unwrap();
    if descriptors.maximum.is_none_or(|most| most > 2 * limits::MAX_CHANNELS as u64) {
        for _ in 0..limits::MAX_CHANNELS {
            client.comp_channel(context);
        }
        let channel = client.call(Request::CreateCompChannel { context });
        assert_refused(channel, Errno::NOMEM, "completion channels: this session has 16384");
    } else {
        could_not_run("so many completion channels, by the limit of open descriptors");
    }

    let av = crate::harness::av([127, 0, 0, 1].into());
    let mut handles = Vec::new();
    for _ in 0..limits::MAX_AHS {
        let Ok(Reply::Ah { ah, .. }) = client.call(Request::CreateAh { pd: kept_pd, av }) else {
            panic!()
        };
        handles.push(ah);
    }
    let ah = client.call(Request::CreateAh { pd: kept_pd, av });
    assert_refused(ah, Errno::NOMEM, "address handles: this session has 32767");
    client.call(Request::DestroyAh { ah: handles[7] }).unwrap();
    client.create_ah(kept_pd, [127, 0, 0, 1].into());

    let largest = Request::CreateCq {
        context,
        cqe: limits::MAX_CQE,
        channel: None,
        user_handle: 0,
        comp_vector: 0,
    };
    let mut cqs = Vec::new();
    let refused = loop {
        match client.call(largest.clone()) {
            Ok(Reply::Cq { cq, .. }) => cqs.push(cq),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(cqs.len() > 10, "{}", cqs.len());
    assert_refused::<()>(Err(refused), Errno::NOMEM, "quota");
    // What is given back can be had again, and nothing was lost to the refusal.
    client.call(Request::DestroyCq { cq: cqs[3] }).unwrap();
    client.call(largest.clone()).unwrap();
    assert_refused(client.call(largest), Errno::NOMEM, "quota");

    let mut other = Client::connect(daemon.socket());
    let context = other.open("urxe0");
    other.alloc_pd(context);
    other.create_cq(context, limits::MAX_CQE, None);
}

#[test]
fn refused_registrations_say_why() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let bytes = vec![0u8; 4096];
    let addr = bytes.as_ptr() as u64;
    let process = Backing::Process { why: WhyCopied::NotAsked };
    let shared = Backing::Shared { offset: 0 };
    let request = |addr, length, access, backing| Request::RegMr {
        pd,
        addr,
        length,
        iova: addr,
        access,
        backing,
    };
    let mut refused = |request: Request, fds: &[std::os::fd::BorrowedFd<'_>], errno, sentence| {
        assert_refused(client.call_with(&request, fds), errno, sentence);
    };
    let sealed = create_memfd("sealed", 4096).unwrap();
    let plain = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();

    let too_long = limits::MAX_MR_SIZE + 1;
    refused(request(addr, too_long, ALL, process), &[], Errno::INVAL, "expected at most");
    refused(request(addr, 0, ALL, shared), &[], Errno::PROTO, "no descriptor");
    refused(request(u64::MAX - 9, 11, ALL, process), &[], Errno::INVAL, "wrap around");
    refused(
        request(addr, 4096, Access::from_bits_retain(1 << 10), process),
        &[],
        Errno::INVAL,
        "bits 0x400",
    );
    let persistent = Access::FLUSH_PERSISTENT;
    refused(request(addr, 4096, persistent, process), &[], Errno::OPNOTSUPP, "persistent");
    refused(request(addr, 1, Access::REMOTE_WRITE, process), &[], Errno::INVAL, "local write");
    let iova = addr + 1;
    let shifted = Request::RegMr { pd, addr, length: 1, iova, access: ALL, backing: process };
    refused(shifted, &[], Errno::INVAL, "expected the offset in its page");
    refused(request(4096, 1, ALL, process), &[], Errno::FAULT, "cannot be reached");
    refused(request(addr, 1 << 40, ALL, process), &[], Errno::FAULT, "cannot be reached");
    refused(request(addr, 1, ALL, process), &[sealed.as_fd()], Errno::PROTO, "no descriptor");
    refused(request(addr, 1, ALL, shared), &[], Errno::PROTO, "no descriptor");
    refused(request(addr, 1, ALL, shared), &[plain.as_fd()], Errno::INVAL, "memfd");
    refused(request(addr, 4097, ALL, shared), &[sealed.as_fd()], Errno::INVAL, "4096 bytes");
    // MEM-062
    let pages = |offset, before, len| Backing::WholePages { offset, before, len };
    for (before, len) in [(0, 0), (0, 4097), (4000, 97), (u64::MAX, 4096), (4096, 1)] {
        let request = request(addr, 4096, ALL, pages(0, before, len));
        refused(request, &[sealed.as_fd()], Errno::INVAL, "than the 4096 that are");
    }
    refused(request(addr, 4096, ALL, pages(0, 0, 1)), &[], Errno::PROTO, "no descriptor");
    let beyond = request(addr, 4096, ALL, pages(1, 0, 4096));
    refused(beyond, &[sealed.as_fd()], Errno::INVAL, "4096 bytes");
    let nowhere = request(4096, 4096, ALL, pages(0, 0, 4096));
    refused(nowhere, &[sealed.as_fd()], Errno::FAULT, "cannot be reached");
}

#[test]
fn memory_of_no_bytes_can_be_registered_and_opens_nothing() {
    const REMOTE_ACCESS: u32 = 10;
    let (first, second) = (start(1), start(1));
    let memfd = create_memfd("nothing", 0).unwrap();
    let shared = Backing::Shared { offset: 0 };
    let backings =
        [(Backing::Process { why: WhyCopied::NotAsked }, &[][..]), (shared, &[memfd.as_fd()][..])];
    for (backing, fds) in backings {
        let (mut a, mut b) = crate::harness::connected(&first, &second, Kind::Shared, 4096);
        // There may be nothing at all at its address.
        let (pd, addr) = (b.pd, 4096);
        let request = Request::RegMr { pd, addr, length: 0, iova: addr, access: ALL, backing };
        let (reply, _) = b.client.call_with(&request, fds).unwrap();
        let Reply::Mr { mr, rkey, .. } = reply else { panic!("{reply:?}") };
        let sge = |length| [a.mr.sge(0, length)];
        let (none, one) = (sge(0), sge(1));
        let write = SendOp::Write { remote_addr: addr, rkey, imm: None };
        assert_eq!(a.exchange(write, &none).status, 0);
        a.post_send(1, write, urxe_types::SendData::Sges(&one));
        assert_eq!(a.cq.wait(1)[0].status, REMOTE_ACCESS);
        b.client.call(Request::DeregMr { mr }).unwrap();
    }
}

#[test]
fn memory_may_be_registered_on_demand() {
    // So much that no page is there before it is used.
    const LEN: usize = 1 << 20;
    const GRH: usize = 40;
    let (first, second) = (start(1), start(1));
    let mut client = Client::connect(first.socket());
    let context = client.open("urxe0");
    let Ok(Reply::Device(attr)) = client.call(Request::QueryDevice { context }) else { panic!() };
    assert_eq!((attr.odp_caps.rc, attr.odp_caps.ud), (0x3f, 0x23));
    let access = ALL | Access::ON_DEMAND | Access::HUGETLB;
    let on_demand = |mut end: End, kind| {
        end.mr = end.client.mr_with(end.pd, kind, LEN, access);
        end
    };
    for kind in [Kind::Shared, Kind::Process] {
        let (a, b) = connected(&first, &second, kind, 1);
        talk(&mut on_demand(a, kind), &mut on_demand(b, kind));
        let [mut a, mut b] =
            [&first, &second].map(|daemon| on_demand(End::datagram(daemon, 0, kind, 1), kind));
        a.mr.write(0, b"datagram");
        b.post_recv(1, &[b.mr.sge(0, 100)]);
        a.post_datagram(2, b.destination(), SendData::Sges(&[a.mr.sge(0, 8)]));
        assert_eq!((a.cq.wait(1)[0].status, b.cq.wait(1)[0].status), (0, 0));
        assert_eq!(b.mr.read(GRH, 8), b"datagram");
    }
}

#[test]
fn refused_queues_say_why() {
    let daemon = start(2);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let cq_of = |cqe, comp_vector| Request::CreateCq {
        context,
        cqe,
        channel: None,
        user_handle: 0,
        comp_vector,
    };
    assert_refused(client.call(cq_of(0, 0)), Errno::INVAL, "cqe 0: expected 1 to 4194303");
    assert_refused(client.call(cq_of(1 << 22, 0)), Errno::INVAL, "cqe 4194304");
    assert_refused(client.call(cq_of(1, 1)), Errno::INVAL, "comp_vector 1");

    let pd = client.alloc_pd(context);
    let cq = client.create_cq(context, 10, None).handle;
    let elsewhere = client.open("urxe1");
    let foreign = client.create_cq(elsewhere, 10, None).handle;
    let caps = QpCaps { max_send_sge: limits::MAX_SGE + 1, ..CAPS };
    assert_refused(client.try_create_qp(pd, cq, cq, caps), Errno::INVAL, "max_send_sge 33");
    let qp = client.try_create_qp(pd, cq, foreign, CAPS);
    assert_refused(qp, Errno::INVAL, "of another context");
    let qp = client.try_create_qp(pd, CqHandle(9999), cq, CAPS);
    assert_refused(qp, Errno::NOENT, "send_cq handle 9999");

    let srq_of = |max_wr, max_sge, limit| Request::CreateSrq {
        pd,
        attr: SrqAttr { max_wr, max_sge, limit },
        user_handle: 0,
    };
    for (request, sentence) in [
        (srq_of(0, 1, 0), "max_wr 0: expected 1 to 1048575"),
        (srq_of(1 << 20, 1, 0), "max_wr 1048576: expected 1 to 1048575"),
        (srq_of(1, 33, 0), "max_sge 33: expected at most 32"),
        (srq_of(100, 1, 128), "srq_limit 128: expected at most 127"),
    ] {
        assert_refused(client.call(request), Errno::INVAL, sentence);
    }
    let Ok(Reply::Srq { attr, .. }) = client.call(srq_of(1, 0, 0)) else { panic!() };
    assert_eq!(attr.max_sge, 1, "a receive has room for one at least");
    let elsewhere_pd = client.alloc_pd(elsewhere);
    let foreign = client.create_srq(elsewhere_pd, 10).handle;
    let qp = client.create_qp_of(pd, cq, QpType::Rc, Some(foreign));
    assert_refused(qp.map(|_| ()), Errno::INVAL, "of another context");
    let qp = client.create_qp_of(pd, cq, QpType::Rc, Some(SrqHandle(9999)));
    assert_refused(qp.map(|_| ()), Errno::NOENT, "srq handle 9999");
}

#[test]
fn a_refused_change_leaves_a_qp_as_it_was() {
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
    let too_early = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    let refused = end.client.modify(&end.qp, too_early);
    assert_refused(refused, Errno::INVAL, "RESET");
    let [init, mut rtr, _] = crate::harness::attrs(end.addr, Qpn::new(1));
    end.client.modify(&end.qp, init).unwrap();
    rtr.min_rnr_timer = Some(32);
    assert_refused(end.client.modify(&end.qp, rtr), Errno::INVAL, "min_rnr_timer 32");
    assert_eq!(end.client.state(&end.qp), QpState::Init);
}

#[test]
fn a_device_says_what_it_is() {
    let daemon = start(2);
    let mut client = Client::connect(daemon.socket());
    let Ok(Reply::Devices(devices)) = client.call(Request::ListDevices) else { panic!() };
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["urxe0", "urxe1"]);
    assert_ne!(devices[0].node_guid, devices[1].node_guid);
    let missing = client.call(Request::OpenDevice { name: "mlx5_0".into() });
    assert_refused(missing, Errno::NODEV, "there are urxe0, urxe1");

    let context = client.open("urxe1");
    let Ok(Reply::Device(device)) = client.call(Request::QueryDevice { context }) else { panic!() };
    assert_eq!(device.max_cqe, limits::MAX_CQE);
    assert_eq!(device.node_guid, devices[1].node_guid);
    let Ok(Reply::Port(port)) = client.call(Request::QueryPort { context, port: 1 }) else {
        panic!()
    };
    assert_eq!((port.active, port.interface.as_deref()), (true, Some("lo")));
    assert_eq!(port.gid_tbl_len, 32);
    let gid = client.call(Request::QueryGid { context, port: 1, index: 0 });
    assert_eq!(gid, Ok(Reply::Gid(Gid::from(daemon.devices()[1].addrs[0]))));
    let refused = client.call(Request::QueryPort { context, port: 2 });
    assert_refused(refused, Errno::INVAL, "port 2");
    let hole = client.call(Request::QueryGid { context, port: 1, index: 31 });
    assert_eq!(hole, Ok(Reply::Gid(Gid::default())));
    let refused = client.call(Request::QueryGid { context, port: 1, index: 32 });
    assert_refused(refused, Errno::INVAL, "GID index 32: the table has 32");
}

#[test]
fn closing_a_device_takes_all_that_lives_in_it_and_nothing_else() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let kept = client.open("urxe0");
    let kept_pd = client.alloc_pd(kept);
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let cq = client.create_cq(context, 10, None);
    let qp = client.create_qp(pd, cq.handle, CAPS);
    let mr = client.shared_mr(pd, 4096);
    assert_eq!(client.stats("urxe0").qps.len(), 1);

    client.call(Request::CloseDevice { context }).unwrap();
    assert_eq!(client.stats("urxe0").qps.len(), 0);
    let gone = [
        Request::DeallocPd { pd },
        Request::DestroyCq { cq: cq.handle },
        Request::QueryQp { qp: qp.created.qp },
        Request::DeregMr { mr: mr.handle },
        Request::QueryDevice { context },
    ];
    for request in gone {
        assert_refused(client.call(request), Errno::NOENT, "does not exist");
    }
    client.call(Request::DeallocPd { pd: kept_pd }).unwrap();
}

#[test]
fn deregistered_memory_cannot_be_accessed() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = crate::harness::connected(&first, &second, Kind::Shared, 4096);
    b.client.call(Request::DeregMr { mr: b.mr.handle }).unwrap();
    let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
    let sges = [a.mr.sge(0, 8)];
    let write = SendOp::Write { remote_addr, rkey, imm: None };
    a.post_send(1, write, urxe_types::SendData::Sges(&sges));
    const REMOTE_ACCESS: u32 = 10;
    assert_eq!(a.cq.wait(1)[0].status, REMOTE_ACCESS);
    // Its own lkey is no better, and an MR that is registered anew has another.
    let again = b.client.shared_mr(b.pd, 4096);
    assert_ne!(again.rkey, rkey);
}

#[test]
fn statistics_come_in_pages_and_mean_something() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let cq = client.create_cq(context, 10, None).handle;
    let small = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() };
    let mut qpns: Vec<u32> =
        (0..300).map(|_| client.try_create_qp(pd, cq, cq, small).unwrap().qpn.get()).collect();
    qpns.sort_unstable();

    let stats = client.stats("urxe0");
    let found: Vec<u32> = stats.qps.iter().map(|qp| qp.qpn).collect();
    assert_eq!(found, qpns, "all, by rising QPN, none twice");
    for qp in &stats.qps {
        assert_eq!(qp.values.len(), stats.qp_counters.len());
        assert_eq!(qp.program, format!("test[{}]", std::process::id()));
        assert_eq!(qp.state, QpState::Reset);
    }
    let mut names: Vec<_> = stats.device.iter().map(|(info, _)| &info.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "every counter of a device has a name of its own");
    let missing = client.call(Request::Stats { device: "urxe7".into(), from: Cursor::default() });
    assert_refused(missing, Errno::NODEV, "urxe7");
}

#[test]
fn unexpected_descriptors_are_refused() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let (read_end, write_end) = std::io::pipe().unwrap();
    let fds = [write_end.as_fd(), write_end.as_fd()];
    let refused = client.call_with(&Request::ListDevices, &fds);
    assert_refused(refused, Errno::PROTO, "2 descriptors");
    drop(write_end);
    eventually("they are closed", || has_hung_up(&read_end).then_some(()));
    // The session goes on.
    client.open("urxe0");
}

#[test]
fn handles_that_were_never_given_do_not_exist() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    for handle in [0, 1, 2, u32::MAX] {
        let requests = [
            Request::CloseDevice { context: ContextHandle(handle) },
            Request::DeallocPd { pd: PdHandle(handle) },
            Request::DestroyQp { qp: QpHandle(handle) },
        ];
        for request in requests {
            assert_refused(client.call(request), Errno::NOENT, "does not exist");
        }
    }
    let mut end = End::new(&daemon, 0, Kind::Shared, 64);
    end.connect(end.addr, end.qp.created.qpn);
    end.post_recv(1, &[]);
    end.post_send(2, SendOp::Send(Extra::None), urxe_types::SendData::Sges(&[]));
    end.cq.wait(2);
}
