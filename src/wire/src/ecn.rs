//! The two lowest bits of a traffic class: explicit congestion notification (RFC 3168).

/// Where they are.
pub const MASK: u8 = 0b11;

/// The sender does not understand marks: a congested switch drops the packet.
pub const NOT_CAPABLE: u8 = 0b00;

/// Switches may mark the packet. (Of the two values with this meaning, the usual one, ECT(0).)
pub const CAPABLE: u8 = 0b10;

/// A switch has marked it: it has met congestion.
pub const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Whether a packet of this traffic class was marked.
pub const fn is_marked(traffic_class: u8) -> bool {
    traffic_class & MASK == CONGESTION_EXPERIENCED
}
