//! Programs whose data path runs in them.

use crate::{ALL, Net, Side, start};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use urxe_shell::testing::{alone, assert_passed};
use urxe_shm::client::Connection;
use urxe_shm::control::{Cursor, Reply, Request};
use urxe_verbs::*;

/// Has every side a slot of its own in this process.
const IN_PROCESS: &str = "URXE_TEST_IN_PROCESS";

/// The socket of the daemon of a program that a test starts.
const SOCKET: &str = "URXE_TEST_SOCKET";

pub(crate) fn is_wanted() -> bool {
    std::env::var_os(IN_PROCESS).is_some()
}

/// What all other tests here say of programs of the daemon's slots holds in a program's own.
#[test]
fn all_works_as_well_where_the_data_path_is_in_the_program() {
    if is_wanted() {
        return;
    }
    // Over an IPv6 loopback address one slot serves all.
    let left_out = ["in_process::", "two_programs_meet_over_ipv6"];
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(left_out.iter().flat_map(|test| ["--skip", test])).env(IN_PROCESS, "1");
    let done = again.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
}

fn qps(context: &Context) -> usize {
    context.resources(ResourceKind::Qp).unwrap().len()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}

/// No test of its own: a program with a slot of its own, whose child lives on.
#[test]
fn as_a_program_that_forks() {
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return };
    let side = Side::new(&OpenOptions::new().socket(&socket).in_process());
    // SAFETY: the child calls what it may after a fork: it looks at itself, and waits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_forked = matches!(side.context.alloc_pd(), Err(Error::Forked { .. }));
        loop {
            // SAFETY: ends the child, or waits for a signal.
            unsafe { if is_forked { libc::pause() } else { libc::_exit(1) } };
        }
    }
    // Where the parent is, all goes on.
    let other = side.pd.create_qp(&QpInit::new(&side.cq)).unwrap();
    side.qp.connect(&other.endpoint().unwrap(), Access::default()).unwrap();
    other.connect(&side.qp.endpoint().unwrap(), Access::REMOTE_WRITE).unwrap();
    let there = side.mr.remote_buf(100..).unwrap();
    side.qp.post_send(&[SendWr::write(1, Inline(b"hello"), there).signaled()]).unwrap();
    side.done();
    writeln!(std::io::stdout(), "child {child}").unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_program_leaves_nothing_though_its_child_lives() {
    let daemon = start([[127, 44, 0, 1].into()]).unwrap();
    let observer = Context::open(&OpenOptions::new().socket(daemon.socket())).unwrap();
    let mut program = alone("in_process::as_a_program_that_forks")
        .env(SOCKET, daemon.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let child = lines.find_map(|line| Some(line.split_once("child ")?.1.to_owned()));
    let child: libc::pid_t = child.expect("the program has ended").parse().unwrap();
    assert_eq!(qps(&observer), 2);
    program.kill().unwrap();
    program.wait().unwrap();
    eventually("its QPs are gone", || qps(&observer) == 0);
    // SAFETY: signals to the child of our own child, which nobody else waits for.
    let is_there = unsafe { libc::kill(child, 0) == 0 };
    // SAFETY: the same.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(is_there, "the child did not live on");
}

/// No test of its own: a program with a slot of its own that becomes another.
#[test]
fn as_a_program_that_becomes_another() {
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return };
    let _side = Side::new(&OpenOptions::new().socket(&socket).in_process());
    writeln!(std::io::stdout(), "becomes another").unwrap();
    // It ends when the test lets go of its standard input.
    panic!("{}", Command::new("cat").exec());
}

#[test]
fn a_program_that_becomes_another_leaves_nothing() {
    let daemon = start([[127, 44, 0, 3].into()]).unwrap();
    let observer = Context::open(&OpenOptions::new().socket(daemon.socket())).unwrap();
    let mut program = alone("in_process::as_a_program_that_becomes_another")
        .env(SOCKET, daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("becomes another")));
    eventually("its QPs are gone", || qps(&observer) == 0);
    assert!(program.try_wait().unwrap().is_none(), "the other program has ended");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

/// How long threads that run slots have had the processor so far, in this process.
fn time_of_slots() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let slots = tasks.filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "urxe-slot")
    });
    let time = |task: PathBuf| {
        let stat = std::fs::read_to_string(task.join("schedstat")).unwrap();
        Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
    };
    slots.map(time).sum()
}

/// No test of its own: a program whose two devices, each with a slot of its own, exchange messages
/// while it polls both from one thread.
#[test]
fn as_a_program_that_polls() {
    const LENGTH: usize = 64;
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return };
    let side = |name| Side::new(&OpenOptions::new().socket(&socket).device(name).in_process());
    let sides = [side("urxe0"), side("urxe1")];
    let net = |at: usize| (&sides[at], &sides[1 - at]);
    for at in 0..2 {
        let (own, other) = net(at);
        own.qp.connect(&other.qp.endpoint().unwrap(), ALL).unwrap();
    }
    let exchange = |at: usize, number: u64| {
        let (own, other) = net(at);
        let room = [other.mr.sge(..LENGTH).unwrap()];
        other.qp.post_recv(&[RecvWr::new(number, &room)]).unwrap();
        let message = number.to_ne_bytes();
        own.qp.post_send(&[SendWr::send(number, Inline(&message)).signaled()]).unwrap();
    };
    let took = |side: &Side, wr_id| {
        let mut wcs = [Wc::default()];
        while side.cq.poll(&mut wcs).unwrap() == 0 {}
        assert_eq!(wcs[0].check().unwrap().wr_id, wr_id);
    };
    let polled = |number: u64| {
        let at = number as usize % 2;
        exchange(at, number);
        // Whoever waits polls its own queue alone, and the other one's slot goes on all the same.
        let mut left = [&sides[at], &sides[1 - at]].to_vec();
        let begun = std::time::Instant::now();
        while !left.is_empty() {
            left.retain(|side| {
                let mut wcs = [Wc::default()];
                side.cq.poll(&mut wcs).unwrap() == 0
            });
            assert!(begun.elapsed() < Duration::from_secs(30), "message {number} is lost");
        }
    };
    let mut number = 0;
    // OWN-030: on a machine that takes the processor away now and then, only between those times.
    eventually_polled(|| {
        let (before, begun, first) = (time_of_slots(), std::time::Instant::now(), number);
        while begun.elapsed() < Duration::from_millis(20) {
            number += 1;
            polled(number);
        }
        let (theirs, wall) = (time_of_slots() - before, begun.elapsed());
        theirs < wall / 8 && number - first > 40
    });
    // OWN-031: whatever it does next, nothing waits for it to poll.
    for _ in 0..20 {
        for _ in 0..200 {
            number += 1;
            polled(number);
        }
        number += 1;
        exchange(0, number);
        assert_eq!(sides[1].done().wr_id, number);
        assert_eq!(sides[0].done().wr_id, number);
        for _ in 0..200 {
            number += 1;
            polled(number);
        }
        // It neither polls nor waits.
        number += 1;
        let there = sides[1].mr.remote_buf(LENGTH..).unwrap();
        let mark = number.to_ne_bytes();
        sides[0].qp.post_send(&[SendWr::write(number, Inline(&mark), there).signaled()]).unwrap();
        eventually("the write is there", || sides[1].bytes(LENGTH, 8) == mark);
        took(&sides[0], number);
    }
    // OWN-032: it closes what its polls use.
    assert!(close_udp_sockets() > 0);
    for _ in 0..2000 {
        number += 1;
        polled(number);
    }
}

/// Closes all UDP sockets of this process that this thread can close. Returns how many those were.
fn close_udp_sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let open: Vec<libc::c_int> = names.map(|name| name.parse().unwrap()).collect();
    let domain = |fd| {
        let (mut domain, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        let place = (&raw mut domain).cast();
        // SAFETY: it is written to within its bounds.
        let failed =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, place, &raw mut len) };
        if failed == 0 { domain } else { 0 }
    };
    let sockets = open.into_iter().filter(|&fd| domain(fd) == libc::AF_INET);
    // SAFETY: closes what is not its own, as programs do by mistake; nobody counts on it.
    sockets.filter(|&fd| unsafe { libc::close(fd) } == 0).count()
}

fn eventually_polled(mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the slots' threads do all the work");
    }
}

#[test]
fn a_program_that_polls_takes_the_turns_of_its_slot_and_nothing_waits_when_it_does_not() {
    let daemon = start([[127, 44, 0, 4].into(), [127, 44, 0, 5].into()]).unwrap();
    let mut program = alone("in_process::as_a_program_that_polls");
    assert_passed(&program.env(SOCKET, daemon.socket()).output().unwrap());
}

/// A counter of the data paths of the first device.
fn counted(socket: &Path, counter: &str) -> u64 {
    let (_, channel) = urxe_shm::connect_to_daemon(Some(socket)).unwrap();
    let connection = Connection::new(channel, "counter", 0).unwrap();
    let request = Request::Stats { device: "urxe0".into(), from: Cursor::default() };
    let Ok((Reply::Stats(page), _)) = connection.call(&request, &[]) else { panic!() };
    page.device.iter().find(|(info, _)| info.name == counter).unwrap().1
}

/// No test of its own: a program that handles faults itself.
#[test]
fn as_a_program_that_handles_faults() {
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return };
    extern "C" fn end(_: libc::c_int) {
        // SAFETY: ends the program.
        unsafe { libc::_exit(3) };
    }
    let side = Side::new(&OpenOptions::new().socket(&socket).in_process());
    let other = side.pd.create_qp(&QpInit::new(&side.cq)).unwrap();
    side.qp.connect(&other.endpoint().unwrap(), Access::default()).unwrap();
    other.connect(&side.qp.endpoint().unwrap(), ALL).unwrap();
    let mut buf = vec![0u8; 100];
    // SAFETY: the buffer outlives its region, and is not touched before the completion.
    let mr = unsafe { side.pd.reg_mr(buf.as_mut_ptr(), buf.len(), ALL) }.unwrap();
    let write = |at: usize| {
        let there = mr.remote_buf(at..).unwrap();
        side.qp.post_send(&[SendWr::write(1, Inline(b"hello"), there).signaled()]).unwrap();
        side.done();
    };
    write(0);
    let before = counted(&socket, "unguarded_calls");
    // SAFETY: a handler that calls what it may.
    unsafe { libc::signal(libc::SIGSEGV, end as extern "C" fn(libc::c_int) as usize) };
    write(5);
    let after = counted(&socket, "unguarded_calls");
    assert!(before == 0 && after > 0, "{before} {after}");
    drop(mr);
    assert_eq!(&buf[..11], b"hellohello\0");
}

#[test]
fn a_program_that_handles_faults_itself_is_served_by_system_calls() {
    let daemon = start([[127, 44, 0, 2].into()]).unwrap();
    let mut program = alone("in_process::as_a_program_that_handles_faults");
    assert_passed(&program.env(SOCKET, daemon.socket()).output().unwrap());
}

#[test]
fn a_slot_ends_with_its_context_and_with_the_daemon() {
    let Net { near, far, mut daemon } = Net::unconnected();
    let socket = daemon.as_ref().unwrap().socket().to_owned();
    let options = OpenOptions::new().socket(&socket).in_process();
    // More than there can be at a time.
    for _ in 0..70 {
        drop(open_soon(&options));
    }
    let side = Side::new(&options);
    daemon.take();
    eventually("it is told", || side.context.alloc_pd().is_err());
    let error = side.context.alloc_pd().unwrap_err();
    assert!(matches!(error, Error::DaemonGone { reason: None, .. }), "{error}");
    drop((near, far));
}

/// A context, as soon as there is a slot.
fn open_soon(options: &OpenOptions) -> Context {
    loop {
        match Context::open(options) {
            Err(Error::Refused { errno: libc::ENOSPC, .. }) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}
