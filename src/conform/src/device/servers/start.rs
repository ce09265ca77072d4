//! How servers come to run: started by us at the device, or by a person.

use super::{Kind, Options, TCP_TIMEOUT};
use crate::device::Unavailable;
use std::collections::HashSet;
use std::fmt::Write;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
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

/// A server that we have started.
pub(super) struct Process {
    child: Child,
}

/// Starts servers, and looks after their ends.
pub(super) struct Starter {
    host: String,
    start: Start,
    first_port: u16,
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

impl Starter {
    pub(super) fn new(options: &Options, say: Box<dyn FnMut(&str)>) -> Starter {
        Starter {
            host: options.host.clone(),
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
        let line: Vec<&String> = prefix.iter().chain(words).collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).arg("-p").arg(port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let failed = |why: String| Unavailable::Failed(format!("{}: {why}", words[0]));
        let child = command.spawn().map_err(|error| failed(format!("{}: {error}", line[0])))?;
        let mut process = Process { child };
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
                    let line = words.join(" ");
                    return Err(Unavailable::NeedsAgent(format!(
                        "no `{line} -p {port}` waits at {}: {error}",
                        self.host
                    )));
                }
                Err(_) => {
                    if !told && begin.elapsed() > RETRY * 5 {
                        told = true;
                        let line = again_and_again(words, port);
                        let host = &self.host;
                        (self.say)(&format!("waiting for a server; start at {host}:\n  {line}"));
                    }
                    sleep(RETRY * 5);
                }
            }
        }
    }

    /// A server is not needed any more: it ends when its client is gone.
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
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it said last, in parentheses.
    pub(super) fn last_words(mut self) -> String {
        self.kill();
        let mut bytes = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(64 << 10).read_to_end(&mut bytes);
        }
        let text = String::from_utf8_lossy(&bytes);
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

/// A command that a shell runs again whenever it has ended.
fn again_and_again(words: &[String], port: u16) -> String {
    format!("while sleep 0.1; do {} -p {port}; done", words.join(" "))
}

/// A shell script that has every usual server at its port, until it is interrupted.
pub(super) fn script(options: &Options) -> String {
    let mut text = String::from("trap 'kill 0' INT TERM\n");
    for kind in Kind::usual() {
        let words = kind.words(options.device.as_deref(), options.gid_index);
        let line = again_and_again(&words, options.port + kind.place());
        let _ = writeln!(text, "{line} >/dev/null 2>&1 &");
    }
    text + "wait\n"
}
