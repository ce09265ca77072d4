//! What a port can do.

use std::net::IpAddr;
use urxe_wire::SourcePorts;
use urxe_wire::batch::TxLimits;

/// What a port can do, and what batches and flows for it have to look like.
#[derive(Clone, Debug)]
pub struct Caps {
    /// The back-end's name: `udp`, `raw` or `sim`.
    pub backend: &'static str,
    /// The local addresses, in the order in which they came: every [`Flow::src`](urxe_wire::Flow)
    /// has to be one of these.
    pub addrs: Vec<IpAddr>,
    /// The interface that has the addresses; `None` in the simulation.
    pub interface: Option<String>,
    /// The interface's MTU when the last address came: largest IP packet, headers included, in
    /// bytes.
    pub link_mtu: u32,
    /// What one run of a batch may carry.
    pub tx_limits: TxLimits,
    /// Which UDP source ports datagrams can leave from: a
    /// [`Flow::src_port`](urxe_wire::Flow) has to be one of these.
    pub source_ports: SourcePorts,
    /// Whether received datagrams come with [`Ident::Known`](urxe_wire::Ident), so that an IPv4
    /// ICRC is checked exactly. IPv6 always is.
    pub sees_ident: bool,
    /// Whether one call sends many datagrams.
    pub segmentation: Segmentation,
}

/// The state of segmentation offload (`UDP_SEGMENT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// This port sends datagram by datagram, by its nature.
    Unavailable,
    /// A run of datagrams goes out in one call.
    On,
    /// It was on, a send was refused with this `errno`, and so it is off for good: the device
    /// cannot do checksums, or something like it. Slower; nothing else changes.
    Refused {
        /// What the kernel said.
        errno: i32,
    },
    /// Turned off when the port was opened.
    Off,
}
