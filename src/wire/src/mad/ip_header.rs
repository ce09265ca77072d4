//! The header of the RDMA IP CM service, with which the private data of its REQ and SIDR REQ
//! begins: who connects from where to where, in the terms of sockets (IBTA annex A11).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+-------+-------+-------------------------------+
//! | major | minor |  IPV  |   0   |          source port          |  0
//! +-------+-------+-------+-------+-------------------------------+
//! |                 source address, 16 bytes                      |  4
//! +---------------------------------------------------------------+
//! |               destination address, 16 bytes                   | 20
//! +---------------------------------------------------------------+
//! ```
//!
//! An IPv4 address stands in the last 4 of its 16 bytes. The destination port is in the service
//! ID.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The header of the RDMA IP CM service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// The port of the one who connects.
    pub src_port: u16,
    /// The address of the one who connects.
    pub src: IpAddr,
    /// The address that is connected to, of the same family.
    pub dst: IpAddr,
}

/// Why there is no such header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpCmError {
    /// Another version of the service.
    #[error("version {:#04x} of the RDMA IP CM service; only 0.0 is known", .0)]
    WrongVersion(u8),
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0} in the header of the RDMA IP CM service; only 4 and 6 are known")]
    WrongIpVersion(u8),
}

impl IpCmHeader {
    /// Bytes of private data that it takes.
    pub const LEN: usize = 36;

    /// Reads the header.
    ///
    /// # Errors
    /// If it is of another version.
    pub fn parse(bytes: &[u8; IpCmHeader::LEN]) -> Result<IpCmHeader, IpCmError> {
        let [version, ip_version, p0, p1, addresses @ ..] = *bytes;
        // CM-004
        if version != 0 {
            return Err(IpCmError::WrongVersion(version));
        }
        let read: fn(u128) -> IpAddr = match ip_version >> 4 {
            4 => |bits| Ipv4Addr::from(bits as u32).into(),
            6 => |bits| Ipv6Addr::from(bits).into(),
            other => return Err(IpCmError::WrongIpVersion(other)),
        };
        let half = |at| read(u128::from_be_bytes(std::array::from_fn(|i| addresses[at + i])));
        Ok(IpCmHeader { src_port: u16::from_be_bytes([p0, p1]), src: half(0), dst: half(16) })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; IpCmHeader::LEN]) {
        let ip_version = if self.src.is_ipv4() { 4 } else { 6 };
        bytes[0] = 0;
        bytes[1] = ip_version << 4;
        bytes[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        bytes[4..20].copy_from_slice(&bits(self.src).to_be_bytes());
        bytes[20..36].copy_from_slice(&bits(self.dst).to_be_bytes());
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::emitted;
    use proptest::prelude::*;

    #[test]
    fn ipv4_addresses_stand_last() {
        let mut bytes = [0; IpCmHeader::LEN];
        bytes[1] = 0x40;
        bytes[2..4].copy_from_slice(&[0x86, 0x61]);
        bytes[16..20].copy_from_slice(&[10, 77, 0, 3]);
        bytes[32..36].copy_from_slice(&[10, 77, 0, 2]);
        let (src, dst) = ([10, 77, 0, 3].into(), [10, 77, 0, 2].into());
        let header = IpCmHeader { src_port: 0x8661, src, dst };
        assert_eq!(IpCmHeader::parse(&bytes), Ok(header));
        assert_eq!(emitted(&header, IpCmHeader::emit), bytes);
    }

    #[test]
    fn ipv6_addresses_are_16_bytes() {
        let bytes: [u8; IpCmHeader::LEN] =
            std::array::from_fn(|i| [0, 0x60].get(i).copied().unwrap_or(i as u8));
        let header = IpCmHeader::parse(&bytes).unwrap();
        assert_eq!(header.src_port, 0x0203);
        assert_eq!(header.src.to_string(), "405:607:809:a0b:c0d:e0f:1011:1213");
        assert_eq!(header.dst.to_string(), "1415:1617:1819:1a1b:1c1d:1e1f:2021:2223");
        assert_eq!(emitted(&header, IpCmHeader::emit), bytes);
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        let mut bytes = [0; IpCmHeader::LEN];
        assert_eq!(IpCmHeader::parse(&bytes), Err(IpCmError::WrongIpVersion(0)));
        bytes[0] = 0x10;
        assert_eq!(IpCmHeader::parse(&bytes), Err(IpCmError::WrongVersion(0x10)));
        let text = IpCmError::WrongVersion(0x10).to_string();
        assert_eq!(text, "version 0x10 of the RDMA IP CM service; only 0.0 is known");
    }

    proptest! {
        #[test]
        fn parsing_and_emitting_are_inverse(bytes: [u8; IpCmHeader::LEN], v6: bool, known: bool) {
            let mut bytes = bytes;
            if known {
                bytes[..2].copy_from_slice(&[0, if v6 { 0x60 } else { 0x40 }]);
            }
            if let Ok(header) = IpCmHeader::parse(&bytes) {
                let again = emitted(&header, IpCmHeader::emit);
                prop_assert_eq!(IpCmHeader::parse(&again), Ok(header));
            }
        }
    }
}
