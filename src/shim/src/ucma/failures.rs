//! Events of the connection manager that are failures: what the user is told of them.

use crate::reasons::{self, Level};
use crate::refused::errno_of;
use std::net::SocketAddr;
use urxe_shm::control::{CmEvent, CmEventKind, errnos};
use urxe_wire::mad::Reason;

/// Whether an event is a failure of what the program has asked for.
pub(super) fn is_failure(event: &CmEvent) -> bool {
    use CmEventKind::{AddrError, ConnectError, MulticastError, Rejected, RouteError, Unreachable};
    let kinds = [AddrError, RouteError, ConnectError, Unreachable, Rejected, MulticastError];
    kinds.contains(&event.kind) && reasons::is_told(Level::Error)
}

/// Tells of a failure. `peer` is whom the id wants to reach, if that is known.
pub(super) fn tell(event: &CmEvent, peer: Option<SocketAddr>) {
    // WHY-030
    reasons::say(Level::Error, &sentence(event, peer));
}

fn sentence(event: &CmEvent, peer: Option<SocketAddr>) -> String {
    let (verb, name) = match event.kind {
        CmEventKind::AddrError => ("rdma_resolve_addr", "RDMA_CM_EVENT_ADDR_ERROR"),
        CmEventKind::RouteError => ("rdma_resolve_route", "RDMA_CM_EVENT_ROUTE_ERROR"),
        CmEventKind::MulticastError => ("rdma_join_multicast", "RDMA_CM_EVENT_MULTICAST_ERROR"),
        CmEventKind::Unreachable => ("rdma_connect", "RDMA_CM_EVENT_UNREACHABLE"),
        CmEventKind::Rejected => ("rdma_connect", "RDMA_CM_EVENT_REJECTED"),
        _ => ("rdma_connect", "RDMA_CM_EVENT_CONNECT_ERROR"),
    };
    let to = peer.map_or_else(String::new, |peer| format!(" to {peer}"));
    let status = event.status;
    let why = match status {
        0 => "the other side has ended it.".to_owned(),
        ..0 => {
            let errno = errno_of(status);
            format!("{} ({})", errnos::meaning(errno), errnos::name(errno))
        }
        reason => {
            let reason = Reason::from_code(u16::try_from(reason).unwrap_or(u16::MAX));
            format!("{} (reason {status})", reason.text())
        }
    };
    format!("{verb}{to}: {name}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::{CmEventParam, CmIdHandle, CmSubject};

    fn event(kind: CmEventKind, status: i32) -> CmEvent {
        let subject = CmSubject::Id(CmIdHandle(1));
        CmEvent { user_handle: 0, subject, kind, status, param: CmEventParam::None }
    }

    #[test]
    fn a_failure_names_verb_peer_event_and_reason() {
        let peer = Some(([10, 0, 0, 2], 7471).into());
        let said = sentence(&event(CmEventKind::Rejected, 8), peer);
        let begins = "rdma_connect to 10.0.0.2:7471: RDMA_CM_EVENT_REJECTED: ";
        assert_eq!(said, format!("{begins}{} (reason 8)", Reason::from_code(8).text()));
        let said = sentence(&event(CmEventKind::AddrError, -libc::ENETUNREACH), None);
        assert!(
            said.starts_with("rdma_resolve_addr: RDMA_CM_EVENT_ADDR_ERROR: No route"),
            "{said}"
        );
        assert!(said.ends_with("(ENETUNREACH)"), "{said}");
        sentence(&event(CmEventKind::Unreachable, i32::MIN), None);
    }
}
