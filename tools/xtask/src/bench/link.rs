//! Bandwidth, message rate, latency and what they cost, on a link that loses nothing.

use super::cpu::with_busy_seconds;
use super::stock::{self, Mode};
use super::{Figure, Options, Server, finish, measure_tcp, number, perf, start};
use crate::netns::{Pair, Side};
use std::process::Stdio;
use std::time::Duration;
use urxe_shell::{Result, output, release_binary};

/// Bandwidth tests of `urxe perf`: name and message size.
const BANDWIDTH: [(&str, u32); 8] = [
    ("write-bw", 64),
    ("write-bw", 4096),
    ("write-bw", 65_536),
    ("write-bw", 1 << 20),
    ("read-bw", 4096),
    ("read-bw", 65_536),
    ("send-bw", 65_536),
    ("atomic-bw", 8),
];

/// Latency tests: name and message size.
const LATENCY: [(&str, u32); 4] =
    [("write-lat", 8), ("send-lat", 8), ("read-lat", 8), ("atomic-lat", 8)];

/// What else is measured: name, test and message size (0: the longest datagram), and the options of
/// both ends.
const OTHERS: [(&str, &str, u32, &[&str]); 7] = [
    ("UC send-bw", "send-bw", 65_536, &["--transport", "uc"]),
    ("UC send-bw", "send-bw", 4096, &["--transport", "uc"]),
    ("UD send-bw", "send-bw", 0, &["--transport", "ud"]),
    ("send-bw, 4 QPs, SRQ", "send-bw", 65_536, &["--qps", "4", "--srq"]),
    ("write-bw, own slot", "write-bw", 64, &[OWN_SLOT]),
    ("write-bw, own slot", "write-bw", 65_536, &[OWN_SLOT]),
    ("send-bw, own slot", "send-bw", 65_536, &[OWN_SLOT]),
];

/// Latency tests of programs that run the data path themselves.
const OWN_SLOT_LATENCY: [(&str, u32); 2] = [("write-lat", 8), ("send-lat", 8)];
const OWN_SLOT: &str = "--in-process";

/// Queue pairs that are active in turn, and the messages that each has under way: in all as many,
/// and posted in lists as long, so that only the number of queue pairs differs.
const ACTIVE_QPS: [(&str, &str); 2] = [("1", "4000"), ("1000", "4")];
const ACTIVE_LIST: &str = "4";

/// Queue pairs that do nothing.
const IDLE_QPS: &str = "10000";

/// Connections that are opened, used and closed through one listener.
const CONNECTIONS: &str = "10000";

/// Messages a second beside QPs that do nothing, and what each of them takes.
pub(super) fn measure_idle(
    options: &Options,
    pair: &Pair,
    server: &Server,
    mtu: u32,
) -> Result<Figure> {
    let report = perf(options, pair, server, "write-bw", 64, &["--idle", IDLE_QPS])?;
    Ok(Figure {
        link_mtu: mtu,
        test: format!("write-bw, QPs idle: {IDLE_QPS}"),
        size: Some(64),
        messages_s: Some(number(&report["results"][0], "messages_per_s")?),
        bytes_per_qp: Some(number(&report["idle"], "own_bytes_per_qp")?),
        ..Figure::default()
    })
}

/// One round.
pub(super) fn measure(
    options: &Options,
    pair: &Pair,
    server: &Server,
    mtu: u32,
) -> Result<Vec<Figure>> {
    let round = Round::start(options, pair, server, mtu)?;
    let mut figures = vec![
        round.transfer("TCP (iperf3)", None, round.tcp),
        round.transfer("bare offloaded UDP", None, round.udp),
    ];
    for (test, size) in BANDWIDTH {
        figures.push(round.bandwidth(test, test, size, &[])?);
    }
    for (name, test, size, more) in OTHERS {
        figures.push(round.bandwidth(name, test, size, more)?);
    }
    for mode in Mode::ALL {
        for (program, size) in stock::BANDWIDTH {
            figures.push(round.stock_bandwidth(mode, program, size)?);
        }
    }
    figures.extend(round.active_qps()?);
    figures.extend(round.connections()?);
    figures.push(round.latency("two spinning sockets", Some(8), round.floor_us));
    for (test, size) in LATENCY {
        figures.push(round.perf_latency(test, test, size, &[])?);
    }
    for (test, size) in OWN_SLOT_LATENCY {
        figures.push(round.perf_latency(&format!("{test}, own slot"), test, size, &[OWN_SLOT])?);
    }
    for mode in Mode::ALL {
        for (program, size) in stock::LATENCY {
            let latency_us = stock::latency(pair, server, mode, program, size)?;
            figures.push(round.latency(&mode.name_of(program), Some(size), latency_us));
        }
    }
    Ok(figures)
}

/// Tests between two programs of one machine: name and message size.
const OF_ONE_HOST: [(&str, u32); 4] =
    [("write-bw", 65_536), ("read-bw", 65_536), ("send-bw", 65_536), ("send-bw", 4096)];

/// The MTU of a loopback interface.
const LOOPBACK_MTU: u32 = 65_536;

/// How two programs of one host reach each other.
pub(super) struct LocalPath {
    /// What it is called in the table.
    name: &'static str,
    /// How packets go that the daemon sends to itself.
    pub(super) loopback: &'static str,
    /// Options of both programs.
    options: &'static [&'static str],
}

impl LocalPath {
    pub(super) const ALL: [LocalPath; 3] = [
        LocalPath { name: "memory", loopback: "memory", options: &[] },
        LocalPath { name: "kernel", loopback: "kernel", options: &[] },
        LocalPath { name: "own slots", loopback: "memory", options: &[OWN_SLOT] },
    ];
}

/// One round of two programs of one host, beside TCP and UDP over the loopback interface.
pub(super) fn measure_host(
    options: &Options,
    pair: &Pair,
    server: &Server,
    path: &LocalPath,
) -> Result<Vec<Figure>> {
    let round = Round::start(options, pair, server, LOOPBACK_MTU)?;
    let mut figures = vec![
        round.transfer("TCP (iperf3), one host", None, round.tcp),
        round.latency("two spinning sockets, one host", Some(8), round.floor_us),
    ];
    let named = |test: &str| format!("{test}, {}", path.name);
    for (test, size) in OF_ONE_HOST {
        figures.push(round.bandwidth(&named(test), test, size, path.options)?);
    }
    figures.push(round.perf_latency(&named("send-lat"), "send-lat", 8, path.options)?);
    Ok(figures)
}

/// What was carried, and what it cost.
#[derive(Clone, Copy)]
struct Transfer {
    gbit_s: f64,
    /// Gbit for each second that a core was busy.
    gbit_core_s: f64,
}

impl Transfer {
    /// Something that carried so many Gbit/s for so long, in which the cores were busy so long.
    fn new(gbit_s: f64, seconds: f64, busy_seconds: f64) -> Transfer {
        Transfer { gbit_s, gbit_core_s: gbit_s * seconds / busy_seconds.max(1e-3) }
    }
}

/// What everything of one round is compared with, and where.
struct Round<'a> {
    options: &'a Options,
    pair: &'a Pair,
    server: &'a Server,
    mtu: u32,
    tcp: Transfer,
    udp: Transfer,
    /// Half a round trip between two sockets that are asked again and again.
    floor_us: [f64; 3],
}

impl<'a> Round<'a> {
    fn start(
        options: &'a Options,
        pair: &'a Pair,
        server: &'a Server,
        mtu: u32,
    ) -> Result<Round<'a>> {
        // iperf3 takes whole seconds.
        let tcp_seconds = options.seconds.ceil();
        let (tcp, tcp_busy) = with_busy_seconds(|| measure_tcp(options, pair, server))?;
        // A WRITE MIDDLE of the path MTU that this link carries.
        let segment = if mtu >= 4200 { "4112" } else { "1040" };
        let send = ["--segment", segment];
        let (udp, udp_busy) =
            with_busy_seconds(|| bare_udp(options, pair, server, &[], &send, parse_one))?;
        let latency = ["--latency"];
        let floor_us = bare_udp(options, pair, server, &latency, &latency, parse_three)?;
        Ok(Round {
            options,
            pair,
            server,
            mtu,
            tcp: Transfer::new(tcp, tcp_seconds, tcp_busy),
            udp: Transfer::new(udp, options.seconds, udp_busy),
            floor_us,
        })
    }

    fn figure(&self, test: &str, size: Option<u32>) -> Figure {
        Figure { link_mtu: self.mtu, test: test.to_owned(), size, ..Figure::default() }
    }

    fn transfer(&self, test: &str, size: Option<u32>, transfer: Transfer) -> Figure {
        Figure {
            gbit_s: Some(transfer.gbit_s),
            by_tcp: Some(transfer.gbit_s / self.tcp.gbit_s),
            by_udp: Some(transfer.gbit_s / self.udp.gbit_s),
            gbit_core_s: Some(transfer.gbit_core_s),
            by_tcp_core: Some(transfer.gbit_core_s / self.tcp.gbit_core_s),
            ..self.figure(test, size)
        }
    }

    fn latency(&self, test: &str, size: Option<u32>, latency_us: [f64; 3]) -> Figure {
        Figure {
            latency_us: Some(latency_us),
            by_floor: Some(latency_us[0] / self.floor_us[0]),
            ..self.figure(test, size)
        }
    }

    fn perf(&self, test: &str, size: u32, more: &[&str]) -> Result<serde_json::Value> {
        let report = perf(self.options, self.pair, self.server, test, size, more)?;
        Ok(report["results"][0].clone())
    }

    fn bandwidth(&self, name: &str, test: &str, size: u32, more: &[&str]) -> Result<Figure> {
        let (report, busy) = with_busy_seconds(|| self.perf(test, size, more))?;
        let size = number(&report, "size")? as u32;
        // Where messages can be lost, what counts is what arrived.
        let received = report.get("received");
        let arrived = received.unwrap_or(&report);
        let lost = received.map(|received| number(received, "lost")).transpose()?;
        let sent = number(&report, "iterations")?.max(1.0);
        let gbit_s = number(arrived, "bandwidth_gbit_s")?;
        let transfer = Transfer::new(gbit_s, self.options.seconds, busy);
        Ok(Figure {
            messages_s: Some(number(arrived, "messages_per_s")?),
            lost_percent: lost.map(|lost| lost / sent * 100.0),
            ..self.transfer(name, Some(size), transfer)
        })
    }

    fn stock_bandwidth(&self, mode: Mode, program: &str, size: u32) -> Result<Figure> {
        // It takes whole seconds.
        let seconds = self.options.seconds.ceil();
        let measure = || stock::bandwidth(self.pair, self.server, mode, program, size, seconds);
        let (gbit_s, busy) = with_busy_seconds(measure)?;
        Ok(Figure {
            messages_s: Some(gbit_s * 1e9 / 8.0 / f64::from(size)),
            ..self.transfer(
                &mode.name_of(program),
                Some(size),
                Transfer::new(gbit_s, seconds, busy),
            )
        })
    }

    fn active_qps(&self) -> Result<Vec<Figure>> {
        let mut of_one = None;
        let mut figures = Vec::new();
        for (qps, depth) in ACTIVE_QPS {
            let more = ["--qps", qps, "--depth", depth, "--cq-mod", ACTIVE_LIST];
            let messages_s = number(&self.perf("write-bw", 64, &more)?, "messages_per_s")?;
            figures.push(Figure {
                messages_s: Some(messages_s),
                by_one_qp: Some(messages_s / *of_one.get_or_insert(messages_s)),
                ..self.figure(&format!("write-bw, QPs active: {qps}"), Some(64))
            });
        }
        Ok(figures)
    }

    /// Connections of the connection manager.
    fn connections(&self) -> Result<Vec<Figure>> {
        let args = ["perf-connect", "--count", CONNECTIONS, "--json"];
        let mut serving = start(self.pair.urxe(self.server.side).args(args))?;
        let text = output(self.pair.urxe(Side::A).args(args).arg(&self.server.address));
        finish(&mut serving);
        let report: serde_json::Value =
            serde_json::from_str(&text?).map_err(|error| format!("urxe perf-connect: {error}"))?;
        let phases = [("opened", "opened"), ("in all", "all")];
        phases
            .map(|(name, phase)| {
                Ok(Figure {
                    connections_s: Some(number(&report[phase], "connections_per_s")?),
                    ..self.figure(&format!("{CONNECTIONS} connections {name}"), None)
                })
            })
            .into_iter()
            .collect()
    }

    fn perf_latency(&self, name: &str, test: &str, size: u32, more: &[&str]) -> Result<Figure> {
        let latency = &self.perf(test, size, more)?["latency_us"];
        let percentiles =
            [number(latency, "median")?, number(latency, "p99")?, number(latency, "p99_9")?];
        Ok(self.latency(name, Some(size), percentiles))
    }
}

/// Runs both ends of bare UDP with more options, and reads what one of them prints: the
/// receiver its bandwidth, the sender its latency.
fn bare_udp<T>(
    options: &Options,
    pair: &Pair,
    server: &Server,
    receive: &[&str],
    send: &[&str],
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T> {
    let program = release_binary("baseline");
    let address = std::net::SocketAddr::new(
        server.address.parse().map_err(|error| format!("{}: {error}", server.address))?,
        4790,
    )
    .to_string();
    let receiving = pair
        .command(server.side, &program)
        .args(["bare-udp", "--receive", &address])
        .args(receive)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("bare-udp: {error}"))?;
    std::thread::sleep(Duration::from_millis(300));
    let seconds = options.seconds.to_string();
    let mut sending = pair.command(Side::A, &program);
    sending.args(["bare-udp", "--send", &address, "--seconds", &seconds]).args(send);
    let sent = output(&mut sending)?;
    let received = receiving.wait_with_output().map_err(|error| error.to_string())?;
    let text = sent + &String::from_utf8_lossy(&received.stdout);
    parse(&text).ok_or_else(|| format!("bare-udp said {text:?}"))
}

fn parse_one(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

fn parse_three(text: &str) -> Option<[f64; 3]> {
    let numbers: Option<Vec<f64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
}
