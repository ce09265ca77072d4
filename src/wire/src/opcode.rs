//! BTH opcodes, and the one table that says what each of them means.
//!
//! ```text
//!   7   6   5   4   3   2   1   0
//! +-----------+-------------------+
//! | transport |     operation     |
//! +-----------+-------------------+
//! ```
//!
//! Everything that follows from an opcode is made of the table: its name, its extended headers in
//! the order of the wire, and the [`Body`] that is read from them and written to them.

use crate::body::{Body, Part, Request, Response, UcRequest};
use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth};
use std::fmt;
use urxe_types::Extra;

/// The transport service: the top three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification: no transport, but the code that RoCEv2 took for it.
    Cnp = 4,
}

/// One line per opcode: byte, name, body, and the extended headers that the body is made of.
macro_rules! opcodes {
    ($($byte:literal $name:ident { $($body:tt)+ } [$($field:ident: $header:ident),*];)*) => {
        /// A BTH opcode that we know. Whatever else stands in a packet does not become one of
        /// these.
        #[allow(non_camel_case_types)] // the names are the specification's
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($name = $byte,)*
        }

        impl Opcode {
            /// Every opcode there is, in the order of their bytes.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// The opcode that `byte` stands for; `None` for reserved codes and for transports
            /// that we do not speak (RD, XRC).
            pub const fn from_byte(byte: u8) -> Option<Opcode> {
                match byte {
                    $($byte => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// Bytes of BTH and extended headers together.
            pub const fn header_len(self) -> usize {
                match self {
                    $(Opcode::$name => Bth::LEN $(+ $header::LEN)*,)*
                }
            }

            const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => stringify!($name),)*
                }
            }

            #[cfg(test)]
            fn extended_headers(self) -> &'static [&'static str] {
                match self {
                    $(Opcode::$name => &[$(stringify!($header)),*],)*
                }
            }
        }

        impl Body {
            /// The opcode of a packet with this body.
            #[allow(unused_variables)]
            pub const fn opcode(&self) -> Opcode {
                use {Body::*, Part::*, Request::*, Response::*};
                match *self {
                    $($($body)+ => Opcode::$name,)*
                }
            }

            /// What the extended headers of this opcode say that `rest` begins with; they are
            /// taken off it. `None` if it is too short.
            #[inline]
            pub(crate) fn parse(opcode: Opcode, rest: &mut &[u8]) -> Option<Body> {
                use {Body::*, Part::*, Request::*, Response::*};
                Some(match opcode {
                    $(Opcode::$name => {
                        $(let $field = $header::parse(take(rest)?);)*
                        $($body)+
                    })*
                })
            }

            /// The body of this opcode whose extended headers are all zeros.
            pub fn zeroed(opcode: Opcode) -> Body {
                use {Body::*, Part::*, Request::*, Response::*};
                match opcode {
                    $(Opcode::$name => {
                        $(let $field = $header::parse(&[0; $header::LEN]);)*
                        $($body)+
                    })*
                }
            }

            /// Writes the extended headers to the front of `buf`, and returns the opcode.
            #[inline]
            pub(crate) fn emit(&self, buf: &mut [u8]) -> Opcode {
                use {Body::*, Part::*, Request::*, Response::*};
                match *self {
                    $($($body)+ => {
                        let rest = buf;
                        $(let rest = put(rest, &$header::emit(&$field));)*
                        let _ = rest;
                        Opcode::$name
                    })*
                }
            }

            /// Shows the extended headers, each with a space before it.
            pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                use {Body::*, Part::*, Request::*, Response::*};
                match *self {
                    $($($body)+ => {
                        $($header::show(&$field, f)?;)*
                    })*
                }
                Ok(())
            }
        }
    };
}

// WIRE-006, WIRE-007: the order of the headers.
opcodes! {
    0x00 RC_SEND_FIRST { RcRequest(Send(First(()))) } [];
    0x01 RC_SEND_MIDDLE { RcRequest(Send(Middle)) } [];
    0x02 RC_SEND_LAST { RcRequest(Send(Last(Extra::None))) } [];
    0x03 RC_SEND_LAST_IMM { RcRequest(Send(Last(Extra::Imm(imm)))) } [imm: ImmDt];
    0x04 RC_SEND_ONLY { RcRequest(Send(Only((), Extra::None))) } [];
    0x05 RC_SEND_ONLY_IMM { RcRequest(Send(Only((), Extra::Imm(imm)))) } [imm: ImmDt];
    0x06 RC_WRITE_FIRST { RcRequest(Write(First(reth))) } [reth: Reth];
    0x07 RC_WRITE_MIDDLE { RcRequest(Write(Middle)) } [];
    0x08 RC_WRITE_LAST { RcRequest(Write(Last(None))) } [];
    0x09 RC_WRITE_LAST_IMM { RcRequest(Write(Last(Some(imm)))) } [imm: ImmDt];
    0x0a RC_WRITE_ONLY { RcRequest(Write(Only(reth, None))) } [reth: Reth];
    0x0b RC_WRITE_ONLY_IMM { RcRequest(Write(Only(reth, Some(imm)))) } [reth: Reth, imm: ImmDt];
    0x0c RC_READ_REQUEST { RcRequest(Read(reth)) } [reth: Reth];
    0x0d RC_READ_RESPONSE_FIRST { RcResponse(ReadFirst(aeth)) } [aeth: Aeth];
    0x0e RC_READ_RESPONSE_MIDDLE { RcResponse(ReadMiddle) } [];
    0x0f RC_READ_RESPONSE_LAST { RcResponse(ReadLast(aeth)) } [aeth: Aeth];
    0x10 RC_READ_RESPONSE_ONLY { RcResponse(ReadOnly(aeth)) } [aeth: Aeth];
    0x11 RC_ACK { RcResponse(Ack(aeth)) } [aeth: Aeth];
    0x12 RC_ATOMIC_ACK { RcResponse(AtomicAck { aeth, original }) }
        [aeth: Aeth, original: AtomicAckEth];
    0x13 RC_COMPARE_SWAP { RcRequest(CompareSwap(atomic)) } [atomic: AtomicEth];
    0x14 RC_FETCH_ADD { RcRequest(FetchAdd(atomic)) } [atomic: AtomicEth];
    0x16 RC_SEND_LAST_INV { RcRequest(Send(Last(Extra::Invalidate(rkey)))) } [rkey: Ieth];
    0x17 RC_SEND_ONLY_INV { RcRequest(Send(Only((), Extra::Invalidate(rkey)))) } [rkey: Ieth];
    0x1c RC_FLUSH { RcRequest(Flush { feth, reth }) } [feth: Feth, reth: Reth];
    0x1d RC_ATOMIC_WRITE { RcRequest(AtomicWrite(reth)) } [reth: Reth];
    0x20 UC_SEND_FIRST { Uc(UcRequest::Send(First(()))) } [];
    0x21 UC_SEND_MIDDLE { Uc(UcRequest::Send(Middle)) } [];
    0x22 UC_SEND_LAST { Uc(UcRequest::Send(Last(None))) } [];
    0x23 UC_SEND_LAST_IMM { Uc(UcRequest::Send(Last(Some(imm)))) } [imm: ImmDt];
    0x24 UC_SEND_ONLY { Uc(UcRequest::Send(Only((), None))) } [];
    0x25 UC_SEND_ONLY_IMM { Uc(UcRequest::Send(Only((), Some(imm)))) } [imm: ImmDt];
    0x26 UC_WRITE_FIRST { Uc(UcRequest::Write(First(reth))) } [reth: Reth];
    0x27 UC_WRITE_MIDDLE { Uc(UcRequest::Write(Middle)) } [];
    0x28 UC_WRITE_LAST { Uc(UcRequest::Write(Last(None))) } [];
    0x29 UC_WRITE_LAST_IMM { Uc(UcRequest::Write(Last(Some(imm)))) } [imm: ImmDt];
    0x2a UC_WRITE_ONLY { Uc(UcRequest::Write(Only(reth, None))) } [reth: Reth];
    0x2b UC_WRITE_ONLY_IMM { Uc(UcRequest::Write(Only(reth, Some(imm)))) }
        [reth: Reth, imm: ImmDt];
    0x64 UD_SEND_ONLY { Ud(crate::Datagram { deth, imm: None }) } [deth: Deth];
    0x65 UD_SEND_ONLY_IMM { Ud(crate::Datagram { deth, imm: Some(imm) }) }
        [deth: Deth, imm: ImmDt];
    0x81 CNP { Cnp } [];
    // REPAIR-001: of the codes that the specification leaves to manufacturers.
    0xc0 URXE_SELECTIVE_ACK { RcResponse(SelectiveAck { aeth }) } [aeth: Aeth];
}

impl Opcode {
    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Whether a responder of a reliable connection sends it.
    pub fn is_response(self) -> bool {
        matches!(Body::zeroed(self), Body::RcResponse(_))
    }

    /// Whether a requester of a reliable connection sends it.
    pub fn is_rc_request(self) -> bool {
        matches!(Body::zeroed(self), Body::RcRequest(_))
    }

    /// The transport service that it belongs to.
    pub const fn transport(self) -> Transport {
        match self.byte() >> 5 {
            // Those of our own, in the manufacturers' range, are of reliable connections.
            0 | 6 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            _ => Transport::Cnp,
        }
    }
}

/// Takes `N` bytes off the front of what is still to be read.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (header, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(header)
}

/// Writes a header, and gives what is left behind it.
fn put<'a>(buf: &'a mut [u8], header: &[u8]) -> &'a mut [u8] {
    let (front, rest) = buf.split_at_mut(header.len());
    front.copy_from_slice(header);
    rest
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Cnp => "CNP",
        })
    }
}

/// As people say it: `RC WRITE LAST WITH IMMEDIATE`.
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.name().split('_').map(|word| match word {
            "IMM" => "WITH IMMEDIATE",
            "INV" => "WITH INVALIDATE",
            word => word,
        });
        for (i, word) in words.enumerate() {
            write!(f, "{}{word}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes that the specification gives out to the transports that we speak, and our own.
    fn is_assigned(byte: u8) -> bool {
        let rc = matches!(byte, 0x00..=0x14 | 0x16 | 0x17 | 0x1c | 0x1d | 0xc0);
        rc || matches!(byte, 0x20..=0x2b | 0x64 | 0x65 | 0x81)
    }

    #[test]
    fn all_256_bytes_are_an_opcode_or_none() {
        for byte in 0..=255 {
            let Some(opcode) = Opcode::from_byte(byte) else {
                assert!(!is_assigned(byte), "{byte:#04x} is not known");
                continue;
            };
            assert!(is_assigned(byte), "{opcode:?} is not assigned");
            assert_eq!(opcode.byte(), byte);
            assert_eq!(Body::zeroed(opcode).opcode(), opcode);
        }
    }

    #[test]
    fn the_names_are_in_the_order_of_their_bytes() {
        assert!(Opcode::ALL.is_sorted_by_key(|opcode| opcode.byte()));
        let known = (0..=255).filter_map(Opcode::from_byte);
        assert!(known.eq(Opcode::ALL.iter().copied()));
    }

    /// One line per opcode: code, name, whether the responder takes it, headers, length, payload.
    fn describe(opcode: Opcode) -> String {
        let body = Body::zeroed(opcode);
        let headers = opcode.extended_headers().iter();
        let headers = headers.map(|name| name.replace("eth", "ETH").replace("Eth", "ETH"));
        let payload = body.has_payload().then(|| "payload".to_owned());
        format!(
            "{:02x} {opcode}: {} {} {}",
            opcode.byte(),
            if body.is_request() { "request" } else { "response" },
            opcode.header_len(),
            headers.chain(payload).collect::<Vec<String>>().join(" "),
        )
    }

    #[test]
    fn the_whole_table() {
        let table: Vec<String> = Opcode::ALL.iter().map(|opcode| describe(*opcode)).collect();
        let expected = "\
            00 RC SEND FIRST: request 12 payload\n\
            01 RC SEND MIDDLE: request 12 payload\n\
            02 RC SEND LAST: request 12 payload\n\
            03 RC SEND LAST WITH IMMEDIATE: request 16 ImmDt payload\n\
            04 RC SEND ONLY: request 12 payload\n\
            05 RC SEND ONLY WITH IMMEDIATE: request 16 ImmDt payload\n\
            06 RC WRITE FIRST: request 28 RETH payload\n\
            07 RC WRITE MIDDLE: request 12 payload\n\
            08 RC WRITE LAST: request 12 payload\n\
            09 RC WRITE LAST WITH IMMEDIATE: request 16 ImmDt payload\n\
            0a RC WRITE ONLY: request 28 RETH payload\n\
            0b RC WRITE ONLY WITH IMMEDIATE: request 32 RETH ImmDt payload\n\
            0c RC READ REQUEST: request 28 RETH\n\
            0d RC READ RESPONSE FIRST: response 16 AETH payload\n\
            0e RC READ RESPONSE MIDDLE: response 12 payload\n\
            0f RC READ RESPONSE LAST: response 16 AETH payload\n\
            10 RC READ RESPONSE ONLY: response 16 AETH payload\n\
            11 RC ACK: response 16 AETH\n\
            12 RC ATOMIC ACK: response 24 AETH AtomicAckETH\n\
            13 RC COMPARE SWAP: request 40 AtomicETH\n\
            14 RC FETCH ADD: request 40 AtomicETH\n\
            16 RC SEND LAST WITH INVALIDATE: request 16 IETH payload\n\
            17 RC SEND ONLY WITH INVALIDATE: request 16 IETH payload\n\
            1c RC FLUSH: request 32 FETH RETH\n\
            1d RC ATOMIC WRITE: request 28 RETH payload\n\
            20 UC SEND FIRST: request 12 payload\n\
            21 UC SEND MIDDLE: request 12 payload\n\
            22 UC SEND LAST: request 12 payload\n\
            23 UC SEND LAST WITH IMMEDIATE: request 16 ImmDt payload\n\
            24 UC SEND ONLY: request 12 payload\n\
            25 UC SEND ONLY WITH IMMEDIATE: request 16 ImmDt payload\n\
            26 UC WRITE FIRST: request 28 RETH payload\n\
            27 UC WRITE MIDDLE: request 12 payload\n\
            28 UC WRITE LAST: request 12 payload\n\
            29 UC WRITE LAST WITH IMMEDIATE: request 16 ImmDt payload\n\
            2a UC WRITE ONLY: request 28 RETH payload\n\
            2b UC WRITE ONLY WITH IMMEDIATE: request 32 RETH ImmDt payload\n\
            64 UD SEND ONLY: request 20 DETH payload\n\
            65 UD SEND ONLY WITH IMMEDIATE: request 24 DETH ImmDt payload\n\
            81 CNP: response 12 payload\n\
            c0 URXE SELECTIVE ACK: response 16 AETH payload";
        assert_eq!(table.join("\n"), expected);
    }
}
