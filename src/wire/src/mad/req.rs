//! REQ: asks for a connection.
//!
//! ```text
//!   0  local communication ID              43  remote CM response timeout (5 bits),
//!   8  service ID (8)                          transport service (2), flow control (1)
//!  16  local CA GUID (8)                   44  starting PSN (3)
//!  28  local Q_Key                         47  local CM response timeout (5), retry count (3)
//!  32  local QPN (3)                       48  P_Key (2)
//!  35  responder resources                 50  path MTU (4), RDC exists (1), RNR retry count (3)
//!  36  local EECN (3)                      51  max CM retries (4), SRQ (1), extended transport (3)
//!  39  initiator depth                     52  primary path (44)
//!  40  remote EECN (3)                     96  alternate path (44)
//!                                         140  private data (92)
//! ```
//!
//! EECN and RDC belong to reliable datagrams, which nothing has: they are ignored, and sent as 0.

use super::body::Body;
use super::{CmPath, CommId, ServiceId};
use std::fmt;
use urxe_types::{Pkey, Psn, Qkey, Qpn, TimeCode};

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

impl TransportService {
    fn from_code(code: u8) -> TransportService {
        match code & 3 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            _ => TransportService::Extended,
        }
    }
}

/// A request for a connection. "Local" is the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// What is asked for.
    pub service_id: ServiceId,
    /// Which adapter the sender is.
    pub local_ca_guid: u64,
    /// Q_Key of the sender's QP, where it has one.
    pub local_qkey: Qkey,
    /// The sender's QP.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender's responder takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender's requester wants to have outstanding.
    pub initiator_depth: u8,
    /// In which time the receiver shall answer.
    pub remote_response_timeout: TimeCode,
    /// The kind of connection.
    pub transport: TransportService,
    /// The sender's requester obeys credits.
    pub flow_control: bool,
    /// First PSN that the receiver's requester is to use.
    pub starting_psn: Psn,
    /// In which time the sender answers.
    pub local_response_timeout: TimeCode,
    /// Tries after a timeout or sequence error, 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: Pkey,
    /// Code of the path MTU (see [`urxe_types::PathMtu`]), 4 bits, of which a peer may send
    /// any.
    pub path_mtu: u8,
    /// Tries after an RNR NAK, 3 bits.
    pub rnr_retry_count: u8,
    /// How often either side may repeat REQ, REP and DREQ, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP receives from an SRQ.
    pub srq: bool,
    /// Which extended transport, 3 bits.
    pub extended_transport: u8,
    /// The path.
    pub primary: CmPath,
    /// The path to change to if the first one fails.
    pub alternate: Option<CmPath>,
    /// What the service makes of it.
    pub private_data: [u8; Req::PRIVATE_LEN],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 92;

    const PRIMARY_AT: usize = 52;
    const ALTERNATE_AT: usize = Req::PRIMARY_AT + CmPath::LEN;
    const PRIVATE_AT: usize = Req::ALTERNATE_AT + CmPath::LEN;

    pub(super) fn parse(body: &Body) -> Req {
        Req {
            local_comm_id: CommId(body.u32(0)),
            service_id: ServiceId(body.u64(8)),
            local_ca_guid: body.u64(16),
            local_qkey: Qkey(body.u32(28)),
            local_qpn: Qpn::new(body.u24(32)),
            responder_resources: body.u8(35),
            initiator_depth: body.u8(39),
            remote_response_timeout: TimeCode::new(body.bits(43, 0, 5)),
            transport: TransportService::from_code(body.bits(43, 5, 2)),
            flow_control: body.flag(43, 7),
            starting_psn: Psn::new(body.u24(44)),
            local_response_timeout: TimeCode::new(body.bits(47, 0, 5)),
            retry_count: body.bits(47, 5, 3),
            pkey: Pkey(body.u16(48)),
            path_mtu: body.bits(50, 0, 4),
            rnr_retry_count: body.bits(50, 5, 3),
            max_cm_retries: body.bits(51, 0, 4),
            srq: body.flag(51, 4),
            extended_transport: body.bits(51, 5, 3),
            primary: CmPath::parse(body, Req::PRIMARY_AT),
            alternate: CmPath::parse_alternate(body, Req::ALTERNATE_AT),
            private_data: body.bytes(Req::PRIVATE_AT),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u64(8, self.service_id.0);
        body.put_u64(16, self.local_ca_guid);
        body.put_u32(28, self.local_qkey.0);
        body.put_u24(32, self.local_qpn.get());
        body.put_u8(35, self.responder_resources);
        body.put_u8(39, self.initiator_depth);
        body.put_bits(43, 0, 5, self.remote_response_timeout.code());
        body.put_bits(43, 5, 2, self.transport as u8);
        body.put_flag(43, 7, self.flow_control);
        body.put_u24(44, self.starting_psn.get());
        body.put_bits(47, 0, 5, self.local_response_timeout.code());
        body.put_bits(47, 5, 3, self.retry_count);
        body.put_u16(48, self.pkey.0);
        body.put_bits(50, 0, 4, self.path_mtu);
        body.put_bits(50, 5, 3, self.rnr_retry_count);
        body.put_bits(51, 0, 4, self.max_cm_retries);
        body.put_flag(51, 4, self.srq);
        body.put_bits(51, 5, 3, self.extended_transport);
        self.primary.emit(body, Req::PRIMARY_AT);
        if let Some(alternate) = &self.alternate {
            alternate.emit(body, Req::ALTERNATE_AT);
        }
        body.put(Req::PRIVATE_AT, &self.private_data);
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Req { local_comm_id, service_id, transport, local_qpn, starting_psn, .. } = self;
        write!(f, "id {local_comm_id} service {service_id} {transport:?} qp {local_qpn} ")?;
        write!(f, "psn {starting_psn}")
    }
}
