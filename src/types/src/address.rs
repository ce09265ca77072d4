//! Addresses of ports and paths to peers: GIDs, address vectors and address handles.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A port address: `ibv_gid`. With RoCEv2 it is an IPv6 address, or an IPv4 address mapped into
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that it stands for.
    pub fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            // ADDR-005
            IpAddr::V4(ip) => Gid(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Gid(ip.octets()),
        }
    }
}

impl fmt::Display for Gid {
    /// Eight groups of four digits, as `sysfs` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, groups @ ..] = Ipv6Addr::from(self.0).segments();
        write!(f, "{first:04x}")?;
        groups.iter().try_for_each(|group| write!(f, ":{group:04x}"))
    }
}

/// The path to the peer: the part of `ibv_ah_attr` that RoCEv2 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressVector {
    /// The peer's address: its GID as an IP address.
    #[serde(with = "as_gid")]
    pub dgid: IpAddr,
    /// Index of our own GID in the device's table.
    pub sgid_index: u8,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; also chooses the UDP source port where the port lets us.
    pub flow_label: u32,
}

impl AddressVector {
    /// The usual path to `dgid`: from our GID 0, hop limit 64, traffic class and flow label 0.
    pub fn to(dgid: IpAddr) -> Self {
        AddressVector { dgid, sgid_index: 0, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }
}

/// An address handle: its number, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AhId(pub u32);

/// An address as its GID: an IPv4 address has no second form that way.
mod as_gid {
    use super::{Gid, IpAddr};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(ip: &IpAddr, to: S) -> Result<S::Ok, S::Error> {
        Gid::from(*ip).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IpAddr, D::Error> {
        Gid::deserialize(from).map(Gid::to_ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn gids_are_addresses() {
        let v4 = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
        let gid = Gid::from(v4);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(gid.to_ip(), v4);
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(v6).to_ip(), v6);
    }
}
