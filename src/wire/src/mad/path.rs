//! The path of a connection, as REQ tells of two (a primary and an alternate one).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |          local LID            |          remote LID           |  0
//! +-------------------------------+-------------------------------+
//! |                        local GID, 16 bytes                    |  4
//! +---------------------------------------------------------------+
//! |                       remote GID, 16 bytes                    | 20
//! +---------------------------------------+-----------+-----------+
//! |              flow label               |  reserved |   rate    | 36
//! +---------------+---------------+-------+-+-----+---+-----+-----+
//! | traffic class |   hop limit   |  SL   |L|  0  | ack time|  0  | 40
//! +---------------+---------------+-------+-+-----+---------+-----+
//! ```
//!
//! L says that both ends are in one subnet. "Local" is the sender's side.

use super::body::Body;
use std::net::{IpAddr, Ipv6Addr};
use urxe_types::TimeCode;

/// A path from the sender of a REQ to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmPath {
    /// LID of the sender's port; RoCE has none and says 0xffff, or 0.
    pub local_lid: u16,
    /// LID of the receiver's port; as above.
    pub remote_lid: u16,
    /// The sender's address.
    pub local_gid: IpAddr,
    /// The receiver's address.
    pub remote_gid: IpAddr,
    /// 20 bits.
    pub flow_label: u32,
    /// Code of the rate at which to send, 6 bits; 0 on RoCE.
    pub packet_rate: u8,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Service level, 4 bits; the priority of the link on RoCE.
    pub service_level: u8,
    /// Both ends are in one subnet.
    pub subnet_local: bool,
    /// The ACK timeout of the sender's QP.
    pub local_ack_timeout: TimeCode,
}

impl CmPath {
    pub(super) const LEN: usize = 44;

    /// What stands where there is no path.
    const ABSENT: [u8; CmPath::LEN] = [0; CmPath::LEN];

    /// The path at `at`, or none if nothing stands there.
    pub(super) fn parse_alternate(body: &Body, at: usize) -> Option<CmPath> {
        (body.bytes(at) != CmPath::ABSENT).then(|| CmPath::parse(body, at))
    }

    pub(super) fn parse(body: &Body, at: usize) -> CmPath {
        CmPath {
            local_lid: body.u16(at),
            remote_lid: body.u16(at + 2),
            local_gid: address(body.bytes(at + 4)),
            remote_gid: address(body.bytes(at + 20)),
            flow_label: body.u24(at + 36) >> 4,
            packet_rate: body.bits(at + 39, 2, 6),
            traffic_class: body.u8(at + 40),
            hop_limit: body.u8(at + 41),
            service_level: body.bits(at + 42, 0, 4),
            subnet_local: body.flag(at + 42, 4),
            local_ack_timeout: TimeCode::new(body.bits(at + 43, 0, 5)),
        }
    }

    pub(super) fn emit(&self, body: &mut Body, at: usize) {
        body.put_u16(at, self.local_lid);
        body.put_u16(at + 2, self.remote_lid);
        body.put(at + 4, &gid(self.local_gid));
        body.put(at + 20, &gid(self.remote_gid));
        body.put_u24(at + 36, self.flow_label << 4);
        body.put_bits(at + 39, 2, 6, self.packet_rate);
        body.put_u8(at + 40, self.traffic_class);
        body.put_u8(at + 41, self.hop_limit);
        body.put_bits(at + 42, 0, 4, self.service_level);
        body.put_flag(at + 42, 4, self.subnet_local);
        body.put_bits(at + 43, 0, 5, self.local_ack_timeout.code());
    }
}

/// The address that a GID stands for: on RoCEv2 that of IPv4 is mapped into IPv6.
pub(super) fn address(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The GID of an address.
pub(super) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
