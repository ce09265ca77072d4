//! Nodes: one process each, on a device of its own, and how they find each other.
//!
//! The process that a person starts runs no node. It starts a daemon with a device for each node,
//! and itself again for each node with `--rank` and `--meet` added, collects what the nodes report,
//! and ends the daemon. A node that is started by hand with these two arguments, on whatever
//! machine reaches the address, is as good.

use crate::error::Error;
use crate::namespaces::Namespaces;
use clap::{Args, value_parser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use urxe_daemon::testing::TestDaemon;
use urxe_daemon::{Config, Daemon, Handle};
use urxe_port::fault::FaultSpec;
use urxe_verbs::{Context, OpenOptions};

/// How often the launcher looks whether a signal has come.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// How many nodes there are, and where.
#[derive(Args, Clone, Debug)]
pub struct Cluster {
    /// How many nodes there are; each is a process [default: 4; of `lecture` 2].
    #[arg(long, value_parser = value_parser!(u8).range(2..=64))]
    nodes: Option<u8>,
    /// What is wrong with the network, such as `drop=0.5%`; `urxed --help` lists the faults.
    #[arg(long, value_name = "SPEC")]
    fault: Option<FaultSpec>,
    /// Use the daemon at this socket, on whose devices the nodes take turns, and start none.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Give each node a network namespace, a link to a bridge, and a daemon of its own there:
    /// packets then go by the same way, and in as many pieces, as between machines. Needs root.
    #[arg(long, conflicts_with_all = ["socket", "here"])]
    namespaces: bool,
    /// Have each node run its NIC itself, in a thread of its own, and not the daemon.
    #[arg(long)]
    in_process: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Where the nodes meet, over TCP, before they can talk RDMA. Nodes on other machines need an
    /// address that they reach.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    meet: SocketAddr,
    /// How many of the nodes are started here, from rank 0 on [default: all]; the others are
    /// started by hand, with the same arguments and `--rank`.
    #[arg(long, value_name = "COUNT")]
    here: Option<u8>,
    /// Be this node, from 0 on, of those that meet at `--meet`.
    #[arg(long)]
    rank: Option<u8>,
    /// Start a daemon for this node alone, on this address of this machine; with `--rank`.
    #[arg(long, value_name = "IP", requires = "rank", conflicts_with = "socket")]
    address: Option<IpAddr>,
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
    /// Runs `node` in a process for each node, and collects what they return. There are as many as
    /// is said here if the arguments do not say it; they are started with these arguments added.
    ///
    /// # Errors
    /// [`Error::Node`] if a node failed, except one that was to be killed; else what
    /// kept nodes from being started, or this one from its end.
    pub fn run<R, F>(&self, nodes: u8, added: &[OsString], node: F) -> Result<Ran<R>, Error>
    where
        R: Serialize + DeserializeOwned + Send,
        F: FnOnce(Node) -> Result<R, Error>,
    {
        let nodes = usize::from(self.nodes.unwrap_or(nodes));
        match self.rank {
            Some(rank) => {
                let report = node(self.join(nodes, rank.into())?)?;
                print_line(&Line::Report(report))?;
                Ok(Ran::Node)
            }
            None => self.launch(nodes, added).map(Ran::Launcher),
        }
    }

    /// Whether this process is to be a node, and not to start some.
    pub fn is_node(&self) -> bool {
        self.rank.is_some()
    }

    fn join(&self, nodes: usize, rank: usize) -> Result<Node, Error> {
        let daemon = self.address.map(|address| self.own_daemon(address)).transpose()?;
        let mut options = OpenOptions::new();
        let own = daemon.as_ref().map(|(handle, _)| handle.socket());
        if let Some(socket) = own.or(self.socket.as_deref()) {
            options = options.socket(socket);
        }
        let devices = urxe_verbs::devices(&options)?;
        if self.in_process {
            options = options.in_process();
        }
        let context = Context::open(&options.device(&devices[rank % devices.len()].name))?;
        let stream = TcpStream::connect(self.meet).map_err(Error::io("joining the other nodes"))?;
        let meeting = BufReader::new(stream);
        let mut node = Node { rank, nodes, context, meeting, _daemon: daemon };
        node.send(&rank)?;
        Ok(node)
    }

    /// A daemon for this node alone, and the directory of its socket.
    fn own_daemon(&self, address: IpAddr) -> Result<(Handle, TempDir), Error> {
        let directory = TempDir::with_prefix("urxe-apps-");
        let directory = directory.map_err(Error::io("making a directory for the socket"))?;
        let mut config = Config::new([address]);
        config.socket = directory.path().join("urxed.sock");
        config.fault = self.fault.clone();
        Ok((Daemon::start(config)?, directory))
    }

    fn launch<R: DeserializeOwned + Send>(
        &self,
        nodes: usize,
        added: &[OsString],
    ) -> Result<Vec<Option<R>>, Error> {
        if self.fault.is_some() && self.socket.is_some() {
            let text = "--fault is for a daemon that is started here, not for that at --socket";
            return Err(Error::Usage(text));
        }
        // From here on there is something that a signal must not leave behind.
        let interrupted = catch_signals()?;
        let network = self.namespaces.then(|| Namespaces::new(nodes)).transpose()?;
        // Nodes with a daemon of their own, which may be killed, have its directory in there.
        let directory = network.is_some().then(|| TempDir::with_prefix("urxe-apps-")).transpose();
        let directory = directory.map_err(Error::io("making a directory for the nodes"))?;
        let daemon = match self.socket.is_some() || network.is_some() {
            true => None,
            false => {
                Some(TestDaemon::start_with(nodes, |config| config.fault = self.fault.clone())?)
            }
        };
        let meet = network.as_ref().map_or(self.meet, |network| (network.here(), 0).into());
        let listener = TcpListener::bind(meet).map_err(Error::io("listening at --meet"))?;
        let meet = listener.local_addr().map_err(Error::io("listening at --meet"))?;
        thread::spawn(move || serve_meeting(&listener, nodes));
        let start = |rank: usize| {
            let program = std::env::current_exe().map_err(Error::io("finding this program"))?;
            let mut command = match &network {
                Some(network) => network.command(rank, &program),
                None => Command::new(program),
            };
            command.args(std::env::args_os().skip(1)).args(added);
            command.arg(format!("--rank={rank}")).arg(format!("--meet={meet}"));
            if let (Some(network), Some(directory)) = (&network, &directory) {
                command.arg(format!("--address={}", network.address(rank)));
                command.env("TMPDIR", directory.path());
            } else if let Some(daemon) = &daemon {
                command.arg("--socket").arg(daemon.socket());
            }
            command.stdout(Stdio::piped()).spawn().map_err(Error::io("starting a node"))
        };
        let here = self.here.map_or(nodes, usize::from).min(nodes);
        let mut children = (0..here).map(start).collect::<Result<Vec<_>, _>>()?;
        let outputs: Vec<_> = children.iter_mut().map(|child| child.stdout.take()).collect();
        let (children, over) = (Mutex::new(children), AtomicBool::new(false));
        let reports = thread::scope(|scope| {
            let (children, over) = (&children, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    if interrupted.load(Ordering::Relaxed) {
                        kill_all(children);
                    }
                    thread::sleep(LOOK_FOR_SIGNALS);
                }
            });
            let follow = |(rank, output)| scope.spawn(move || follow(rank, output?, children));
            let followed: Vec<_> = outputs.into_iter().enumerate().map(follow).collect();
            // All of them, so that no node outlives this.
            let followed: Vec<_> = followed.into_iter().map(|thread| thread.join()).collect();
            over.store(true, Ordering::Relaxed);
            (0..)
                .zip(followed)
                .map(|(rank, report)| report.ok().flatten().ok_or(Error::Node { rank }))
                .collect()
        });
        if interrupted.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { reports }
    }
}

/// What says whether a signal has asked this process to end, from the first call on.
fn catch_signals() -> Result<&'static AtomicBool, Error> {
    static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if INTERRUPTED.get().is_none() {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(Error::io("catching signals"))?;
        }
        let _ = INTERRUPTED.set(flag);
    }
    Ok(INTERRUPTED.get_or_init(Arc::default))
}

fn kill_all(children: &Mutex<Vec<Child>>) {
    for child in &mut *children.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = child.kill();
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
    kill_all(children);
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
    // It ends after the device was closed.
    _daemon: Option<(Handle, TempDir)>,
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
