//! BTH opcodes: a transport, an operation and a position within the message.
//!
//! ```text
//!   7   6   5   4   3   2   1   0
//! +-----------+-------------------+
//! | transport | operation + place |
//! +-----------+-------------------+
//! ```
//!
//! Everything that follows from an opcode (which headers come, in which order, whether there is
//! a payload) is derived from those three here; there is no table to keep in step.

use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth};
use std::fmt;

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

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND, or the part of one that shows nothing else.
    Send,
    /// The end of a SEND with immediate data.
    SendImm,
    /// The end of a SEND that invalidates an rkey.
    SendInv,
    /// RDMA WRITE, or the part of one that shows nothing else.
    Write,
    /// The end of an RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledgement, positive or negative.
    Ack,
    /// Acknowledgement of an atomic, with the value that was there.
    AtomicAck,
    /// COMPARE AND SWAP of 8 bytes.
    CompareSwap,
    /// FETCH AND ADD of 8 bytes.
    FetchAdd,
    /// FLUSH: makes earlier writes visible or persistent.
    Flush,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message in one packet.
    Only,
}

impl Position {
    /// Whether a message begins here: first or only.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here: last or only.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// A BTH opcode that we know. Whatever else stands in a packet does not become one of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// The named opcodes: transport, operation, position.
macro_rules! opcodes {
    ($($name:ident: $transport:ident $operation:ident $position:ident;)*) => {
        #[allow(missing_docs)] // the names say it all
        impl Opcode {
            $(pub const $name: Opcode = match Opcode::new(
                Transport::$transport,
                Operation::$operation,
                Position::$position,
            ) {
                Some(opcode) => opcode,
                None => panic!("no such opcode"),
            };)*

            /// Every opcode there is, in the order of their bytes.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];
        }
    };
}

opcodes! {
    RC_SEND_FIRST: Rc Send First;
    RC_SEND_MIDDLE: Rc Send Middle;
    RC_SEND_LAST: Rc Send Last;
    RC_SEND_LAST_IMM: Rc SendImm Last;
    RC_SEND_ONLY: Rc Send Only;
    RC_SEND_ONLY_IMM: Rc SendImm Only;
    RC_WRITE_FIRST: Rc Write First;
    RC_WRITE_MIDDLE: Rc Write Middle;
    RC_WRITE_LAST: Rc Write Last;
    RC_WRITE_LAST_IMM: Rc WriteImm Last;
    RC_WRITE_ONLY: Rc Write Only;
    RC_WRITE_ONLY_IMM: Rc WriteImm Only;
    RC_READ_REQUEST: Rc ReadRequest Only;
    RC_READ_RESPONSE_FIRST: Rc ReadResponse First;
    RC_READ_RESPONSE_MIDDLE: Rc ReadResponse Middle;
    RC_READ_RESPONSE_LAST: Rc ReadResponse Last;
    RC_READ_RESPONSE_ONLY: Rc ReadResponse Only;
    RC_ACK: Rc Ack Only;
    RC_ATOMIC_ACK: Rc AtomicAck Only;
    RC_COMPARE_SWAP: Rc CompareSwap Only;
    RC_FETCH_ADD: Rc FetchAdd Only;
    RC_SEND_LAST_INV: Rc SendInv Last;
    RC_SEND_ONLY_INV: Rc SendInv Only;
    RC_FLUSH: Rc Flush Only;
    RC_ATOMIC_WRITE: Rc AtomicWrite Only;
    UC_SEND_FIRST: Uc Send First;
    UC_SEND_MIDDLE: Uc Send Middle;
    UC_SEND_LAST: Uc Send Last;
    UC_SEND_LAST_IMM: Uc SendImm Last;
    UC_SEND_ONLY: Uc Send Only;
    UC_SEND_ONLY_IMM: Uc SendImm Only;
    UC_WRITE_FIRST: Uc Write First;
    UC_WRITE_MIDDLE: Uc Write Middle;
    UC_WRITE_LAST: Uc Write Last;
    UC_WRITE_LAST_IMM: Uc WriteImm Last;
    UC_WRITE_ONLY: Uc Write Only;
    UC_WRITE_ONLY_IMM: Uc WriteImm Only;
    UD_SEND_ONLY: Ud Send Only;
    UD_SEND_ONLY_IMM: Ud SendImm Only;
    CNP: Cnp Cnp Only;
}

impl Opcode {
    /// The opcode of these three, if there is one.
    pub const fn new(
        transport: Transport,
        operation: Operation,
        position: Position,
    ) -> Option<Opcode> {
        let low = match (operation, position) {
            (Operation::Send, Position::First) => 0x00,
            (Operation::Send, Position::Middle) => 0x01,
            (Operation::Send, Position::Last) => 0x02,
            (Operation::SendImm, Position::Last) => 0x03,
            (Operation::Send, Position::Only) => 0x04,
            (Operation::SendImm, Position::Only) => 0x05,
            (Operation::Write, Position::First) => 0x06,
            (Operation::Write, Position::Middle) => 0x07,
            (Operation::Write, Position::Last) => 0x08,
            (Operation::WriteImm, Position::Last) => 0x09,
            (Operation::Write, Position::Only) => 0x0a,
            (Operation::WriteImm, Position::Only) => 0x0b,
            (Operation::ReadRequest, Position::Only) => 0x0c,
            (Operation::ReadResponse, Position::First) => 0x0d,
            (Operation::ReadResponse, Position::Middle) => 0x0e,
            (Operation::ReadResponse, Position::Last) => 0x0f,
            (Operation::ReadResponse, Position::Only) => 0x10,
            (Operation::Ack, Position::Only) => 0x11,
            (Operation::AtomicAck, Position::Only) => 0x12,
            (Operation::CompareSwap, Position::Only) => 0x13,
            (Operation::FetchAdd, Position::Only) => 0x14,
            (Operation::SendInv, Position::Last) => 0x16,
            (Operation::SendInv, Position::Only) => 0x17,
            (Operation::Flush, Position::Only) => 0x1c,
            (Operation::AtomicWrite, Position::Only) => 0x1d,
            (Operation::Cnp, Position::Only) => 0x01,
            _ => return None,
        };
        let exists = match transport {
            Transport::Rc => !matches!(operation, Operation::Cnp),
            Transport::Uc => matches!(
                operation,
                Operation::Send | Operation::SendImm | Operation::Write | Operation::WriteImm
            ),
            Transport::Ud => {
                matches!(operation, Operation::Send | Operation::SendImm)
                    && matches!(position, Position::Only)
            }
            Transport::Cnp => matches!(operation, Operation::Cnp),
        };
        if exists { Some(Opcode((transport as u8) << 5 | low)) } else { None }
    }

    /// The opcode that `byte` stands for; `None` for reserved codes and for transports that we
    /// do not speak (RD, XRC).
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        match KNOWN[byte as usize] {
            true => Some(Opcode(byte)),
            false => None,
        }
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// The transport service.
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            _ => Transport::Cnp,
        }
    }

    /// What the packet does.
    pub const fn operation(self) -> Operation {
        MEANING[self.0 as usize].0
    }

    /// Where in its message the packet stands.
    pub const fn position(self) -> Position {
        MEANING[self.0 as usize].1
    }

    const fn decode_operation(self) -> Operation {
        if matches!(self.transport(), Transport::Cnp) {
            return Operation::Cnp;
        }
        match self.0 & 0x1f {
            0x00 | 0x01 | 0x02 | 0x04 => Operation::Send,
            0x03 | 0x05 => Operation::SendImm,
            0x06 | 0x07 | 0x08 | 0x0a => Operation::Write,
            0x09 | 0x0b => Operation::WriteImm,
            0x0c => Operation::ReadRequest,
            0x0d..=0x10 => Operation::ReadResponse,
            0x11 => Operation::Ack,
            0x12 => Operation::AtomicAck,
            0x13 => Operation::CompareSwap,
            0x14 => Operation::FetchAdd,
            0x16 | 0x17 => Operation::SendInv,
            0x1c => Operation::Flush,
            _ => Operation::AtomicWrite,
        }
    }

    const fn decode_position(self) -> Position {
        if matches!(self.transport(), Transport::Cnp) {
            return Position::Only;
        }
        match self.0 & 0x1f {
            0x00 | 0x06 | 0x0d => Position::First,
            0x01 | 0x07 | 0x0e => Position::Middle,
            0x02 | 0x03 | 0x08 | 0x09 | 0x0f | 0x16 => Position::Last,
            _ => Position::Only,
        }
    }

    /// Whether the responder handles it: everything but responses, ACKs and CNPs.
    pub const fn is_request(self) -> bool {
        !matches!(
            self.operation(),
            Operation::ReadResponse | Operation::Ack | Operation::AtomicAck | Operation::Cnp
        )
    }

    /// Whether a DETH follows the BTH: every datagram's does.
    pub const fn has_deth(self) -> bool {
        matches!(self.transport(), Transport::Ud)
    }

    /// Whether a FETH comes.
    pub const fn has_feth(self) -> bool {
        matches!(self.operation(), Operation::Flush)
    }

    /// Whether a RETH comes: where an address has to be named, which a WRITE does once, at its
    /// start.
    pub const fn has_reth(self) -> bool {
        match self.operation() {
            Operation::Write | Operation::WriteImm => self.position().starts(),
            Operation::ReadRequest | Operation::Flush | Operation::AtomicWrite => true,
            _ => false,
        }
    }

    /// Whether an AtomicETH comes.
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self.operation(), Operation::CompareSwap | Operation::FetchAdd)
    }

    /// Whether an AETH comes: in ACKs, and in all READ responses but the middle ones.
    pub const fn has_aeth(self) -> bool {
        match self.operation() {
            Operation::Ack | Operation::AtomicAck => true,
            Operation::ReadResponse => !matches!(self.position(), Position::Middle),
            _ => false,
        }
    }

    /// Whether an AtomicAckETH comes.
    pub const fn has_atomic_ack_eth(self) -> bool {
        matches!(self.operation(), Operation::AtomicAck)
    }

    /// Whether immediate data comes.
    pub const fn has_imm(self) -> bool {
        matches!(self.operation(), Operation::SendImm | Operation::WriteImm)
    }

    /// Whether an IETH comes.
    pub const fn has_ieth(self) -> bool {
        matches!(self.operation(), Operation::SendInv)
    }

    /// Whether bytes may follow the headers. A CNP's 16 reserved bytes count as payload.
    pub const fn has_payload(self) -> bool {
        matches!(
            self.operation(),
            Operation::Send
                | Operation::SendImm
                | Operation::SendInv
                | Operation::Write
                | Operation::WriteImm
                | Operation::ReadResponse
                | Operation::AtomicWrite
                | Operation::Cnp
        )
    }

    /// Whether anything comes between BTH and payload; in the middle of a message nothing does.
    pub const fn has_extended_headers(self) -> bool {
        self.header_len() > Bth::LEN
    }

    /// Bytes of BTH and extended headers together.
    pub const fn header_len(self) -> usize {
        HEADER_LEN[self.0 as usize] as usize
    }

    const fn sum_header_len(self) -> usize {
        const fn if_present(present: bool, len: usize) -> usize {
            if present { len } else { 0 }
        }
        Bth::LEN
            + if_present(self.has_deth(), Deth::LEN)
            + if_present(self.has_feth(), Feth::LEN)
            + if_present(self.has_reth(), Reth::LEN)
            + if_present(self.has_atomic_eth(), AtomicEth::LEN)
            + if_present(self.has_aeth(), Aeth::LEN)
            + if_present(self.has_atomic_ack_eth(), AtomicAckEth::LEN)
            + if_present(self.has_imm(), ImmDt::LEN)
            + if_present(self.has_ieth(), Ieth::LEN)
    }
}

/// Which bytes are opcodes: computed from [`Opcode::ALL`] at compile time.
static KNOWN: [bool; 256] = {
    let mut known = [false; 256];
    let mut i = 0;
    while i < Opcode::ALL.len() {
        known[Opcode::ALL[i].0 as usize] = true;
        i += 1;
    }
    known
};

/// Operation and position by opcode byte, which every packet is asked for several times: computed
/// at compile time, anything where there is no opcode.
static MEANING: [(Operation, Position); 256] = {
    let mut meaning = [(Operation::Cnp, Position::Only); 256];
    let mut i = 0;
    while i < Opcode::ALL.len() {
        let opcode = Opcode::ALL[i];
        meaning[opcode.0 as usize] = (opcode.decode_operation(), opcode.decode_position());
        i += 1;
    }
    meaning
};

/// Header bytes by opcode byte: computed at compile time, 0 where there is no opcode.
static HEADER_LEN: [u8; 256] = {
    let mut len = [0; 256];
    let mut i = 0;
    while i < Opcode::ALL.len() {
        len[Opcode::ALL[i].0 as usize] = Opcode::ALL[i].sum_header_len() as u8;
        i += 1;
    }
    len
};

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
        let (verb, with) = match self.operation() {
            Operation::Cnp => return f.write_str("CNP"),
            Operation::ReadRequest => return write!(f, "{} READ REQUEST", self.transport()),
            Operation::Ack => return write!(f, "{} ACK", self.transport()),
            Operation::AtomicAck => return write!(f, "{} ATOMIC ACK", self.transport()),
            Operation::CompareSwap => return write!(f, "{} COMPARE SWAP", self.transport()),
            Operation::FetchAdd => return write!(f, "{} FETCH ADD", self.transport()),
            Operation::Flush => return write!(f, "{} FLUSH", self.transport()),
            Operation::AtomicWrite => return write!(f, "{} ATOMIC WRITE", self.transport()),
            Operation::Send => ("SEND", ""),
            Operation::SendImm => ("SEND", " WITH IMMEDIATE"),
            Operation::SendInv => ("SEND", " WITH INVALIDATE"),
            Operation::Write => ("WRITE", ""),
            Operation::WriteImm => ("WRITE", " WITH IMMEDIATE"),
            Operation::ReadResponse => ("READ RESPONSE", ""),
        };
        let position = match self.position() {
            Position::First => "FIRST",
            Position::Middle => "MIDDLE",
            Position::Last => "LAST",
            Position::Only => "ONLY",
        };
        write!(f, "{} {verb} {position}{with}", self.transport())
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x} {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes that the specification gives out to the transports that we speak.
    fn is_assigned(byte: u8) -> bool {
        matches!(byte, 0x00..=0x14 | 0x16 | 0x17 | 0x1c | 0x1d | 0x20..=0x2b | 0x64 | 0x65 | 0x81)
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
            let (transport, operation) = (opcode.transport(), opcode.operation());
            assert_eq!(Opcode::new(transport, operation, opcode.position()), Some(opcode));
        }
    }

    #[test]
    fn the_names_are_in_the_order_of_their_bytes() {
        assert!(Opcode::ALL.is_sorted_by_key(|opcode| opcode.byte()));
        let known = (0..=255).filter_map(Opcode::from_byte);
        assert!(known.eq(Opcode::ALL.iter().copied()));
    }

    #[test]
    fn objects_of_unknown_kinds_cannot_be_made() {
        use {Operation::*, Position::*, Transport::*};
        for (transport, operation, position) in [
            (Rc, SendImm, First),
            (Rc, ReadRequest, First),
            (Rc, Operation::Cnp, Only),
            (Uc, SendInv, Only),
            (Uc, ReadRequest, Only),
            (Uc, Ack, Only),
            (Ud, Send, First),
            (Ud, Write, Only),
            (Transport::Cnp, Send, Middle),
        ] {
            assert_eq!(Opcode::new(transport, operation, position), None);
        }
    }

    /// One line per opcode: code, name, which engine takes it, headers, length, payload.
    fn describe(opcode: Opcode) -> String {
        let headers: Vec<&str> = [
            (opcode.has_deth(), "DETH"),
            (opcode.has_feth(), "FETH"),
            (opcode.has_reth(), "RETH"),
            (opcode.has_atomic_eth(), "AtomicETH"),
            (opcode.has_aeth(), "AETH"),
            (opcode.has_atomic_ack_eth(), "AtomicAckETH"),
            (opcode.has_imm(), "ImmDt"),
            (opcode.has_ieth(), "IETH"),
            (opcode.has_payload(), "payload"),
        ]
        .into_iter()
        .filter_map(|(present, name)| present.then_some(name))
        .collect();
        format!(
            "{:02x} {opcode}: {} {} {}",
            opcode.byte(),
            if opcode.is_request() { "request" } else { "response" },
            opcode.header_len(),
            headers.join(" "),
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
            81 CNP: response 12 payload";
        assert_eq!(table.join("\n"), expected);
    }

    #[test]
    fn a_message_is_one_packet_or_first_middles_last() {
        assert!(Position::Only.starts() && Position::Only.ends());
        assert!(Position::First.starts() && !Position::First.ends());
        assert!(!Position::Middle.starts() && !Position::Middle.ends());
        assert!(!Position::Last.starts() && Position::Last.ends());
    }
}
