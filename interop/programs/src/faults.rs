//! What programs do that nobody hopes for: none of it harms the daemon or another program.

use crate::testbed::{PATIENCE, Side, Testbed};
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_shell::{Result, has, output};

/// Runs one, and gives the figure for the table.
pub(crate) type Fault = fn(&Testbed) -> Result<String>;

/// All of them.
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

/// Between one daemon and itself.
const ALONE: (Side, Side) = (Side::A, Side::A);

/// Between two.
const APART: (Side, Side) = (Side::B, Side::A);

/// How long a transfer goes on, if nobody stops it: longer than anybody waits for its end.
const ENDLESS: [&str; 2] = ["-D", "60"];

/// How long it goes on before something happens.
const A_WHILE: Duration = Duration::from_millis(1500);

fn two_at_once(testbed: &Testbed) -> Result<String> {
    let write = testbed.start_pair(ALONE, &["ib_write_bw", "-n", "2000"])?;
    let send = testbed.start_pair(ALONE, &["ib_send_bw", "-n", "2000"])?;
    for running in [write.0, write.1, send.0, send.1] {
        running.wait(PATIENCE)?.success()?;
    }
    Ok(String::new())
}

fn fork(testbed: &Testbed) -> Result<String> {
    run_own(testbed, "forks")
}

fn keeps_to_verbs(testbed: &Testbed) -> Result<String> {
    run_own(testbed, "keeps_to_verbs")
}

fn closes_descriptors(testbed: &Testbed) -> Result<String> {
    run_own(testbed, "closes_descriptors")
}

/// Valgrind shows a program another machine than there is: fewer instructions, no vDSO.
fn under_valgrind(testbed: &Testbed) -> Result<String> {
    testbed.run(Side::A, &["valgrind", "-q", "ibv_devinfo", "-v"], PATIENCE)?.success()?;
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

/// What the shim keeps mapped is looked through, and must not be much.
fn leak_check(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("sends_to_itself");
    let words = ["valgrind", "-q", "--leak-check=full", &program.to_string_lossy(), "open"];
    testbed.run(Side::A, &words, PATIENCE)?.success()?;
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

/// gcc has the runtimes as shared libraries, and clang links them into the program.
fn with_sanitizers(testbed: &Testbed) -> Result<String> {
    let mut compilers = vec!["gcc"];
    compilers.extend(has("clang").then_some("clang"));
    for compiler in &compilers {
        for sanitizer in ["address", "thread"] {
            let option = format!("-fsanitize={sanitizer}");
            let name = format!("sends_to_itself-{compiler}-{sanitizer}");
            let program = testbed.compile(compiler, &[&option], "sends_to_itself", &name)?;
            let ended = testbed.run(Side::A, &[&program.to_string_lossy()], PATIENCE)?;
            ended.success().map_err(|reason| format!("{name} {reason}"))?;
        }
    }
    testbed.wait_until_nothing_is_left().map(|()| compilers.join(" and "))
}

fn with_little_address_space(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("sends_to_itself");
    let words = ["sh", "-c", "ulimit -v 3000000 && exec \"$0\"", &program.to_string_lossy()];
    testbed.run(Side::A, &words, PATIENCE)?.success()?;
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

/// However they wait, they are told, clean up, and end.
fn daemon_killed(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("loses_daemon");
    let mut slowest = Duration::ZERO;
    for how in ["poll", "extended", "events"] {
        for signal in ["-KILL", "-TERM"] {
            let (mut daemon, socket) = testbed.spare_daemon()?;
            let started = testbed.start_at(&socket, &[&program.to_string_lossy(), how]);
            let waited = started.and_then(|mut program| {
                program.wait_until(|said| Ok(said.contains("ready")))?;
                Ok(program)
            });
            let killed = output(Command::new("kill").arg(signal).arg(daemon.id().to_string()));
            let since = Instant::now();
            let _ = daemon.wait();
            killed?;
            let said = waited?.wait(PATIENCE)?.success();
            slowest = slowest.max(since.elapsed());
            let said = said.map_err(|reason| format!("{how} {signal} {reason}"))?;
            if said.matches("urxe: the urxed of").count() != 1 {
                return Err(format!("{how} {signal} does not say once what has happened: {said}"));
            }
        }
    }
    Ok(format!("within {} ms", slowest.as_millis()))
}

/// Runs a program of `interop/programs`, which says itself what is wrong.
fn run_own(testbed: &Testbed, name: &str) -> Result<String> {
    let program = testbed.binary(name);
    testbed.run(Side::A, &[&program.to_string_lossy()], PATIENCE)?.success()?;
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

fn server_killed(testbed: &Testbed) -> Result<String> {
    let words = [&["ib_send_bw"][..], &ENDLESS].concat();
    let (server, mut client) = testbed.start_pair(APART, &words)?;
    sleep(A_WHILE);
    if client.has_ended() {
        return Err(format!("the client {}", client.wait(PATIENCE)?.success()?));
    }
    server.kill();
    failed(client.wait(PATIENCE)?.success(), "client")?;
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

fn client_killed(testbed: &Testbed) -> Result<String> {
    let words = [&["ib_write_bw"][..], &ENDLESS].concat();
    let (server, mut client) = testbed.start_pair(APART, &words)?;
    sleep(A_WHILE);
    if client.has_ended() {
        return Err(format!("the client {}", client.wait(PATIENCE)?.success()?));
    }
    client.kill();
    failed(server.wait(PATIENCE)?.success(), "server")?;
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

/// A program whose peer is gone has not ended well.
fn failed(ended: Result<String>, who: &str) -> Result {
    match ended {
        Ok(output) => Err(format!("the {who} ended well although its peer was killed: {output}")),
        Err(_) => Ok(()),
    }
}

/// How much more memory a daemon may have after all of it than after the first tenth.
const GROWTH_MAX_KIB: u64 = 1024;

fn starts_and_stops(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("leaves_objects");
    let program = program.to_string_lossy();
    let run = |count| -> Result<(usize, u64)> {
        for _ in 0..count {
            testbed.run(Side::A, &[&program], PATIENCE)?.success()?;
        }
        testbed.wait_until_nothing_is_left()?;
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
