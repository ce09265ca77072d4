//! Packets in words, a line each, and as pcapng.

use crate::script::{Direction, Evidence};
use std::io::{self, Write};
use std::time::{Instant, SystemTime};
use urxe_port::capture::{CapturedPacket, PacketDirection, PcapNg};
use urxe_wire::OuterHeaders;

/// Packets that are shown of one check in words.
const SHOWN: usize = 60;

/// A line for each packet: milliseconds since the first, which way it went, and what it says.
pub fn lines(evidence: &Evidence) -> Vec<String> {
    let Some(first) = evidence.records.first() else { return Vec::new() };
    let mut lines: Vec<String> = evidence
        .records
        .iter()
        .take(SHOWN)
        .map(|record| {
            let after = record.at.saturating_duration_since(first.at).as_secs_f64() * 1e3;
            let way = if record.way == Direction::Out { "sent" } else { "came" };
            format!("{after:9.3} ms  {way}  {record}")
        })
        .collect();
    let more = evidence.records.len().saturating_sub(SHOWN) + evidence.left_out;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Writes the packets as pcapng. `began` is one moment on the calendar's clock and on that of the
/// packets.
///
/// # Errors
/// If they cannot be written.
pub fn write(evidence: &Evidence, began: (SystemTime, Instant), out: impl Write) -> io::Result<()> {
    let mut file = PcapNg::begin(out, "urxe conform")?;
    let since_1970 = began.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for record in &evidence.records {
        let time = since_1970 + record.at.saturating_duration_since(began.1);
        let way = match record.way {
            Direction::Out => PacketDirection::Outbound,
            Direction::In => PacketDirection::Inbound,
        };
        let headers =
            OuterHeaders::new(&record.flow, record.ident, record.fragment, record.bytes.len());
        let time = time.as_nanos() as u64;
        file.packet(&CapturedPacket::whole(time, way, headers.as_bytes(), &record.bytes))?;
    }
    file.flush()
}
