//! Paths to peers: address vectors and address handles.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The path to the peer: the part of `ibv_ah_attr` that RoCEv2 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressVector {
    /// The peer's address: its GID as an IP address.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AhId(pub u32);
