//! The device of this machine from which the peer is asked: one of a daemon that runs, else one of
//! our own, which ends with us.

use super::report::{Facts, Finding, Found};
use super::route::Route;
use crate::asking::{ANSWER_TIMEOUT, Asked};
use crate::cli::DaemonArguments;
use crate::daemon_client::{DaemonClient, DeviceStats};
use crate::error::Error;
use crate::output;
use crate::roce_port::{self, PortState};
use crate::run::free_loopback;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;
use urxe_daemon::{Config, Daemon, Handle};
use urxe_verbs::{Context, OpenOptions};

/// A device that can ask.
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) address: IpAddr,
    socket: PathBuf,
    // In this order: the daemon ends when nothing uses it any more.
    own: Option<OwnDaemon>,
}

/// A daemon in this process. It ends when it is dropped, and then its directory goes.
struct OwnDaemon {
    _daemon: Handle,
    _directory: TempDir,
}

impl Device {
    /// What it has counted so far.
    pub(super) fn stats(&self, stop: &Arc<AtomicBool>) -> Result<DeviceStats, Error> {
        let socket = DaemonArguments { socket: Some(self.socket.clone()) };
        let mut client = DaemonClient::connect_unless_stopped(&socket, "ping", Arc::clone(stop))?;
        client.stats(&self.context.device().name)
    }

    /// Its daemon does not answer.
    pub(super) fn is_silent(&self) -> Error {
        Error::Silent(self.socket.display().to_string())
    }

    /// The device of a daemon that has the address, or, within the loopback network, any address
    /// from which that of the peer is reached.
    fn of_daemon(socket: &Path, route: &Route, stop: &AtomicBool) -> Result<Option<Device>, Error> {
        let (place, source, peer) = (socket.to_owned(), route.source(), route.peer().ip());
        let asked = Asked::begin(move || Device::ask(&place, source, peer));
        let answer = asked.unless_stopped(ANSWER_TIMEOUT, stop);
        answer.map_err(|_| Error::Silent(socket.display().to_string()))
    }

    /// The same, however long it takes.
    fn ask(socket: &Path, source: IpAddr, peer: IpAddr) -> Option<Device> {
        let options = OpenOptions::new().socket(socket);
        let devices = urxe_verbs::devices(&options).ok()?;
        let contexts: Vec<Context> = devices
            .into_iter()
            .filter_map(|device| Context::open(&options.clone().device(device.name)).ok())
            .collect();
        let find = |fits: &dyn Fn(IpAddr) -> bool| {
            contexts.iter().find_map(|context| {
                let gids = context.gids(1).ok()?;
                let address = gids.into_iter().map(|(_, gid)| gid).find(|gid| fits(*gid))?;
                let (context, socket) = (context.clone(), socket.to_owned());
                Some(Device { context, address, socket, own: None })
            })
        };
        let is_near = |gid: IpAddr| {
            gid.is_loopback() && peer.is_loopback() && gid.is_ipv4() == peer.is_ipv4()
        };
        find(&|gid| gid == source).or_else(|| find(&is_near))
    }

    /// A device of a daemon of our own, on an address whose port is free.
    fn own(address: IpAddr) -> Result<Device, String> {
        let directory = TempDir::with_prefix("urxe-ping-").map_err(|error| error.to_string())?;
        let mut config = Config::new([address]);
        config.socket = directory.path().join("urxed.sock");
        (config.slots, config.source_ports) = (1, 1);
        let daemon = Daemon::start(config).map_err(|error| error.to_string())?;
        let socket = daemon.socket().to_owned();
        let context = Context::open(&OpenOptions::new().socket(&socket));
        let context = context.map_err(|error| error.to_string())?;
        let own = Some(OwnDaemon { _daemon: daemon, _directory: directory });
        Ok(Device { context, address, socket, own })
    }

    fn found(self) -> Found<Device> {
        let (name, address) = (self.context.device().name.clone(), self.address);
        let says = match &self.own {
            Some(_) => format!("no daemon runs on {address}: asked from a device of our own there"),
            None => {
                format!(
                    "asked from {name} on {address}, of the daemon at {}",
                    self.socket.display()
                )
            }
        };
        let (socket, own) = (self.socket.clone(), self.own.is_some());
        let facts = Facts::Device { device: name, address, socket, own };
        (Finding::ok(says).with(facts), Some(self))
    }
}

/// A device on the address that the route has.
pub(super) fn find(daemon: &DaemonArguments, route: &Route, stop: &AtomicBool) -> Found<Device> {
    let source = route.source();
    for socket in daemon.sockets() {
        match Device::of_daemon(&socket, route, stop) {
            Ok(Some(device)) => return device.found(),
            Ok(None) => {}
            Err(silent) if daemon.socket.is_some() => {
                let advice = "let it go on (`kill -CONT`), or leave --socket out";
                return (Finding::failed(silent.to_string(), advice), None);
            }
            Err(silent) => output::note(format_args!("urxe ping: {silent}; it is left out")),
        }
    }
    if let Some(socket) = &daemon.socket {
        let finding = Finding::failed(
            format!("the daemon at {} has no device on {source}", socket.display()),
            format!(
                "give --source an address of one of its devices (`urxe devinfo --socket {}`), or \
                 leave --socket out",
                socket.display()
            ),
        );
        return (finding, None);
    }
    let peer = route.peer().ip();
    match address_of_our_own(source, peer) {
        Ok(address) => match Device::own(address) {
            Ok(device) => device.found(),
            Err(reason) => {
                let says = format!("no daemon runs on {address}, and one did not start: {reason}");
                (Finding::failed(says, "`urxe doctor` tells what is missing"), None)
            }
        },
        Err(finding) => (*finding, None),
    }
}

/// Where a device of our own may be. Were it on the peer's address, it would answer itself.
fn address_of_our_own(source: IpAddr, peer: IpAddr) -> Result<IpAddr, Box<Finding>> {
    let failed = |says: String, advice: &str| Box::new(Finding::failed(says, advice));
    let fits = |address: &IpAddr| *address != peer && address.is_ipv4() == peer.is_ipv4();
    if source.is_loopback() {
        let free = Some(source).filter(|_| roce_port::state(source) == PortState::Free);
        let found = free.filter(fits).or_else(|| free_loopback().filter(fits));
        return found.ok_or_else(|| {
            failed(
                format!("no loopback address is free from which {peer} could be asked"),
                "run `urxe ping` with --socket at a daemon that has one",
            )
        });
    }
    match roce_port::state(source) {
        PortState::Free if source == peer => Err(failed(
            format!("{peer} is an address of this machine, and no device is on it"),
            &format!("`urxe daemon --addr {peer}` starts one"),
        )),
        PortState::Taken(owner) => Err(failed(
            format!("answers would go to {owner}, which has UDP port 4791 of {source}"),
            "only the device that has that port hears answers: if it is a daemon of urxe, name \
             its socket with --socket; if it is kernel rxe, `rping` tests the way from there; \
             else give another address with --source",
        )),
        // If it is not to be had, the daemon says why better.
        PortState::Free | PortState::Refused(_) => Ok(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use urxe_wire::ROCE_PORT;

    #[test]
    fn a_device_of_our_own_is_never_on_the_address_that_is_asked_nor_on_one_that_is_taken() {
        let localhost = IpAddr::from([127, 0, 0, 1]);
        let hosts = (1..=250).map(|host| IpAddr::from([127, 77, 1, host]));
        let taken = hosts.into_iter().find_map(|host| UdpSocket::bind((host, ROCE_PORT)).ok());
        let taken = taken.expect("one of 250 addresses is free");
        let of_taken = taken.local_addr().unwrap().ip();
        for source in [localhost, of_taken] {
            if let Ok(address) = address_of_our_own(source, localhost) {
                assert!(address.is_loopback() && address.is_ipv4());
                assert!(address != localhost && address != of_taken, "{address}");
            }
        }
    }
}
