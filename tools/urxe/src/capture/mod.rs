//! `urxe capture`: packets, one line each, as they come or out of a file.

mod decoded;
mod line;
mod live;
mod object;
mod opcodes;
mod output;
mod streams;
mod verdict;

use crate::cli::DaemonArguments;
use crate::error::Error;
use crate::output as terminal;
use crate::units::parse_qpn;
use clap::Args;
use line::Frames;
use opcodes::OpcodeWords;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_port::capture::{self, Filter, ReadError};

const LONG_ABOUT: &str = "\
Show RoCEv2 packets, one line each, in the verbs' words: those that the daemon sends and receives
from now on, or, with --read, those of a file.

A line is the time of day (UTC), the addresses, the opcode, the destination QP and PSN, what the
extended headers say (virtual address, rkey and length; syndrome and MSN; immediate data), and the
bytes of payload.

Of the daemon, a line also has the device and whether the packet was sent or received. Of one that
was received it says what the device made of it: accepted, duplicate, out of order, kept early,
NAK sent, or dropped with the name of the counter, as urxe stat and urxe explain have it. Of one
that was sent it says why: new; again, with what made the requester repeat it (ACK timeout; answer
late, before the timeout; sequence NAK; selective ACK, of a urxe peer; RNR NAK; answer missing,
while a later one came); answer (to a READ or atomic); acknowledgement, refusal (a NAK),
notification (of congestion). An answer that was sent before is an answer all the same. So far as
--fault drops packets, a packet that was to be sent is shown and one that was to be received is
not. An ordinary user sees the packets of QPs of their own programs; root and the user that the
daemon runs as see all, also those of QP1 and those that are for no QP. A terminal or a file that
is slower than the packets holds nothing up: a line says how many were not captured. With --write
the packets go to a pcapng file, with what became of them as comments; Wireshark and tshark can
read it while it grows.

Of a file, a packet whose ICRC is wrong, and one that is no packet, says so at its end. It is one
that urxe or urxed has written (--capture), or of another program: pcap and pcapng are read, of
Ethernet (with VLAN tags), raw IP and Linux cooked links.";

const EXAMPLES: &str = "\
Examples:
  urxe capture
      What the daemon sends and receives, until Ctrl-C.
  urxe capture --program ib_write_bw --count 20
      The first 20 packets of one program.
  urxe capture --device urxe0 --peer 10.0.0.2 --opcode 'read request' --opcode ack
      READ requests and ACKs, from and to one address.
  urxe capture -w - | tshark -i -
      All packets, in the words of tshark.
  urxe capture -w roce.pcapng --seconds 10
      Ten seconds for Wireshark, which may have the file open meanwhile.
  urxe capture --json --qp 0x11 | jq -c 'select(.why == \"again\") | [.psn, .after]'
      Which packets a QP sends again, and what made it.
  urxe capture -r urxe.pcapng --qp 0x11 --qp 0x12
      A connection, out of a file: the packets to either of its QPs.
  tcpdump -i eth0 -s 0 -U -w - udp port 4791 | urxe capture -r - --count 100
      The first 100 packets that another program captures.";

/// Show the packets that the daemon sends and receives, or those of a file, one line each.
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Show the packets of a pcap or pcapng file; - is standard input [default: of the daemon].
    #[arg(short, long, value_name = "FILE")]
    read: Option<PathBuf>,

    /// Write the packets to a pcapng file in place of lines; - is standard output.
    #[arg(short, long, value_name = "FILE", conflicts_with = "read")]
    write: Option<PathBuf>,

    /// Print one JSON object a line in place of lines for people.
    #[arg(long, conflicts_with = "write")]
    json: bool,

    /// Only packets of this device; may be given several times [default: all].
    #[arg(long = "device", value_name = "NAME", conflicts_with = "read")]
    devices: Vec<String>,

    /// Only packets of QPs of the programs with this name or process id; may be given several times
    /// [default: all].
    #[arg(long = "program", value_name = "NAME|PID", conflicts_with = "read")]
    programs: Vec<String>,

    /// Only packets to the QP of this number, and those from it as far as that is known: of a file
    /// only datagrams tell (decimal, or hex behind 0x); may be given several times [default: all].
    #[arg(long = "qp", value_name = "QPN", value_parser = parse_qpn)]
    qps: Vec<u32>,

    /// Only packets from or to this address; may be given several times [default: all].
    #[arg(long = "peer", value_name = "ADDR")]
    peers: Vec<IpAddr>,

    /// Only opcodes with these words in their name, such as 'write', 'rc send only' or 'cnp'; may
    /// be given several times [default: all].
    #[arg(long = "opcode", value_name = "WORDS")]
    opcodes: Vec<OpcodeWords>,

    /// End after so many packets were shown [default: never].
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,

    /// End after so many seconds [default: never].
    #[arg(long, value_name = "N", conflicts_with = "read")]
    seconds: Option<NonZeroU64>,

    /// Keep so many bytes of each packet behind its UDP header [default: all with --write, else
    /// those of the headers].
    #[arg(
        long, value_name = "BYTES", conflicts_with = "read",
        value_parser = clap::value_parser!(u32).range(64..=65_507)
    )]
    snaplen: Option<u32>,
}

impl Arguments {
    fn filter(&self) -> Filter {
        let opcodes = self.opcodes.iter().flat_map(|words| words.0.iter().copied()).collect();
        Filter { qps: self.qps.clone(), peers: self.peers.clone(), opcodes }
    }
}

/// Shows packets.
///
/// # Errors
/// If there is no daemon or no such device, or the file is no capture.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    match &arguments.read {
        Some(file) => show_file(file, arguments),
        None => live::run(arguments),
    }
}

/// Shows the packets of a file.
fn show_file(file: &Path, arguments: &Arguments) -> Result<(), Error> {
    let name = file.display();
    let input = open(file).map_err(Error::system(name.to_string()))?;
    let enough = Arc::new(AtomicBool::new(false));
    let input = UntilEnough { input, enough: Arc::clone(&enough) };
    let mut frames = Frames::new(arguments.filter());
    let mut shown = 0;
    let mut printed = Ok(());
    let result = capture::read(input, |frame| {
        if enough.load(Ordering::Relaxed) {
            return;
        }
        let Some(packet) = frames.shown(&frame) else { return };
        printed = match arguments.json {
            true => object::of_frame(&frame, &packet).and_then(terminal::text),
            false => terminal::text(format_args!("{}\n", line::line(&frame, &packet))),
        };
        shown += 1;
        let is_last = arguments.count.is_some_and(|count| shown == count.get());
        enough.store(is_last || printed.is_err(), Ordering::Relaxed);
    });
    printed?;
    match result {
        Err(error @ ReadError::NotACapture) => Err(Error::Usage(format!("{name}: {error}"))),
        Err(error @ ReadError::Damaged(_)) if !enough.load(Ordering::Relaxed) => {
            Err(Error::Failed(format!("{name}: {error}")))
        }
        _ => Ok(()),
    }
}

/// A capture that ends once enough was shown: a pipe may stay open.
struct UntilEnough<R> {
    input: R,
    enough: Arc<AtomicBool>,
}

impl<R: Read> Read for UntilEnough<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.enough.load(Ordering::Relaxed) { Ok(0) } else { self.input.read(buffer) }
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    if path == Path::new("-") { Ok(Box::new(io::stdin())) } else { Ok(Box::new(File::open(path)?)) }
}
