//! `urxe capture`: the packets of a capture, one line each.

mod filter;
mod line;

use crate::error::Error;
use crate::output;
use crate::stat::parse_qpn;
use clap::Args;
use filter::{Filter, OpcodeWords};
use line::Lines;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_port::capture::{self, ReadError};

const LONG_ABOUT: &str = "\
Show the RoCEv2 packets of a capture, one line each, in the verbs' words.

A line is the time of day (UTC), the addresses, the opcode, the destination QP and PSN, what the
extended headers say (virtual address, rkey and length; syndrome and MSN; immediate data), and the
bytes of payload. A packet whose ICRC is wrong, and one that is no packet, says so at its end.

The capture is one that urxed writes (--capture), or of another program: pcap and pcapng are read,
of Ethernet (with VLAN tags), raw IP and Linux cooked links.";

const EXAMPLES: &str = "\
Examples:
  urxe daemon --addr 10.0.0.1 --capture urxe.pcapng     in one terminal, and
  urxe capture -r urxe.pcapng                           in another: what was captured so far.
  urxe capture -r urxe.pcapng --qp 0x11 --qp 0x12
      A connection: the packets to either of its QPs.
  urxe capture -r urxe.pcapng --peer 10.0.0.2 --opcode 'read request' --opcode ack
      READ requests and ACKs, from and to one address.
  tcpdump -i eth0 -s 0 -U -w - udp port 4791 | urxe capture -r - --count 100
      The first 100 packets that another program captures.";

/// Show the RoCEv2 packets of a capture, one line each, in the verbs' words.
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A pcap or pcapng file; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    read: PathBuf,

    /// Only packets to the QP of this number, and datagrams from it (decimal, or hex behind 0x);
    /// may be given several times [default: all].
    #[arg(long = "qp", value_name = "QPN", value_parser = parse_qpn)]
    qps: Vec<u32>,

    /// Only packets from or to this address; may be given several times [default: all].
    #[arg(long = "peer", value_name = "ADDR")]
    peers: Vec<IpAddr>,

    /// Only opcodes with these words in their name, such as 'write', 'rc send only' or 'cnp'; may
    /// be given several times [default: all].
    #[arg(long = "opcode", value_name = "WORDS")]
    opcodes: Vec<OpcodeWords>,

    /// End after so many packets were shown [default: none].
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
}

/// Reads and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let name = arguments.read.display();
    let input = open(&arguments.read).map_err(Error::system(name.to_string()))?;
    let enough = Arc::new(AtomicBool::new(false));
    let input = UntilEnough { input, enough: Arc::clone(&enough) };
    let filter = Filter {
        qps: arguments.qps.clone(),
        peers: arguments.peers.clone(),
        opcodes: arguments.opcodes.clone(),
    };
    let mut lines = Lines::new(filter);
    let mut shown = 0;
    let mut printed = Ok(());
    let result = capture::read(input, |frame| {
        if enough.load(Ordering::Relaxed) {
            return;
        }
        let Some(line) = lines.line(&frame) else { return };
        printed = output::text(format_args!("{line}\n"));
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
