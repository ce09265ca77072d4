//! The file format: pcapng (IETF draft-ietf-opsawg-pcapng), as much of it as we write.
//!
//! Every block is its type, its length, a body, options, and its length once more; all numbers
//! little-endian, everything padded to 4 bytes.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The section goes on to the end of the file.
const LENGTH_UNKNOWN: u64 = u64::MAX;
/// LINKTYPE_RAW: packets begin with the IP header, of either version.
const LINKTYPE_RAW: u16 = 101;
/// Whole packets.
const NO_SNAP_LENGTH: u32 = 0;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TIMESTAMP_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;

/// Timestamps count 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Which way a packet went, as the packet flags have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// Received.
    Inbound = 1,
    /// Sent.
    Outbound = 2,
}

/// A packet as it comes into a file.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// In nanoseconds after 1970.
    pub time: u64,
    /// Which way it went.
    pub direction: PacketDirection,
    /// Its IP and UDP headers.
    pub headers: &'a [u8],
    /// What follows them, or the first bytes of it.
    pub payload: &'a [u8],
    /// Bytes that followed them when it was whole, at most 64 KiB.
    pub length: usize,
    /// A remark on it, at most 64 KiB less one byte.
    pub comment: Option<&'a str>,
}

impl<'a> CapturedPacket<'a> {
    /// A packet with all its bytes, of which there is nothing to say.
    pub fn whole(
        time: u64,
        direction: PacketDirection,
        headers: &'a [u8],
        payload: &'a [u8],
    ) -> CapturedPacket<'a> {
        let length = payload.len();
        CapturedPacket { time, direction, headers, payload, length, comment: None }
    }
}

/// Writes a capture of one interface.
pub struct PcapNg<W> {
    out: W,
    /// The body of the block that is being put together.
    body: Vec<u8>,
    /// The whole block.
    block: Vec<u8>,
}

impl<W: Write> PcapNg<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(out: W, interface: &str) -> io::Result<Self> {
        let mut file = PcapNg { out, body: Vec::new(), block: Vec::new() };
        file.body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        file.body.extend([1, 0, 0, 0]); // version 1.0
        file.body.extend(LENGTH_UNKNOWN.to_le_bytes());
        file.option(SECTION_APPLICATION, concat!("urxe ", env!("CARGO_PKG_VERSION")).as_bytes());
        file.option(END_OF_OPTIONS, &[]);
        file.block(SECTION_HEADER)?;

        file.body.extend(LINKTYPE_RAW.to_le_bytes());
        file.body.extend([0, 0]);
        file.body.extend(NO_SNAP_LENGTH.to_le_bytes());
        file.option(INTERFACE_NAME, interface.as_bytes());
        file.option(INTERFACE_TIMESTAMP_RESOLUTION, &[NANOSECONDS]);
        file.option(END_OF_OPTIONS, &[]);
        file.block(INTERFACE_DESCRIPTION)?;
        Ok(file)
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn packet(&mut self, packet: &CapturedPacket<'_>) -> io::Result<()> {
        let CapturedPacket { time, direction, headers, payload, length, comment } = *packet;
        // A packet is at most 64 KiB long.
        let captured = (headers.len() + payload.len()) as u32;
        let original = (headers.len() + length) as u32;
        self.body.extend(0u32.to_le_bytes()); // the first interface
        self.body.extend(((time >> 32) as u32).to_le_bytes());
        self.body.extend((time as u32).to_le_bytes());
        self.body.extend(captured.to_le_bytes());
        self.body.extend(original.to_le_bytes());
        self.body.extend(headers);
        self.body.extend(payload);
        self.pad();
        if let Some(comment) = comment {
            self.option(COMMENT, comment.as_bytes());
        }
        self.option(PACKET_FLAGS, &(direction as u32).to_le_bytes());
        self.option(END_OF_OPTIONS, &[]);
        self.block(ENHANCED_PACKET)
    }

    /// Makes what was written so far readable for others.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.body.extend(code.to_le_bytes());
        self.body.extend((value.len() as u16).to_le_bytes());
        self.body.extend(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    /// Writes the body as a block of this type, at once: what buffers blocks splits none.
    fn block(&mut self, kind: u32) -> io::Result<()> {
        let len = (12 + self.body.len() as u32).to_le_bytes();
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend(len);
        self.block.append(&mut self.body);
        self.block.extend(len);
        // SLOT-009
        self.out.write_all(&self.block)
    }
}
