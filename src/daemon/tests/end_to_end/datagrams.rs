//! UD between two daemons, over real sockets: address handles, Q_Keys, multicast.

use crate::harness::{
    Client, End, Kind, QKEY, Random, av, connected, datagram_attrs, eventually, fresh_addr,
    pattern, start,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::{IpAddr, Ipv4Addr};
use urxe_shell::testing::needs_root;
use urxe_shm::control::{ControlError, Request};
use urxe_shm::ring::layout::WC_GRH;
use urxe_slot::limits;
use urxe_types::{
    AhId, DatagramPath, Destination, Gid, Qkey, QpAttr, QpState, QpType, Qpn, SendData, WcOpcode,
};

/// Bytes in front of every datagram received.
const GRH: usize = 40;

const LOCAL_QP_OPERATION: u32 = 2;
const FLUSHED: u32 = 5;

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
fn datagrams_arrive_with_their_headers_in_front() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let mut a = End::datagram(&first, 0, kind, 8192);
        let mut b = End::datagram(&second, 0, kind, 8192);
        let (_, ah_num) = a.client.create_ah(a.pd, b.addr);
        let by_handle = Destination { path: DatagramPath::Handle(ah_num), ..b.destination() };
        for (round, size) in (0..).zip([0, 1, 1024, 4096]) {
            for to in [by_handle, b.destination()] {
                let data = pattern(size, round);
                a.mr.write(0, &data);
                b.post_recv(round, &[b.mr.sge(0, 8192)]);
                let sge = a.mr.sge(0, size);
                a.post_datagram(round, to, SendData::Sges(&[sge]));
                assert_eq!(a.cq.wait(1)[0].status, 0);
                let received = b.cq.wait(1)[0];
                assert_eq!((received.status, received.opcode), (0, WcOpcode::Recv as u32));
                assert_eq!((received.wr_id, received.byte_len as usize), (round, GRH + size));
                assert_eq!((received.src_qp, received.wc_flags), (a.qp.created.qpn.get(), WC_GRH));
                assert!(b.mr.read(GRH, size) == data, "{kind:?}, {size} bytes");
                // An IPv4 header from there to here.
                let header = b.mr.read(20, 20);
                let addr =
                    |at: usize| IpAddr::from(<[u8; 4]>::try_from(&header[at..][..4]).unwrap());
                assert_eq!((header[0], addr(12), addr(16)), (0x45, a.addr, b.addr));
            }
        }
    }
}

#[test]
fn a_datagram_with_another_qkey_is_dropped_and_takes_no_receive() {
    let (first, second) = (start(1), start(1));
    let mut a = End::datagram(&first, 0, Kind::Shared, 4096);
    let mut b = End::datagram(&second, 0, Kind::Shared, 4096);
    b.post_recv(1, &[b.mr.sge(0, 4096)]);
    let wrong = Destination { qkey: Qkey(QKEY.0 + 1), ..b.destination() };
    a.post_datagram(1, wrong, SendData::Inline(b"wrong"));
    eventually("it is counted", || (b.client.counter("urxe0", "drop_bad_qkey") == 1).then_some(()));
    a.post_datagram(2, b.destination(), SendData::Inline(b"right"));
    b.cq.wait(1);
    assert_eq!(b.mr.read(GRH, 5), b"right");
}

/// A UD QP that failed to send goes to SQE: what is behind is flushed, receives go on, and it can
/// be taken back to RTS.
#[test]
fn address_handles_of_others_and_unknown_ones_open_no_path() {
    let (first, second) = (start(1), start(1));
    let mut a = End::datagram(&first, 0, Kind::Shared, 4096);
    let mut b = End::datagram(&second, 0, Kind::Shared, 4096);
    let mut other = Client::connect(first.socket());
    let context = other.open("urxe0");
    let pd = other.alloc_pd(context);
    let (_, foreign) = other.create_ah(pd, b.addr);
    let own_pd = a.client.alloc_pd(a.context);
    let (_, of_another_pd) = a.client.create_ah(own_pd, b.addr);
    let (ah, destroyed) = a.client.create_ah(a.pd, b.addr);
    a.client.call(Request::DestroyAh { ah }).unwrap();

    b.post_recv(0, &[b.mr.sge(0, 4096)]);
    for number in [foreign, of_another_pd, destroyed, AhId(0xdead_beef), AhId(u32::MAX)] {
        let path = DatagramPath::Handle(number);
        a.post_datagram(1, Destination { path, ..b.destination() }, SendData::Inline(b"no"));
        a.post_datagram(2, b.destination(), SendData::Inline(b"behind"));
        let entries = a.cq.wait(2);
        let ends: Vec<_> = entries.iter().map(|entry| (entry.wr_id, entry.status)).collect();
        assert_eq!(ends, [(1, LOCAL_QP_OPERATION), (2, FLUSHED)], "{number:?}");
        assert_eq!(a.client.state(&a.qp), QpState::Sqe);
        a.post_recv(3, &[a.mr.sge(0, 4096)]);
        b.post_datagram(4, a.destination(), SendData::Inline(b"to SQE"));
        assert_eq!(a.cq.wait(1)[0].wr_id, 3);
        assert_eq!(b.cq.wait(1)[0].wr_id, 4);
        let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        a.client.modify(&a.qp, rts).unwrap();
    }
    a.post_datagram(1, b.destination(), SendData::Inline(b"at last"));
    assert_eq!(b.cq.wait(1)[0].wr_id, 0);
}

#[test]
fn random_destinations_harm_no_other_program() {
    let (first, second) = (start(1), start(1));
    let mut a = End::datagram(&first, 0, Kind::Shared, 4096);
    let mut b = End::datagram(&second, 0, Kind::Shared, 4096);
    let mut random = Random::new(77);
    let (mut sent, mut refused) = (0, 0);
    for wr_id in 0..300 {
        let mut vector = av(fresh_addr());
        vector.dgid = Gid(random.bytes(16).try_into().unwrap()).to_ip();
        if random.below(2) == 0 {
            vector.dgid = fresh_addr();
        }
        vector.sgid_index = random.below(3) as u8;
        let path = match random.below(3) {
            0 => DatagramPath::Handle(AhId(random.next() as u32 | 1)),
            _ => DatagramPath::Vector(vector),
        };
        let (qpn, qkey) = (Qpn::new(random.next() as u32), Qkey(random.next() as u32));
        a.post_datagram(wr_id, Destination { path, qpn, qkey }, SendData::Inline(b"who?"));
        match a.cq.wait(1)[0].status {
            0 => sent += 1,
            _ => {
                refused += 1;
                let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
                a.client.modify(&a.qp, rts).unwrap();
            }
        }
    }
    assert!(sent > 10 && refused > 10, "{sent} sent, {refused} refused");
    b.post_recv(1, &[b.mr.sge(0, 4096)]);
    a.post_datagram(1, b.destination(), SendData::Inline(b"you"));
    b.cq.wait(1);
    assert_eq!(b.mr.read(GRH, 3), b"you");
}

#[test]
fn refused_address_handles_say_why() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let mut refused = |av, sentence| {
        assert_refused(client.call(Request::CreateAh { pd, av }), Errno::INVAL, sentence);
    };
    let to = av(fresh_addr());
    refused(urxe_types::AddressVector { sgid_index: 7, ..to }, "sgid_index 7");
    // WHY-005
    refused(urxe_types::AddressVector { sgid_index: 7, ..to }, "it has 0 = ::ffff:127.");
    refused(av("fe80::1".parse().unwrap()), "fe80::1");
    refused(av("fe80::1".parse().unwrap()), "it has 0 = ::ffff:127.");
}

/// A group that no other test uses.
pub(crate) fn fresh_group() -> IpAddr {
    let IpAddr::V4(addr) = fresh_addr() else { unreachable!("fresh addresses are IPv4") };
    let [_, b, c, d] = addr.octets();
    Ipv4Addr::new(239, b, c, d).into()
}

fn attach(end: &mut End, group: IpAddr) -> Result<(), ControlError> {
    let request = Request::AttachMcast { qp: end.qp.created.qp, gid: group.into() };
    end.client.call(request).map(|_| ())
}

fn detach(end: &mut End, group: IpAddr) -> Result<(), ControlError> {
    let request = Request::DetachMcast { qp: end.qp.created.qp, gid: group.into() };
    end.client.call(request).map(|_| ())
}

fn to_group(group: IpAddr) -> Destination {
    Destination { path: DatagramPath::Vector(av(group)), qpn: Qpn::MULTICAST, qkey: QKEY }
}

#[test]
fn every_attached_qp_of_every_daemon_gets_a_copy_and_no_other() {
    let (first, second) = (start(1), start(1));
    let group = fresh_group();
    // Two programs of one daemon, one of another, and one that is not attached.
    let mut members: Vec<End> =
        [&first, &first, &second].map(|daemon| End::datagram(daemon, 0, Kind::Shared, 4096)).into();
    let mut stranger = End::datagram(&second, 0, Kind::Shared, 4096);
    for member in &mut members {
        attach(member, group).unwrap();
        attach(member, group).unwrap();
    }
    for end in members.iter_mut().chain([&mut stranger]) {
        for wr_id in [1, 2] {
            end.post_recv(wr_id, &[end.mr.sge(0, 4096)]);
        }
    }
    // From a member: its own copy comes back to it.
    let own = members[0].qp.created.qpn.get();
    members[0].post_datagram(9, to_group(group), SendData::Inline(b"to all"));
    for (index, member) in members.iter_mut().enumerate() {
        let expected = if index == 0 { 2 } else { 1 };
        let entries = member.cq.wait(expected);
        let received: Vec<_> =
            entries.iter().filter(|entry| entry.opcode == WcOpcode::Recv as u32).collect();
        assert_eq!(received.len(), 1, "{entries:?}");
        assert_eq!((received[0].status, received[0].src_qp), (0, own));
        assert_eq!(member.mr.read(GRH, 6), b"to all");
    }

    // Those that are left still get theirs.
    detach(&mut members[1], group).unwrap();
    detach(&mut members[2], group).unwrap();
    assert_refused(detach(&mut members[2], group), Errno::INVAL, "not attached");
    stranger.post_datagram(9, to_group(group), SendData::Inline(b"to one"));
    assert_eq!(members[0].cq.wait(1)[0].status, 0);
    assert_eq!(members[0].mr.read(GRH, 6), b"to one");
    for end in &mut members[1..] {
        assert_eq!(end.cq.poll(), []);
    }
    assert_eq!(stranger.cq.wait(1)[0].wr_id, 9);
}

#[test]
fn a_group_is_left_with_its_last_qp_however_that_goes() {
    let (first, second) = (start(1), start(1));
    let mut sender = End::datagram(&second, 0, Kind::Shared, 64);
    let mut witness = End::datagram(&first, 0, Kind::Shared, 4096);
    let group = fresh_group();
    for way in 0..4 {
        let mut member = End::datagram(&first, 0, Kind::Shared, 4096);
        attach(&mut member, group).unwrap();
        member.post_recv(1, &[member.mr.sge(0, 4096)]);
        sender.post_datagram(1, to_group(group), SendData::Inline(b"hello"));
        sender.cq.wait(1);
        member.cq.wait(1);
        match way {
            0 => detach(&mut member, group).unwrap(),
            1 => drop(member.client.call(Request::DestroyQp { qp: member.qp.created.qp }).unwrap()),
            2 => {
                let request = Request::CloseDevice { context: member.context };
                drop(member.client.call(request).unwrap());
            }
            _ => drop(member),
        }
        // Its place is free at once for others, and nobody else's is taken.
        eventually("the group is left", || {
            let groups = std::fs::read_to_string("/proc/net/igmp").unwrap();
            let IpAddr::V4(group) = group else { unreachable!() };
            let listed = format!("{:08X}", u32::from_be(group.to_bits()));
            (!groups.contains(&listed)).then_some(())
        });
        witness.post_recv(1, &[witness.mr.sge(0, 4096)]);
        sender.post_datagram(2, witness.destination(), SendData::Inline(b"hello"));
        sender.cq.wait(1);
        witness.cq.wait(1);
    }
}

/// Each group is a descriptor of the daemon's, which other programs need too.
#[test]
fn one_program_is_in_so_many_groups_and_no_more() {
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    setrlimit(Resource::Nofile, descriptors).unwrap();
    let daemon = start(1);
    let mut end = End::datagram(&daemon, 0, Kind::Shared, 64);
    let groups: Vec<IpAddr> = (0..limits::MAX_MCAST_GROUPS).map(|_| fresh_group()).collect();
    for &group in &groups {
        attach(&mut end, group).unwrap();
    }
    assert_refused(attach(&mut end, fresh_group()), Errno::NOMEM, "this session has 256");
    detach(&mut end, groups[0]).unwrap();
    attach(&mut end, fresh_group()).unwrap();
}

#[test]
fn a_group_that_cannot_be_joined_is_refused_and_nothing_is_attached() {
    let daemon = start(1);
    let mut end = End::datagram(&daemon, 0, Kind::Shared, 64);
    let not_a_group: IpAddr = [10, 0, 0, 1].into();
    assert_refused(attach(&mut end, not_a_group), Errno::INVAL, "multicast");
    let other_family: IpAddr = "ff02::1234".parse().unwrap();
    let refused = attach(&mut end, other_family).unwrap_err();
    assert!(refused.message.contains("ff02::1234"), "{refused:?}");
    assert_refused(detach(&mut end, other_family), Errno::INVAL, "not attached");

    let other = start(1);
    let (mut a, _b) = connected(&daemon, &other, Kind::Shared, 64);
    let request = Request::AttachMcast { qp: a.qp.created.qp, gid: fresh_group().into() };
    assert_refused(a.client.call(request), Errno::INVAL, "must be UD");

    // The kernel lets one socket join so many groups; what is refused is named, and what was
    // joined stays.
    let groups: Vec<IpAddr> = (0..200).map(|_| fresh_group()).collect();
    let joined = groups.iter().take_while(|&&group| match attach(&mut end, group) {
        Ok(()) => true,
        Err(error) => {
            assert!(error.message.contains(&group.to_string()), "{error:?}");
            false
        }
    });
    let joined = joined.count();
    assert!(joined >= 10, "{joined}");
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    end.client.modify(&end.qp, reset).unwrap();
    for attr in datagram_attrs() {
        end.client.modify(&end.qp, attr).unwrap();
    }
    for &group in &groups[..joined] {
        detach(&mut end, group).unwrap();
    }
    for &group in &groups[joined..] {
        attach(&mut end, group).unwrap();
        detach(&mut end, group).unwrap();
    }
}

#[test]
fn a_controlled_qkey_is_for_programs_of_root() {
    let daemon = start(1);
    let client = Client::of_ordinary_user(daemon.socket());
    let mut ordinary = End::with(client, "urxe0", QpType::Ud, Kind::Process, 64);
    let [init, rtr, rts] = datagram_attrs();
    let with = |qkey, attr: &QpAttr| QpAttr { qkey: Some(Qkey(qkey)), ..attr.clone() };
    let mut modify = |attr| ordinary.client.modify(&ordinary.qp, attr);
    let refused = modify(with(0x8001_0000, &init)).unwrap_err();
    assert_eq!(refused.errno, Errno::PERM.raw_os_error());
    assert!(refused.message.contains("qkey 0x80010000"), "{refused}");
    for attr in [with(0x7fff_ffff, &init), rtr, rts] {
        modify(attr).unwrap();
    }
    let refused = modify(with(0x8000_0000, &QpAttr::default())).unwrap_err();
    assert_eq!(refused.errno, Errno::PERM.raw_os_error());
    if rustix::process::geteuid().is_root() {
        let mut root = End::of_type(daemon.socket(), "urxe0", QpType::Ud, Kind::Shared, 64);
        root.client.modify(&root.qp, with(0x8000_0000, &init)).unwrap();
    } else {
        needs_root("needs root, to be a program of root");
    }
}
