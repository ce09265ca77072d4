//! SIDR REP: names the QP that takes the datagrams of a service.
//!
//! ```text
//!   0  request ID                          12  service ID (8)
//!   4  status                              20  Q_Key
//!   5  length of the additional info       24  additional information (72)
//!   8  QPN (3)                             96  private data (136)
//! ```

use super::body::Body;
use super::{CommId, ServiceId};
use std::fmt;
use urxe_types::{Qkey, Qpn};

/// A service ID resolution response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The number of the request, from the SIDR REQ.
    pub request_id: CommId,
    /// Whether there is such a service.
    pub status: SidrStatus,
    /// Its QP.
    pub qpn: Qpn,
    /// The service, from the SIDR REQ.
    pub service_id: ServiceId,
    /// What datagrams to the QP must carry.
    pub qkey: Qkey,
    /// How many bytes of the information mean something; a peer may claim more than there are.
    pub information_len: u8,
    /// What belongs to the status.
    pub information: [u8; SidrRep::INFORMATION_LEN],
    /// What the service makes of it.
    pub private_data: [u8; SidrRep::PRIVATE_LEN],
}

/// Whether a service was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SidrStatus {
    /// It was.
    Valid,
    /// Nobody listens there.
    Unsupported,
    /// The program refused.
    Rejected,
    /// There is no QP to be had.
    NoQp,
    /// The service is elsewhere.
    Redirected,
    /// The other side speaks another version.
    UnsupportedVersion,
    /// Something else.
    Other(u8),
}

impl SidrStatus {
    /// The status of a code.
    pub const fn from_code(code: u8) -> SidrStatus {
        match code {
            0 => SidrStatus::Valid,
            1 => SidrStatus::Unsupported,
            2 => SidrStatus::Rejected,
            3 => SidrStatus::NoQp,
            4 => SidrStatus::Redirected,
            5 => SidrStatus::UnsupportedVersion,
            other => SidrStatus::Other(other),
        }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            SidrStatus::Valid => 0,
            SidrStatus::Unsupported => 1,
            SidrStatus::Rejected => 2,
            SidrStatus::NoQp => 3,
            SidrStatus::Redirected => 4,
            SidrStatus::UnsupportedVersion => 5,
            SidrStatus::Other(code) => code,
        }
    }
}

impl SidrRep {
    /// Most bytes of additional information.
    pub const INFORMATION_LEN: usize = 72;

    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 136;

    pub(super) fn parse(body: &Body) -> SidrRep {
        SidrRep {
            request_id: CommId(body.u32(0)),
            status: SidrStatus::from_code(body.u8(4)),
            information_len: body.u8(5),
            qpn: Qpn::new(body.u24(8)),
            service_id: ServiceId(body.u64(12)),
            qkey: Qkey(body.u32(20)),
            information: body.bytes(24),
            private_data: body.bytes(96),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.request_id.0);
        body.put_u8(4, self.status.code());
        body.put_u8(5, self.information_len);
        body.put_u24(8, self.qpn.get());
        body.put_u64(12, self.service_id.0);
        body.put_u32(20, self.qkey.0);
        body.put(24, &self.information);
        body.put(96, &self.private_data);
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SidrRep { request_id, status, qpn, qkey, .. } = self;
        write!(f, "id {request_id}: {status:?} qp {qpn} qkey {qkey}")
    }
}
