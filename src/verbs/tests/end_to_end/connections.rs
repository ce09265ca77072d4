//! Connections by address: what programs are told, and when.

use crate::{ALL, Net, Side, WAIT, start};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;
use urxe_daemon::StartError;
use urxe_shell::testing::{alone, could_not_run};
use urxe_verbs::cm::{
    ConnParam, ConnectRequest, Connection, Event, EventChannel, IdState, Listener, PortSpace,
};
use urxe_verbs::*;

const A_WHILE: Duration = Duration::from_millis(100);
const A_MOMENT: Option<Duration> = Some(Duration::from_millis(30));

/// What is said by who says nothing else.
fn plain() -> ConnParam {
    ConnParam::default()
}

fn saying(text: &[u8]) -> ConnParam {
    ConnParam { private_data: text.to_vec(), ..plain() }
}

/// Private data has the length of its field, with zeroes behind.
#[track_caller]
fn assert_said(private_data: &[u8], text: &[u8]) {
    let (said, rest) = private_data.split_at(text.len());
    assert_eq!((said, rest.iter().any(|&byte| byte != 0)), (text, false));
}

impl Side {
    /// With a new queue pair.
    fn anew(self) -> Side {
        Side { qp: self.pd.create_qp(&QpInit::new(&self.cq)).unwrap(), ..self }
    }

    fn channel(&self) -> EventChannel {
        self.context.create_event_channel().unwrap()
    }

    /// An address of the device, and any port.
    fn anywhere(&self) -> SocketAddr {
        (self.context.device().address, 0).into()
    }

    fn listen(&self) -> Listener {
        self.channel().listen(self.anywhere(), 0).unwrap()
    }

    fn connect(&self, to: SocketAddr, param: &ConnParam) -> Connection {
        self.channel().connect(to, &self.qp, param).unwrap()
    }

    /// A receive, for which the queue pair must be in INIT.
    fn expect_message(&self) {
        self.qp.to_init(InitAttr::new(ALL)).unwrap();
        self.qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(..100).unwrap()])]).unwrap();
    }

    /// Sends a message, which is taken by the other side.
    fn tell(&self, other: &Side, text: &[u8]) {
        self.qp.post_send(&[SendWr::send(2, Inline(text)).signaled()]).unwrap();
        assert_eq!(self.done().wr_id, 2);
        assert_eq!(other.done().byte_len, text.len() as u32);
        assert_eq!(other.bytes(0, text.len()), text);
    }

    fn state(&self) -> QpState {
        self.qp.query().unwrap().attr.state.unwrap()
    }
}

fn next_request(listener: &Listener) -> ConnectRequest {
    listener.wait(WAIT).unwrap().expect("nobody asks")
}

/// Both queue pairs connected by address, and both ends of the connection.
fn connected(near: &Side, far: &Side) -> (Connection, Connection) {
    let listener = far.listen();
    let near_end = near.connect(listener.local_addr(), &plain());
    let far_end = next_request(&listener).accept(&far.qp, &plain()).unwrap();
    let near_end = near_end.wait_established(WAIT).unwrap();
    (near_end, far_end.wait_established(WAIT).unwrap())
}

/// Connects, talks and disconnects, with a listener at that address.
fn meet_and_part(near: &Side, far: &Side, at: IpAddr) {
    let listener = far.channel().listen((at, 0).into(), 0).unwrap();
    let port = listener.local_addr().port();
    assert_ne!(port, 0);
    let to = SocketAddr::new(far.context.device().address, port);
    near.expect_message();
    let near_end = near.connect(to, &saying(b"who is there?"));
    let request = next_request(&listener);
    assert_said(&request.param().private_data, b"who is there?");
    assert_eq!(request.local_addr(), to);
    assert_eq!(request.peer_addr(), near_end.local_addr().unwrap());
    assert_eq!(request.device(), far.context.device().name);
    far.expect_message();
    let far_end = request.accept(&far.qp, &saying(b"nobody")).unwrap();
    let near_end = near_end.wait_established(WAIT).unwrap();
    assert_said(&near_end.peer_param().unwrap().private_data, b"nobody");
    let far_end = far_end.wait_established(WAIT).unwrap();
    near.tell(far, b"ping");
    far.tell(near, b"pong");
    assert_eq!(near_end.peer_addr(), far_end.local_addr().unwrap());
    assert_eq!((near.state(), far.state()), (QpState::Rts, QpState::Rts));

    near_end.disconnect().unwrap();
    assert!(far_end.wait_disconnected(WAIT).unwrap());
    assert!(near_end.wait_disconnected(WAIT).unwrap());
    assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Err));
    far_end.disconnect().unwrap();
}

#[test]
fn two_programs_meet_by_address_talk_and_part() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    meet_and_part(&near, &far, far.context.device().address);
    // And again with a listener on all devices.
    let [near, far] = [near, far].map(Side::anew);
    meet_and_part(&near, &far, [0, 0, 0, 0].into());
}

#[test]
fn two_programs_meet_over_ipv6() {
    let addr = IpAddr::from(Ipv6Addr::LOCALHOST);
    // The machine has only this one; other tests want it too, and have done so within a second.
    let mut tries = (0..100).map(|_| start([addr]).inspect_err(|_| std::thread::sleep(A_WHILE)));
    let daemon = match tries.find(|tried| !matches!(tried, Err(StartError::Port(_)))) {
        Some(daemon) => daemon.unwrap(),
        None => return could_not_run(&format!("{addr} is not to be had")),
    };
    let [near, far] = [(); 2].map(|()| Side::of(&daemon, "urxe0"));
    meet_and_part(&near, &far, addr);
    let [near, far] = [near, far].map(Side::anew);
    meet_and_part(&near, &far, Ipv6Addr::UNSPECIFIED.into());
}

#[test]
fn access_and_retries_are_as_both_sides_said() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let listener = far.listen();
    let wish = ConnParam {
        responder_resources: 0,
        initiator_depth: 5,
        retry_count: 3,
        rnr_retry_count: 4,
        ..plain()
    };
    let near_end = near.connect(listener.local_addr(), &wish);
    let request = next_request(&listener);
    let asked = request.param();
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 0), "turned around");
    let _far_end = request.accept(&far.qp, &plain()).unwrap();
    let near_end = near_end.wait_established(WAIT).unwrap();
    let granted = near_end.peer_param().unwrap();
    assert_eq!((granted.responder_resources, granted.initiator_depth), (0, 5));
    let [ours, theirs] = [&near, &far].map(|side| side.qp.query().unwrap().attr);
    assert_eq!((ours.max_rd_atomic, theirs.max_dest_rd_atomic), (Some(5), Some(5)));
    assert_eq!((ours.retry_cnt, theirs.retry_cnt), (Some(3), Some(3)));
    assert_eq!(theirs.rnr_retry, Some(4));
    // Who serves no READs opens nothing to them; who serves some does.
    assert!(!ours.access.unwrap().contains(Access::REMOTE_READ));
    assert!(theirs.access.unwrap().contains(Access::REMOTE_READ));
    assert_eq!((ours.sq_psn, ours.rq_psn), (theirs.rq_psn, theirs.sq_psn));
}

#[test]
fn a_refusal_brings_its_reason_and_private_data() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let listener = far.listen();
    let to = listener.local_addr();
    let end = near.connect(to, &plain());
    next_request(&listener).reject(b"not today").unwrap();
    let error = end.wait_established(WAIT).unwrap_err();
    let text = format!("{to} refuses the connection: its program says no (reason 28)");
    assert_eq!((error.to_string(), error.errno()), (text, libc::ECONNREFUSED));
    let Error::Rejected { peer, reason: 28, private_data } = error else { panic!("{error}") };
    assert_eq!(peer, to);
    assert_said(&private_data, b"not today");

    // So does a request that is dropped, and one that dies with its listener.
    let end = near.connect(to, &plain());
    drop(next_request(&listener));
    let error = end.wait_established(WAIT).unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
    let end = near.connect(to, &plain());
    let fd = listener.channel();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
    drop(listener);
    let error = end.wait_established(WAIT).unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
}

#[test]
fn where_nobody_listens_is_refused_at_once() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let listener = far.listen();
    let to = listener.local_addr();
    drop(listener);
    let error = near.connect(to, &plain()).wait_established(WAIT).unwrap_err();
    assert!(matches!(error, Error::Rejected { reason: 8, .. }), "{error}");
    let text = format!("{to} refuses the connection: nobody listens there (reason 8)");
    assert_eq!(error.to_string(), text);
    // The queue pair is as it was.
    assert_eq!(near.state(), QpState::Reset);
}

#[test]
fn a_silent_peer_is_given_up_in_time() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let IpAddr::V4(nobody) = far.context.device().address else { panic!() };
    let [a, b, c, _] = nobody.octets();
    let to = SocketAddr::from(([a, b, c, 77], 7471));
    let end = near.connect(to, &plain());
    let kept = end.clone();
    let error = end.wait_established(A_MOMENT).unwrap_err();
    let Error::Unreachable { peer, errno: libc::ETIMEDOUT } = error else { panic!("{error}") };
    assert_eq!(peer, to);
    // Nothing is lost by having looked.
    drop(kept);
    let listener = far.listen();
    let end = near.connect(listener.local_addr(), &plain());
    let _far_end = next_request(&listener).accept(&far.qp, &plain()).unwrap();
    end.wait_established(WAIT).unwrap();
}

#[test]
fn either_side_may_end_a_connection_by_word_or_by_going() {
    for how in 0..4 {
        let Net { near, far, daemon: _daemon } = Net::unconnected();
        let (near_end, far_end) = connected(&near, &far);
        near.qp.post_recv(&[RecvWr::new(7, &[])]).unwrap();
        match how {
            0 => far_end.disconnect().unwrap(),
            1 => drop(far_end),
            // The program ends in good order,
            2 => drop((far_end, far)),
            // or loses its connection and not its queue pair.
            _ => drop((far_end, far.qp)),
        }
        assert!(near_end.wait_disconnected(WAIT).unwrap());
        // What was outstanding is flushed.
        assert_eq!(near.next().status, WcStatus::WrFlush);
        assert_eq!(near.state(), QpState::Err);
        assert!(near_end.wait_established(A_MOMENT).is_err());
    }
}

#[test]
fn an_accepted_connection_that_is_ended_at_once_ends_at_both_sides() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let listener = far.listen();
    let near_end = near.connect(listener.local_addr(), &plain());
    let far_end = next_request(&listener).accept(&far.qp, &plain()).unwrap();
    far_end.disconnect().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let near_end = near_end.wait_established(WAIT).unwrap();
            assert!(near_end.wait_disconnected(WAIT).unwrap());
        });
        assert!(far_end.wait_disconnected(WAIT).unwrap());
    });
    assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Err));
}

#[test]
fn receives_of_an_accepted_connection_are_flushed_when_its_peer_gives_up() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let listener = far.listen();
    let near_end = near.connect(listener.local_addr(), &plain());
    let request = next_request(&listener);
    far.expect_message();
    let far_end = request.accept(&far.qp, &plain()).unwrap();
    drop(near_end);
    let error = far_end.clone().wait_established(WAIT).unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
    assert_eq!(far.next().status, WcStatus::WrFlush);
    assert_eq!((near.state(), far.state()), (QpState::Reset, QpState::Err));
}

#[test]
fn after_time_wait_queue_pairs_can_be_connected_again() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (near_end, far_end) = connected(&near, &far);
    near_end.disconnect().unwrap();
    assert!(far_end.wait_disconnected(WAIT).unwrap());
    let channel = near_end.channel();
    let next = || channel.next_event(WAIT).unwrap().unwrap();
    assert!(matches!(next(), Event::Disconnected(end) if end == near_end));
    // Until then its queue pair's number means the old connection.
    assert!(matches!(next(), Event::TimewaitExit(end) if end == near_end));
    let channel = far_end.channel();
    let next = || channel.next_event(WAIT).unwrap().unwrap();
    assert!(matches!(next(), Event::TimewaitExit(end) if end == far_end));
    near.qp.to_reset().unwrap();
    far.qp.to_reset().unwrap();
    connected(&near, &far);
}

/// The environment of the other program: where the daemon is, and where to connect to.
const PEER: &str = "URXE_TEST_PEER";

#[test]
fn a_peer_that_is_killed_is_missed_and_its_connection_ends() {
    if let Ok(place) = std::env::var(PEER) {
        // This is the other program. It connects, and then does nothing but hold on.
        let (socket, to) = place.split_once(' ').unwrap();
        let near = Side::new(&OpenOptions::new().socket(socket).device("urxe0"));
        let end = near.connect(to.parse().unwrap(), &plain());
        let _end = end.wait_established(WAIT).unwrap();
        std::thread::sleep(WAIT.unwrap());
        panic!("nobody killed it");
    }
    let Net { far, daemon, near } = Net::unconnected();
    let listener = far.listen();
    let this = "connections::a_peer_that_is_killed_is_missed_and_its_connection_ends";
    let socket = daemon.as_ref().unwrap().socket().to_owned();
    let place = format!("{} {}", socket.display(), listener.local_addr());
    let mut peer = alone(this).env(PEER, place).stdout(Stdio::null()).spawn().unwrap();
    let end = next_request(&listener).accept(&far.qp, &plain()).unwrap();
    let end = end.wait_established(WAIT).unwrap();
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert!(end.wait_disconnected(WAIT).unwrap());
    // Somebody else is welcome.
    drop(end);
    let far = far.anew();
    let near_end = near.connect(listener.local_addr(), &plain());
    let _far_end = next_request(&listener).accept(&far.qp, &plain()).unwrap();
    near_end.wait_established(WAIT).unwrap();
}

#[test]
fn the_channels_descriptor_is_readable_when_there_is_something_to_do() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let is_readable = |channel: &EventChannel, wait: Duration| {
        let wait = Timespec::try_from(wait).unwrap();
        let fd = channel.as_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap() > 0
    };
    let listener = far.listen();
    let (ours, theirs) = (near.channel(), listener.channel());
    assert!(!is_readable(&ours, Duration::ZERO) && ours.try_next_event().unwrap().is_none());
    let begun = ours.connect(listener.local_addr(), &near.qp, &plain()).unwrap();
    // A loop of both programs that sleeps in poll, and nowhere else.
    let (mut near_stands, mut far_end) = (false, None);
    let mut far_stands = false;
    while !(near_stands && far_stands) {
        let fds = [ours.as_fd(), theirs.as_fd()];
        let [a, b] = &fds;
        let mut fds = [PollFd::new(a, PollFlags::IN), PollFd::new(b, PollFlags::IN)];
        let wait = Timespec::try_from(WAIT.unwrap()).unwrap();
        assert_ne!(poll(&mut fds, Some(&wait)).unwrap(), 0, "nothing happens any more");
        for channel in [&ours, &theirs] {
            while let Some(event) = channel.try_next_event().unwrap() {
                match event {
                    Event::ConnectRequest(request) => {
                        far_end = Some(request.accept(&far.qp, &plain()).unwrap());
                    }
                    Event::Established(end) if end == begun => near_stands = true,
                    Event::Established(end) => {
                        assert_eq!(Some(&end), far_end.as_ref());
                        far_stands = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert!(!is_readable(&ours, Duration::ZERO) && !is_readable(&theirs, Duration::ZERO));
    begun.disconnect().unwrap();
    assert!(is_readable(&theirs, WAIT.unwrap()));
    let event = theirs.try_next_event().unwrap().unwrap();
    assert!(matches!(event, Event::Disconnected(end) if Some(&end) == far_end.as_ref()));
    // And what is known is not told again.
    assert!(begun.wait_disconnected(WAIT).unwrap());
    assert!(begun.wait_established(A_MOMENT).is_err());
}

#[test]
fn listeners_and_connections_are_listed_by_device() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let everywhere = near.channel().listen("0.0.0.0:0".parse().unwrap(), 0).unwrap();
    let (near_end, far_end) = connected(&near, &far);
    let ids = |side: &Side| {
        let ids = side.context.resources(ResourceKind::CmId).unwrap();
        assert!(ids.iter().all(|id| id.program.contains(&std::process::id().to_string())));
        let details = ids.into_iter().map(|id| match id.detail {
            ResourceDetail::CmId { space, state, qpn, local, peer, .. } => {
                assert_eq!(space, PortSpace::Tcp);
                (state, qpn, local, peer)
            }
            other => panic!("{other:?}"),
        });
        details.collect::<Vec<_>>()
    };
    let listening = (IdState::Listening, None, Some(everywhere.local_addr()), None);
    for (side, end) in [(&near, &near_end), (&far, &far_end)] {
        let (local, peer) = (end.local_addr().unwrap(), end.peer_addr());
        let stands = (IdState::Connected, Some(side.qp.qpn()), Some(local), Some(peer));
        assert_eq!(ids(side), [listening, stands]);
    }
    drop((everywhere, near_end, far_end));
    assert_eq!((ids(&near), ids(&far)), (vec![], vec![]));
}

#[test]
fn a_port_is_one_listeners_and_free_when_it_has_gone() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let listener = far.listen();
    let at = listener.local_addr();
    let error = near.channel().listen(at, 0).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    // The wildcard would have it too, which the kernel's connection manager calls by another name.
    let everywhere = SocketAddr::from(([0, 0, 0, 0], at.port()));
    let error = near.channel().listen(everywhere, 0).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
    // Another address is another place, and so are datagrams.
    let elsewhere = SocketAddr::new(near.context.device().address, at.port());
    let _other = near.channel().listen(elsewhere, 0).unwrap();
    let _service = near.channel().listen_for_datagrams(at, 0).unwrap();
    drop(listener);
    near.channel().listen(at, 0).unwrap();
    let error = near.channel().listen("192.0.2.1:0".parse().unwrap(), 0).unwrap_err();
    assert!(matches!(error.errno(), libc::EADDRNOTAVAIL | libc::ENODEV), "{error}");
}

#[test]
fn a_queue_pair_that_cannot_be_connected_is_refused_in_words() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    // The wrong device: the peer hears of it too.
    let listener = far.channel().listen("0.0.0.0:0".parse().unwrap(), 0).unwrap();
    let to = SocketAddr::new(far.context.device().address, listener.local_addr().port());
    let end = near.connect(to, &plain());
    let other = near.pd.create_qp(&QpInit::new(&near.cq)).unwrap();
    let error = next_request(&listener).accept(&other, &plain()).unwrap_err();
    let text = "device of the queue pair is urxe0, expected urxe1, which the request came to";
    assert_eq!(error.to_string(), text);
    let refused = end.wait_established(WAIT).unwrap_err();
    assert!(matches!(refused, Error::Rejected { .. }), "{refused}");
    // Another family than the device has.
    let to = "[2001:db8::1]:1".parse().unwrap();
    let error = near.channel().connect(to, &near.qp, &plain()).unwrap_err();
    assert!(error.to_string().starts_with("destination is 2001:db8::1, expected "), "{error}");
    // No connections on UD.
    let init = QpInit { qp_type: QpType::Ud, ..QpInit::new(&near.cq) };
    let datagrams = near.pd.create_qp(&init).unwrap();
    let to = SocketAddr::new(far.context.device().address, listener.local_addr().port());
    let error = near.channel().connect(to, &datagrams, &plain()).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    // More than fits into the message.
    let error = near.channel().connect(to, &near.qp, &saying(&[1; 57])).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert!(error.to_string().contains("57") && error.to_string().contains("56"), "{error}");
}

#[test]
fn threads_of_one_channel_wait_each_for_its_own() {
    const THREADS: usize = 8;
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let (listener, channel) = (far.listen(), near.channel());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let qp = near.pd.create_qp(&QpInit::new(&near.cq)).unwrap();
                let end = channel.connect(listener.local_addr(), &qp, &plain()).unwrap();
                let end = end.wait_established(WAIT).unwrap();
                end.disconnect().unwrap();
                assert!(end.wait_disconnected(WAIT).unwrap());
            });
            scope.spawn(|| {
                let qp = far.pd.create_qp(&QpInit::new(&far.cq)).unwrap();
                let end = next_request(&listener).accept(&qp, &plain()).unwrap();
                let end = end.wait_established(WAIT).unwrap();
                assert!(end.wait_disconnected(WAIT).unwrap());
            });
        }
    });
}

#[test]
fn the_end_of_the_daemon_wakes_who_waits_for_events() {
    let Net { near, far, daemon } = Net::unconnected();
    let (listener, channel) = (far.listen(), near.channel());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| listener.wait(WAIT));
        std::thread::sleep(Duration::from_millis(20));
        drop(daemon);
        assert!(matches!(sleeper.join().unwrap(), Err(Error::DaemonGone { .. })));
    });
    assert!(matches!(channel.next_event(WAIT), Err(Error::DaemonGone { .. })));
}
