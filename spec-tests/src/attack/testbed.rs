//! The daemon, the processes of attackers and victims, and what becomes of them.

use super::resources::{Resources, Watcher, kill_worker_of, of_processes, workers_of};
use super::table::{Attacker, Row, Seen};
use super::victim::Latency;
use super::{Attack, By, COULD_NOT_RUN, Result, Setting};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The users that attack and are attacked, where we are root. The daemon's own user is a third.
const ATTACKER: u32 = 64_000;
const VICTIM: u32 = 64_001;

/// Users behind this one come newly, another for each attack.
const NEWCOMERS: u32 = 64_100;

/// How long an attacker may take until it is under way.
const UNDER_WAY: Duration = Duration::from_secs(60);

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
    /// How often an attack is made at most whose victims stall or, in the long form, are slowed
    /// down beyond the bounds. What counts is the least: other programs slow them down too.
    pub trials: usize,
    /// How many slots the daemon has for programs of its own user; `None`: what it has by default.
    pub slots: Option<usize>,
}

/// A victim and whose it is.
struct Victim {
    /// The user; `None` is that of this process and of the daemon.
    user: Option<u32>,
    process: Process,
    qpns: [u32; 2],
    port: u16,
}

/// A daemon and its victims.
pub struct Testbed {
    extent: Extent,
    directory: Directory,
    daemon: Process,
    watcher: Watcher,
    setting: Setting,
    victims: Vec<Victim>,
    /// What there was before the first victim.
    begun: Resources,
    ports: u16,
    newcomers: u32,
}

impl Testbed {
    /// Starts a daemon, which lies beside this program, and victims.
    ///
    /// # Errors
    /// If something cannot be started.
    pub fn new(extent: Extent) -> Result<Testbed> {
        let process = std::process::id();
        let directory = std::env::temp_dir().join(format!("urxe-attack-{process}"));
        std::fs::create_dir_all(directory.join("fuse"))?;
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
            port: 0,
            is_short: extent.is_short,
            is_unshared: false,
        };
        let daemon = start_daemon(&directory.0, &setting, extent.slots)?;
        let watcher = Watcher::new(&setting.socket)?;
        let mut testbed = Testbed {
            extent,
            directory,
            daemon,
            watcher,
            setting,
            victims: Vec::new(),
            begun: Resources::default(),
            ports: 20_000,
            newcomers: 0,
        };
        testbed.begun = testbed.look()?;
        testbed.start_victims()?;
        Ok(testbed)
    }

    /// A process of this program in another role, of this user if that is not its own.
    fn role(&self, user: Option<u32>, words: &[&str]) -> Command {
        let mut command = self.setting.command(&self.directory.0.join("attack"));
        command.args(words);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command.current_dir("/");
        command
    }

    fn start_victims(&mut self) -> Result {
        self.victims.clear();
        let users: &[Option<u32>] = match is_root() {
            true => &[None, Some(ATTACKER), Some(VICTIM)],
            false => &[None],
        };
        for &user in users {
            let begun = Instant::now();
            let victim = loop {
                match self.start_victim(user) {
                    // A worker that was killed is not started again at once.
                    Err(_) if begun.elapsed() < UNDER_WAY => {
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    started => break started?,
                }
            };
            self.victims.push(victim);
        }
        Ok(())
    }

    fn start_victim(&mut self, user: Option<u32>) -> Result<Victim> {
        self.ports += 1;
        let port = self.ports;
        let process = Process::start(&mut self.role(user, &["--victim", &port.to_string()]))?;
        let qpns = serde_json::from_str(&process.line(UNDER_WAY)?)?;
        Ok(Victim { user, process, qpns, port })
    }

    /// Measures some of the victims, at a time.
    fn measure(&mut self, users: &[Option<u32>]) -> Vec<std::result::Result<Latency, String>> {
        let window = self.extent.window;
        let find = |victims: &[Victim], user| victims.iter().position(|v| v.user == user);
        let asked: Vec<_> = (users.iter())
            .map(|&user| {
                let at = find(&self.victims, user)?;
                self.victims[at].process.ask(&window.as_millis().to_string()).ok()?;
                Some(at)
            })
            .collect();
        let answer = |at: Option<usize>| {
            let at = at.ok_or("it is gone")?;
            let line = self.victims[at].process.line(window + Duration::from_secs(30));
            let line = line.map_err(|_| "it says nothing".to_owned())?;
            serde_json::from_str(&line).unwrap_or_else(|error| Err(error.to_string()))
        };
        asked.into_iter().map(answer).collect()
    }

    /// Makes an attack. `None` if this user cannot make it.
    ///
    /// # Errors
    /// If daemon or victims cannot be started again after the attack before.
    pub fn attack(&mut self, attack: &'static Attack, attacker: Attacker) -> Result<Option<Row>> {
        if attacker == Attacker::DaemonsUser && attack.by != By::Program && is_root() {
            return Ok(None);
        }
        if attack.by == By::WorkersUser && !is_root() {
            return Ok(None);
        }
        let mut row = self.attack_once(attack, attacker)?;
        for _ in 1..self.extent.trials {
            let is_short = self.extent.is_short;
            if row.is_flowing() && (is_short || row.is_within_bounds()) {
                break;
            }
            row = row.least(self.attack_once(attack, attacker)?);
        }
        Ok(Some(row))
    }

    fn attack_once(&mut self, attack: &'static Attack, attacker: Attacker) -> Result<Row> {
        if self.daemon.has_ended() {
            self.daemon = start_daemon(&self.directory.0, &self.setting, self.extent.slots)?;
            self.watcher = Watcher::new(&self.setting.socket)?;
            self.begun = self.look()?;
            self.start_victims()?;
        }
        let same = (is_root() && attacker == Attacker::OtherUser).then_some(ATTACKER);
        let other = is_root().then_some(VICTIM);
        // One that may be lost is not waited for.
        let of_same = (!attack.ends_own).then_some(same);
        let users: Vec<_> = of_same.into_iter().chain(other.map(Some)).collect();
        let mut idle = self.measure(&users);
        if idle.iter().any(|seen| seen.is_err()) {
            self.start_victims()?;
            idle = self.measure(&users);
        }
        // The victim that is attacked most is of another user, if there is one.
        if let Some(victim) = self.victims.iter().find(|v| v.user == other.or(same)) {
            (self.setting.qpns, self.setting.port) = (victim.qpns, victim.port);
        }
        let before = self.look()?;
        let process = Process::start(&mut self.role(same, &["--attacker", attack.name]))?;
        let attacker = if is_root() { attacker } else { Attacker::DaemonsUser };
        let said = process.line(UNDER_WAY);
        let is_under_way = said.as_ref().is_ok_and(|line| line == "ready");
        let mut stopped = match said {
            Ok(_) if is_under_way => None,
            Ok(line) => match line.strip_prefix(COULD_NOT_RUN) {
                Some(reason) => return Ok(Row::could_not_run(attack, attacker, reason)),
                None => Some(line),
            },
            Err(_) => Some("was not under way in time".to_owned()),
        };
        self.newcomers += 1;
        let newcomer = is_root().then_some(NEWCOMERS + self.newcomers % 1000);
        let newcomer = Process::start(&mut self.role(newcomer, &["--newcomer"]))
            .map_err(|error| error.to_string());
        let attacked = self.measure(&users);
        let newcomer_refused = match newcomer.map(|newcomer| newcomer.line(SERVED)) {
            Ok(Ok(line)) => (line != "served").then_some(line),
            Ok(Err(_)) => Some("it was not answered in time".to_owned()),
            Err(error) => Some(error),
        };
        if let Ok(line) = process.line(Duration::ZERO) {
            stopped = Some(line);
        }
        let during = of_processes(self.daemon.child.id(), &USERS);
        drop(process);
        let is_daemon_up = !self.daemon.has_ended();
        let after = self.wait_until_freed(&before);
        if attack.by == By::WorkersUser {
            // A user who has made its worker useless has another when this one is gone.
            kill_worker_of(self.daemon.child.id(), ATTACKER);
        }
        let seen = users.iter().zip(idle.into_iter().zip(attacked)).map(|(user, seen)| {
            let (idle, attacked) = seen;
            (*user, Seen { idle: idle.unwrap_or_default(), attacked })
        });
        let mut seen: Vec<_> = seen.collect();
        let mut of_user = |user| {
            let at = seen.iter().position(|(of, _)| *of == user)?;
            Some(seen.swap_remove(at).1)
        };
        Ok(Row {
            attack: attack.name,
            found: attack.found,
            what: attack.what,
            attacker,
            could_not_run: None,
            is_under_way,
            stopped,
            is_daemon_up,
            newcomer_refused,
            same_user: of_user(same),
            other_user: other.and_then(|other| of_user(Some(other))),
            memory_charged: during.of_daemon - before.of_daemon,
            left: after.map(|after| after.minus(&before)),
        })
    }

    fn look(&mut self) -> Result<Resources> {
        self.watcher.look(self.daemon.child.id(), &USERS)
    }

    /// What there is when nothing is left of an attacker, or when the daemon has had the time to
    /// free it; `None` if it does not say.
    fn wait_until_freed(&mut self, before: &Resources) -> Option<Resources> {
        let begun = Instant::now();
        loop {
            let after = self.look().ok()?;
            if after.minus(before).is_nothing() || begun.elapsed() > FREED {
                return Some(after);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends all victims. Returns what is left then beyond what there was before the first attack:
    /// nothing, and no worker.
    ///
    /// # Errors
    /// If the daemon does not say, or has ended.
    pub fn finish(mut self) -> Result<(Resources, usize)> {
        self.victims.clear();
        let begun = Instant::now();
        loop {
            let workers = workers_of(self.daemon.child.id()).len();
            let left = self.look()?.minus(&self.begun);
            if workers == 0 && left.is_nothing() || begun.elapsed() > FREED {
                return Ok((left, workers));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the daemon has said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(log(&self.directory.0)).unwrap_or_default()
    }
}

/// The users whose workers are looked at.
const USERS: [u32; 2] = [ATTACKER, VICTIM];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn log(directory: &Path) -> PathBuf {
    directory.join("urxed.log")
}

fn start_daemon(directory: &Path, setting: &Setting, slots: Option<usize>) -> Result<Process> {
    let said = File::options().create(true).append(true).open(log(directory))?;
    let mut command = Command::new(directory.join("urxed"));
    command.args(["--mode", "666", "--socket"]).arg(&setting.socket);
    for addr in setting.addrs {
        command.arg("--addr").arg(addr.to_string());
    }
    if let Some(slots) = slots {
        command.arg("--slots").arg(slots.to_string());
    }
    let daemon = Process::start(command.stderr(said))?;
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
