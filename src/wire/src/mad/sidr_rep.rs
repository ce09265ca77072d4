//! SIDR REP: names the QP that takes the datagrams of a service.

use super::layout::{at, codes, message};
use super::{CommId, ServiceId};
use std::fmt;
use urxe_types::{Qkey, Qpn};

message! {
    /// A service ID resolution response.
    SidrRep {
        /// The number of the request, from the SIDR REQ.
        request_id: CommId = at(0),
        /// Whether there is such a service.
        status: SidrStatus = at(4),
        /// Its QP.
        qpn: Qpn = at(8),
        /// The service, from the SIDR REQ.
        service_id: ServiceId = at(12),
        /// What datagrams to the QP must carry.
        qkey: Qkey = at(20),
        /// How many bytes of the information mean something; a peer may claim more than there are.
        information_len: u8 = at(5),
        /// What belongs to the status.
        information: [u8; SidrRep::INFORMATION_LEN] = at(24),
        ..private_data = at(96),
    }
}

codes! {
    /// Whether a service was resolved.
    pub enum SidrStatus {
        /// It was.
        Valid = 0,
        /// Nobody listens there.
        Unsupported = 1,
        /// The program refused.
        Rejected = 2,
        /// There is no QP to be had.
        NoQp = 3,
        /// The service is elsewhere.
        Redirected = 4,
        /// The other side speaks another version.
        UnsupportedVersion = 5,
    }
}

impl SidrRep {
    /// Most bytes of additional information.
    pub const INFORMATION_LEN: usize = 72;
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SidrRep { request_id, status, qpn, qkey, .. } = self;
        write!(f, "id {request_id}: {status:?} qp {qpn} qkey {qkey}")
    }
}
