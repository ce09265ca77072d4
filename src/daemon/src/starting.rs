//! From a configuration, or from what another process has left, to a daemon that serves.

use crate::broker::addresses::AddressSource;
use crate::broker::device::RdmaDevice;
use crate::broker::snapshot::Asker;
use crate::broker::{Beginning, Changer, DevicePlan, EventLoop, Upgrader};
use crate::config::{Config, ConfigError};
use crate::daemon::{
    DeviceSummary, Handle, StartError, StopPipe, listen, listen_for_scrapers, system,
};
use crate::log::DAEMON;
use crate::metrics::{self, Metrics};
use crate::opening::{Opened, Seeds, open_port};
use crate::upgrade::Resumed;
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;
use urxe_port::watch::Watch;
use urxe_shm::control::channel::Listener;

/// A daemon that is about to begin, for another thread than the one that will serve.
pub(crate) struct Starting {
    config: Config,
    devices: Vec<DeviceSummary>,
    slow_watch: Option<String>,
    metrics: Option<metrics::Listener>,
    stop: OwnedFd,
    ended: OwnedFd,
    ready: mpsc::Receiver<Ready>,
}

/// What a daemon tells when it has begun.
struct Ready {
    shown: io::Result<()>,
    broker: (Asker, Changer, Upgrader),
}

/// Opens all that a daemon begins with. It begins when the function that is returned is called,
/// which serves to its end.
///
/// # Errors
/// As [`Daemon::start`](crate::Daemon::start).
pub(crate) fn prepare(
    config: Config,
    listener: Option<Listener>,
    stop: StopPipe,
) -> Result<(impl FnOnce() -> io::Result<()> + Send, Starting), StartError> {
    config.check()?;
    let slots = config.slot_plan()?;
    // The ports first: of two daemons for one address only one comes to touch the socket.
    let watch = Watch::open(Instant::now());
    let slow_watch = watch.why_slow().map(ToString::to_string);
    let addrs = config.addrs.iter().copied().map(AddressSource::Address);
    let interfaces = config.interfaces.iter().cloned().map(AddressSource::Interface);
    let names = config.device_names();
    let mut ports = Vec::new();
    for (index, source) in addrs.chain(interfaces).enumerate() {
        let name = names.get(index).cloned().unwrap_or_default();
        let opened = open_port(&config, slots, name, source, watch.links())?;
        ports.push(opened.told_apart_from(&ports));
    }
    let metrics = config.metrics.as_ref();
    let metrics = metrics.map(|address| listen_for_scrapers(address, config.mode)).transpose()?;
    let devices: Vec<DeviceSummary> = ports.iter().map(|port| port.summary.clone()).collect();
    let listener = listener.map_or_else(|| listen(&config.socket, config.mode.0), Ok)?;
    let StopPipe { read: stop, write: stopper } = stop;
    let seeds = ports.iter().map(|_| Seeds::new()).collect::<Result<Vec<Seeds>, _>>()?;
    // The captures last: one that does not start leaves those of others alone.
    let ports = ports.into_iter().map(|port| port.begin_capture(&config));
    let ports = ports.collect::<Result<Vec<_>, _>>()?;
    let (tuning, changeable) = (config.tuning, config.changeable());
    let worker = config.worker.clone();
    let make = move |now: Instant| {
        let (mut devices, mut plans) = (Vec::new(), Vec::new());
        for ((opened, capture), seeds) in ports.into_iter().zip(seeds) {
            let Opened { sockets, plan, identity, .. } = opened;
            let own = [seeds.of_slot, seeds.of_cm];
            devices.push(RdmaDevice::new(identity, sockets, own, tuning, now));
            plans.push(DevicePlan { port: plan, capture });
        }
        let beginning =
            Beginning { listener, devices, plans, slots, worker, tuning, watch, stop, changeable };
        EventLoop::new(now, beginning)
    };
    starting(config, devices, slow_watch, metrics, stopper, make)
}

/// The same for a daemon that goes on where another process was: with what that had, whatever the
/// configuration says of it.
///
/// # Errors
/// If that cannot be had.
pub(crate) fn resume(
    mut config: Config,
    resumed: Resumed,
    stop: StopPipe,
) -> Result<(impl FnOnce() -> io::Result<()>, Starting), StartError> {
    let Resumed { state, mut fds } = resumed;
    let step = "going on where another process was";
    let system = |source: io::Error| StartError::System { step, source };
    let times = state.times().map_err(|error| system(error.into()))?;
    let watch = Watch::open(Instant::now());
    let slow_watch = watch.why_slow().map(ToString::to_string);
    (config.slots, config.socket) = (state.control.slots, state.control.socket);
    let mut saved = state.broker;
    let plan = saved.plan(config.slots).ok_or(ConfigError::Slots(config.slots))?;
    let listener = saved.listener.take();
    let (listener, file) = listener.ok_or_else(|| system(io::ErrorKind::NotConnected.into()))?;
    let listener = fds.take(listener).map_err(|error| system(error.into()))?;
    let listener = Listener::resumed(listener, file).map_err(system)?;
    let devices: Vec<DeviceSummary> = saved.devices.iter().map(DeviceSummary::of).collect();
    let metrics = state.control.metrics.and_then(|address| listen_again(&address, &config));
    let seeds = devices.iter().map(|_| Seeds::new()).collect::<Result<Vec<Seeds>, _>>()?;
    let StopPipe { read: stop, write: stopper } = stop;
    let (changeable, worker) = (config.changeable(), config.worker.clone());
    let make = move |now: Instant| {
        let (mut devices, mut plans) = (Vec::new(), Vec::new());
        let tuning = saved.tuning;
        for (device, seeds) in std::mem::take(&mut saved.devices).into_iter().zip(seeds) {
            let own = [seeds.of_slot, seeds.of_cm];
            let (device, plan) = device.restore((times, now), plan, own, tuning, &mut fds)?;
            devices.push(device);
            plans.push(plan);
        }
        let slots = plan;
        let beginning =
            Beginning { listener, devices, plans, slots, worker, tuning, watch, stop, changeable };
        EventLoop::resumed(now, beginning, times, saved, &mut fds)
    };
    starting(config, devices, slow_watch, metrics, stopper, make)
}

/// Listens for scrapers where another process did. A daemon goes on without them, if need be.
fn listen_again(address: &str, config: &Config) -> Option<metrics::Listener> {
    let listener = address
        .parse()
        .map_err(StartError::from)
        .and_then(|address| listen_for_scrapers(&address, config.mode));
    let failed = |error| tracing::error!(target: DAEMON, "no metrics any more: {error}");
    listener.map_err(failed).ok()
}

/// What serves once the event loop is made, and what is told when it is.
fn starting<M: FnOnce(Instant) -> io::Result<EventLoop>>(
    config: Config,
    devices: Vec<DeviceSummary>,
    slow_watch: Option<String>,
    metrics: Option<metrics::Listener>,
    stop: OwnedFd,
    make: M,
) -> Result<(impl FnOnce() -> io::Result<()>, Starting), StartError> {
    let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (ended, runs) = ends.map_err(system("making a pipe"))?;
    let (tell_ready, ready) = mpsc::channel();
    let (directory, mode) = (urxe_shm::sysfs_directory(&config.socket), config.mode);
    let serve = move || {
        // Closed when this ends, whatever makes it.
        let _runs = runs;
        let mut event_loop = make(Instant::now())?;
        let shown = event_loop.show_devices(&directory, mode);
        let broker = (event_loop.asker(), event_loop.changer(), event_loop.upgrader());
        // It fails only if nobody waits any more.
        let _ = tell_ready.send(Ready { shown, broker });
        event_loop.run()
    };
    Ok((serve, Starting { config, devices, slow_watch, metrics, stop, ended, ready }))
}

impl Starting {
    /// Waits until the daemon has begun, in that thread or elsewhere.
    ///
    /// # Errors
    /// If it has ended instead; where there is no thread, why is not known here.
    pub(crate) fn begun(
        self,
        thread: Option<JoinHandle<io::Result<()>>>,
    ) -> Result<Handle, StartError> {
        let Starting { config, devices, slow_watch, metrics, stop, ended, ready } = self;
        let directory = urxe_shm::sysfs_directory(&config.socket);
        let mut handle = Handle {
            config,
            devices,
            slow_watch,
            no_sysfs: None,
            stop,
            thread,
            ended,
            metrics: None,
            broker: None,
        };
        match ready.recv() {
            Ok(Ready { shown, broker }) => {
                let reason = |error| format!("{}: {error}", directory.display());
                handle.no_sysfs = shown.err().map(reason);
                let step = "starting a thread for metrics";
                let serve = |listener| Metrics::serve(listener, broker.0.clone());
                let serving = metrics.map(serve).transpose();
                handle.metrics = serving.map_err(|source| StartError::System { step, source })?;
                handle.broker = Some(broker);
            }
            Err(mpsc::RecvError) => handle
                .join()
                .map_err(|source| StartError::System { step: "starting the event loop", source })?,
        }
        Ok(handle)
    }
}
