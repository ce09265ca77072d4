//! Two network namespaces with a veth pair between them: two hosts on one machine.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use urxe_shell::{Result, output, release_binary, run};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// 10.77.0.1 and fd77::1.
    A,
    /// 10.77.0.2 and fd77::2.
    B,
}

impl Side {
    fn number(self) -> u8 {
        match self {
            Side::A => 1,
            Side::B => 2,
        }
    }

    /// Its IPv4 address.
    pub(crate) fn ipv4(self) -> String {
        format!("10.77.0.{}", self.number())
    }

    /// Its IPv6 address.
    pub(crate) fn ipv6(self) -> String {
        format!("fd77::{}", self.number())
    }
}

/// The pair. Gone when dropped, with everything that runs in it.
pub(crate) struct Pair {
    name: String,
    daemons: Vec<Child>,
}

impl Pair {
    /// Makes the namespaces and the link between them.
    pub(crate) fn new(mtu: u32) -> Result<Pair> {
        let pair = Pair { name: format!("urxe{}", std::process::id()), daemons: Vec::new() };
        for side in [Side::A, Side::B] {
            run(Command::new("ip").args(["netns", "add", &pair.netns(side)]))?;
        }
        let (a, b) = (pair.netns(Side::A), pair.netns(Side::B));
        run(Command::new("ip").args([
            "link", "add", "veth0", "netns", &a, "type", "veth", "peer", "name", "veth0", "netns",
            &b,
        ]))?;
        for side in [Side::A, Side::B] {
            let mtu = mtu.to_string();
            let ip = |args: &[&str]| run(pair.command(side, "ip").args(args));
            ip(&["link", "set", "lo", "up"])?;
            ip(&["link", "set", "veth0", "mtu", &mtu, "up"])?;
            ip(&["address", "add", &format!("{}/24", side.ipv4()), "dev", "veth0"])?;
            ip(&["address", "add", &format!("{}/64", side.ipv6()), "dev", "veth0", "nodad"])?;
        }
        Ok(pair)
    }

    fn netns(&self, side: Side) -> String {
        format!("{}-{}", self.name, side.number())
    }

    /// A program to be run on one side.
    pub(crate) fn command(&self, side: Side, program: impl Into<PathBuf>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns(side)]).arg(program.into());
        command
    }

    /// `urxe` on one side, with its daemon's socket.
    pub(crate) fn urxe(&self, side: Side) -> Command {
        let mut command = self.command(side, release_binary("urxe"));
        command.env("URXE_SOCKET", self.socket(side));
        command
    }

    pub(crate) fn socket(&self, side: Side) -> PathBuf {
        std::env::temp_dir().join(format!("{}.sock", self.netns(side)))
    }

    /// Starts a daemon with more options on one side and waits until it is ready.
    pub(crate) fn start_daemon(&mut self, side: Side, address: &str, more: &[&str]) -> Result {
        let mut command = self.command(side, release_binary("urxed"));
        command.args(["--addr", address, "--socket"]).arg(self.socket(side)).args(more);
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("urxed cannot be started: {error}"))?;
        let stderr = child.stderr.take().ok_or("urxed has no error output")?;
        self.daemons.push(child);
        let mut lines = BufReader::new(stderr).lines().map_while(|line| line.ok());
        let ready = lines.by_ref().find(|line| {
            eprintln!("{line}");
            line.contains("ready")
        });
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
        ready.map(drop).ok_or_else(|| format!("urxed on {address} did not become ready"))
    }

    /// Ends the daemons.
    pub(crate) fn stop_daemons(&mut self) {
        for mut daemon in self.daemons.drain(..) {
            // It may have ended by itself.
            let _ = output(Command::new("kill").arg(daemon.id().to_string()));
            let _ = daemon.wait();
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop_daemons();
        for side in [Side::A, Side::B] {
            // Best effort: the namespace may not have been made.
            let _ = output(Command::new("ip").args(["netns", "delete", &self.netns(side)]));
        }
    }
}
