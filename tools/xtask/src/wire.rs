//! What goes over the wire between two namespaces, judged by decoders that are not ours.

use crate::netns::{Pair, Side};
use crate::packages::{ETHTOOL, IP, SCAPY, TCPDUMP, TSHARK, lacking_root_or};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use urxe_shell::{Result, build_release, output, root, run};

/// Tests of `urxe perf`, each with arguments that make it short.
const TESTS: [(&str, &[&str]); 4] = [
    ("write-bw", &["--size", "65536", "--iters", "50"]),
    ("read-bw", &["--size", "65536", "--iters", "50"]),
    ("send-bw", &["--size", "5000", "--iters", "100"]),
    ("atomic-lat", &["--iters", "100"]),
];

/// Why it cannot run here.
pub(crate) fn lacks() -> Option<String> {
    lacking_root_or(&[IP, ETHTOOL, TCPDUMP, TSHARK, SCAPY])
}

/// Runs the tests over IPv4 and IPv6 at both link MTUs and has every packet judged.
pub(crate) fn check() -> Result {
    if let Some(reason) = lacks() {
        return Err(reason);
    }
    build_release()?;
    for mtu in [1500, 9000] {
        for ipv6 in [false, true] {
            check_one(mtu, ipv6)?;
        }
    }
    Ok(())
}

fn check_one(mtu: u32, ipv6: bool) -> Result {
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    let mut pair = Pair::new(mtu)?;
    for side in [Side::A, Side::B] {
        // The kernel shall cut segmented sends before the link, where tcpdump looks.
        run(pair.command(side, "ethtool").args(["-K", "veth0", "tx-udp-segmentation", "off"]))?;
        let address = if ipv6 { side.ipv6() } else { side.ipv4() };
        pair.start_daemon(side, &address, &[])?;
    }
    let capture = std::env::temp_dir().join(format!("urxe-wire-{}.pcap", std::process::id()));
    let mut tcpdump = pair
        .command(Side::B, "tcpdump")
        .args(["-i", "veth0", "-B", "65536", "-s", "0", "-U", "-w"])
        .arg(&capture)
        .args(["udp", "dst", "port", "4791"])
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("tcpdump cannot be started: {error}"))?;
    // tcpdump says nowhere when it has begun to listen; its file appears with its header.
    for _ in 0..100 {
        if std::fs::metadata(&capture).is_ok_and(|file| file.len() > 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let tested = TESTS.iter().try_for_each(|(test, args)| perf(&pair, test, args));
    std::thread::sleep(Duration::from_millis(500));
    let _ = output(Command::new("kill").args(["-INT", &tcpdump.id().to_string()]));
    let _ = tcpdump.wait();
    let judged = tested.and_then(|()| judge(&capture));
    let _ = std::fs::remove_file(&capture);
    let packets = judged?;
    eprintln!("{family}, link MTU {mtu}: {packets} packets, all well formed, every ICRC right");
    Ok(())
}

/// One test of `urxe perf`, B serving A.
fn perf(pair: &Pair, test: &str, args: &[&str]) -> Result {
    let mut server = pair
        .urxe(Side::B)
        .args(["perf", test])
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("urxe cannot be started: {error}"))?;
    let client = output(pair.urxe(Side::A).args(["perf", test]).args(args).arg(Side::B.ipv4()));
    if client.is_err() {
        let _ = server.kill();
    }
    let status = server.wait().map_err(|error| format!("urxe perf {test}: {error}"))?;
    client?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("urxe perf {test}, the server: ended with {status}")),
    }
}

/// Counts the packets of a capture, none of which may be malformed.
fn judge(capture: &Path) -> Result<usize> {
    let tshark = |filter: &str| {
        // RPC over RDMA is guessed from payloads, and guessed wrong.
        output(
            Command::new("tshark")
                .args(["--disable-protocol", "rpcordma", "-Y", filter])
                .args(["-T", "fields", "-e", "infiniband.bth.opcode", "-r"])
                .arg(capture),
        )
    };
    let malformed = tshark("_ws.malformed || !infiniband")?;
    if !malformed.trim().is_empty() {
        let count = malformed.lines().count();
        return Err(format!("tshark: {count} packets are malformed or no RoCEv2"));
    }
    let packets = tshark("infiniband")?.lines().count();
    if packets < 100 {
        return Err(format!("tshark: only {packets} RoCEv2 packets were captured"));
    }
    run(Command::new(root().join("interop/independent-icrc")).arg(capture))?;
    Ok(packets)
}
