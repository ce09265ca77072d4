//! The command line of `urxed`, which is also that of `urxe daemon`.

use crate::config::{Config, ConfigError, Settings};
use crate::daemon::{Daemon, Handle, StartError, StopPipe};
use crate::log::{self, DAEMON};
use crate::service;
use crate::worker::allow_many_descriptors;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  urxed --addr 10.0.0.1
      One device, urxe0, on the network. Needs no privilege.
  urxed --addr 127.0.0.1 --addr 127.0.0.2
      Two devices that can talk to each other: RDMA on a laptop, for a first try.
  urxed --interface eth0
      One device with all addresses of eth0, IPv4 and IPv6, as they come and go.
  urxed --addr 10.0.0.1 --name mlx5_0
      One device with a name that programs insist on.
  urxed --addr 10.0.0.1 --fault drop=1%,delay=100us..2ms --capture bad-day.pcapng
      A bad network, reproduced and recorded.
  urxed --addr 10.0.0.1 --wire strict
      A peer or an analyser is to see the packets that rdma_rxe would send.
  urxed --addr 10.0.0.1 --metrics 127.0.0.1:9100
      Prometheus finds all counters at http://127.0.0.1:9100/metrics.
  urxed --addr 10.0.0.1 --linger 10
      Ends ten seconds after the last program, for those who start it in the background.

Programs find the daemon by its socket: $URXE_SOCKET, or the default that both sides know.
Programs of rdma-core find its devices as files in the directory beside the socket
(urxed.sock: urxed.sysfs), through `urxe run` or `urxe sysfs-overlay`; `counters` and `hw_counters`
of a port are written there anew each second.
The daemon ends on SIGINT or SIGTERM, at once or when --drain says so, or by --linger; SIGHUP does
nothing.
Programs that it leaves behind see their work requests flushed, and IBV_EVENT_DEVICE_FATAL.
It can be started by systemd at the first connection (LISTEN_FDS), and tells it when it is ready.
Peers are other urxed, Linux rdma_rxe, or RoCE NICs.";

/// The RoCEv2 NIC in user space: gives programs RDMA devices that need no RDMA hardware, no
/// kernel module and no privilege.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "urxed", version = crate::VERSION, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    settings: Settings,

    /// Read from a TOML file what is not given here.
    ///
    /// The names are those of the options, for example `addr = ["10.0.0.1"]` and
    /// `port-backend = "raw"`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write a line to this inherited descriptor (of a pipe or file) as soon as programs can
    /// connect, for those who start us and wait.
    #[arg(long, value_name = "N")]
    ready_fd: Option<u32>,
}

/// This program, even if its file has been replaced since.
const OURSELVES: &str = "/proc/self/exe";

/// Runs a daemon until it is told to stop, and says on stderr what there is to say.
pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { settings, config, ready_fd } = arguments;
    let (settings, found) = find_settings(settings, config.as_deref());
    log::begin(settings.log_format.unwrap_or_default(), settings.log.clone().unwrap_or_default());
    match found.map_err(RunError::from).and_then(|()| serve(settings, ready_fd)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // What is wrong with a file is shown by lines of it.
            for line in error.to_string().lines() {
                tracing::error!(target: DAEMON, "{line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The settings of the command line with those of the environment and of a file, as far as these
/// can be read.
fn find_settings(
    mut settings: Settings,
    file: Option<&Path>,
) -> (Settings, Result<(), ConfigError>) {
    let filter = std::env::var(log::VARIABLE).ok().map(|filter| filter.parse()).transpose();
    let of_file = file.map_or_else(|| Ok(Settings::default()), Settings::read);
    let (filter, wrong) = filter.map_or_else(|error| (None, Err(error)), |it| (it, Ok(())));
    settings.log = settings.log.or(filter);
    match of_file {
        Ok(of_file) => (settings.or(of_file), wrong),
        Err(error) => (settings, Err(error)),
    }
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("ready-fd {fd}: {source}; expected the number of an inherited pipe or file")]
    ReadyFd { fd: u32, source: io::Error },
    #[error("the socket that the service manager passes (LISTEN_FDS): {0}")]
    Inherited(io::Error),
    #[error(
        "--socket {}: the service manager listens for this daemon at {}; name the same, or none",
        .asked.display(), .inherited.display()
    )]
    OtherSocket { asked: PathBuf, inherited: PathBuf },
    #[error("signals: {0}")]
    Signals(io::Error),
    #[error("stopped, because a port failed: {0}")]
    Failed(io::Error),
}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> RunError {
        RunError::Start(error.into())
    }
}

fn serve(mut settings: Settings, ready_fd: Option<u32>) -> Result<(), RunError> {
    // Before anything else is opened: it comes as a bare number.
    let listener = service::take_listener().map_err(RunError::Inherited)?;
    if let Some(listener) = &listener {
        let inherited = listener.path().to_path_buf();
        match settings.socket {
            Some(asked) if asked != inherited => {
                return Err(RunError::OtherSocket { asked, inherited });
            }
            _ => settings.socket = Some(inherited),
        }
    }
    allow_many_descriptors();
    let stop = StopPipe::new()?;
    // Before there are any files that a signal could leave behind.
    heed_signals(&stop).map_err(RunError::Signals)?;
    let mut config = Config::try_from(settings)?;
    config.worker = Some(OURSELVES.into());
    if config.has_fault_in_vain() {
        tracing::warn!(
            target: DAEMON,
            "--fault names write-first, write-middle or write-last, of which this daemon \
             sends none over RC: its WRITEs go as WRITE ONLYs; count their packets, as in \
             drop:write:3, or give --wire strict"
        );
    }
    let daemon = Daemon::start_with(config, listener, stop)?;
    if let Some(reason) = daemon.why_slow_watch() {
        tracing::warn!(
            target: DAEMON,
            "changes of links and addresses are noticed within a second only, because this \
             system refuses a netlink socket: {reason}"
        );
    }
    if let Some(reason) = daemon.why_no_sysfs() {
        tracing::warn!(
            target: DAEMON,
            "stock rdma-core (`urxe run`, ibv_devices ...) will find no device, because its \
             files cannot be written: {reason}; `urxe` and programs of its own library work"
        );
    }
    if let Some(address) = daemon.metrics() {
        tracing::info!(target: DAEMON, "metrics at {address}, GET /metrics");
    }
    let ready = ready(&daemon);
    tracing::info!(target: DAEMON, "{ready}");
    if let Some(fd) = ready_fd {
        tell(fd, &format!("urxed: {ready}")).map_err(|source| RunError::ReadyFd { fd, source })?;
    }
    service::tell_ready(&daemon);
    let ended = daemon.wait();
    service::tell_stopping();
    ended.map_err(RunError::Failed)
}

/// SIGINT and SIGTERM end the daemon. SIGHUP, which comes when the terminal is closed, does
/// nothing: programs that others have started would lose their devices.
fn heed_signals(stop: &StopPipe) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, stop.stopper()?)?;
    }
    // SLOT-120
    signal_hook::flag::register(SIGHUP, Arc::default())?;
    Ok(())
}

fn ready(daemon: &Handle) -> String {
    let devices: Vec<String> = daemon.devices().iter().map(ToString::to_string).collect();
    format!("ready on {}: {}", daemon.socket().display(), devices.join(", "))
}

/// Writes a line to an inherited descriptor. By its path, because a bare number is nothing that
/// can be trusted to be open.
fn tell(fd: u32, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"))?;
    writeln!(file, "{line}")
}
