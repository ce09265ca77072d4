//! Invariant CRC: the last four bytes of every packet.

/// Bytes on the wire.
pub const LEN: usize = 4;
