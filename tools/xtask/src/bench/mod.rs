//! The benchmark: urxe, by its own client and by stock perftest, beside kernel TCP and bare
//! offloaded UDP, over the same veth pair between two network namespaces, in one run. Only ratios
//! of one run mean anything.

mod cpu;
mod link;
mod loss;
mod picture;
mod slots;
mod stock;
mod table;
mod taps;

use crate::netns::{Pair, Side};
use crate::packages::{ETHTOOL, IP, IPERF3, NFTABLES, PERFTEST, RXE_PROVIDER, lacking_root_or};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use urxe_shell::{Result, build_release_with, output, target_directory};

/// Options of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often everything is measured; the table shows the median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// MTUs of the link.
    #[arg(long, value_delimiter = ',', default_values_t = [1500, 9000])]
    mtu: Vec<u32>,
    /// Packets of 100 that the link loses, for the figures under loss.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [0.1, 1.0])]
    loss: Vec<f64>,
    /// Measure only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Measure over IPv6 instead of IPv4.
    #[arg(long)]
    ipv6: bool,
    /// Where the figures go, as JSON [default: bench.json where cargo puts what it builds].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw bandwidths by that of TCP as an SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw them beside the figures of an older run, which it wrote as JSON.
    #[arg(long, value_name = "FILE", requires = "svg")]
    beside: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Bandwidth and latency on a link that loses nothing.
    Link,
    /// Goodput where packets are lost.
    Loss,
    /// Several pairs of programs, with one slot and with two, and idle programs.
    Slots,
    /// A capture that takes no packet, against none.
    Taps,
    /// Two programs of one host and one daemon, whose packets go through memory, or the kernel.
    Host,
}

impl Options {
    fn measures(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    /// The address of a side, of the family that is measured.
    fn address(&self, side: Side) -> String {
        if self.ipv6 { side.ipv6() } else { side.ipv4() }
    }
}

/// One measured figure: the median of all rounds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Figure {
    link_mtu: u32,
    /// What was measured.
    test: String,
    /// Message size in bytes, where there is one.
    size: Option<u32>,
    /// Bandwidth in Gbit/s.
    gbit_s: Option<f64>,
    /// Bandwidth by that of kernel TCP in the same run.
    by_tcp: Option<f64>,
    /// Bandwidth by that of bare offloaded UDP in the same run.
    by_udp: Option<f64>,
    /// Gbit for each second that a core of the machine was busy, whatever with.
    gbit_core_s: Option<f64>,
    /// The same by that of kernel TCP in the same run.
    by_tcp_core: Option<f64>,
    /// Bandwidth by that of the same test without loss in the same run.
    by_lossless: Option<f64>,
    /// Bandwidth, or median latency, by that of a pair of programs alone in the same run.
    by_alone: Option<f64>,
    /// Bandwidth by that of the same test without a capture in the same round.
    by_untapped: Option<f64>,
    /// Messages a second.
    messages_s: Option<f64>,
    /// Messages a second by those of one active QP in the same run.
    by_one_qp: Option<f64>,
    /// Of 100 messages that were sent, so many were lost.
    lost_percent: Option<f64>,
    /// Connections a second: opened, or opened, used and closed.
    connections_s: Option<f64>,
    /// Bytes of the daemon's memory for each idle QP, without its rings.
    bytes_per_qp: Option<f64>,
    /// Median, 99th and 99.9th percentile of half a round trip in microseconds.
    latency_us: Option<[f64; 3]>,
    /// The median by that of two sockets that are asked again and again, in the same run.
    by_floor: Option<f64>,
}

/// Of what is written as JSON: higher once a key is no more, or means something else.
const JSON_VERSION: u32 = 1;

/// What is written as JSON.
#[derive(Serialize, Deserialize)]
struct Results {
    /// 0 in figures of a time when there were no versions; the keys are the same.
    #[serde(default)]
    version: u32,
    machine: String,
    family: String,
    rounds: usize,
    seconds: f64,
    figures: Vec<Figure>,
}

/// Measures everything and prints the table.
pub(crate) fn run(options: &Options) -> Result {
    if let Some(reason) = lacking_root_or(&[IP, ETHTOOL, NFTABLES, IPERF3, RXE_PROVIDER, PERFTEST])
    {
        return Err(reason);
    }
    // Before all that takes long.
    let older = options.beside.as_deref().map(picture::Older::read).transpose()?;
    build_release_with(&["baseline"])?;
    let mut figures = Vec::new();
    if options.measures(Part::Host) {
        figures.extend(measure_host(options)?);
    }
    let links = if options.only == Some(Part::Host) { &[] } else { &options.mtu[..] };
    for &mtu in links {
        figures.extend(measure_link(options, mtu)?);
    }
    let results = Results {
        version: JSON_VERSION,
        machine: machine(),
        family: if options.ipv6 { "IPv6" } else { "IPv4" }.into(),
        rounds: options.rounds,
        seconds: options.seconds,
        figures,
    };
    table::print(&results);
    let path = options.json.clone().unwrap_or_else(|| target_directory().join("bench.json"));
    let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    let Some(path) = &options.svg else { return Ok(()) };
    let saved =
        picture::chart(&results, older.as_ref()).save(path, &urxe_chart::command("cargo xtask"));
    saved.map_err(|error| format!("{}: {error}", path.display()))
}

/// The end that waits for the other, and where that finds it. The other one is on side A.
struct Server {
    side: Side,
    address: String,
}

/// Two programs of one host, by each way in which packets of its daemon can go.
fn measure_host(options: &Options) -> Result<Vec<Figure>> {
    let address = if options.ipv6 { "::1" } else { "127.0.0.1" };
    let mut figures = Vec::new();
    for path in link::LocalPath::ALL {
        // Of the link between the two sides nothing is used.
        let mut pair = Pair::new(1500)?;
        pair.start_daemon(Side::A, address, &["--slots", "1", "--loopback", path.loopback])?;
        let server = Server { side: Side::A, address: address.to_owned() };
        let round = || link::measure_host(options, &pair, &server, &path);
        figures.extend(measure_rounds(options, "one host", round)?);
    }
    Ok(figures)
}

fn measure_link(options: &Options, mtu: u32) -> Result<Vec<Figure>> {
    let of_link = format!("MTU {mtu}");
    let server = Server { side: Side::B, address: options.address(Side::B) };
    let start = |more: &[&str]| -> Result<Pair> {
        let mut pair = Pair::new(mtu)?;
        for side in [Side::A, Side::B] {
            pair.start_daemon(side, &options.address(side), more)?;
        }
        Ok(pair)
    };
    let mut figures = Vec::new();
    let pair = start(&[])?;
    if options.measures(Part::Link) {
        // First of all: later, the daemon would fill what earlier tests have left of its memory.
        let idle = link::measure_idle(options, &pair, &server, mtu)?;
        let round = || link::measure(options, &pair, &server, mtu);
        figures = measure_rounds(options, &of_link, round)?;
        figures.push(idle);
    }
    if options.measures(Part::Loss) && !options.loss.is_empty() {
        loss::prepare(&pair)?;
        let round = || loss::measure(options, &pair, &server, mtu);
        figures.extend(measure_rounds(options, &of_link, round)?);
    }
    drop(pair);
    if options.measures(Part::Slots) {
        for slots in slots::SLOTS {
            let pair = start(&["--slots", slots])?;
            let round = || slots::measure(options, &pair, &server, mtu, slots);
            figures.extend(measure_rounds(options, &of_link, round)?);
        }
    }
    if options.measures(Part::Taps) {
        let (pair, rounds) = (start(&[])?, Cell::new(0));
        let round = || {
            rounds.set(rounds.get() + 1);
            taps::measure(options, &pair, &server, mtu, rounds.get())
        };
        figures.extend(measure_rounds(options, &of_link, round)?);
    }
    Ok(figures)
}

fn measure_rounds(
    options: &Options,
    what: &str,
    measure: impl Fn() -> Result<Vec<Figure>>,
) -> Result<Vec<Figure>> {
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("{what}, round {round} of {}", options.rounds);
        rounds.push(measure()?);
    }
    Ok(table::medians(&rounds))
}

/// One test of `urxe perf`: the report of the client, as JSON. A size of 0 leaves it to the test.
fn perf(
    options: &Options,
    pair: &Pair,
    server: &Server,
    test: &str,
    size: u32,
    more: &[&str],
) -> Result<serde_json::Value> {
    let command = |side: Side| {
        let mut command = perf_command(options, pair, side, test, size);
        command.args(more);
        command
    };
    let mut serving = start(&mut command(server.side))?;
    let text = output(command(Side::A).arg(&server.address));
    finish(&mut serving);
    serde_json::from_str(&text?).map_err(|error| format!("urxe perf {test}: {error}"))
}

/// One end of a test of `urxe perf` that reports as JSON. A size of 0 leaves it to the test.
fn perf_command(options: &Options, pair: &Pair, side: Side, test: &str, size: u32) -> Command {
    let mut command = pair.urxe(side);
    command.args(["perf", test, "--json", "--duration", &options.seconds.to_string()]);
    if size > 0 {
        command.args(["--size", &size.to_string()]);
    }
    command
}

fn measure_tcp(options: &Options, pair: &Pair, server: &Server) -> Result<f64> {
    let mut serving = start(pair.command(server.side, "iperf3").args(["-s", "-1"]))?;
    let seconds = options.seconds.ceil().to_string();
    let client = || -> Result<f64> {
        let mut command = pair.command(Side::A, "iperf3");
        let text = output(command.args(["-c", &server.address, "-J", "-t", &seconds]))?;
        let report: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| format!("iperf3: {error}"))?;
        // Some versions report a refused connection in the JSON alone.
        Ok(number(&report["end"]["sum_received"], "bits_per_second")? * 1e-9)
    };
    let mut result = client();
    for _ in 0..20 {
        if result.is_ok() {
            break;
        }
        // The server may not listen yet.
        std::thread::sleep(Duration::from_millis(100));
        result = client();
    }
    finish(&mut serving);
    result
}

fn start(command: &mut Command) -> Result<Child> {
    command
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("{:?} cannot be started: {error}", command.get_program()))
}

/// Ends a server; one that served has ended by itself.
fn finish(child: &mut Child) {
    std::thread::sleep(Duration::from_millis(200));
    let _ = child.kill();
    let _ = child.wait();
}

fn number(value: &serde_json::Value, name: &str) -> Result<f64> {
    value[name].as_f64().ok_or_else(|| format!("no figure {name} in {value}"))
}

/// The machine, for whoever reads the figures later.
fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown CPU", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, |count| count.get());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} x {model}, Linux {}", kernel.trim())
}
