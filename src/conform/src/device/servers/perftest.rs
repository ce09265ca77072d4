//! What clients and servers of perftest say to each other, up to the point at which the server's
//! QPs are ready, and the client begins.
//!
//! Everything goes over TCP, the client first, the server in answer to each: the version as text
//! in 16 bytes; two numbers of 32 bits (page size and cache line); the code of the path MTU as
//! text in two bytes; then, QP by QP, a line of text with its numbers. When all lines were
//! exchanged the server connects its QPs, and lines are exchanged again as a barrier. `ib_send_bw`
//! posts its receives after those, before it waits for a last one. The last of all is what a client
//! begins after.

use super::client::Caller;
use super::{Greeting, Kind, OurEnd, Pair, Program, Refusal, RemoteMemory, TheirEnd};
use crate::script::{OUR_ADDR, OUR_RKEY};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;
use urxe_types::{Gid, PathMtu};

/// The version that we say we are: the oldest that all of today take, without what newer ones
/// negotiate.
const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Bytes of a QP's line, with the zero at its end.
const LINE: usize = 108;
/// How long a server may take to post its receives.
const POSTING: Duration = Duration::from_millis(100);

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    qpn: u32,
    psn: u32,
    rkey: u32,
    addr: u64,
    gid: Gid,
}

/// Says what a client says, for these QPs.
pub(super) fn greet(stream: &TcpStream, kind: &Kind, ours: &[OurEnd]) -> Result<Greeting, Refusal> {
    let version: [u8; 16] = exchange(stream, VERSION)?;
    if !version[0].is_ascii_digit() {
        return Err(unintelligible(&version));
    }
    let page = u32::from_be_bytes(exchange(stream, &[0; 4])?) as usize;
    let cache_line = u32::from_be_bytes(exchange(stream, &[0; 4])?).max(1) as usize;
    check_mtu(exchange(stream, &[b'0' + kind.mtu().code(), 0])?, kind.mtu())?;
    let mut lines = Vec::new();
    for end in ours {
        lines.push(tell(stream, end)?);
    }
    // QPs are connected when the server answers again.
    tell(stream, &ours[0])?;
    if kind.program() == Program::Send {
        for end in ours {
            tell(stream, end)?;
        }
        sleep(POSTING);
    }
    let buffer = kind.size().max(page);
    let memory = |at: usize, line: &Line| {
        let (before, all) =
            if kind.memory_per_qp() { (1, 2) } else { (ours.len() + at, 2 * ours.len()) };
        RemoteMemory {
            addr: line.addr.wrapping_sub((before * buffer) as u64),
            rkey: line.rkey,
            len: all * buffer.next_multiple_of(cache_line),
        }
    };
    let pairs = ours.iter().zip(&lines).enumerate().map(|(at, (&ours, line))| {
        let memory = Some(memory(at, line));
        Pair { ours, theirs: TheirEnd { qpn: line.qpn, psn: line.psn, memory, handle: None } }
    });
    Ok(Greeting { pairs: pairs.collect(), addr: lines[0].gid.to_ip() })
}

/// Says what a server says to such a client, but for the answer to its last line.
pub(super) fn be_greeted(
    stream: &TcpStream,
    caller: &Caller,
    ours: &OurEnd,
) -> Result<Greeting, Refusal> {
    let version: [u8; 16] = answer(stream, VERSION)?;
    if !version[0].is_ascii_digit() {
        return Err(unintelligible(&version));
    }
    answer(stream, &[0; 4])?;
    answer(stream, &[0; 4])?;
    check_mtu(answer(stream, &[b'0' + caller.mtu.code(), 0])?, caller.mtu)?;
    let told = told(caller, ours);
    let first = answer(stream, &told)?;
    for _ in 2..caller.lines() {
        answer(stream, &told)?;
    }
    let mut last = [0; LINE];
    (&*stream).read_exact(&mut last)?;
    let line = read(&first).ok_or_else(|| unintelligible(&first))?;
    let theirs = TheirEnd { qpn: line.qpn, psn: line.psn, memory: None, handle: None };
    Ok(Greeting { pairs: vec![Pair { ours: *ours, theirs }], addr: line.gid.to_ip() })
}

/// Answers the last line of a client, which takes the numbers from there.
pub(super) fn release(mut stream: &TcpStream, caller: &Caller, ours: &OurEnd) -> io::Result<()> {
    stream.write_all(&told(caller, ours))
}

/// The line that a client is told.
fn told(caller: &Caller, ours: &OurEnd) -> [u8; LINE] {
    let OurEnd { addr, qpn, psn } = *ours;
    let line = Line { qpn, psn, rkey: OUR_RKEY, addr: OUR_ADDR, gid: addr.into() };
    write(&line, caller.outstanding)
}

fn check_mtu(theirs: [u8; 2], ours: PathMtu) -> Result<(), Refusal> {
    match theirs[0] {
        code @ b'1'..=b'5' if code < b'0' + ours.code() => {
            Err(Refusal::SmallMtu(128 << (code - b'0')))
        }
        b'1'..=b'5' => Ok(()),
        _ => Err(unintelligible(&theirs)),
    }
}

/// Answers as many bytes as are said.
fn answer<const N: usize>(mut stream: &TcpStream, ours: &[u8; N]) -> Result<[u8; N], Refusal> {
    let mut theirs = [0; N];
    stream.read_exact(&mut theirs)?;
    stream.write_all(ours)?;
    Ok(theirs)
}

/// Says as many bytes as are answered.
fn exchange<const N: usize>(mut stream: &TcpStream, ours: &[u8; N]) -> Result<[u8; N], Refusal> {
    stream.write_all(ours)?;
    let mut theirs = [0; N];
    stream.read_exact(&mut theirs)?;
    Ok(theirs)
}

/// Tells a QP, and is told one.
fn tell(stream: &TcpStream, ours: &OurEnd) -> Result<Line, Refusal> {
    let ours = Line { qpn: ours.qpn, psn: ours.psn, rkey: 0, addr: 0, gid: ours.addr.into() };
    let theirs = exchange(stream, &write(&ours, 1))?;
    read(&theirs).ok_or_else(|| unintelligible(&theirs))
}

/// LID, READs outstanding, QPN, PSN, key, address, the 16 bytes of the GID, SRQ: in hex, with a
/// colon after each.
fn write(ours: &Line, outstanding: u8) -> [u8; LINE] {
    let Line { qpn, psn, rkey, addr, gid } = ours;
    let gid: String = gid.0.iter().map(|byte| format!("{byte:02x}:")).collect();
    let text = format!(
        "{:04x}:{outstanding:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:{gid}{:08x}:",
        0, 0
    );
    let mut line = [0; LINE];
    line[..text.len()].copy_from_slice(text.as_bytes());
    line
}

fn read(line: &[u8]) -> Option<Line> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields = text.split(':');
    let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
    let (_lid, _outstanding) = (number()?, number()?);
    let (qpn, psn, rkey, addr) = (number()?, number()?, number()?, number()?);
    let mut gid = Gid([0; 16]);
    for byte in &mut gid.0 {
        *byte = number()?.try_into().ok()?;
    }
    let (qpn, psn) = (u32::try_from(qpn).ok()? & 0xff_ffff, u32::try_from(psn).ok()? & 0xff_ffff);
    Some(Line { qpn, psn, rkey: rkey.try_into().ok()?, addr, gid })
}

fn unintelligible(bytes: &[u8]) -> Refusal {
    Refusal::Unintelligible(String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn a_line_has_every_number_in_its_place() {
        let gid = Gid::from(IpAddr::from(Ipv4Addr::new(10, 0, 0, 255)));
        let said = Line { qpn: 0x12, psn: 0xabcdef, rkey: 0x34, addr: 0x7f00_0000_5678, gid };
        let line = write(&said, 16);
        let text = "0000:0010:000012:abcdef:00000034:00007f0000005678:\
                    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:ff:00000000:\0";
        assert_eq!(line, text.as_bytes());
        assert_eq!(read(&line), Some(said));
    }

    #[test]
    fn any_other_text_is_refused() {
        for text in ["", "0000:0010:000011:abcdef", "x:1:2:3:4:5:6", "0:0:1ffffffff:0:0:0:0"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read(&[0xff; LINE]), None);
    }
}
