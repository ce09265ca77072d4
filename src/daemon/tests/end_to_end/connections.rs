//! Programs find each other by address and port, and connect: between two programs of one daemon
//! and of two.

use crate::cm_client::{Caller, Line, addr_of, conn, param};
use crate::harness::{start, start_with};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use urxe_daemon::Handle;
use urxe_shm::control::{
    CmConnParam, CmEventKind, CmEventParam, CmOption, CmPortSpace, CmReply, CmRequest,
};
use urxe_types::{Extra, Gid, QpState, QpType, SendData, SendOp, SendWr};

const TCP: CmPortSpace = CmPortSpace::Tcp;

/// The reason with which a program refuses.
const CONSUMER: i32 = 28;

/// The reason with which nobody refuses.
const NO_LISTENER: i32 = 8;

/// A program connects to another, sends it a message, and disconnects.
pub(crate) fn converse((server, addr): (&Path, IpAddr), (client, client_addr): (&Path, IpAddr)) {
    let (mut passive, mut active) = (Caller::new(server), Caller::new(client));
    let listener = passive.listen(TCP, 1, SocketAddr::new(addr, 0));
    let to = passive.query(listener).src.unwrap();
    assert_eq!(to.ip(), addr);
    assert!(to.port() >= 1024);

    let id = active.resolve(TCP, 7, to);
    let route = active.query(id);
    assert_eq!((route.device, route.port, route.dst), (Some(0), 1, Some(to)));
    let path = route.path.unwrap();
    assert_eq!((path.sgid, path.dgid), (Gid::from(client_addr), Gid::from(addr)));
    let mut line = Line::new(&mut active.client, "urxe0");
    let mut qp = line.qp(&mut active.client, QpType::Rc);
    active.set_qp(id, &qp, &[QpState::Init]);
    active.order(CmRequest::Connect { id, param: param(qp.created.qpn.get(), b"hello") });

    let (new, asked) = passive.expect_request(1);
    let asked = conn(asked);
    assert_eq!((asked.qpn, asked.private_data.len()), (qp.created.qpn.get(), 56));
    assert_eq!((asked.responder_resources, asked.initiator_depth, asked.retry_count), (4, 4, 7));
    assert!(asked.private_data.starts_with(b"hello\0"));
    let route_back = passive.query(new);
    assert_eq!((route_back.src, route_back.dst), (Some(to), route.src));
    assert_eq!(route_back.path.unwrap().dgid, path.sgid);
    let mut their_line = Line::new(&mut passive.client, "urxe0");
    let mut their_qp = their_line.qp(&mut passive.client, QpType::Rc);
    passive.set_qp(new, &their_qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    their_qp.rq().push(1, &[their_line.mr.sge(0, 64)]).unwrap();
    assert!(!their_qp.rq().publish());
    let accept = param(their_qp.created.qpn.get(), b"welcome");
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param: accept });

    let response = active.expect(7, CmEventKind::ConnectResponse);
    let response = conn(response.param);
    assert_eq!((response.qpn, response.private_data.len()), (their_qp.created.qpn.get(), 196));
    assert!(response.private_data.starts_with(b"welcome\0"));
    active.set_qp(id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    active.order(CmRequest::Establish { id });
    passive.expect(2, CmEventKind::Established);
    active.refused(CmRequest::Establish { id }, Errno::INVAL);

    line.mr.write(0, b"a word");
    let (op, to) = (SendOp::Send(Extra::None), None);
    let wr = SendWr { wr_id: 5, op, to, fence: false, signaled: true, solicited: false };
    qp.sq.push(&wr, SendData::Sges(&[line.mr.sge(0, 6)])).unwrap();
    qp.sq.publish();
    active.client.ring(&qp);
    assert_eq!(line.cq.wait(1)[0].status, 0);
    assert_eq!(their_line.cq.wait(1)[0].status, 0);
    assert_eq!(their_line.mr.read(0, 6), b"a word");

    active.order(CmRequest::Disconnect { id });
    assert_eq!(passive.expect(2, CmEventKind::Disconnected).status, 0);
    assert_eq!(active.expect(7, CmEventKind::Disconnected).status, 0);
    // It is over in any case.
    passive.order(CmRequest::Disconnect { id: new });
    active.expect(7, CmEventKind::TimewaitExit);
    passive.expect(2, CmEventKind::TimewaitExit);
    passive.order(CmRequest::Disconnect { id: new });
    active.expect_nothing();
    passive.expect_nothing();
    // The request is counted in the listener's name.
    passive.destroy(new, 3);
    passive.destroy(listener, 1);
    active.destroy(id, 5);
    active.refused(CmRequest::DestroyId { id }, Errno::NOENT);
}

/// Where to reach a daemon, and its device.
fn place(daemon: &Handle) -> (&Path, IpAddr) {
    (daemon.socket(), addr_of(daemon))
}

/// A program of one daemon that listens, one of another, and where the first does.
fn listening() -> ([Handle; 2], Caller, Caller, SocketAddr) {
    let daemons = [start(1), start(1)];
    let [mut passive, active] = daemons.each_ref().map(|daemon| Caller::new(daemon.socket()));
    let to = SocketAddr::new(addr_of(&daemons[0]), 7174);
    passive.listen(TCP, 1, to);
    (daemons, passive, active, to)
}

#[test]
fn two_programs_of_one_daemon_connect() {
    let daemon = start(1);
    converse(place(&daemon), place(&daemon));
}

#[test]
fn programs_of_two_daemons_connect() {
    let (server, client) = (start(1), start(1));
    converse(place(&server), place(&client));
}

#[test]
fn no_end_to_end_flow_control_is_announced_whatever_the_program_asks_for() {
    let (_daemons, mut passive, mut active, to) = listening();
    let id = active.resolve(TCP, 7, to);
    let [line, their_line] =
        [&mut active.client, &mut passive.client].map(|client| Line::new(client, "urxe0"));
    let qp = line.qp(&mut active.client, QpType::Rc);
    let their_qp = their_line.qp(&mut passive.client, QpType::Rc);
    let wants = |qpn| CmConnParam { flow_control: true, ..param(qpn, b"") };
    active.order(CmRequest::Connect { id, param: wants(qp.created.qpn.get()) });
    let (new, asked) = passive.expect_request(1);
    assert!(!conn(asked).flow_control);
    passive.set_qp(new, &their_qp, &[QpState::Init, QpState::Rtr]);
    let accept = wants(their_qp.created.qpn.get());
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param: accept });
    assert!(!conn(active.expect(7, CmEventKind::ConnectResponse).param).flow_control);
}

#[test]
fn an_ack_timeout_that_a_program_chooses_is_its_own_qps_and_0_is_told_to_nobody() {
    let (_daemons, mut passive, mut active, to) = listening();
    // What the active side chose, the passive one, and what their QPs have then.
    for (ours, theirs, expected) in
        [(None, None, [17, 17]), (Some(0), None, [0, 17]), (Some(12), Some(9), [12, 9])]
    {
        let id = active.resolve(TCP, 7, to);
        let choose = |caller: &mut Caller, id, code: Option<u8>| {
            if let Some(code) = code {
                caller.order(CmRequest::SetOption { id, option: CmOption::AckTimeout(code) });
            }
        };
        let timeout = |caller: &mut Caller, id| match caller
            .ask(CmRequest::QpAttr { id, state: QpState::Rts })
        {
            Ok(Some(CmReply::QpAttr(attr))) => attr.timeout.unwrap(),
            other => panic!("{other:?}"),
        };
        choose(&mut active, id, ours);
        active.order(CmRequest::Connect { id, param: param(17, b"") });
        let (new, _) = passive.expect_request(1);
        choose(&mut passive, new, theirs);
        let their_timeout = timeout(&mut passive, new);
        passive.order(CmRequest::Accept { id: new, user_handle: 2, param: param(18, b"") });
        active.expect(7, CmEventKind::ConnectResponse);
        assert_eq!([timeout(&mut active, id), their_timeout], expected);
        active.destroy(id, 3);
        passive.expect(2, CmEventKind::Rejected);
        passive.destroy(new, 1);
    }
}

/// The active side's word may be lost while its data is not.
#[test]
fn data_before_the_peers_word_stands_for_it() {
    let (_daemons, mut passive, mut active, to) = listening();
    let id = active.resolve(TCP, 7, to);
    let mut line = Line::new(&mut active.client, "urxe0");
    let mut qp = line.qp(&mut active.client, QpType::Rc);
    active.order(CmRequest::Connect { id, param: param(qp.created.qpn.get(), b"") });
    let (new, _) = passive.expect_request(1);
    let their_line = Line::new(&mut passive.client, "urxe0");
    let their_qp = their_line.qp(&mut passive.client, QpType::Rc);
    passive.set_qp(new, &their_qp, &[QpState::Init, QpState::Rtr]);
    let accept = param(their_qp.created.qpn.get(), b"");
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param: accept });
    active.expect(7, CmEventKind::ConnectResponse);
    active.set_qp(id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    // It does not say that it goes on.
    let (remote_addr, rkey) = (their_line.mr.addr, their_line.mr.rkey);
    let op = SendOp::Write { remote_addr, rkey, imm: None };
    let wr = SendWr { wr_id: 5, op, to: None, fence: false, signaled: true, solicited: false };
    qp.sq.push(&wr, SendData::Sges(&[line.mr.sge(0, 6)])).unwrap();
    qp.sq.publish();
    active.client.ring(&qp);
    passive.expect(2, CmEventKind::Established);
    passive.set_qp(new, &their_qp, &[QpState::Rts]);
    assert_eq!(line.cq.wait(1)[0].status, 0);
    // And when it does say so, it is nothing new.
    active.order(CmRequest::Establish { id });
    active.order(CmRequest::Disconnect { id });
    passive.expect(2, CmEventKind::Disconnected);
}

#[test]
fn a_program_may_refuse() {
    let (server, client) = (start(1), start(1));
    let (mut passive, mut active) = (Caller::new(server.socket()), Caller::new(client.socket()));
    let to = SocketAddr::new(addr_of(&server), 7174);
    let listener = passive.listen(TCP, 1, to);
    let id = active.resolve(TCP, 7, to);
    active.order(CmRequest::Connect { id, param: param(17, b"") });
    let (new, _) = passive.expect_request(1);
    passive.order(CmRequest::Reject { id: new, private_data: b"no".to_vec() });
    let event = active.expect(7, CmEventKind::Rejected);
    assert_eq!(event.status, CONSUMER);
    let reason = conn(event.param).private_data;
    assert_eq!((reason.len(), &reason[..3]), (148, &b"no\0"[..]));
    // Neither can go on with it.
    passive.refused(
        CmRequest::Accept { id: new, user_handle: 2, param: param(18, b"") },
        Errno::INVAL,
    );
    active.refused(CmRequest::Connect { id, param: param(17, b"") }, Errno::INVAL);
    passive.destroy(new, 0);
    passive.destroy(listener, 1);
    active.destroy(id, 3);
}

#[test]
fn the_side_that_connects_may_refuse_the_acceptance() {
    let daemon = start(1);
    let (mut passive, mut active) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
    let to = SocketAddr::new(addr_of(&daemon), 7174);
    passive.listen(TCP, 1, to);
    let id = active.resolve(TCP, 7, to);
    active.order(CmRequest::Connect { id, param: param(17, b"") });
    let (new, _) = passive.expect_request(1);
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param: param(18, b"") });
    active.expect(7, CmEventKind::ConnectResponse);
    active.order(CmRequest::Reject { id, private_data: b"changed my mind".to_vec() });
    let event = passive.expect(2, CmEventKind::Rejected);
    assert_eq!(event.status, CONSUMER);
    assert!(conn(event.param).private_data.starts_with(b"changed my mind\0"));
    passive.destroy(new, 1);
    active.destroy(id, 3);
}

#[test]
fn a_request_to_a_port_without_listener_is_rejected_for_reason_8() {
    let (server, client) = (start(1), start(1));
    let mut active = Caller::new(client.socket());
    let id = active.resolve(TCP, 7, SocketAddr::new(addr_of(&server), 7174));
    active.order(CmRequest::Connect { id, param: param(17, b"") });
    let event = active.expect(7, CmEventKind::Rejected);
    assert_eq!(event.status, NO_LISTENER);
    active.destroy(id, 3);
}

#[test]
fn resolving_an_unreachable_address_is_an_error_event() {
    let daemon = start(1);
    let mut active = Caller::new(daemon.socket());
    let id = active.create(TCP, 7);
    // A device of this daemon has no address of the family.
    let dst = SocketAddr::new("::1".parse().unwrap(), 7174);
    active.order(CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 2000 });
    let event = active.expect(7, CmEventKind::AddrError);
    assert_eq!((event.status, event.param), (-Errno::NODEV.raw_os_error(), CmEventParam::None));
    active.refused(CmRequest::ResolveRoute { id, timeout_ms: 2000 }, Errno::INVAL);
    active.destroy(id, 1);
}

#[test]
fn over_a_bad_network_programs_connect_all_the_same() {
    let bad = |config: &mut urxe_daemon::Config| {
        config.fault = Some("drop=5%,dup=2%,reorder=2%,corrupt=1%,seed=7".parse().unwrap());
    };
    let (server, client) = (start_with(1, bad), start_with(1, bad));
    let (mut passive, mut active) = (Caller::new(server.socket()), Caller::new(client.socket()));
    let to = SocketAddr::new(addr_of(&server), 7174);
    passive.listen(TCP, 1, to);
    for qpn in 0..30 {
        let id = active.resolve(TCP, 7, to);
        active.order(CmRequest::Connect { id, param: param(100 + qpn, b"") });
        let (new, _) = passive.expect_request(1);
        let param = param(200 + qpn, b"");
        passive.order(CmRequest::Accept { id: new, user_handle: 2, param });
        active.expect(7, CmEventKind::ConnectResponse);
        active.order(CmRequest::Establish { id });
        passive.expect(2, CmEventKind::Established);
        passive.destroy(new, 1);
        active.expect(7, CmEventKind::Disconnected);
        active.destroy(id, 4);
    }
    assert!(active.client.counter("urxe0", "cm_repeats") > 0);
}
