//! Datagrams: programs ask for the QP of a service, and join multicast groups.

use crate::cm_client::{Caller, Line, addr_of, param, ud};
use crate::harness::{Client, Qp, eventually, start};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use urxe_daemon::Handle;
use urxe_shm::control::{
    CmConnParam, CmEventKind, CmPortSpace, CmReply, CmRequest, CmSubject, CmUdParam, Request,
};
use urxe_types::{
    DatagramPath, Destination, Extra, Qkey, QpState, QpType, Qpn, SendData, SendOp, SendWr,
};

const UDP: CmPortSpace = CmPortSpace::Udp;

/// The Q_Key of datagrams unless programs agree on another.
const UDP_QKEY: u32 = 0x0123_4567;

/// The QPN of all members of a group.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Bytes in front of every datagram received.
const GRH: usize = 40;

/// Status of a service that nobody offers, and of one whose program refuses.
const UNSUPPORTED: i32 = 1;
const REJECTED: i32 = 2;

/// A QP for an id that has a device, ready to send, with a receive posted.
fn ready_qp(caller: &mut Caller, line: &mut Line, id: urxe_shm::control::CmIdHandle) -> Qp {
    let mut qp = line.qp(&mut caller.client, QpType::Ud);
    caller.set_qp(id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    qp.rq().push(1, &[line.mr.sge(0, 2048)]).unwrap();
    assert!(!qp.rq().publish());
    qp
}

fn send(client: &mut Client, qp: &mut Qp, to: &CmUdParam, data: &[u8]) {
    let CmUdParam { qpn, qkey, av, .. } = to.clone();
    let to =
        Some(Destination { path: DatagramPath::Vector(av), qpn: Qpn::new(qpn), qkey: Qkey(qkey) });
    let op = SendOp::Send(Extra::None);
    let wr = SendWr { wr_id: 2, op, to, fence: false, signaled: true, solicited: false };
    qp.sq.push(&wr, SendData::Inline(data)).unwrap();
    qp.sq.publish();
    client.ring(qp);
}

fn ask_for_service(server: &Handle, client: &Handle) {
    let (mut passive, mut active) = (Caller::new(server.socket()), Caller::new(client.socket()));
    let to = SocketAddr::new(addr_of(server), 7174);
    let listener = passive.listen(UDP, 1, to);
    let id = active.resolve(UDP, 7, to);
    let mut line = Line::new(&mut active.client, "urxe0");
    let mut qp = ready_qp(&mut active, &mut line, id);
    let hello = param(qp.created.qpn.get(), b"hello");
    active.order(CmRequest::Connect { id, param: hello });

    let (new, asked) = passive.expect_request(1);
    let asked = ud(asked);
    assert_eq!((asked.qpn, asked.private_data.len()), (0, 180));
    assert!(asked.private_data.starts_with(b"hello\0"));
    let mut their_line = Line::new(&mut passive.client, "urxe0");
    let their_qp = ready_qp(&mut passive, &mut their_line, new);
    let param = param(their_qp.created.qpn.get(), b"welcome");
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param });

    let event = active.expect(7, CmEventKind::Established);
    let to = ud(event.param);
    assert_eq!((to.qpn, to.qkey), (their_qp.created.qpn.get(), UDP_QKEY));
    assert_eq!(to.private_data.len(), 136);
    assert!(to.private_data.starts_with(b"welcome\0"));
    send(&mut active.client, &mut qp, &to, b"a word");
    assert_eq!(line.cq.wait(1)[0].status, 0);
    let received = their_line.cq.wait(1)[0];
    assert_eq!((received.status, received.src_qp), (0, qp.created.qpn.get()));
    assert_eq!(their_line.mr.read(GRH, 6), b"a word");

    active.order(CmRequest::Disconnect { id });
    active.expect_nothing();
    passive.expect_nothing();
    passive.destroy(new, 0);
    passive.destroy(listener, 1);
    active.destroy(id, 3);
}

#[test]
fn a_program_asks_for_the_qp_of_a_service() {
    let daemon = start(1);
    ask_for_service(&daemon, &daemon);
    let (server, client) = (start(1), start(1));
    ask_for_service(&server, &client);
}

#[test]
fn a_service_may_have_a_qkey_of_its_own_and_may_be_refused_or_not_exist() {
    let daemon = start(1);
    let (mut passive, mut active) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
    let to = SocketAddr::new(addr_of(&daemon), 7174);
    passive.listen(UDP, 1, to);
    let mut ask = |passive: &mut Caller, answer: Option<CmRequest>| {
        let id = active.resolve(UDP, 7, to);
        active.order(CmRequest::Connect { id, param: param(17, b"") });
        if let Some(mut answer) = answer {
            let (new, _) = passive.expect_request(1);
            if let CmRequest::Accept { id, .. } | CmRequest::Reject { id, .. } = &mut answer {
                *id = new;
            }
            passive.order(answer);
        }
        let event = active.next();
        let param = ud(event.param);
        active.destroy(id, 3);
        (event.kind, event.status, param.qpn, param.qkey)
    };
    let id = urxe_shm::control::CmIdHandle(0);
    let own = CmConnParam { qkey: Qkey(0x1111_1111), ..param(18, b"") };
    let accept = CmRequest::Accept { id, user_handle: 2, param: own };
    let expected = (CmEventKind::Established, 0, 18, 0x1111_1111);
    assert_eq!(ask(&mut passive, Some(accept)), expected);
    let reject = CmRequest::Reject { id, private_data: Vec::new() };
    let expected = (CmEventKind::Unreachable, REJECTED, 0, 0);
    assert_eq!(ask(&mut passive, Some(reject)), expected);
    drop(passive);
    let mut nobody = Caller::new(daemon.socket());
    eventually("the listener is gone", || {
        let answer = ask(&mut nobody, None);
        (answer == (CmEventKind::Unreachable, UNSUPPORTED, 0, 0)).then_some(())
    });
}

/// A program that is a member of a group.
struct Member {
    caller: Caller,
    line: Line,
    qp: Qp,
    id: urxe_shm::control::CmIdHandle,
    membership: urxe_shm::control::CmMulticastHandle,
    to: CmUdParam,
}

impl Member {
    fn join(daemon: &Handle, group: IpAddr) -> Member {
        let mut caller = Caller::new(daemon.socket());
        let id = caller.create(UDP, 1);
        let group = SocketAddr::new(group, 0);
        let src = Some(SocketAddr::new(addr_of(daemon), 0));
        caller.order(CmRequest::ResolveAddr { id, src, dst: group, timeout_ms: 2000 });
        caller.expect(1, CmEventKind::AddrResolved);
        let mut line = Line::new(&mut caller.client, "urxe0");
        let qp = ready_qp(&mut caller, &mut line, id);
        let reply = caller.ask(CmRequest::JoinMulticast { id, user_handle: 5, group });
        let Ok(Some(CmReply::Multicast(membership))) = reply else { panic!("{reply:?}") };
        let event = caller.expect(5, CmEventKind::MulticastJoin);
        assert_eq!((event.subject, event.status), (CmSubject::Multicast(membership), 0));
        let to = ud(event.param);
        assert_eq!((to.qpn, to.qkey, to.av.dgid), (MULTICAST_QPN, UDP_QKEY, group.ip()));
        let attach = Request::AttachMcast { qp: qp.created.qp, gid: to.av.dgid.into() };
        caller.client.call(attach).unwrap();
        Member { caller, line, qp, id, membership, to }
    }
}

#[test]
fn members_of_a_group_hear_each_other() {
    let (first, second) = (start(1), start(1));
    let group = IpAddr::from([239, 30, 7, 174]);
    let (mut a, mut b) = (Member::join(&first, group), Member::join(&second, group));
    send(&mut a.caller.client, &mut a.qp, &a.to, b"to all");
    assert_eq!(b.line.cq.wait(1)[0].status, 0);
    assert_eq!(b.line.mr.read(GRH, 6), b"to all");
    // The event is counted for the membership, and for its id too.
    let leave = CmRequest::LeaveMulticast { multicast: a.membership };
    assert_eq!(a.caller.ask(leave.clone()), Ok(Some(CmReply::Events(1))));
    a.caller.refused(leave, Errno::NOENT);
    a.caller.destroy(a.id, 2);
    // A membership ends with its id.
    b.caller.destroy(b.id, 2);
    b.caller.refused(CmRequest::LeaveMulticast { multicast: b.membership }, Errno::NOENT);
}

#[test]
fn only_ud_qps_join_and_only_groups() {
    let daemon = start(1);
    let mut caller = Caller::new(daemon.socket());
    let group = |addr: &str| SocketAddr::new(addr.parse().unwrap(), 0);
    let join = |id, group| CmRequest::JoinMulticast { id, user_handle: 5, group };
    let unbound = caller.create(UDP, 1);
    caller.refused(join(unbound, group("239.30.7.174")), Errno::INVAL);
    let addr = SocketAddr::new(addr_of(&daemon), 0);
    let connected = caller.create(CmPortSpace::Tcp, 2);
    caller.order(CmRequest::Bind { id: connected, addr });
    caller.refused(join(connected, group("239.30.7.174")), Errno::INVAL);
    let bound = caller.create(UDP, 3);
    caller.order(CmRequest::Bind { id: bound, addr });
    caller.refused(join(bound, group("10.0.0.1")), Errno::INVAL);
    caller.refused(join(bound, group("ff02::1")), Errno::INVAL);
    // An event that was not taken is not counted, and not told any more.
    let reply = caller.ask(join(bound, group("239.30.7.174")));
    let Ok(Some(CmReply::Multicast(multicast))) = reply else { panic!("{reply:?}") };
    assert!(caller.is_announced());
    let reply = caller.ask(CmRequest::LeaveMulticast { multicast });
    assert_eq!(reply, Ok(Some(CmReply::Events(0))));
    caller.expect_nothing();
    caller.destroy(bound, 0);
}
