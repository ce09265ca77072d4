//! Service IDs: what a connection is asked for.

use std::fmt;

/// A service ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

/// A set of port numbers: `rdma_port_space`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum PortSpace {
    /// `RDMA_PS_IPOIB`: datagrams between interfaces of IP over InfiniBand.
    Ipoib = 0x0002,
    /// `RDMA_PS_TCP`: reliable connections.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagrams.
    Udp = 0x0111,
    /// `RDMA_PS_IB`: any service.
    Ib = 0x013f,
}

impl PortSpace {
    /// All of them.
    pub const ALL: [PortSpace; 4] =
        [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

    /// The port space of a number of `rdma_port_space`.
    pub fn from_number(number: u16) -> Option<PortSpace> {
        PortSpace::ALL.into_iter().find(|space| *space as u16 == number)
    }
}

impl ServiceId {
    /// The service of the RDMA IP CM service behind this port.
    pub const fn ip(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space as u64) << 16 | port as u64)
    }

    /// Port space and port, if it is a service of the RDMA IP CM service.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        // CM-005
        let space = PortSpace::from_number(u16::try_from(self.0 >> 16).ok()?)?;
        Some((space, self.0 as u16))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((PortSpace::Ipoib, port)) => write!(f, "ipoib:{port}"),
            Some((PortSpace::Tcp, port)) => write!(f, "tcp:{port}"),
            Some((PortSpace::Udp, port)) => write!(f, "udp:{port}"),
            Some((PortSpace::Ib, port)) => write!(f, "ib:{port}"),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_and_its_space_make_a_service_id() {
        for (space, port, id, text) in [
            (PortSpace::Tcp, 7174, 0x0106_1c06, "tcp:7174"),
            (PortSpace::Udp, 7174, 0x0111_1c06, "udp:7174"),
            (PortSpace::Ib, 0, 0x013f_0000, "ib:0"),
            (PortSpace::Ipoib, 65535, 0x0002_ffff, "ipoib:65535"),
        ] {
            assert_eq!(ServiceId::ip(space, port), ServiceId(id));
            assert_eq!(ServiceId(id).port(), Some((space, port)));
            assert_eq!(ServiceId(id).to_string(), text);
        }
    }

    #[test]
    fn other_service_ids_have_no_port() {
        for id in [0, 0x0107_0000, 1 << 32 | 0x0106_1c06, u64::MAX] {
            assert_eq!(ServiceId(id).port(), None, "{id:#x}");
        }
        assert_eq!(ServiceId(7).to_string(), "0x0000000000000007");
    }
}
