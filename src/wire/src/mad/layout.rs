//! Where the fields of a message stand: each offset and width once, for reading and for writing.

use super::{CommId, ServiceId};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use urxe_types::{PathMtu, Pkey, Psn, Qkey, Qpn, TimeCode};

/// How a `T` stands in the bytes of a message. Offsets are constants of ours, and inside.
pub(super) trait Layout<T> {
    fn read(&self, body: &[u8]) -> T;

    /// Writes into bytes that are zero so far.
    fn write(&self, value: &T, body: &mut [u8]);
}

/// Somewhere in a message, by the offsets of the specification's tables.
// CM-001
pub(super) struct At {
    pub(super) byte: usize,
    bits: Option<Range<usize>>,
}

/// From this byte on, as long as the type is.
pub(super) const fn at(byte: usize) -> At {
    At { byte, bits: None }
}

/// These bits from this byte on; bit 0 is the top one.
pub(super) const fn bits(byte: usize, bits: Range<usize>) -> At {
    At { byte, bits: Some(bits) }
}

/// What a message can have for a field.
pub(super) trait Field {
    fn read(body: &[u8], at: &At) -> Self;
    fn write(&self, body: &mut [u8], at: &At);
}

impl<T: Field> Layout<T> for At {
    fn read(&self, body: &[u8]) -> T {
        T::read(body, self)
    }

    fn write(&self, value: &T, body: &mut [u8]) {
        value.write(body, self);
    }
}

impl At {
    /// The bytes that the field touches, how many bits stand behind it in the last one, and the
    /// bits that a field of this width can have.
    fn span(&self, width: usize) -> (Range<usize>, usize, u128) {
        let bits = self.bits.clone().unwrap_or(0..width);
        debug_assert!(bits.len() <= width, "wider than its type");
        let len = bits.end.div_ceil(8);
        (self.byte..self.byte + len, 8 * len - bits.end, u128::MAX >> (128 - bits.len()))
    }

    pub(super) fn read_number(&self, body: &[u8], width: usize) -> u128 {
        let (bytes, behind, mask) = self.span(width);
        let all = body[bytes].iter().fold(0, |all, &byte| all << 8 | u128::from(byte));
        all >> behind & mask
    }

    /// Writes the low bits of a number; the other bits of the bytes stay.
    pub(super) fn write_number(&self, body: &mut [u8], width: usize, number: u128) {
        let (bytes, behind, mask) = self.span(width);
        let mut all = (number & mask) << behind;
        for byte in body[bytes].iter_mut().rev() {
            *byte |= all as u8;
            all >>= 8;
        }
    }
}

/// Types that are numbers on the wire: how wide, and how to get from the number and back.
macro_rules! numbers {
    ($($type:ty: $width:literal, $from:expr, $to:expr;)*) => {$(
        impl $crate::mad::layout::Field for $type {
            fn read(body: &[u8], at: &$crate::mad::layout::At) -> $type {
                let from: fn(u128) -> $type = $from;
                from(at.read_number(body, $width))
            }

            fn write(&self, body: &mut [u8], at: &$crate::mad::layout::At) {
                let to: fn($type) -> u128 = $to;
                at.write_number(body, $width, to(*self));
            }
        }
    )*};
}
pub(super) use numbers;

numbers! {
    bool: 1, |bits| bits != 0, u128::from;
    u8: 8, |bits| bits as u8, u128::from;
    u16: 16, |bits| bits as u16, u128::from;
    u32: 32, |bits| bits as u32, u128::from;
    u64: 64, |bits| bits as u64, u128::from;
    CommId: 32, |bits| CommId(bits as u32), |id| id.0.into();
    ServiceId: 64, |bits| ServiceId(bits as u64), |id| id.0.into();
    Pkey: 16, |bits| Pkey(bits as u16), |key| key.0.into();
    Psn: 24, |bits| Psn::new(bits as u32), |psn| psn.get().into();
    Qkey: 32, |bits| Qkey(bits as u32), |key| key.0.into();
    Qpn: 24, |bits| Qpn::new(bits as u32), |qpn| qpn.get().into();
    TimeCode: 5, |bits| TimeCode::new(bits as u8), |time| time.code().into();
    Option<PathMtu>: 4,
        |bits| PathMtu::from_code(bits as u8), |mtu| mtu.map_or(0, PathMtu::code).into();
    // A GID; that of an IPv4 address is mapped into IPv6.
    IpAddr: 128, |bits| Ipv6Addr::from_bits(bits).to_canonical(), |addr| match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
}

/// An enum by its codes of a byte, of which a peer may send any.
macro_rules! codes {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $code:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// Something else.
            Other(u8),
        }

        impl $name {
            /// Its code.
            pub const fn code(self) -> u8 {
                match self { $($name::$variant => $code,)* $name::Other(code) => code }
            }
        }

        $crate::mad::layout::numbers! {
            $name: 8, |code| match code {
                $($code => $name::$variant,)*
                other => $name::Other(other as u8),
            }, |value| value.code().into();
        }
    };
}
pub(super) use codes;

impl<const N: usize> Field for [u8; N] {
    fn read(body: &[u8], at: &At) -> [u8; N] {
        std::array::from_fn(|i| body[at.byte + i])
    }

    fn write(&self, body: &mut [u8], at: &At) {
        body[at.byte..at.byte + N].copy_from_slice(self);
    }
}

/// Makes a [`Layout`] of a struct from the places of its fields, counted from where it begins.
macro_rules! layout {
    ($type:ident in $layout:path { $($field:ident = $at:expr,)* }) => {
        impl $crate::mad::layout::Layout<$type> for $layout {
            fn read(&self, body: &[u8]) -> $type {
                let body = &body[self.byte..];
                $type { $($field: $crate::mad::layout::Layout::read(&$at, body),)* }
            }

            fn write(&self, value: &$type, body: &mut [u8]) {
                let body = &mut body[self.byte..];
                $($crate::mad::layout::Layout::write(&$at, &value.$field, body);)*
            }
        }
    };
}
pub(super) use layout;

/// A struct, with the place of each field.
macro_rules! fields {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $at:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        $crate::mad::layout::layout! { $name in $crate::mad::layout::At { $($field = $at,)* } }
    };
}
pub(super) use fields;

/// A message: a struct, with the place of each field. Behind them, to the end of the datagram,
/// stands private data.
macro_rules! message {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $at:expr,)*
        ..private_data = at($private:literal),
    }) => {
        $crate::mad::layout::fields! {
            $(#[$meta])*
            pub struct $name {
                $($(#[$doc])* $field: $type = $at,)*
                /// What the service makes of it.
                private_data: [u8; $name::PRIVATE_LEN] = at($private),
            }
        }

        impl $name {
            /// Bytes of private data.
            pub const PRIVATE_LEN: usize = $crate::mad::BODY_LEN - $private;
        }
    };
}
pub(super) use message;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_top() {
        let mut body = [0; 6];
        bits(1, 0..5).write(&0b10011u8, &mut body);
        bits(1, 5..7).write(&0b101u8, &mut body);
        bits(1, 7..8).write(&true, &mut body);
        bits(2, 4..24).write(&0xabcd_ef01u32, &mut body);
        at(5).write(&7u8, &mut body);
        assert_eq!(body, [0, 0b1001_1011, 0x0d, 0xef, 0x01, 7]);
        let [first, second]: [u8; 2] = [bits(1, 0..5), bits(1, 5..7)].map(|at| at.read(&body));
        assert_eq!((first, second), (0b10011, 0b01));
        let (flag, number): (bool, u32) = (bits(1, 7..8).read(&body), bits(2, 4..24).read(&body));
        assert_eq!((flag, number), (true, 0xdef01));
    }
}
