//! The 232 bytes that a management datagram has for its message.

use super::{HEADER_LEN, MAD_LEN};
use crate::u24;

/// Bytes of a message.
pub(super) const BODY_LEN: usize = MAD_LEN - HEADER_LEN;

/// The bytes of a message, by the offsets of the specification's tables, all of which are
/// constants of ours and inside. What nothing was put into is zero.
#[derive(Clone, Copy)]
// CM-001
pub(super) struct Body(pub(super) [u8; BODY_LEN]);

impl Body {
    pub(super) const ZERO: Body = Body([0; BODY_LEN]);

    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// `width` bits of the byte, of which the specification counts `skip` before them: bit 0 is
    /// the top one.
    pub(super) fn bits(&self, at: usize, skip: u32, width: u32) -> u8 {
        self.0[at] << skip >> (8 - width)
    }

    pub(super) fn flag(&self, at: usize, skip: u32) -> bool {
        self.bits(at, skip, 1) != 0
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u24(&self, at: usize) -> u32 {
        u24::read(self.bytes(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    pub(super) fn put<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) {
        self.0[at..at + N].copy_from_slice(bytes);
    }

    pub(super) fn put_u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    /// Puts the low `width` bits of a value; the other bits of the byte stay.
    pub(super) fn put_bits(&mut self, at: usize, skip: u32, width: u32, value: u8) {
        self.0[at] |= value << (8 - width) >> skip;
    }

    pub(super) fn put_flag(&mut self, at: usize, skip: u32, value: bool) {
        self.put_bits(at, skip, 1, u8::from(value));
    }

    pub(super) fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn put_u24(&mut self, at: usize, value: u32) {
        self.put(at, &u24::write(value));
    }

    pub(super) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_top() {
        let mut body = Body::ZERO;
        body.put_bits(1, 0, 5, 0b10011);
        body.put_bits(1, 5, 2, 0b101);
        body.put_flag(1, 7, true);
        assert_eq!(body.0[..3], [0, 0b1001_1011, 0]);
        assert_eq!((body.bits(1, 0, 5), body.bits(1, 5, 2)), (0b10011, 0b01));
        assert!(body.flag(1, 7));
    }
}
