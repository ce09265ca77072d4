//! What the network says of packets to the peer's UDP port 4791, short and long ones.

use super::report::{Facts, Finding, Found};
use super::route::Route;
use std::io;
use std::time::Duration;
use urxe_port::probe::Objection;
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
        Err(objection) => Ok(Some(objection)),
    };
    match objection {
        Ok(None) => {
            let says = format!("nobody objects to a packet to UDP port {ROCE_PORT}");
            (Finding::ok(says), Some(()))
        }
        Ok(Some(objection)) => (objected(route, &objection), None),
        Err(error) => {
            let says = format!("the system lets us not wait for objections: {error}");
            (Finding::unknown(says, "go on, and see whether the peer answers"), Some(()))
        }
    }
}

/// What an objection means.
pub(super) fn objected(route: &Route, objection: &Objection) -> Finding {
    let (source, peer) = (route.source(), route.peer().ip());
    let Objection { error, said_by } = objection;
    let router = said_by.filter(|said_by| *said_by != peer && *said_by != source);
    match (error.kind(), router) {
        (io::ErrorKind::ConnectionRefused, None) => Finding::failed(
            format!("the host is there, but nothing listens on UDP port {ROCE_PORT} of {peer}"),
            format!(
                "start a RoCEv2 device on that address: there, `urxe daemon --addr {peer}`, or \
                 for kernel rxe `rdma link add rxe0 type rxe netdev INTERFACE`; a firewall of that \
                 host that rejects packets says the same"
            ),
        ),
        (io::ErrorKind::HostUnreachable, Some(router)) => Finding::failed(
            format!("the router {router} says that {peer} cannot be reached: {error}"),
            format!(
                "the host is down or has another address; or a firewall rule on {router} rejects \
                 UDP port {ROCE_PORT}"
            ),
        ),
        (io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied, Some(router)) => {
            Finding::failed(
                format!("the router {router} rejects packets to {peer}: {error}"),
                format!(
                    "a firewall rule on {router} has to let UDP port {ROCE_PORT} pass, both ways"
                ),
            )
        }
        (io::ErrorKind::HostUnreachable, None) => Finding::failed(
            format!("{peer} cannot be reached: {error}"),
            format!(
                "the host is down or has another address, or its firewall rejects UDP port \
                 {ROCE_PORT}"
            ),
        ),
        (io::ErrorKind::NetworkUnreachable, _) => Finding::failed(
            format!("there is no way to the network of {peer}: {objection}"),
            format!("check the routes on the way: `traceroute {peer}`"),
        ),
        (io::ErrorKind::PermissionDenied, None) => Finding::failed(
            format!("this machine forbids packets from {source} to {peer}: {error}"),
            format!(
                "a firewall rule for what leaves this machine drops UDP port {ROCE_PORT}: `nft \
                 list ruleset` or `iptables -L OUTPUT` shows it"
            ),
        ),
        _ => Finding::failed(
            format!("a packet to UDP port {ROCE_PORT} of {peer} was refused: {objection}"),
            "look at the interface (`ip -s link`) and at this machine's firewall",
        ),
    }
}

/// The largest path MTU whose packets nobody objects to.
pub(super) fn find_path_mtu(route: &Route) -> Found<()> {
    match search(route) {
        Ok(finding) => (finding, Some(())),
        Err(objection) => (objected(route, &objection), None),
    }
}

fn search(route: &Route) -> Result<Finding, Objection> {
    let (probe, ipv6) = (&route.probe, route.peer().is_ipv6());
    let mut largest = probe.largest_packet()?;
    let longest = OuterHeaders::len(ipv6) + Headers::MAX_LEN + PathMtu::Mtu4096.bytes() + icrc::LEN;
    for _ in 0..ATTEMPTS {
        let objection = match probe.send(longest.min(largest as usize)) {
            Ok(()) => probe.objection(WAIT)?,
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
    let path_mtu = largest_path_mtu(largest, ipv6);
    let facts = Facts::PathMtu { largest_packet: largest, path_mtu };
    let of_interface = largest_path_mtu(route.interface_mtu().unwrap_or(largest), ipv6);
    Ok(judge(of_interface, largest, path_mtu).with(facts))
}

fn judge(of_interface: Option<PathMtu>, largest: u32, path_mtu: Option<PathMtu>) -> Finding {
    let Some(path_mtu) = path_mtu else {
        return Finding::failed(
            format!("IP packets of {largest} bytes at most pass: no RDMA path MTU fits"),
            "RoCEv2 needs at least 256 bytes and its headers: raise the MTU of the narrowest link",
        );
    };
    if let Some(wider) = of_interface.filter(|of_interface| *of_interface > path_mtu) {
        return Finding::warning(
            format!(
                "IP packets of {largest} bytes at most pass the routers: path MTU {path_mtu} fits, \
                 and not {wider}, which the interface would take"
            ),
            format!(
                "connect with path MTU {path_mtu} (`-m` of perftest, path_mtu of ibv_modify_qp), \
                 or raise the MTU of the narrowest link"
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
        let path_mtu = |bytes| largest_path_mtu(bytes, false);
        let state =
            |interface, largest| judge(path_mtu(interface), largest, path_mtu(largest)).state;
        assert_eq!(state(1500, 1500), State::Ok);
        assert_eq!(state(9000, 1500), State::Warning);
        assert_eq!(state(65_536, 65_535), State::Ok, "the kernel's own limit");
        assert_eq!(state(1500, 256), State::Failed);
        let narrow = judge(Some(PathMtu::Mtu4096), 1500, Some(PathMtu::Mtu1024));
        assert!(narrow.says.contains("path MTU 1024 fits, and not 4096"), "{narrow:?}");
    }

    #[test]
    fn each_objection_has_a_cause_of_its_own() {
        let peer = "127.0.0.9:4791".parse().unwrap();
        let route = super::super::route::find(&[peer], None).1.unwrap();
        let router = Some([10, 0, 0, 254].into());
        let mut sentences = std::collections::BTreeSet::new();
        let kinds = [
            (io::ErrorKind::ConnectionRefused, None),
            (io::ErrorKind::ConnectionRefused, router),
            (io::ErrorKind::HostUnreachable, None),
            (io::ErrorKind::HostUnreachable, router),
            (io::ErrorKind::NetworkUnreachable, router),
            (io::ErrorKind::PermissionDenied, None),
            (io::ErrorKind::Other, None),
        ];
        for (kind, said_by) in kinds {
            let finding = objected(&route, &Objection { error: kind.into(), said_by });
            assert!(finding.says.contains("127.0.0.9"), "{finding:?}");
            assert_eq!(finding.says.contains("10.0.0.254"), said_by.is_some(), "{finding:?}");
            sentences.insert(finding.advice.unwrap());
        }
        assert_eq!(sentences.len(), kinds.len());
        let by_peer =
            Objection { error: io::ErrorKind::ConnectionRefused.into(), said_by: Some(peer.ip()) };
        assert!(objected(&route, &by_peer).says.contains("nothing listens"));
    }
}
