//! Up to which path MTU packets pass: as far as routers say that they are too long, and as far as
//! ICMP echoes of that length come back. A router that drops long packets in silence is seen by
//! the latter only.

use super::port::objected;
use super::report::{Facts, Finding, Found};
use super::route::Route;
use std::io;
use std::time::{Duration, Instant};
use urxe_port::echo::Echo;
use urxe_port::probe::Objection;
use urxe_types::PathMtu;
use urxe_wire::{Headers, OuterHeaders, icrc, largest_path_mtu};

/// How long a router may take to say that a packet is too long.
const OBJECTION_WAIT: Duration = Duration::from_millis(200);

/// How often a shorter packet is tried: a way rarely becomes narrower more than twice.
const ATTEMPTS: usize = 8;

/// How long a short echo may take; a long one may take four times as long as that took, but not
/// less than the second time here.
const ECHO_WAIT: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(100)];

/// Finds the largest path MTU whose packets pass, as far as that can be told.
pub(super) fn find(route: &Route) -> Found<()> {
    let ipv6 = route.peer().is_ipv6();
    let (largest, unopposed) = match search(route) {
        Ok(found) => found,
        Err(objection) => return (objected(route, &objection), None),
    };
    let Some(unopposed) = unopposed else {
        let finding = Finding::failed(
            format!("IP packets of {largest} bytes at most pass: no RDMA path MTU fits"),
            "RoCEv2 needs at least 256 bytes and its headers: raise the MTU of the narrowest link",
        );
        return (finding, None);
    };
    let of_interface = largest_path_mtu(route.interface_mtu().unwrap_or(largest), ipv6);
    let echoes = send_echoes(route, unopposed);
    let path_mtu = match echoes {
        Echoes::UpTo(path_mtu) => path_mtu,
        Echoes::None => Some(unopposed),
    };
    let echoed = matches!(echoes, Echoes::UpTo(_));
    let facts = Facts::PathMtu { largest_packet: largest, path_mtu, echoed };
    let finding = judge(of_interface.unwrap_or(unopposed), unopposed, echoes).with(facts);
    (finding, Some(()))
}

/// Bytes of the longest IP packet with a path MTU.
fn longest_packet(path_mtu: PathMtu, ipv6: bool) -> usize {
    OuterHeaders::len(ipv6) + Headers::MAX_LEN + path_mtu.bytes() + icrc::LEN
}

/// The longest IP packet that the kernel knows to pass, and the largest path MTU to whose packets
/// nobody objects.
fn search(route: &Route) -> Result<(u32, Option<PathMtu>), Objection> {
    let (probe, ipv6) = (&route.probe, route.peer().is_ipv6());
    let mut largest = probe.largest_packet()?;
    for _ in 0..ATTEMPTS {
        let Some(path_mtu) = largest_path_mtu(largest, ipv6) else { break };
        let objection = match probe.send(longest_packet(path_mtu, ipv6)) {
            Ok(()) => probe.objection(OBJECTION_WAIT)?,
            Err(objection) => Some(objection),
        };
        match objection {
            None => break,
            // The kernel has noted what fits.
            Some(objection) if is_too_long(&objection.error) => {
                let now = probe.largest_packet()?;
                if now >= largest {
                    break;
                }
                largest = now;
            }
            Some(objection) => return Err(objection),
        }
    }
    Ok((largest, largest_path_mtu(largest, ipv6)))
}

/// Which ICMP echoes come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echoes {
    /// None at all, or none may be sent.
    None,
    /// Those as long as the packets of this path MTU; `None`: only shorter ones.
    UpTo(Option<PathMtu>),
}

/// Tries echoes as long as the packets of path MTUs, from the largest down.
fn send_echoes(route: &Route, largest: PathMtu) -> Echoes {
    let ipv6 = route.peer().is_ipv6();
    let Ok(mut echo) = Echo::open(route.probe.source(), route.peer()) else {
        return Echoes::None;
    };
    let start = Instant::now();
    if !echo.comes_back(0, ECHO_WAIT[0]).unwrap_or(false) {
        return Echoes::None;
    }
    let wait = (4 * start.elapsed()).max(ECHO_WAIT[1]);
    let mut comes_back = |path_mtu: &PathMtu| {
        let ip_len = longest_packet(*path_mtu, ipv6);
        // One may be lost.
        (0..2).any(|_| echo.comes_back(ip_len, wait).unwrap_or(false))
    };
    let path_mtus = PathMtu::ALL.into_iter().rev().filter(|path_mtu| *path_mtu <= largest);
    Echoes::UpTo({ path_mtus }.find(|path_mtu| comes_back(path_mtu)))
}

/// What is said of a way whose interface takes a path MTU and to whose packets of another one
/// nobody objects.
fn judge(of_interface: PathMtu, unopposed: PathMtu, echoes: Echoes) -> Finding {
    let connect_with = |path_mtu: PathMtu| {
        format!("connect with path MTU {path_mtu} (`-m` of perftest, path_mtu of ibv_modify_qp)")
    };
    match echoes {
        Echoes::UpTo(Some(echoed)) if echoed < unopposed => Finding::warning(
            format!(
                "ICMP echoes as long as packets of path MTU {unopposed} vanish without a word, \
                 those of {echoed} come back"
            ),
            format!(
                "some switch or router drops long packets: set its MTU (jumbo frames) as that of \
                 both ends, or {}",
                connect_with(echoed)
            ),
        ),
        Echoes::UpTo(None) => Finding::warning(
            "short ICMP echoes come back, and none as long as packets of any path MTU",
            "some switch or router drops long packets, or long echoes only: `urxe perf` shows \
             which",
        ),
        _ if unopposed < of_interface => Finding::warning(
            format!(
                "a router takes packets of path MTU {unopposed}, and none of {of_interface} as the \
                 interface does"
            ),
            format!("{}, or raise the MTU of the narrowest link", connect_with(unopposed)),
        ),
        Echoes::UpTo(Some(_)) => Finding::ok(format!(
            "packets of path MTU {unopposed} pass: ICMP echoes as long come back, and nobody \
             objects"
        )),
        Echoes::None => Finding::ok(format!(
            "nobody objects to packets of path MTU {unopposed}; whether some are dropped in \
             silence cannot be told, for no ICMP echo comes back"
        )),
    }
}

fn is_too_long(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::MSGSIZE)
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;
    use PathMtu::{Mtu1024, Mtu4096};

    #[test]
    fn a_narrower_way_and_one_that_drops_in_silence_are_warnings() {
        let judged = |of_interface, unopposed, echoes| {
            let finding = judge(of_interface, unopposed, echoes);
            (finding.state, finding.says)
        };
        for echoes in [Echoes::None, Echoes::UpTo(Some(Mtu4096))] {
            assert_eq!(judged(Mtu4096, Mtu4096, echoes).0, State::Ok);
        }
        for echoes in [Echoes::None, Echoes::UpTo(Some(Mtu1024))] {
            let (state, says) = judged(Mtu4096, Mtu1024, echoes);
            assert_eq!(state, State::Warning);
            assert!(says.contains("a router takes packets of path MTU 1024"), "{says}");
        }
        let (state, says) = judged(Mtu4096, Mtu4096, Echoes::UpTo(Some(Mtu1024)));
        assert!(state == State::Warning && says.contains("vanish"), "{says}");
        assert_eq!(judged(Mtu4096, Mtu4096, Echoes::UpTo(None)).0, State::Warning);
    }

    #[test]
    fn the_longest_packet_of_a_path_mtu_is_one_that_a_link_of_that_length_takes() {
        for ipv6 in [false, true] {
            for path_mtu in PathMtu::ALL {
                let len = longest_packet(path_mtu, ipv6) as u32;
                assert_eq!(largest_path_mtu(len, ipv6), Some(path_mtu));
                assert_ne!(largest_path_mtu(len - 1, ipv6), Some(path_mtu));
            }
        }
    }

    #[test]
    fn loopback_takes_the_largest_path_mtu() {
        let peer = "127.0.0.9:4791".parse().unwrap();
        let route = super::super::route::find(&[peer], None).1.unwrap();
        assert_ne!(send_echoes(&route, Mtu4096), Echoes::UpTo(None));
        assert_ne!(send_echoes(&route, Mtu4096), Echoes::UpTo(Some(Mtu1024)));
    }
}
