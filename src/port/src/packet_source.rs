//! What a port can refuse.

use std::net::SocketAddr;
use urxe_types::Qpn;

/// Where packets come from, and for which QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSource {
    /// Address and UDP port.
    pub from: SocketAddr,
    /// Which of the packets from there.
    pub to: Receivers,
}

/// Which QPs packets are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// This one.
    Only(Qpn),
    /// Any other.
    AllBut(Qpn),
}
