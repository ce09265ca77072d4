//! Where live packets go: lines for people, objects for programs, or a pcapng file.

use super::decoded::Decoded;
use super::line::TimeOfDay;
use super::object::{Lost, Object};
use super::verdict::{Why, verdict};
use crate::error::Error;
use crate::output;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use urxe_port::capture::{Captured, CapturedPacket, PacketDirection, PcapNg};
use urxe_shm::control::CounterInfo;
use urxe_wire::OuterHeaders;

/// Where packets go.
pub(super) enum Sink {
    /// Lines that were not printed yet.
    Lines(String),
    /// Objects, each on a line, that were not printed yet.
    Objects(String),
    /// A file of this name.
    File(PathBuf, PcapNg<BufWriter<Box<dyn Write>>>),
}

impl Sink {
    /// Lines or objects on standard output, or a file, where `-` is standard output too.
    pub(super) fn open(file: Option<&Path>, as_json: bool) -> Result<Sink, Error> {
        let Some(path) = file else {
            let sink = if as_json { Sink::Objects } else { Sink::Lines };
            return Ok(sink(String::new()));
        };
        let open = || -> io::Result<_> {
            let out: Box<dyn Write> = match path == Path::new("-") {
                true => Box::new(io::stdout()),
                false => Box::new(File::create(path)?),
            };
            let mut file = PcapNg::begin(BufWriter::new(out), "urxe")?;
            file.flush()?;
            Ok(file)
        };
        Ok(Sink::File(path.into(), open().or_else(|error| written(path, Err(error)))?))
    }

    /// Adds a packet of a device.
    pub(super) fn packet(
        &mut self,
        device: &str,
        packet: &Captured<'_>,
        counters: &[CounterInfo],
    ) -> Result<(), Error> {
        let decoded = Decoded::new(packet.bytes, packet.length);
        let came = packet.direction == PacketDirection::Inbound;
        let told = match came {
            true => verdict(counters, packet.counted),
            false => Why::of(decoded.body(), counters, packet.counted).to_string(),
        };
        match self {
            Sink::Lines(lines) => {
                let time = TimeOfDay(Duration::from_nanos(packet.time));
                let way = if came { "recv" } else { "sent" };
                let (src, dst) = (packet.flow.src, packet.flow.dst);
                *lines += &format!("{time} {device} {way} {src} > {dst} {decoded}: {told}\n");
                Ok(())
            }
            Sink::Objects(lines) => {
                *lines += &output::json_line(&Object::live(device, packet, &decoded, counters))?;
                Ok(())
            }
            Sink::File(path, file) => {
                let qp = packet.qpn.map(|qpn| format!(" QP {qpn}")).unwrap_or_default();
                let sent = if came { "" } else { "sent, " };
                let comment = format!("urxe: {device}{qp}: {sent}{told}");
                let (flow, length) = (&packet.flow, packet.length);
                let headers = OuterHeaders::new(flow, packet.ident, packet.fragment, length);
                let packet = CapturedPacket {
                    time: packet.time,
                    direction: packet.direction,
                    headers: headers.as_bytes(),
                    payload: packet.bytes,
                    length,
                    comment: Some(&comment),
                };
                written(path, file.packet(&packet))
            }
        }
    }

    /// Says that packets are missing here.
    pub(super) fn lost(&mut self, lost: u64) -> Result<(), Error> {
        let sentence = format!("{lost} packets not captured: this reader is slower than they come");
        match self {
            Sink::Lines(lines) => {
                lines.push_str(&sentence);
                lines.push('\n');
            }
            Sink::Objects(lines) => *lines += &output::json_line(&Lost { not_captured: lost })?,
            Sink::File(..) => output::note(format_args!("urxe capture: {sentence}")),
        }
        Ok(())
    }

    /// Shows what was added.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        match self {
            Sink::Lines(lines) | Sink::Objects(lines) if lines.is_empty() => Ok(()),
            Sink::Lines(lines) | Sink::Objects(lines) => output::text(std::mem::take(lines)),
            Sink::File(path, file) => written(path, file.flush()),
        }
    }
}

/// What became of writing to the file. Who reads it may go at any time.
fn written<T>(path: &Path, result: io::Result<T>) -> Result<T, Error> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(Error::system(path.display().to_string())),
    }
}
