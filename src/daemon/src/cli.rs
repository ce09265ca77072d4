//! The command line of `urxed`, which is also that of `urxe daemon`.

use crate::config::{Config, ConfigError, Settings};
use crate::config_file::ConfigFile;
use crate::daemon::{Daemon, Handle, StartError, StopPipe};
use crate::log::{self, DAEMON};
use crate::reload::reload;
use crate::service;
use crate::worker::allow_many_descriptors;
use rustix::pipe::PipeFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

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
The daemon ends on SIGINT or SIGTERM, at once or when --drain says so, or by --linger. On SIGHUP it
reads the file of --config again and goes on with its metrics, linger, drain, sessions-per-user and
cm-ids-per-user; it says what of the rest needs a restart, and if the file is wrong, all stays as it
was. Addresses of an --interface are followed without that.
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
    /// `port-backend = "raw"`. It is read again on SIGHUP (`systemctl reload urxed`); what an option
    /// says stays.
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
    let (options, of_environment) = with_environment(settings);
    let file = config.as_deref().map(ConfigFile::read).transpose();
    let chosen = together(&options, file.as_ref().ok().and_then(Option::as_ref));
    log::begin(chosen.log_format.unwrap_or_default(), chosen.log.unwrap_or_default());
    let file = of_environment.and(file).map_err(RunError::from);
    match file.and_then(|file| serve(options, file, ready_fd)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(target: DAEMON, "{error}");
            ExitCode::FAILURE
        }
    }
}

/// The settings of the command line, with what the environment says; without that, where it makes
/// no sense.
fn with_environment(mut settings: Settings) -> (Settings, Result<(), ConfigError>) {
    match std::env::var(log::VARIABLE).ok().map(|filter| filter.parse()).transpose() {
        Ok(filter) => {
            settings.log = settings.log.or(filter);
            (settings, Ok(()))
        }
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
    #[error("waiting for signals: {0}")]
    Waiting(io::Error),
    #[error("stopped, because a port failed: {0}")]
    Failed(io::Error),
}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> RunError {
        RunError::Start(error.into())
    }
}

fn serve(
    mut options: Settings,
    mut file: Option<ConfigFile>,
    ready_fd: Option<u32>,
) -> Result<(), RunError> {
    // Before anything else is opened: it comes as a bare number.
    let listener = service::take_listener().map_err(RunError::Inherited)?;
    if let Some(listener) = &listener {
        let inherited = listener.path().to_path_buf();
        match together(&options, file.as_ref()).socket {
            Some(asked) if asked != inherited => {
                return Err(RunError::OtherSocket { asked, inherited });
            }
            _ => options.socket = Some(inherited),
        }
    }
    allow_many_descriptors();
    let stop = StopPipe::new()?;
    // Before there are any files that a signal could leave behind.
    let hangups = heed_signals(&stop).map_err(RunError::Signals)?;
    let mut config = Config::try_from(together(&options, file.as_ref()))?;
    config.worker = Some(OURSELVES.into());
    if config.has_fault_in_vain() {
        tracing::warn!(
            target: DAEMON,
            "--fault names write-first, write-middle or write-last, of which this daemon \
             sends none over RC: its WRITEs go as WRITE ONLYs; count their packets, as in \
             drop:write:3, or give --wire strict"
        );
    }
    let mut daemon = Daemon::start_with(config, listener, stop)?;
    tell_of_beginning(&daemon);
    let line = ready_line(&daemon);
    tracing::info!(target: DAEMON, "{line}");
    if let Some(fd) = ready_fd {
        let written = tell(fd, &format!("urxed: {line}"));
        written.map_err(|source| RunError::ReadyFd { fd, source })?;
    }
    service::tell_ready(&status(&daemon));
    while daemon.wait_or(&hangups).map_err(RunError::Waiting)? {
        // However many there were, the file is read once.
        let _ = rustix::io::read(&hangups, &mut [0; 64]);
        heed_hangup(&mut daemon, &options, file.as_mut());
    }
    let ended = daemon.wait();
    service::tell_stopping();
    ended.map_err(RunError::Failed)
}

/// What was chosen by the command line, and by the file where that says nothing.
fn together(options: &Settings, file: Option<&ConfigFile>) -> Settings {
    file.map_or_else(|| options.clone(), |file| file.below(options))
}

/// Says what people should know of a daemon that has just begun.
fn tell_of_beginning(daemon: &Handle) {
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
}

/// Reads the file again, and says what comes of it.
fn heed_hangup(daemon: &mut Handle, options: &Settings, file: Option<&mut ConfigFile>) {
    service::tell_reloading();
    // SLOT-120: without a file it may be that a terminal was closed.
    let Some(file) = file else {
        tracing::info!(target: DAEMON, "nothing to read again: started without --config FILE");
        return service::tell_ready(&status(daemon));
    };
    match reload(daemon, options, file) {
        Ok(lines) => {
            for line in lines {
                tracing::info!(target: DAEMON, "{}: {line}", file.path().display());
            }
            service::tell_ready(&status(daemon));
        }
        // SLOT-126
        Err(error) => {
            let sentence = format!("all stays as it was: {error}");
            tracing::error!(target: DAEMON, "{sentence}");
            service::tell_ready(&format!("{}; {sentence}", status(daemon)));
        }
    }
}

/// SIGINT and SIGTERM end the daemon. SIGHUP, of which the pipe tells that is returned, does not:
/// it comes also when the terminal is closed, and programs that others have started would lose
/// their devices.
fn heed_signals(stop: &StopPipe) -> io::Result<OwnedFd> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, stop.stopper()?)?;
    }
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // SLOT-120
    signal_hook::low_level::pipe::register(SIGHUP, write)?;
    Ok(read)
}

fn status(daemon: &Handle) -> String {
    daemon.devices().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn ready_line(daemon: &Handle) -> String {
    format!("ready on {}: {}", daemon.socket().display(), status(daemon))
}

/// Writes a line to an inherited descriptor. By its path, because a bare number is nothing that
/// can be trusted to be open.
fn tell(fd: u32, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"))?;
    writeln!(file, "{line}")
}
