//! The daemon, the processes of attackers and victims, and what is seen of them.

use super::table::{Row, Seen};
use super::victim::Latency;
use super::{Attack, Setting};
use rustix::io::Errno;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Whatever went wrong.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The users that attack, are attacked and come newly, where we are root.
const ATTACKER: u32 = 65_531;
const VICTIM: u32 = 65_532;
const NEWCOMER: u32 = 65_533;

/// How long an attacker may take until it is under way.
const UNDER_WAY: Duration = Duration::from_secs(20);

/// How long a newcomer may wait.
const SERVED: Duration = Duration::from_secs(10);

/// How long the daemon has to free what an attacker had.
const FREED: Duration = Duration::from_secs(15);

/// A process of ours, ended with this value.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Process> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let stdout: ChildStdout = child.stdout.take().ok_or("no output")?;
        let (sender, lines) = mpsc::channel();
        // What is said before it is asked for waits here.
        std::thread::spawn(move || {
            BufReader::new(stdout)
                .lines()
                .map_while(|line| line.ok())
                .try_for_each(|line| sender.send(line))
        });
        Ok(Process { child, stdin, lines })
    }

    fn ask(&mut self, line: &str) -> Result {
        let stdin = self.stdin.as_mut().ok_or("no input")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    fn line(&self, timeout: Duration) -> Result<String> {
        Ok(self.lines.recv_timeout(timeout)?)
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of the run's own that everybody can look into.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Everything smaller.
    pub is_short: bool,
    /// For how long victims are measured.
    pub window: Duration,
}

/// A daemon and its victims.
pub struct Testbed {
    extent: Extent,
    directory: Directory,
    daemon: Process,
    setting: Setting,
    /// Of the attacker's user, and of another.
    victims: Vec<Process>,
    started: u16,
}

impl Testbed {
    /// Starts a daemon, which lies beside this program, and victims.
    ///
    /// # Errors
    /// If something cannot be started.
    pub fn new(extent: Extent) -> Result<Testbed> {
        let process = std::process::id();
        let directory = std::env::temp_dir().join(format!("urxe-attack-{process}"));
        std::fs::create_dir_all(&directory)?;
        let directory = Directory(directory);
        std::fs::set_permissions(&directory.0, std::fs::Permissions::from_mode(0o755))?;
        let ours = std::env::current_exe()?;
        // Where users can run it who cannot see the folder that it was built in.
        std::fs::copy(&ours, directory.0.join("attack"))?;
        std::fs::copy(ours.with_file_name("urxed"), directory.0.join("urxed"))?;
        let [.., high, low] = process.to_be_bytes();
        let addr = |last: u8| IpAddr::from(Ipv4Addr::new(127, 90 + high % 16, low, last));
        let setting = Setting {
            socket: directory.0.join("urxed.sock"),
            addrs: [addr(1), addr(2)],
            qpns: [0; 2],
            is_short: extent.is_short,
        };
        let daemon = start_daemon(&directory.0, &setting)?;
        let mut testbed =
            Testbed { extent, directory, daemon, setting, victims: Vec::new(), started: 0 };
        testbed.start_victims()?;
        Ok(testbed)
    }

    /// A process of this program in another role and, where we are root, of another user.
    fn role(&self, user: u32, words: &[&str]) -> Command {
        let mut command = Command::new(self.directory.0.join("attack"));
        command.args(words).arg("--socket").arg(&self.setting.socket);
        for addr in self.setting.addrs {
            command.arg("--addr").arg(addr.to_string());
        }
        for qpn in self.setting.qpns {
            command.arg("--qpn").arg(qpn.to_string());
        }
        if self.setting.is_short {
            command.arg("--short");
        }
        if rustix::process::geteuid().is_root() {
            command.uid(user).gid(user);
        }
        command.current_dir("/");
        command
    }

    fn start_victims(&mut self) -> Result {
        self.victims.clear();
        let users: &[u32] = match rustix::process::geteuid().is_root() {
            true => &[ATTACKER, VICTIM],
            false => &[ATTACKER],
        };
        for &user in users {
            self.started += 1;
            let port = (20_000 + self.started).to_string();
            let victim = Process::start(&mut self.role(user, &["--victim", &port]))?;
            let qpns = victim.line(UNDER_WAY)?;
            if user == users[users.len() - 1] {
                self.setting.qpns = serde_json::from_str(&qpns)?;
            }
            self.victims.push(victim);
        }
        Ok(())
    }

    /// Measures all victims at once.
    fn measure(&mut self) -> Vec<std::result::Result<Latency, String>> {
        let window = self.extent.window;
        let asked: Vec<bool> = (self.victims.iter_mut())
            .map(|victim| victim.ask(&window.as_millis().to_string()).is_ok())
            .collect();
        let answer = |(victim, asked): (&Process, bool)| {
            if !asked {
                return Err("it is gone".to_owned());
            }
            let line = victim.line(window + Duration::from_secs(30));
            let line = line.map_err(|_| "it says nothing".to_owned())?;
            serde_json::from_str(&line).unwrap_or_else(|error| Err(error.to_string()))
        };
        self.victims.iter().zip(asked).map(answer).collect()
    }

    /// Makes an attack.
    ///
    /// # Errors
    /// If daemon or victims cannot be started again after the attack before.
    pub fn attack(&mut self, attack: &Attack) -> Result<Row> {
        if self.daemon.has_ended() {
            self.daemon = start_daemon(&self.directory.0, &self.setting)?;
            self.start_victims()?;
        }
        let mut idle = self.measure();
        if idle.iter().any(|seen| seen.is_err()) {
            self.start_victims()?;
            idle = self.measure();
        }
        let before = self.resources();
        let attacker = Process::start(&mut self.role(ATTACKER, &["--attacker", attack.name]))?;
        let first = attacker.line(UNDER_WAY);
        let mut stopped = match first.as_deref() {
            Ok("ready") => None,
            Ok(other) => Some(other.to_owned()),
            Err(_) => Some("was not under way in time".to_owned()),
        };
        let newcomer = Process::start(&mut self.role(NEWCOMER, &["--newcomer"]))
            .map_err(|error| error.to_string());
        let attacked = self.measure();
        let newcomer_refused = match newcomer.map(|newcomer| newcomer.line(SERVED)) {
            Ok(Ok(line)) => (line != "served").then_some(line),
            Ok(Err(_)) => Some("it was not answered in time".to_owned()),
            Err(error) => Some(error),
        };
        if let Ok(line) = attacker.line(Duration::ZERO) {
            stopped = Some(line);
        }
        let during = self.resources();
        drop(attacker);
        let is_daemon_up = !self.daemon.has_ended();
        let after = self.wait_until_freed(&before);
        let seen = |at: usize| -> Option<Seen> {
            let idle = idle.get(at)?.clone().unwrap_or_default();
            Some(Seen { idle, attacked: attacked.get(at)?.clone() })
        };
        Ok(Row {
            attack: attack.name,
            what: attack.what,
            stopped,
            is_daemon_up,
            newcomer_refused,
            other_user: seen(1),
            same_user: seen(0).ok_or("no victim")?,
            memory_charged: during.daemon - before.daemon,
            memory_left: after.memory - before.memory,
            descriptors_left: after.descriptors - before.descriptors,
        })
    }

    fn resources(&self) -> Resources {
        let daemon = self.daemon.child.id();
        let all = workers_of(daemon).into_iter().chain([daemon]);
        let all: Vec<_> = all.map(|process| (resident(process), descriptors(process))).collect();
        Resources {
            daemon: resident(daemon),
            memory: all.iter().map(|(memory, _)| memory).sum(),
            descriptors: all.iter().map(|(_, descriptors)| descriptors).sum(),
        }
    }

    fn wait_until_freed(&self, before: &Resources) -> Resources {
        let begun = Instant::now();
        loop {
            let after = self.resources();
            let is_freed =
                after.descriptors <= before.descriptors && after.memory <= before.memory + 16;
            if is_freed || begun.elapsed() > FREED {
                return after;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What the daemon and its workers have.
struct Resources {
    /// Mebibytes of the daemon itself.
    daemon: i64,
    /// Mebibytes of all.
    memory: i64,
    /// Open descriptors of all.
    descriptors: i64,
}

/// The processes that the daemon has started, whichever of its threads did.
fn workers_of(daemon: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{daemon}/task")).into_iter().flatten();
    let children = threads.flatten().map(|thread| thread.path().join("children"));
    let children: String = children.flat_map(std::fs::read_to_string).collect();
    children.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// A process's resident memory in mebibytes.
fn resident(process: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = resident.and_then(|line| line.split_whitespace().next()?.parse::<i64>().ok());
    kibibytes.unwrap_or(0) / 1024
}

fn descriptors(process: u32) -> i64 {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count) as i64
}

fn start_daemon(directory: &Path, setting: &Setting) -> Result<Process> {
    let mut command = Command::new(directory.join("urxed"));
    command.args(["--mode", "666", "--socket"]).arg(&setting.socket);
    for addr in setting.addrs {
        command.arg("--addr").arg(addr.to_string());
    }
    let daemon = Process::start(command.stderr(Stdio::null()))?;
    let begun = Instant::now();
    // One that an ended daemon has left behind takes no connection.
    while std::os::unix::net::UnixStream::connect(&setting.socket)
        .is_err_and(|error| error.raw_os_error() != Some(Errno::PROTOTYPE.raw_os_error()))
    {
        if begun.elapsed() > UNDER_WAY {
            return Err("the daemon does not start".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(daemon)
}
