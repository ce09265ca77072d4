//! The daemon that a program will use: one that runs, or one that is started for it.

use super::{absolute, address, library};
use crate::asking::{ANSWER_TIMEOUT, Asked};
use crate::daemon::{last_words, ourselves};
use crate::output;
use crate::roce_port::{self, Owner, PortState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_daemon::Wire;
use urxe_shm::client::LOWEST_DESCRIPTOR;
use urxe_shm::control::channel::Channel;
use urxe_verbs::{Context, DeviceInfo, OpenOptions};

/// How long a daemon that we start stays after its last program, in seconds.
const LINGER: u32 = 10;

/// The same of one that records packets for that program.
const LINGER_WITH_CAPTURE: u32 = 1;

/// How long a daemon may take to start, or another `urxe run` to start one.
const WAIT: Duration = Duration::from_secs(10);

/// How long one that ends may still take connections.
const ENDING: Duration = Duration::from_secs(1);

/// Why there is no daemon for the program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoDaemon {
    #[error("no daemon answers at {}; `urxe run` without --daemon starts one", .0.display())]
    Silent(PathBuf),
    #[error("the daemon at {} cannot be used: {reason}", .socket.display())]
    Refused { socket: PathBuf, reason: String },
    #[error(
        "the daemon at {} is not for this user: its socket has owner {owner}, group {group} and \
         mode {mode:o}; who is in that group may use it where the mode says so (`urxed --mode`)",
        .socket.display()
    )]
    Forbidden { socket: PathBuf, owner: u32, group: u32, mode: u32 },
    #[error(
        "no daemon runs, and UDP port 4791 of {addr} is taken, and so is that of all loopback \
         addresses that were tried: {owner} has it{}. End that program, or share one daemon: where \
         root runs `urxed --addr {addr} --mode 666`, programs of all users find it",
        if .owner.everywhere { " on every address" } else { "" }
    )]
    NoFreeAddress { addr: IpAddr, owner: Owner },
    #[error("no daemon runs, and one for {addr} did not start: {reason}")]
    NotStarted { addr: IpAddr, reason: String },
    #[error(
        "{}: {source}; a daemon's socket and log would be there, unless URXE_SOCKET names another \
         place", .path.display()
    )]
    System { path: PathBuf, source: io::Error },
}

/// A daemon that answers.
#[derive(Debug)]
pub(super) struct Daemon {
    socket: PathBuf,
    /// While it is open, the daemon has somebody to stay for.
    hold: Channel,
    devices: Vec<DeviceInfo>,
}

impl Daemon {
    /// The daemon at a socket, if one takes connections there.
    ///
    /// One that says nothing is waited for: between two daemons of a service programs wait for the
    /// next.
    fn at(socket: &Path) -> Result<Option<Daemon>, NoDaemon> {
        let socket = absolute(socket);
        let place = socket.clone();
        let asked = Asked::begin(move || ask(&place)).within(ANSWER_TIMEOUT);
        let answer = asked.unwrap_or_else(|asked| {
            asked.say_and_wait("run", &format!("the daemon at {}", socket.display()))
        });
        match answer {
            Ok(found) => Ok(found.map(|(hold, devices)| Daemon { socket, hold, devices })),
            Err(error) => {
                let advice = match error {
                    urxe_verbs::Error::Protocol(_) => {
                        "; a daemon and its programs are of one version: restart it as that of \
                         this urxe"
                    }
                    _ => "",
                };
                Err(NoDaemon::Refused { socket, reason: format!("{error}{advice}") })
            }
        }
    }

    /// Where programs connect to it.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether there is a device of this name with this address, as far as they are given.
    fn has_device(&self, addr: Option<IpAddr>, name: Option<&str>) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|device| {
            name.is_none_or(|name| device.name == name)
                && addr.is_none_or(|addr| self.has_address(device, addr))
        })
    }

    fn has_address(&self, device: &DeviceInfo, addr: IpAddr) -> bool {
        let options = OpenOptions::new().socket(&self.socket).device(&device.name);
        let gids = Context::open(&options).and_then(|context| context.gids(1));
        gids.is_ok_and(|gids| gids.iter().any(|&(_, gid)| gid.to_canonical() == addr))
    }

    /// Says that it was started, and, if it is not where one would expect it, why.
    fn announce(&self, wanted: &Wanted<'_>, addr: IpAddr, why: &str) {
        let seconds = match wanted.linger() {
            1 => "a second".to_owned(),
            seconds => format!("{seconds} seconds"),
        };
        let device = self.devices.first().map_or("no device", |device| &device.name);
        output::note(format_args!(
            "urxe run: started a daemon with {device} on {addr}{why}; it ends {seconds} after \
             its last program"
        ));
    }

    /// Leaves a connection to the program that this process becomes, and to its children: while
    /// one of them lives the daemon does, however late they open a device.
    pub(super) fn hold_for_ever(&self) {
        let high = fcntl_dupfd_cloexec(&self.hold, LOWEST_DESCRIPTOR);
        let hold = high.or_else(|_| fcntl_dupfd_cloexec(&self.hold, 0));
        // Without it the program has the daemon's linger time to open a device.
        if let Ok(hold) = hold {
            let _ = fcntl_setfd(&hold, FdFlags::empty());
            let _ = hold.into_raw_fd();
        }
    }
}

/// Connects to a daemon, if there is one, and asks for its devices.
fn ask(socket: &Path) -> Result<Option<(Channel, Vec<DeviceInfo>)>, urxe_verbs::Error> {
    let deadline = Instant::now() + ENDING;
    loop {
        let Ok(hold) = Channel::connect(socket) else { return Ok(None) };
        // It answers this after it has seen the other connection, so it does not end in between.
        match urxe_verbs::devices(&OpenOptions::new().socket(socket)) {
            Ok(devices) => return Ok(Some((hold, devices))),
            Err(urxe_verbs::Error::Connect(_)) => return Ok(None),
            // It ends just now, or turns us away.
            Err(urxe_verbs::Error::DaemonGone { .. }) if Instant::now() < deadline => {
                sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
        }
    }
}

/// The daemon at a socket, which must be running.
pub(super) fn find(socket: &Path) -> Result<Daemon, NoDaemon> {
    Daemon::at(socket)?.ok_or_else(|| {
        let socket = absolute(socket);
        let is_forbidden =
            Channel::connect(&socket).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        match socket.metadata().ok().filter(|_| is_forbidden) {
            Some(found) => {
                let (owner, group, mode) = (found.uid(), found.gid(), found.mode() & 0o777);
                NoDaemon::Forbidden { socket, owner, group, mode }
            }
            None => NoDaemon::Silent(socket),
        }
    })
}

/// What a daemon is to be like, as far as that is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// It has a device on this address.
    pub(super) addr: Option<IpAddr>,
    /// It has a device of this name.
    pub(super) name: Option<&'a str>,
    /// How RC messages become packets.
    pub(super) wire: Option<Wire>,
    /// What it does to packets.
    pub(super) fault: Option<&'a str>,
    /// The file that it records packets in, whatever directory we are in.
    pub(super) capture: Option<&'a Path>,
}

impl Wanted<'_> {
    /// The first that is given: its option and value.
    pub(super) fn first(&self) -> Option<(&'static str, String)> {
        let addr = self.addr.map(|addr| ("addr", addr.to_string()));
        let name = self.name.map(|name| ("name", name.to_owned()));
        let wire = self.wire.map(|wire| ("wire", wire.to_string()));
        let fault = self.fault.map(|fault| ("fault", fault.to_owned()));
        let capture = self.capture.map(|file| ("capture", file.display().to_string()));
        addr.or(name).or(wire).or(fault).or(capture)
    }

    /// Whether one that was started for something else may be like this, as far as it can be asked.
    fn may_be_found(&self) -> bool {
        self.wire.is_none() && self.fault.is_none() && self.capture.is_none()
    }

    /// How long one that is started stays after its last program, in seconds. A capture is whole
    /// when it has ended.
    fn linger(&self) -> u32 {
        if self.capture.is_some() { LINGER_WITH_CAPTURE } else { LINGER }
    }

    /// Where one is that was started for just this, in place of the usual one at `own`.
    fn socket(&self, own: &Path, addr: IpAddr) -> PathBuf {
        let mut file = format!("urxed-{addr}");
        if let Some(name) = self.name {
            // A name that no device can have is the daemon's to refuse, and no part of a path.
            file.extend(["-", &name.replace('/', "_")]);
        }
        if let Some(wire) = self.wire {
            file.extend(["-wire-", &wire.to_string()]);
        }
        if self.fault.is_some() || self.capture.is_some() {
            // Both may be longer than the path of a socket can be.
            let mut hasher = DefaultHasher::new();
            (self.fault, self.capture).hash(&mut hasher);
            file += &format!("-{:016x}", hasher.finish());
        }
        own.with_file_name(file + ".sock")
    }
}

/// A daemon that runs and is as wanted; else one that is started.
pub(super) fn find_or_start(wanted: &Wanted<'_>) -> Result<Daemon, NoDaemon> {
    let own = absolute(&urxe_shm::socket_path());
    let addr = wanted.addr.unwrap_or_else(address::choose);
    let special = wanted.socket(&own, addr);
    // Where one is started.
    let place = if wanted.first().is_some() { &special } else { &own };
    if let Found::Daemon(daemon) = look(wanted, &special, place)? {
        return Ok(daemon);
    }
    let _lock = lock_directory(&own)?;
    // Another `urxe run` may have started one while we waited.
    match look(wanted, &special, place)? {
        Found::Daemon(daemon) => Ok(daemon),
        Found::None { passed_over } => {
            for refused in passed_over {
                output::note(format_args!("urxe run: {refused}; going on without it"));
            }
            match wanted.addr {
                Some(_) => {
                    let daemon = start(addr, wanted, place)?;
                    daemon.announce(wanted, addr, "");
                    Ok(daemon)
                }
                None => start_anywhere(addr, wanted, place),
            }
        }
    }
}

/// What is found where daemons are looked for.
enum Found {
    Daemon(Daemon),
    /// None that is as wanted, and these that cannot be used.
    None {
        passed_over: Vec<NoDaemon>,
    },
}

/// Looks for a daemon that is as wanted: at the usual sockets, then where one is that was started
/// for just this. It is an error if one has the `place` of the one to be started, and cannot be
/// used.
fn look(wanted: &Wanted<'_>, special: &Path, place: &Path) -> Result<Found, NoDaemon> {
    let usual = if wanted.may_be_found() { urxe_shm::daemon_sockets() } else { Vec::new() };
    let sockets = usual.iter().map(|socket| absolute(socket)).chain([special.to_owned()]);
    let mut passed_over = Vec::new();
    for socket in sockets {
        match Daemon::at(&socket) {
            Ok(Some(daemon))
                if socket == special || daemon.has_device(wanted.addr, wanted.name) =>
            {
                return Ok(Found::Daemon(daemon));
            }
            Ok(_) => {}
            Err(refused) if socket == place => return Err(refused),
            Err(refused) => passed_over.push(refused),
        }
    }
    Ok(Found::None { passed_over })
}

/// Starts a daemon on this address, or, if another socket has its port, on a loopback address.
fn start_anywhere(addr: IpAddr, wanted: &Wanted<'_>, socket: &Path) -> Result<Daemon, NoDaemon> {
    let PortState::Taken(owner) = roce_port::state(addr) else {
        let daemon = start(addr, wanted, socket)?;
        daemon.announce(wanted, addr, "");
        return Ok(daemon);
    };
    let Some(loopback) = address::free_loopback() else {
        return Err(NoDaemon::NoFreeAddress { addr, owner });
    };
    let daemon = start(loopback, wanted, socket)?;
    let why = format!(
        " because {owner} has UDP port 4791 of {addr}; only programs of this machine reach it"
    );
    daemon.announce(wanted, loopback, &why);
    Ok(daemon)
}

/// Keeps other `urxe run` from starting daemons for the same sockets, as long as it is open.
fn lock_directory(socket: &Path) -> Result<File, NoDaemon> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    urxe_shm::make_socket_directory(socket).map_err(system(directory))?;
    let file = File::open(directory).map_err(system(directory))?;
    let deadline = Instant::now() + WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(Duration::from_millis(5)),
            Err(errno) => return Err(system(directory)(errno.into())),
        }
    }
}

/// Starts a daemon that ends by itself after its last program, and waits until it is ready.
fn start(addr: IpAddr, wanted: &Wanted<'_>, socket: &Path) -> Result<Daemon, NoDaemon> {
    let refused = |reason| NoDaemon::NotStarted { addr, reason };
    let log = socket.with_extension("log");
    let flags =
        OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let log_file = rustix::fs::open(&log, flags, Mode::RUSR | Mode::WUSR);
    let log_file = log_file.map_err(|errno| system(&log)(errno.into()))?;
    let mut command = ourselves("daemon");
    command.args(["--detach", "--ready-fd", "1", "--linger", &wanted.linger().to_string()]);
    command.arg("--addr").arg(addr.to_string()).arg("--socket").arg(socket);
    command.args(wanted.name.map(|name| format!("--name={name}")));
    command.args(wanted.wire.map(|wire| format!("--wire={wire}")));
    command.args(wanted.fault.map(|fault| format!("--fault={fault}")));
    if let Some(file) = wanted.capture {
        command.arg("--capture").arg(file);
    }
    // This process may itself be one that was started by `urxe run`.
    library::forget(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    let mut starter = command.spawn().map_err(|error| refused(error.to_string()))?;
    let said = starter.stdout.take().map_or(Said::Nothing, |pipe| says_a_line(pipe, WAIT));
    // The daemon is no child of ours, and so none of the program that we become.
    let _ = starter.wait();
    match said {
        Said::Line => {}
        Said::Nothing => return Err(refused(last_words(&log))),
        Said::NothingYet => {
            let (seconds, log) = (WAIT.as_secs(), log.display());
            return Err(refused(format!(
                "it was not ready within {seconds} seconds; its log is {log}"
            )));
        }
    }
    let ended = || refused(format!("it ended at once; its log is {}", log.display()));
    Daemon::at(socket)?.ok_or_else(ended)
}

/// What came through a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Line,
    /// It was closed before.
    Nothing,
    /// The time was over before.
    NothingYet,
}

/// Whether a line comes through a pipe before it is closed or the time is over.
fn says_a_line(mut pipe: impl Read + AsFd, wait: Duration) -> Said {
    let deadline = Instant::now() + wait;
    let mut byte = [0];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left)) {
            Ok(1..) => {}
            Err(Errno::INTR) => continue,
            Ok(0) => return Said::NothingYet,
            Err(_) => return Said::Nothing,
        }
        match pipe.read(&mut byte) {
            Ok(0) | Err(_) => return Said::Nothing,
            Ok(_) if byte == *b"\n" => return Said::Line,
            Ok(_) => {}
        }
    }
}

/// For `map_err`: the system refuses something about a file.
fn system(path: &Path) -> impl FnOnce(io::Error) -> NoDaemon + use<> {
    let path = path.to_owned();
    move |source| NoDaemon::System { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;
    use std::sync::mpsc;
    use std::thread;
    use urxe_shm::control::channel::Listener;

    #[test]
    fn only_where_nobody_takes_connections_there_is_no_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("urxed.sock");
        assert!(matches!(Daemon::at(&socket), Ok(None)));
        let listener = Listener::bind(&socket, 0o600).unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            let mut programs = Vec::new();
            while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                if let Some(program) = listener.accept().unwrap() {
                    // A message of protocol version 9.
                    rustix::net::send(&program, b"ux\x09\0", SendFlags::empty()).unwrap();
                    programs.push(program);
                }
                sleep(Duration::from_millis(1));
            }
        });
        let refused = Daemon::at(&socket).unwrap_err().to_string();
        for part in ["urxed.sock cannot be used", "protocol version 9", "restart it"] {
            assert!(refused.contains(part), "{refused}");
        }
        let wanted = Wanted { addr: None, name: None, wire: None, fault: None, capture: None };
        let nobody = directory.path().join("nobody.sock");
        let special = |place| look(&wanted, &socket, place);
        assert!(special(&socket).is_err(), "none can be started there");
        assert!(
            matches!(special(&nobody), Ok(Found::None { passed_over }) if !passed_over.is_empty())
        );
        drop(stop);
        other.join().unwrap();
    }

    #[test]
    fn a_pipe_that_is_closed_is_told_from_one_through_which_nothing_comes() {
        let pipe = || {
            let (read, write) = rustix::pipe::pipe().unwrap();
            (File::from(read), File::from(write))
        };
        let wait = Duration::from_millis(1);
        let (read, write) = pipe();
        assert_eq!(says_a_line(read, wait), Said::NothingYet);
        drop(write);
        let (read, write) = pipe();
        rustix::io::write(&write, b"ready\n").unwrap();
        assert_eq!(says_a_line(read, wait), Said::Line);
        let (read, _) = pipe();
        assert_eq!(says_a_line(read, wait), Said::Nothing);
    }
}
