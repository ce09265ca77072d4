//! Live captures: what they show to whom, and that they are in nobody's way.

use crate::harness::*;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_daemon::Handle;
use urxe_port::capture::{Captured, PacketDirection, Record};
use urxe_shell::testing::needs_root;
use urxe_shm::control::{CaptureSpec, CaptureStream, MAX_CAPTURE_ITEMS, Reply, Request};
use urxe_types::{Extra, QpType, Qpn, SendData, SendOp};
use urxe_wire::{Opcode, Packet};

/// All packets, whole.
pub(crate) fn all() -> CaptureSpec {
    CaptureSpec { snaplen: 65_507, ..CaptureSpec::default() }
}

/// A packet as a capture shows it.
#[derive(Clone, Debug)]
pub(crate) struct ShownPacket {
    device: String,
    time: u64,
    sent: bool,
    qpn: Option<Qpn>,
    opcode: Option<Opcode>,
    counted: Vec<String>,
    bytes: Vec<u8>,
}

/// A program that captures.
pub(crate) struct Capturer {
    client: Client,
    counters: Vec<String>,
    streams: Vec<(CaptureStream, OwnedFd, Vec<u8>)>,
    lost: u64,
}

impl Capturer {
    pub(crate) fn begin(client: Client, spec: CaptureSpec) -> Capturer {
        let mut client = client;
        // What was begun before may not have ended yet.
        let reply =
            eventually("a capture", || match client.call(Request::BeginCapture(spec.clone())) {
                Err(error) if error.errno == Errno::BUSY.raw_os_error() => None,
                begun => Some(begun.unwrap()),
            });
        let Reply::CaptureBegun { counters } = reply else { panic!("{reply:?}") };
        let counters = counters.into_iter().map(|counter| counter.name).collect();
        let mut capturer = Capturer { client, counters, streams: Vec::new(), lost: 0 };
        capturer.take_streams();
        capturer
    }

    fn of(daemon: &Handle, spec: CaptureSpec) -> Capturer {
        Capturer::begin(Client::connect(daemon.socket()), spec)
    }

    fn take_streams(&mut self) {
        loop {
            let (reply, fds) = self.client.call_with(&Request::NextCaptureStream, &[]).unwrap();
            match reply {
                Reply::CaptureStream(Some(stream)) => {
                    let [pipe] = <[OwnedFd; 1]>::try_from(fds).unwrap();
                    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
                    self.streams.push((stream, pipe, Vec::new()));
                }
                Reply::CaptureStream(None) => return,
                reply => panic!("{reply:?}"),
            }
        }
    }

    /// What has been captured since the last time, in the order of time.
    pub(crate) fn packets(&mut self) -> Vec<ShownPacket> {
        self.take_streams();
        let mut all = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        for (stream, pipe, unread) in &mut self.streams {
            while let Ok(len @ 1..) = rustix::io::read(&*pipe, &mut buffer) {
                unread.extend(&buffer[..len]);
            }
            let mut taken = 0;
            while let Some((record, len)) = Record::read(&unread[taken..]).unwrap() {
                taken += len;
                match record {
                    Record::Packet(packet) => all.push(shown(stream, &packet, &self.counters)),
                    Record::Lost(lost) => self.lost += lost,
                }
            }
            unread.drain(..taken);
        }
        all.sort_by_key(|shown: &ShownPacket| shown.time);
        all
    }

    /// Waits for so many packets that are as wanted.
    pub(crate) fn wait(
        &mut self,
        count: usize,
        is_wanted: impl Fn(&ShownPacket) -> bool,
    ) -> Vec<ShownPacket> {
        let mut all = Vec::new();
        eventually("the packets", || {
            all.extend(self.packets());
            (all.iter().filter(|shown| is_wanted(shown)).count() >= count).then_some(())
        });
        all
    }
}

fn shown(stream: &CaptureStream, packet: &Captured<'_>, counters: &[String]) -> ShownPacket {
    let counted = packet.counted.iter().map(|&place| counters[usize::from(place)].clone());
    let headers = Packet::parse(packet.bytes).ok().map(|parsed| parsed.headers);
    ShownPacket {
        device: stream.device.clone(),
        time: packet.time,
        sent: packet.direction == PacketDirection::Outbound,
        qpn: packet.qpn,
        opcode: headers.map(|headers| headers.body.opcode()),
        counted: counted.collect(),
        bytes: packet.bytes.to_vec(),
    }
}

/// Two connected programs of a user at two devices of a daemon.
fn pair_of(socket: &Path, uid: Option<u32>) -> (End, End) {
    let end = |device| {
        let client = match uid {
            Some(uid) => Client::of_user(socket, uid),
            None => Client::connect(socket),
        };
        End::with(client, device, QpType::Rc, Kind::Shared, 10_000)
    };
    let (mut a, mut b) = (end("urxe0"), end("urxe1"));
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    (a, b)
}

/// One SEND with some payload.
fn send(a: &mut End, b: &mut End, payload: &[u8]) {
    a.mr.write(0, payload);
    b.post_recv(1, &[b.mr.sge(0, payload.len())]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, payload.len())]);
    assert_eq!(b.cq.wait(1)[0].status, 0);
}

fn is_ack(shown: &ShownPacket) -> bool {
    shown.opcode == Some(Opcode::RC_ACK)
}

#[test]
fn a_packet_is_sent_before_it_comes() {
    let daemon = start(2);
    let (mut a, mut b) = pair_of(daemon.socket(), None);
    let mut capturer = Capturer::of(&daemon, all());
    let (one, other) = (Some(a.qp.created.qpn), Some(b.qp.created.qpn));
    for round in 0..50 {
        send(&mut a, &mut b, b"in which order?");
        let shown = capturer.wait(2, is_ack);
        // On a busy machine some come twice.
        let first = |device: &str, qpn, sent, acks| {
            let found = shown
                .iter()
                .find(|it| (&*it.device, it.qpn, it.sent, is_ack(it)) == (device, qpn, sent, acks));
            found.unwrap_or_else(|| panic!("round {round}: {shown:?}"))
        };
        let request = first("urxe0", one, true, false);
        let came = first("urxe1", other, false, false);
        let way =
            [request, came, first("urxe1", other, true, true), first("urxe0", one, false, true)];
        // TAP-006
        assert!(way.is_sorted_by(|a, b| a.time < b.time), "round {round}: {shown:?}");
        assert!(came.bytes.windows(15).any(|bytes| bytes == b"in which order?"));
        assert_eq!(request.bytes, came.bytes);
    }
}

/// TAP-008: a program may take a slot of its own, and not listen to what it is told.
#[test]
fn a_capture_has_begun_when_all_slots_take_part_or_have_had_the_time_to() {
    let daemon = start(2);
    let since = Instant::now();
    drop(Capturer::of(&daemon, all()));
    assert!(since.elapsed() < Duration::from_secs(1), "it waits for nothing");
    let _silent = crate::hosted::asked(daemon.socket()).unwrap();
    let since = Instant::now();
    let _capturer = Capturer::of(&daemon, all());
    assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
}

#[test]
fn only_what_was_asked_for_is_captured() {
    let daemon = start(2);
    let (mut a, mut b) = pair_of(daemon.socket(), None);
    let (mut c, mut d) = pair_of(daemon.socket(), None);
    let own = a.qp.created.qpn;
    let mut shown_by = |spec: CaptureSpec, count: usize| {
        let mut capturer = Capturer::of(&daemon, spec);
        send(&mut c, &mut d, b"others");
        send(&mut a, &mut b, b"wanted");
        let shown = capturer.wait(count, |_| true);
        assert!(count > 0 || capturer.packets().is_empty());
        shown
    };
    // What it has sent and received, and what the other side has sent it.
    let shown = shown_by(CaptureSpec { qps: vec![own.get()], ..all() }, 3);
    assert!(shown.iter().all(|it| it.qpn == Some(own) || (is_ack(it) && it.sent)), "{shown:?}");
    let acks = CaptureSpec { opcodes: vec![Opcode::RC_ACK.byte()], ..all() };
    assert!(shown_by(acks, 4).iter().all(is_ack));
    let second = CaptureSpec { devices: vec!["urxe1".into()], snaplen: 20, ..all() };
    let shown = shown_by(second, 4);
    assert!(shown.iter().all(|it| it.device == "urxe1" && it.bytes.len() <= 20), "{shown:?}");
    let program = CaptureSpec { programs: vec![std::process::id().to_string()], ..all() };
    shown_by(program, 8);
    let (named, here) = (vec!["ib_write_bw".into()], vec![fresh_addr()]);
    shown_by(CaptureSpec { programs: named, ..all() }, 0);
    shown_by(CaptureSpec { peers: here, ..all() }, 0);
    let peer = vec![daemon.devices()[0].addrs[0]];
    shown_by(CaptureSpec { peers: peer, ..all() }, 8);
}

#[test]
fn packets_of_other_users_are_not_shown() {
    if !rustix::process::geteuid().is_root() {
        return needs_root("needs root, to be two users");
    }
    see_only_their_own(&start(2));
}

#[test]
fn nor_where_one_slot_serves_all_users() {
    if !rustix::process::geteuid().is_root() {
        return needs_root("needs root, to be two users");
    }
    const FAULT: &str = "drop:any:1000000";
    see_only_their_own(&start_with(2, |config| config.fault = Some(FAULT.parse().unwrap())));
}

fn see_only_their_own(daemon: &Handle) {
    let socket = daemon.socket();
    let (one, other) = (fresh_uid(), fresh_uid());
    let mut root = Capturer::of(daemon, all());
    // A program that comes after the capture began.
    let mut capturer = Capturer::begin(Client::of_user(socket, one), all());
    let (mut a, mut b) = pair_of(socket, Some(one));
    let (mut c, mut d) = pair_of(socket, Some(other));
    let mut stranger = Capturer::begin(Client::of_user(socket, other), all());
    for _ in 0..5 {
        send(&mut c, &mut d, b"a secret");
        send(&mut a, &mut b, b"our own");
    }
    let has = |shown: &[ShownPacket], text: &[u8]| {
        shown.iter().any(|it| it.bytes.windows(text.len()).any(|bytes| bytes == text))
    };
    let at_a = |end: &End| {
        let qpn = end.qp.created.qpn;
        move |it: &ShownPacket| it.qpn == Some(qpn) && is_ack(it)
    };
    // TAP-001
    let shown = capturer.wait(5, at_a(&a));
    let own = [a.qp.created.qpn, b.qp.created.qpn];
    assert!(shown.iter().all(|it| own.contains(&it.qpn.unwrap())), "{shown:?}");
    assert!(has(&shown, b"our own") && !has(&shown, b"a secret"));
    let shown = stranger.wait(5, at_a(&c));
    assert!(has(&shown, b"a secret") && !has(&shown, b"our own"));
    let shown = root.wait(5, at_a(&c));
    assert!(has(&shown, b"a secret"), "root sees all");
}

#[test]
fn a_packet_is_shown_with_what_the_network_did_to_it() {
    const FAULT: &str = "dup:send-only:2,corrupt:send-only:4,dir=rx";
    let sender = start(1);
    let receiver = start_with(1, |config| config.fault = Some(FAULT.parse().unwrap()));
    let (mut a, mut b) = connected(&sender, &receiver, Kind::Shared, 1000);
    let mut capturer = Capturer::of(&receiver, all());
    for _ in 0..4 {
        send(&mut a, &mut b, b"hello");
    }
    let is_request = |it: &ShownPacket| !it.sent && it.opcode == Some(Opcode::RC_SEND_ONLY);
    let is_good = move |it: &ShownPacket| is_request(it) && it.counted.is_empty();
    let mut shown = capturer.wait(4, is_good);
    // TAP-003: on a busy machine more of them come twice.
    for name in ["duplicate_requests", "drop_bad_icrc"] {
        let told = |it: &&ShownPacket| it.counted.iter().any(|counted| counted == name);
        eventually("as many as were counted", || {
            shown.extend(capturer.packets());
            let counted = b.client.counter("urxe0", name);
            let told = shown.iter().filter(told).count() as u64;
            (told == counted && told >= 1).then_some(())
        });
    }

    // And what the engine refuses by itself.
    let mut other = Capturer::of(&receiver, all());
    let missing = SendOp::Write { remote_addr: 0x1000, rkey: urxe_types::Rkey(7), imm: None };
    a.post_send(9, missing, SendData::Inline(b"nowhere"));
    assert_ne!(a.cq.wait(1)[0].status, 0);
    let refused =
        |it: &ShownPacket| it.counted.iter().any(|name| name == "remote_access_naks_sent");
    let shown = other.wait(1, refused);
    let write = shown.iter().find(|it| refused(it)).unwrap();
    assert_eq!(write.opcode, Some(Opcode::RC_WRITE_ONLY));
}

#[test]
fn a_reader_that_does_not_read_is_told_what_it_has_missed() {
    let daemon = start(2);
    let (mut a, mut b) = pair_of(daemon.socket(), None);
    let mut capturer = Capturer::of(&daemon, all());
    // It makes its pipes small, and fills one itself: that is its own affair.
    for (_, pipe, _) in &capturer.streams {
        rustix::pipe::fcntl_setpipe_size(pipe, 4096).unwrap();
    }
    let passed = |end: &mut End| -> u64 {
        let counters = ["sent_packets", "received_packets"];
        let of = |device: &'static str| counters.map(|counter| (device, counter));
        let all = [of("urxe0"), of("urxe1")].concat();
        all.into_iter().map(|(device, counter)| end.client.counter(device, counter)).sum()
    };
    let before = passed(&mut a);
    for round in 0..300u32 {
        send(&mut a, &mut b, &vec![round as u8; 4000]);
    }
    let expected = passed(&mut a) - before;
    let mut shown = 0;
    // TAP-002
    eventually("the account of all packets", || {
        shown += capturer.packets().len() as u64;
        (shown + capturer.lost >= expected).then_some(())
    });
    assert!(capturer.lost > 0 && shown > 0, "{shown} shown, {} lost", capturer.lost);
    send(&mut a, &mut b, b"and on it goes");
    capturer.wait(2, is_ack);
}

#[test]
fn a_reader_that_writes_into_its_pipe_harms_only_itself() {
    let daemon = start(2);
    let (mut a, mut b) = pair_of(daemon.socket(), None);
    let hostile = Capturer::of(&daemon, all());
    for (_, pipe, _) in &hostile.streams {
        let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let scribble = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        while rustix::io::write(&scribble, &[0xa5; 4096]).is_ok() {}
    }
    let mut other = Capturer::of(&daemon, all());
    for _ in 0..100 {
        send(&mut a, &mut b, &[7; 4000]);
    }
    let shown = other.wait(200, is_ack);
    assert!(shown.len() >= 400, "{} shown", shown.len());
    assert_eq!(other.lost, 0);
}

#[test]
fn a_capture_ends_with_its_reader_and_with_its_session() {
    let daemon = start(2);
    let (mut a, mut b) = pair_of(daemon.socket(), None);
    let mut capturer = Capturer::of(&daemon, all());
    // TAP-004
    capturer.streams.clear();
    for _ in 0..10 {
        send(&mut a, &mut b, b"nobody looks");
    }
    let mut other = Capturer::of(&daemon, all());
    send(&mut a, &mut b, b"but here");
    other.wait(2, is_ack);
    drop(other.client);
    for (stream, pipe, _) in &other.streams {
        eventually("the end of the stream", || {
            let read = rustix::io::read(pipe, &mut [0; 4096][..]);
            (read == Ok(0)).then_some(())
        });
        assert!(stream.slot < 64);
    }
    send(&mut a, &mut b, b"nor there");
}

#[test]
fn captures_are_few_and_what_makes_no_sense_is_refused() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let mut refused = |request: Request| client.call(request).unwrap_err();
    let error = refused(Request::NextCaptureStream);
    assert_eq!(error.errno, Errno::INVAL.raw_os_error());
    let device = CaptureSpec { devices: vec!["urxe7".into()], ..all() };
    assert_eq!(refused(Request::BeginCapture(device)).errno, Errno::NODEV.raw_os_error());
    let long = CaptureSpec { qps: vec![1; MAX_CAPTURE_ITEMS + 1], ..all() };
    let name = CaptureSpec { programs: vec!["x".repeat(60_000)], ..all() };
    let opcode = CaptureSpec { opcodes: vec![0xff], ..all() };
    for (spec, says) in [(long, "qps: 65 items"), (name, "60000 bytes"), (opcode, "0xff")] {
        let error = refused(Request::BeginCapture(spec));
        assert_eq!(error.errno, Errno::INVAL.raw_os_error());
        assert!(error.to_string().contains(says), "{error}");
    }
    // TAP-005
    let mut first = Capturer::begin(client, all());
    let again = first.client.call(Request::BeginCapture(all())).unwrap_err();
    assert_eq!(again.errno, Errno::BUSY.raw_os_error());
    let _second = Capturer::of(&daemon, all());
    let mut third = Client::connect(daemon.socket());
    let error = third.call(Request::BeginCapture(all())).unwrap_err();
    assert_eq!(error.errno, Errno::BUSY.raw_os_error());
    drop(first);
    eventually("room for another", || third.call(Request::BeginCapture(all())).ok());
}
