//! How fast a port moves datagrams by itself, with no engine behind it.
//!
//! One process receives until it is stopped and says every second what came; another sends WRITEs
//! as fast as it can for some seconds. Nothing is acknowledged and nobody waits for anybody.
//!
//! ```text
//! throughput ADDR recv [udp|raw]
//! throughput ADDR send PEER SECONDS PAYLOAD [udp|raw]
//! ```
#![allow(clippy::print_stdout)]

use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_port::raw::{RawOptions, RawPort};
use urxe_port::udp::{UdpOptions, UdpPort};
use urxe_port::{Port, RxBatch};
use urxe_types::{Psn, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Bth, Flow, Headers, Part, ROCE_PORT, Request};

/// Bytes of datagrams that are pushed before each send.
const BATCH: usize = 512 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [addr, "recv", ref rest @ ..] => recv(open(addr, rest)?),
        [addr, "send", peer, seconds, payload, ref rest @ ..] => {
            send(open(addr, rest)?, peer.parse()?, seconds.parse()?, payload.parse()?)
        }
        _ => Err("usage: throughput ADDR recv [udp|raw] | \
                  throughput ADDR send PEER SECONDS PAYLOAD [udp|raw]"
            .into()),
    }
}

fn open(addr: &str, backend: &[&str]) -> Result<Box<dyn Port>, Box<dyn Error>> {
    let addr: IpAddr = addr.parse()?;
    Ok(match backend {
        ["raw"] => Box::new(RawPort::open(addr, &RawOptions::default())?),
        _ => Box::new(UdpPort::open(addr, &UdpOptions::default())?),
    })
}

fn send(
    mut port: Box<dyn Port>,
    peer: IpAddr,
    seconds: f64,
    payload: usize,
) -> Result<(), Box<dyn Error>> {
    let caps = port.caps();
    let flow = Flow {
        src: caps.addrs[0],
        dst: peer,
        src_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let mut batch = TxBatch::new(caps.tx_limits, BATCH);
    let memory = vec![0xa5u8; payload];
    let (start, mut psn) = (Instant::now(), Psn::new(0));
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        while batch.has_room() {
            let headers = Headers::new(Bth::new(Qpn::new(0x11), psn), Request::Write(Part::Middle));
            let Ok(()) = batch.push(&flow, &headers, payload, |bytes| {
                bytes.copy_from_slice(&memory);
                Ok::<(), Infallible>(())
            });
            psn = psn.next();
        }
        let _ = port.send(Instant::now(), &mut batch)?;
    }
    report("sent", port.counters().tx_bytes, port.counters().tx_datagrams, start.elapsed());
    println!("{:?} {:?}", port.caps().segmentation, port.counters());
    Ok(())
}

fn recv(mut port: Box<dyn Port>) -> Result<(), Box<dyn Error>> {
    let (mut rx, mut checker) = (RxBatch::default(), Checker::new());
    let (mut exact, mut recovered, mut bad) = (0u64, 0u64, 0u64);
    let (mut last, mut since) = (port.counters(), Instant::now());
    loop {
        port.recv(Instant::now(), &mut rx)?;
        while let Some((outer, bytes)) = rx.next_datagram() {
            match checker.check(outer, bytes) {
                Verdict::Exact => exact += 1,
                Verdict::Recovered { .. } => recovered += 1,
                Verdict::Bad => bad += 1,
            }
        }
        if since.elapsed() >= Duration::from_secs(1) {
            let now = port.counters();
            let (bytes, datagrams) =
                (now.rx_bytes - last.rx_bytes, now.rx_datagrams - last.rx_datagrams);
            report("received", bytes, datagrams, since.elapsed());
            println!(
                "  {exact} exact, {recovered} recovered, {bad} bad; {} lost for want of room, {} calls",
                now.rx_overflow - last.rx_overflow,
                now.rx_calls - last.rx_calls,
            );
            (last, since) = (now, Instant::now());
        }
    }
}

fn report(what: &str, bytes: u64, datagrams: u64, time: Duration) {
    let seconds = time.as_secs_f64();
    println!(
        "{what} {:.2} Gbit/s, {:.0} datagrams/s",
        bytes as f64 * 8e-9 / seconds,
        datagrams as f64 / seconds
    );
}
