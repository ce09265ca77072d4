//! Bare offloaded UDP: 64 KiB a system call by `UDP_SEGMENT`, received by `UDP_GRO`. What is left
//! of it is the most that any protocol over these sockets can have.

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use urxe_port::offload;
use urxe_shell::Result;

/// How long it may be silent before the receiver takes it as ended.
const SILENCE: Duration = Duration::from_secs(1);

/// Options of one end.
#[derive(clap::Args)]
pub(crate) struct Options {
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
}

/// Runs one end.
pub(crate) fn run(options: &Options) -> Result {
    match (options.receive, options.send) {
        (Some(address), None) => receive(address),
        (None, Some(address)) => send(address, options),
        _ => Err("bare-udp: give --receive or --send".to_owned()),
    }
    .map_err(|error| format!("bare-udp: {error}"))
}

/// Prints the Gbit/s that arrived, from the first byte to the last.
#[allow(clippy::print_stdout)] // the figure is its answer
fn receive(address: SocketAddr) -> std::result::Result<(), String> {
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

fn send(address: SocketAddr, options: &Options) -> std::result::Result<(), String> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(|error| error.to_string())?;
    socket.connect(address).map_err(|error| format!("{address}: {error}"))?;
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
