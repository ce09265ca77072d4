//! Several slots: from outside one daemon, and inside nobody is in another's way.

use crate::harness::{
    ALL, Client, End, Kind, Running, connected, eventually, fresh_path, start_with,
};
use crate::startup::{signal, urxed_at};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Signal, geteuid};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::collections::BTreeSet;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use urxe_daemon::Handle;
use urxe_daemon::limits::MAX_SESSIONS;
use urxe_shell::testing::{could_not_run, needs_root};
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{
    Backing, CmReply, CmRequest, MAX_FDS, MAX_MESSAGE, Reply, Request, ResourceKind, encode,
};
use urxe_shm::memory::region::{Mapping, create_memfd};
use urxe_shm::ring::completion_notifier::CompletionWaiter;
use urxe_types::{Extra, SendData, SendOp, SlotId};

/// A daemon of one device with so many slots.
fn with_slots(slots: u8) -> Handle {
    start_with(1, |config| config.slots = slots)
}

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(60);

fn slot_of(end: &End) -> usize {
    SlotId::named_by(end.qp.created.qpn).index()
}

#[test]
fn programs_are_spread_over_the_slots_and_talk_across_them() {
    let daemon = with_slots(3);
    let mut ends: Vec<End> = (0..6).map(|_| End::new(&daemon, 0, Kind::Shared, 4096)).collect();
    let slots: BTreeSet<usize> = ends.iter().map(slot_of).collect();
    assert_eq!(slots, BTreeSet::from([1, 2, 3]));
    // Each QP talks to one of the next slot, and the last to the first.
    for pair in ends.chunks_exact_mut(2) {
        let [a, b] = pair else { unreachable!() };
        assert_ne!(slot_of(a), slot_of(b));
        a.connect(b.addr, b.qp.created.qpn);
        b.connect(a.addr, a.qp.created.qpn);
        a.mr.write(0, b"across");
        b.post_recv(1, &[b.mr.sge(0, 4096)]);
        a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 6)]);
        assert_eq!(b.cq.wait(1)[0].byte_len, 6);
        assert_eq!(b.mr.read(0, 6), b"across");
    }
}

/// MEM-008
#[test]
fn atomics_of_programs_of_two_slots_on_one_number_lose_nothing() {
    const TOGETHER: u64 = 16;
    const ROUNDS: u64 = 500;
    let (daemon, others) = (with_slots(2), with_slots(2));
    let memfd = create_memfd("shared-by-programs", 4096).unwrap();
    let memory = Mapping::new(&memfd, 0, 4096).unwrap();
    let mut pairs = [(); 2].map(|()| {
        let (a, mut b) = connected(&others, &daemon, Kind::Shared, 64);
        let backing = Backing::Shared { offset: 0 };
        let request =
            Request::RegMr { pd: b.pd, addr: 0, length: 4096, iova: 0, access: ALL, backing };
        let (reply, _) = b.client.call_with(&request, &[memfd.as_fd()]).unwrap();
        let Reply::Mr { rkey, .. } = reply else { panic!("{reply:?}") };
        (a, b, rkey)
    });
    assert_ne!(slot_of(&pairs[0].1), slot_of(&pairs[1].1));
    std::thread::scope(|scope| {
        for (a, _, rkey) in &mut pairs {
            scope.spawn(move || {
                let add = SendOp::FetchAdd { remote_addr: 8, rkey: *rkey, add: 1 };
                for _ in 0..ROUNDS {
                    for wr_id in 0..TOGETHER {
                        a.post_send(wr_id, add, SendData::Sges(&[a.mr.sge(0, 8)]));
                    }
                    let completed = a.cq.wait(TOGETHER as usize);
                    assert!(completed.iter().all(|entry| entry.status == 0), "{completed:?}");
                }
            });
        }
    });
    let mut number = [0; 8];
    memory.read(8, &mut number).unwrap();
    assert_eq!(u64::from_ne_bytes(number), 2 * ROUNDS * TOGETHER);
}

/// Both slots and a thread that polls in vain have one processor. The program posts without pause,
/// until it is told; when it has stopped, it is told that too.
#[test]
fn programs_are_told_while_their_slot_is_kept_from_the_processor() {
    if !Path::new("/proc/thread-self/schedstat").exists() {
        return could_not_run("this system does not count how long threads wait");
    }
    let mut processor = CpuSet::new();
    processor.set(sched_getcpu());
    // Of this thread and all that it starts.
    sched_setaffinity(None, &processor).unwrap();
    let daemons = [start_with(1, |_| ()), start_with(1, |_| ())];
    let (mut a, b) = connected(&daemons[0], &daemons[1], Kind::Shared, 1 << 16);
    let waiter = CompletionWaiter::new(a.client.memory.clone()).unwrap();
    assert!(!waiter.is_crowded());
    let op = SendOp::Write { remote_addr: b.mr.addr, rkey: b.mr.rkey, imm: None };
    let mut under_way = 0;
    eventually("the program is told that its slot is crowded", || {
        under_way -= a.cq.poll().len();
        for _ in under_way..16 {
            let sge = a.mr.sge(0, 1 << 16);
            a.post_send(0, op, SendData::Sges(&[sge]));
        }
        under_way = 16;
        waiter.is_crowded().then_some(())
    });
    // CLIENT-021: few of the completions wake it, but all are found.
    let before = Instant::now();
    while under_way > 0 {
        let seen = waiter.count();
        match a.cq.poll().len() {
            0 => waiter.wait(seen, LONG),
            found => under_way -= found,
        }
    }
    assert!(before.elapsed() < LONG, "it has slept while they were there");
    eventually("the program is told that it is over", || (!waiter.is_crowded()).then_some(()));
}

#[test]
fn the_lists_and_counters_of_a_device_are_of_all_slots() {
    let daemon = with_slots(3);
    let mut ends: Vec<End> = (0..5).map(|_| End::new(&daemon, 0, Kind::Shared, 4096)).collect();
    let qpns: BTreeSet<u32> = ends.iter().map(|end| end.qp.created.qpn.get()).collect();
    for end in &mut ends {
        let listed = |kind, client: &mut Client| -> Vec<u32> {
            client.resources("urxe0", kind).iter().map(|resource| resource.number).collect()
        };
        let shown = listed(ResourceKind::Qp, &mut end.client);
        assert_eq!((shown.len(), shown.into_iter().collect()), (5, qpns.clone()));
        let cqs = listed(ResourceKind::Cq, &mut end.client);
        assert_eq!(cqs.iter().collect::<BTreeSet<_>>().len(), 5, "{cqs:?}: no number twice");
        let stats = end.client.stats("urxe0");
        assert_eq!(stats.qps.iter().map(|qp| qp.qpn).collect::<BTreeSet<_>>(), qpns);
    }
    // Five opened the device, in three slots, and each was refused once.
    for end in &mut ends {
        end.client.call(Request::OpenDevice { name: "urxe7".into() }).unwrap_err();
    }
    assert_eq!(ends[0].client.counter("urxe0", "requests_refused"), 5);
    assert_eq!(ends[0].client.counter("urxe0", "sessions_opened"), 5);
}

#[test]
fn requests_that_the_broker_answers_keep_their_order_among_the_others() {
    let daemon = with_slots(2);
    let mut channel = Channel::connect(daemon.socket()).unwrap();
    channel.send(&Request::Hello { program: "test".into() }, &[]).unwrap();
    assert!(matches!(channel.recv::<Reply>().unwrap().0, Reply::Hello { .. }));
    // More than one is on the way at a time, which a library never does.
    for _ in 0..20 {
        channel.send(&Request::Cm(CmRequest::CreateChannel), &[]).unwrap();
        channel.send(&Request::ListDevices, &[]).unwrap();
        for is_broker in [true, false] {
            let (reply, fds) = channel.recv::<Reply>().unwrap();
            let is_channel = matches!(reply, Reply::Cm(CmReply::Channel(_)));
            assert_eq!((is_channel, fds.len()), (is_broker, usize::from(is_broker)), "{reply:?}");
        }
    }
}

/// A TCP socket whose last close waits until the other end takes what is under way, and that end.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    // For longer than is waited for anything.
    set_socket_linger(&stream, Some(10 * LONG)).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[7; 65_536]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    (stream.into(), other)
}

/// A `urxed` with two slots in a process of its own, which can be stopped while others prepare what
/// it is to meet.
struct Stoppable {
    child: Running,
    socket: PathBuf,
}

impl Stoppable {
    fn new() -> Stoppable {
        let socket = fresh_path();
        let (child, _) = urxed_at(&socket);
        Stoppable { child, socket }
    }

    /// Connects a program that sends something along which blocks when it is closed, and keeps no
    /// descriptor of it. Returns its connection and what ends the blocking.
    fn attack(&self) -> (Channel, TcpStream) {
        let (descriptor, other) = lingering();
        let mut channel = Channel::connect(&self.socket).unwrap();
        channel.send(&Request::ListDevices, &[descriptor.as_fd()]).unwrap();
        drop(descriptor);
        (channel, other)
    }

    /// A program that asks, asks again with such a descriptor, and goes. Returns what ends the
    /// blocking.
    fn attack_and_go(&self) -> TcpStream {
        let (descriptor, other) = lingering();
        let mut channel = Channel::connect(&self.socket).unwrap();
        channel.send(&Request::ListDevices, &[]).unwrap();
        channel.send(&Request::ListDevices, &[descriptor.as_fd()]).unwrap();
        other
    }

    /// Does something while the daemon is stopped.
    fn stopped<T>(&self, act: impl FnOnce() -> T) -> T {
        signal(&self.child, Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("it is stopped", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
        });
        let done = act();
        signal(&self.child, Signal::CONT);
        done
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        signal(&self.child, Signal::KILL);
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// SHARE-120: the slot refuses the descriptor, and closes it; its owner would wait for minutes.
#[test]
fn a_socket_that_lingers_holds_up_neither_its_slot_nor_another() {
    let daemon = Stoppable::new();
    let mut victim = End::at(&daemon.socket, "urxe0", Kind::Shared, 4096);
    let (mut attacker, other) = daemon.stopped(|| daemon.attack());
    rustix::io::ioctl_fionbio(&attacker, true).unwrap();
    for _ in 0..10 {
        // Of the slot, of the broker, and of all slots.
        victim.client.call(Request::ListDevices).unwrap();
        victim.client.call(Request::Cm(CmRequest::CreateChannel)).unwrap();
    }
    assert_eq!(victim.client.resources("urxe0", ResourceKind::Qp).len(), 1);
    eventually("its own slot goes on", || attacker.recv::<Reply>().ok());
    drop(other);
}

/// SHARE-130: what is no request, too long or has too many descriptors is refused, and what came
/// along is closed; so is what comes with no bytes at all, which ends a session.
#[test]
fn sockets_that_linger_beside_what_is_no_request_hold_up_no_slot() {
    let daemon = Stoppable::new();
    let mut victims = ["urxe0"; 2].map(|at| End::at(&daemon.socket, at, Kind::Shared, 4096));
    let mut request = vec![0; 100];
    let len = encode(&Request::ListDevices, &mut request).unwrap();
    let attackers: Vec<_> = daemon.stopped(|| {
        let too_long = vec![0; MAX_MESSAGE + 1];
        let sent: [(&[u8], usize); 4] =
            [(b"nonsense", 1), (&too_long, 1), (&request[..len], MAX_FDS + 200), (b"", 1)];
        let attack = |(bytes, count)| {
            let (descriptor, other) = lingering();
            let channel = Channel::connect(&daemon.socket).unwrap();
            send_bytes(&channel, bytes, &vec![descriptor.as_fd(); count]);
            rustix::io::ioctl_fionbio(&channel, true).unwrap();
            (channel, other)
        };
        sent.into_iter().map(attack).collect()
    });
    let (attackers, others): (Vec<_>, Vec<_>) = attackers.into_iter().unzip();
    for mut attacker in attackers {
        eventually("its own slot goes on", || match attacker.recv::<Reply>() {
            Ok((reply, _)) => {
                assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
                Some(())
            }
            Err(ChannelError::Closed) => Some(()),
            Err(_) => None,
        });
    }
    for victim in &mut victims {
        victim.client.call(Request::ListDevices).unwrap();
    }
    drop(others);
}

/// Sends bytes with descriptors, whether that is a request or not.
fn send_bytes(channel: &Channel, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); 1000];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(channel, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty())
        .unwrap();
}

/// SHARE-120: the first answer cannot be delivered, so that the second request is never received:
/// its descriptor is closed with the session.
#[test]
fn a_socket_that_lingers_in_a_request_that_is_not_received_holds_up_no_slot() {
    let daemon = Stoppable::new();
    let mut victims = ["urxe0"; 2].map(|at| End::at(&daemon.socket, at, Kind::Shared, 4096));
    let others: Vec<_> = daemon.stopped(|| (0..8).map(|_| daemon.attack_and_go()).collect());
    for victim in &mut victims {
        let undeliverable = |victim: &mut End| {
            let seen = victim.client.counter("urxe0", "replies_undeliverable");
            (seen >= 8).then_some(())
        };
        eventually("all have failed to be answered", || undeliverable(victim));
        victim.client.call(Request::ListDevices).unwrap();
    }
    drop(others);
}

/// SHARE-013, SLOT-010: many connect at once, and each asks without pause.
#[test]
fn it_is_counted_when_programs_have_to_wait_because_others_ask_so_much() {
    const PROGRAMS: usize = 64;
    let daemon = Stoppable::new();
    let mut observer = Client::connect(&daemon.socket);
    let connections: Vec<Channel> = daemon
        .stopped(|| (0..PROGRAMS).map(|_| Channel::connect(&daemon.socket).unwrap()).collect());
    let programs = connections.into_iter().map(|channel| Client::try_over(channel).unwrap());
    let mut programs: Vec<Client> = programs.collect();
    daemon.stopped(|| {
        for program in &mut programs {
            for _ in 0..4 {
                program.channel.send(&Request::ListDevices, &[]).unwrap();
            }
        }
    });
    for program in &mut programs {
        for _ in 0..4 {
            let (reply, _) = program.channel.recv::<Reply>().unwrap();
            assert!(matches!(reply, Reply::Devices(_)), "{reply:?}");
        }
    }
    // Four in a millisecond, and the observer before them.
    let pauses = observer.counter("urxe0", "accept_pauses");
    assert!(pauses >= PROGRAMS as u64 / 4 - 1, "{pauses}");
    assert!(observer.counter("urxe0", "control_rests") > 0);
}

/// Connections of programs that say nothing: as many as their user may have, and more that wait.
fn take_all_sessions(daemon: &Path, observer: &mut Client) -> Vec<Channel> {
    let mut silent = Vec::new();
    while observer.counter("urxe0", "sessions_refused") == 0 {
        silent.extend((0..32).map(|_| Channel::connect(daemon).unwrap()));
        assert!(silent.len() <= MAX_SESSIONS, "one user has them all");
    }
    // None waits for being accepted any more.
    let (told, _) = silent.last_mut().unwrap().recv::<Reply>().unwrap();
    assert!(matches!(told, Reply::Error(_)), "{told:?}");
    silent
}

#[test]
fn descriptors_of_refused_programs_hold_up_no_other() {
    let daemon = Stoppable::new();
    let mut first = Client::connect(&daemon.socket);
    let silent = take_all_sessions(&daemon.socket, &mut first);
    let attackers: Vec<_> = daemon.stopped(|| (0..8).map(|_| daemon.attack()).collect());
    // What else is to be closed by the broker has its turn after theirs.
    let mut refused = Channel::connect(&daemon.socket).unwrap();
    let (told, _) = refused.recv::<Reply>().unwrap();
    assert!(matches!(told, Reply::Error(_)), "{told:?}: it is told why");
    assert!(refused.recv::<Reply>().is_err(), "it is turned away, and closed");
    drop(silent);
    eventually("there is room again", || {
        let mut channel = Channel::connect(&daemon.socket).ok()?;
        let (reply, _) = channel.call(&Request::Hello { program: "test".into() }, &[]).ok()?;
        matches!(reply, Reply::Hello { .. }).then_some(())
    });
    drop(attackers);
}

#[test]
fn one_user_with_all_sessions_that_it_may_have_keeps_no_other_out() {
    if !geteuid().is_root() {
        return needs_root("two users need root");
    }
    let daemon = Stoppable::new();
    let mut first = Client::connect(&daemon.socket);
    let _silent = take_all_sessions(&daemon.socket, &mut first);
    let mut other = Client::of_ordinary_user(&daemon.socket);
    other.open("urxe0");
}
