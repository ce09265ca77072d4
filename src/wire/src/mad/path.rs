//! The path of a connection, as REQ tells of two (a primary and an alternate one), and LAP of one.

use super::layout::{At, Layout, at, bits, fields, layout};
use std::net::IpAddr;
use urxe_types::TimeCode;

fields! {
    /// A path from the sender of a REQ to its receiver. "Local" is the sender's side.
    pub struct CmPath {
        /// LID of the sender's port; RoCE has none and says 0xffff, or 0.
        local_lid: u16 = at(0),
        /// LID of the receiver's port; as above.
        remote_lid: u16 = at(2),
        /// The sender's address.
        local_gid: IpAddr = at(4),
        /// The receiver's address.
        remote_gid: IpAddr = at(20),
        /// 20 bits.
        flow_label: u32 = bits(36, 0..20),
        /// Code of the rate at which to send, 6 bits; 0 on RoCE.
        packet_rate: u8 = bits(39, 2..8),
        /// Traffic class, or type of service.
        traffic_class: u8 = at(40),
        /// Hop limit, or time to live.
        hop_limit: u8 = at(41),
        /// Service level, 4 bits; the priority of the link on RoCE.
        service_level: u8 = bits(42, 0..4),
        /// Both ends are in one subnet.
        subnet_local: bool = bits(42, 4..5),
        /// The ACK timeout of the sender's QP.
        local_ack_timeout: TimeCode = bits(43, 0..5),
    }
}

/// A path of a LAP, which is not laid out as those of a REQ are.
pub(super) struct LapPath {
    pub(super) byte: usize,
}

layout! {
    CmPath in LapPath {
        local_lid = at(0),
        remote_lid = at(2),
        local_gid = at(4),
        remote_gid = at(20),
        flow_label = bits(36, 0..20),
        traffic_class = at(39),
        hop_limit = at(40),
        packet_rate = bits(41, 2..8),
        service_level = bits(42, 0..4),
        subnet_local = bits(42, 4..5),
        local_ack_timeout = bits(43, 0..5),
    }
}

/// An alternate path: zeroes if there is none.
impl Layout<Option<CmPath>> for At {
    fn read(&self, body: &[u8]) -> Option<CmPath> {
        const LEN: usize = 44;
        let bytes: [u8; LEN] = self.read(body);
        (bytes != [0; LEN]).then(|| self.read(body))
    }

    fn write(&self, path: &Option<CmPath>, body: &mut [u8]) {
        if let Some(path) = path {
            self.write(path, body);
        }
    }
}
