//! What a daemon is started with: the command line, the configuration file, and what they come
//! to together.

use crate::config_file::ConfigFile;
use crate::congestion::Congestion;
use crate::log::{LogFilter, LogFormat};
use crate::metrics::MetricsAddress;
use crate::slot_plan::SlotPlan;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use urxe_engine::{Tuning, WireForm};
use urxe_port::fault::{Direction, FaultSpec, Packets};
use urxe_port::udp::UdpOptions;
use urxe_slot::port_plan::PortKind;
use urxe_types::SlotCount;
use urxe_wire::Opcode;

/// What can be set, under the same names on the command line and in the configuration file.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// Address to serve, one RDMA device each: urxe0 for the first, urxe1 for the second ...
    ///
    /// It must be an address of this machine (`ip addr` lists them), IPv4 or IPv6. The device
    /// answers on UDP port 4791 of it and of no other, so several daemons can run side by side
    /// on different addresses; for a try without any network, 127.0.0.1 and 127.0.0.2 will do.
    #[arg(long, value_name = "ADDR")]
    pub addr: Vec<IpAddr>,

    /// Network interface to serve with all its addresses, one RDMA device each; they are numbered
    /// behind those of --addr.
    ///
    /// The device's GID table follows the interface: link-local first, then IPv4, then other IPv6
    /// addresses; one that comes later takes the first free index. VLAN and bond interfaces are
    /// interfaces like any other (`ip link` lists them).
    #[arg(long, value_name = "NAME")]
    pub interface: Vec<String>,

    /// Name of a device, in place of urxe0, urxe1 ...: for programs that insist on one such as rxe0
    /// or mlx5_0.
    ///
    /// The first name is that of the first device, and so on; devices that are left have the names
    /// that they would have anyway.
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,

    /// Socket that programs connect to [default: $URXE_SOCKET, or urxe/urxed.sock in
    /// $XDG_RUNTIME_DIR, or /tmp/urxe-UID/urxed.sock; for root /run/urxe/urxed.sock, where
    /// programs of all users look].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Permissions of the socket, in octal: who may use the devices [default: 600, our own user
    /// only; 666 is everybody who can reach the path].
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "from_text")]
    pub mode: Option<SocketMode>,

    /// How many slots serve programs of our own user, each in a thread of its own [default: as many
    /// as there are processors but one, 1 to 32].
    ///
    /// A slot is the whole data path once; a program is served by one, and the kernel gives each
    /// slot the packets of its QPs. Every other user has one slot, in a process of that user where
    /// we may make one, as long as slots are left of 63. With --fault there is one for all users,
    /// and also with an IPv6 loopback address, over which multicast passes within a slot only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_SLOTS)))]
    #[serde(deserialize_with = "slots")]
    pub slots: Option<u8>,

    /// How packets reach the wire [default: udp].
    #[arg(long, value_name = "BACKEND", value_enum)]
    pub port_backend: Option<PortBackend>,

    /// How much is sent to a peer, and how fast, by what the network tells [default: on].
    ///
    /// `off`: 1 MiB under way to and from each peer, for a network that loses nothing. Otherwise
    /// a comma list of what is to differ from `on`: `dcqcn` or `mlx5` for the rates towards peers
    /// that send congestion notifications; `ecn=off|agreed|on` for the packets that switches may
    /// mark (agreed: to peers that are known to tell of marks); `delay=500us` for how much longer
    /// a round trip may get, and `others=50us` for the same while short messages of other programs
    /// get slower by so much; `fill=25%` for the part of our own socket buffer from which packets
    /// count as marked; `notify=50us` between two notifications of a QP.
    #[arg(long, value_name = "SPEC")]
    #[serde(deserialize_with = "from_text")]
    pub congestion: Option<Congestion>,

    /// How many UDP source ports the QPs of an address are spread over in each slot, so that a
    /// network with several paths and a NIC with several receive queues can tell them apart
    /// [default: 16].
    ///
    /// Those of slot S begin at 49152 + S x N, and S at 1 for programs; one that another program
    /// has is done without. Packets between devices of this daemon, and to multicast groups, leave
    /// from port 4791, and with 1 all packets do. Raw sockets have all ports anyway.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_SOURCE_PORTS)))]
    #[serde(deserialize_with = "source_ports")]
    pub source_ports: Option<u8>,

    /// How packets from a device to itself, or to another device of this daemon, go between
    /// programs of one user [default: memory].
    ///
    /// `memory`: within the process that serves them, copied once. `kernel`: through the system's
    /// sockets and its loopback interface, like those between users, so that tcpdump shows them,
    /// and tc and nftables can be tried on them. --capture, --fault and `urxe capture` see them
    /// either way. Raw sockets always send them; so do, to other devices, the process of another
    /// user and a program that runs its own slot.
    #[arg(long, value_name = "WAY", value_enum)]
    pub loopback: Option<Loopback>,

    /// How RC messages become packets [default: uniform].
    ///
    /// Both are standard to peers that keep to it, and programs see no difference. `uniform` makes
    /// packets of one size, of which one system call sends many: a WRITE without immediate goes as
    /// WRITE ONLYs, which makes WRITEs of a few KiB several times as fast; and between two daemons
    /// that have agreed on it, a READ is answered in READ RESPONSE ONLYs. `strict` sends FIRST,
    /// MIDDLEs and LAST as rdma_rxe does: for peers and tools that count messages on the wire, and
    /// where a WRITE that leaves its region shall be refused before anything of it is stored.
    #[arg(long, value_name = "FORM", value_enum)]
    pub wire: Option<Wire>,

    /// Break the network on purpose, for tests.
    ///
    /// A comma list, for example `drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=100us..2ms`,
    /// with `seed=7` to repeat a run and `dir=tx|rx|both`; `drop:write:3` drops exactly the third
    /// packet of WRITEs, and, with --wire strict, `drop:write-last:3` the third WRITE LAST. Such a
    /// rule is ACTION:PACKET:COUNT: drop, dup, reorder or corrupt; an opcode such as write-last,
    /// ack or read-response, or any; 3, 3-5 or 3- (from the third on). A capture shows what is left
    /// on the wire. One slot serves all programs then, so that there is
    /// a third packet; what the connection manager sends is counted by itself.
    #[arg(long, value_name = "SPEC")]
    #[serde(deserialize_with = "from_text")]
    pub fault: Option<FaultSpec>,

    /// Record all packets, both ways, in a pcapng file for Wireshark.
    ///
    /// What the system did not send (a firewall forbade it, there was no route) is there as well:
    /// `urxe stat` counts it under names that begin with tx_. With several devices each has its own
    /// file, with the device's name before the extension: `roce.pcapng` becomes
    /// `roce.urxe0.pcapng`, `roce.urxe1.pcapng`.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// Answer `GET /metrics` here in the text format of OpenMetrics, for Prometheus and the like:
    /// an address and a TCP port, or the path of a Unix socket [default: nowhere].
    ///
    /// Metrics are what `urxe stat` counts, with the same names and sentences, and how many objects
    /// and paths there are; each slot by itself, with its user. No peer and no program is named.
    /// Whoever can connect may read them, as all programs of this machine can on a loopback
    /// address; a Unix socket has the permissions of --mode.
    #[arg(long, value_name = "ADDRESS")]
    #[serde(deserialize_with = "from_text")]
    pub metrics: Option<MetricsAddress>,

    /// What is logged, on standard error [default: $URXED_LOG, or warn,daemon=info].
    ///
    /// A level for all (off, error, warn, info or debug), or a comma list of one and of
    /// SUBJECT=LEVEL: `info`, `slot=debug`, `info,request=off`. Subjects are `daemon` (its start
    /// and end), `session` (programs that come and go), `request` (what they are refused, and why),
    /// `qp` (QPs that fail, and why), `slot` (threads and processes that serve programs) and
    /// `device` (links and addresses). Of what a user causes again and again, 20 are logged at
    /// once, then one each second, with how many were not.
    #[arg(long, value_name = "FILTER")]
    #[serde(deserialize_with = "from_text")]
    pub log: Option<LogFilter>,

    /// Form of the log [default: text, with priorities where journald reads it].
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,

    /// End by itself so many seconds after the last program went, or after the start if none
    /// comes [default: never].
    ///
    /// A program that is connected is there, even if it has asked for nothing yet.
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "linger")]
    pub linger: Option<NonZeroU32>,

    /// When told to end, wait so many seconds at most until all programs are gone [default: end at
    /// once].
    ///
    /// None can connect meanwhile; at the socket of a service manager, they wait for the next
    /// daemon. A second signal ends it at once.
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "drain")]
    pub drain: Option<NonZeroU32>,

    /// How many programs of one user can be connected at a time [default: what leaves room for
    /// other users, up to two thirds of 2048].
    ///
    /// A program that runs its slot itself counts twice. Where fewer descriptors can be had than
    /// that takes (`ulimit -n`), there are fewer for all.
    #[arg(long, value_name = "N")]
    #[serde(deserialize_with = "sessions")]
    pub sessions_per_user: Option<NonZeroU32>,

    /// How many ids of the connection manager (connections, listeners and others) the programs of
    /// one user can have together [default: what leaves room for other users, up to two thirds of
    /// 131072].
    #[arg(long, value_name = "N")]
    #[serde(deserialize_with = "cm_ids")]
    pub cm_ids_per_user: Option<NonZeroU32>,
}

/// How packets reach the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortBackend {
    /// Plain UDP sockets. Needs no privilege and is the fastest.
    #[default]
    Udp,
    /// Raw sockets, which see and write every header byte. Needs CAP_NET_RAW.
    Raw,
}

impl From<PortBackend> for PortKind {
    fn from(backend: PortBackend) -> PortKind {
        match backend {
            PortBackend::Udp => PortKind::Udp,
            PortBackend::Raw => PortKind::Raw,
        }
    }
}

/// How packets among the devices of a daemon go, between QPs that one process serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loopback {
    /// Within that process. The fastest.
    #[default]
    Memory,
    /// Through the system's sockets, where others can see them.
    Kernel,
}

/// How RC messages become packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// Packets of one size where the standard allows it. The fastest.
    #[default]
    Uniform,
    /// FIRST, MIDDLEs and LAST, as rdma_rxe sends them.
    Strict,
}

impl From<Wire> for WireForm {
    fn from(wire: Wire) -> WireForm {
        match wire {
            Wire::Uniform => WireForm::Uniform,
            Wire::Strict => WireForm::Strict,
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::Uniform => "uniform",
            Wire::Strict => "strict",
        })
    }
}

/// Permission bits of the socket file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(pub u32);

impl Default for SocketMode {
    fn default() -> Self {
        SocketMode(0o600)
    }
}

impl FromStr for SocketMode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match u32::from_str_radix(text, 8) {
            Ok(bits) if bits <= 0o777 => Ok(SocketMode(bits)),
            _ => Err(ConfigError::Mode(text.to_owned())),
        }
    }
}

/// What is written in the file as it would be on the command line.
fn from_text<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    let value = String::deserialize(deserializer)?.parse();
    value.map(Some).map_err(serde::de::Error::custom)
}

/// A number from 1 on, as the command line takes it, of the setting of this name.
fn number<'de, N, D>(deserializer: D, name: &str, max: N) -> Result<Option<N>, D::Error>
where
    N: TryFrom<i64> + PartialOrd + fmt::Display,
    D: Deserializer<'de>,
{
    let value = toml::Value::deserialize(deserializer)?;
    let positive = value.as_integer().filter(|number| *number > 0);
    let number = positive.and_then(|number| N::try_from(number).ok());
    // SLOT-126
    number
        .filter(|number| *number <= max)
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(format!("{name} {value}: expected 1 to {max}")))
}

fn slots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    number(deserializer, "slots", MAX_SLOTS)
}

fn source_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    number(deserializer, "source-ports", MAX_SOURCE_PORTS)
}

fn linger<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    count(deserializer, "linger")
}

fn drain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    count(deserializer, "drain")
}

fn sessions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    count(deserializer, "sessions-per-user")
}

fn cm_ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    count(deserializer, "cm-ids-per-user")
}

/// The same of a number that nothing else bounds.
fn count<'de, D>(deserializer: D, name: &str) -> Result<Option<NonZeroU32>, D::Error>
where
    D: Deserializer<'de>,
{
    Ok(number(deserializer, name, u32::MAX)?.and_then(NonZeroU32::new))
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is nothing to serve.
    #[error(
        "no address and no interface: give at least one of this machine's addresses with --addr, or one of \
         its interfaces with --interface (or `addr = [\"...\"]`, `interface = [\"...\"]` in the \
         configuration file)"
    )]
    NoAddress,
    /// One address twice.
    #[error("address {0} is given twice: each device needs an address of its own")]
    AddressTwice(IpAddr),
    /// One interface twice.
    #[error("interface {0} is given twice: each device needs an interface of its own")]
    InterfaceTwice(String),
    /// More devices than a daemon can have.
    #[error(
        "{0} addresses and interfaces: one daemon serves at most {max}",
        max = urxe_slot::limits::MAX_DEVICES
    )]
    TooManyDevices(usize),
    /// A name that no device can have.
    #[error(
        "name {0:?}: expected 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`, and first a letter \
         or a digit"
    )]
    Name(String),
    /// Two devices of one name.
    #[error("name {0}: two devices would have it; each needs a name of its own")]
    NameTwice(String),
    /// More names than devices.
    #[error("{names} names for {devices} devices: expected at most one for each")]
    TooManyNames {
        /// Names given.
        names: usize,
        /// Addresses and interfaces.
        devices: usize,
    },
    /// A number of slots that cannot be.
    #[error("slots {0}: expected 1 to {MAX_SLOTS}")]
    Slots(u8),
    /// Not where metrics could be had.
    #[error(
        "metrics {0:?}: expected an address of this machine and a port, such as 127.0.0.1:9100 or \
         [::1]:9100, or the path of a Unix socket, with a slash, such as /run/urxe/metrics.sock"
    )]
    Metrics(String),
    /// Not what can be logged.
    #[error(
        "log {0:?}: expected off, error, warn, info or debug, or a comma list of one of these and \
         of SUBJECT=LEVEL, such as info,slot=debug; subjects are daemon, session, request, qp, \
         slot and device"
    )]
    Log(String),
    /// Not a set of permissions.
    #[error("mode {0:?}: expected octal permissions from 000 to 777, such as 600 or 666")]
    Mode(String),
    /// The configuration file cannot be read.
    #[error("configuration file {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration file makes no sense.
    #[error("configuration file {}, line {line}, `{text}`: {problem}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which line of it, from 1.
        line: usize,
        /// What that says.
        text: String,
        /// What was expected there.
        problem: String,
    },
}

/// The most source ports that an address spreads its QPs over: each takes a socket.
const MAX_SOURCE_PORTS: u8 = 64;

/// The most slots that serve programs: of those that a QPN can name, one is the broker's.
const MAX_SLOTS: u8 = SlotCount::MAX.get() as u8 - 1;

/// Slots of the daemon's own user if nothing is said, so that about as many other users find one.
const MAX_DEFAULT_SLOTS: usize = 32;

/// A slot for each processor but one, which is left to the programs: where those wait for each
/// other on two processors, two slots took twice as long as one, and carried less.
fn default_slots(processors: usize) -> u8 {
    // SLOT-130
    processors.saturating_sub(1).clamp(1, MAX_DEFAULT_SLOTS) as u8
}

/// The longest name that a device can have: the kernel's, less the zero behind it.
const MAX_NAME: usize = 63;

/// Whether a device can have this name, which is also that of a directory.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    begins_well && name.len() <= MAX_NAME && name.bytes().all(is_plain)
}

impl Settings {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Settings, ConfigError> {
        Ok(ConfigFile::read(path)?.settings)
    }

    /// These settings, and where they say nothing, the `others`.
    pub fn or(self, others: Settings) -> Settings {
        let serves_nothing = self.addr.is_empty() && self.interface.is_empty();
        Settings {
            // What is to be served is said in one place.
            addr: if serves_nothing { others.addr } else { self.addr },
            interface: if serves_nothing { others.interface } else { self.interface },
            name: if self.name.is_empty() { others.name } else { self.name },
            socket: self.socket.or(others.socket),
            mode: self.mode.or(others.mode),
            slots: self.slots.or(others.slots),
            port_backend: self.port_backend.or(others.port_backend),
            source_ports: self.source_ports.or(others.source_ports),
            loopback: self.loopback.or(others.loopback),
            wire: self.wire.or(others.wire),
            congestion: self.congestion.or(others.congestion),
            fault: self.fault.or(others.fault),
            capture: self.capture.or(others.capture),
            metrics: self.metrics.or(others.metrics),
            log: self.log.or(others.log),
            log_format: self.log_format.or(others.log_format),
            linger: self.linger.or(others.linger),
            drain: self.drain.or(others.drain),
            sessions_per_user: self.sessions_per_user.or(others.sessions_per_user),
            cm_ids_per_user: self.cm_ids_per_user.or(others.cm_ids_per_user),
        }
    }
}

/// What a daemon serves, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses to serve, one device each: `urxe0`, `urxe1` ..., unless they are named.
    pub addrs: Vec<IpAddr>,
    /// The interfaces to serve with all their addresses, one device each, numbered behind those.
    pub interfaces: Vec<String>,
    /// Names of the devices, in the same order, in place of those.
    pub names: Vec<String>,
    /// The socket that programs connect to.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: SocketMode,
    /// How many slots serve programs of the daemon's own user, from 1 to 63: each is the whole data
    /// path once, in a thread of its own. What is left of 63 is for other users, a slot each. With
    /// a [`fault`](Self::fault), or an IPv6 loopback address, there is one for all, whatever this
    /// says.
    pub slots: u8,
    /// The program that serves the programs of other users, in a process for each user: one whose
    /// `main` calls [`run_if_worker`](crate::run_if_worker) first, this one (`/proc/self/exe`) for
    /// example. All descriptors of this process are closed for programs that it executes, from then
    /// on. `None`: a thread of this process serves them.
    pub worker: Option<PathBuf>,
    /// How packets reach the wire.
    pub port_backend: PortBackend,
    /// How many UDP source ports the QPs of an address are spread over; 1: all packets leave from
    /// port 4791.
    pub source_ports: u8,
    /// How packets from a device to itself go, for QPs that one slot serves.
    pub loopback: Loopback,
    /// Break the network on purpose.
    pub fault: Option<FaultSpec>,
    /// Record all packets here, or, if there are several addresses, in one file for each, with the
    /// device's name before the extension.
    pub capture: Option<PathBuf>,
    /// Answer scrapers of metrics here.
    pub metrics: Option<MetricsAddress>,
    /// End by itself so long after the last program went, or after the start if none comes.
    pub linger: Option<Duration>,
    /// When told to end, wait so long at most until all programs are gone. None can connect
    /// meanwhile. A [handle](crate::Handle) that is dropped does not wait.
    pub drain: Option<Duration>,
    /// Sessions of one user at a time, as far as the rest is not kept for other users anyway.
    pub sessions_per_user: Option<usize>,
    /// Ids of the connection manager of one user at a time, likewise.
    pub cm_ids_per_user: Option<usize>,
    /// How the engines behave on the wire.
    pub tuning: Tuning,
}

impl Config {
    /// Serves these addresses, with defaults for everything else.
    pub fn new(addrs: impl IntoIterator<Item = IpAddr>) -> Config {
        Config {
            addrs: addrs.into_iter().collect(),
            interfaces: Vec::new(),
            names: Vec::new(),
            socket: urxe_shm::socket_path(),
            mode: SocketMode::default(),
            slots: default_slots(std::thread::available_parallelism().map_or(1, usize::from)),
            worker: None,
            port_backend: PortBackend::default(),
            source_ports: UdpOptions::default().source_ports,
            loopback: Loopback::default(),
            fault: None,
            capture: None,
            metrics: None,
            linger: None,
            drain: None,
            sessions_per_user: None,
            cm_ids_per_user: None,
            tuning: Tuning::default(),
        }
    }

    /// The names of all devices.
    pub(crate) fn device_names(&self) -> Vec<String> {
        let devices = 0..self.addrs.len() + self.interfaces.len();
        let name = |index: usize| match self.names.get(index) {
            Some(name) => name.clone(),
            None => format!("urxe{index}"),
        };
        devices.map(name).collect()
    }

    /// The slots of each device, and whom they serve.
    pub(crate) fn slot_plan(&self) -> Result<SlotPlan, ConfigError> {
        // A fault specification counts the packets of a device. And the kernel routes no multicast
        // over IPv6 loopback, so each port loops its own back to itself.
        let is_v6_loopback = |addr: &IpAddr| addr.is_ipv6() && addr.is_loopback();
        let is_one = self.fault.is_some() || self.addrs.iter().any(is_v6_loopback);
        match SlotPlan::with_own(self.slots.into()) {
            // SLOT-102
            Some(_) if is_one => Ok(SlotPlan::one_for_all()),
            plan => plan.ok_or(ConfigError::Slots(self.slots)),
        }
    }

    /// Whether packets are to be broken that are not sent: those which a WRITE over RC, or the
    /// answer to a READ, is made of in the strict form only.
    pub(crate) fn has_fault_in_vain(&self) -> bool {
        let write = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST];
        let answer = [
            Opcode::RC_READ_RESPONSE_FIRST,
            Opcode::RC_READ_RESPONSE_MIDDLE,
            Opcode::RC_READ_RESPONSE_LAST,
        ];
        let forms = [(Opcode::RC_WRITE_ONLY, write), (Opcode::RC_READ_RESPONSE_ONLY, answer)];
        let Some(fault) = &self.fault else { return false };
        let are_sent = |packets: &Packets| {
            forms.iter().all(|(only, parts)| {
                packets.include(*only) || !parts.iter().any(|part| packets.include(*part))
            })
        };
        // TRAIN-012
        self.tuning.wire == WireForm::Uniform
            && fault.direction != Direction::Rx
            && !fault.rules.iter().all(|rule| are_sent(&rule.packets))
    }

    /// What these settings say, which may make no sense together.
    pub(crate) fn unchecked(settings: Settings) -> Config {
        let defaults = Config::new(settings.addr);
        let seconds = |count: NonZeroU32| Duration::from_secs(count.get().into());
        let count = |count: NonZeroU32| count.get() as usize;
        Config {
            socket: settings.socket.unwrap_or(defaults.socket),
            mode: settings.mode.unwrap_or(defaults.mode),
            slots: settings.slots.unwrap_or(defaults.slots),
            worker: defaults.worker,
            port_backend: settings.port_backend.unwrap_or(defaults.port_backend),
            source_ports: settings.source_ports.unwrap_or(defaults.source_ports),
            loopback: settings.loopback.unwrap_or_default(),
            fault: settings.fault,
            capture: settings.capture,
            metrics: settings.metrics,
            linger: settings.linger.map(seconds),
            drain: settings.drain.map(seconds),
            sessions_per_user: settings.sessions_per_user.map(count),
            cm_ids_per_user: settings.cm_ids_per_user.map(count),
            addrs: defaults.addrs,
            interfaces: settings.interface,
            names: settings.name,
            // TRAIN-013
            tuning: Tuning {
                wire: settings.wire.unwrap_or_default().into(),
                congestion: settings.congestion.unwrap_or_default().0,
                ..defaults.tuning
            },
        }
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        let (names, devices) = (self.names.len(), self.addrs.len() + self.interfaces.len());
        if names > devices {
            return Err(ConfigError::TooManyNames { names, devices });
        }
        if let Some(name) = self.names.iter().find(|name| !is_name(name)) {
            return Err(ConfigError::Name(name.clone()));
        }
        let names = self.device_names();
        match (1..names.len()).find(|&index| names[..index].contains(&names[index])) {
            Some(index) => Err(ConfigError::NameTwice(names[index].clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self.addrs.len() + self.interfaces.len() {
            0 => return Err(ConfigError::NoAddress),
            devices if devices > urxe_slot::limits::MAX_DEVICES => {
                return Err(ConfigError::TooManyDevices(devices));
            }
            _ => {}
        }
        for (index, addr) in self.addrs.iter().enumerate() {
            if self.addrs[..index].contains(addr) {
                return Err(ConfigError::AddressTwice(*addr));
            }
        }
        for (index, name) in self.interfaces.iter().enumerate() {
            if self.interfaces[..index].contains(name) {
                return Err(ConfigError::InterfaceTwice(name.clone()));
            }
        }
        self.check_names()
    }
}

impl TryFrom<Settings> for Config {
    type Error = ConfigError;

    fn try_from(settings: Settings) -> Result<Config, ConfigError> {
        let config = Config::unchecked(settings);
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_engine::CongestionControl;

    fn parse(text: &str) -> Result<Settings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn there_is_a_slot_for_each_processor_but_one() {
        let slots = [1, 2, 3, 4, 33, 1000].map(default_slots);
        assert_eq!(slots, [1, 1, 2, 3, 32, 32]);
    }

    #[test]
    fn a_file_sets_what_the_command_line_can_set() {
        let settings = parse(
            r#"
            addr = ["10.0.0.1", "fd00::1"]
            interface = ["eth0"]
            name = ["mlx5_0", "rxe0"]
            socket = "/run/urxe/a.sock"
            mode = "666"
            slots = 3
            port-backend = "raw"
            source-ports = 4
            loopback = "kernel"
            wire = "strict"
            congestion = "mlx5,ecn=on"
            fault = "drop=1%"
            capture = "/tmp/a.pcapng"
            metrics = "127.0.0.1:9100"
            log = "info,qp=debug"
            log-format = "json"
            linger = 10
            drain = 30
            sessions-per-user = 12
            cm-ids-per-user = 1000
            "#,
        )
        .unwrap();
        let expected = Settings {
            addr: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            interface: vec!["eth0".into()],
            name: vec!["mlx5_0".into(), "rxe0".into()],
            socket: Some("/run/urxe/a.sock".into()),
            mode: Some(SocketMode(0o666)),
            slots: Some(3),
            port_backend: Some(PortBackend::Raw),
            source_ports: Some(4),
            loopback: Some(Loopback::Kernel),
            wire: Some(Wire::Strict),
            congestion: Some("mlx5,ecn=on".parse().unwrap()),
            fault: Some("drop=1%".parse().unwrap()),
            capture: Some("/tmp/a.pcapng".into()),
            metrics: Some("127.0.0.1:9100".parse().unwrap()),
            log: Some("info,qp=debug".parse().unwrap()),
            log_format: Some(LogFormat::Json),
            linger: NonZeroU32::new(10),
            drain: NonZeroU32::new(30),
            sessions_per_user: NonZeroU32::new(12),
            cm_ids_per_user: NonZeroU32::new(1000),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn the_command_line_wins() {
        let line = Settings { mode: Some(SocketMode(0o660)), ..Settings::default() };
        let file = parse("mode = \"666\"\naddr = [\"10.0.0.1\"]").unwrap();
        let both = line.or(file);
        assert_eq!(both.mode, Some(SocketMode(0o660)));
        assert_eq!(both.addr.len(), 1);
    }

    #[test]
    fn devices_are_named_in_their_order_and_each_has_a_name_of_its_own() {
        let config = |names: &[&str]| Config {
            names: names.iter().map(ToString::to_string).collect(),
            ..Config::new(["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()])
        };
        assert_eq!(config(&[]).device_names(), ["urxe0", "urxe1"]);
        assert_eq!(config(&["mlx5_0"]).device_names(), ["mlx5_0", "urxe1"]);
        config(&["mlx5_0", "rocep1s0f0-x.2"]).check().unwrap();
        let refused = |names: &[&str]| config(names).check().unwrap_err().to_string();
        assert!(refused(&["a", "b", "c"]).contains("3 names for 2 devices"));
        for twice in [["rxe0", "rxe0"].as_slice(), &["urxe1"]] {
            assert!(refused(twice).contains("two devices would have it"), "{twice:?}");
        }
        let long = "x".repeat(MAX_NAME + 1);
        for name in ["", ".", "..", "a/b", "-a", "a b", "é", "a\n", long.as_str()] {
            let error = refused(&[name]);
            assert!(error.contains("expected 1 to 63 letters"), "{name:?}: {error}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = parse("adr = []").unwrap_err().to_string();
        assert!(error.contains("adr") && error.contains("port-backend"), "{error}");
    }

    #[test]
    fn a_fault_that_makes_no_sense_is_an_error_that_names_it() {
        let error = parse("fault = \"dorp=1%\"").unwrap_err().to_string();
        assert!(error.contains("dorp=1%"), "{error}");
    }

    #[test]
    fn a_daemon_lingers_a_second_at_least() {
        let settings = parse("addr = [\"10.0.0.1\"]\nlinger = 1").unwrap();
        assert_eq!(Config::try_from(settings).unwrap().linger, Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_number_that_cannot_be_is_named_with_its_value_and_what_was_expected() {
        for name in ["linger", "drain", "sessions-per-user", "cm-ids-per-user"] {
            for wrong in ["0", "-1", "4294967296", "1.5", "true", "\"10\""] {
                let error = parse(&format!("{name} = {wrong}")).unwrap_err().to_string();
                let expected = format!("{name} {wrong}: expected 1 to 4294967295");
                assert!(error.contains(&expected), "{error}");
            }
        }
    }

    #[test]
    fn there_is_a_source_port_at_least_and_a_socket_for_each() {
        for wrong in [-1, 0, 65, 256] {
            let error = parse(&format!("source-ports = {wrong}")).unwrap_err().to_string();
            assert!(error.contains(&format!("source-ports {wrong}: expected 1 to 64")), "{error}");
        }
    }

    #[test]
    fn there_is_a_slot_at_least_and_with_a_fault_no_more() {
        for wrong in [-1, 0, 64, 300] {
            let error = parse(&format!("slots = {wrong}")).unwrap_err().to_string();
            assert!(error.contains(&format!("slots {wrong}: expected 1 to 63")), "{error}");
        }
        let plan =
            |text: &str| Config::try_from(parse(text).unwrap()).unwrap().slot_plan().unwrap();
        let addr = "addr = [\"10.0.0.1\"]";
        assert_eq!(plan(&format!("{addr}\nslots = 63")).own(), 1..64);
        let others = plan(&format!("{addr}\nslots = 3")).of_others();
        assert_eq!(others, 4..64, "the others are for other users");
        let fault = format!("{addr}\nslots = 3\nfault = \"drop:write:3\"");
        for one in [fault.as_str(), "addr = [\"::1\"]\nslots = 3"] {
            assert_eq!(plan(one), SlotPlan::one_for_all());
        }
    }

    #[test]
    fn packets_are_of_one_size_unless_the_strict_form_is_asked_for() {
        let wire = |text: &str| {
            let settings = parse(&format!("addr = [\"10.0.0.1\"]\n{text}")).unwrap();
            Config::try_from(settings).unwrap().tuning.wire
        };
        assert_eq!(wire(""), WireForm::Uniform);
        assert_eq!(wire("wire = \"uniform\""), WireForm::Uniform);
        assert_eq!(wire("wire = \"strict\""), WireForm::Strict);
        let error = parse("wire = \"lose\"").unwrap_err().to_string();
        assert!(error.contains("uniform") && error.contains("strict"), "{error}");
    }

    #[test]
    fn a_fault_for_packets_that_are_not_sent_is_noticed() {
        let in_vain = |text: &str| {
            let settings = parse(&format!("addr = [\"10.0.0.1\"]\n{text}")).unwrap();
            Config::try_from(settings).unwrap().has_fault_in_vain()
        };
        assert!(in_vain("fault = \"drop:ack:1,drop:write-last:3\""));
        assert!(in_vain("fault = \"dup:rc-write-middle:1,dir=tx\""));
        assert!(in_vain("fault = \"drop:read-response-last:1\""));
        assert!(!in_vain("fault = \"drop:write-last:3,dir=rx\""));
        assert!(!in_vain("fault = \"drop:write-last:3\"\nwire = \"strict\""));
        for sent in [
            "write:3",
            "write-only:1",
            "uc-write-last:1",
            "write-last-immediate:1",
            "read-response:1",
        ] {
            assert!(!in_vain(&format!("fault = \"drop:{sent}\"")), "{sent}");
        }
    }

    #[test]
    fn congestion_control_is_what_the_file_says_and_on_without_a_word() {
        let tuning = |text: &str| {
            let settings = parse(&format!("addr = [\"10.0.0.1\"]\n{text}")).unwrap();
            Config::try_from(settings).unwrap().tuning.congestion
        };
        assert_eq!(tuning(""), CongestionControl::default());
        assert_eq!(tuning("congestion = \"off\""), CongestionControl::Off);
        let error = parse("congestion = \"no\"").unwrap_err().to_string();
        assert!(error.contains("congestion \"no\": expected off"), "{error}");
    }

    #[test]
    fn a_mode_is_octal() {
        assert_eq!("0640".parse::<SocketMode>().unwrap(), SocketMode(0o640));
        for wrong in ["", "rw", "888", "1777", "-1"] {
            let error = wrong.parse::<SocketMode>().unwrap_err().to_string();
            assert!(error.contains("expected octal"), "{error}");
        }
    }
}
