//! LAP: asks for another alternate path.
//!
//! ```text
//!   0  local communication ID              56  flow label (20 bits)
//!   4  remote communication ID             59  traffic class
//!  12  QPN of the receiver (3)             60  hop limit
//!  15  remote CM response timeout (5 bits) 61  packet rate (low 6 bits)
//!  20  local LID (2)                       62  service level (4 bits), subnet local (1)
//!  22  remote LID (2)                      63  local ACK timeout (5 bits)
//!  24  local GID (16)                      64  private data (168)
//!  40  remote GID (16)
//! ```

use super::body::Body;
use super::path::{address, gid};
use super::{CmPath, CommId};
use std::fmt;
use urxe_types::{Qpn, TimeCode};

/// A request to load an alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// The sender's number of the connection.
    pub local_comm_id: CommId,
    /// The receiver's number of it.
    pub remote_comm_id: CommId,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// In which time the receiver shall answer.
    pub remote_response_timeout: TimeCode,
    /// The path.
    pub alternate: CmPath,
    /// What the service makes of it.
    pub private_data: [u8; Lap::PRIVATE_LEN],
}

impl Lap {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 168;

    pub(super) fn parse(body: &Body) -> Lap {
        Lap {
            local_comm_id: CommId(body.u32(0)),
            remote_comm_id: CommId(body.u32(4)),
            remote_qpn: Qpn::new(body.u24(12)),
            remote_response_timeout: TimeCode::new(body.bits(15, 0, 5)),
            // Not laid out as the paths of a REQ are.
            alternate: CmPath {
                local_lid: body.u16(20),
                remote_lid: body.u16(22),
                local_gid: address(body.bytes(24)),
                remote_gid: address(body.bytes(40)),
                flow_label: body.u24(56) >> 4,
                traffic_class: body.u8(59),
                hop_limit: body.u8(60),
                packet_rate: body.bits(61, 2, 6),
                service_level: body.bits(62, 0, 4),
                subnet_local: body.flag(62, 4),
                local_ack_timeout: TimeCode::new(body.bits(63, 0, 5)),
            },
            private_data: body.bytes(64),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put_u32(0, self.local_comm_id.0);
        body.put_u32(4, self.remote_comm_id.0);
        body.put_u24(12, self.remote_qpn.get());
        body.put_bits(15, 0, 5, self.remote_response_timeout.code());
        let path = &self.alternate;
        body.put_u16(20, path.local_lid);
        body.put_u16(22, path.remote_lid);
        body.put(24, &gid(path.local_gid));
        body.put(40, &gid(path.remote_gid));
        body.put_u24(56, path.flow_label << 4);
        body.put_u8(59, path.traffic_class);
        body.put_u8(60, path.hop_limit);
        body.put_bits(61, 2, 6, path.packet_rate);
        body.put_bits(62, 0, 4, path.service_level);
        body.put_flag(62, 4, path.subnet_local);
        body.put_bits(63, 0, 5, path.local_ack_timeout.code());
        body.put(64, &self.private_data);
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} peer {}", self.local_comm_id, self.remote_comm_id)
    }
}
