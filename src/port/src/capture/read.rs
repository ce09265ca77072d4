//! Reading captures again, ours and those of others: pcap and pcapng, of the links that RoCEv2 is
//! captured on.
//!
//! A capture may be anybody's, so nothing in it is trusted: what cannot be used is told frame by
//! frame, and a file that ends amid a block gives what stands before that.

use crate::headers;
use etherparse::{EtherType, Ethernet2Slice, SingleVlanSlice};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use std::borrow::Cow;
use std::io::Read;
use std::time::Duration;
use urxe_wire::Outer;
use urxe_wire::batch::MAX_DATAGRAM;

/// Room that is there from the beginning: for any header of a file, and for most blocks.
const FIRST_ROOM: usize = 128 << 10;

/// Room for the largest block that is read.
const MOST_ROOM: usize = 4 << 20;

/// No packet is longer; what claims to be is cut off here.
const MAX_PACKET: usize = 65_535 + 64;

/// One frame of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its number as other programs count it: the first one's is 1.
    pub number: u64,
    /// When it was captured, since 1970. Frames do not always stand in the order of their times.
    pub time: Duration,
    /// What it holds.
    pub content: Content<'a>,
}

/// What a frame holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A datagram for port 4791.
    Roce {
        /// The headers that it came with.
        outer: Outer,
        /// The UDP payload, the ICRC last.
        bytes: &'a [u8],
    },
    /// Something else: ARP, TCP, a fragment.
    Other,
    /// It is of RoCEv2, or may be, and cannot be used.
    Unusable(Unusable),
}

/// Why a frame cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Unusable {
    /// Only its beginning was captured.
    #[error("cut off by the capture; capture whole frames (tcpdump -s 0)")]
    CutOff,
    /// Longer than any packet: the sender's segmentation or the receiver's coalescing was still
    /// in effect where it was captured.
    #[error(
        "several packets in one frame, as segmentation offload passes them on; capture where they are single (urxed --capture does) or turn it off (ethtool -K)"
    )]
    SeveralPackets,
    /// A link that we do not know.
    #[error(
        "captured on a link of type {0}, which is not read (Ethernet, raw IP and Linux cooked are)"
    )]
    Link(i32),
}

/// Why reading ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Neither pcap nor pcapng.
    #[error("is no capture: neither pcap nor pcapng")]
    NotACapture,
    /// Damaged or cut off behind so many frames, which were read.
    #[error("is damaged or cut off behind frame {0}")]
    Damaged(u64),
}

/// An interface of a capture.
struct Interface {
    link: Linktype,
    /// Ticks of its clock in a second, and the second that it counts from.
    ticks: u64,
    offset: i64,
}

impl Interface {
    fn time(&self, high: u32, low: u32) -> Duration {
        let ticks = u128::from(high) << 32 | u128::from(low);
        let nanoseconds = ticks * 1_000_000_000 / u128::from(self.ticks.max(1));
        let nanoseconds = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let offset = Duration::from_secs(self.offset.unsigned_abs());
        match self.offset < 0 {
            true => nanoseconds.saturating_sub(offset),
            false => nanoseconds.saturating_add(offset),
        }
    }
}

/// Hands every frame of a capture to `each`, in the order of the file.
///
/// # Errors
/// If it is no capture, or ends early; then `each` has had all frames before that.
pub fn read(input: impl Read + Send, mut each: impl FnMut(Frame<'_>)) -> Result<(), ReadError> {
    let mut room = FIRST_ROOM;
    let mut reader = create_reader(room, input).map_err(|_| ReadError::NotACapture)?;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut number = 0;
    loop {
        match reader.next() {
            Ok((used, block)) => {
                read_block(&block, &mut interfaces, |time, content| {
                    number += 1;
                    each(Frame { number, time, content });
                });
                reader.consume(used);
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::Incomplete(_) | PcapError::BufferTooSmall) => {
                // A pipe may give a block in any number of parts; what gives no more ends amid one.
                let had = reader.data().len();
                // By what has come: a block is as long as it says only if all of it is there.
                if had == room && room < MOST_ROOM {
                    room *= 2;
                    reader.grow(room);
                }
                reader.refill().map_err(|_| ReadError::Damaged(number))?;
                if had > 0 && reader.data().len() == had {
                    return Err(ReadError::Damaged(number));
                }
            }
            Err(_) => return Err(ReadError::Damaged(number)),
        }
    }
}

fn read_block(
    block: &PcapBlockOwned<'_>,
    interfaces: &mut Vec<Interface>,
    mut each: impl FnMut(Duration, Content<'_>),
) {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let ticks = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            *interfaces = vec![Interface { link: header.network, ticks, offset: 0 }];
        }
        PcapBlockOwned::Legacy(block) => {
            let Some(interface) = interfaces.first() else { return };
            let part = interface.time(0, block.ts_usec);
            let time = Duration::from_secs(block.ts_sec.into()).saturating_add(part);
            each(time, content(interface.link, block.data, block.origlen));
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
            let ticks = block.ts_resolution().unwrap_or(1_000_000);
            interfaces.push(Interface { link: block.linktype, ticks, offset: block.ts_offset() });
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
            let Some(interface) = interfaces.get(block.if_id as usize) else { return };
            let data = block.data.get(..block.caplen as usize).unwrap_or(block.data);
            let time = interface.time(block.ts_high, block.ts_low);
            each(time, content(interface.link, data, block.origlen));
        }
        PcapBlockOwned::NG(Block::SimplePacket(block)) => {
            let Some(interface) = interfaces.first() else { return };
            let data = block.data.get(..block.origlen as usize).unwrap_or(block.data);
            each(Duration::ZERO, content(interface.link, data, block.origlen));
        }
        PcapBlockOwned::NG(_) => {}
    }
}

fn content(link: Linktype, frame: &[u8], length: u32) -> Content<'_> {
    let packet = match ip_packet(link, frame) {
        Ok(Some(packet)) => packet,
        Ok(None) => return Content::Other,
        Err(unusable) => return Content::Unusable(unusable),
    };
    let whole = (length as usize).min(MAX_PACKET);
    let mut bytes = Cow::Borrowed(packet);
    if frame.len() < whole {
        // Enough to tell what it was.
        let link_header = frame.len() - packet.len();
        bytes.to_mut().resize(whole - link_header, 0);
    }
    match (headers::parse(&bytes), bytes) {
        (None, _) => Content::Other,
        (Some(_), Cow::Owned(_)) => Content::Unusable(Unusable::CutOff),
        (Some(parsed), _) if parsed.len > MAX_DATAGRAM => {
            Content::Unusable(Unusable::SeveralPackets)
        }
        (Some(parsed), Cow::Borrowed(bytes)) => Content::Roce {
            outer: parsed.outer,
            bytes: &bytes[parsed.start..parsed.start + parsed.len],
        },
    }
}

/// The IP packet in a frame; `None` if it holds something else.
fn ip_packet(link: Linktype, frame: &[u8]) -> Result<Option<&[u8]>, Unusable> {
    /// What OpenBSD calls `LINKTYPE_RAW`, and some captures of others do.
    const RAW_OLD: Linktype = Linktype(12);
    const LINUX_SLL2: Linktype = Linktype(276);
    let payload = match link {
        Linktype::ETHERNET => Ethernet2Slice::from_slice_without_fcs(frame)
            .ok()
            .map(|ethernet| (ethernet.ether_type(), ethernet.payload_slice())),
        // Read by hand, whatever hardware the header tells of: etherparse knows but a few.
        Linktype::LINUX_SLL => cooked(frame, 14, 16),
        LINUX_SLL2 => cooked(frame, 0, 20),
        Linktype::RAW | RAW_OLD | Linktype::IPV4 | Linktype::IPV6 => {
            return Ok(Some(frame).filter(|packet| !packet.is_empty()));
        }
        Linktype(other) => return Err(Unusable::Link(other)),
    };
    Ok(payload.and_then(|(ether_type, payload)| untagged_ip(ether_type, payload)))
}

/// The EtherType of a frame with a Linux cooked header, and what is behind the header.
fn cooked(frame: &[u8], type_at: usize, header: usize) -> Option<(EtherType, &[u8])> {
    let payload = frame.get(header..)?;
    Some((EtherType(u16::from_be_bytes([frame[type_at], frame[type_at + 1]])), payload))
}

/// The IP packet behind any VLAN tags.
fn untagged_ip(mut ether_type: EtherType, mut payload: &[u8]) -> Option<&[u8]> {
    while [EtherType::VLAN_TAGGED_FRAME, EtherType::PROVIDER_BRIDGING].contains(&ether_type) {
        let tagged = SingleVlanSlice::from_slice(payload).ok()?;
        (ether_type, payload) = (tagged.ether_type(), tagged.payload_slice());
    }
    let is_ip = [EtherType::IPV4, EtherType::IPV6].contains(&ether_type) && !payload.is_empty();
    is_ip.then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::pcapng::{CapturedPacket, PacketDirection, PcapNg};
    use proptest::prelude::*;
    use urxe_wire::{DONT_FRAGMENT, Flow, Ident, OuterHeaders};

    fn flow() -> Flow {
        Flow {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            src_port: 0xc001,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    /// An IP packet with so many bytes of datagram.
    fn packet(len: usize) -> Vec<u8> {
        let mut packet = OuterHeaders::new(&flow(), 7, DONT_FRAGMENT, len).as_bytes().to_vec();
        packet.resize(packet.len() + len, 0xa5);
        packet
    }

    /// A frame's number, its time and what it holds.
    type Seen = (u64, Duration, String);

    fn all(file: &[u8]) -> (Vec<Seen>, Result<(), ReadError>) {
        let mut frames = Vec::new();
        let result = read(file, |frame| {
            let content = match frame.content {
                Content::Roce { bytes, .. } => format!("{} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            frames.push((frame.number, frame.time, content));
        });
        (frames, result)
    }

    /// A classic capture of one frame, of which `captured` bytes are there.
    fn classic(big_endian: bool, link: u32, frame: &[u8], captured: usize) -> Vec<u8> {
        let words = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 0x4_0000, link, 5, 6, captured as u32];
        let mut file = Vec::new();
        for (i, word) in words.into_iter().chain([frame.len() as u32]).enumerate() {
            let word: u32 = if i == 1 && !big_endian { 0x0004_0002 } else { word };
            file.extend(if big_endian { word.to_be_bytes() } else { word.to_le_bytes() });
        }
        file.extend(&frame[..captured]);
        file
    }

    #[test]
    fn our_captures_can_be_read() {
        let mut file = Vec::new();
        let mut out = PcapNg::begin(&mut file, "eth0").unwrap();
        for (time, len) in [(1_000_000_007, 20), (3, 4000)] {
            let packet = packet(len);
            let way = PacketDirection::Inbound;
            let (headers, payload) = packet.split_at(28);
            out.packet(&CapturedPacket::whole(time, way, headers, payload)).unwrap();
        }
        let mut frames = Vec::new();
        read(file.as_slice(), |frame| {
            let Content::Roce { outer, bytes } = frame.content else { panic!("{frame:?}") };
            assert_eq!(outer.flow, flow());
            assert_eq!(outer.ident, Ident::Known { ident: 7, fragment: DONT_FRAGMENT });
            frames.push((frame.number, frame.time.as_nanos(), bytes.len()));
        })
        .unwrap();
        assert_eq!(frames, [(1, 1_000_000_007, 20), (2, 3, 4000)]);
    }

    #[test]
    fn links_and_byte_orders_are_read() {
        let ethernet = |tags: &[u8]| [&[2; 12], tags, &[8, 0], &packet(20)].concat();
        let sll2 = [&[8, 0][..], &[0; 18], &packet(20)].concat();
        for (link, frame) in [
            (1, ethernet(&[])),
            (1, ethernet(&[0x81, 0, 0, 5])),
            (1, ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 5])),
            (101, packet(20)),
            (113, [&[0; 14][..], &[8, 0], &packet(20)].concat()),
            (276, sll2),
        ] {
            for big_endian in [false, true] {
                let file = classic(big_endian, link, &frame, frame.len());
                let (frames, result) = all(&file);
                let time = Duration::new(5, 6000);
                assert_eq!(frames, [(1, time, "20 bytes".to_owned())], "link {link}");
                result.unwrap();
            }
        }
    }

    #[test]
    fn unusable_frames_carry_their_reason() {
        let frame = packet(1000);
        let (frames, _) = all(&classic(false, 101, &frame, 100));
        assert_eq!(frames[0].2, "Unusable(CutOff)");
        let (frames, _) = all(&classic(false, 101, &packet(9000), 9028));
        assert_eq!(frames[0].2, "Unusable(SeveralPackets)");
        let (frames, _) = all(&classic(false, 197, &frame, frame.len()));
        assert_eq!(frames[0].2, "Unusable(Link(197))");
        let arp = [&[2; 12], &[8, 6][..], &[0; 28]].concat();
        assert_eq!(all(&classic(false, 1, &arp, arp.len())).0[0].2, "Other");
    }

    #[test]
    fn blocks_of_up_to_four_mebibytes_are_read_or_passed_over() {
        for (len, is_read) in [(1 << 10, true), (1 << 20, true), (3 << 20, true), (5 << 20, false)]
        {
            let mut file = Vec::new();
            PcapNg::begin(&mut file, "eth0").unwrap();
            let mut long = vec![0xa5; len];
            // A block of no type that is known.
            long[..4].copy_from_slice(&0x4000_0000_u32.to_le_bytes());
            long[4..8].copy_from_slice(&(len as u32).to_le_bytes());
            long[len - 4..].copy_from_slice(&(len as u32).to_le_bytes());
            file.extend(long);
            let short = file.len();
            PcapNg::begin(&mut file, "eth0").unwrap();
            assert_eq!(all(&file).1.is_ok(), is_read, "{len}");
            // What ends amid it is damaged, however much is missing.
            assert!(matches!(all(&file[..short - 1]).1, Err(ReadError::Damaged(0))), "{len}");
        }
    }

    #[test]
    fn a_file_that_ends_early_gives_what_is_there() {
        let frame = packet(1000);
        let mut file = classic(false, 101, &frame, frame.len());
        file.extend(&file.clone()[24..60]);
        let (frames, result) = all(&file);
        assert_eq!(frames.len(), 1);
        assert!(matches!(result, Err(ReadError::Damaged(1))), "{result:?}");
        assert!(matches!(all(b"PK\x03\x04 is no capture").1, Err(ReadError::NotACapture)));
        assert!(matches!(all(b"").1, Err(ReadError::NotACapture)));
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(
            pcapng: bool,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            end in any::<prop::sample::Index>(),
        ) {
            let mut file = match pcapng {
                false => classic(false, 1, &[&[2; 12], &[8, 0][..], &packet(60)].concat(), 102),
                true => {
                    let mut file = Vec::new();
                    let mut out = PcapNg::begin(&mut file, "eth0").unwrap();
                    let headers = &packet(60)[..28];
                    let way = PacketDirection::Outbound;
                    out.packet(&CapturedPacket::whole(1, way, headers, &[0; 60])).unwrap();
                    file
                }
            };
            for (at, byte) in damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            let _ = all(&file[..end.index(file.len() + 1)]);
        }
    }
}
