//! What the network says of packets to the peer's UDP port 4791.

use super::report::{Finding, Found};
use super::route::Route;
use std::io;
use std::time::Duration;
use urxe_port::probe::Objection;
use urxe_wire::ROCE_PORT;

/// How long the peer's kernel, or a router, may take to object. What comes later is seen when no
/// answer came.
const WAIT: Duration = Duration::from_millis(200);

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

#[cfg(test)]
mod tests {
    use super::*;

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
