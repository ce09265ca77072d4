//! A whole RoCEv2 packet: what a UDP datagram to port 4791 holds.
//!
//! ```text
//! +-----+------------------+---------+----------+------+
//! | BTH | extended headers | payload | pad 0..3 | ICRC |
//! +-----+------------------+---------+----------+------+
//! ```
//!
//! Which extended headers come, and in which order, follows from the opcode.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, Reth, Rkey, icrc,
};
use std::fmt;

/// Why bytes are not a RoCEv2 packet. None of these is answered; the packet is counted and
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the headers and the ICRC need.
    #[error("{len} bytes are too few: headers and ICRC need {need}")]
    TooShort {
        /// Bytes that came.
        len: usize,
        /// Bytes that there must be at least.
        need: usize,
    },
    /// Not a multiple of four bytes, which payload, pad and everything else add up to.
    #[error("length {len} is not a multiple of 4")]
    Misaligned {
        /// Bytes that came.
        len: usize,
    },
    /// An opcode that is reserved, or of a transport that we do not speak.
    #[error("unknown opcode {opcode:#04x}")]
    UnknownOpcode {
        /// The byte.
        opcode: u8,
    },
    /// A transport version other than 0: the rest cannot be understood.
    #[error("unknown transport version {tver}, expected 0")]
    UnknownVersion {
        /// The four bits.
        tver: u8,
    },
    /// The pad count is larger than all that follows the headers.
    #[error("pad count {pad} with {available} bytes after the headers")]
    PadTooLong {
        /// The BTH's pad count.
        pad: u8,
        /// Bytes between headers and ICRC.
        available: usize,
    },
    /// Payload after the headers of an opcode that has none.
    #[error("{len} bytes of payload in a {opcode}, which has none")]
    UnexpectedPayload {
        /// The packet's opcode.
        opcode: Opcode,
        /// Bytes between headers and ICRC.
        len: usize,
    },
}

/// The BTH and the extended headers of a packet.
///
/// The opcode decides which of them are on the wire. [`parse`](Packet::parse) makes exactly those
/// `Some`; who builds `Headers` does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Source QP and Q_Key of a datagram.
    pub deth: Option<Deth>,
    /// What a FLUSH shall reach.
    pub feth: Option<Feth>,
    /// Address, key and length of an RDMA operation.
    pub reth: Option<Reth>,
    /// Address, key and operands of an atomic.
    pub atomic: Option<AtomicEth>,
    /// Syndrome and MSN of a response.
    pub aeth: Option<Aeth>,
    /// The value that an atomic found.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data: the four wire bytes as a big-endian number.
    pub imm: Option<u32>,
    /// The rkey that a SEND invalidates.
    pub ieth: Option<Rkey>,
}

impl Headers {
    /// The most bytes that the headers of any opcode take.
    pub const MAX_LEN: usize = {
        let mut max = 0;
        let mut i = 0;
        while i < Opcode::ALL.len() {
            let len = Opcode::ALL[i].header_len();
            if len > max {
                max = len;
            }
            i += 1;
        }
        max
    };

    /// A BTH without extended headers.
    pub const fn new(bth: Bth) -> Headers {
        Headers {
            bth,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Bytes on the wire.
    #[allow(clippy::len_without_is_empty)] // a BTH is always there
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Reads the headers off the front of `bytes`, and gives the rest.
    fn parse(bytes: &[u8]) -> Result<(Headers, &[u8]), ParseError> {
        let too_short = |need| ParseError::TooShort { len: bytes.len() + icrc::LEN, need };
        let (bth, mut rest) = bytes.split_first_chunk().ok_or(too_short(Bth::LEN + icrc::LEN))?;
        let mut headers = Headers::new(Bth::parse(bth)?);
        let opcode = headers.bth.opcode;
        let missing = too_short(opcode.header_len() + icrc::LEN);

        if opcode.has_deth() {
            headers.deth = Some(Deth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_feth() {
            headers.feth = Some(Feth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_reth() {
            headers.reth = Some(Reth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_atomic_eth() {
            headers.atomic = Some(AtomicEth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_aeth() {
            headers.aeth = Some(Aeth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_atomic_ack_eth() {
            headers.atomic_ack = Some(AtomicAckEth::parse(take(&mut rest).ok_or(missing)?));
        }
        if opcode.has_imm() {
            headers.imm = Some(ImmDt::parse(take(&mut rest).ok_or(missing)?).data);
        }
        if opcode.has_ieth() {
            headers.ieth = Some(Ieth::parse(take(&mut rest).ok_or(missing)?).rkey);
        }
        Ok((headers, rest))
    }

    /// Writes the headers that the opcode has to the front of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`len`](Self::len), or a header that the opcode has is `None`.
    pub fn emit(&self, buf: &mut [u8]) {
        let opcode = self.bth.opcode;
        let mut rest = &mut buf[..opcode.header_len()];
        self.bth.emit(put(&mut rest));
        if opcode.has_deth() {
            self.deth.expect("a datagram carries a DETH").emit(put(&mut rest));
        }
        if opcode.has_feth() {
            self.feth.expect("a FLUSH carries a FETH").emit(put(&mut rest));
        }
        if opcode.has_reth() {
            self.reth.expect("the start of an RDMA request carries a RETH").emit(put(&mut rest));
        }
        if opcode.has_atomic_eth() {
            self.atomic.expect("an atomic carries an AtomicETH").emit(put(&mut rest));
        }
        if opcode.has_aeth() {
            self.aeth.expect("a response carries an AETH").emit(put(&mut rest));
        }
        if opcode.has_atomic_ack_eth() {
            self.atomic_ack.expect("an ATOMIC ACK carries a value").emit(put(&mut rest));
        }
        if opcode.has_imm() {
            let data = self.imm.expect("WITH IMMEDIATE carries immediate data");
            ImmDt { data }.emit(put(&mut rest));
        }
        if opcode.has_ieth() {
            let rkey = self.ieth.expect("WITH INVALIDATE carries an rkey");
            Ieth { rkey }.emit(put(&mut rest));
        }
    }
}

/// Takes `N` bytes off the front of what is still to be read.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (header, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(header)
}

/// Takes `N` bytes off the front of what is still to be written.
fn put<'a, const N: usize>(rest: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (header, tail) = std::mem::take(rest)
        .split_first_chunk_mut()
        .expect("header_len is the sum of what is emitted");
    *rest = tail;
    header
}

/// A packet that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base and extended headers: those that the opcode has are `Some`.
    pub headers: Headers,
    /// What follows them, without pad and ICRC.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet from the bytes of a UDP datagram, the ICRC being the last four.
    ///
    /// The ICRC itself is not looked at: that takes the outer headers, and is
    /// [`icrc::Checker`](crate::icrc::Checker)'s business. Whether the packet makes sense to its
    /// QP (the length of the payload among other things) is the engine's.
    pub fn parse(udp_payload: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let len = udp_payload.len();
        let (covered, _icrc) = udp_payload
            .split_last_chunk::<{ icrc::LEN }>()
            .ok_or(ParseError::TooShort { len, need: Bth::LEN + icrc::LEN })?;
        if !len.is_multiple_of(4) {
            return Err(ParseError::Misaligned { len });
        }
        let (headers, rest) = Headers::parse(covered)?;
        let Bth { opcode, pad, .. } = headers.bth;
        if !opcode.has_payload() && !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload { opcode, len: rest.len() });
        }
        let payload = rest
            .len()
            .checked_sub(usize::from(pad))
            .map(|payload_len| &rest[..payload_len])
            .ok_or(ParseError::PadTooLong { pad, available: rest.len() })?;
        Ok(Packet { headers, payload })
    }
}

/// One line, as a trace shows it: `RC WRITE ONLY qp 0x000011 psn 0x111100 va 0x7f00 …`.
impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        write!(f, "{} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        for (set, name) in [
            (bth.ack_req, " ack-req"),
            (bth.solicited, " solicited"),
            (bth.fecn, " fecn"),
            (bth.becn, " becn"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        if let Some(Deth { qkey, src_qp }) = self.deth {
            write!(f, " from qp {src_qp} qkey {qkey}")?;
        }
        if let Some(Feth { selectivity, placement }) = self.feth {
            write!(f, " selectivity {selectivity} placement {placement}")?;
        }
        if let Some(Reth { va, rkey, len }) = self.reth {
            write!(f, " va {va:#x} rkey {rkey} len {len}")?;
        }
        if let Some(AtomicEth { va, rkey, swap_or_add, compare }) = self.atomic {
            write!(f, " va {va:#x} rkey {rkey} data {swap_or_add:#x} compare {compare:#x}")?;
        }
        if let Some(Aeth { syndrome, msn }) = self.aeth {
            write!(f, " {syndrome} msn {msn}")?;
        }
        if let Some(AtomicAckEth { original }) = self.atomic_ack {
            write!(f, " original {original:#x}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm {imm:#010x}")?;
        }
        if let Some(rkey) = self.ieth {
            write!(f, " invalidates {rkey}")?;
        }
        Ok(())
    }
}
