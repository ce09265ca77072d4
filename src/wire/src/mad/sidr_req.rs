//! SIDR REQ: asks which QP takes the datagrams of a service.

use super::layout::{at, message};
use super::{CommId, ServiceId};
use std::fmt;
use urxe_types::Pkey;

message! {
    /// A service ID resolution request.
    SidrReq {
        /// The sender's number of the request.
        request_id: CommId = at(0),
        /// The partition.
        pkey: Pkey = at(4),
        /// The service.
        service_id: ServiceId = at(8),
        ..private_data = at(16),
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} service {}", self.request_id, self.service_id)
    }
}
