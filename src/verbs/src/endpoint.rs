//! What two programs tell each other, by whatever means they have, before they can talk RDMA.

use crate::{Error, PathMtu};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, RangeBounds};
use std::str::FromStr;

/// Everything that a peer must know of a queue pair to connect to it.
///
/// It travels as text (`Display` and `FromStr`) or through any serde format, over whatever the
/// two programs share: a socket, a file, a command line.
///
/// ```
/// use urxe_verbs::{PathMtu, QpEndpoint};
///
/// let gid = "10.0.0.1".parse().unwrap();
/// let endpoint = QpEndpoint { qpn: 0x11, psn: 0xabc, mtu: PathMtu::Mtu1024, gid };
/// let text = endpoint.to_string();
/// assert_eq!(text, "0x000011:0x000abc:1024:10.0.0.1");
/// assert_eq!(text.parse::<QpEndpoint>().unwrap(), endpoint);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QpEndpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First PSN that it will send, 24 bits.
    pub psn: u32,
    /// Largest path MTU that its port carries, in text and in other formats as bytes. A connection
    /// uses the smaller of its two ends'.
    pub mtu: PathMtu,
    /// The GID of its port. In RoCEv2 that is an IP address.
    pub gid: IpAddr,
}

impl fmt::Display for QpEndpoint {
    /// `<qpn>:<psn>:<mtu>:<gid>`, the first two in hex. The GID comes last, so that an IPv6
    /// address needs no brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}:{:#08x}:{}:{}", self.qpn, self.psn, self.mtu, self.gid)
    }
}

impl FromStr for QpEndpoint {
    type Err = Error;

    /// Reads what `Display` writes; numbers may be decimal too.
    fn from_str(text: &str) -> Result<QpEndpoint, Error> {
        let read = || {
            let mut fields = text.trim().splitn(4, ':');
            let qpn = number(fields.next()?).filter(|&qpn| qpn < 1 << 24)?;
            let psn = number(fields.next()?).filter(|&psn| psn < 1 << 24)?;
            let mtu = PathMtu::from_bytes(number(fields.next()?)?.try_into().ok()?)?;
            let gid = fields.next()?.parse().ok()?;
            Some(QpEndpoint { qpn: qpn as u32, psn: psn as u32, mtu, gid })
        };
        read().ok_or_else(|| Error::Parse {
            what: "queue pair endpoint",
            text: text.to_owned(),
            expected: "<qpn>:<psn>:<mtu>:<gid>, such as 0x000011:0x000abc:1024:10.0.0.1",
        })
    }
}

/// Memory of a peer, as it must be named in a WRITE, READ or atomic.
///
/// Made by [`Mr::remote_buf`](crate::Mr::remote_buf) at the side that owns the memory, and carried
/// to the other side as text or through any serde format, as a [`QpEndpoint`] is.
///
/// The length is for [`slice`](Self::slice) and for programs; what the owner enforces is the
/// bounds of the whole memory region.
///
/// ```
/// use urxe_verbs::RemoteBuf;
///
/// let ring: RemoteBuf = "0x7f0000001000:0x0000beef:4096".parse().unwrap();
/// let third_line = ring.slice(128..192).unwrap();
/// assert_eq!((third_line.addr, third_line.len), (0x7f00_0000_1080, 64));
/// assert!(ring.slice(4096..4097).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteBuf {
    /// Address of the first byte, in the owner's terms.
    pub addr: u64,
    /// The memory region's remote key.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteBuf {
    /// A part of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range reaches beyond its end.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteBuf, Error> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(RemoteBuf { addr: self.addr.wrapping_add(offset), rkey: self.rkey, len })
    }
}

/// Offset and length of a range within a buffer of `size` bytes.
pub(crate) fn resolve(range: impl RangeBounds<u64>, size: u64) -> Result<(u64, u64), Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    if start <= end && end <= size {
        Ok((start, end - start))
    } else {
        Err(Error::OutOfBounds { start, end, size })
    }
}

impl fmt::Display for RemoteBuf {
    /// `<address>:<rkey>:<length>`, the first two in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}:{:#010x}:{}", self.addr, self.rkey, self.len)
    }
}

impl FromStr for RemoteBuf {
    type Err = Error;

    /// Reads what `Display` writes; numbers may be decimal or hex.
    fn from_str(text: &str) -> Result<RemoteBuf, Error> {
        let read = || {
            let mut fields = text.trim().splitn(3, ':');
            let addr = number(fields.next()?)?;
            let rkey = number(fields.next()?)?.try_into().ok()?;
            let len = number(fields.next()?)?;
            Some(RemoteBuf { addr, rkey, len })
        };
        read().ok_or_else(|| Error::Parse {
            what: "remote buffer",
            text: text.to_owned(),
            expected: "<address>:<rkey>:<length>, such as 0x7f0000001000:0x0000beef:4096",
        })
    }
}

/// A number in decimal, or in hex behind `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_endpoint_survives_text(
            qpn in 0u32..1 << 24, psn in 0u32..1 << 24, mtu in 0usize..5, gid: IpAddr,
        ) {
            let endpoint = QpEndpoint { qpn, psn, mtu: PathMtu::ALL[mtu], gid };
            prop_assert_eq!(endpoint.to_string().parse::<QpEndpoint>().unwrap(), endpoint);
        }

        #[test]
        fn an_endpoint_survives_json(qpn in 0u32..1 << 24, psn in 0u32..1 << 24, gid: IpAddr) {
            let endpoint = QpEndpoint { qpn, psn, mtu: PathMtu::Mtu4096, gid };
            let json = serde_json::to_string(&endpoint).unwrap();
            prop_assert_eq!(serde_json::from_str::<QpEndpoint>(&json).unwrap(), endpoint);
        }

        #[test]
        fn a_remote_buffer_survives_text(addr: u64, rkey: u32, len: u64) {
            let buf = RemoteBuf { addr, rkey, len };
            prop_assert_eq!(buf.to_string().parse::<RemoteBuf>().unwrap(), buf);
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<QpEndpoint>();
            let _ = text.parse::<RemoteBuf>();
        }
    }

    #[test]
    fn an_endpoint_out_of_range_is_refused() {
        for text in [
            "",
            "0x11",
            "0x1000000:0:1024:10.0.0.1",
            "0x11:0x1000000:1024:10.0.0.1",
            "0x11:0x1:1500:10.0.0.1",
            "0x11:0x1:1024:nowhere",
            "0x11:0x1:1024:10.0.0.1:7",
        ] {
            let error = text.parse::<QpEndpoint>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_slice_of_a_remote_buffer_stays_inside() {
        let buf = RemoteBuf { addr: u64::MAX - 10, rkey: 1, len: 8 };
        assert_eq!(buf.slice(..).unwrap(), buf);
        assert_eq!(buf.slice(8..).unwrap().len, 0);
        assert_eq!(buf.slice(2..=3).unwrap().len, 2);
        assert!(buf.slice(8..=8).is_err());
        assert!(buf.slice(9..).is_err());
        assert!(buf.slice(..=u64::MAX).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may compute by mistake")]
        let reversed = buf.slice(4..2);
        assert!(reversed.is_err());
    }
}
