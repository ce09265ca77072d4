//! 24-bit big-endian numbers.

/// Reads three big-endian bytes.
pub(crate) const fn read(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// Writes the low 24 bits as three big-endian bytes.
pub(crate) const fn write(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}
