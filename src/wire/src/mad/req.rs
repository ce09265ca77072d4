//! REQ: asks for a connection.
//!
//! EECN and RDC belong to reliable datagrams, which nothing has: they are ignored, and sent as 0.

use super::layout::{at, bits, message, numbers};
use super::{CmPath, CommId, ServiceId};
use std::fmt;
use urxe_types::{PathMtu, Pkey, Psn, Qkey, Qpn, TimeCode};

/// What kind of connection is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// As the extended transport type says: XRC.
    Extended,
}

numbers! {
    TransportService: 2, |code| {
        use TransportService::{Extended, Rc, Rd, Uc};
        [Rc, Uc, Rd, Extended][code as usize]
    }, |transport| transport as u128;
}

message! {
    /// A request for a connection. "Local" is the sender.
    Req {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// What is asked for.
        service_id: ServiceId = at(8),
        /// Which adapter the sender is.
        local_ca_guid: u64 = at(16),
        /// Q_Key of the sender's QP, where it has one.
        local_qkey: Qkey = at(28),
        /// The sender's QP.
        local_qpn: Qpn = at(32),
        /// READs and atomics that the sender's responder takes at a time.
        responder_resources: u8 = at(35),
        /// READs and atomics that the sender's requester wants to have outstanding.
        initiator_depth: u8 = at(39),
        /// In which time the receiver shall answer.
        remote_response_timeout: TimeCode = bits(43, 0..5),
        /// The kind of connection.
        transport: TransportService = bits(43, 5..7),
        /// The sender has end-to-end flow control; without it, its ACKs tell no credits.
        flow_control: bool = bits(43, 7..8),
        /// First PSN that the receiver's requester is to use.
        starting_psn: Psn = at(44),
        /// In which time the sender answers.
        local_response_timeout: TimeCode = bits(47, 0..5),
        /// Tries after a timeout or sequence error, 3 bits.
        retry_count: u8 = bits(47, 5..8),
        /// The partition.
        pkey: Pkey = at(48),
        /// The path MTU; none if the code means nothing.
        path_mtu: Option<PathMtu> = bits(50, 0..4),
        /// Tries after an RNR NAK, 3 bits.
        rnr_retry_count: u8 = bits(50, 5..8),
        /// How often either side may repeat REQ, REP and DREQ, 4 bits.
        max_cm_retries: u8 = bits(51, 0..4),
        /// The sender's QP receives from an SRQ.
        srq: bool = bits(51, 4..5),
        /// Which extended transport, 3 bits.
        extended_transport: u8 = bits(51, 5..8),
        /// The path.
        primary: CmPath = at(52),
        /// The path to change to if the first one fails.
        alternate: Option<CmPath> = at(96),
        ..private_data = at(140),
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Req { local_comm_id, service_id, transport, local_qpn, starting_psn, .. } = self;
        write!(f, "id {local_comm_id} service {service_id} {transport:?} qp {local_qpn} ")?;
        write!(f, "psn {starting_psn}")
    }
}
