//! Ids: what a program connects and listens with.

use super::ports::Claim;
use crate::broker::sessions::Program;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use urxe_cm::{ConnId, ListenerId};
use urxe_shm::control::{CmIdState, CmPortSpace, ControlError, ResourceDetail};
use urxe_slot::refusal::refuse;
use urxe_types::{QpType, Qpn, TimeCode};

/// An id: `rdma_cm_id`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Id {
    pub(super) program: Program,
    /// Its handle in the session that has it.
    pub(super) handle: u32,
    /// The program's own number; none of a request that is not accepted.
    pub(super) user_handle: Option<u64>,
    /// The key of the channel that its events come to.
    pub(super) channel: u32,
    pub(super) space: CmPortSpace,
    pub(super) qp_type: QpType,
    pub(super) phase: Phase,
    /// The device that it is bound to.
    pub(super) device: Option<usize>,
    /// Its own address; the port is its own too, unless it came with a request.
    pub(super) src: Option<SocketAddr>,
    /// The peer's.
    pub(super) dst: Option<SocketAddr>,
    /// It has taken its port.
    pub(super) has_port: bool,
    pub(super) traffic_class: u8,
    pub(super) reuse_addr: bool,
    /// What the program wants of the wildcard, if it has said.
    pub(super) family_only: Option<bool>,
    /// The ACK timeout, if the program has said.
    pub(super) ack_timeout: Option<TimeCode>,
    /// The QP that the program named.
    pub(super) qpn: Option<Qpn>,
    /// The QP that a request was accepted with, until the peer has confirmed it.
    pub(super) accepted_qpn: Option<Qpn>,
    /// Keys of its memberships in groups.
    pub(super) memberships: Vec<u32>,
    /// The numbers of its events that wait in its channel.
    pub(super) waiting: BTreeSet<u64>,
    /// Events that were taken.
    pub(super) taken: u32,
    /// The number of the event that says what became of resolving an address, the last time.
    pub(super) resolution: Option<u64>,
}

/// Where an id stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Phase {
    /// It has no address.
    Idle,
    /// It has an address, perhaps the wildcard, and a port.
    Bound,
    /// It knows its device and its peer's address.
    AddrResolved,
    /// It knows the path.
    RouteResolved,
    /// It listens, on these devices.
    Listening(Vec<(usize, ListenerId)>),
    /// It is, or is to be, connected; or waits for an answer to its question.
    Connected { device: usize, conn: ConnId },
    /// Its connection has come to nothing or has ended; or its question is answered.
    Over,
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Phase::Idle => "without an address",
            Phase::Bound => "bound to an address, with no peer's resolved",
            Phase::AddrResolved => "at a resolved address, with no route",
            Phase::RouteResolved => "at a resolved route, with no connection",
            Phase::Listening(_) => "listening",
            Phase::Connected { .. } => "connecting or connected",
            Phase::Over => "over",
        }
    }
}

impl Id {
    /// An id without an address.
    pub(super) fn new(
        program: Program,
        handle: u32,
        channel: u32,
        space: CmPortSpace,
        qp_type: QpType,
    ) -> Id {
        Id {
            program,
            handle,
            user_handle: None,
            channel,
            space,
            qp_type,
            phase: Phase::Idle,
            device: None,
            src: None,
            dst: None,
            has_port: false,
            traffic_class: 0,
            reuse_addr: false,
            family_only: None,
            ack_timeout: None,
            qpn: None,
            accepted_qpn: None,
            memberships: Vec::new(),
            waiting: BTreeSet::new(),
            taken: 0,
            resolution: None,
        }
    }

    /// The port that it has taken.
    pub(super) fn port(&self) -> Option<u16> {
        self.src.filter(|_| self.has_port).map(|src| src.port())
    }

    /// Whether the wildcard of its family means that family only. Of IPv4 it does unless the
    /// program says otherwise, of IPv6 the other way round.
    pub(super) fn is_family_only(&self, addr: IpAddr) -> bool {
        self.family_only.unwrap_or(addr.is_ipv4())
    }

    /// What it claims of a port on this address.
    pub(super) fn claim(&self, key: u32, addr: IpAddr) -> Claim {
        let family_only = self.is_family_only(addr);
        Claim { id: key, user: self.program.uid, addr, family_only, reuse_addr: self.reuse_addr }
    }

    /// Its connection, if it has one.
    pub(super) fn connection(&self, command: &str) -> Result<(usize, ConnId), ControlError> {
        match self.phase {
            Phase::Connected { device, conn } => Ok((device, conn)),
            _ => Err(self.cannot(command)),
        }
    }

    /// As a device lists it, if it is bound to that one or listens on it.
    pub(super) fn detail(&self, device: usize) -> Option<ResourceDetail> {
        let (is_here, state) = match &self.phase {
            Phase::Idle => return None,
            Phase::Bound => (self.device == Some(device), CmIdState::Bound),
            Phase::AddrResolved => (self.device == Some(device), CmIdState::AddrResolved),
            Phase::RouteResolved => (self.device == Some(device), CmIdState::RouteResolved),
            Phase::Listening(on) => (on.iter().any(|(on, _)| *on == device), CmIdState::Listening),
            Phase::Connected { .. } => (self.device == Some(device), CmIdState::Connected),
            Phase::Over => (self.device == Some(device), CmIdState::Over),
        };
        let &Id { space, qp_type, src: local, dst: peer, .. } = self;
        let qpn = self.qpn.map(Qpn::get);
        is_here.then_some(ResourceDetail::CmId { space, qp_type, state, qpn, local, peer })
    }

    /// Refuses to resolve another address before it was taken what became of the last one: one that
    /// fails again and again would have more and more events.
    pub(super) fn check_resolution(&self) -> Result<(), ControlError> {
        // CM-204
        if self.resolution.is_none_or(|event| !self.waiting.contains(&event)) {
            return Ok(());
        }
        let sentence = format!(
            "id {}: cannot resolve another address, the event of the last one waits: take it first",
            self.handle
        );
        Err(refuse(Errno::INVAL, sentence))
    }

    /// It is not at that point of its life.
    pub(super) fn cannot(&self, command: &str) -> ControlError {
        let (handle, phase) = (self.handle, self.phase.name());
        refuse(Errno::INVAL, format!("id {handle}: cannot {command}, it is {phase}"))
    }
}
