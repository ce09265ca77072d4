//! A running daemon: started from a configuration, stopped by dropping its handle.

use crate::broker::addresses::{AddressSource, Wanted, first_of_table, is_passing, path_mtu};
use crate::broker::device::{Identity, RdmaDevice, Sockets, guid_of, guid_of_mac};
use crate::broker::snapshot::Asker;
use crate::broker::sockets::PlannedSockets;
use crate::broker::{Beginning, Changer, DevicePlan, EventLoop};
use crate::config::{Config, ConfigError, SocketMode};
use crate::metrics::{self, Metrics, MetricsAddress};
use crate::slot_plan::SlotPlan;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;
use urxe_port::watch::{Links, Watch};
use urxe_port::{Caps, OpenError};
use urxe_shm::control::channel::Listener;
use urxe_slot::port_plan::PortPlan;
use urxe_types::{PathMtu, Slot};

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be served.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// Another daemon serves the socket.
    #[error(
        "socket {}: another urxed answers there; stop it, or choose another path with --socket",
        .0.display()
    )]
    SocketInUse(PathBuf),
    /// Something that is no socket stands in the way.
    #[error(
        "socket {}: exists and is not a socket; remove it, or choose another path with --socket",
        .0.display()
    )]
    NotASocket(PathBuf),
    /// The socket cannot be had.
    #[error("socket {}: {source}", .path.display())]
    Socket {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The capture file cannot be written.
    #[error("capture file {}: {source}", .path.display())]
    Capture {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Metrics cannot be served there.
    #[error("--metrics {address}: {source}")]
    Metrics {
        /// Where they were to be served.
        address: MetricsAddress,
        /// What the system said.
        source: io::Error,
    },
    /// The system refuses something else.
    #[error("{step}: {source}")]
    System {
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A device of a running daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// Its name: `urxe0`, `urxe1` ... in the order of the addresses and interfaces, or the one that
    /// it was given.
    pub name: String,
    /// The addresses that it began with, in the order of its GID table.
    pub addrs: Vec<IpAddr>,
    /// Largest path MTU that its link carries.
    pub mtu: PathMtu,
    /// What its port is: `udp` or `raw`.
    pub backend: &'static str,
    /// The interface that has its addresses.
    pub interface: Option<String>,
}

impl fmt::Display for DeviceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} =", self.name)?;
        self.addrs.iter().try_for_each(|addr| write!(f, " {addr}"))?;
        if self.addrs.is_empty() {
            f.write_str(" no address yet")?;
        }
        write!(f, " (mtu {}, {}", self.mtu.bytes(), self.backend)?;
        if let Some(interface) = &self.interface {
            write!(f, ", {interface}")?;
        }
        f.write_str(")")
    }
}

/// A NIC in user space, to be started.
///
/// ```no_run
/// use urxe_daemon::{Config, Daemon};
///
/// let mut config = Config::new(["127.0.0.1".parse()?]);
/// config.socket = "/tmp/my-device.sock".into();
/// let device = Daemon::start(config)?;
/// println!("connect to {}", device.socket().display());
/// // The NIC lives as long as `device` does.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Daemon;

impl Daemon {
    /// Opens the ports and the socket, and serves them in threads of its own. When this returns,
    /// programs can connect, and find the devices as files in the
    /// [`sysfs_directory`](urxe_shm::sysfs_directory) of the socket.
    ///
    /// # Errors
    /// If the configuration makes no sense, an address cannot be served, or the socket cannot be
    /// had. Nothing is left behind then. That the files cannot be written is none: see
    /// [`Handle::why_no_sysfs`].
    pub fn start(config: Config) -> Result<Handle, StartError> {
        Daemon::start_with(config, None, StopPipe::new()?)
    }

    /// The same, perhaps at a socket that somebody else listens at, to be ended by what is written
    /// to a pipe that is there already.
    pub(crate) fn start_with(
        config: Config,
        listener: Option<Listener>,
        stop: StopPipe,
    ) -> Result<Handle, StartError> {
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
            ports.push(open_port(&config, slots, name, source, watch.links())?);
        }
        let metrics = config.metrics.as_ref();
        let metrics =
            metrics.map(|address| listen_for_scrapers(address, config.mode)).transpose()?;
        let devices: Vec<DeviceSummary> = ports.iter().map(|port| port.summary.clone()).collect();
        let listener = listener.map_or_else(|| listen(&config.socket, config.mode.0), Ok)?;
        let StopPipe { read: stop_read, write: stop_write } = stop;
        let seeds = ports.iter().map(|_| Seeds::new()).collect::<Result<Vec<Seeds>, _>>()?;

        let sysfs_directory = urxe_shm::sysfs_directory(&config.socket);
        let directory = sysfs_directory.clone();
        let (mode, tuning, changeable) = (config.mode, config.tuning, config.changeable());
        let worker = config.worker.clone();
        let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (ended, runs) = ends.map_err(system("making a pipe"))?;
        let (tell_ready, ready) = mpsc::channel();
        let serve = move || {
            // Closed when this thread ends, whatever makes it.
            let _runs = runs;
            let now = Instant::now();
            let (mut devices, mut plans) = (Vec::new(), Vec::new());
            for (opened, seeds) in ports.into_iter().zip(seeds) {
                let Opened { sockets, plan, capture, identity, .. } = opened;
                let own = [seeds.of_slot, seeds.of_cm];
                devices.push(RdmaDevice::new(identity, sockets, own, tuning, now));
                plans.push(DevicePlan { port: plan, capture });
            }
            let mut event_loop = EventLoop::new(
                now,
                Beginning {
                    listener,
                    devices,
                    plans,
                    slots,
                    worker,
                    tuning,
                    watch,
                    stop: stop_read,
                    changeable,
                },
            )?;
            let shown = event_loop.show_devices(&directory, mode);
            // It fails only if the thread that started us no longer waits.
            let _ = tell_ready.send((shown, event_loop.asker(), event_loop.changer()));
            event_loop.run()
        };
        let thread = std::thread::Builder::new().name("urxed".into()).spawn(serve);
        let thread =
            thread.map_err(|source| StartError::System { step: "starting a thread", source })?;
        let (stop, thread) = (stop_write, Some(thread));
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
            Ok((shown, asker, changer)) => {
                let reason = |error| format!("{}: {error}", sysfs_directory.display());
                handle.no_sysfs = shown.err().map(reason);
                let step = "starting a thread for metrics";
                let serve = |listener| Metrics::serve(listener, asker.clone());
                let serving = metrics.map(serve).transpose();
                handle.metrics = serving.map_err(|source| StartError::System { step, source })?;
                handle.broker = Some((asker, changer));
            }
            // It ended instead.
            Err(mpsc::RecvError) => handle
                .join()
                .map_err(|source| StartError::System { step: "starting the event loop", source })?,
        }
        Ok(handle)
    }
}

/// How a daemon is told to end: by a byte.
pub(crate) struct StopPipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl StopPipe {
    pub(crate) fn new() -> Result<StopPipe, StartError> {
        let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (read, write) = ends.map_err(system("making a pipe"))?;
        Ok(StopPipe { read, write })
    }

    /// A descriptor to write the byte to.
    pub(crate) fn stopper(&self) -> io::Result<OwnedFd> {
        self.write.try_clone()
    }
}

/// A running daemon. Dropping it ends the daemon: programs lose their connection, and the socket
/// is removed.
#[derive(Debug)]
pub struct Handle {
    /// What it was started with, and what of that has been changed since.
    pub(crate) config: Config,
    devices: Vec<DeviceSummary>,
    slow_watch: Option<String>,
    no_sysfs: Option<String>,
    /// A byte written here ends the daemon.
    stop: OwnedFd,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Hangs up when that thread ends.
    pub(crate) ended: OwnedFd,
    pub(crate) metrics: Option<Metrics>,
    /// By this it is asked and told something.
    pub(crate) broker: Option<(Asker, Changer)>,
}

impl Handle {
    /// The socket that programs connect to.
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// Why changes of links and addresses are noticed within a second only, if they are: the
    /// system refuses the netlink socket on which the kernel tells of them.
    pub fn why_slow_watch(&self) -> Option<&str> {
        self.slow_watch.as_deref()
    }

    /// Why the devices are not shown as files, if they are not: native programs can use them, but
    /// stock rdma-core finds none.
    pub fn why_no_sysfs(&self) -> Option<&str> {
        self.no_sysfs.as_deref()
    }

    /// Where metrics are to be had, if anywhere: with the port that was found, if any would do.
    pub fn metrics(&self) -> Option<&MetricsAddress> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// The devices, in the order of the addresses and interfaces.
    pub fn devices(&self) -> &[DeviceSummary] {
        &self.devices
    }

    /// Serves until [`stopper`](Self::stopper) is used, the daemon has [lingered](Config::linger)
    /// long enough, or a port fails for good.
    ///
    /// # Errors
    /// If a port or the event loop failed.
    pub fn wait(mut self) -> io::Result<()> {
        self.join()
    }

    /// A descriptor to which a byte may be written, even by a signal handler, to end the daemon: at
    /// once, or when it has [drained](Config::drain). Two bytes end it at once.
    ///
    /// # Errors
    /// If this process can have no more descriptors.
    pub fn stopper(&self) -> io::Result<OwnedFd> {
        self.stop.try_clone()
    }

    fn join(&mut self) -> io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the event loop panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // The read end lives as long as the thread; without it there is nothing to stop.
            // Twice: it is to end now.
            let _ = rustix::io::write(&self.stop, &[0; 2]);
            let _ = self.join();
        }
    }
}

/// What makes the numbers of a device unpredictable, as far as they are the broker's. Those of
/// connections are told to everybody, so that they have a seed of their own.
struct Seeds {
    of_slot: u64,
    of_cm: u64,
}

impl Seeds {
    fn new() -> Result<Seeds, StartError> {
        let seeds =
            getrandom::u64().and_then(|of_slot| Ok(Seeds { of_slot, of_cm: getrandom::u64()? }));
        let step = "getting random numbers";
        seeds.map_err(|error| StartError::System { step, source: error.into() })
    }
}

/// The sockets of a device, with what is to be said about it.
struct Opened {
    sockets: Sockets,
    plan: PortPlan,
    capture: Option<File>,
    identity: Identity,
    summary: DeviceSummary,
}

fn open_port(
    config: &Config,
    slots: SlotPlan,
    name: String,
    source: AddressSource,
    links: &Links,
) -> Result<Opened, StartError> {
    let near = source.link(links).map(|link| link.name.clone());
    let plan = PortPlan {
        kind: config.port_backend.into(),
        interface: match &source {
            AddressSource::Interface(name) => name.clone(),
            AddressSource::Address(_) => near.clone().unwrap_or_else(|| LOOPBACK.into()),
        },
        source_ports: config.source_ports,
        fault: config.fault.clone(),
    };
    let capture = match &config.capture {
        Some(path) => {
            let path = capture_path(path, &name, config.addrs.len() + config.interfaces.len());
            let file = create(&path).map_err(|source| StartError::Capture { path, source })?;
            Some(file)
        }
        None => None,
    };
    let own_capture = capture.as_ref().map(File::try_clone).transpose();
    let own_capture = own_capture
        .map_err(|source| StartError::System { step: "taking the capture file", source })?;
    let mut sockets = Sockets {
        port: plan.open(Slot::ALONE.id(), own_capture)?,
        source: Box::new(PlannedSockets { plan: plan.clone(), slots }),
        groups: BTreeMap::new(),
    };
    let mut table = Vec::new();
    let wanted = match &source {
        // One that is on no link is opened all the same: the system says why it cannot be.
        AddressSource::Address(addr) => vec![Wanted { addr: *addr, usable: true }],
        AddressSource::Interface(_) => source.addresses(links),
    };
    for wanted in first_of_table(wanted) {
        let added = match wanted.usable {
            true => sockets.add(wanted.addr, near.as_deref()),
            false => Ok(()),
        };
        match added {
            // An interface need not have any yet.
            Err(error) if matches!(source, AddressSource::Interface(_)) && is_passing(&error) => {}
            result => result?,
        }
        table.push(wanted.addr);
    }
    let Caps { addrs, backend, interface, link_mtu, .. } = sockets.port.caps();
    let mtu = path_mtu(link_mtu, addrs.iter().copied());
    let guid = guid(&source, links, addrs.first().copied());
    let summary = DeviceSummary { name: name.clone(), addrs, mtu, backend, interface };
    let identity = Identity { name, guid, source, table };
    Ok(Opened { sockets, plan, capture, identity, summary })
}

/// The interface that every machine has.
const LOOPBACK: &str = "lo";

/// A new file, to which several can write, each at its end.
fn create(path: &Path) -> io::Result<File> {
    File::create(path)?;
    OpenOptions::new().append(true).open(path)
}

/// What tells a device apart: its interface's hardware address where it stands for all of it, else
/// its address.
fn guid(source: &AddressSource, links: &Links, first: Option<IpAddr>) -> [u8; 8] {
    let mac = match source {
        AddressSource::Address(_) => None,
        AddressSource::Interface(_) => source.link(links).and_then(|link| link.mac),
    };
    match mac.filter(|mac| *mac != [0; 6]) {
        Some(mac) => guid_of_mac(mac),
        None => guid_of(first.unwrap_or(Ipv4Addr::UNSPECIFIED.into())),
    }
}

/// The capture file of one of several devices: its name goes before the extension.
fn capture_path(path: &Path, device: &str, devices: usize) -> PathBuf {
    if devices == 1 {
        return path.to_path_buf();
    }
    let extension = path
        .extension()
        .map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    path.with_extension(format!("{device}{extension}"))
}

/// Listens for scrapers of metrics.
pub(crate) fn listen_for_scrapers(
    address: &MetricsAddress,
    mode: SocketMode,
) -> Result<metrics::Listener, StartError> {
    metrics::Listener::bind(address, mode.0)
        .map_err(|source| StartError::Metrics { address: address.clone(), source })
}

/// Listens for programs. The file of a daemon that is gone is replaced; anything else that stands
/// at the path is left alone.
fn listen(path: &Path, mode: u32) -> Result<Listener, StartError> {
    Listener::bind(path, mode).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::SocketInUse(path.to_path_buf()),
        io::ErrorKind::AlreadyExists => StartError::NotASocket(path.to_path_buf()),
        _ => StartError::Socket { path: path.to_path_buf(), source },
    })
}

fn system(step: &'static str) -> impl FnOnce(Errno) -> StartError {
    move |errno| StartError::System { step, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_devices_have_a_capture_file_each() {
        let path = Path::new("/tmp/bad.day/roce.pcapng");
        assert_eq!(capture_path(path, "urxe0", 1), path);
        assert_eq!(capture_path(path, "urxe1", 2), Path::new("/tmp/bad.day/roce.urxe1.pcapng"));
        assert_eq!(capture_path(Path::new("roce"), "urxe1", 2), Path::new("roce.urxe1"));
    }
}
