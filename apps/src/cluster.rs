//! Nodes: one process each, on a device of its own, and how they find each other.
//!
//! The process that a person starts runs no node. It starts a daemon with a device for each node,
//! and itself again for each node with `--rank` and `--meet` added, collects what the nodes report,
//! and ends the daemon. A node that is started by hand with these two arguments, on whatever
//! machine reaches the address, is as good.

use crate::error::Error;
use clap::{Args, value_parser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use urxe_daemon::testing::TestDaemon;
use urxe_port::fault::FaultSpec;
use urxe_verbs::{Context, OpenOptions};

/// How many nodes there are, and where.
#[derive(Args, Clone, Debug)]
pub struct Cluster {
    /// How many nodes there are; each is a process.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u8).range(2..=64))]
    pub nodes: u8,
    /// What is wrong with the network, such as `drop=0.5%`; `urxed --help` lists the faults.
    #[arg(long, value_name = "SPEC")]
    fault: Option<FaultSpec>,
    /// Use the daemon at this socket, on whose devices the nodes take turns, and start none.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Where the nodes meet, over TCP, before they can talk RDMA. Nodes on other machines need an
    /// address that they reach.
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:0",
        // What the launcher appends counts.
        overrides_with = "meet"
    )]
    meet: SocketAddr,
    /// How many of the nodes are started here, from rank 0 on [default: all]; the others are
    /// started by hand, with the same arguments and `--rank`.
    #[arg(long, value_name = "COUNT")]
    here: Option<u8>,
    /// Be this node, from 0 on, of those that meet at `--meet`.
    #[arg(long)]
    rank: Option<u8>,
}

/// What became of a run.
pub enum Ran<R> {
    /// This process was a node, and has reported.
    Node,
    /// This process started nodes. The report of each, by rank; none of one that was killed.
    Launcher(Vec<Option<R>>),
}

/// What a node prints for the launcher, one line each.
#[derive(serde::Serialize, serde::Deserialize)]
enum Line<R> {
    /// It is as far as it should be when it is killed.
    KillMe,
    /// It has ended.
    Report(R),
}

impl Cluster {
    /// Runs `node` in a process for each node, and collects what they return.
    ///
    /// # Errors
    /// [`Error::Node`] if a node failed, except one that was to be killed; else what
    /// kept nodes from being started, or this one from its end.
    pub fn run<R, F>(&self, node: F) -> Result<Ran<R>, Error>
    where
        R: Serialize + DeserializeOwned + Send,
        F: FnOnce(Node) -> Result<R, Error>,
    {
        match self.rank {
            Some(rank) => {
                let report = node(self.join(rank.into())?)?;
                print_line(&Line::Report(report))?;
                Ok(Ran::Node)
            }
            None => self.launch().map(Ran::Launcher),
        }
    }

    fn join(&self, rank: usize) -> Result<Node, Error> {
        let nodes = usize::from(self.nodes);
        let mut options = OpenOptions::new();
        if let Some(socket) = &self.socket {
            options = options.socket(socket);
        }
        let devices = urxe_verbs::devices(&options)?;
        let context = Context::open(&options.device(&devices[rank % devices.len()].name))?;
        let stream = TcpStream::connect(self.meet).map_err(Error::io("joining the other nodes"))?;
        let mut node = Node { rank, nodes, context, meeting: BufReader::new(stream) };
        node.send(&rank)?;
        Ok(node)
    }

    fn launch<R: DeserializeOwned + Send>(&self) -> Result<Vec<Option<R>>, Error> {
        let nodes = usize::from(self.nodes);
        if self.fault.is_some() && self.socket.is_some() {
            let text = "--fault is for a daemon that is started here, not for that at --socket";
            return Err(Error::Usage(text));
        }
        let daemon = match self.socket {
            Some(_) => None,
            None => {
                Some(TestDaemon::start_with(nodes, |config| config.fault = self.fault.clone())?)
            }
        };
        let listener = TcpListener::bind(self.meet).map_err(Error::io("listening at --meet"))?;
        let meet = listener.local_addr().map_err(Error::io("listening at --meet"))?;
        thread::spawn(move || serve_meeting(&listener, nodes));
        let start = |rank: usize| {
            let mut command = Command::new("/proc/self/exe");
            command.args(std::env::args_os().skip(1)).arg(format!("--rank={rank}"));
            command.arg(format!("--meet={meet}"));
            if let Some(daemon) = &daemon {
                command.arg("--socket").arg(daemon.socket());
            }
            command.stdout(Stdio::piped()).spawn().map_err(Error::io("starting a node"))
        };
        let here = usize::from(self.here.unwrap_or(self.nodes)).min(nodes);
        let mut children = (0..here).map(start).collect::<Result<Vec<_>, _>>()?;
        let outputs: Vec<_> = children.iter_mut().map(|child| child.stdout.take()).collect();
        let children = Mutex::new(children);
        thread::scope(|scope| {
            let children = &children;
            let follow = |(rank, output)| scope.spawn(move || follow(rank, output?, children));
            let followed: Vec<_> = outputs.into_iter().enumerate().map(follow).collect();
            // All of them, so that no node outlives this.
            let followed: Vec<_> = followed.into_iter().map(|thread| thread.join()).collect();
            (0..)
                .zip(followed)
                .map(|(rank, report)| report.ok().flatten().ok_or(Error::Node { rank }))
                .collect()
        })
    }
}

/// Reads what a node prints until it ends, and kills it if it asks for that. Its report, if it was
/// not killed; nothing if it failed. Then the others end too, which might wait for it for ever.
fn follow<R: DeserializeOwned>(
    rank: usize,
    output: ChildStdout,
    children: &Mutex<Vec<Child>>,
) -> Option<Option<R>> {
    let lock = || children.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut report, mut killed) = (None, false);
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Line::Report(this)) => report = Some(this),
            // SIGKILL, as `kill -9` sends it.
            Ok(Line::KillMe) => killed = lock()[rank].kill().is_ok(),
            // What it prints besides is not for us.
            Err(_) => {}
        }
    }
    // It has closed its output, so it is about to end.
    let ended = lock()[rank].wait();
    if killed || report.is_some() && ended.is_ok_and(|status| status.success()) {
        return Some(report);
    }
    for child in &mut *lock() {
        let _ = child.kill();
    }
    None
}

fn print_line<R: Serialize>(line: &Line<R>) -> Result<(), Error> {
    let text = serde_json::to_string(line).map_err(|error| Error::Meeting(error.to_string()))?;
    writeln!(std::io::stdout(), "{text}").map_err(Error::io("reporting"))
}

/// Takes a line of each node, and gives all of them the list of them all; again and again, until
/// one has left.
fn serve_meeting(listener: &TcpListener, nodes: usize) -> Option<()> {
    let mut streams: Vec<Option<BufReader<TcpStream>>> = (0..nodes).map(|_| None).collect();
    while streams.iter().any(Option::is_none) {
        let mut stream = BufReader::new(listener.accept().ok()?.0);
        // A stranger's connection is closed.
        let rank = read_line(&mut stream).and_then(|line| line.parse::<usize>().ok());
        if let Some(place) = rank.and_then(|rank| streams.get_mut(rank)) {
            *place = Some(stream);
        }
    }
    let mut streams: Vec<_> = streams.into_iter().flatten().collect();
    loop {
        let lines: Option<Vec<String>> = streams.iter_mut().map(read_line).collect();
        let all = format!("[{}]\n", lines?.join(","));
        for stream in &mut streams {
            stream.get_mut().write_all(all.as_bytes()).ok()?;
        }
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    // Without its end it is not all of it: the sender has gone.
    line.strip_suffix('\n').map(str::to_owned)
}

/// This process as one of the nodes.
pub struct Node {
    /// Which one, from 0.
    pub rank: usize,
    /// How many there are.
    pub nodes: usize,
    /// Its device.
    pub context: Context,
    meeting: BufReader<TcpStream>,
}

impl Node {
    /// Gives all nodes a value of ours, and waits for one of each, by rank. Nobody goes on before
    /// all have come.
    ///
    /// # Errors
    /// [`Error::Meeting`] if a node has left.
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<Vec<T>, Error> {
        self.send(mine)?;
        let line = read_line(&mut self.meeting);
        let line = line.ok_or_else(|| Error::Meeting("a node has left".into()))?;
        let all: Vec<T> =
            serde_json::from_str(&line).map_err(|error| Error::Meeting(error.to_string()))?;
        if all.len() == self.nodes {
            return Ok(all);
        }
        Err(Error::Meeting(format!("{} nodes have come, expected {}", all.len(), self.nodes)))
    }

    /// Asks the launcher to kill this process, and goes on until it does.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no launcher.
    pub fn ask_for_kill(&self) -> Result<(), Error> {
        print_line(&Line::<()>::KillMe)
    }

    fn send<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let text = serde_json::to_string(value);
        let text = text.map_err(|error| Error::Meeting(error.to_string()))? + "\n";
        let sent = self.meeting.get_mut().write_all(text.as_bytes());
        sent.map_err(|error| Error::Meeting(error.to_string()))
    }
}
