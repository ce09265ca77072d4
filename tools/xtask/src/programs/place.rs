//! Where the programs run: two daemons and everything that an ordinary user needs.

use super::judge::last_line;
use crate::shell::{Result, is_root, output, release_binary, root, run};
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a program may take before it counts as hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Whom the programs run as, if we are root: nobody.
const ORDINARY_USER: u32 = 65_534;

/// One of the two daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// A directory with our binaries, and two daemons on addresses of their own.
pub(super) struct Place {
    directory: PathBuf,
    daemons: Vec<Child>,
}

/// A program that runs. Killed when dropped.
pub(super) struct Running {
    child: Child,
    words: String,
    output: PathBuf,
}

/// A program that has ended.
pub(super) struct Ended {
    status: ExitStatus,
    output: String,
}

impl Place {
    pub(super) fn new() -> Result<Place> {
        let directory = std::env::temp_dir().join(format!("urxe-programs-{}", std::process::id()));
        let mut place = Place { directory, daemons: Vec::new() };
        let shown = place.directory.display().to_string();
        place.prepare().map_err(|error| format!("{shown}: {error}"))?;
        for source in ["leaves_objects", "forks", "closes_descriptors"] {
            let mut cc = Command::new("cc");
            cc.args(["-Wall", "-Werror", "-O1", "-o"]).arg(place.binary(source));
            cc.arg(root().join(format!("interop/programs/{source}.c"))).arg("-libverbs");
            run(&mut cc)?;
        }
        for side in [Side::A, Side::B] {
            place.start_daemon(side)?;
        }
        Ok(place)
    }

    fn prepare(&self) -> std::io::Result<()> {
        let (bin, run) = (self.directory.join("bin"), self.directory.join("run"));
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(&run)?;
        for name in ["urxe", "urxed", "liburxe_shim.so"] {
            fs::copy(release_binary(name), bin.join(name))?;
        }
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755))?;
        if is_root() {
            std::os::unix::fs::chown(&run, Some(ORDINARY_USER), Some(ORDINARY_USER))?;
        }
        Ok(())
    }

    pub(super) fn binary(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    fn socket(&self, side: Side) -> PathBuf {
        self.directory.join(format!("run/{side:?}.sock"))
    }

    /// One that nobody else on this machine tests with.
    fn address(&self, side: Side) -> Ipv4Addr {
        Ipv4Addr::new(127, 77, (std::process::id() % 250) as u8, 1 + side as u8)
    }

    /// A command of an ordinary user.
    fn command(&self, program: impl AsRef<Path>) -> Command {
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
        let socket = self.socket(side);
        let mut command = self.command(self.binary("urxed"));
        command.arg("--addr").arg(self.address(side).to_string()).arg("--socket").arg(&socket);
        let log = self.directory.join(format!("{side:?}.log"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut child = command.stderr(file).spawn().map_err(|error| format!("urxed: {error}"))?;
        let said = || fs::read_to_string(&log).unwrap_or_default();
        while !said().contains("urxed: ready") {
            if !matches!(child.try_wait(), Ok(None)) {
                return Err(format!("urxed ended: {}", last_line(&said())));
            }
            sleep(Duration::from_millis(5));
        }
        self.daemons.push(child);
        Ok(())
    }

    /// The process of a daemon.
    pub(super) fn daemon(&self, side: Side) -> u32 {
        self.daemons[side as usize].id()
    }

    /// Starts a program on a daemon. Its name stands first.
    pub(super) fn start(&self, side: Side, words: &[&str]) -> Result<Running> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = self.directory.join(format!("output-{number}"));
        let both = || {
            let file = File::create(&path)?;
            Ok((file.try_clone()?, file))
        };
        let (stdout, stderr) =
            both().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))?;
        let mut command = self.command(self.binary("urxe"));
        command.arg("run").arg("--daemon").arg(self.socket(side)).arg("--").args(words);
        command.stdout(stdout).stderr(stderr);
        let child = command.spawn().map_err(|error| format!("urxe run: {error}"))?;
        Ok(Running { child, words: words.join(" "), output: path })
    }

    /// Runs a program to its end.
    pub(super) fn run(&self, side: Side, words: &[&str], patience: Duration) -> Result<Ended> {
        self.start(side, words)?.wait(patience)
    }

    /// Starts a program as a server, and once more as its client.
    pub(super) fn start_pair(
        &self,
        (server, client): (Side, Side),
        words: &[&str],
    ) -> Result<(Running, Running)> {
        let port = free_port().map_err(|error| format!("no free TCP port: {error}"))?;
        let text = port.to_string();
        let mut words = words.to_vec();
        words.extend(["-p", &text]);
        let mut server = self.start(server, &words)?;
        let deadline = Instant::now() + PATIENCE;
        while !is_listening(port) {
            if server.has_ended() || Instant::now() > deadline {
                let ended = server.wait(Duration::ZERO)?;
                let reason = ended.success().err().unwrap_or_else(|| "ended early".into());
                return Err(format!("the server {reason}"));
            }
            sleep(Duration::from_millis(5));
        }
        words.push("127.0.0.1");
        let client = self.start(client, &words)?;
        Ok((server, client))
    }

    /// Runs a program as a server and as its client, to the end of both.
    pub(super) fn run_pair(&self, sides: (Side, Side), words: &[&str]) -> Result<(Ended, Ended)> {
        let (server, client) = self.start_pair(sides, words)?;
        // A server whose client has failed may wait for ever, and is no news then.
        let client = client.wait(PATIENCE)?;
        client.success().map_err(|reason| format!("the client {reason}"))?;
        Ok((server.wait(PATIENCE)?, client))
    }

    /// Verbs objects that a daemon has.
    fn objects(&self, side: Side) -> Result<usize> {
        let mut command = self.command(self.binary("urxe"));
        let text = output(command.args(["res", "--json", "--socket"]).arg(self.socket(side)))?;
        let report: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| format!("urxe res: {error}"))?;
        let devices = report["devices"].as_array().ok_or("urxe res shows no devices")?;
        let lists = devices.iter().filter_map(|device| device.as_object());
        let lists = lists.flat_map(|device| device.values()).filter_map(|list| list.as_array());
        Ok(lists.map(Vec::len).sum())
    }

    /// Programs that have ended leave nothing, though it may take a moment.
    pub(super) fn wait_until_nothing_is_left(&self) -> Result {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left = self.objects(Side::A)? + self.objects(Side::B)?;
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

impl Drop for Place {
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
    pub(super) fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; an error if it does not come.
    pub(super) fn wait(mut self, patience: Duration) -> Result<Ended> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.child.try_wait().map_err(|error| error.to_string())?;
            let output = fs::read(&self.output).unwrap_or_default();
            let output = String::from_utf8_lossy(&output).into_owned();
            if let Some(status) = status {
                return Ok(Ended { status, output });
            }
            if Instant::now() > deadline {
                return Err(format!("{} hangs; it said {}", self.words, last_line(&output)));
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
    /// What it printed, if it ended well.
    pub(super) fn success(&self) -> Result<String> {
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

/// Whether somebody listens at a TCP port. Looking does not connect: a server would take that for
/// its client.
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
