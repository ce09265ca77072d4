//! How servers and clients come to run: started by us at the device, or by a person.

use super::client::Caller;
use super::cm::{RPING, UDADDY};
use super::{Kind, Options, TCP_TIMEOUT};
use crate::device::Unavailable;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How servers come to run.
#[derive(Clone, Debug)]
pub enum Start {
    /// These words, with a program's own behind them, run it at the device: `ssh HOST`.
    Run(Vec<String>),
    /// A person starts them, each again and again. One that is not there is waited for so long.
    ByHand(Duration),
}

/// A program that we have started.
pub(super) struct Process {
    child: Child,
}

/// Starts servers, and looks after their ends.
pub(super) struct Starter {
    host: String,
    /// Where clients reach us.
    local: IpAddr,
    start: Start,
    first_port: u16,
    /// Where clients that a person starts call us.
    listeners: HashMap<u16, TcpListener>,
    /// Servers that were started.
    started: u16,
    /// Ports at which one has been met.
    met: HashSet<u16>,
    /// Until when those that were not met are waited for, since the last that was.
    wait_until: Option<Instant>,
    say: Box<dyn FnMut(&str)>,
    ending: Vec<(Process, Instant)>,
}

/// How often it is tried to connect.
const RETRY: Duration = Duration::from_millis(20);
/// How long a server may take to start, over ssh too, or to be there again.
const STARTING: Duration = Duration::from_secs(15);
/// How long one may take to end once its client is gone.
const ENDING: Duration = Duration::from_secs(2);
/// Ports that are used in turn for servers that we start.
const PORTS: u16 = 500;
/// Clients that a person starts call us at ports that begin so many after those of servers.
const CLIENTS: u16 = 20;

impl Starter {
    pub(super) fn new(options: &Options, say: Box<dyn FnMut(&str)>) -> Starter {
        Starter {
            host: options.host.clone(),
            local: options.local,
            listeners: HashMap::new(),
            start: options.start.clone(),
            first_port: options.port,
            started: 0,
            met: HashSet::new(),
            wait_until: None,
            say,
            ending: Vec::new(),
        }
    }

    pub(super) fn is_by_hand(&self) -> bool {
        matches!(self.start, Start::ByHand(_))
    }

    /// A connection to a server of this kind, which these words start but for the port.
    pub(super) fn start(
        &mut self,
        kind: &Kind,
        words: &[String],
    ) -> Result<(TcpStream, Option<Process>), Unavailable> {
        match self.start.clone() {
            Start::Run(prefix) => self.run(&prefix, words),
            Start::ByHand(wait) => Ok((self.meet(kind, words, wait)?, None)),
        }
    }

    fn run(
        &mut self,
        prefix: &[String],
        words: &[String],
    ) -> Result<(TcpStream, Option<Process>), Unavailable> {
        let port = self.first_port + self.started % PORTS;
        self.started += 1;
        let failed = |why: String| Unavailable::Failed(format!("{}: {why}", words[0]));
        let mut process = Process::run(prefix, &with_port(words, port, None))?;
        let end = Instant::now() + STARTING;
        loop {
            match connect(&self.host, port) {
                Ok(stream) => return Ok((stream, Some(process))),
                Err(error) if Instant::now() > end => {
                    process.kill();
                    return Err(failed(format!("it does not listen at {port}: {error}")));
                }
                Err(_) if process.has_ended() => {
                    return Err(failed(format!("it ended at once{}", process.last_words())));
                }
                Err(_) => sleep(RETRY),
            }
        }
    }

    fn meet(
        &mut self,
        kind: &Kind,
        words: &[String],
        wait: Duration,
    ) -> Result<TcpStream, Unavailable> {
        let port = self.first_port + kind.place();
        let known = self.met.contains(&port);
        let begin = Instant::now();
        let mut told = known;
        let end = match known {
            true => begin + STARTING,
            false => *self.wait_until.get_or_insert(begin + wait),
        };
        loop {
            match connect(&self.host, port) {
                Ok(stream) => {
                    self.met.insert(port);
                    self.wait_until = None;
                    return Ok(stream);
                }
                Err(error) if Instant::now() >= end => {
                    let line = line_of(words, port, None);
                    return Err(Unavailable::NeedsAgent(format!(
                        "no `{line}` waits at {}: {error}",
                        self.host
                    )));
                }
                Err(_) => {
                    if !told && begin.elapsed() > RETRY * 5 {
                        told = true;
                        let line = again_and_again(words, port, None);
                        let host = &self.host;
                        (self.say)(&format!("waiting for a server; start at {host}:\n  {line}"));
                    }
                    sleep(RETRY * 5);
                }
            }
        }
    }

    /// The call of a client which these words start, but for port and host. A person starts the
    /// usual ones, which have places.
    pub(super) fn be_called(
        &mut self,
        place: Option<u16>,
        words: &[String],
    ) -> Result<(TcpStream, Option<Process>), Unavailable> {
        let failed = |why: String| Unavailable::Failed(format!("{}: {why}", words[0]));
        if self.local.is_ipv6() {
            return Err(Unavailable::NeedsAgent("stock clients call over IPv4 only".into()));
        }
        let (port, wait) = match (&self.start, place) {
            (Start::ByHand(wait), Some(place)) => (self.first_port + CLIENTS + place, Some(*wait)),
            _ => (0, None),
        };
        let listener = match self.listeners.entry(port) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let listener = TcpListener::bind((self.local, port))
                    .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                    .map_err(|error| failed(format!("port {port}: {error}")))?;
                entry.insert(listener)
            }
        };
        let port = listener.local_addr().map_err(|error| failed(error.to_string()))?.port();
        let mut process = match &self.start {
            Start::Run(prefix) => {
                Some(Process::run(prefix, &with_port(words, port, Some(self.local)))?)
            }
            Start::ByHand(_) => None,
        };
        let begin = Instant::now();
        let known = self.met.contains(&port);
        let end = match wait {
            Some(wait) if !known => *self.wait_until.get_or_insert(begin + wait),
            _ => begin + STARTING,
        };
        let mut told = known || process.is_some();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    self.met.insert(port);
                    self.wait_until = None;
                    let stream = prepare(stream).map_err(|error| failed(error.to_string()))?;
                    return Ok((stream, process));
                }
                Err(_) if Instant::now() >= end => {
                    if let Some(mut process) = process {
                        process.kill();
                        return Err(failed(format!("it does not call {}:{port}", self.local)));
                    }
                    return Err(Unavailable::NeedsAgent(format!(
                        "no `{}` calls",
                        line_of(words, port, Some(self.local))
                    )));
                }
                Err(_) if process.as_mut().is_some_and(Process::has_ended) => {
                    let says = process.map_or(String::new(), Process::last_words);
                    return Err(failed(format!("it ended at once{says}")));
                }
                Err(_) => {
                    if !told && begin.elapsed() > RETRY * 5 {
                        told = true;
                        let line = again_and_again(words, port, Some(self.local));
                        let host = &self.host;
                        (self.say)(&format!("waiting for a client; start at {host}:\n  {line}"));
                    }
                    sleep(RETRY);
                }
            }
        }
    }

    /// Starts a program that is not talked with over TCP.
    ///
    /// # Errors
    /// If programs are started by a person.
    pub(super) fn run_aside(&self, words: &[String]) -> Result<Process, Unavailable> {
        match &self.start {
            Start::Run(prefix) => Process::run(prefix, words),
            Start::ByHand(_) => {
                Err(Unavailable::NeedsAgent(format!("nobody starts `{}`", words.join(" "))))
            }
        }
    }

    /// A program is not needed any more: it ends when its peer is gone.
    pub(super) fn let_go(&mut self, stream: TcpStream, process: Option<Process>) {
        let _ = stream.shutdown(Shutdown::Both);
        let now = Instant::now();
        self.ending.extend(process.map(|process| (process, now + ENDING)));
        self.reap();
    }

    /// Takes note of servers that have ended, and ends those that do not.
    pub(super) fn reap(&mut self) {
        self.ending.retain_mut(|(process, deadline)| {
            if Instant::now() > *deadline {
                process.kill();
            }
            !process.has_ended()
        });
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        while !self.ending.is_empty() {
            self.reap();
            sleep(RETRY);
        }
    }
}

impl Process {
    /// Starts a program at the device.
    fn run(prefix: &[String], words: &[String]) -> Result<Process, Unavailable> {
        let line: Vec<&String> = prefix.iter().chain(words).collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|error| Unavailable::Failed(format!("{}: {}: {error}", words[0], line[0])))?;
        Ok(Process { child })
    }

    /// How it has ended, if it has: its exit status, -1 if a signal ended it.
    pub(super) fn exit_status(&mut self) -> Option<i32> {
        let status = self.child.try_wait().ok()??;
        Some(status.code().unwrap_or(-1))
    }

    /// Asks it to end, which it can pass on to what it has started.
    pub(super) fn stop(&mut self) {
        let asked =
            !self.has_ended() && kill_process(Pid::from_child(&self.child), Signal::TERM).is_ok();
        let until = Instant::now() + ENDING;
        while asked && !self.has_ended() && Instant::now() < until {
            sleep(RETRY);
        }
        self.kill();
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it has said of errors, when it is over.
    pub(super) fn words(mut self) -> String {
        self.kill();
        let mut bytes = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(64 << 10).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it said last, in parentheses.
    pub(super) fn last_words(self) -> String {
        let text = self.words();
        match text.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
            Some(line) => format!(" ({line})"),
            None => String::new(),
        }
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut error = io::ErrorKind::NotFound.into();
    for addr in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, STARTING) {
            Ok(stream) => return prepare(stream),
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    // A server reads each word by one call, which must find all of it.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TCP_TIMEOUT))?;
    Ok(stream)
}

/// A command at a port, or one that calls this host there.
fn with_port(words: &[String], port: u16, host: Option<IpAddr>) -> Vec<String> {
    let host = host.map(|host| host.to_string());
    words.iter().cloned().chain(["-p".to_owned(), port.to_string()]).chain(host).collect()
}

/// The same as a line.
fn line_of(words: &[String], port: u16, host: Option<IpAddr>) -> String {
    with_port(words, port, host).join(" ")
}

/// A command that a shell runs again whenever it has ended.
fn again_and_again(words: &[String], port: u16, host: Option<IpAddr>) -> String {
    format!("while sleep 0.1; do {}; done", line_of(words, port, host))
}

/// A shell script that has every usual server at its port, and every usual client call us, until
/// it is interrupted.
pub(super) fn script(options: &Options) -> String {
    let mut text = String::from("trap 'kill 0' INT TERM\n");
    let keep = |text: &mut String, words: Vec<String>, port, host| {
        let line = again_and_again(&words, port, host);
        let _ = writeln!(text, "{line} >/dev/null 2>&1 &");
    };
    let (device, gid_index) = (options.device.as_deref(), options.gid_index);
    for kind in Kind::usual() {
        keep(&mut text, kind.words(device, gid_index), options.port + kind.place(), None);
    }
    for (place, caller) in (CLIENTS..).zip(Caller::usual()) {
        keep(&mut text, caller.words(device, gid_index), options.port + place, Some(options.local));
    }
    if let Some(port) = options.services.accepts {
        keep(&mut text, RPING.map(str::to_owned).to_vec(), port, None);
    }
    if options.services.datagrams.is_some() {
        let udaddy = UDADDY.join(" ");
        let _ = writeln!(text, "while sleep 0.1; do {udaddy}; done >/dev/null 2>&1 &");
    }
    text + "wait\n"
}
