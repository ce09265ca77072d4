//! Attacks on a live daemon, each with victims beside it.
//!
//! | module | |
//! | --- | --- |
//! | [`found`] | what attacks have achieved once, and which attack repeats it now |
//! | `sessions`, `descriptors`, `memory` | what a program does that may open the socket |
//! | `queues`, `traffic`, `managers` | the same, with verbs |
//! | `workers` | what a user does with the process that serves its programs |
//! | `strangers` | what anybody does who can send packets |
//! | [`victim`] | the program beside it, whose small WRITEs are measured |
//! | [`testbed`] | the daemon, the processes of all |
//! | [`resources`] | what the daemon has, as it is seen from outside |
//! | [`table`] | what came of it, and which of that is known |
//!
//! `cargo xtask attack` makes them all.

mod descriptors;
pub mod found;
mod fuse;
mod managers;
mod memory;
mod program;
mod queues;
pub mod resources;
mod sessions;
mod strangers;
pub mod table;
pub mod testbed;
mod traffic;
pub mod victim;
mod workers;

use program::Program;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Whatever went wrong: an attack only says that it did.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What an attack needs and this machine lacks: no attacker of this user can make it here.
#[derive(Debug)]
pub struct Lacking(String);

/// What a [`Lacking`] is shown as begins so, by which its attacker is told from one that failed.
const COULD_NOT_RUN: &str = "could not run: ";

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{COULD_NOT_RUN}{}", self.0)
    }
}

impl std::error::Error for Lacking {}

/// The multicast group in which victims have a QP.
const VICTIMS_GROUP: Ipv4Addr = Ipv4Addr::new(239, 7, 7, 8);

/// What an attacker knows.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The addresses of its two devices.
    pub addrs: [IpAddr; 2],
    /// The QPs of the victim of another user, or of the only one; one on each device.
    pub qpns: [u32; 2],
    /// The port at which that victim listens.
    pub port: u16,
    /// Everything smaller, so that a round is soon over.
    pub is_short: bool,
    /// This process has a mount namespace of its own.
    pub is_unshared: bool,
}

impl Setting {
    /// A number of things: the second where all shall be soon over.
    fn many(&self, long: usize, short: usize) -> usize {
        if self.is_short { short } else { long }
    }

    /// This program, told what this setting is.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("--socket").arg(&self.socket).arg("--port").arg(self.port.to_string());
        for addr in self.addrs {
            command.arg("--addr").arg(addr.to_string());
        }
        for qpn in self.qpns {
            command.arg("--qpn").arg(qpn.to_string());
        }
        if self.is_short {
            command.arg("--short");
        }
        command
    }

    /// An attacker of this user.
    fn attacker(&self, attack: &str) -> Command {
        let mut command = self.command(&self.socket.with_file_name("attack"));
        command.args(["--attacker", attack]);
        command
    }

    /// Another process of this user, which attacks in another way. It ends with this one.
    fn other_attacker(&self, attack: &str) -> Command {
        let mut command = self.attacker(attack);
        command.args(["--parent", &std::process::id().to_string()]);
        command.stdout(std::process::Stdio::null());
        command
    }
}

/// An attack, which goes on until its process is ended.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// What it is called.
    pub name: &'static str,
    /// What is done, in a sentence without its subject.
    pub what: &'static str,
    /// What of [`found::FOUND`] it repeats; `None` if it never achieved anything.
    pub found: Option<&'static str>,
    /// Who can make it.
    pub by: By,
    /// It stops or ends what serves its own user's programs, and may: a victim of the same user is
    /// lost.
    pub ends_own: bool,
    /// Makes it. It says when it is under way; what it returns is why it cannot go on, or
    /// [`Lacking`], why it cannot be made here.
    pub run: Run,
}

type Run = fn(&Setting, ready: &mut dyn FnMut()) -> Result;

/// Who can make an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A program of anybody who may open the socket.
    Program,
    /// A user who has a worker.
    WorkersUser,
    /// Anybody who can send packets.
    Stranger,
}

impl Attack {
    const fn new(name: &'static str, run: Run, what: &'static str) -> Attack {
        Attack { name, what, found: None, by: By::Program, ends_own: false, run }
    }

    const fn found(self, id: &'static str) -> Attack {
        Attack { found: Some(id), ..self }
    }

    const fn of_strangers(self) -> Attack {
        Attack { by: By::Stranger, ..self }
    }

    const fn of_workers(self) -> Attack {
        Attack { by: By::WorkersUser, ends_own: true, ..self }
    }

    const fn ends_own(self) -> Attack {
        Attack { ends_own: true, ..self }
    }
}

/// Every attack.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    let all = [
        sessions::ATTACKS,
        descriptors::ATTACKS,
        memory::ATTACKS,
        queues::ATTACKS,
        traffic::ATTACKS,
        managers::ATTACKS,
        workers::ATTACKS,
        strangers::ATTACKS,
    ];
    all.into_iter().flatten()
}

/// Until it is ended.
fn forever(mut step: impl FnMut() -> Result) -> Result {
    loop {
        step()?;
    }
}

fn wait() -> Result {
    forever(|| {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })
}

fn program(setting: &Setting) -> Result<Program> {
    Program::new(&setting.socket, "urxe0")
}
