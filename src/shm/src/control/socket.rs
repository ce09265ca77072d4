//! Socket addresses in messages: serde's own encoding leaves out the interface of a link-local
//! address.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::{IpAddr, SocketAddr};

/// Address, port, and number of the interface; 0 for none.
#[derive(Serialize, Deserialize)]
struct Socket(IpAddr, u16, u32);

impl From<SocketAddr> for Socket {
    fn from(addr: SocketAddr) -> Socket {
        let scope = match addr {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(addr) => addr.scope_id(),
        };
        Socket(addr.ip(), addr.port(), scope)
    }
}

impl From<Socket> for SocketAddr {
    fn from(Socket(ip, port, scope): Socket) -> SocketAddr {
        let mut addr = SocketAddr::new(ip, port);
        if let SocketAddr::V6(addr) = &mut addr {
            addr.set_scope_id(scope);
        }
        addr
    }
}

pub(super) fn serialize<S: Serializer>(addr: &SocketAddr, to: S) -> Result<S::Ok, S::Error> {
    Socket::from(*addr).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    Socket::deserialize(from).map(SocketAddr::from)
}

/// One that need not be there.
pub(super) mod optional {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Socket, SocketAddr};

    pub(in super::super) fn serialize<S: Serializer>(
        addr: &Option<SocketAddr>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        addr.map(Socket::from).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        Ok(Option::<Socket>::deserialize(from)?.map(SocketAddr::from))
    }
}
