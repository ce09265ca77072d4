//! What the benchmark measures urxe beside: bare UDP, of which what is left of the bandwidth is the
//! most that any protocol over these sockets can have, and the latency the least that it can take;
//! and programs that do nothing. `cargo xtask bench` starts it.

#![allow(clippy::print_stdout)] // what it is asked for, and what the benchmark waits for

use clap::{Args, Parser};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use urxe_port::offload;
use urxe_verbs::{Context, OpenOptions};

type Result<T = ()> = std::result::Result<T, String>;

/// What the benchmark measures urxe beside.
#[derive(Parser)]
#[command(bin_name = "baseline")]
enum Task {
    /// One end of bare UDP.
    BareUdp(BareUdp),
    /// Programs of a daemon that do nothing, until it is killed.
    IdlePrograms(IdlePrograms),
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::BareUdp(options) => bare_udp(&options),
        Task::IdlePrograms(options) => be_idle(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("baseline: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// How long it may be silent before the receiver takes it as ended.
const SILENCE: Duration = Duration::from_secs(1);

/// Options of one end.
#[derive(Args)]
struct BareUdp {
    /// Receive on this address; without it, send.
    #[arg(long)]
    receive: Option<SocketAddr>,
    /// Send to this address.
    #[arg(long)]
    send: Option<SocketAddr>,
    /// Bytes of a datagram.
    #[arg(long, default_value_t = 1044)]
    segment: u16,
    /// How long to send, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Send 8 bytes, and the next when they have come back: what that takes, in place of bandwidth.
    #[arg(long)]
    latency: bool,
}

/// Runs one end of bare UDP: 64 KiB a system call by `UDP_SEGMENT`, received by `UDP_GRO`, or small
/// datagrams back and forth between two sockets that are asked again and again.
fn bare_udp(options: &BareUdp) -> Result {
    match (options.receive, options.send) {
        (Some(address), None) if options.latency => echo(address),
        (Some(address), None) => receive(address),
        (None, Some(address)) if options.latency => ping(address, options),
        (None, Some(address)) => send(address, options),
        _ => Err("bare-udp: give --receive or --send".to_owned()),
    }
    .map_err(|error| format!("bare-udp: {error}"))
}

/// Prints the Gbit/s that arrived, from the first byte to the last.
fn receive(address: SocketAddr) -> Result {
    let io = |error: std::io::Error| format!("{address}: {error}");
    let socket = UdpSocket::bind(address).map_err(io)?;
    offload::receive_coalesced(&socket).map_err(io)?;
    // As urxed does it where it may.
    let _ = set_socket_recv_buffer_size_force(&socket, 8 << 20);
    let mut buffer = vec![0; 65_536];
    let first = socket.recv(&mut buffer).map_err(io)?;
    let (start, mut bytes) = (Instant::now(), first as u64);
    let mut end = start;
    socket.set_read_timeout(Some(SILENCE)).map_err(io)?;
    while let Ok(len) = socket.recv(&mut buffer) {
        bytes += len as u64;
        end = Instant::now();
    }
    println!("{:.3}", bytes as f64 * 8e-9 / (end - start).as_secs_f64().max(1e-9));
    Ok(())
}

fn send(address: SocketAddr, options: &BareUdp) -> Result {
    let socket = connected(address)?;
    offload::send_segmented(&socket, options.segment)
        .map_err(|error| format!("the kernel does not segment UDP: {error}"))?;
    let segments = (65_000 / usize::from(options.segment)).min(64);
    let buffer = vec![0x5a; segments * usize::from(options.segment)];
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    while Instant::now() < end {
        // A full queue is no reason to stop.
        let _ = socket.send(&buffer);
    }
    Ok(())
}

fn connected(address: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(|error| error.to_string())?;
    socket.connect(address).map_err(|error| format!("{address}: {error}"))?;
    Ok(socket)
}

/// What is asked again and again until there is a datagram, or until `end`.
fn spin(end: Instant, mut receive: impl FnMut() -> std::io::Result<()>) -> Result<bool> {
    // The clock is looked at rarely: it is not what is measured.
    let mut tries = 0_u32;
    loop {
        match receive() {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
        tries = tries.wrapping_add(1);
        if tries.is_multiple_of(1024) && Instant::now() >= end {
            return Ok(false);
        }
    }
}

/// Sends everything back until it has been silent for [`SILENCE`].
fn echo(address: SocketAddr) -> Result {
    let socket = UdpSocket::bind(address).map_err(|error| format!("{address}: {error}"))?;
    let mut buffer = [0; 64];
    let (mut len, mut from) = socket.recv_from(&mut buffer).map_err(|error| error.to_string())?;
    socket.set_nonblocking(true).map_err(|error| error.to_string())?;
    loop {
        socket.send_to(&buffer[..len], from).map_err(|error| error.to_string())?;
        let came = spin(Instant::now() + SILENCE, || {
            (len, from) = socket.recv_from(&mut buffer)?;
            Ok(())
        })?;
        if !came {
            return Ok(());
        }
    }
}

/// Prints the median, 99th and 99.9th percentile of half a round trip, in microseconds.
fn ping(address: SocketAddr, options: &BareUdp) -> Result {
    let socket = connected(address)?;
    socket.set_nonblocking(true).map_err(|error| error.to_string())?;
    let mut buffer = [0; 64];
    let mut halves = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    while Instant::now() < end {
        let start = Instant::now();
        socket.send(&[0; 8]).map_err(|error| error.to_string())?;
        if !spin(start + SILENCE, || socket.recv(&mut buffer).map(drop))? {
            return Err(format!("{address} does not send anything back"));
        }
        halves.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    halves.sort_by(f64::total_cmp);
    let percentile = |of_1000: usize| halves[(halves.len() - 1) * of_1000 / 1000];
    println!("{:.3} {:.3} {:.3}", percentile(500), percentile(990), percentile(999));
    Ok(())
}

/// Options of the process that is all the programs that do nothing.
#[derive(Args)]
struct IdlePrograms {
    /// The daemon's socket.
    #[arg(long)]
    socket: PathBuf,
    /// How many.
    #[arg(long)]
    count: usize,
}

/// Is so many programs to a daemon, until it is killed.
fn be_idle(options: &IdlePrograms) -> Result {
    // Each has some descriptors.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(|error| format!("descriptors: {error}"))?;
    let mut contexts = Vec::new();
    for _ in 0..options.count {
        let context = Context::open(&OpenOptions::new().socket(&options.socket));
        contexts.push(context.map_err(|error| error.to_string())?);
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}
