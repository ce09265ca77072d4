//! What a client of `ibv_rc_pingpong` and its kin says: one line of text, `lid:qpn:psn:gid`, which
//! the server answers with one like it. The server then waits for a last word, with its receives
//! posted.

use super::{Greeting, OurEnd, Pair, Refusal, TheirEnd};
use std::io::{Read, Write};
use std::net::TcpStream;
use urxe_types::Gid;

/// Bytes of a line, with the zero at its end.
const LINE: usize = 52;

/// Says what a client says.
pub(super) fn greet(mut stream: &TcpStream, ours: &OurEnd) -> Result<Greeting, Refusal> {
    stream.write_all(&write(ours))?;
    let mut line = [0; LINE];
    stream.read_exact(&mut line)?;
    let (theirs, gid) = read(&line)
        .ok_or_else(|| Refusal::Unintelligible(String::from_utf8_lossy(&line).into_owned()))?;
    Ok(Greeting { pairs: vec![Pair { ours: *ours, theirs }], addr: gid.to_ip() })
}

fn write(ours: &OurEnd) -> [u8; LINE] {
    let gid: String = Gid::from(ours.addr).0.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("0000:{:06x}:{:06x}:{gid}", ours.qpn, ours.psn);
    let mut line = [0; LINE];
    line[..text.len()].copy_from_slice(text.as_bytes());
    line
}

fn read(line: &[u8]) -> Option<(TheirEnd, Gid)> {
    let text = std::str::from_utf8(line).ok()?.trim_end_matches('\0');
    let mut fields = text.split(':');
    let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
    let (_lid, qpn, psn) = (number()?, number()? & 0xff_ffff, number()? & 0xff_ffff);
    let gid = fields.next().filter(|gid| gid.len() == 32)?;
    let gid = Gid(u128::from_str_radix(gid, 16).ok()?.to_be_bytes());
    Some((TheirEnd { qpn, psn, memory: None, handle: None }, gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_every_number_in_its_place() {
        let addr = [10, 0, 0, 255].into();
        let line = write(&OurEnd { addr, qpn: 0x12, psn: 0xabcdef });
        assert_eq!(line, *b"0000:000012:abcdef:00000000000000000000ffff0a0000ff\0");
        let (theirs, gid) = read(&line).unwrap();
        assert_eq!((theirs.qpn, theirs.psn, gid.to_ip()), (0x12, 0xabcdef, addr));
    }

    #[test]
    fn any_other_text_is_refused() {
        for text in ["", "0:1:2", "0:1:2:ffff", "0:x:2:00000000000000000000ffff0a0000ff"] {
            assert!(read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
