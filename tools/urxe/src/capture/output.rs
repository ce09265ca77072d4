//! Where live packets go: lines for people, or a pcapng file.

use super::line::{TimeOfDay, described};
use super::verdict::verdict;
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
    /// A file of this name.
    File(PathBuf, PcapNg<BufWriter<Box<dyn Write>>>),
}

impl Sink {
    /// Lines on standard output, or a file, where `-` is standard output too.
    pub(super) fn open(file: Option<&Path>) -> Result<Sink, Error> {
        let Some(path) = file else { return Ok(Sink::Lines(String::new())) };
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
        let came = packet.direction == PacketDirection::Inbound;
        let verdict = came.then(|| verdict(counters, packet.counted));
        match self {
            Sink::Lines(lines) => {
                let time = TimeOfDay(Duration::from_nanos(packet.time));
                let way = if came { "recv" } else { "sent" };
                let (src, dst) = (packet.flow.src, packet.flow.dst);
                let what = described(packet.bytes, packet.length);
                *lines += &format!("{time} {device} {way} {src} > {dst} {what}");
                if let Some(verdict) = verdict {
                    *lines += &format!(": {verdict}");
                }
                lines.push('\n');
                Ok(())
            }
            Sink::File(path, file) => {
                let qp = packet.qpn.map(|qpn| format!(" QP {qpn}")).unwrap_or_default();
                let what = verdict.as_deref().unwrap_or("sent");
                let comment = format!("urxe: {device}{qp}: {what}");
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
    pub(super) fn lost(&mut self, lost: u64) {
        let sentence = format!("{lost} packets not captured: this reader is slower than they come");
        match self {
            Sink::Lines(lines) => {
                lines.push_str(&sentence);
                lines.push('\n');
            }
            Sink::File(..) => output::note(format_args!("urxe capture: {sentence}")),
        }
    }

    /// Shows what was added.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        match self {
            Sink::Lines(lines) if lines.is_empty() => Ok(()),
            Sink::Lines(lines) => output::text(std::mem::take(lines)),
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
