//! AETH, the ACK extended transport header: ACK/NAK syndrome and MSN.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+---+---------+-----------------------------------------------+
//! |0|typ|  value  |                      MSN                      |
//! +-+---+---------+-----------------------------------------------+
//! ```
//!
//! Type 0 is an ACK with a credit code, 1 an RNR NAK with a timer code, 3 a NAK with its reason;
//! 2 is reserved, and so is everything with the top bit set.

use crate::u24;
use std::fmt;
use urxe_types::{Msn, RnrTimer};

/// The ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// ACK, or what kind of NAK.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Aeth::LEN]) -> Aeth {
        let [syndrome, m0, m1, m2] = *bytes;
        Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(u24::read([m0, m1, m2])) }
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Aeth::LEN] {
        let [m0, m1, m2] = u24::write(self.msn.get());
        [self.syndrome.byte(), m0, m1, m2]
    }

    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {} msn {}", self.syndrome, self.msn)
    }
}

/// The syndrome byte of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to this PSN has arrived.
    Ack {
        /// The receives that the responder has posted.
        credits: Credits,
    },
    /// RNR NAK: the responder had no receive posted.
    RnrNak {
        /// How long the requester waits before it tries again.
        timer: RnrTimer,
    },
    /// The request was refused.
    Nak(NakCode),
    /// A byte without meaning, kept whole.
    Reserved(u8),
}

/// The receives that a responder has posted, as its ACKs tell them: a code of 5 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(u8);

impl Credits {
    /// The responder does not tell: end-to-end flow control is off.
    pub const NOT_TOLD: Credits = Credits(0x1f);

    /// Takes the low 5 bits of `code`.
    pub const fn new(code: u8) -> Credits {
        Credits(code & 0x1f)
    }

    /// The code, below 32.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing: go back to the PSN of this NAK.
    SequenceError,
    /// The request makes no sense to the responder.
    InvalidRequest,
    /// The request named memory that it may not touch.
    RemoteAccess,
    /// The responder failed in executing it.
    RemoteOperational,
    /// Wrong reliable-datagram domain; RC never sends it.
    InvalidRd,
    /// A code without meaning, 5 to 31.
    Other(u8),
}

impl Syndrome {
    /// An ACK that tells no credits, which leaves the requester's end-to-end flow control off.
    // RC-RESP-050
    pub const ACK: Syndrome = Syndrome::Ack { credits: Credits::NOT_TOLD };

    const VALUE_MASK: u8 = 0x1f;
    const TYPE_ACK: u8 = 0x00;
    const TYPE_RNR: u8 = 0x20;
    const TYPE_NAK: u8 = 0x60;

    /// Reads the byte; every byte means one syndrome.
    pub const fn from_byte(byte: u8) -> Syndrome {
        // WIRE-016
        let value = byte & Syndrome::VALUE_MASK;
        match byte & !Syndrome::VALUE_MASK {
            Syndrome::TYPE_ACK => Syndrome::Ack { credits: Credits::new(value) },
            Syndrome::TYPE_RNR => Syndrome::RnrNak { timer: RnrTimer::new(value) },
            Syndrome::TYPE_NAK => Syndrome::Nak(NakCode::from_code(value)),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte on the wire. Bits of a NAK code beyond its 5 are dropped.
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => Syndrome::TYPE_ACK | credits.code(),
            Syndrome::RnrNak { timer } => Syndrome::TYPE_RNR | timer.code(),
            Syndrome::Nak(code) => Syndrome::TYPE_NAK | code.code() & Syndrome::VALUE_MASK,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

impl NakCode {
    /// The reason of a 5-bit code.
    pub const fn from_code(code: u8) -> NakCode {
        match code {
            0 => NakCode::SequenceError,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRd,
            other => NakCode::Other(other),
        }
    }

    /// The 5-bit code.
    pub const fn code(self) -> u8 {
        match self {
            NakCode::SequenceError => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRd => 4,
            NakCode::Other(code) => code,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack { credits: Credits::NOT_TOLD } => f.write_str("ACK"),
            Syndrome::Ack { credits } => write!(f, "ACK credits {}", credits.code()),
            Syndrome::RnrNak { timer } => write!(f, "RNR NAK timer {}", timer.code()),
            Syndrome::Nak(NakCode::SequenceError) => f.write_str("NAK sequence error"),
            Syndrome::Nak(NakCode::InvalidRequest) => f.write_str("NAK invalid request"),
            Syndrome::Nak(NakCode::RemoteAccess) => f.write_str("NAK remote access error"),
            Syndrome::Nak(NakCode::RemoteOperational) => {
                f.write_str("NAK remote operational error")
            }
            Syndrome::Nak(NakCode::InvalidRd) => f.write_str("NAK invalid RD request"),
            Syndrome::Nak(NakCode::Other(code)) => write!(f, "NAK reserved code {code}"),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_means;
    use proptest::prelude::*;

    #[test]
    fn every_field_at_its_place() {
        assert_means(
            [0x1f, 0x12, 0x34, 0x56],
            Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0x123456) },
            Aeth::parse,
            Aeth::emit,
        );
    }

    #[test]
    fn all_ones() {
        assert_means(
            [0xff; Aeth::LEN],
            Aeth { syndrome: Syndrome::Reserved(0xff), msn: Msn::new(0xff_ffff) },
            Aeth::parse,
            Aeth::emit,
        );
    }

    #[test]
    fn the_syndromes_that_peers_send() {
        for (byte, syndrome, text) in [
            (0x1f, Syndrome::ACK, "ACK"),
            (0x05, Syndrome::Ack { credits: Credits::new(5) }, "ACK credits 5"),
            (0x2c, Syndrome::RnrNak { timer: RnrTimer::new(12) }, "RNR NAK timer 12"),
            (0x60, Syndrome::Nak(NakCode::SequenceError), "NAK sequence error"),
            (0x61, Syndrome::Nak(NakCode::InvalidRequest), "NAK invalid request"),
            (0x62, Syndrome::Nak(NakCode::RemoteAccess), "NAK remote access error"),
            (0x63, Syndrome::Nak(NakCode::RemoteOperational), "NAK remote operational error"),
            (0x64, Syndrome::Nak(NakCode::InvalidRd), "NAK invalid RD request"),
            (0x65, Syndrome::Nak(NakCode::Other(5)), "NAK reserved code 5"),
            (0x40, Syndrome::Reserved(0x40), "reserved syndrome 0x40"),
            (0x9f, Syndrome::Reserved(0x9f), "reserved syndrome 0x9f"),
        ] {
            assert_eq!(Syndrome::from_byte(byte), syndrome);
            assert_eq!(syndrome.to_string(), text);
        }
    }

    #[test]
    fn all_256_syndromes_survive() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
    }

    #[test]
    fn a_value_too_large_does_not_change_the_type() {
        assert_eq!(Syndrome::Ack { credits: Credits::new(0xff) }.byte(), 0x1f);
        assert_eq!(Syndrome::RnrNak { timer: RnrTimer::new(0xe1) }.byte(), 0x21);
        assert_eq!(Syndrome::Nak(NakCode::Other(0x85)).byte(), 0x65);
    }

    proptest! {
        #[test]
        fn nothing_is_lost(bytes: [u8; Aeth::LEN]) {
            prop_assert_eq!(Aeth::parse(&bytes).emit(), bytes);
        }
    }
}
