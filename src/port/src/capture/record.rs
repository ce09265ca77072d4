//! Packets with what became of them, as bytes of a stream: what a data path writes for a program
//! that looks at its packets.
//!
//! Each record is its length and kind, and then either a packet or how many packets are missing
//! from here on back to the record before. All numbers are little-endian.

use super::PacketDirection;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use urxe_types::Qpn;
use urxe_wire::{Flow, MAX_UDP_PAYLOAD};

/// Bytes of a record of a packet before what was counted and the packet's own.
const HEAD_LEN: usize = 68;
/// Bytes of a record of lost packets.
const LOST_LEN: usize = 16;

const PACKET: u8 = 1;
const LOST: u8 = 2;

/// No QP is known.
const NO_QP: u32 = u32::MAX;

/// Counters that a record names at most.
pub const MAX_COUNTED: usize = 8;

/// Bytes of the longest record.
pub const MAX_RECORD: usize = HEAD_LEN + MAX_COUNTED + MAX_UDP_PAYLOAD;

/// A record of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A packet.
    Packet(Captured<'a>),
    /// So many packets were not captured, because the reader was too slow.
    Lost(u64),
}

/// A packet, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// When it was sent or came, in nanoseconds since 1970.
    pub time: u64,
    /// Which way it went.
    pub direction: PacketDirection,
    /// The QP on this side: that sent it, or that it is for.
    pub qpn: Option<Qpn>,
    /// Its outer headers.
    pub flow: Flow,
    /// Its IPv4 identification, as far as that is known.
    pub ident: u16,
    /// IPv4's flags and fragment offset.
    pub fragment: u16,
    /// Bytes of UDP payload that it had.
    pub length: usize,
    /// What was counted while it was handled, by the places of the counters in their list: as many
    /// as [`MAX_COUNTED`], and none of what is counted all the time. Of one that is sent again:
    /// that, and what made its requester do so.
    pub counted: &'a [u8],
    /// The first bytes of its UDP payload, as many as were asked for.
    pub bytes: &'a [u8],
}

/// The bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {len} bytes and kind {kind} cannot be read")]
pub struct BadRecord {
    len: usize,
    kind: u8,
}

impl Captured<'_> {
    /// Bytes that its record takes.
    pub fn record_len(&self) -> usize {
        HEAD_LEN + self.counted.len().min(MAX_COUNTED) + self.bytes.len()
    }

    /// Writes its record behind what is there.
    pub fn write(&self, out: &mut Vec<u8>) {
        let counted = &self.counted[..self.counted.len().min(MAX_COUNTED)];
        let Flow { src, dst, src_port, traffic_class, hop_limit, flow_label } = self.flow;
        out.extend((self.record_len() as u32).to_le_bytes());
        let is_v6 = src.is_ipv6() || dst.is_ipv6();
        out.extend([PACKET, self.direction as u8, counted.len() as u8, u8::from(is_v6)]);
        out.extend(self.time.to_le_bytes());
        out.extend(self.qpn.map_or(NO_QP, Qpn::get).to_le_bytes());
        out.extend((self.length as u32).to_le_bytes());
        out.extend(src_port.to_le_bytes());
        out.extend([traffic_class, hop_limit]);
        out.extend(flow_label.to_le_bytes());
        out.extend(self.ident.to_le_bytes());
        out.extend(self.fragment.to_le_bytes());
        out.extend(to_v6(src).octets());
        out.extend(to_v6(dst).octets());
        out.extend(counted);
        out.extend(self.bytes);
    }
}

impl Record<'_> {
    /// Bytes of a record of lost packets.
    pub const LOST_LEN: usize = LOST_LEN;

    /// Writes how many packets were lost behind what is there.
    pub fn write_lost(lost: u64, out: &mut Vec<u8>) {
        out.extend((LOST_LEN as u32).to_le_bytes());
        out.extend([LOST, 0, 0, 0]);
        out.extend(lost.to_le_bytes());
    }

    /// Reads the record at the front of a stream, and says how many bytes it takes; `None` if there
    /// are more to come.
    ///
    /// # Errors
    /// If there is no record, and so none behind it either.
    pub fn read(stream: &[u8]) -> Result<Option<(Record<'_>, usize)>, BadRecord> {
        let Some((&[l0, l1, l2, l3, kind, direction, counted, is_v6], _)) =
            stream.split_first_chunk()
        else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let bad = BadRecord { len, kind };
        let shortest = if kind == LOST { LOST_LEN } else { HEAD_LEN };
        if !(shortest..=MAX_RECORD).contains(&len) {
            return Err(bad);
        }
        let Some(record) = stream.get(..len) else { return Ok(None) };
        let mut fields = Fields(&record[8..]);
        let record = match kind {
            LOST => Record::Lost(u64::from_le_bytes(fields.take().ok_or(bad)?)),
            PACKET => {
                let direction = match direction {
                    1 => PacketDirection::Inbound,
                    2 => PacketDirection::Outbound,
                    _ => return Err(bad),
                };
                let packet = fields.packet(direction, usize::from(counted), is_v6 != 0);
                Record::Packet(packet.ok_or(bad)?)
            }
            _ => return Err(bad),
        };
        Ok(Some((record, len)))
    }
}

/// What is left of a record.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn packet(
        mut self,
        direction: PacketDirection,
        counted: usize,
        is_v6: bool,
    ) -> Option<Captured<'a>> {
        let time = u64::from_le_bytes(self.take()?);
        let qpn = Some(u32::from_le_bytes(self.take()?)).filter(|&qpn| qpn != NO_QP);
        let length = u32::from_le_bytes(self.take()?) as usize;
        let src_port = u16::from_le_bytes(self.take()?);
        let [traffic_class, hop_limit] = self.take()?;
        let flow_label = u32::from_le_bytes(self.take()?);
        let ident = u16::from_le_bytes(self.take()?);
        let fragment = u16::from_le_bytes(self.take()?);
        let [src, dst] =
            [self.take::<16>()?, self.take::<16>()?].map(|octets| of_v6(octets, is_v6));
        let flow = Flow { src, dst, src_port, traffic_class, hop_limit, flow_label };
        let (counted, bytes) = self.0.split_at_checked(counted)?;
        let fits =
            counted.len() <= MAX_COUNTED && (bytes.len()..=MAX_UDP_PAYLOAD).contains(&length);
        let qpn = qpn.map(Qpn::new);
        let packet =
            Captured { time, direction, qpn, flow, ident, fragment, length, counted, bytes };
        fits.then_some(packet)
    }
}

fn to_v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

fn of_v6(octets: [u8; 16], is_v6: bool) -> IpAddr {
    let [.., a, b, c, d] = octets;
    if is_v6 { Ipv6Addr::from(octets).into() } else { Ipv4Addr::new(a, b, c, d).into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_are_read_back_as_they_were_written(
            v6: bool, addrs: [u128; 2], numbers: [u32; 3], time: u64, small: [u16; 3],
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            counted in prop::collection::vec(any::<u8>(), 0..MAX_COUNTED), lost: u64, sent: bool,
        ) {
            let [src, dst] = addrs.map(|addr| of_v6(addr.to_be_bytes(), v6));
            let packet = Captured {
                time,
                direction: [PacketDirection::Inbound, PacketDirection::Outbound][usize::from(sent)],
                qpn: (numbers[0] % 2 == 0).then(|| Qpn::new(numbers[0])),
                flow: Flow {
                    src,
                    dst,
                    src_port: small[0],
                    traffic_class: small[1] as u8,
                    hop_limit: small[2] as u8,
                    flow_label: numbers[1] & 0xf_ffff,
                },
                ident: small[1],
                fragment: small[2],
                length: bytes.len() + numbers[2] as usize % 4000,
                counted: &counted,
                bytes: &bytes,
            };
            let mut stream = Vec::new();
            packet.write(&mut stream);
            prop_assert_eq!(stream.len(), packet.record_len());
            Record::write_lost(lost, &mut stream);
            let (first, len) = Record::read(&stream).unwrap().unwrap();
            prop_assert_eq!(first, Record::Packet(packet));
            for part in 0..len {
                prop_assert_eq!(Record::read(&stream[..part]), Ok(None), "{} bytes", part);
            }
            let second = Record::read(&stream[len..]).unwrap().unwrap();
            prop_assert_eq!(second, (Record::Lost(lost), LOST_LEN));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((_, len))) = Record::read(&bytes) {
                prop_assert!(len > 0 && len <= bytes.len());
            }
        }

        #[test]
        fn nor_does_a_head_with_any_fields(
            kind in 0u8..4, head: [u8; 3], len in 0u32..300,
            rest in prop::collection::vec(any::<u8>(), 300),
        ) {
            let mut stream = len.to_le_bytes().to_vec();
            stream.push(kind);
            stream.extend(head);
            stream.extend(rest);
            let _ = Record::read(&stream);
        }
    }
}
