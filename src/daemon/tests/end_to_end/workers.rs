//! Workers: the programs of other users are served by processes of their own, whose fate is nobody
//! else's.

use crate::datagrams::fresh_group;
use crate::harness::{
    Client, End, Kind, QKEY, Running, av, datagram_attrs, eventually, fresh_path, fresh_uid,
    start_with,
};
use crate::histories::{fail, histories};
use crate::startup::{copy_with, signal, urxed_with};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use urxe_daemon::{Handle, PortBackend};
use urxe_shell::testing::{could_not_run, needs_root};
use urxe_shm::control::{Happening, HistoryEntry, HistorySubject, Reply, Request, ResourceKind};
use urxe_types::{
    DatagramPath, Destination, Extra, QpState, QpType, Qpn, SendData, SendOp, SlotId,
};

/// Whether there can be programs of several users.
pub(crate) fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        needs_root("it takes the right to be several users");
    }
    is_root
}

/// A program of a user with a QP.
pub(crate) fn end_of(socket: &Path, uid: u32, kind: Kind) -> End {
    End::with(Client::of_user(socket, uid), "urxe0", QpType::Rc, kind, 4096)
}

/// The processes that serve a user's programs, but those that have ended and wait to be reaped.
fn workers_of(uid: u32) -> Vec<i32> {
    let is_worker = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(format!("urxed-worker\0{uid}\0").as_bytes())
    };
    let names = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).filter(is_worker).collect()
}

/// The only process that serves a user's programs.
pub(crate) fn worker_of(uid: u32) -> i32 {
    let [worker] = workers_of(uid)[..] else { panic!("{:?}", workers_of(uid)) };
    worker
}

fn is_gone(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether a process is gone, or waits to be reaped.
fn is_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

pub(crate) fn send_signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// What `/proc` says of a process.
fn status(pid: i32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

pub(crate) fn connect(a: &mut End, b: &mut End) {
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
}

/// A message from one to the other.
pub(crate) fn pass(a: &mut End, b: &mut End) {
    a.mr.write(0, b"across");
    b.mr.write(0, b"nothing");
    b.post_recv(1, &[b.mr.sge(0, 4096)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 6)]);
    assert_eq!(b.cq.wait(1)[0].byte_len, 6);
    assert_eq!(b.mr.read(0, 6), b"across");
}

/// Two programs that are not to notice anything: of the daemon's own user, and of another.
struct Victims(End, End);

impl Victims {
    fn new(socket: &Path) -> Victims {
        let mut victims = Victims(
            End::at(socket, "urxe0", Kind::Shared, 4096),
            end_of(socket, fresh_uid(), Kind::Process),
        );
        connect(&mut victims.0, &mut victims.1);
        victims
    }

    fn notice_nothing(&mut self) {
        let Victims(own, other) = self;
        for _ in 0..3 {
            pass(own, other);
            pass(other, own);
            for end in [&mut *own, &mut *other] {
                end.client.call(Request::ListDevices).unwrap();
                end.client.resources("urxe0", ResourceKind::CmId);
            }
        }
    }
}

/// A `urxed` in a process of its own, and what it says.
pub(crate) struct Urxed {
    pub(crate) child: Running,
    pub(crate) socket: PathBuf,
    said: Arc<Mutex<Vec<String>>>,
}

impl Urxed {
    fn new() -> Urxed {
        Urxed::with(&["--slots", "2", "--mode", "666"])
    }

    /// One with these options.
    pub(crate) fn with(options: &[&str]) -> Urxed {
        Urxed::of(Path::new(env!("CARGO_BIN_EXE_urxed")), options)
    }

    /// A copy of it with these options.
    pub(crate) fn of(program: &Path, options: &[&str]) -> Urxed {
        let socket = fresh_path();
        let (mut child, _) = copy_with(program, &socket, options);
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let heard = Arc::clone(&said);
        thread::spawn(move || lines.for_each(|line| heard.lock().unwrap().extend(line)));
        Urxed { child, socket, said }
    }

    /// Waits until it has said something, and returns the line.
    pub(crate) fn says(&self, words: &str) -> String {
        eventually(words, || self.said().into_iter().find(|line| line.contains(words)))
    }

    /// The lines that it has said.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Urxed {
    fn drop(&mut self) {
        signal(&self.child, Signal::TERM);
        self.child.wait();
    }
}

/// Whether a program's daemon is gone, as far as it can see.
pub(crate) fn has_lost_its_device(end: &mut End) -> bool {
    end.client.channel.call(&Request::ListDevices, &[]).is_err()
}

#[test]
fn each_user_has_a_process_and_programs_of_all_talk_to_each_other() {
    if !is_root() {
        return;
    }
    let daemon = start_with(1, |config| config.slots = 2);
    let users = [fresh_uid(), fresh_uid()];
    let slot = |end: &End| SlotId::named_by(end.qp.created.qpn).index();
    for kind in [Kind::Shared, Kind::Process] {
        let mut own = End::new(&daemon, 0, kind, 4096);
        assert!(slot(&own) <= 2, "{}", slot(&own));
        let [mut a, mut b] = users.map(|uid| end_of(daemon.socket(), uid, kind));
        let mut second = end_of(daemon.socket(), users[0], kind);
        assert!(slot(&a) > 2 && slot(&b) > 2 && slot(&a) != slot(&b));
        assert_eq!(slot(&a), slot(&second), "a user has one");
        assert_ne!(worker_of(users[0]), worker_of(users[1]));
        for (one, other) in [(&mut a, &mut b), (&mut own, &mut second)] {
            connect(one, other);
            pass(one, other);
            pass(other, one);
        }
        let shown = own.client.resources("urxe0", ResourceKind::Qp);
        assert_eq!(shown.len(), 4, "{shown:?}");
        assert_eq!(a.client.resources("urxe0", ResourceKind::Qp).len(), 2, "those of its user");
    }
}

#[test]
fn a_worker_has_its_users_rights_and_no_more() {
    if !is_root() {
        return;
    }
    let daemon = start_with(1, |_| ());
    let uid = fresh_uid();
    let _program = end_of(daemon.socket(), uid, Kind::Shared);
    let worker = worker_of(uid);
    let status = status(worker);
    let all = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
    assert_eq!((&status["Uid"], &status["Gid"]), (&all(uid), &all(uid)));
    assert_eq!(status["Groups"], "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!((status["NoNewPrivs"].as_str(), status["Name"].as_str()), ("1", "urxed-worker"));
    let score = |pid: &str| -> i32 {
        let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        score.trim().parse().unwrap()
    };
    assert!(score(&worker.to_string()) > score("self"), "it dies before the broker");
    // Its user can neither read its memory nor look at what it has open.
    let looks = thread::spawn(move || {
        rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(uid)).unwrap();
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
        let paths = ["mem", "environ", "maps", "fd/0", "auxv"];
        let open = paths.map(|name| {
            let path = format!("/proc/{worker}/{name}");
            File::open(path).is_ok_and(|mut file| {
                let _ = file.seek(SeekFrom::Start(0));
                file.read(&mut [0; 8]).is_ok_and(|len| len > 0)
            })
        });
        (paths, open)
    });
    let (paths, open) = looks.join().unwrap();
    assert_eq!(open, [false; 5], "{paths:?}");
}

#[test]
fn a_worker_has_no_descriptor_of_the_broker_but_its_link() {
    if !is_root() {
        return;
    }
    // One that would be inherited.
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let urxed = Urxed::new();
    let other = end_of(&urxed.socket, fresh_uid(), Kind::Process);
    let uid = fresh_uid();
    let program = end_of(&urxed.socket, uid, Kind::Shared);
    let worker = worker_of(uid);
    let target = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        Some((name, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
    };
    let open: BTreeMap<String, String> = fs::read_dir(format!("/proc/{worker}/fd"))
        .unwrap()
        .filter_map(|e| target(e.ok()?))
        .collect();
    let leaked = fs::read_link(format!("/proc/self/fd/{}", pipe.as_raw_fd())).unwrap();
    assert!(!open.values().any(|target| *target == leaked.to_str().unwrap()), "{open:?}");
    assert_eq!((open["0"].as_str(), open["1"].as_str()), ("/dev/null", "/dev/null"));
    let unix = fs::read_to_string("/proc/net/unix").unwrap();
    let unix: Vec<&str> = unix.lines().filter_map(|line| line.split_whitespace().nth(6)).collect();
    let is_unix = |target: &&String| {
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| unix.contains(&inode))
    };
    assert_eq!(open.values().filter(is_unix).count(), 2, "its link and its program: {open:?}");
    let memories = open.values().filter(|target| target.ends_with("/mem")).count();
    assert_eq!(memories, 1, "that of its program: {open:?}");
    drop((program, other));
}

#[test]
fn a_worker_that_is_killed_takes_its_users_programs_with_it_and_nothing_else() {
    if !is_root() {
        return;
    }
    let urxed = Urxed::new();
    let mut victims = Victims::new(&urxed.socket);
    for (signal, name) in [(Signal::KILL, "SIGKILL"), (Signal::SEGV, "SIGSEGV")] {
        let uid = fresh_uid();
        let mut ends = [Kind::Shared, Kind::Process].map(|kind| end_of(&urxed.socket, uid, kind));
        let worker = worker_of(uid);
        victims.notice_nothing();
        send_signal(worker, signal);
        if signal == Signal::SEGV {
            // The first only makes Rust's handler step aside, for the fault that comes again.
            eventually("the handler has stepped aside", || {
                let _ = kill_process(Pid::from_raw(worker).unwrap(), signal);
                is_ended(worker).then_some(())
            });
        }
        victims.notice_nothing();
        for end in &mut ends {
            eventually("it is told", || has_lost_its_device(end).then_some(()));
        }
        // It has been waited for.
        eventually("nothing is left of it", || is_gone(worker).then_some(()));
        urxed.says(&format!("worker {worker} of user {uid} was killed by {name}"));
        // One that has just been started is not started again at once.
        let again = eventually("the next program is served", || try_end_of(&urxed.socket, uid));
        assert_ne!(worker_of(uid), worker);
        drop(again);
        victims.notice_nothing();
    }
}

/// Messages of which the last are so long after the first that what happened to the QPs is written.
pub(crate) fn pass_for_a_second(a: &mut End, b: &mut End) {
    let since = Instant::now();
    let mut passed = 0;
    while passed < 50 || since.elapsed() < Duration::from_secs(1) {
        pass(a, b);
        passed += 1;
    }
}

#[test]
fn histories_of_a_worker_that_was_killed_are_told_to_its_user_and_to_root() {
    if !is_root() {
        return;
    }
    let urxed = Urxed::new();
    let uid = fresh_uid();
    let [mut a, mut b, mut failing] =
        [Kind::Shared; 3].map(|kind| end_of(&urxed.socket, uid, kind));
    connect(&mut a, &mut b);
    fail(&mut failing);
    pass_for_a_second(&mut a, &mut b);
    let worker = worker_of(uid);
    for wr_id in 0..8 {
        a.post_send(wr_id, SendOp::Send(Extra::None), SendData::Inline(b"too late"));
    }
    send_signal(worker, Signal::KILL);
    eventually("it is told", || has_lost_its_device(&mut a).then_some(()));

    let mut root = Client::connect(&urxed.socket);
    let of = HistorySubject::Qp(a.qp.created.qpn.get());
    let words = format!("worker {worker} of user {uid} was killed by SIGKILL");
    let told = eventually("its end is known", || {
        let told = histories(&mut root, of).pop()?;
        let last = told.entries.last()?.what.clone();
        (last == Happening::SlotEnded(words.clone())).then_some(told)
    });
    assert_eq!((told.uid, told.state, told.failed), (uid, QpState::Rts, None));
    assert!(told.gone.is_some() && told.heard.is_some());
    let states: Vec<_> = told.entries[..3].iter().map(|entry| entry.what.clone()).collect();
    let set_up = [QpState::Init, QpState::Rtr, QpState::Rts];
    assert_eq!(states, set_up.map(Happening::Modified));
    let traffic = told.entries.last().unwrap().traffic;
    assert!(traffic.posted.sends > 0 && traffic.received_packets > 0, "{traffic:?}");
    assert!(told.entries.is_sorted_by(|first, second| first.at >= second.at), "{told:?}");
    let reason = told.reason.unwrap();
    assert!(
        reason.contains("was killed by SIGKILL. If nobody meant to, the kernel did"),
        "{reason}"
    );

    let failed = histories(&mut root, HistorySubject::Failed);
    assert_eq!(failed.len(), 3, "all that were there: {failed:?}");
    let of_failing = HistorySubject::Qp(failing.qp.created.qpn.get());
    let told = histories(&mut root, of_failing).pop().unwrap();
    assert_eq!(told.failed.unwrap().wr_id, 7);
    assert!(told.reason.unwrap().contains("nothing at all has come back"));

    // HISTORY-013
    let mut stranger = Client::of_user(&urxed.socket, fresh_uid());
    assert_eq!(histories(&mut stranger, of), []);
    assert_eq!(histories(&mut stranger, HistorySubject::Failed), []);
    let mut own = eventually("the next program is served", || {
        Client::try_over(Client::channel_of_user(&urxed.socket, uid)?)
    });
    assert_eq!(histories(&mut own, of).len(), 1);
    assert_eq!(histories(&mut own, HistorySubject::Failed).len(), 3);
}

#[test]
fn histories_are_known_when_their_worker_has_nothing_left_to_do() {
    if !is_root() {
        return;
    }
    let daemon = start_with(1, |_| ());
    let uid = fresh_uid();
    let mut end = end_of(daemon.socket(), uid, Kind::Shared);
    let of = HistorySubject::Qp(end.qp.created.qpn.get());
    fail(&mut end);
    let worker = worker_of(uid);
    drop(end);
    eventually("its worker ends", || is_gone(worker).then_some(()));
    let mut root = Client::connect(daemon.socket());
    let [told] = &histories(&mut root, of)[..] else { panic!() };
    assert!(told.gone.is_some() && told.failed.is_some());
    let is_end = |entry: &HistoryEntry| matches!(entry.what, Happening::SlotEnded(_));
    assert!(!told.entries.iter().any(is_end), "it was there no longer when that ended: {told:?}");
}

/// A program of a user, if it is served.
fn try_end_of(socket: &Path, uid: u32) -> Option<End> {
    let channel = Client::channel_of_user(socket, uid)?;
    Some(End::with(Client::try_over(channel)?, "urxe0", QpType::Rc, Kind::Shared, 4096))
}

#[test]
fn a_worker_that_hangs_is_ended_and_nobody_else_waits_for_it() {
    if !is_root() {
        return;
    }
    let urxed = Urxed::new();
    let mut victims = Victims::new(&urxed.socket);
    let uid = fresh_uid();
    let mut end = end_of(&urxed.socket, uid, Kind::Shared);
    let worker = worker_of(uid);
    send_signal(worker, Signal::STOP);
    // It owes an answer from now on, and is asked by others too.
    let silent = Client::channel_of_user(&urxed.socket, uid).unwrap();
    victims.0.client.counter("urxe0", "sessions_opened");
    victims.notice_nothing();
    eventually("it is ended", || is_gone(worker).then_some(()));
    urxed.says("is given up: it takes no messages");
    assert!(has_lost_its_device(&mut end));
    drop(silent);
    victims.notice_nothing();
    eventually("the next program is served", || try_end_of(&urxed.socket, uid));
}

#[test]
fn a_user_for_whom_no_slot_is_left_waits_until_another_has_gone() {
    if !is_root() {
        return;
    }
    // One is left of 63.
    let daemon: Handle = start_with(1, |config| config.slots = 62);
    let [first, second] = [fresh_uid(), fresh_uid()];
    let mut program = end_of(daemon.socket(), first, Kind::Shared);
    let worker = worker_of(first);
    for waits in [false, true] {
        let mut refused = Client::channel_of_user(daemon.socket(), second).unwrap();
        if waits {
            // It has been turned away before it says anything.
            thread::sleep(Duration::from_millis(50));
        }
        let hello = Request::Hello { program: "test".into() };
        let (reply, _) = refused.call(&hello, &[]).unwrap();
        let Reply::Error(error) = reply else { panic!("{reply:?}") };
        let sentence = "of users other than urxed's own, 1 can be served at a time";
        assert!(error.message.contains(sentence), "{error}");
    }
    let mut own = End::new(&daemon, 0, Kind::Shared, 4096);
    assert_eq!(own.client.counter("urxe0", "sessions_refused"), 2);
    connect(&mut own, &mut program);
    pass(&mut own, &mut program);
    drop(program);
    eventually("its worker ends after its last program", || is_gone(worker).then_some(()));
    eventually("the other user is served", || try_end_of(daemon.socket(), second));
    assert_eq!(own.client.counter("urxe0", "slots_ended"), 0, "none ended that was not to");
}

#[test]
fn the_slot_of_a_user_who_is_gone_rests() {
    if !is_root() {
        return;
    }
    let daemon = start_with(1, |config| config.slots = 60);
    let mut slots = Vec::new();
    for _ in 0..3 {
        let uid = fresh_uid();
        let program = end_of(daemon.socket(), uid, Kind::Shared);
        slots.push(SlotId::named_by(program.qp.created.qpn).index());
        let worker = worker_of(uid);
        drop(program);
        eventually("its worker ends", || is_gone(worker).then_some(()));
    }
    assert_eq!(slots, [61, 62, 63]);
    // All have been used, and the first has been free for longest.
    let program = end_of(daemon.socket(), fresh_uid(), Kind::Shared);
    assert_eq!(SlotId::named_by(program.qp.created.qpn).index(), 61);
}

#[test]
fn workers_end_with_the_daemon_even_if_it_is_killed() {
    if !is_root() {
        return;
    }
    for end in [Signal::TERM, Signal::KILL] {
        let socket = fresh_path();
        let (mut child, _) = urxed_with(&socket, &["--mode", "666"]);
        let uid = fresh_uid();
        let mut program = end_of(&socket, uid, Kind::Shared);
        let worker = worker_of(uid);
        signal(&child, end);
        child.wait();
        // Whoever has adopted it may take its time to reap it.
        eventually("its worker ends", || is_ended(worker).then_some(()));
        assert!(has_lost_its_device(&mut program));
        let _ = fs::remove_file(&socket);
    }
}

#[test]
fn without_a_program_for_it_other_users_are_served_by_threads_of_their_own() {
    if !is_root() {
        return;
    }
    for nothing in [None, Some("/nonexistent/urxed".into())] {
        let daemon = start_with(1, |config| config.worker.clone_from(&nothing));
        let uid = fresh_uid();
        let mut other = end_of(daemon.socket(), uid, Kind::Shared);
        assert_eq!(workers_of(uid), Vec::<i32>::new());
        let mut own = End::new(&daemon, 0, Kind::Shared, 4096);
        let slots = [&own, &other].map(|end| SlotId::named_by(end.qp.created.qpn));
        assert_ne!(slots[0], slots[1]);
        connect(&mut own, &mut other);
        pass(&mut own, &mut other);
    }
}

#[test]
fn where_there_is_one_slot_it_serves_the_programs_of_all_users() {
    if !is_root() {
        return;
    }
    let daemon = start_with(1, |config| config.fault = Some("drop:write:1000000".parse().unwrap()));
    let uid = fresh_uid();
    let mut other = end_of(daemon.socket(), uid, Kind::Shared);
    let mut own = End::new(&daemon, 0, Kind::Shared, 4096);
    assert_eq!(workers_of(uid), Vec::<i32>::new());
    let slots = [&own, &other].map(|end| SlotId::named_by(end.qp.created.qpn).index());
    assert_eq!(slots, [1, 1]);
    connect(&mut own, &mut other);
    pass(&mut own, &mut other);
}

/// Nothing but a link makes a worker: one that is started by hand ends.
#[test]
fn a_worker_without_a_broker_ends() {
    use std::os::unix::process::CommandExt;
    let worker = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_urxed"));
        command.arg0("urxed-worker").args(arguments).output().unwrap()
    };
    let output = worker(&["--help"]);
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("is started by urxed alone"));
    assert!(!worker(&["65534", "65534"]).status.success());
    let uid = geteuid().as_raw().to_string();
    assert!(!worker(&[&uid, &uid]).status.success());
}

/// A group of processes that may have so much memory, if this machine lets one be made.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn with(pid: i32, bytes: u64) -> std::io::Result<MemoryGroup> {
        let name = format!("urxe-test-{pid}");
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (path, limit) = match v1.is_dir() {
            true => (v1.join(name), "memory.limit_in_bytes"),
            false => (v2.join(name), "memory.max"),
        };
        fs::create_dir(&path)?;
        let group = MemoryGroup(path);
        fs::write(group.0.join(limit), bytes.to_string())?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string())?;
        Ok(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_worker_without_memory_takes_its_users_programs_with_it_and_nothing_else() {
    const MIB: usize = 1 << 20;
    if !is_root() {
        return;
    }
    let urxed = Urxed::new();
    let mut victims = Victims::new(&urxed.socket);
    let uid = fresh_uid();
    let other = Client::of_user(&urxed.socket, uid);
    // Sparse: it takes memory when it is written to, and that is the worker's.
    let mut other = End::with(other, "urxe0", QpType::Rc, Kind::Shared, 256 * MIB);
    let worker = worker_of(uid);
    let _group = match MemoryGroup::with(worker, 64 * MIB as u64) {
        Ok(group) => group,
        Err(error) => return could_not_run(&format!("no group with its own memory: {error}")),
    };
    let mut own = End::at(&urxed.socket, "urxe0", Kind::Shared, MIB);
    connect(&mut own, &mut other);
    for place in 0..256 {
        let (remote_addr, rkey) = (other.mr.addr + (place * MIB) as u64, other.mr.rkey);
        let sge = own.mr.sge(0, MIB);
        own.post_send(1, SendOp::Write { remote_addr, rkey, imm: None }, SendData::Sges(&[sge]));
        let mut done = Vec::new();
        eventually("it is written, or the worker has ended", || {
            done.extend(own.cq.poll());
            (!done.is_empty() || is_gone(worker)).then_some(())
        });
        if is_gone(worker) {
            break;
        }
    }
    urxed.says(&format!("worker {worker} of user {uid} was killed by SIGKILL"));
    assert!(has_lost_its_device(&mut other));
    victims.notice_nothing();
}

#[test]
fn a_worker_joins_groups_that_it_has_not_the_right_to_join() {
    if !is_root() {
        return;
    }
    for backend in [PortBackend::Raw, PortBackend::Udp] {
        let daemon = start_with(1, |config| config.port_backend = backend);
        let socket = daemon.socket();
        let group = fresh_group();
        let client = Client::of_user(socket, fresh_uid());
        let mut other = End::with(client, "urxe0", QpType::Ud, Kind::Shared, 4096);
        let mut own = End::datagram(&daemon, 0, Kind::Shared, 4096);
        for attr in datagram_attrs() {
            other.client.modify(&other.qp, attr).unwrap();
        }
        for round in 0..2 {
            let request =
                |gid: IpAddr| Request::AttachMcast { qp: other.qp.created.qp, gid: gid.into() };
            other.client.call(request(group)).unwrap();
            assert!(other.client.call(request(own.addr)).is_err(), "no group, and no end of it");
            other.post_recv(round, &[other.mr.sge(0, 4096)]);
            own.mr.write(0, b"to all");
            let to = Destination {
                path: DatagramPath::Vector(av(group)),
                qpn: Qpn::MULTICAST,
                qkey: QKEY,
            };
            own.post_datagram(1, to, SendData::Sges(&[own.mr.sge(0, 6)]));
            assert_eq!(other.cq.wait(1)[0].status, 0);
            assert_eq!(other.mr.read(40, 6), b"to all");
            let detach = Request::DetachMcast { qp: other.qp.created.qp, gid: group.into() };
            other.client.call(detach).unwrap();
        }
    }
}
