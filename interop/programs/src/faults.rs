//! Programs that fail, are killed, or misuse what they have: neither the daemon nor another program
//! is affected.

use crate::testbed::{Side, TIMEOUT, Testbed};
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_shell::{Result, has, output};

/// Runs a test, and returns the figure for the table.
pub(crate) type Fault = fn(&Testbed) -> Result<String>;

/// All tests.
pub(crate) const ALL: [(&str, Fault); 12] = [
    ("two programs at once through one daemon", two_at_once),
    ("a program that relies on rules of verbs", keeps_to_verbs),
    ("fork in a program", fork),
    ("a program closes descriptors it does not own", closes_descriptors),
    ("a program under valgrind", under_valgrind),
    ("valgrind's leak check of an open device", leak_check),
    ("programs with sanitizers", with_sanitizers),
    ("a limit of the address space", with_little_address_space),
    ("a daemon is killed under its programs", daemon_killed),
    ("a server is killed in a transfer", server_killed),
    ("a client is killed in a transfer", client_killed),
    ("200 starts and stops", starts_and_stops),
];

/// Server and client on one daemon.
const ONE_DAEMON: (Side, Side) = (Side::A, Side::A);

/// Server and client on two daemons.
const TWO_DAEMONS: (Side, Side) = (Side::B, Side::A);

/// The options of a transfer that takes longer than any timeout here.
const ENDLESS: [&str; 2] = ["-D", "60"];

/// How long a transfer runs before something happens.
const BEFORE_FAULT: Duration = Duration::from_millis(1500);

fn two_at_once(testbed: &Testbed) -> Result<String> {
    let write = testbed.start_pair(ONE_DAEMON, &["ib_write_bw", "-n", "2000"])?;
    let send = testbed.start_pair(ONE_DAEMON, &["ib_send_bw", "-n", "2000"])?;
    for running in [write.0, write.1, send.0, send.1] {
        running.wait(TIMEOUT)?.success()?;
    }
    Ok(String::new())
}

fn fork(testbed: &Testbed) -> Result<String> {
    run_own_program(testbed, "forks")
}

fn keeps_to_verbs(testbed: &Testbed) -> Result<String> {
    run_own_program(testbed, "keeps_to_verbs")
}

fn closes_descriptors(testbed: &Testbed) -> Result<String> {
    run_own_program(testbed, "closes_descriptors")
}

/// Valgrind emulates another machine: fewer instructions, no vDSO.
fn under_valgrind(testbed: &Testbed) -> Result<String> {
    testbed.run(Side::A, &["valgrind", "-q", "ibv_devinfo", "-v"], TIMEOUT)?.success()?;
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

/// The memory that the shim keeps mapped is scanned, and must not be much.
fn leak_check(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("sends_to_itself");
    let words = ["valgrind", "-q", "--leak-check=full", &program.to_string_lossy(), "open"];
    testbed.run(Side::A, &words, TIMEOUT)?.success()?;
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

const SANITIZERS: [&str; 2] = ["address", "thread"];

/// gcc has the runtimes as shared libraries, and clang links them into the program.
fn with_sanitizers(testbed: &Testbed) -> Result<String> {
    let compilers: Vec<_> = ["gcc", "clang"].into_iter().filter(|name| has(name)).collect();
    let (compilers, without): (Vec<_>, Vec<_>) =
        compilers.into_iter().partition(|compiler| has_sanitizers(compiler));
    if compilers.is_empty() {
        return Err("neither gcc nor clang can link a program with sanitizers".to_owned());
    }
    for compiler in &compilers {
        // ThreadSanitizer sees threads of a library that is built without it, and not what keeps
        // them apart.
        let sanitizers = if testbed.is_in_process() { &["address"][..] } else { &SANITIZERS };
        for sanitizer in sanitizers {
            let option = format!("-fsanitize={sanitizer}");
            let name = format!("sends_to_itself-{compiler}-{sanitizer}");
            let program = testbed.compile(compiler, &[&option], "sends_to_itself", &name)?;
            let ended = testbed.run(Side::A, &[&program.to_string_lossy()], TIMEOUT)?;
            ended.success().map_err(|reason| format!("{name} {reason}"))?;
        }
    }
    testbed.wait_until_no_objects_left()?;
    let used = compilers.join(" and ");
    Ok(match without.is_empty() {
        true => used,
        false => format!("{used}; {} has no sanitizers installed", without.join(" and ")),
    })
}

/// Distributions package a compiler without the libraries of its sanitizers.
fn has_sanitizers(compiler: &str) -> bool {
    SANITIZERS.into_iter().all(|sanitizer| {
        let option = format!("-fsanitize={sanitizer}");
        let command = format!(
            "echo 'int main(void) {{ return 0; }}' | {compiler} {option} -x c - -o /dev/null"
        );
        output(Command::new("sh").arg("-c").arg(command)).is_ok()
    })
}

fn with_little_address_space(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("sends_to_itself");
    let words = ["sh", "-c", "ulimit -v 3000000 && exec \"$0\"", &program.to_string_lossy()];
    testbed.run(Side::A, &words, TIMEOUT)?.success()?;
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

/// Programs learn of it in whatever way they wait, clean up, and end.
fn daemon_killed(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("loses_daemon");
    let mut slowest = Duration::ZERO;
    for how in ["poll", "extended", "events"] {
        for signal in ["-KILL", "-TERM"] {
            let (mut daemon, socket) = testbed.spare_daemon()?;
            let started = testbed.start_at(&socket, &[&program.to_string_lossy(), how]);
            let waited = started.and_then(|mut program| {
                program.wait_until(|output| Ok(output.contains("ready")))?;
                Ok(program)
            });
            let killed = output(Command::new("kill").arg(signal).arg(daemon.id().to_string()));
            let since = Instant::now();
            let _ = daemon.wait();
            killed?;
            let output = waited?.wait(TIMEOUT)?.success();
            slowest = slowest.max(since.elapsed());
            let output = output.map_err(|reason| format!("{how} {signal} {reason}"))?;
            if output.matches("urxe: the urxed of").count() != 1 {
                return Err(format!("{how} {signal} does not print the reason once: {output}"));
            }
        }
    }
    Ok(format!("within {} ms", slowest.as_millis()))
}

/// Runs a program of `interop/programs`, which prints itself what is wrong.
fn run_own_program(testbed: &Testbed, name: &str) -> Result<String> {
    let program = testbed.binary(name);
    testbed.run(Side::A, &[&program.to_string_lossy()], TIMEOUT)?.success()?;
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

fn server_killed(testbed: &Testbed) -> Result<String> {
    let words = [&["ib_send_bw"][..], &ENDLESS].concat();
    let (server, mut client) = testbed.start_pair(TWO_DAEMONS, &words)?;
    sleep(BEFORE_FAULT);
    if client.has_ended() {
        return Err(format!("the client {}", client.wait(TIMEOUT)?.success()?));
    }
    server.kill();
    failed(client.wait(TIMEOUT)?.success(), "client")?;
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

fn client_killed(testbed: &Testbed) -> Result<String> {
    let words = [&["ib_write_bw"][..], &ENDLESS].concat();
    let (server, mut client) = testbed.start_pair(TWO_DAEMONS, &words)?;
    sleep(BEFORE_FAULT);
    if client.has_ended() {
        return Err(format!("the client {}", client.wait(TIMEOUT)?.success()?));
    }
    client.kill();
    failed(server.wait(TIMEOUT)?.success(), "server")?;
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

/// A program whose peer was killed must fail.
fn failed(ended: Result<String>, name: &str) -> Result {
    match ended {
        Ok(output) => Err(format!("the {name} succeeded although its peer was killed: {output}")),
        Err(_) => Ok(()),
    }
}

/// How much more memory a daemon may have after all runs than after the first tenth of them.
const GROWTH_MAX_KIB: u64 = 1024;

fn starts_and_stops(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("leaves_objects");
    let program = program.to_string_lossy();
    let run = |count| -> Result<(usize, u64)> {
        for _ in 0..count {
            testbed.run(Side::A, &[&program], TIMEOUT)?.success()?;
        }
        testbed.wait_until_no_objects_left()?;
        state(testbed.daemon(Side::A))
    };
    let (fds_before, memory_before) = run(20)?;
    let (fds, memory) = run(180)?;
    if fds != fds_before {
        return Err(format!("the daemon had {fds_before} descriptors before, and {fds} after"));
    }
    let growth = memory.saturating_sub(memory_before);
    match growth <= GROWTH_MAX_KIB {
        true => Ok(format!("{fds} descriptors, {growth} KiB more")),
        false => Err(format!("the daemon's memory grew by {growth} KiB")),
    }
}

/// Descriptors and KiB of memory of a process.
fn state(pid: u32) -> Result<(usize, u64)> {
    let read = |error| format!("daemon {pid}: {error}");
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).map_err(read)?.count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(read)?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
    Ok((fds, memory.ok_or("no VmRSS")?))
}
