//! What `urxed` logs, how, and what programs can make of it.

use crate::harness::*;
use crate::histories::fail;
use crate::hosted::asked;
use crate::startup::{signal, urxed_with};
use crate::workers::Urxed;
use rustix::fs::fstat;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Signal, getuid};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use urxe_shm::control::{ControlError, Request, encode};
use urxe_slot::link::{Link, Logged, ToBroker, ToSlot};
use urxe_types::{QpState, Qpn};

/// Has a program refused something. Returns what the daemon said.
fn refused(client: &mut Client) -> ControlError {
    client.call(Request::OpenDevice { name: "nope".into() }).unwrap_err()
}

/// How the program of this test is named in sentences.
fn named() -> String {
    format!("test[{}] of user {}", std::process::id(), getuid().as_raw())
}

#[test]
fn a_program_that_comes_fails_and_goes_is_logged_with_what_it_was_told() {
    let daemon = Urxed::with(&["--slots", "1", "--log", "info"]);
    let mut end = End::at(&daemon.socket, "urxe0", Kind::Shared, 4096);
    fail(&mut end);
    let told = refused(&mut end.client).message;
    drop(end);
    let program = named();
    for said in [
        "slot 1 has started, in a thread".to_owned(),
        format!("{program} has connected, and is served by slot 1"),
        format!("{program} has opened urxe0"),
        format!("{program} is refused, ENODEV: {told}"),
        format!("{program} is gone"),
    ] {
        assert_eq!(daemon.says(&said), format!("urxed: {said}"));
    }
    let failed = daemon.says("is in ERR: ");
    assert!(failed.contains(&format!("on urxe0 of {program}")), "{failed}");
    assert!(failed.contains("nothing at all has come back"), "{failed}");
}

#[test]
fn by_default_nothing_is_logged_of_programs() {
    let daemon = Urxed::with(&["--slots", "1", "--drain", "600"]);
    let mut end = End::at(&daemon.socket, "urxe0", Kind::Shared, 4096);
    fail(&mut end);
    refused(&mut end.client);
    signal(&daemon.child, Signal::TERM);
    daemon.says("ending, as soon as 1 programs are gone");
    let said = daemon.said();
    assert!(said.iter().any(|line| line.starts_with("urxed: ready on ")), "{said:?}");
    let of_program = |line: &String| line.contains(&named()) || line.contains("refused");
    assert!(!said.iter().any(of_program), "{said:?}");
}

#[test]
fn a_daemon_says_why_it_ends() {
    let ends = |options: &[&str], programs: usize, is_told: bool| {
        let options = [&["--slots", "1"], options].concat();
        let socket = fresh_path();
        let (mut child, _) = urxed_with(&socket, &options);
        let clients: Vec<_> = (0..programs).map(|_| Client::connect(&socket)).collect();
        if is_told {
            signal(&child, Signal::TERM);
        }
        if options.contains(&"--drain") {
            eventually("the socket goes", || (!socket.exists()).then_some(()));
            drop(clients);
        }
        assert!(child.wait().success());
        child.rest_of_stderr().lines().last().unwrap().to_owned()
    };
    let told = "urxed: ends, because it was told to";
    assert_eq!(ends(&[], 0, true), told);
    assert_eq!(ends(&[], 1, true), format!("{told}, and 1 programs are still there"));
    assert_eq!(ends(&["--drain", "600"], 1, true), format!("{told}, and no program is left"));
    let alone = "urxed: ends, because no program has been there for 1 seconds";
    assert_eq!(ends(&["--linger", "1"], 0, false), alone);
}

#[test]
fn a_program_that_is_refused_again_and_again_fills_no_log() {
    const TIMES: usize = 10_000;
    let daemon = Urxed::with(&["--slots", "1", "--log", "info"]);
    let mut client = Client::connect(&daemon.socket);
    for _ in 0..TIMES {
        refused(&mut client);
    }
    let told = eventually("how many were not logged", || {
        refused(&mut client);
        std::thread::sleep(Duration::from_millis(10));
        let said = daemon.said();
        let told: Vec<usize> = said
            .iter()
            .filter(|line| line.contains("more of this kind were not logged"))
            .map(|line| line.split_whitespace().find_map(|word| word.parse().ok()).unwrap())
            .collect();
        (told.iter().sum::<usize>() > TIMES / 2).then_some(told)
    });
    let lines = daemon.said().iter().filter(|line| line.contains("is refused")).count();
    assert!(lines < TIMES / 10, "{lines} lines");
    assert!(told.len() < lines);
}

#[test]
fn whatever_a_slot_says_is_a_line_or_nothing() {
    let daemon = Urxed::with(&["--slots", "1", "--log", "debug"]);
    let _honest = Client::connect(&daemon.socket);
    daemon.says(&format!("{} has connected", named()));
    let hostile = "\x1b[2J\x1b]0;x\x07\r\nurxed: ready\0\u{9b}\u{202e}LIE";
    let [socket, _session] = asked(&daemon.socket).unwrap();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let mut link = Link::<ToBroker, ToSlot>::new(socket);
    for session in 0..20 {
        let log = |what| ToBroker::Log { session, what, unlogged: u64::MAX };
        let refused = |errno, message: String| Logged::Refused(ControlError { errno, message });
        let failed = Logged::QpFailed {
            device: 0,
            qpn: Qpn::new(0xff_ffff),
            state: QpState::Reset,
            cause: u32::MAX,
            sentence: hostile.into(),
        };
        for message in [
            ToBroker::Named { session, name: hostile.into() },
            log(refused(i32::MIN, hostile.repeat(1000))),
            log(Logged::Opened { device: 99 }),
            log(failed),
        ] {
            link.send(Instant::now(), message, Vec::new()).unwrap();
        }
    }
    daemon.says("is in RESET: ");
    // A name that is no text.
    let [socket, _session] = asked(&daemon.socket).unwrap();
    let named_so = ToBroker::Named { session: 0, name: "ZZZZ".into() };
    let mut bytes = [0; 100];
    let len = encode(&named_so, &mut bytes).unwrap();
    bytes.iter_mut().filter(|byte| **byte == b'Z').for_each(|byte| *byte = 0xff);
    rustix::io::write(&socket, &bytes[..len]).unwrap();
    daemon.says("is given up: ");
    for line in daemon.said() {
        assert!(line.starts_with("urxed: ") && !line.contains(char::is_control), "{line:?}");
        assert!(!line.contains('\u{202e}') && line.len() < 4096, "{line:?}");
        assert!(!(line.contains("LIE") && line.contains(&named())), "of another: {line:?}");
    }
}

#[test]
fn each_line_for_collectors_is_an_object() {
    let daemon = Urxed::with(&["--slots", "1", "--log", "debug", "--log-format", "json"]);
    let mut end = End::at(&daemon.socket, "urxe0", Kind::Shared, 4096);
    fail(&mut end);
    refused(&mut end.client);
    drop(end);
    // Broker and slot each write their own.
    let targets = ["daemon", "session", "request", "qp", "slot", "device"];
    for target in targets {
        daemon.says(&format!("\"target\":\"{target}\""));
    }
    let lines = daemon.said();
    let lines: Vec<Value> =
        lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of = |target: &str| lines.iter().find(|line| line["target"] == target).expect(target);
    for target in targets {
        let line = of(target);
        assert!(line["time"].is_string() && line["message"].is_string(), "{line}");
        assert_eq!(line["level"], "info");
    }
    let fields = &of("request")["fields"];
    assert_eq!((&fields["errno"], &fields["pid"]), (&"ENODEV".into(), &std::process::id().into()));
    let fields = &of("qp")["fields"];
    assert_eq!((&fields["device"], &fields["uid"]), (&"urxe0".into(), &getuid().as_raw().into()));
}

/// `urxed` on a fresh address, not started yet.
fn command(addr: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxed"));
    command.env_remove("URXED_LOG").args(["--addr", addr, "--socket"]).arg(fresh_path());
    command
}

#[test]
fn journald_gets_lines_with_priorities() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let stat = fstat(&write).unwrap();
    let stream = format!("{}:{}", stat.st_dev, stat.st_ino);
    for (named, line) in [(stream.as_str(), "<3>"), ("1:1", "urxed: error: ")] {
        let stderr = write.try_clone().unwrap();
        let mut command = command("192.0.2.1");
        command.env("JOURNAL_STREAM", named).stderr(Stdio::from(stderr));
        assert!(!Running::start(&mut command).wait().success());
        let mut said = String::new();
        BufReader::new(File::from(read.try_clone().unwrap())).read_line(&mut said).unwrap();
        assert!(said.starts_with(line) && said.contains("192.0.2.1"), "{said}, not {line}");
    }
}

#[test]
fn the_environment_says_what_is_logged_unless_the_command_line_does() {
    let said = |variable: &str, options: &[&str]| {
        let mut command = command("192.0.2.1");
        let output = command.env("URXED_LOG", variable).args(options).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said("error", &[]).contains("192.0.2.1"));
    assert_eq!(said("off", &[]), "");
    assert!(said("off", &["--log", "error"]).contains("192.0.2.1"));
    let wrong = said("loud", &[]);
    let expected = "$URXED_LOG: log \"loud\": expected off, error, warn, info or debug";
    assert!(wrong.contains(expected), "{wrong}");
}

#[test]
fn a_daemon_whose_log_nobody_reads_goes_on() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // So small that one line fills it.
    fcntl_setpipe_size(&write, 4096).unwrap();
    let (socket, mut daemon) = loop {
        let socket = fresh_path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_urxed"));
        command.args(["--addr", &fresh_addr().to_string(), "--slots", "1", "--log", "debug"]);
        command.args(["--ready-fd", "1", "--socket"]).arg(&socket);
        command.stdout(Stdio::piped()).stderr(Stdio::from(write.try_clone().unwrap()));
        let mut daemon = Running::start(&mut command);
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // Somebody may have had the address.
        if !line.is_empty() {
            break (socket, daemon);
        }
    };
    drop(write);
    for _ in 0..30 {
        let mut client = Client::connect(&socket);
        client.open("urxe0");
        refused(&mut client);
    }
    let (lines, mut heard) = (File::from(read), String::new());
    rustix::io::ioctl_fionbio(lines.as_fd(), true).unwrap();
    eventually("that lines are lost", || {
        let _ = Client::connect(&socket);
        std::thread::sleep(Duration::from_millis(10));
        let mut bytes = [0; 4096];
        let len = (&lines).read(&mut bytes).unwrap_or(0);
        heard.push_str(std::str::from_utf8(&bytes[..len]).unwrap());
        heard.contains("lines are lost, because nobody has read them").then_some(())
    });
    assert!(daemon.try_wait().unwrap().is_none());
}
