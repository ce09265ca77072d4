//! A running daemon: started from a configuration, stopped by dropping its handle.

use crate::broker::device::SavedDevice;
use crate::broker::snapshot::Asker;
use crate::broker::{Changer, Upgrader};
use crate::config::{Config, ConfigError, SocketMode};
use crate::metrics::{self, Metrics, MetricsAddress};
use crate::starting;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use urxe_port::OpenError;
use urxe_shm::control::channel::Listener;
use urxe_slot::port_plan::PortKind;
use urxe_types::PathMtu;

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

impl DeviceSummary {
    /// A device that goes on.
    pub(crate) fn of(saved: &SavedDevice) -> DeviceSummary {
        DeviceSummary {
            name: saved.name.clone(),
            addrs: saved.gids.iter().copied().flatten().collect(),
            mtu: saved.mtu,
            backend: match saved.port.kind {
                PortKind::Udp => "udp",
                PortKind::Raw => "raw",
            },
            interface: saved.link.interface.clone(),
        }
    }
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
        let (serve, starting) = starting::prepare(config, listener, stop)?;
        let thread = std::thread::Builder::new().name("urxed".into()).spawn(serve);
        let step = "starting a thread";
        let thread = thread.map_err(|source| StartError::System { step, source })?;
        starting.begun(Some(thread))
    }
}

/// How a daemon is told to end: by a byte.
pub(crate) struct StopPipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
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
    pub(crate) devices: Vec<DeviceSummary>,
    pub(crate) slow_watch: Option<String>,
    pub(crate) no_sysfs: Option<String>,
    /// A byte written here ends the daemon.
    pub(crate) stop: OwnedFd,
    /// What serves, unless that is no thread of this handle.
    pub(crate) thread: Option<JoinHandle<io::Result<()>>>,
    /// Hangs up when that thread ends.
    pub(crate) ended: OwnedFd,
    pub(crate) metrics: Option<Metrics>,
    /// By this it is asked and told something.
    pub(crate) broker: Option<(Asker, Changer, Upgrader)>,
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
    /// long enough, or its event loop fails. A port that fails for good ends nothing: it is logged
    /// and counted, and the other devices go on.
    ///
    /// # Errors
    /// If the event loop failed.
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

    pub(crate) fn join(&mut self) -> io::Result<()> {
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
pub(crate) fn listen(path: &Path, mode: u32) -> Result<Listener, StartError> {
    Listener::bind(path, mode).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::SocketInUse(path.to_path_buf()),
        io::ErrorKind::AlreadyExists => StartError::NotASocket(path.to_path_buf()),
        _ => StartError::Socket { path: path.to_path_buf(), source },
    })
}

pub(crate) fn system(step: &'static str) -> impl FnOnce(Errno) -> StartError {
    move |errno| StartError::System { step, source: errno.into() }
}
