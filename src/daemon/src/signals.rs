//! What a daemon is told while it runs: by signals, in a thread beside the broker's.

use crate::broker;
use crate::cli::RunError;
use crate::config::Settings;
use crate::config_file::ConfigFile;
use crate::daemon::{Handle, StopPipe};
use crate::log::DAEMON;
use crate::reload::reload;
use crate::service;
use crate::starting::Starting;
use crate::upgrade::{Program, Resumed, UpgradeError, let_signals_come, understands};
use rustix::io::ioctl_fionread;
use rustix::pipe::PipeFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A pipe that signals write to.
type Pipe = [OwnedFd; 2];

/// The pipes by which signals come. A program that is executed in the place of this one has the
/// same ones, so that it misses none.
pub(crate) struct Signals {
    /// SIGINT and SIGTERM, which end the daemon.
    stop: Pipe,
    hangups: Pipe,
    upgrades: Pipe,
}

impl Signals {
    /// Has signals come by new pipes.
    pub(crate) fn new() -> Result<Signals, RunError> {
        let pipe = || -> io::Result<Pipe> {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            Ok([read, write])
        };
        let pipes = pipe().and_then(|stop| Ok([stop, pipe()?, pipe()?]));
        Signals::of(pipes.map_err(RunError::Signals)?)
    }

    /// Has them come by those of the program that was there before, and with them what came
    /// meanwhile.
    pub(crate) fn resumed(resumed: &mut Resumed) -> Result<Signals, RunError> {
        let Resumed { state, fds } = resumed;
        let mut take = |ends: [crate::upgrade::Fd; 2]| -> Result<Pipe, RunError> {
            let [read, write] = ends;
            Ok([fds.take(read)?, fds.take(write)?])
        };
        let [stop, hangups, upgrades] = state.control.pipes;
        let signals = Signals::of([take(stop)?, take(hangups)?, take(upgrades)?])?;
        let_signals_come().map_err(RunError::Signals)?;
        Ok(signals)
    }

    /// SIGHUP ends nothing: it comes also when the terminal is closed, and programs that others
    /// have started would lose their devices.
    fn of([stop, hangups, upgrades]: [Pipe; 3]) -> Result<Signals, RunError> {
        // SLOT-120, UPGRADE-001
        let told = [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &hangups), (SIGUSR2, &upgrades)];
        for (signal, [_, write]) in told {
            let registered = write
                .try_clone()
                .and_then(|write| signal_hook::low_level::pipe::register(signal, write));
            registered.map_err(RunError::Signals)?;
        }
        Ok(Signals { stop, hangups, upgrades })
    }

    /// By what the daemon is told to end.
    pub(crate) fn stop(&self) -> Result<StopPipe, RunError> {
        let [read, write] = clone(&self.stop).map_err(RunError::Signals)?;
        Ok(StopPipe { read, write })
    }
}

fn clone([read, write]: &Pipe) -> io::Result<Pipe> {
    Ok([read.try_clone()?, write.try_clone()?])
}

/// Forgets how often a signal has come: once is as good.
fn heed(pipe: &Pipe) -> bool {
    let ([read, _], mut bytes) = (pipe, [0; 64]);
    ioctl_fionread(read).is_ok_and(|waiting| waiting > 0)
        && rustix::io::read(read, &mut bytes).is_ok()
}

/// The thread that sees to signals: what it goes by.
pub(crate) struct SignalThread {
    pub(crate) options: Settings,
    pub(crate) file: Option<ConfigFile>,
    pub(crate) signals: Signals,
    /// What is executed at an upgrade.
    pub(crate) program: Program,
    pub(crate) ready_fd: Option<u32>,
    /// How many programs the daemon goes on with, if there was another process before.
    pub(crate) programs: Option<usize>,
}

impl SignalThread {
    /// Waits until the daemon has begun, and sees to signals until it has ended. Returns whether it
    /// began.
    pub(crate) fn run(&mut self, starting: Starting) -> Result<bool, RunError> {
        let mut daemon = starting.begun(None)?;
        if daemon.broker.is_none() {
            return Ok(false);
        }
        tell_of_beginning(&daemon);
        let line = ready_line(&daemon);
        match self.programs {
            Some(count) => tracing::info!(
                target: DAEMON,
                "upgraded to {}, with {count} programs; {line}",
                crate::VERSION
            ),
            None => {
                tracing::info!(target: DAEMON, "{line}");
                if let Some(fd) = self.ready_fd {
                    let written = tell(fd, &format!("urxed: {line}"));
                    written.map_err(|source| RunError::ReadyFd { fd, source })?;
                }
            }
        }
        service::tell_ready(&status(&daemon));
        loop {
            let told = [&self.signals.hangups, &self.signals.upgrades].map(|[read, _]| read);
            if !daemon.wait_or(told).map_err(RunError::Waiting)? {
                break;
            }
            if heed(&self.signals.hangups) {
                self.heed_hangup(&mut daemon);
            }
            if heed(&self.signals.upgrades) {
                self.heed_upgrade(&daemon);
            }
        }
        service::tell_stopping();
        Ok(true)
    }

    /// Reads the file again, and says what comes of it.
    fn heed_hangup(&mut self, daemon: &mut Handle) {
        service::tell_reloading();
        // SLOT-120: without a file it may be that a terminal was closed.
        let Some(file) = &mut self.file else {
            tracing::info!(
                target: DAEMON,
                "nothing to read again: started without --config FILE"
            );
            return service::tell_ready(&status(daemon));
        };
        match reload(daemon, &self.options, file) {
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

    /// Has the program at our own path go on in the place of this one, or says why not.
    fn heed_upgrade(&self, daemon: &Handle) {
        service::tell_reloading();
        // The next program says that it is ready.
        let Err(error) = self.upgrade(daemon) else { return };
        // UPGRADE-004
        let sentence = format!("no upgrade, all stays as it was: {error}");
        tracing::error!(target: DAEMON, "{sentence}");
        service::tell_ready(&format!("{}; {sentence}", status(daemon)));
    }

    fn upgrade(&self, daemon: &Handle) -> Result<(), UpgradeError> {
        let (_, _, upgrader) = daemon.broker.as_ref().ok_or(UpgradeError::Ending)?;
        let Signals { stop, hangups, upgrades } = &self.signals;
        let pipes = clone(stop).and_then(|stop| Ok([stop, clone(hangups)?, clone(upgrades)?]));
        let file = self.file.as_ref();
        let control = Arc::new(broker::ControlToPass {
            file: file.map(|file| (file.path().to_path_buf(), file.text())),
            slots: daemon.config.slots,
            socket: daemon.config.socket.clone(),
            metrics: daemon.metrics().map(ToString::to_string),
            pipes: pipes.map_err(UpgradeError::Pass)?,
        });
        // UPGRADE-005: what it would be given now is as good as what it will be given.
        understands(&self.program, &upgrader.state(&control)?)?;
        upgrader.upgrade(&control, self.program.clone())
    }
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
