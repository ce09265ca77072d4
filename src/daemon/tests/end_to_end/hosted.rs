//! Programs that run a slot of their own: they work as all do, and what becomes of them is nobody
//! else's.

use crate::harness::{Client, End, Kind, Running, eventually, fresh_uid, start, start_with};
use crate::histories::{fail, histories};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_daemon::limits::{MAX_CAPTURES_OF_USER, MAX_HOSTED_SLOTS};
use urxe_shell::testing::{alone, needs_root};
use urxe_shm::client::mirror::TableNotes;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{
    CaptureSpec, CmRequest, HistorySubject, Reply, Request, Resource, ResourceDetail, ResourceKind,
    ResourcePage,
};
use urxe_slot::OwnSlot;
use urxe_slot::link::{Found, Link, ToBroker, ToSlot};
use urxe_types::{Extra, QpType, Qpn, Rkey, SendData, SendOp, SlotId};

const LEN: usize = 100_000;

/// WRITE ONLYs that so much comes in, each of which is counted as a message.
const PARTS: u64 = LEN.div_ceil(1024) as u64;

/// `IBV_WC_RETRY_EXC_ERR`.
const RETRY_EXCEEDED: u32 = 12;

/// A program that runs its own slot in this process.
pub(crate) fn hosting(socket: &Path) -> Client {
    let (channel, _slot) =
        OwnSlot::host(Channel::connect(socket).unwrap(), || (), TableNotes::NONE).unwrap();
    Client::try_over(channel).unwrap()
}

fn end_of(client: Client, device: &str, kind: Kind) -> End {
    End::with(client, device, QpType::Rc, kind, LEN)
}

fn connect(a: &mut End, b: &mut End) {
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
}

fn slot_of(end: &End) -> usize {
    SlotId::named_by(end.qp.created.qpn).index()
}

/// Two programs of the daemon's threads, which are not to notice anything.
struct Others(End, End);

impl Others {
    fn new(socket: &Path) -> Others {
        let [mut a, mut b] = [0, 1].map(|_| End::at(socket, "urxe0", Kind::Shared, LEN));
        connect(&mut a, &mut b);
        Others(a, b)
    }

    fn notice_nothing(&mut self) {
        let Others(a, b) = self;
        for _ in 0..3 {
            b.post_recv(5, &[b.mr.sge(0, LEN)]);
            a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, LEN)]);
            assert_eq!(b.cq.wait(1)[0].status, 0);
            b.client.call(Request::ListDevices).unwrap();
        }
    }
}

/// Every kind of request from one program to another.
pub(crate) fn talk(a: &mut End, b: &mut End) {
    a.mr.write(0, b"sent");
    b.post_recv(1, &[b.mr.sge(100, 4)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 4)]);
    assert_eq!((b.cq.wait(1)[0].byte_len, &b.mr.read(100, 4)[..]), (4, &b"sent"[..]));

    let data = crate::harness::pattern(50_000, 7);
    a.mr.write(0, &data);
    let (remote_addr, rkey) = (b.mr.addr + 3, b.mr.rkey);
    a.exchange(SendOp::Write { remote_addr, rkey, imm: None }, &[a.mr.sge(0, data.len())]);
    assert!(b.mr.read(3, data.len()) == data, "written");
    a.mr.write(0, &vec![0; data.len()]);
    a.exchange(SendOp::Read { remote_addr, rkey }, &[a.mr.sge(0, data.len())]);
    assert!(a.mr.read(0, data.len()) == data, "read");

    b.mr.write(64, &40u64.to_ne_bytes());
    let remote_addr = b.mr.addr + 64;
    let number = |end: &End, at| u64::from_ne_bytes(end.mr.read(at, 8).try_into().unwrap());
    a.exchange(SendOp::FetchAdd { remote_addr, rkey, add: 2 }, &[a.mr.sge(8, 8)]);
    assert_eq!((number(a, 8), number(b, 64)), (40, 42));
    a.exchange(SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 7 }, &[a.mr.sge(8, 8)]);
    assert_eq!((number(a, 8), number(b, 64)), (42, 7));
}

#[test]
fn a_program_with_a_slot_of_its_own_is_as_any_for_its_peers_and_in_what_is_shown() {
    let daemon = start_with(2, |config| config.slots = 2);
    for kind in [Kind::Shared, Kind::Process] {
        let mut own = end_of(hosting(daemon.socket()), "urxe0", kind);
        assert!(slot_of(&own) > 2, "{}", slot_of(&own));
        for mut other in [
            End::new(&daemon, 1, kind, LEN),
            End::new(&daemon, 0, kind, LEN),
            end_of(hosting(daemon.socket()), "urxe1", kind),
        ] {
            assert_ne!(slot_of(&own), slot_of(&other));
            connect(&mut own, &mut other);
            talk(&mut own, &mut other);
            talk(&mut other, &mut own);
            let listed = other.client.resources("urxe0", ResourceKind::Qp);
            let number = own.qp.created.qpn.get();
            assert!(listed.iter().any(|qp| qp.number == number && qp.program.contains("test[")));
            let stats = own.client.stats("urxe0");
            assert!(stats.qps.iter().any(|qp| qp.qpn == number));
            own = end_of(own.client, "urxe0", kind);
        }
    }
    // OWN-005
    let mut observer = Client::connect(daemon.socket());
    eventually("their slots are free", || {
        observer.resources("urxe0", ResourceKind::Qp).is_empty().then_some(())
    });
    assert_eq!(observer.counter("urxe0", "slots_ended"), 0);
}

/// The refusal of a slot.
fn refusal(mut channel: Channel) -> (i32, String) {
    let (reply, fds) = channel.call(&Request::HostSlot, &[]).unwrap();
    assert!(fds.is_empty());
    let Reply::Error(error) = reply else { panic!("{reply:?}") };
    (error.errno, error.message)
}

#[test]
fn only_programs_of_the_daemons_own_user_have_slots_of_their_own() {
    if !geteuid().is_root() {
        return needs_root("it takes the right to be several users");
    }
    let daemon = start(1);
    let uid = fresh_uid();
    let (errno, sentence) = refusal(Client::channel_of_user(daemon.socket(), uid).unwrap());
    assert_eq!(errno, libc::EPERM);
    assert!(sentence.contains(&format!("user {uid} has no right to one")), "{sentence}");
    // It is served as it would have been.
    let other = Client::channel_of_user(daemon.socket(), uid).unwrap();
    assert!(Client::try_over(other).is_some());
}

#[test]
fn a_slot_is_asked_for_before_anything_else_or_not_at_all() {
    let daemon = start(1);
    let (errno, sentence) = refusal(Client::connect(daemon.socket()).channel);
    assert_eq!(errno, libc::EPROTO);
    assert!(sentence.contains("first request"), "{sentence}");
}

#[test]
fn where_one_slot_serves_all_programs_none_has_its_own() {
    let daemon = start_with(1, |config| config.fault = Some("drop=0%".parse().unwrap()));
    let (errno, sentence) = refusal(Channel::connect(daemon.socket()).unwrap());
    assert_eq!(errno, libc::EOPNOTSUPP);
    assert!(sentence.contains("one slot of this daemon serves all programs"), "{sentence}");
}

/// What a program gets that asks for a slot, and does nothing with it.
pub(crate) fn asked(socket: &Path) -> Option<[OwnedFd; 2]> {
    let mut channel = Channel::connect(socket).unwrap();
    let (reply, fds) = channel.call(&Request::HostSlot, &[]).unwrap();
    matches!(reply, Reply::HostSlot { .. }).then(|| fds.try_into().unwrap())
}

#[test]
fn there_are_slots_for_other_users_whatever_programs_have_and_each_is_free_again() {
    let daemon = start(1);
    let mut others = Others::new(daemon.socket());
    for _ in 0..2 {
        let held: Vec<_> = (0..MAX_HOSTED_SLOTS).map(|_| asked(daemon.socket()).unwrap()).collect();
        let (errno, sentence) = refusal(Channel::connect(daemon.socket()).unwrap());
        assert_eq!(errno, libc::ENOSPC);
        assert!(sentence.contains(&format!("{MAX_HOSTED_SLOTS} programs have one")), "{sentence}");
        if geteuid().is_root() {
            Client::of_user(daemon.socket(), fresh_uid()).call(Request::ListDevices).unwrap();
        }
        others.notice_nothing();
        drop(held);
        eventually("all are free", || asked(daemon.socket()));
    }
    if !geteuid().is_root() {
        needs_root("needs root, to be two users");
    }
}

#[test]
fn whatever_a_program_says_as_a_slot_harms_nobody() {
    let daemon = start(1);
    let mut others = Others::new(daemon.socket());
    let mut observer = Client::connect(daemon.socket());
    let now = Instant::now();
    let link = || {
        let [link, session] = asked(daemon.socket()).unwrap();
        rustix::io::ioctl_fionbio(&link, true).unwrap();
        (Link::<ToBroker, ToSlot>::new(link), session)
    };
    // Lies about sessions, its own and those of others.
    let (mut lying, _session) = link();
    let name = "x".repeat(60_000);
    for session in 0..20 {
        for message in [
            ToBroker::Named { session, name: name.clone() },
            ToBroker::Established { device: 99, qpn: Qpn::new(17) },
            ToBroker::Request { session, request: Request::ListCauses },
            ToBroker::Gone { session },
            ToBroker::Freed { session },
        ] {
            let _ = lying.send(now, message, Vec::new());
        }
    }
    others.notice_nothing();
    // Answers that would fit into no message.
    let (mut answering, _session) = link();
    let answer = |number| {
        let resource = Resource {
            number: 1,
            program: "y".repeat(65_490),
            uid: 0,
            pd: 0,
            detail: ResourceDetail::Cq { cqe: 1, unread: 0, qps: 0, failed: false },
        };
        let page = ResourcePage { resources: vec![resource], next: None };
        ToBroker::Found { number, found: Found::Resources(page) }
    };
    let device = String::from("urxe0");
    let request = Request::Resources { device, kind: ResourceKind::Srq, from: Default::default() };
    let mut from = request;
    let refused = loop {
        observer.channel.send(&from, &[]).unwrap();
        let reply = loop {
            let said = answering.recv().unwrap().map(|(message, _)| match message {
                ToSlot::Question { number, .. } => answer(number),
                _ => ToBroker::Here,
            });
            if let Some(message) = said {
                answering.send(Instant::now(), message, Vec::new()).unwrap();
            }
            rustix::io::ioctl_fionbio(&observer.channel, true).unwrap();
            if let Ok((reply, _)) = observer.channel.recv::<Reply>() {
                break reply;
            }
        };
        rustix::io::ioctl_fionbio(&observer.channel, false).unwrap();
        match (reply, from) {
            (Reply::Resources(page), Request::Resources { device, kind, .. }) => {
                // It is asked once more, should it have been too slow.
                from = Request::Resources { device, kind, from: page.next.unwrap_or_default() };
            }
            (Reply::Error(error), _) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused.message.contains("more than a message can hold"), "{refused}");
    others.notice_nothing();
    // No message at all.
    let [garbling, _session] = asked(daemon.socket()).unwrap();
    rustix::io::write(&garbling, &[0xff; 1000]).unwrap();
    others.notice_nothing();
    assert!(asked(daemon.socket()).is_some());
}

/// A slot that a program runs, with one session.
struct Hosted {
    link: Link<ToBroker, ToSlot>,
    session: u64,
    _socket: OwnedFd,
}

impl Hosted {
    fn new(socket: &Path) -> Hosted {
        let [link, socket] = asked(socket).unwrap();
        rustix::io::ioctl_fionbio(&link, true).unwrap();
        let mut link = Link::<ToBroker, ToSlot>::new(link);
        let session = eventually("its session begins", || match link.recv().unwrap()?.0 {
            ToSlot::Session { number, .. } => Some(number),
            _ => None,
        });
        Hosted { link, session, _socket: socket }
    }

    fn asks(&mut self, request: Request) {
        self.says(ToBroker::Request { session: self.session, request });
    }

    fn says(&mut self, message: ToBroker) {
        self.link.send(Instant::now(), message, Vec::new()).unwrap();
    }
}

/// OWN-035
#[test]
fn however_a_slot_ends_a_session_nothing_of_it_is_left() {
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let create = || Request::Cm(CmRequest::CreateChannel);
    let capture = || Request::BeginCapture(CaptureSpec { snaplen: 100, ..Default::default() });
    let asked: [(fn() -> Request, bool); 5] =
        [(create, false), (create, true), (capture, false), (capture, true), (capture, true)];
    for (request, is_gone) in asked {
        let mut slot = Hosted::new(daemon.socket());
        let session = slot.session;
        if is_gone {
            slot.says(ToBroker::Gone { session });
        }
        slot.asks(request());
        slot.says(ToBroker::Freed { session });
    }
    eventually("nothing is left", || {
        let mut left =
            |begun, ended| observer.counter("urxe0", begun) - observer.counter("urxe0", ended);
        let sessions = left("sessions_opened", "sessions_closed");
        let channels = left("cm_channels_created", "cm_channels_destroyed");
        ((sessions, channels) == (1, 0)).then_some(())
    });
    let mut captures = [0; MAX_CAPTURES_OF_USER].map(|_| Client::connect(daemon.socket()));
    for program in &mut captures {
        program.call(capture()).unwrap();
    }
}

/// OWN-036
#[test]
fn a_slot_that_asks_before_it_was_answered_ends_and_no_other_does() {
    let daemon = start(1);
    let mut others = Others::new(daemon.socket());
    let mut silent = Hosted::new(daemon.socket());
    let mut asking = Hosted::new(daemon.socket());
    // The silent one is asked for what is listed, and answers nothing.
    for _ in 0..3 {
        let (device, kind) = (String::from("urxe0"), ResourceKind::Srq);
        asking.asks(Request::Resources { device, kind, from: Default::default() });
    }
    eventually("it has ended", || asking.link.recv().is_err().then_some(()));
    let mut questions = 0;
    while let Some((message, _)) = silent.link.recv().unwrap() {
        questions += u32::from(matches!(message, ToSlot::Question { .. }));
    }
    assert!(questions <= 1, "{questions}");
    others.notice_nothing();
}

/// Set for a program that a test starts: where it is to connect.
const SOCKET: &str = "URXE_TEST_SOCKET";

/// No test of its own: a program that runs its own slot, and then does nothing by itself.
#[test]
fn as_a_program_with_a_slot_of_its_own() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let mut end = end_of(hosting(socket.as_ref()), "urxe0", Kind::Process);
    let (qpn, mr) = (end.qp.created.qpn.get(), &end.mr);
    writeln!(std::io::stdout(), "it has {qpn} {} {}", mr.addr, mr.rkey.0).unwrap();
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    let peer: u32 = lines.next().unwrap().parse().unwrap();
    end.connect(end.addr, Qpn::new(peer));
    writeln!(std::io::stdout(), "it is ready").unwrap();
    let _ = lines.next();
    // The process may be gone before its slot has heard of the end of the session.
    end.client.call(Request::CloseDevice { context: end.context }).unwrap();
}

/// Such a program, in a process of its own, with a peer here.
struct Program {
    child: Running,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    peer: End,
    qpn: u32,
    remote_addr: u64,
    rkey: Rkey,
}

impl Program {
    fn start(socket: &Path) -> Program {
        let mut command = alone("hosted::as_a_program_with_a_slot_of_its_own");
        command.env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Running::start(&mut command);
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let peer = End::at(socket, "urxe0", Kind::Shared, LEN);
        let lines = BufReader::new(stdout).lines();
        let (qpn, remote_addr, rkey) = (0, 0, Rkey(0));
        let mut program = Program { child, stdin, lines, peer, qpn, remote_addr, rkey };
        let has = program.says("it has ");
        let numbers: Vec<u64> = has.split(' ').map(|number| number.parse().unwrap()).collect();
        program.qpn = numbers[0] as u32;
        (program.remote_addr, program.rkey) = (numbers[1], Rkey(numbers[2] as u32));
        program.peer.connect(program.peer.addr, Qpn::new(program.qpn));
        writeln!(program.stdin, "{}", program.peer.qp.created.qpn.get()).unwrap();
        program.says("it is ready");
        program
    }

    /// The rest of the next line that begins so.
    fn says(&mut self, words: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.split_once(words)?.1.to_owned()));
        said.expect("it has ended")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Has the peer write to it.
    fn post_write(&mut self) {
        let (remote_addr, rkey) = (self.remote_addr, self.rkey);
        let sge = self.peer.mr.sge(0, LEN);
        let write = SendOp::Write { remote_addr, rkey, imm: None };
        self.peer.post_send(1, write, SendData::Sges(&[sge]));
    }

    fn is_written_to(&mut self) {
        self.post_write();
        assert_eq!(self.peer.cq.wait(1)[0].status, 0);
    }

    fn is_listed(&self, observer: &mut Client) -> bool {
        let listed = observer.resources("urxe0", ResourceKind::Qp);
        listed.iter().any(|qp| qp.number == self.qpn)
    }
}

#[test]
fn a_program_that_is_killed_leaves_nothing_and_its_peers_find_out() {
    let daemon = start(1);
    let mut others = Others::new(daemon.socket());
    let mut observer = Client::connect(daemon.socket());
    let mut program = Program::start(daemon.socket());
    program.is_written_to();
    assert!(program.is_listed(&mut observer));
    program.post_write();
    program.child.kill().unwrap();
    program.child.wait();
    program.post_write();
    others.notice_nothing();
    eventually("its QP is gone", || (!program.is_listed(&mut observer)).then_some(()));
    // The others of them are flushed, or came in time.
    let completed = program.peer.cq.wait(2);
    assert!(completed.iter().any(|entry| entry.status == RETRY_EXCEEDED), "{completed:?}");
    others.notice_nothing();
    assert_eq!(observer.counter("urxe0", "slots_ended"), 0);
    assert_ne!(observer.counter("urxe0", "drop_ended_slot"), 0, "what came for it later");
}

/// Has a program of its own slot count something, and end so. Returns what was counted then, and
/// what is when it has ended: messages, which what is sent again does not count among.
fn counted_before_and_after(end: impl FnOnce(Program)) -> (u64, u64) {
    let daemon = start(1);
    let mut observer = Client::connect(daemon.socket());
    let mut counted = || observer.counter("urxe0", "received_messages");
    let mut program = Program::start(daemon.socket());
    // For longer than it takes to write down what one that is killed has counted.
    for _ in 0..20 {
        program.is_written_to();
        sleep(Duration::from_millis(50));
    }
    let before = counted();
    let qpn = program.qpn;
    end(program);
    let mut other = Client::connect(daemon.socket());
    eventually("it has ended", || {
        let listed = other.resources("urxe0", ResourceKind::Qp);
        listed.iter().all(|qp| qp.number != qpn).then_some(())
    });
    (before, counted())
}

#[test]
fn counted_in_a_programs_own_slot_is_still_counted_when_it_has_ended() {
    let (before, after) = counted_before_and_after(|program| {
        drop(program.stdin);
        let mut child = program.child;
        assert!(child.wait().success());
    });
    assert_eq!((before, after), (20 * PARTS, before));
}

#[test]
fn counted_in_a_programs_own_slot_is_still_counted_when_it_was_killed() {
    let (before, after) = counted_before_and_after(|program| {
        program.signal(Signal::KILL);
        let mut child = program.child;
        child.wait();
    });
    assert!(after >= PARTS && after <= before, "{after} of {before} messages");
}

#[test]
fn a_program_that_is_stopped_is_silent_and_goes_on_later_and_nobody_else_waits_for_it() {
    let daemon = start(1);
    let mut others = Others::new(daemon.socket());
    let mut observer = Client::connect(daemon.socket());
    let mut program = Program::start(daemon.socket());
    program.is_written_to();
    program.signal(Signal::STOP);
    let pid = program.child.id();
    eventually("it has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
    });
    program.post_write();
    others.notice_nothing();
    let next = [(); 3].map(|()| end_of(hosting(daemon.socket()), "urxe0", Kind::Shared));
    let stopped = SlotId::named_by(Qpn::new(program.qpn)).index();
    assert!(!next.each_ref().map(slot_of).contains(&stopped));
    drop(next);
    // It is left out of what is shown.
    assert!(!program.is_listed(&mut observer));
    others.notice_nothing();
    assert!(program.peer.cq.poll().is_empty());
    program.signal(Signal::CONT);
    assert_eq!(program.peer.cq.wait(1)[0].status, 0);
    program.is_written_to();
    eventually("it is shown again", || program.is_listed(&mut observer).then_some(()));
    drop(program.stdin);
    assert!(program.child.wait().success());
}

#[test]
fn histories_of_a_programs_own_slot_are_known_when_it_has_ended() {
    let daemon = start(1);
    let mut end = end_of(hosting(daemon.socket()), "urxe0", Kind::Shared);
    let slot = slot_of(&end);
    let of = HistorySubject::Qp(end.qp.created.qpn.get());
    fail(&mut end);
    let mut other = Client::connect(daemon.socket());
    drop(end);
    let told = eventually("it is told as one that has ended", || {
        histories(&mut other, of).pop().filter(|told| told.gone.is_some())
    });
    // The broker has heard of its end by the time that it gives another away.
    let next = end_of(hosting(daemon.socket()), "urxe0", Kind::Shared);
    assert_ne!(slot_of(&next), slot);
    let after = histories(&mut other, of).pop().unwrap();
    assert_eq!((&after.failed.unwrap().wr_id, after.uid), (&told.failed.unwrap().wr_id, told.uid));
    assert_eq!(histories(&mut other, HistorySubject::Failed).len(), 1);
}
