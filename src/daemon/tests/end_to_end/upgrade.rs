//! A `urxed` that is replaced by another one while programs have QPs and use them.

use crate::captures::{Capturer, all};
use crate::cm_client::{Caller, Line, conn, create_channel, param};
use crate::harness::{Client, End, Kind, Running, eventually, fresh_path, fresh_uid, pattern};
use crate::histories::histories;
use crate::hosted::hosting;
use crate::service::Manager;
use crate::startup::signal;
use crate::workers::{
    Urxed, connect, end_of, has_lost_its_device, is_root, pass, pass_for_a_second, send_signal,
    worker_of,
};
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{
    CmEventKind, CmPortSpace, CmRequest, Happening, HistorySubject, Reply, Request, ResourceKind,
};
use urxe_types::{Extra, QpState, QpType, SendOp};

const LEN: usize = 100_000;

/// A daemon whose file can be replaced, in a directory of its own.
struct Upgradable {
    urxed: Urxed,
    directory: PathBuf,
    upgrades: usize,
}

impl Upgradable {
    fn start(options: &[&str]) -> Upgradable {
        let directory = fresh_path().with_extension("bin");
        fs::create_dir(&directory).unwrap();
        let program = directory.join("urxed");
        copy(Path::new(env!("CARGO_BIN_EXE_urxed")), &program);
        let options = [&["--slots", "2", "--mode", "666"], options].concat();
        let urxed = Urxed::of(&program, &options);
        Upgradable { urxed, directory, upgrades: 0 }
    }

    fn program(&self) -> PathBuf {
        self.directory.join("urxed")
    }

    /// Puts another file in the place of its own, as a package does.
    fn replace(&self, with: impl FnOnce(&Path)) {
        let [draft, new] = ["draft", "new"].map(|name| self.directory.join(name));
        with(&draft);
        copy(&draft, &new);
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, self.program()).unwrap();
    }

    /// Has it upgraded to a new copy, and waits until it is.
    fn upgrade(&mut self) {
        self.replace(|new| copy(Path::new(env!("CARGO_BIN_EXE_urxed")), new));
        self.upgrades += 1;
        signal(&self.child, Signal::USR2);
        eventually("it is upgraded", || {
            let said = self.said();
            let failed = said.iter().find(|line| line.contains("no upgrade"));
            assert_eq!(failed, None);
            let upgrades = said.iter().filter(|line| line.contains("upgraded to")).count();
            (upgrades == self.upgrades).then_some(())
        });
        let executed = fs::read_link(format!("/proc/{}/exe", self.child.id())).unwrap();
        assert_eq!(executed, self.program(), "and not a file that is gone");
    }

    /// Asks for an upgrade that is refused, and returns why.
    fn refuses(&self) -> String {
        let refusals = || {
            let said = self.said().into_iter();
            said.filter(|line| line.contains("no upgrade, all stays as it was")).collect()
        };
        let before: Vec<String> = refusals();
        signal(&self.child, Signal::USR2);
        eventually("it says why not", || refusals().get(before.len()).cloned())
    }
}

/// Makes a file that can be executed at once. What this process writes itself cannot as long as a
/// child that another test has just forked has it open for writing as well.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

impl Deref for Upgradable {
    type Target = Urxed;

    fn deref(&self) -> &Urxed {
        &self.urxed
    }
}

impl Drop for Upgradable {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Two programs that send and write to each other without a pause, and must never see an error.
struct Traffic {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    thread: Option<JoinHandle<(End, End)>>,
}

impl Traffic {
    fn between(mut a: End, mut b: End) -> Traffic {
        connect(&mut a, &mut b);
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let round = counted.fetch_add(1, Ordering::Relaxed);
                round_of(&mut a, &mut b, round as u64);
            }
            (a, b)
        });
        Traffic { stop, rounds, thread: Some(thread) }
    }

    /// Waits until a few messages more have arrived as they should.
    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("more messages", || {
            assert!(!self.thread.as_ref().unwrap().is_finished(), "it has failed");
            (self.rounds.load(Ordering::Relaxed) > before + 5).then_some(())
        });
    }

    fn end(mut self) -> (End, End) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A SEND and a WRITE, whose bytes arrive.
fn round_of(a: &mut End, b: &mut End, round: u64) {
    let data = pattern(LEN / 2, round);
    a.mr.write(0, &data);
    b.post_recv(round, &[b.mr.sge(0, LEN / 2)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, data.len())]);
    let received = b.cq.wait(1)[0];
    assert_eq!((received.status, received.wr_id), (0, round));
    assert!(b.mr.read(0, data.len()) == data, "round {round}: sent");
    let (remote_addr, rkey) = (b.mr.addr + (LEN / 2) as u64, b.mr.rkey);
    a.exchange(SendOp::Write { remote_addr, rkey, imm: None }, &[a.mr.sge(0, data.len())]);
    assert!(b.mr.read(LEN / 2, data.len()) == data, "round {round}: written");
}

fn end_in_own_slot(socket: &Path, kind: Kind) -> End {
    End::with(hosting(socket), "urxe0", QpType::Rc, kind, LEN)
}

/// All that is shown of a device that does not change by itself.
fn shown(observer: &mut Client) -> Vec<String> {
    let kinds = [ResourceKind::Cq, ResourceKind::Qp, ResourceKind::Mr];
    let all = kinds.map(|kind| observer.resources("urxe0", kind));
    let all = all.into_iter().flatten();
    all.map(|it| format!("{} {} {} {}", it.number, it.program, it.uid, it.pd)).collect()
}

/// UPGRADE-002, UPGRADE-006
#[test]
fn programs_with_slots_of_their_own_notice_nothing_of_upgrades() {
    let mut daemon = Upgradable::start(&[]);
    let [a, b] = [Kind::Shared, Kind::Process].map(|kind| end_in_own_slot(&daemon.socket, kind));
    let traffic = Traffic::between(a, b);
    let mut capturer = Capturer::begin(hosting(&daemon.socket), all());
    let mut observer = hosting(&daemon.socket);
    let before = (shown(&mut observer), observer.counter("urxe0", "sessions_opened"));
    for _ in 0..2 {
        traffic.goes_on();
        let received = observer.counter("urxe0", "received_packets");
        daemon.upgrade();
        assert!(observer.counter("urxe0", "received_packets") >= received);
        traffic.goes_on();
        capturer.packets();
        traffic.goes_on();
        capturer.wait(5, |_| true);
        let after = (shown(&mut observer), observer.counter("urxe0", "sessions_opened"));
        assert_eq!(after, before);
    }
    // Programs that come later are served as those before, and talk to them.
    let (mut a, mut b) = traffic.end();
    drop(capturer);
    let (mut c, mut d) = (
        end_in_own_slot(&daemon.socket, Kind::Shared),
        End::at(&daemon.socket, "urxe0", Kind::Shared, LEN),
    );
    connect(&mut c, &mut d);
    round_of(&mut c, &mut d, 1);
    round_of(&mut d, &mut c, 2);
    // What the old ones make anew, and what they free, is as ever.
    let context = a.client.open("urxe0");
    a.client.alloc_pd(context);
    round_of(&mut a, &mut b, 3);
    drop((a, b, c, d));
    eventually("nothing is left of them", || {
        observer.resources("urxe0", ResourceKind::Qp).is_empty().then_some(())
    });
}

/// UPGRADE-002
#[test]
fn programs_of_other_users_and_their_workers_notice_nothing_of_upgrades() {
    if !is_root() {
        return;
    }
    let mut daemon = Upgradable::start(&[]);
    let users = [fresh_uid(), fresh_uid(), fresh_uid()];
    let [a, b] = [users[0], users[1]].map(|uid| {
        End::with(Client::of_user(&daemon.socket, uid), "urxe0", QpType::Rc, Kind::Process, LEN)
    });
    let traffic = Traffic::between(a, b);
    // Programs that come and ask meanwhile wait for their answers, and get them.
    let (socket, stop) = (daemon.socket.clone(), Arc::new(AtomicBool::new(false)));
    let (stopped, uid) = (Arc::clone(&stop), users[0]);
    let others = std::thread::spawn(move || {
        let mut served = 0;
        while !stopped.load(Ordering::Relaxed) {
            let mut other = Client::of_user(&socket, uid);
            other.open("urxe0");
            assert!(!other.resources("urxe0", ResourceKind::Qp).is_empty());
            assert!(other.counter("urxe0", "sessions_opened") > 0);
            served += 1;
        }
        served
    });
    let workers = [users[0], users[1]].map(worker_of);
    traffic.goes_on();
    daemon.upgrade();
    traffic.goes_on();
    // One that the second process has started outlives it as well.
    let [mut c, mut d] = [(); 2].map(|()| end_of(&daemon.socket, users[2], Kind::Shared));
    connect(&mut c, &mut d);
    pass_for_a_second(&mut c, &mut d);
    let third = worker_of(users[2]);
    daemon.upgrade();
    traffic.goes_on();
    assert_eq!([users[0], users[1]].map(worker_of), workers);
    assert_eq!(worker_of(users[2]), third);
    c.client.call(Request::ListDevices).unwrap();
    // SLOT-106: that one ends is noticed, and it is started again.
    send_signal(third, Signal::KILL);
    daemon.says(&format!("worker {third} of user {} was killed by SIGKILL", users[2]));
    assert!(has_lost_its_device(&mut c));
    let next = eventually("another one is started", || {
        let channel = Client::channel_of_user(&daemon.socket, users[2])?;
        Client::try_over(channel)
    });
    assert_ne!(worker_of(users[2]), third);
    drop(next);
    // HISTORY-015: what happened to its QPs is known, and still is to the process after that.
    let mut observer = hosting(&daemon.socket);
    let mut last = || {
        let told = histories(&mut observer, HistorySubject::Qp(c.qp.created.qpn.get())).pop()?;
        Some((told.entries.len(), told.entries.last()?.what.clone()))
    };
    let words = format!("worker {third} of user {} was killed by SIGKILL", users[2]);
    let told = eventually("its end is told", || {
        last().filter(|(_, what)| *what == Happening::SlotEnded(words.clone()))
    });
    assert!(told.0 > 3, "it was connected before: {told:?}");
    daemon.upgrade();
    assert_eq!(last(), Some(told));
    stop.store(true, Ordering::Relaxed);
    assert!(others.join().unwrap() > 0);
    let (mut a, mut b) = traffic.end();
    pass(&mut a, &mut b);
    // SLOT-108: and all end with the daemon.
    let last = [users[0], users[1], users[2]].map(worker_of);
    drop(daemon);
    for worker in last {
        let is_there = || Path::new(&format!("/proc/{worker}/exe")).exists();
        eventually("the worker has gone", || (!is_there()).then_some(()));
    }
}

/// UPGRADE-003, UPGRADE-004, UPGRADE-005
#[test]
fn an_upgrade_that_cannot_be_had_changes_nothing_and_says_why() {
    let daemon = Upgradable::start(&[]);
    let [mut a, mut b] = [(), ()].map(|()| end_in_own_slot(&daemon.socket, Kind::Shared));
    connect(&mut a, &mut b);
    let others: [fn(&Path); 4] = [
        |new| copy(Path::new("/bin/true"), new),
        |new| fs::write(new, "#!/bin/sh\necho state: version 7, expected 8\n").unwrap(),
        |new| fs::write(new, "no program at all").unwrap(),
        |new| fs::write(new, "#!/nonexistent/interpreter\n").unwrap(),
    ];
    let expected = [
        "does not understand the state of this daemon: it says nothing",
        "does not understand the state of this daemon: state: version 7, expected 8",
        "Exec format error",
        "No such file or directory",
    ];
    for (other, expected) in others.into_iter().zip(expected) {
        daemon.replace(other);
        let said = daemon.refuses();
        assert!(said.contains(expected), "{said}");
        assert!(said.contains(daemon.program().to_str().unwrap()), "{said}");
        round_of(&mut a, &mut b, 1);
    }
    daemon.replace(|new| copy(Path::new(env!("CARGO_BIN_EXE_urxed")), new));
    // A program that a thread of the daemon serves would be lost.
    let mut own = Client::connect(&daemon.socket);
    own.open("urxe0");
    let said = daemon.refuses();
    assert!(said.contains("1 programs are served by threads of this process"), "{said}");
    own.call(Request::ListDevices).unwrap();
    round_of(&mut a, &mut b, 2);
    drop(own);
    let mut observer = hosting(&daemon.socket);
    eventually("it is gone", || {
        let sessions = observer.counter("urxe0", "sessions_opened")
            - observer.counter("urxe0", "sessions_closed");
        (sessions == 3).then_some(())
    });
    eventually("it can be upgraded", || {
        // The thread may have something left of it to be freed.
        signal(&daemon.child, Signal::USR2);
        daemon.said().iter().any(|line| line.contains("upgraded to")).then_some(())
    });
    round_of(&mut a, &mut b, 3);
}

/// A program with a slot of its own and an event channel.
fn caller(socket: &Path) -> Caller {
    let mut client = hosting(socket);
    let (channel, pipe) = create_channel(&mut client);
    Caller { client, channel, pipe }
}

/// UPGRADE-002
#[test]
fn connections_and_listeners_go_on_over_an_upgrade() {
    connections_go_on(&[]);
    if is_root() {
        connections_go_on(&["--port-backend", "raw"]);
    }
}

fn connections_go_on(options: &[&str]) {
    let mut daemon = Upgradable::start(options);
    let (mut server, mut client) = (caller(&daemon.socket), caller(&daemon.socket));
    let mut probe = hosting(&daemon.socket);
    let (context, _) = probe.open_with_events("urxe0");
    let query = Request::QueryGid { context, port: 1, index: 0 };
    let Ok(Reply::Gid(gid)) = probe.call(query) else { panic!() };
    let addr = SocketAddr::new(gid.to_ip(), 7174);
    server.listen(CmPortSpace::Tcp, 1, addr);
    let (at_server, at_client) =
        (Line::new(&mut server.client, "urxe0"), Line::new(&mut client.client, "urxe0"));
    let mut ids = Vec::new();
    for round in 0..3 {
        // One is connected before, one begins before and ends after, one comes after the upgrade.
        let sqp = at_server.qp(&mut server.client, QpType::Rc);
        let cqp = at_client.qp(&mut client.client, QpType::Rc);
        let id = client.resolve(CmPortSpace::Tcp, 10 + round, addr);
        let wanted = param(cqp.created.qpn.get(), b"hello");
        client.order(CmRequest::Connect { id, param: wanted });
        if round == 1 {
            eventually("the request is there", || server.is_announced().then_some(()));
            daemon.upgrade();
        }
        let (new, asked) = server.expect_request(1);
        assert_eq!(&conn(asked).private_data[..5], b"hello");
        server.set_qp(new, &sqp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
        let answer = param(sqp.created.qpn.get(), b"welcome");
        server.order(CmRequest::Accept { id: new, user_handle: 20 + round, param: answer });
        client.expect(10 + round, CmEventKind::ConnectResponse);
        client.set_qp(id, &cqp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
        client.order(CmRequest::Establish { id });
        server.expect(20 + round, CmEventKind::Established);
        ids.push((round, id, new));
    }
    let listed = probe.resources("urxe0", ResourceKind::CmId);
    assert_eq!(listed.len(), 7, "{listed:?}");
    for (round, id, _) in ids {
        client.order(CmRequest::Disconnect { id });
        server.expect(20 + round, CmEventKind::Disconnected);
        client.expect(10 + round, CmEventKind::Disconnected);
    }
}

/// UPGRADE-006
#[test]
fn a_user_has_as_many_sessions_after_an_upgrade_as_before() {
    let mut daemon = Upgradable::start(&["--sessions-per-user", "2"]);
    // The connection by which it was asked for is gone.
    let mut own = end_in_own_slot(&daemon.socket, Kind::Shared);
    eventually("one session is left", || {
        (own.client.counter("urxe0", "sessions_closed") == 1).then_some(())
    });
    daemon.upgrade();
    let greet = || {
        let mut channel = Channel::connect(&daemon.socket).unwrap();
        let hello = Request::Hello { program: "test".into() };
        let (reply, _) = channel.call(&hello, &[]).unwrap();
        (channel, reply)
    };
    let (second, reply) = greet();
    assert!(matches!(reply, Reply::Hello { .. }), "{reply:?}");
    let (_, reply) = greet();
    let Reply::Error(error) = reply else { panic!("{reply:?}") };
    assert!(error.message.contains("has 2, and one user may have 2 at most"), "{error}");
    drop(second);
    eventually("there is room", || matches!(greet().1, Reply::Hello { .. }).then_some(()));
    own.client.call(Request::ListDevices).unwrap();
}

/// UPGRADE-001, UPGRADE-007
#[test]
fn a_service_manager_sees_one_process_that_reloads_and_signals_mean_what_they_did() {
    let manager = Manager::new();
    let file = fresh_path().with_extension("toml");
    fs::write(&file, "drain = 5\n").unwrap();
    let mut daemon = manager.start(1, &["--config", file.to_str().unwrap()]);
    assert!(manager.next_message().starts_with("READY=1"));
    for _ in 0..2 {
        signal(&daemon, Signal::USR2);
        let reloading = manager.next_message();
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        let ready = manager.next_message();
        assert!(ready.starts_with("READY=1\nSTATUS=urxe0 = 127."), "{ready}");
        assert!(!ready.contains("all stays"), "{ready}");
    }
    fs::write(&file, "drain = 6\nslots = 3\n").unwrap();
    signal(&daemon, Signal::HUP);
    assert!(manager.next_message().starts_with("RELOADING=1"));
    assert!(manager.next_message().starts_with("READY=1"));
    signal(&daemon, Signal::TERM);
    assert_eq!(manager.next_message(), "STOPPING=1\n");
    assert!(daemon.wait().success());
    let said = daemon.rest_of_stderr();
    assert!(said.contains("drain is 6 now, and was 5"), "{said}");
    assert!(manager.socket().exists(), "the manager still listens there");
    assert!(!urxe_shm::sysfs_directory(manager.socket()).exists());
    let _ = fs::remove_file(&file);
}

/// What a daemon that was upgraded leaves behind: nothing.
#[test]
fn an_upgraded_daemon_cleans_up_and_begins_anew_after_nonsense() {
    let mut daemon = Upgradable::start(&["--metrics", "127.0.0.1:0"]);
    let line = daemon.says("metrics at ");
    let (_, rest) = line.split_once("metrics at ").unwrap();
    let (address, _) = rest.split_once(',').unwrap();
    daemon.upgrade();
    daemon.upgrade();
    // Metrics are where they were, though any port would have done.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: urxed\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let socket = daemon.socket.clone();
    Channel::connect(&socket).unwrap();
    drop(daemon);
    assert!(!socket.exists());
    assert!(!urxe_shm::sysfs_directory(&socket).exists());
    // Who sets the variable by hand is told what is missing.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_urxed"));
    command.args(["--addr", "127.0.0.1"]).env("URXED_GOES_ON", "1");
    command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut nonsense = Running::start(&mut command);
    assert!(!nonsense.wait().success());
    let said = nonsense.rest_of_stderr();
    assert!(said.contains("the descriptors of the state, at standard input"), "{said}");
}
