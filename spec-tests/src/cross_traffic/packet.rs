//! What goes over the network: a few bytes of meaning, and padding.

use super::PAYLOAD;

/// A packet of cross traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The packet with this number.
    Data(u64),
    /// That packet has arrived; whether it was marked.
    Ack { number: u64, marked: bool },
    /// Packets arrive with marks: the congestion notification of DCQCN.
    Cnp,
}

/// Bytes of BTH and ICRC that a RoCE packet has: data packets are as long.
const OVERHEAD: usize = 12 + 4;

/// Bytes of the others.
const SHORT: usize = 64;

impl Packet {
    /// As a UDP payload.
    pub fn bytes(self) -> Vec<u8> {
        let (kind, number, marked, len) = match self {
            Packet::Data(number) => (0, number, false, OVERHEAD + PAYLOAD),
            Packet::Ack { number, marked } => (1, number, marked, SHORT),
            Packet::Cnp => (2, 0, false, SHORT),
        };
        let mut bytes = vec![0; len];
        bytes[0] = kind;
        bytes[1] = u8::from(marked);
        bytes[2..10].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// From a UDP payload.
    pub fn parse(bytes: &[u8]) -> Option<Packet> {
        let number = u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?);
        match bytes[0] {
            0 => Some(Packet::Data(number)),
            1 => Some(Packet::Ack { number, marked: bytes[1] != 0 }),
            2 => Some(Packet::Cnp),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_parsed_as_they_were_written() {
        for packet in [Packet::Data(7), Packet::Ack { number: 1 << 40, marked: true }, Packet::Cnp]
        {
            assert_eq!(Packet::parse(&packet.bytes()), Some(packet));
        }
        assert_eq!(Packet::parse(&[0; 9]), None);
    }
}
