//! The command line of `urxed`, which is also that of `urxe daemon`.

use crate::config::{Config, ConfigError, Settings};
use crate::config_file::ConfigFile;
use crate::daemon::StartError;
use crate::log::{self, DAEMON};
use crate::service;
use crate::signals::{SignalThread, Signals};
use crate::starting::{self, Starting};
use crate::upgrade::{self, ImageError, Program, Resumed};
use crate::worker::allow_many_descriptors;
use std::io;
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
The daemon ends on SIGINT or SIGTERM, at once or when --drain says so, or by --linger, and says
why. Of an option that is given twice the last counts; --addr, --interface and --name add up. On
SIGHUP it reads the file of --config again and goes on with its metrics, linger, drain,
sessions-per-user and cm-ids-per-user; it says what of the rest needs a restart, and if the file
is wrong, all stays as it was. Addresses of an --interface are followed without that. On SIGUSR2
it executes the program that is at its own path now, which goes on with all programs and their
traffic; if that cannot be had, it says why, and all stays as it was.
Programs that it leaves behind see their work requests flushed, and IBV_EVENT_DEVICE_FATAL.
It can be started by systemd at the first connection (LISTEN_FDS), and tells it when it is ready.
Peers are other urxed, Linux rdma_rxe, or RoCE NICs.";

/// The RoCEv2 NIC in user space: gives programs RDMA devices that need no RDMA hardware, no
/// kernel module and no privilege.
#[derive(clap::Parser, Clone, Debug)]
// Of an option that is given twice the last counts, so that $URXED_OPTIONS wins over the options
// that the unit gives before it.
#[command(
    name = "urxed",
    version = crate::VERSION,
    after_help = EXAMPLES,
    args_override_self = true
)]
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

    /// Say whether the state of a daemon, at standard input, can be gone on with.
    #[arg(long, hide = true)]
    check_upgrade: bool,
}

/// This program, even if its file has been replaced since.
const OURSELVES: &str = "/proc/self/exe";

/// Runs a daemon until it is told to stop, and says on stderr what there is to say.
pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { settings, config, ready_fd, check_upgrade } = arguments;
    if check_upgrade {
        return upgrade::answer();
    }
    let (options, of_environment) = with_environment(settings);
    let resumed = Resumed::take().transpose();
    let file = match &resumed {
        // UPGRADE-007: what the file says now may need a restart.
        Some(Ok(resumed)) => resumed.state.config_file().map_err(RunError::from),
        Some(Err(_)) => Ok(None),
        None => config.as_deref().map(ConfigFile::read).transpose().map_err(RunError::from),
    };
    let chosen = together(&options, file.as_ref().ok().and_then(Option::as_ref));
    log::begin(chosen.log_format.unwrap_or_default(), chosen.log.unwrap_or_default());
    let file = of_environment.map_err(RunError::Environment).and(file);
    let resumed = resumed.transpose().map_err(RunError::from);
    let begun = file.and_then(|file| Ok((file, resumed?)));
    match begun.and_then(|(file, resumed)| serve(options, file, resumed, ready_fd)) {
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

/// Why a daemon does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("${variable}: {0}", variable = log::VARIABLE)]
    Environment(ConfigError),
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
    #[error("finding its own program: {0}")]
    Program(io::Error),
    #[error("starting a thread: {0}")]
    Control(io::Error),
    #[error("waiting for signals: {0}")]
    Waiting(io::Error),
    #[error("stopped, because its event loop failed: {0}")]
    Failed(io::Error),
    #[error("going on where another urxed was: {0}")]
    Resume(#[from] ImageError),
}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> RunError {
        RunError::Start(error.into())
    }
}

fn serve(
    mut options: Settings,
    file: Option<ConfigFile>,
    mut resumed: Option<Resumed>,
    ready_fd: Option<u32>,
) -> Result<(), RunError> {
    // Before anything else is opened: it comes as a bare number.
    let listener = match &resumed {
        Some(_) => None,
        None => service::take_listener().map_err(RunError::Inherited)?,
    };
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
    // Before there are any files that a signal could leave behind.
    let signals = match &mut resumed {
        Some(resumed) => Signals::resumed(resumed)?,
        None => Signals::new()?,
    };
    let program = Program::own().map_err(RunError::Program)?;
    let mut config = Config::try_from(together(&options, file.as_ref()))?;
    config.worker = Some(OURSELVES.into());
    if config.has_fault_in_vain() {
        tracing::warn!(
            target: DAEMON,
            "--fault names write-first, write-middle or write-last, of which this daemon \
             sends none over RC, or those parts of a read-response, of which it sends none to a \
             urxe: its messages go as ONLYs; count their packets, as in drop:write:3, or give \
             --wire strict"
        );
    }
    let stop = signals.stop()?;
    let stopper = stop.stopper().map_err(RunError::Signals)?;
    let programs = resumed.as_ref().map(|resumed| resumed.state.broker.programs());
    type Serve = Box<dyn FnOnce() -> io::Result<()>>;
    let (serve, starting): (Serve, Starting) = match resumed {
        Some(resumed) => {
            let (serve, starting) = starting::resume(config, resumed, stop)?;
            (Box::new(serve), starting)
        }
        None => {
            let (serve, starting) = starting::prepare(config, listener, stop)?;
            (Box::new(serve), starting)
        }
    };
    let mut control = SignalThread { options, file, signals, program, ready_fd, programs };
    let control = move || {
        let controlled = control.run(starting);
        if controlled.is_err() {
            // Twice: it is to end now.
            let _ = rustix::io::write(&stopper, &[0; 2]);
        }
        controlled
    };
    let control = std::thread::Builder::new().name("urxed-control".into()).spawn(control);
    let control = control.map_err(RunError::Control)?;
    // UPGRADE-002: in the first thread, of which all workers are children, and which is the one
    // that stays when another program is executed.
    let served = serve();
    let begun = control.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    match begun {
        true => served.map_err(RunError::Failed),
        false => {
            let step = "starting the event loop";
            Ok(served.map_err(|source| StartError::System { step, source })?)
        }
    }
}

/// What was chosen by the command line, and by the file where that says nothing.
fn together(options: &Settings, file: Option<&ConfigFile>) -> Settings {
    file.map_or_else(|| options.clone(), |file| file.below(options))
}
