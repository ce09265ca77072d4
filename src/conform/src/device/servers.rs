//! A device through programs that need no set-up of ours: servers and clients of perftest and of
//! libibverbs' examples.
//!
//! A client of theirs tells its QPs over TCP and is told the server's. The tester does so for QPs
//! that it then speaks for, and leaves the servers waiting for the client's next word: they are
//! connected, have memory or receives, and do nothing by themselves. Each QP is used for one check,
//! which may destroy it. When all of a server are used it is let go, and another one is started.
//!
//! For a check of its requester a client calls us, is told a QP of ours, and works; it serves for
//! that check alone.
//!
//! | module | |
//! | --- | --- |
//! | `client` | which client does what a check wants, and how it ends |
//! | `cm` | programs for the connection manager |
//! | `kind` | which server has what a check wants |
//! | `perftest`, `pingpong` | what is said over TCP |
//! | `start` | how they come to run |

mod client;
mod cm;
mod kind;
mod perftest;
mod pingpong;
mod start;

pub use kind::Kind;
pub use start::Start;

use super::{Client, Device, OurEnd, RemoteMemory, Services, Setup, TheirEnd, Unavailable, Work};
use crate::agent::Agent;
use client::{Call, Caller};
use cm::Listeners;
use kind::Program;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use start::{Process, Starter};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

/// How long a server may take for an answer over TCP.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// How often in a row a server is started in vain.
const MOST_STARTS: u32 = 3;
/// How many entries of a device's GID table are tried.
const GID_INDICES: u8 = 16;

/// Where the servers are, and how they are started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where they are reached over TCP: a name or an address.
    pub host: String,
    /// The device's RoCE address.
    pub addr: IpAddr,
    /// The tester's RoCE address.
    pub local: IpAddr,
    /// How they come to run.
    pub start: Start,
    /// The first of the TCP ports that they listen at.
    pub port: u16,
    /// The name of the device that they use, if not the first.
    pub device: Option<String>,
    /// Which of the device's GIDs they use, if that is not to be found out.
    pub gid_index: Option<u8>,
    /// The tester's QPs follow from it.
    pub seed: u64,
    /// Programs that wait to be connected to, which somebody has started.
    pub services: Services,
}

/// A device through such servers.
pub struct Servers {
    options: Options,
    starter: Starter,
    running: Vec<Server>,
    /// The client of this check.
    call: Option<Call>,
    /// Who connects by the connection manager in this check.
    connecting: Option<Process>,
    listeners: Listeners,
    /// What there is none of, and why; and how often it was looked for.
    missing: HashMap<Kind, (Unavailable, u32)>,
    /// First PSNs that checks have asked for.
    psns: BTreeSet<u32>,
    rng: Xoshiro256PlusPlus,
    gid_index: Option<u8>,
}

/// A server that waits for its client's next word.
struct Server {
    kind: Kind,
    stream: TcpStream,
    process: Option<Process>,
    unused: Vec<Pair>,
}

/// A QP of a server, and ours that it is connected with.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ours: OurEnd,
    theirs: TheirEnd,
}

/// What a server says of itself.
struct Greeting {
    pairs: Vec<Pair>,
    /// The RoCE address that it sends from.
    addr: IpAddr,
}

/// Why a server could not be talked with.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Tcp(#[from] io::Error),
    #[error("it says {0:?}, which is not what such a server says")]
    Unintelligible(String),
    #[error("its path MTU is {0} bytes at most")]
    SmallMtu(usize),
}

impl Servers {
    /// Nothing is started yet. `say` tells a person what to do, where that is needed.
    pub fn new(options: Options, say: impl FnMut(&str) + 'static) -> Servers {
        let starter = Starter::new(&options, Box::new(say));
        Servers {
            starter,
            running: Vec::new(),
            call: None,
            connecting: None,
            listeners: Listeners::default(),
            missing: HashMap::new(),
            psns: BTreeSet::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(options.seed),
            gid_index: options.gid_index,
            options,
        }
    }

    /// The commands that a person starts at the device, each at its port, in loops of a shell.
    pub fn script(options: &Options) -> String {
        start::script(options)
    }

    /// A client that will do this work, its QP and ours.
    fn be_called(&mut self, setup: &Setup, work: Work, ours: &OurEnd) -> Result<Pair, Unavailable> {
        self.end_call();
        let caller = Caller::of(setup, work, !self.starter.is_by_hand())?;
        let (pair, call) = caller.take(&mut self.starter, &self.options, ours)?;
        self.call = Some(call);
        Ok(pair)
    }

    fn end_call(&mut self) {
        if let Some(call) = self.call.take() {
            call.let_go(&mut self.starter);
        }
        if let Some(mut process) = self.connecting.take() {
            process.stop();
        }
    }

    /// A pair of QPs of this kind, with this first PSN of ours if it matters.
    fn take(&mut self, kind: &Kind, psn: Option<u32>) -> Result<Pair, Unavailable> {
        if let Some(psn) = psn {
            self.psns.insert(psn & 0xff_ffff);
        }
        for _ in 0..2 {
            let found = self.running.iter().position(|server| server.kind == *kind);
            let at = match found {
                Some(at) if self.running[at].is_there() => at,
                _ => self.open(kind, psn)?,
            };
            if let Some(pair) = self.running[at].take(psn, &self.psns) {
                return Ok(pair);
            }
            let used_up = self.running.remove(at);
            self.starter.let_go(used_up.stream, used_up.process);
        }
        Err(Unavailable::Failed(format!("{} had no QP", kind.program())))
    }

    /// Starts a server of this kind, and returns its place.
    fn open(&mut self, kind: &Kind, psn: Option<u32>) -> Result<usize, Unavailable> {
        if let Some((reason, times)) = self.missing.get(kind) {
            let may_be_late = matches!(reason, Unavailable::Failed(_));
            if !may_be_late || *times >= MOST_STARTS {
                return Err(reason.clone());
            }
        }
        // A server that a person has started is there for one client at a time.
        let by_hand = self.starter.is_by_hand();
        let in_its_place = |server: &Server| {
            server.kind == *kind || by_hand && server.kind.place() == kind.place()
        };
        while let Some(at) = self.running.iter().position(in_its_place) {
            let server = self.running.remove(at);
            self.starter.let_go(server.stream, server.process);
        }
        let opened = match kind.program() {
            Program::PingPong => self.open_pingpong(kind, psn),
            _ => self.open_perftest(kind, psn),
        };
        match opened {
            Ok(server) => {
                self.missing.remove(kind);
                self.running.push(server);
                Ok(self.running.len() - 1)
            }
            Err(reason) => {
                let (last, times) = self.missing.entry(kind.clone()).or_insert((reason.clone(), 0));
                *last = reason.clone();
                *times += 1;
                Err(reason)
            }
        }
    }

    fn open_perftest(&mut self, kind: &Kind, psn: Option<u32>) -> Result<Server, Unavailable> {
        let words = kind.words(self.options.device.as_deref(), self.options.gid_index);
        let ours = self.ends(kind.qps(), psn);
        let (stream, process) = self.starter.start(kind, &words)?;
        let greeting = perftest::greet(&stream, kind, &ours);
        self.server(kind, stream, process, greeting)
    }

    /// These servers use a GID by its index, which nothing tells: the one with the device's address
    /// is looked for.
    fn open_pingpong(&mut self, kind: &Kind, psn: Option<u32>) -> Result<Server, Unavailable> {
        let indices = match self.gid_index {
            Some(index) => index..index + 1,
            None => 0..GID_INDICES,
        };
        let mut reason = Unavailable::Failed("no GID index to try".into());
        for index in indices {
            let words = kind.words(self.options.device.as_deref(), Some(index));
            let ours = self.ends(1, psn);
            let (stream, process) = match self.starter.start(kind, &words) {
                Ok(started) => started,
                Err(error) => {
                    reason = error;
                    continue;
                }
            };
            let greeting = pingpong::greet(&stream, &ours[0]);
            match greeting {
                Ok(greeting) if greeting.addr != self.options.addr => {
                    reason = Unavailable::Failed(format!(
                        "no GID of the device is {}; --gid-index names one",
                        self.options.addr
                    ));
                    self.starter.let_go(stream, process);
                }
                greeting => {
                    let server = self.server(kind, stream, process, greeting)?;
                    self.gid_index = Some(index);
                    return Ok(server);
                }
            }
        }
        Err(reason)
    }

    fn server(
        &mut self,
        kind: &Kind,
        stream: TcpStream,
        process: Option<Process>,
        greeting: Result<Greeting, Refusal>,
    ) -> Result<Server, Unavailable> {
        let refusal = match greeting {
            Ok(Greeting { pairs, addr }) if addr == self.options.addr => {
                return Ok(Server { kind: kind.clone(), stream, process, unused: pairs });
            }
            Ok(Greeting { addr, .. }) => {
                let wanted = self.options.addr;
                let reason = format!("{} sends from {addr}, not {wanted}", kind.program());
                self.starter.let_go(stream, process);
                return Err(Unavailable::Failed(reason));
            }
            Err(refusal) => refusal,
        };
        let says = process.map_or(String::new(), |process| process.last_words());
        let reason = format!("{}: {refusal}{says}", kind.program());
        Err(match refusal {
            Refusal::SmallMtu(_) => Unavailable::NotSupported(reason),
            _ => Unavailable::Failed(reason),
        })
    }

    /// So many QPs of ours. Some have the first PSNs that checks have asked for, `psn` among them.
    fn ends(&mut self, count: usize, psn: Option<u32>) -> Vec<OurEnd> {
        let psn = psn.map(|psn| psn & 0xff_ffff);
        let others = self.psns.iter().copied().filter(|other| Some(*other) != psn);
        let psns: Vec<u32> = psn.into_iter().chain(others).collect();
        let special = (3 * psns.len()).min(count / 2).max(usize::from(psn.is_some()));
        let mut ends = Vec::with_capacity(count);
        while ends.len() < count {
            // 0 and 1 are special; small ones are easy to take for something else.
            let qpn = self.rng.next_u32() & 0xff_ffff | 0x100;
            if ends.iter().any(|other: &OurEnd| other.qpn == qpn) {
                continue;
            }
            let psn = match ends.len() {
                at if at < special => psns[at % psns.len()],
                _ => self.rng.next_u32() & 0xff_ffff,
            };
            ends.push(OurEnd { addr: self.options.local, qpn, psn });
        }
        ends
    }
}

impl Server {
    /// Whether the server still waits.
    fn is_there(&self) -> bool {
        let mut byte = [0];
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let peeked = self.stream.peek(&mut byte);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// A pair with this PSN, or any but those that are kept for checks that need theirs.
    fn take(&mut self, psn: Option<u32>, kept: &BTreeSet<u32>) -> Option<Pair> {
        let at = self.unused.iter().position(|pair| match psn {
            Some(psn) => pair.ours.psn == psn & 0xff_ffff,
            None => !kept.contains(&pair.ours.psn),
        });
        let at = match (at, psn) {
            (None, None) if !self.unused.is_empty() => 0,
            (at, _) => at?,
        };
        Some(self.unused.swap_remove(at))
    }
}

impl Device for Servers {
    fn describe(&self) -> String {
        format!("{}, by programs of perftest at {}", self.options.addr, self.options.host)
    }

    fn addr(&self) -> IpAddr {
        self.options.addr
    }

    fn connect(&mut self, setup: &Setup, ours: &mut OurEnd) -> Result<TheirEnd, Unavailable> {
        let Pair { ours: told, theirs } = match setup.work {
            Some(work) => self.be_called(setup, work, ours)?,
            None => {
                let kind = Kind::of(setup, !self.starter.is_by_hand())?;
                self.take(&kind, setup.our_psn)?
            }
        };
        *ours = told;
        let memory = theirs.memory.filter(|_| setup.memory > 0);
        Ok(TheirEnd { memory, ..theirs })
    }

    fn agent(&mut self) -> Option<&mut dyn Agent> {
        None
    }

    fn client(&mut self) -> Option<&mut dyn Client> {
        self.call.as_mut().map(|call| call as &mut dyn Client)
    }

    fn services(&mut self) -> Services {
        self.listeners.services(&self.options, &self.starter)
    }

    fn call_us(&mut self, port: u16) -> Result<(), Unavailable> {
        self.connecting = Some(cm::call(&self.options, &self.starter, port)?);
        Ok(())
    }

    fn end_check(&mut self) {
        self.end_call();
        self.starter.reap();
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end_call();
        for server in self.running.drain(..) {
            self.starter.let_go(server.stream, server.process);
        }
    }
}

#[cfg(test)]
mod tests;
