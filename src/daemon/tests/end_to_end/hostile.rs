//! Nonsense from the wire and from the control socket: counted by cause, answered or closed, and
//! the daemon goes on.

use crate::cm_client::{Caller, addr_of, param};
use crate::harness::{
    Client, End, Kind, Qp, Random, attrs, connected, eventually, fresh_addr, read_events, start,
    start_with,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use urxe_cm::{Config, Connect, Manager, Timing};
use urxe_shm::control::event::RECORD_LEN;
use urxe_shm::control::{
    CmEventKind, CmIdHandle, CmPortSpace, CmRequest, Cursor, MAX_MESSAGE, Reply, Request,
    ResourceKind, decode, encode,
};
use urxe_types::{Extra, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn, SendOp};
use urxe_wire::mad::{MAD_LEN, PortSpace};
use urxe_wire::{Bth, Datagram, Deth, Flow, Headers, Opcode, icrc};

/// Sum of the counters by which a device drops packets, and of the port's.
fn dropped(client: &mut Client) -> u64 {
    let stats = client.stats("urxe0");
    // A CNP is made of its header only, so that some of what is random is one.
    let is_drop =
        |name: &str| name.starts_with("drop_") || ["rx_malformed", "cnps_received"].contains(&name);
    stats.device.iter().filter(|(info, _)| is_drop(&info.name)).map(|(_, value)| value).sum()
}

/// A datagram with a right ICRC.
fn stamped(flow: &Flow, mut bytes: Vec<u8>) -> Vec<u8> {
    icrc::stamp(flow, 0, &mut bytes);
    bytes
}

/// A management datagram to QP1.
fn management_packet(flow: &Flow, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
    let headers = Headers::new(Bth::new(Qpn::GSI, Psn::default()), Datagram { deth, imm: None });
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend(mad);
    bytes.extend([0; icrc::LEN]);
    stamped(flow, bytes)
}

#[test]
fn ten_thousand_random_datagrams_are_dropped_by_cause() {
    // What comes for a slot that does not run is dropped before anybody counts it.
    let (first, second) = (start(1), start_with(1, |config| config.slots = 1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    let stranger: IpAddr = fresh_addr();
    let opcodes: Vec<Opcode> = (0..=255).filter_map(Opcode::from_byte).collect();
    let mut random = Random::new(4791);
    let mut sent = dropped(&mut b.client);
    for _ in 0..100 {
        // SHARE-135: a source of more would be refused.
        let socket = UdpSocket::bind((stranger, 0)).unwrap();
        let flow = Flow {
            src: stranger,
            dst: b.addr,
            src_port: socket.local_addr().unwrap().port(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        for _ in 0..100 {
            let opcode = opcodes[random.below(opcodes.len() as u64) as usize];
            let datagram = match random.below(5) {
                0 => {
                    let len = 1 + random.below(1500) as usize;
                    random.bytes(len)
                }
                1 => {
                    let len = 1 + random.below(20) as usize;
                    random.bytes(len)
                }
                2 => {
                    let len = 16 + random.below(200) as usize;
                    stamped(&flow, random.bytes(len))
                }
                // Well formed, of every opcode, for a QP that exists, but not from its peer.
                3 => {
                    let mut bytes = random.bytes(opcode.header_len() + 64);
                    bytes[0] = opcode.byte();
                    bytes[1] = 0;
                    bytes[2..4].copy_from_slice(&[0xff, 0xff]);
                    bytes[5..8].copy_from_slice(&b.qp.created.qpn.get().to_be_bytes()[1..]);
                    stamped(&flow, bytes)
                }
                // For the device's own QP, or none.
                _ => {
                    let mut bytes = random.bytes(80);
                    bytes[0] = opcode.byte();
                    bytes[1] = 0;
                    bytes[2..4].copy_from_slice(&[0xff, 0xff]);
                    bytes[5..8].copy_from_slice(&[0, 0, 1 + random.below(2) as u8]);
                    stamped(&flow, bytes)
                }
            };
            socket.send_to(&datagram, (b.addr, 4791)).unwrap();
            sent += 1;
        }
        // No more at a time than the smallest socket buffer holds.
        eventually("all are counted", || (dropped(&mut b.client) >= sent).then_some(()));
    }
    assert_eq!(dropped(&mut b.client), sent, "each is counted once");
    for name in ["drop_bad_icrc", "drop_too_short", "drop_unknown_qp", "drop_wrong_address"] {
        let count = b.client.counter("urxe0", name);
        assert!(count > 100, "{name} is {count}");
    }
    b.post_recv(1, &[b.mr.sge(0, 4096)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 4096)]);
    assert_eq!(b.cq.wait(1)[0].status, 0);
}

/// SHARE-135
#[test]
fn a_flood_of_what_is_dropped_is_refused_and_counted_and_harms_nobody() {
    let (first, second) = (start(1), start_with(1, |config| config.slots = 1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    let stranger = UdpSocket::bind((fresh_addr(), 0)).unwrap();
    let mut sent = 0;
    let mut flood = |b: &mut End| {
        // No more at a time than the smallest socket buffer holds.
        for _ in 0..200 {
            stranger.send_to(&[0xff; 64], (b.addr, 4791)).unwrap();
        }
        sent += 200;
        eventually("all are counted", || {
            let refused = b.client.counter("urxe0", "rx_refused");
            (dropped(&mut b.client) + refused >= sent).then_some(refused)
        })
    };
    eventually("it is refused", || (flood(&mut b) > 0).then_some(()));
    assert!(b.client.counter("urxe0", "sources_refused") > 0);
    b.post_recv(1, &[b.mr.sge(0, 4096)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 4096)]);
    assert_eq!(b.cq.wait(1)[0].status, 0);
    // A while later what comes from there has its cause again.
    let by_cause = dropped(&mut b.client);
    eventually("it is refused no more", || {
        flood(&mut b);
        (dropped(&mut b.client) > by_cause).then_some(())
    });
    assert_eq!(b.client.counter("urxe0", "rx_overflow"), 0);
}

#[test]
fn packets_of_another_program_in_the_name_of_an_own_address_reach_nothing() {
    let daemon = start_with(2, |config| config.slots = 2);
    let mut a = End::new(&daemon, 0, Kind::Shared, 4096);
    let mut b = End::new(&daemon, 1, Kind::Shared, 4096);
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    let socket = UdpSocket::bind((a.addr, 0)).unwrap();
    let flow = Flow {
        src: a.addr,
        dst: b.addr,
        src_port: socket.local_addr().unwrap().port(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    // In the place of the next request, one that ends the QP; and a request for a connection.
    let [_, rtr, _] = attrs(a.addr, a.qp.created.qpn);
    let bth = Bth::new(b.qp.created.qpn, rtr.rq_psn.unwrap());
    let forged = [bth.emit(Opcode::RC_SEND_MIDDLE).to_vec(), vec![0; 12]].concat();
    for packet in [stamped(&flow, forged), management_packet(&flow, &[0; MAD_LEN])] {
        socket.send_to(&packet, (b.addr, 4791)).unwrap();
    }
    eventually("both are dropped", || {
        (b.client.counter("urxe1", "drop_forged_local") == 2).then_some(())
    });
    b.post_recv(1, &[b.mr.sge(0, 4096)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 4096)]);
    assert_eq!(b.cq.wait(1)[0].status, 0);
    for device in ["urxe0", "urxe1"] {
        let dropped = if device == "urxe1" { 2 } else { 0 };
        assert_eq!(b.client.counter(device, "drop_forged_local"), dropped, "and nothing of ours");
    }
}

/// A connection on which anything can be sent.
struct RawClient(OwnedFd);

impl RawClient {
    fn connect(path: &Path) -> RawClient {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        RawClient(socket)
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let bytes = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.0, &bytes, &mut ancillary, SendFlags::NOSIGNAL)
    }

    /// The reply; `None` when the daemon has closed the connection.
    fn reply(&self) -> Option<Reply> {
        let mut bytes = vec![0; 1 << 16];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(0) | Err(_) => None,
            Ok(len) => Some(decode(&bytes[..len]).unwrap()),
        }
    }
}

#[test]
fn random_control_messages_are_answered_or_end_the_session() {
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let mut random = Random::new(99);
    let mut client = RawClient::connect(daemon.socket());
    let mut answered = 0;
    for round in 0..5000 {
        let mut bytes = match round % 3 {
            0 => {
                let len = 1 + random.below(200) as usize;
                random.bytes(len)
            }
            // Right at the beginning, then anything.
            1 => {
                let mut buf = vec![0; 300];
                encode(&Request::ListDevices, &mut buf).unwrap();
                let len = random.below(60) as usize;
                buf.truncate(4);
                buf.extend(random.bytes(len));
                buf
            }
            // A request with a few bits flipped.
            _ => {
                let mut buf = vec![0; 300];
                let name = "urxe0".to_owned();
                let len = encode(&Request::OpenDevice { name }, &mut buf).unwrap();
                buf.truncate(len);
                buf
            }
        };
        if round % 3 == 2 {
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
        let sent = client.send(&bytes, &[]);
        match sent.ok().and_then(|_| client.reply()) {
            Some(_) => answered += 1,
            None => client = RawClient::connect(daemon.socket()),
        }
    }
    assert!(answered > 4000, "{answered}");
    assert!(observer.counter("urxe0", "requests_malformed") > 1000);
    observer.open("urxe0");
}

#[test]
fn oversized_messages_and_too_many_descriptors_are_counted() {
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let client = RawClient::connect(daemon.socket());
    client.send(&vec![0; 100_000], &[]).unwrap();
    assert!(matches!(client.reply(), Some(Reply::Error(_))));
    assert_eq!(observer.counter("urxe0", "requests_oversized"), 1);

    let memfd = urxe_shm::memory::region::create_memfd("many", 4096).unwrap();
    let mut hello = vec![0; 100];
    let len = encode(&Request::Hello { program: "x".into() }, &mut hello).unwrap();
    client.send(&hello[..len], &[memfd.as_fd(); 10]).unwrap();
    assert!(matches!(client.reply(), Some(Reply::Error(_))));
    assert_eq!(observer.counter("urxe0", "requests_with_lost_descriptors"), 1);

    // After all that, the session can still begin.
    client.send(&hello[..len], &[]).unwrap();
    assert!(matches!(client.reply(), Some(Reply::Hello { .. })));
}

#[test]
fn a_program_that_reads_no_replies_loses_its_session_and_holds_up_no_other() {
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let client = RawClient::connect(daemon.socket());
    rustix::io::ioctl_fionbio(&client.0, true).unwrap();
    let mut request = vec![0; 300];
    let len =
        encode(&Request::Stats { device: "urxe0".into(), from: Cursor::default() }, &mut request);
    let request = &request[..len.unwrap()];
    let mut hello = vec![0; 100];
    let len = encode(&Request::Hello { program: "mute".into() }, &mut hello).unwrap();
    client.send(&hello[..len], &[]).unwrap();
    eventually("it is thrown out", || {
        let _ = client.send(request, &[]);
        (observer.counter("urxe0", "replies_undeliverable") == 1).then_some(())
    });
    observer.open("urxe0");
}

/// SLOT-124: also where each byte of it takes several in a sentence.
#[test]
fn the_longest_names_are_refused_and_end_no_slot() {
    let daemon = start_with(1, |config| config.slots = 1);
    let mut neighbour = Client::connect(daemon.socket());
    neighbour.open("urxe0");
    let mut client = Client::connect(daemon.socket());
    let from = Cursor::default();
    let kind = ResourceKind::Qp;
    let requests: [fn(String, Cursor, ResourceKind) -> Request; 3] = [
        |device, from, _| Request::Stats { device, from },
        |device, from, kind| Request::Resources { device, kind, from },
        |device, from, _| Request::Paths { device, from },
    ];
    let mut room = vec![0; MAX_MESSAGE];
    for request in requests {
        for letter in ["x", "\u{1}", "\u{20ac}"] {
            let longest = (0..=MAX_MESSAGE).rev().step_by(letter.len()).find_map(|len| {
                let request = request(letter.repeat(len / letter.len()), from, kind);
                encode(&request, &mut room).is_ok().then_some(request)
            });
            let refused = client.call(longest.unwrap()).unwrap_err();
            assert_eq!(refused.errno, rustix::io::Errno::NODEV.raw_os_error());
        }
    }
    assert!(matches!(neighbour.call(Request::ListDevices), Ok(Reply::Devices(_))));
}

#[test]
fn a_program_that_shrinks_and_fills_its_event_pipe_does_not_end_the_daemon() {
    /// Records that a pipe of one page holds.
    const RECORDS: usize = 4096 / RECORD_LEN;
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let (context, events) = client.open_with_events("urxe0");
    rustix::pipe::fcntl_setpipe_size(&events, 4096).unwrap();
    let pd = client.alloc_pd(context);
    let cq = client.create_cq(context, 16, None);
    let srq = client.create_srq(pd, 16);
    let [first, second] =
        [(); 2].map(|()| client.create_qp_of(pd, cq.handle, QpType::Rc, Some(srq.handle)).unwrap());
    // Each time it says that it takes no more receives from the SRQ.
    let [init, ..] = attrs(Ipv4Addr::LOCALHOST.into(), Qpn::new(1));
    let fail = |client: &mut Client, qp: &Qp| {
        client.modify(qp, init.clone()).unwrap();
        for state in [QpState::Err, QpState::Reset] {
            client.modify(qp, QpAttr { state: Some(state), ..QpAttr::default() }).unwrap();
        }
    };
    for _ in 0..RECORDS {
        fail(&mut client, &second);
    }
    // The pipe is full, and this one waits; then it is taken back, and another one waits.
    fail(&mut client, &first);
    client.call(Request::DestroyQp { qp: first.created.qp }).unwrap();
    fail(&mut client, &second);
    assert_eq!(client.state(&second), QpState::Reset, "the daemon serves on");
    let mut found = 0;
    eventually("all events of the other have come", || {
        found += read_events(&events).len();
        (found == RECORDS + 1).then_some(())
    });
    assert_eq!(Client::connect(daemon.socket()).counter("urxe0", "lost_events"), 0);
}

#[test]
fn a_name_of_any_length_and_content_is_cut_and_cleaned() {
    let daemon = start(1);
    let raw = RawClient::connect(daemon.socket());
    let mut hello = vec![0; 60_000];
    let program = "ü\n\u{1b}[31m".repeat(5000);
    let len = encode(&Request::Hello { program }, &mut hello).unwrap();
    raw.send(&hello[..len], &[]).unwrap();
    assert!(matches!(raw.reply(), Some(Reply::Hello { .. })));
}

#[test]
fn a_bad_network_loses_nothing_in_the_end() {
    let bad = |config: &mut urxe_daemon::Config| {
        let spec = "drop=3%,dup=2%,reorder=2%,corrupt=1%,seed=7";
        config.fault = Some(spec.parse().unwrap());
    };
    let (first, second) = (start_with(1, bad), start_with(1, bad));
    for kind in [Kind::Shared, Kind::Process] {
        let (mut a, mut b) = connected(&first, &second, kind, 1 << 20);
        for round in 0..10 {
            let data = crate::harness::pattern(300_000, round);
            a.mr.write(0, &data);
            b.post_recv(round, &[b.mr.sge(0, 300_000)]);
            a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 300_000)]);
            assert_eq!(b.cq.wait(1)[0].status, 0);
            assert!(b.mr.read(0, 300_000) == data, "SEND {round}");
            let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
            a.exchange(SendOp::Read { remote_addr, rkey }, &[a.mr.sge(500_000, 300_000)]);
            assert!(a.mr.read(500_000, 300_000) == data, "READ {round}");
        }
        assert!(a.client.counter("urxe0", "fault_dropped") > 0);
        assert!(a.client.counter("urxe0", "retransmitted_packets") > 0);
        assert!(b.client.counter("urxe0", "drop_bad_icrc") > 0);
    }
}

/// A connection manager on a socket of its own, which sends whatever it likes.
struct Stranger {
    manager: Manager,
    socket: UdpSocket,
    flow: Flow,
    sent: u64,
}

impl Stranger {
    fn of(daemon: &urxe_daemon::Handle) -> Stranger {
        let src = fresh_addr();
        let socket = UdpSocket::bind((src, 0)).unwrap();
        socket.connect((addr_of(daemon), 4791)).unwrap();
        let config = Config {
            guid: 7,
            seed: 7,
            active_mtu: PathMtu::Mtu1024,
            max_rd_atomic: 1,
            timing: Timing::default(),
        };
        let flow = Flow {
            src,
            dst: addr_of(daemon),
            src_port: socket.local_addr().unwrap().port(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        Stranger { manager: Manager::new(config), socket, flow, sent: 0 }
    }

    /// A request for a connection, from a QP of this number.
    fn request(&mut self, port: u16, qpn: u32) -> [u8; MAD_LEN] {
        let qp = urxe_cm::Qp {
            qpn: Qpn::new(qpn),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
        };
        let connect = Connect {
            qp_type: urxe_types::QpType::Rc,
            space: PortSpace::Tcp,
            src: SocketAddr::new(self.flow.src, 40_000),
            dst: SocketAddr::new(self.flow.dst, port),
            traffic_class: 0,
            path_mtu: PathMtu::Mtu1024,
            qp,
            retry_count: 7,
            ack_timeout: None,
            private_data: b"",
        };
        self.manager.connect(Instant::now(), &connect).unwrap();
        self.manager.poll_mad().unwrap().mad
    }

    /// Sends a management datagram, no more at a time than the smallest socket buffer holds.
    fn send(&mut self, observer: &mut Client, mad: &[u8; MAD_LEN]) {
        self.socket.send(&management_packet(&self.flow, mad)).unwrap();
        self.sent += 1;
        if self.sent.is_multiple_of(100) {
            eventually("all have come", || {
                // SHARE-136: many of no use in a short time are refused.
                let counted = ["mads_received", "rx_refused"];
                let come: u64 = counted.map(|name| observer.counter("urxe0", name)).iter().sum();
                (come >= self.sent).then_some(())
            });
        }
    }
}

/// Has the active program connect to the passive one, which listens there for it; returns its id.
fn connect(passive: &mut Caller, active: &mut Caller, to: SocketAddr) -> CmIdHandle {
    passive.listen(CmPortSpace::Tcp, 1, to);
    let id = active.resolve(CmPortSpace::Tcp, 7, to);
    active.order(CmRequest::Connect { id, param: param(17, b"") });
    let (new, _) = passive.expect_request(1);
    passive.order(CmRequest::Accept { id: new, user_handle: 2, param: param(18, b"") });
    active.expect(7, CmEventKind::ConnectResponse);
    active.order(CmRequest::Establish { id });
    passive.expect(2, CmEventKind::Established);
    id
}

/// SHARE-136, SHARE-138
#[test]
fn while_messages_of_no_use_flood_the_broker_connections_are_made() {
    for (sources, are_refused) in [(1, true), (64, false)] {
        let daemon = start(1);
        let mut observer = Client::connect(daemon.socket());
        let mut strangers: Vec<_> = (0..sources).map(|_| Stranger::of(&daemon)).collect();
        // Nobody listens there.
        let packets: Vec<_> = strangers
            .iter_mut()
            .map(|stranger| {
                let request = stranger.request(7173, 2);
                management_packet(&stranger.flow, &request)
            })
            .collect();
        let to = SocketAddr::new(addr_of(&daemon), 7174);
        let (is_over, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It ends also if the test fails.
                while !is_over.load(Ordering::Relaxed) && begun.elapsed().as_secs() < 60 {
                    for _ in 0..640 / sources {
                        for (stranger, packet) in strangers.iter().zip(&packets) {
                            // A full buffer is no reason to end.
                            let _ = stranger.socket.send(packet);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let name = if are_refused { "rx_refused" } else { "cm_refused_no_listener" };
            eventually("it is a flood", || (observer.counter("urxe0", name) > 1000).then_some(()));
            let mut passive = Caller::new(daemon.socket());
            let mut active = Caller::new(daemon.socket());
            connect(&mut passive, &mut active, to);
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(observer.counter("urxe0", "sources_refused") > 0, are_refused);
    }
}

#[test]
fn a_flooded_listener_costs_a_bounded_amount_and_still_serves_others() {
    const BACKLOG: u64 = 50;
    const FLOOD: u32 = 2000;
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let (mut passive, mut active) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
    let mut stranger = Stranger::of(&daemon);
    let at = |port| SocketAddr::new(addr_of(&daemon), port);
    let id = passive.create(CmPortSpace::Tcp, 1);
    passive.order(CmRequest::Bind { id, addr: at(7174) });
    passive.order(CmRequest::Listen { id, backlog: BACKLOG as u32 });
    for qpn in 2..2 + FLOOD {
        let request = stranger.request(7174, qpn);
        stranger.send(&mut observer, &request);
    }
    let counts = ["cm_begun", "cm_drop_backlog"].map(|name| observer.counter("urxe0", name));
    assert_eq!(counts, [BACKLOG, u64::from(FLOOD) - BACKLOG]);
    // Another listener is not concerned.
    passive.listen(CmPortSpace::Tcp, 2, at(7175));
    let asking = active.resolve(CmPortSpace::Tcp, 7, at(7175));
    active.order(CmRequest::Connect { id: asking, param: param(17, b"") });
    passive.destroy(id, 0);
    let (new, _) = passive.expect_request(2);
    let accept = CmRequest::Accept { id: new, user_handle: 3, param: param(18, b"") };
    passive.order(accept);
    active.expect(7, CmEventKind::ConnectResponse);
    assert_eq!(observer.counter("urxe0", "cm_refused_by_program"), BACKLOG);
}

#[test]
fn random_management_datagrams_disturb_no_connection() {
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let (mut passive, mut active) = (Caller::new(daemon.socket()), Caller::new(daemon.socket()));
    let mut stranger = Stranger::of(&daemon);
    let to = SocketAddr::new(addr_of(&daemon), 7174);
    let id = connect(&mut passive, &mut active, to);
    let mut random = Random::new(12);
    for qpn in 2..5000 {
        let mut mad = match random.below(3) {
            0 => random.bytes(MAD_LEN).try_into().unwrap(),
            _ => stranger.request(7174, qpn),
        };
        // Of the messages that there are, with anything in them.
        if random.below(2) == 0 {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&(0x10 + random.below(12) as u16).to_be_bytes());
        }
        for _ in 0..random.below(6) {
            mad[random.below(MAD_LEN as u64) as usize] ^= 1 << random.below(8);
        }
        stranger.send(&mut observer, &mad);
    }
    for name in ["cm_drop_no_message", "cm_drop_unknown", "cm_refused_addresses"] {
        let count = observer.counter("urxe0", name);
        assert!(count > 50, "{name}: {count}");
    }
    active.expect_nothing();
    active.order(CmRequest::Disconnect { id });
    active.expect(7, CmEventKind::Disconnected);
}
