//! SIDR REQ: asks which QP takes the datagrams of a service.
//!
//! ```text
//!   0  request ID                           8  service ID (8)
//!   4  P_Key (2)                           16  private data (216)
//! ```

use super::body::Body;
use super::{CommId, ServiceId};
use std::fmt;
use urxe_types::Pkey;

/// A service ID resolution request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's number of the request.
    pub request_id: CommId,
    /// The partition.
    pub pkey: Pkey,
    /// The service.
    pub service_id: ServiceId,
    /// What the service makes of it.
    pub private_data: [u8; SidrReq::PRIVATE_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 216;

    pub(super) fn parse(body: &Body) -> SidrReq {
        SidrReq {
            request_id: CommId(body.u32(0)),
            pkey: Pkey(body.u16(4)),
            service_id: ServiceId(body.u64(8)),
            private_data: body.bytes(16),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.request_id.0);
        body.put_u16(4, self.pkey.0);
        body.put_u64(8, self.service_id.0);
        body.put(16, &self.private_data);
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} service {}", self.request_id, self.service_id)
    }
}
