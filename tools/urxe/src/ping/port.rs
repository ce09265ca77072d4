//! What the network says of packets to the peer's UDP port 4791, short and long ones.

use super::report::{Facts, Finding, Found};
use super::route::Route;
use std::io;
use std::time::Duration;
use urxe_types::PathMtu;
use urxe_wire::{Headers, OuterHeaders, ROCE_PORT, icrc, largest_path_mtu};

/// How long the peer's kernel, or a router, may take to object. What comes later is seen when no
/// answer came.
const WAIT: Duration = Duration::from_millis(200);

/// How often a shorter packet is tried: a way rarely becomes narrower more than twice.
const ATTEMPTS: usize = 8;

/// Whether anybody objects to a short packet.
pub(super) fn try_port(route: &Route) -> Found<()> {
    let probe = &route.probe;
    let objection = match probe.send(0) {
        Ok(()) => probe.objection(WAIT),
        Err(error) => Ok(Some(error)),
    };
    match objection {
        Ok(None) => {
            let says = format!("nobody objects to a packet to UDP port {ROCE_PORT}");
            (Finding::ok(says), Some(()))
        }
        Ok(Some(error)) => (objected(route, &error), None),
        Err(error) => {
            let says = format!("the system lets us not wait for objections: {error}");
            (Finding::unknown(says, "go on, and see whether the peer answers"), Some(()))
        }
    }
}

/// What an objection means.
pub(super) fn objected(route: &Route, error: &io::Error) -> Finding {
    let (source, peer) = (route.source(), route.peer().ip());
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Finding::failed(
            format!("the host is there, but nothing listens on UDP port {ROCE_PORT} of {peer}"),
            format!(
                "start a RoCEv2 device on that address: there, `urxe daemon --addr {peer}`, or \
                 for kernel rxe `rdma link add rxe0 type rxe netdev INTERFACE`; a firewall that \
                 rejects packets says the same"
            ),
        ),
        io::ErrorKind::HostUnreachable => Finding::failed(
            format!("{peer} cannot be reached: {error}"),
            "the host is down or has another address, or a firewall on the way rejects UDP port \
             4791",
        ),
        io::ErrorKind::NetworkUnreachable => Finding::failed(
            format!("a router knows no way to {peer}: {error}"),
            format!("check the routes on the way: `traceroute {peer}`"),
        ),
        io::ErrorKind::PermissionDenied => Finding::failed(
            format!("this machine forbids packets from {source} to {peer}: {error}"),
            "a firewall rule for what leaves this machine drops UDP port 4791: `nft list ruleset` \
             or `iptables -L OUTPUT` shows it",
        ),
        _ => Finding::failed(
            format!("a packet to UDP port {ROCE_PORT} of {peer} was refused: {error}"),
            "look at the interface (`ip -s link`) and at this machine's firewall",
        ),
    }
}

/// The largest path MTU whose packets nobody objects to.
pub(super) fn find_path_mtu(route: &Route) -> Found<()> {
    match search(route) {
        Ok(finding) => (finding, Some(())),
        Err(error) => (objected(route, &error), None),
    }
}

fn search(route: &Route) -> io::Result<Finding> {
    let (probe, ipv6) = (&route.probe, route.peer().is_ipv6());
    let mut largest = probe.largest_packet()?;
    let first = largest;
    let longest = OuterHeaders::len(ipv6) + Headers::MAX_LEN + PathMtu::Mtu4096.bytes() + icrc::LEN;
    for _ in 0..ATTEMPTS {
        let objection = match probe.send(longest.min(largest as usize)) {
            Ok(()) => probe.objection(WAIT)?,
            Err(error) => Some(error),
        };
        match objection {
            None => break,
            // The kernel has noted what fits.
            Some(error) if is_too_long(&error) => {
                let now = probe.largest_packet()?;
                if now >= largest {
                    break;
                }
                largest = now;
            }
            Some(error) => return Err(error),
        }
    }
    let path_mtu = largest_path_mtu(largest, ipv6);
    let facts = Facts::PathMtu { largest_packet: largest, path_mtu };
    Ok(judge(first, largest, path_mtu).with(facts))
}

fn judge(interface: u32, largest: u32, path_mtu: Option<PathMtu>) -> Finding {
    let Some(path_mtu) = path_mtu else {
        return Finding::failed(
            format!("IP packets of {largest} bytes at most pass: no RDMA path MTU fits"),
            "RoCEv2 needs at least 256 bytes and its headers: raise the MTU of the narrowest link",
        );
    };
    if largest < interface {
        return Finding::warning(
            format!(
                "a router lets IP packets of {largest} bytes pass, our route {interface}: path \
                 MTU {path_mtu} fits"
            ),
            format!(
                "connect with path MTU {path_mtu} (`mtu` of perftest, path_mtu of ibv_modify_qp), \
                 or raise the MTU of that link"
            ),
        );
    }
    Finding::ok(format!(
        "nobody objects to packets of path MTU {path_mtu}, which fits IP packets of {largest} \
         bytes; that no router drops long ones in silence, only a transfer shows"
    ))
}

fn is_too_long(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::MSGSIZE)
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;

    #[test]
    fn a_narrower_way_is_a_warning_and_one_without_room_a_failure() {
        let state =
            |interface, largest| judge(interface, largest, largest_path_mtu(largest, false)).state;
        assert_eq!(state(1500, 1500), State::Ok);
        assert_eq!(state(9000, 1500), State::Warning);
        assert_eq!(state(1500, 256), State::Failed);
        let narrow = judge(9000, 1500, Some(PathMtu::Mtu1024));
        assert!(narrow.says.contains("path MTU 1024 fits"), "{narrow:?}");
    }

    #[test]
    fn each_objection_has_a_cause_of_its_own() {
        let peer = "127.0.0.9:4791".parse().unwrap();
        let route = super::super::route::find(&[peer], None).1.unwrap();
        let mut sentences = std::collections::BTreeSet::new();
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::HostUnreachable,
            io::ErrorKind::NetworkUnreachable,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::Other,
        ] {
            let finding = objected(&route, &kind.into());
            assert!(finding.says.contains("127.0.0.9"), "{finding:?}");
            sentences.insert(finding.advice.unwrap());
        }
        assert_eq!(sentences.len(), 5);
    }
}
