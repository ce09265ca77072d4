//! Where the programs run: daemons, and the environment of an ordinary user.

use crate::judge::last_line;
use serde_json::Value;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_shell::{Result, is_root, output, release_binary, root, run};

/// How long a program may take before it counts as hanging. On a machine that does nothing else
/// none takes 10 seconds; but perftest measures the processor's clock for a quarter of a second of
/// CPU time with each size of `-a`, which takes 45 seconds where five others want each processor.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);

/// What a program says that was to run a slot of its own, and cannot.
const NOT_IN_PROCESS: &str = "this program is served by the daemon";

/// The user of the programs if we are root: `nobody`.
const ORDINARY_USER: u32 = 65_534;

/// The port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// Runs a program with the sockets of librdmacm.
const PRELOADED: &str = "\
LD_PRELOAD=$LD_PRELOAD:$(echo /usr/lib*/*/rsocket/librspreload.so)
export LD_PRELOAD
exec \"$@\"
";

/// Programs of `interop/programs`.
const OWN_PROGRAMS: [&str; 8] = [
    "leaves_objects",
    "forks",
    "closes_descriptors",
    "keeps_to_verbs",
    "loses_daemon",
    "mistakes",
    "polls_memory",
    "sends_to_itself",
];

/// One of the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
    /// The daemon on ::1, unless there is a [`NoIpv6`].
    Ipv6,
}

/// A directory with our binaries, and daemons on addresses of their own.
pub(crate) struct Testbed {
    directory: PathBuf,
    daemons: Vec<Child>,
    /// Each program runs a slot of its own.
    in_process: bool,
    no_ipv6: Option<NoIpv6>,
}

/// Why there is no daemon on `::1`.
pub(crate) struct NoIpv6 {
    /// This machine has the address: somebody has its port.
    pub(crate) is_possible: bool,
    pub(crate) why: String,
}

/// A program that runs. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    words: String,
    output: PathBuf,
}

/// A program that has ended.
pub(crate) struct Ended {
    status: ExitStatus,
    output: String,
}

impl Testbed {
    pub(crate) fn new(in_process: bool) -> Result<Testbed> {
        let directory = std::env::temp_dir().join(format!("urxe-programs-{}", std::process::id()));
        let mut testbed = Testbed { directory, daemons: Vec::new(), in_process, no_ipv6: None };
        let shown = testbed.directory.display().to_string();
        testbed.prepare().map_err(|error| format!("{shown}: {error}"))?;
        for source in OWN_PROGRAMS {
            testbed.compile("cc", &[], source, source)?;
        }
        for side in [Side::A, Side::B] {
            testbed.start_daemon(side)?;
        }
        let address = testbed.address(Side::Ipv6);
        if in_process {
            // OWN-003
            let why = "on ::1, one slot serves all".to_owned();
            testbed.no_ipv6 = Some(NoIpv6 { is_possible: false, why });
        } else if let Err(error) = UdpSocket::bind((address, ROCE_PORT)) {
            let why = format!("UDP port {ROCE_PORT} of ::1: {error}");
            let is_possible = UdpSocket::bind((address, 0)).is_ok();
            testbed.no_ipv6 = Some(NoIpv6 { is_possible, why });
        } else {
            testbed.start_daemon(Side::Ipv6)?;
        }
        Ok(testbed)
    }

    /// Why nothing can be run on `::1`, if so.
    pub(crate) fn no_ipv6(&self) -> Option<&NoIpv6> {
        self.no_ipv6.as_ref()
    }

    fn prepare(&self) -> std::io::Result<()> {
        let (bin, run) = (self.directory.join("bin"), self.directory.join("run"));
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(&run)?;
        for name in ["urxe", "urxed", "liburxe_shim.so"] {
            fs::copy(release_binary(name), bin.join(name))?;
        }
        fs::write(bin.join("preloaded.sh"), PRELOADED)?;
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755))?;
        if is_root() {
            std::os::unix::fs::chown(&run, Some(ORDINARY_USER), Some(ORDINARY_USER))?;
        }
        Ok(())
    }

    /// Compiles a program of `interop/programs`.
    pub(crate) fn compile(
        &self,
        compiler: &str,
        options: &[&str],
        source: &str,
        binary: &str,
    ) -> Result<PathBuf> {
        let output = self.binary(binary);
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Werror", "-O1", "-g", "-o"]).arg(&output).args(options);
        command.arg(root().join(format!("interop/programs/{source}.c")));
        run(command.args(["-libverbs", "-lrdmacm", "-pthread"]))?;
        Ok(output)
    }

    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// The socket of a daemon.
    pub(crate) fn socket(&self, side: Side) -> PathBuf {
        self.directory.join(format!("run/{side:?}.sock"))
    }

    /// Of IPv4, one that other runs on this machine hardly use.
    pub(crate) fn address(&self, side: Side) -> IpAddr {
        let number = (std::process::id() % 250) as u8;
        match side {
            Side::A => Ipv4Addr::new(127, 77, number, 1).into(),
            Side::B => Ipv4Addr::new(127, 77, number, 2).into(),
            Side::Ipv6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// Whether there is a daemon.
    pub(crate) fn has(&self, side: Side) -> bool {
        self.daemons.len() > side as usize
    }

    fn sides(&self) -> impl Iterator<Item = Side> {
        [Side::A, Side::B, Side::Ipv6].into_iter().filter(|&side| self.has(side))
    }

    /// Whether each program runs a slot of its own.
    pub(crate) fn is_in_process(&self) -> bool {
        self.in_process
    }

    /// A port for a server that the connection manager leads to, another one each time.
    pub(crate) fn next_port() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(7500);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// A file that programs may read, in a directory that they may write to.
    pub(crate) fn file(&self) -> Result<PathBuf> {
        let path = self.directory.join("run/file");
        let bytes: Vec<u8> = (0..1_000_003u32).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// A command of an ordinary user.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={ORDINARY_USER}"));
            command.arg(format!("--regid={ORDINARY_USER}"));
            command.args(["--clear-groups", "--inh-caps=-all", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.directory.join("run")).stdin(Stdio::null());
        command.env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn start_daemon(&mut self, side: Side) -> Result {
        let daemon =
            self.new_daemon(&format!("{side:?}"), self.address(side), &self.socket(side))?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Another daemon, for one test, and its socket.
    pub(crate) fn spare_daemon(&self) -> Result<(Child, PathBuf)> {
        let number = (std::process::id() % 250) as u8;
        let socket = self.directory.join("run/spare.sock");
        let daemon = self.new_daemon("spare", Ipv4Addr::new(127, 77, number, 3).into(), &socket)?;
        Ok((daemon, socket))
    }

    fn new_daemon(&self, name: &str, address: IpAddr, socket: &Path) -> Result<Child> {
        let mut command = self.command(self.binary("urxed"));
        command.arg("--addr").arg(address.to_string()).arg("--socket").arg(socket);
        let log = self.directory.join(format!("{name}.log"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut child = command.stderr(file).spawn().map_err(|error| format!("urxed: {error}"))?;
        let log_text = || fs::read_to_string(&log).unwrap_or_default();
        while !log_text().contains("urxed: ready") {
            if !matches!(child.try_wait(), Ok(None)) {
                return Err(format!("urxed ended: {}", last_line(&log_text())));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(child)
    }

    /// The process of a daemon.
    pub(crate) fn daemon(&self, side: Side) -> u32 {
        self.daemons[side as usize].id()
    }

    /// Starts a program on a daemon. Its name stands first.
    pub(crate) fn start(&self, side: Side, words: &[&str]) -> Result<Running> {
        self.start_at(&self.socket(side), words)
    }

    /// The same on the daemon of a socket.
    pub(crate) fn start_at(&self, socket: &Path, words: &[&str]) -> Result<Running> {
        self.start_with(socket, &[], words)
    }

    /// Starts a program of which every failure is to be explained.
    pub(crate) fn explain(&self, side: Side, words: &[&str]) -> Result<Running> {
        self.start_with(&self.socket(side), &["--explain"], words)
    }

    /// Starts a program with options of `urxe run`.
    fn start_with(&self, socket: &Path, options: &[&str], words: &[&str]) -> Result<Running> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("output-{number}"));
        let both = || {
            let file = File::create(&path)?;
            Ok((file.try_clone()?, file))
        };
        let (stdout, stderr) =
            both().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))?;
        let mut command = self.command(self.binary("urxe"));
        command.arg("run").arg("--daemon").arg(socket).args(options);
        command.args(self.in_process.then_some("--in-process")).arg("--").args(words);
        command.stdout(stdout).stderr(stderr);
        let child = command.spawn().map_err(|error| format!("urxe run: {error}"))?;
        Ok(Running { child, words: words.join(" "), output: path })
    }

    /// Runs a program to its end.
    pub(crate) fn run(&self, side: Side, words: &[&str], timeout: Duration) -> Result<Ended> {
        self.start(side, words)?.wait(timeout)
    }

    /// Starts a program as a server, and once more as its client.
    pub(crate) fn start_pair(
        &self,
        (server, client): (Side, Side),
        words: &[&str],
    ) -> Result<(Running, Running)> {
        let port = free_port().map_err(|error| format!("no free TCP port: {error}"))?;
        let text = port.to_string();
        let mut words = words.to_vec();
        words.extend(["-p", &text]);
        let mut server = self.start(server, &words)?;
        server.wait_until(|_| Ok(is_listening(port)))?;
        words.push("127.0.0.1");
        let client = self.start(client, &words)?;
        Ok((server, client))
    }

    /// Runs a program as a server and as its client, to the end of both.
    pub(crate) fn run_pair(&self, sides: (Side, Side), words: &[&str]) -> Result<(Ended, Ended)> {
        let (server, client) = self.start_pair(sides, words)?;
        // A server whose client has failed may wait indefinitely.
        let client = client.wait(TIMEOUT)?;
        client.success().map_err(|reason| format!("the client {reason}"))?;
        Ok((server.wait(TIMEOUT)?, client))
    }

    /// What `urxe` shows of the devices of a daemon.
    pub(crate) fn devices(&self, side: Side, words: &[&str]) -> Result<Vec<Value>> {
        let mut command = self.command(self.binary("urxe"));
        command.args(words).args(["--json", "--socket"]).arg(self.socket(side));
        let name = words.join(" ");
        let report: Value = serde_json::from_str(&output(&mut command)?)
            .map_err(|error| format!("urxe {name}: {error}"))?;
        let devices = report["devices"].as_array().cloned();
        devices.ok_or_else(|| format!("urxe {name} shows no devices"))
    }

    /// A counter of the only device of a daemon.
    pub(crate) fn count(&self, side: Side, counter: &str) -> Result<u64> {
        let devices = self.devices(side, &["stat"])?;
        let count = devices.first().and_then(|device| device["counters"][counter].as_u64());
        count.ok_or_else(|| format!("urxe stat does not know {counter}"))
    }

    /// How many objects a daemon has: of verbs, and of the connection manager.
    fn objects(&self, side: Side) -> Result<usize> {
        let devices = self.devices(side, &["res"])?;
        let lists = devices.iter().filter_map(|device| device.as_object());
        // What is known of a path outlives the programs that used it.
        let lists = lists.flatten().filter(|(kind, _)| *kind != "path");
        let lists = lists.filter_map(|(_, list)| list.as_array());
        let verbs: usize = lists.map(Vec::len).sum();
        let left = |made, gone| Ok(self.count(side, made)?.abs_diff(self.count(side, gone)?));
        let connections: Result<u64> = [
            ("cm_channels_created", "cm_channels_destroyed"),
            ("cm_ids_created", "cm_ids_destroyed"),
            ("cm_ports_taken", "cm_ports_freed"),
        ]
        .into_iter()
        .map(|(made, gone)| left(made, gone))
        .sum();
        Ok(verbs + connections? as usize)
    }

    /// Waits until all objects of programs that have ended are gone, which may take a moment.
    pub(crate) fn wait_until_no_objects_left(&self) -> Result {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left: usize = self.sides().map(|side| self.objects(side)).sum::<Result<usize>>()?;
            if left == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{left} objects of programs that have ended are left"));
            }
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = output(Command::new("kill").arg(daemon.id().to_string()));
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Running {
    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until `is_ready`, which is given the output so far.
    pub(crate) fn wait_until(&mut self, is_ready: impl Fn(&str) -> Result<bool>) -> Result {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let output = fs::read(&self.output).unwrap_or_default();
            let output = String::from_utf8_lossy(&output);
            if is_ready(&output)? {
                return Ok(());
            }
            if self.has_ended() || Instant::now() > deadline {
                let how = if self.has_ended() { "ended early" } else { "is not ready" };
                return Err(format!("the server {how}: {}", last_line(&output)));
            }
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; an error if it does not come.
    pub(crate) fn wait(mut self, timeout: Duration) -> Result<Ended> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.child.try_wait().map_err(|error| error.to_string())?;
            let output = fs::read(&self.output).unwrap_or_default();
            let output = String::from_utf8_lossy(&output).into_owned();
            if output.contains(NOT_IN_PROCESS) {
                return Err(format!("had no slot of its own: {}", last_line(&output)));
            }
            if let Some(status) = status {
                return Ok(Ended { status, output });
            }
            if Instant::now() > deadline {
                return Err(format!("{} hangs; its last line: {}", self.words, last_line(&output)));
            }
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_file(&self.output);
    }
}

impl Ended {
    /// What it printed.
    pub(crate) fn output(&self) -> &str {
        &self.output
    }

    /// What it printed, if it succeeded.
    pub(crate) fn success(&self) -> Result<String> {
        match self.status.success() {
            true => Ok(self.output.clone()),
            false => Err(format!("ended with {}: {}", self.status, last_line(&self.output))),
        }
    }
}

/// A TCP port that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Whether a TCP port has a listener. It does not connect: a server would take that for its
/// client.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!("{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let words: Vec<&str> = line.split_whitespace().take(4).collect();
            matches!(words[..], [_, local, _, LISTEN] if local.ends_with(&port))
        })
    })
}
