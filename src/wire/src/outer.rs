//! The IP and UDP headers around a packet: what a QP decides of them, and what a receiver saw.
//!
//! Sockets write and read these headers, but the ICRC covers most of their fields, so both ends
//! have to know them.

use std::net::IpAddr;

/// The UDP destination port of every RoCEv2 packet.
pub const ROCE_PORT: u16 = 4791;

/// The most bytes that follow one UDP header, whether as one datagram or as a run that is cut
/// into segments: an IPv4 packet's 65,535 less its two headers. (IPv6 would carry 20 more.)
pub const MAX_UDP_PAYLOAD: usize = 65_535 - 20 - 8;

/// The IPv4 flags and fragment offset of every packet that RoCEv2 allows: "don't fragment", and
/// not a fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// Everything about the outer headers that a QP decides.
///
/// Both addresses are of one family. Should they not be, the IPv4 one counts as its IPv4-mapped
/// IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address.
    pub dst: IpAddr,
    /// UDP source port: gives the network something to spread connections by.
    pub src_port: u16,
    /// Traffic class, or IPv4 type of service, with the two ECN bits lowest. Not under the ICRC.
    pub traffic_class: u8,
    /// Hop limit, or IPv4 time to live. Not under the ICRC.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 on IPv4. Not under the ICRC.
    pub flow_label: u32,
}

/// The outer headers that a received datagram came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Addresses, source port and the rest; the sender is `src`.
    pub flow: Flow,
    /// The IPv4 identification, as far as it is known. Means nothing on IPv6.
    pub ident: Ident,
}

/// What a receiver knows of the IPv4 identification, which the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ident {
    /// A raw socket showed the header.
    Known {
        /// The identification.
        ident: u16,
        /// The two bytes after it, flags and fragment offset: [`DONT_FRAGMENT`] as a rule.
        fragment: u16,
    },
    /// A plain UDP socket keeps it to itself.
    Hidden {
        /// The likeliest identification: the index within the received segmentation buffer for a
        /// sender that numbers so, one more than the last for a sender that counts. It may be
        /// anything: to be wrong costs the checker a few nanoseconds.
        guess: u16,
    },
}
