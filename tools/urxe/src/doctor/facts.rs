//! What there is on this machine, as far as verbs programs need it. Nothing is judged here.

use super::trial;
use crate::asking::{ANSWER_TIMEOUT, Asked, SAYS_NOTHING};
use crate::roce_port::{self, PortState};
use crate::run::{MissingLibrary, choose_address, find_library, free_loopback};
use rustix::thread::{SecureComputingMode, secure_computing_mode};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use urxe_port::watch::Watch;
use urxe_shm::control::channel::{Channel, Listener};
use urxe_shm::memory::remap;
use urxe_shm::{SYSTEM_SOCKET, daemon_sockets};
use urxe_verbs::{Context, Error, OpenOptions};

/// What was seen.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The verbs library.
    pub(super) libibverbs: Option<PathBuf>,
    /// Its provider for rxe devices.
    pub(super) librxe: Option<PathBuf>,
    /// The file that tells it to load that provider.
    pub(super) driver_file: bool,
    /// Programs to try.
    pub(super) perftest: bool,
    /// Our shim, or why there is none.
    pub(super) library: Result<PathBuf, MissingLibrary>,
    /// The daemons that take connections at the usual places.
    pub(super) daemons: Vec<Daemon>,
    /// Where one is that `urxe run` starts.
    pub(super) own_socket: PathBuf,
    /// The system's daemon is there, but not for us.
    pub(super) system_daemon_refuses: bool,
    /// What a daemon that is started would serve.
    pub(super) address: IpAddr,
    /// Its UDP port 4791.
    pub(super) port: PortState,
    /// Another address that it would serve if that is taken.
    pub(super) loopback: Option<IpAddr>,
    /// A socket could be made where that of a daemon would be, or why not.
    pub(super) socket_place: Result<(), String>,
    /// The interface of that address, and its MTU.
    pub(super) link: Option<(String, u32)>,
    /// What came of doing what a program and a daemon do.
    pub(super) trial: Result<trial::Tried, trial::Failure>,
    /// A filter of system calls is on us.
    pub(super) is_filtered: bool,
    /// We may use userfaultfd, of which root always may.
    pub(super) userfaultfd: bool,
    /// The longest memory of a stock program that is mapped, in bytes, as `URXE_MR` wishes.
    pub(super) longest_mapped: u64,
    /// RDMA devices of the kernel.
    pub(super) kernel_devices: Vec<String>,
    /// Most bytes of a socket's receive buffer.
    pub(super) rmem_max: Option<u64>,
    /// Most bytes of a socket's send buffer.
    pub(super) wmem_max: Option<u64>,
    /// Processors that we may use.
    pub(super) cores: usize,
}

/// A daemon that takes connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    pub(super) socket: PathBuf,
    pub(super) pid: Option<u32>,
    /// Devices that can be opened.
    pub(super) devices: Vec<Device>,
    /// Those that cannot: their names, and why not.
    pub(super) closed: Vec<(String, String)>,
    /// Why nothing is known of it: it refuses, is not understood, or says nothing.
    pub(super) refuses: Option<String>,
}

/// A device of a daemon.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) firmware: String,
    pub(super) active: bool,
    pub(super) mtu: u16,
    pub(super) gids: Vec<(u8, IpAddr)>,
}

impl Facts {
    /// Looks at this machine.
    pub(super) fn of_this_machine() -> Facts {
        let address = choose_address();
        let watch = Watch::open(Instant::now());
        let link = watch.links().with_address(address);
        let libraries = library_directories();
        let place = urxe_shm::socket_path();
        let place = place.with_file_name(format!("doctor-{}.sock", std::process::id()));
        let socket_place = try_socket(&place);
        let trial_socket = match &socket_place {
            Ok(()) => place,
            // What is wrong with that place is said; the rest is tried elsewhere.
            Err(_) => std::env::temp_dir().join(place.file_name().unwrap_or_default()),
        };
        let port = roce_port::state(address);
        let is_taken = matches!(port, PortState::Taken(_));
        let sockets = daemon_sockets();
        let daemons: Vec<Daemon> = sockets.iter().filter_map(|path| Daemon::at(path)).collect();
        Facts {
            libibverbs: libraries
                .iter()
                .map(|directory| directory.join("libibverbs.so.1"))
                .find(|path| path.exists()),
            librxe: libraries.iter().find_map(|directory| provider(&directory.join("libibverbs"))),
            driver_file: Path::new("/etc/libibverbs.d/rxe.driver").exists(),
            perftest: is_in_path("ib_write_bw"),
            library: find_library(),
            system_daemon_refuses: sockets.iter().any(|path| path == Path::new(SYSTEM_SOCKET))
                && daemons.iter().all(|daemon| daemon.socket != Path::new(SYSTEM_SOCKET))
                && is_closed_to_us(Path::new(SYSTEM_SOCKET)),
            daemons,
            own_socket: urxe_shm::socket_path(),
            address,
            port,
            loopback: is_taken.then(free_loopback).flatten(),
            socket_place,
            link: link.map(|link| (link.name.clone(), link.mtu)),
            trial: trial::run(&trial_socket),
            is_filtered: is_filtered(),
            userfaultfd: rustix::process::geteuid().is_root()
                || number("/proc/sys/vm/unprivileged_userfaultfd") == Some(1),
            longest_mapped: remap::longest_wanted(remap::LONGEST_BY_DEFAULT),
            kernel_devices: names("/sys/class/infiniband"),
            rmem_max: number("/proc/sys/net/core/rmem_max"),
            wmem_max: number("/proc/sys/net/core/wmem_max"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Daemon {
    /// The daemon at a socket, if one takes connections there.
    fn at(socket: &Path) -> Option<Daemon> {
        let place = socket.to_owned();
        let asked = Asked::begin(move || Daemon::ask(&place)).within(ANSWER_TIMEOUT);
        asked.unwrap_or_else(|_| Some(Daemon::that_refuses(socket, format!("it {SAYS_NOTHING}"))))
    }

    fn that_refuses(socket: &Path, why: String) -> Daemon {
        Daemon { socket: socket.to_owned(), refuses: Some(why), ..Daemon::default() }
    }

    /// The same, however long it takes.
    fn ask(socket: &Path) -> Option<Daemon> {
        let options = OpenOptions::new().socket(socket);
        let found = match urxe_verbs::devices(&options) {
            Ok(found) => found,
            Err(Error::Connect(_)) => return None,
            Err(error) => return Some(Daemon::that_refuses(socket, error.to_string())),
        };
        let mut daemon = Daemon { socket: socket.to_owned(), ..Daemon::default() };
        for device in found {
            match Context::open(&options.clone().device(&device.name)) {
                Ok(context) => {
                    daemon.pid = daemon.pid.or(context.daemon_pid());
                    match Device::of(&context) {
                        Ok(device) => daemon.devices.push(device),
                        Err(error) => daemon.closed.push((device.name, error.to_string())),
                    }
                }
                Err(error) => daemon.closed.push((device.name, error.to_string())),
            }
        }
        Some(daemon)
    }
}

impl Device {
    fn of(context: &Context) -> Result<Device, Error> {
        let port = context.query_port(1)?;
        Ok(Device {
            name: context.device().name.clone(),
            firmware: context.query_device()?.fw_ver,
            active: port.active,
            mtu: port.active_mtu.into(),
            gids: context.gids(1)?,
        })
    }
}

/// Whether there is a socket that this user may not connect to.
fn is_closed_to_us(socket: &Path) -> bool {
    Channel::connect(socket).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// How folders end that have the libraries of this program's libc alone.
const MULTIARCH: &str = if cfg!(target_env = "musl") { "-linux-musl" } else { "-linux-gnu" };

/// Where the loader looks for libraries.
fn library_directories() -> Vec<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&named).collect();
    for base in ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"] {
        let multiarch = names(base).into_iter().filter(|name| name.ends_with(MULTIARCH));
        let multiarch = multiarch.map(|name| Path::new(base).join(name));
        directories.extend(multiarch.chain([base.into()]));
    }
    directories
}

/// The provider for rxe devices in a directory, whatever release it is of.
fn provider(directory: &Path) -> Option<PathBuf> {
    let is_librxe = |name: &String| name.starts_with("librxe") && name.ends_with(".so");
    names(directory).into_iter().find(is_librxe).map(|name| directory.join(name))
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Makes a socket, and its directory if there is none, as a daemon would.
fn try_socket(path: &Path) -> Result<(), String> {
    match Listener::bind(path, 0o600) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{}: {error}", path.parent().unwrap_or(path).display())),
    }
}

/// Whether some system calls are forbidden to us, as in many containers.
fn is_filtered() -> bool {
    secure_computing_mode() == Ok(SecureComputingMode::Filter)
}

/// The number in a file of the kernel's.
fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What is in a directory, in order; nothing if it is not there.
fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
