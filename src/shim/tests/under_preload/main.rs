//! Plain C programs with the shim preloaded, and a daemon: descriptors, files, forks, threads and
//! signals behave as with a kernel's device.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use urxe_daemon::{Config, Daemon, Handle};

/// Has the data path in the program.
const IN_PROCESS: &str = "URXE_IN_PROCESS";

/// Long enough that nothing that works reaches it.
const WAIT: Duration = Duration::from_secs(60);

/// A directory, a daemon of two devices in it, and programs.
struct Bench {
    directory: PathBuf,
    addresses: [Ipv4Addr; 2],
    daemon: Option<Handle>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(|_| ())
    }

    /// With a daemon that is special.
    fn with(special: impl FnOnce(&mut Config)) -> Bench {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("urxe-shim-test-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let addresses = [1, 2].map(|host| Ipv4Addr::new(127, 41, number, host));
        let mut bench = Bench { daemon: None, addresses, directory };
        bench.start_daemon(special);
        bench
    }

    fn start_daemon(&mut self, special: impl FnOnce(&mut Config)) {
        let mut config = Config::new(self.addresses.map(IpAddr::from));
        config.socket = self.directory.join("urxed.sock");
        special(&mut config);
        self.daemon = Some(Daemon::start(config).unwrap());
    }

    /// Compiles `tests/under_preload/<name>.c`.
    fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/under_preload");
        let output = self.directory.join(name);
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g"])
            .args(options)
            .arg(source.join(name).with_extension("c"))
            .arg("-o")
            .arg(&output)
            .arg("-pthread")
            .status();
        let compiled = compiled.expect("a C compiler is part of what these tests need");
        assert!(compiled.success(), "{name}.c does not compile");
        output
    }

    /// The program with the shim before it, and `before` before the shim.
    fn command(&self, program: &Path, before: &[&Path]) -> Command {
        let mut preload = before.to_vec();
        let shim = shim();
        preload.push(&shim);
        let preload: Vec<_> = preload.iter().map(|path| path.to_str().unwrap()).collect();
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", preload.join(":"));
        command.env("URXE_SOCKET", self.directory.join("urxed.sock"));
        command
    }

    /// Runs a program with the data path in the daemon, and in the program.
    fn run(&self, name: &str) {
        let program = self.compile(name, &[]);
        for in_process in ["0", "1"] {
            let mut command = self.command(&program, &[]);
            command.env(IN_PROCESS, in_process);
            self.check(name, command);
        }
    }

    fn check(&self, name: &str, mut command: Command) {
        let program = command.stdin(Stdio::null()).spawn().unwrap();
        let status = wait(program).unwrap_or_else(|| panic!("{name} hangs"));
        assert!(status.success(), "{name}: {status}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.daemon = None;
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// How a program ended; none that does not end is left behind.
fn wait(mut program: Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < WAIT {
        if let Some(status) = program.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = program.kill();
    let _ = program.wait();
    None
}

/// The library, which Cargo builds before these tests, where it puts them too.
fn shim() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("liburxe_shim.so");
    assert!(path.exists(), "there is no {}", path.display());
    path
}

#[test]
fn files_of_devices_are_as_the_kernels() {
    Bench::new().run("files");
}

#[test]
fn the_netlink_of_rdma_says_what_devices_there_are() {
    Bench::new().run("netlink");
}

#[test]
fn duplicates_are_the_device_and_the_last_close_ends_it() {
    Bench::new().run("descriptors");
}

#[test]
fn a_programs_handlers_of_faults_are_called_as_it_says_whenever_it_says_so() {
    Bench::new().run("signals");
}

#[test]
fn a_connection_is_made_and_ended_by_commands_of_the_kernel() {
    for in_process in ["0", "1"] {
        let bench = Bench::new();
        let mut command = bench.command(&bench.compile("connections", &[]), &[]);
        command.args(bench.addresses.map(|address| address.to_string()));
        command.env(IN_PROCESS, in_process);
        bench.check("connections", command);
    }
}

#[test]
fn a_program_that_can_have_no_slot_is_told_why_and_served_by_the_daemon() {
    // One slot serves all programs then.
    let bench = Bench::with(|config| config.fault = Some("drop=0%".parse().unwrap()));
    let program = bench.compile("handles", &[]);
    let said = bench.command(&program, &[]).env(IN_PROCESS, "1").output().unwrap();
    let lines = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success(), "{lines}");
    let [line] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    assert!(line.starts_with("urxe: in-process: a slot of the program's own: "), "{line}");
    assert!(line.ends_with("; this program is served by the daemon"), "{line}");
}

#[test]
fn a_handle_is_unknown_in_every_context_but_its_own() {
    Bench::new().run("handles");
}

#[test]
fn descriptors_closed_by_system_calls_belong_to_others() {
    Bench::new().run("behind");
}

#[test]
fn a_child_has_sessions_of_its_own_and_leaves_its_parents_alone() {
    Bench::new().run("fork");
}

#[test]
fn threads_signals_and_cancellation_are_harmless() {
    Bench::new().run("threads");
}

#[test]
fn memory_that_is_remapped_is_as_memory_of_the_programs_own() {
    let bench = Bench::new();
    let mut command = bench.command(&bench.compile("memory", &[]), &[]);
    command.env(IN_PROCESS, "0");
    bench.check("memory", command);
}

#[test]
fn an_allocator_that_holds_a_lock_and_threads_that_register_do_not_wait_for_each_other() {
    let bench = Bench::new();
    let program = bench.compile("allocator", &["-fno-builtin"]);
    let mut command = bench.command(&program, &[]);
    command.env(IN_PROCESS, "0").env("URXE_MR", "remap");
    bench.check("allocator", command);
}

#[test]
fn a_library_before_libc_hears_of_each_madvise() {
    let bench = Bench::new();
    let library = bench.compile("advice", &["-shared", "-fPIC"]);
    let mut command = bench.command(Path::new("/bin/true"), &[]);
    command.env("LD_PRELOAD", format!("{}:{}", shim().display(), library.display()));
    bench.check("advice", command);
}

#[test]
fn without_a_daemon_nothing_changes() {
    let mut bench = Bench::new();
    bench.daemon = None;
    bench.run("no_daemon");
}

#[test]
fn libraries_that_are_loaded_before_the_shim_may_use_it() {
    let bench = Bench::new();
    let library = bench.compile("constructor", &["-shared", "-fPIC"]);
    bench.check("constructor", bench.command(Path::new("/bin/true"), &[&library]));
}

#[test]
fn a_program_that_polls_in_vain_yields_the_processor() {
    Bench::new().run("polling");
}

#[test]
fn a_program_that_polls_notices_the_end_of_the_daemon() {
    for how in ["poll", "extended", "events"] {
        for quiet in [false, true] {
            let mut bench = Bench::new();
            let mut command = bench.command(&bench.compile("lost", &[]), &[]);
            command.arg(how).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            if quiet {
                command.env("URXE_QUIET", "1");
            }
            let mut program = command.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            let mut stderr = program.stderr.take().unwrap();
            bench.daemon = None;
            let status = wait(program).unwrap_or_else(|| panic!("{how} hangs"));
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            assert!(status.success(), "{how}: {status}: {said}");
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!(lines.len(), usize::from(!quiet), "{said}");
            assert!(quiet || lines[0].starts_with("urxe: the urxed of "), "{said}");
        }
    }
}

#[test]
fn a_program_that_lost_its_daemon_opens_the_device_of_the_next_at_its_socket() {
    for in_process in ["0", "1"] {
        let mut bench = Bench::new();
        let mut command = bench.command(&bench.compile("lost", &[]), &[]);
        command.args(["poll", "again"]).env(IN_PROCESS, in_process).env("URXE_QUIET", "1");
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        bench.daemon = None;
        assert_eq!(lines.next().expect("it does not notice").unwrap(), "lost");
        bench.start_daemon(|_| ());
        writeln!(program.stdin.take().unwrap(), "there is another").unwrap();
        let status = wait(program).expect("it hangs");
        assert!(status.success(), "in process: {in_process}: {status}");
    }
}

/// What a program that is refused the same verb so many times writes to its stderr, and into the
/// file that it opens instead.
fn told(bench: &Bench, log: Option<&str>, how: &str, times: u32) -> (Vec<String>, String) {
    let file = bench.directory.join("table");
    let mut command = bench.command(&bench.compile("reasons", &[]), &[]);
    command.args([how, &times.to_string()]).arg(&file);
    match log {
        Some(log) => command.env("URXE_LOG", log),
        None => command.env_remove("URXE_LOG"),
    };
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{how}: {}: {said}", output.status);
    let lines = said.lines().map(str::to_owned).collect();
    (lines, std::fs::read_to_string(file).unwrap_or_default())
}

/// The sentence for the verb that the program is refused.
const PORT_2: &str = "urxe: ibv_query_port: port 2: the device has 1 port, expected 1 (EINVAL)";

#[test]
fn a_refused_verb_is_told_once_and_its_repeats_are_counted() {
    let bench = Bench::new();
    for log in ["error", "warn", "INFO", "debug"] {
        assert_eq!(told(&bench, Some(log), "as it is", 1).0, [PORT_2], "{log}");
    }
    let sentence = PORT_2.strip_prefix("urxe: ").unwrap();
    let again = |count| format!("urxe: ({count} times by now) {sentence}");
    let expected = [PORT_2.to_owned(), again(10), again(100)];
    assert_eq!(told(&bench, Some("error"), "as it is", 120).0, expected);
}

#[test]
fn nothing_is_told_unless_somebody_asks_for_it() {
    let bench = Bench::new();
    assert_eq!(told(&bench, None, "as it is", 3).0, [""; 0]);
    assert_eq!(told(&bench, Some(""), "as it is", 3).0, [""; 0]);
    let lines = told(&bench, Some("much"), "as it is", 3).0;
    assert_eq!(lines, ["urxe: URXE_LOG is \"much\": expected error, warn, info or debug"]);
}

#[test]
fn a_wish_for_memory_that_makes_no_sense_is_told_of() {
    let bench = Bench::new();
    let program = bench.compile("reasons", &[]);
    let expected = "urxe: URXE_MR is \"Copy\": expected remap or copy\n";
    for (wish, expected) in [("Copy", expected), ("copy", ""), ("remap", ""), ("", "")] {
        let mut command = bench.command(&program, &[]);
        command.args(["as it is", "0", "none"]).env_remove("URXE_LOG").env("URXE_MR", wish);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{wish}: {}", output.status);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected, "{wish}");
    }
}

#[test]
fn nothing_is_written_to_a_file_that_stands_where_stderr_was() {
    let bench = Bench::new();
    let ways = ["reused by a file", "reused behind its back", "closed", "a pipe of the program's"];
    for how in ways {
        let (lines, table) = told(&bench, Some("debug"), how, 2);
        assert!(lines.is_empty() && table.is_empty(), "{how}: {lines:?} {table:?}");
    }
    // Parent and child have one stderr, and a table each.
    assert_eq!(told(&bench, Some("error"), "in a child", 2).0, [PORT_2; 2]);
    assert_eq!(told(&bench, Some("error"), "in a signal handler's way", 2).0, [PORT_2]);
}

#[test]
fn a_stderr_that_nobody_reads_neither_stops_nor_ends_a_program() {
    let bench = Bench::new();
    let program = bench.compile("reasons", &[]);
    for is_read in [false, true] {
        let (read_end, write_end) = std::io::pipe().unwrap();
        if is_read {
            // Full to the last byte: whoever wrote would wait.
            fill(&write_end);
        }
        let mut command = bench.command(&program, &[]);
        command.args(["as it is", "2"]).arg(bench.directory.join("table"));
        command.env("URXE_LOG", "debug").stdin(Stdio::null()).stderr(write_end);
        let held = is_read.then_some(read_end);
        let status = wait(command.spawn().unwrap()).expect("it hangs");
        assert!(status.success(), "{status}");
        drop(held);
    }
}

/// Writes as long as a pipe takes something.
fn fill(pipe: &std::io::PipeWriter) {
    rustix::io::ioctl_fionbio(pipe, true).unwrap();
    while rustix::io::write(pipe, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(pipe, b"x").is_ok() {}
    rustix::io::ioctl_fionbio(pipe, false).unwrap();
}

#[test]
fn without_a_daemon_the_reason_is_told_to_whoever_asks_for_it() {
    let mut bench = Bench::new();
    bench.daemon = None;
    let program = bench.compile("no_daemon", &[]);
    for (log, lines) in [("", 0), ("error", 1)] {
        let said = bench.command(&program, &[]).env("URXE_LOG", log).output().unwrap();
        let said = String::from_utf8(said.stderr).unwrap();
        assert_eq!(said.lines().count(), lines, "{said}");
        let begins = "urxe: no RDMA device: no urxed answers at ";
        assert!(said.lines().all(|line| line.starts_with(begins)), "{said}");
    }
}

#[test]
fn every_function_that_programs_may_call_is_there() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(shim()).output();
    let output = output.expect("nm, of the package binutils, which the compiler needs too");
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<&str> = text.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let expected = "
        open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2
        stat stat64 lstat lstat64 fstat fstat64 fstatat fstatat64 statx
        __xstat __xstat64 __lxstat __lxstat64 __fxstat __fxstat64 __fxstatat __fxstatat64
        read __read_chk readv write writev ioctl
        close close_range closefrom dup dup2 dup3 fcntl fcntl64
        socket bind getsockname setsockopt send sendto sendmsg
        recv __recv_chk recvfrom __recvfrom_chk recvmsg
        fopen fopen64 freopen freopen64 opendir scandir scandir64 scandirat scandirat64
        access faccessat euidaccess eaccess readlink readlinkat __readlink_chk __readlinkat_chk
        realpath __realpath_chk canonicalize_file_name chdir inotify_add_watch
        getxattr lgetxattr listxattr llistxattr madvise sigaction signal";
    for name in expected.split_whitespace() {
        assert!(found.contains(&name), "{name} is not exported");
    }
    // And none that would stand before a program's own by accident.
    for name in found {
        let is_meant = expected.split_whitespace().any(|expected| expected == name);
        assert!(is_meant || name.starts_with("rust_") || name.starts_with("_"), "{name}");
    }
}
