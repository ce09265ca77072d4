//! Work requests, as a program is told to post them.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A send. Its data lies in the memory that the command names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendWr {
    /// What it does.
    pub op: Operation,
    /// The completion's number.
    pub id: u64,
    /// Offsets and lengths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sges: Vec<(usize, usize)>,
    /// Completes also if it succeeds.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub signaled: bool,
    /// Begins when all READs and atomics before it have ended.
    #[serde(default, skip_serializing_if = "is_not")]
    pub fence: bool,
    /// Asks for an event at the peer.
    #[serde(default, skip_serializing_if = "is_not")]
    pub solicited: bool,
    /// The data is copied as it is posted.
    #[serde(default, skip_serializing_if = "is_not")]
    pub inline: bool,
    /// Immediate data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imm: Option<u32>,
    /// The key to invalidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inv: Option<u32>,
    /// The key of the peer's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rkey: Option<u32>,
    /// An address of the peer's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raddr: Option<u64>,
    /// Bytes of a FLUSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// What is added or compared, in hex: not everybody's JSON has numbers of 64 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operand: Option<String>,
    /// What is put there if it compares, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<String>,
    /// The eight bytes of an ATOMIC WRITE, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The window that is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mw: Option<String>,
    /// What it opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// The address handle of a datagram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ah: Option<String>,
    /// The QP that a datagram is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dqpn: Option<u32>,
    /// The Q_Key of a datagram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qkey: Option<u32>,
}

fn yes() -> bool {
    true
}

fn is_not(flag: &bool) -> bool {
    !flag
}

/// What a send does, by the names of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendWithImm,
    /// SEND that invalidates a key of the peer.
    SendWithInv,
    /// WRITE.
    RdmaWrite,
    /// WRITE with immediate data.
    RdmaWriteWithImm,
    /// READ.
    RdmaRead,
    /// COMPARE-AND-SWAP.
    CmpSwap,
    /// FETCH-AND-ADD.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH, to be seen by all, of a range.
    Flush,
    /// Invalidates a key of its own.
    LocalInv,
    /// Binds a window of type 2.
    BindMw,
}

impl SendWr {
    /// A signaled work request without anything else.
    pub fn new(op: Operation, id: u64) -> SendWr {
        SendWr {
            op,
            id,
            sges: Vec::new(),
            signaled: true,
            fence: false,
            solicited: false,
            inline: false,
            imm: None,
            inv: None,
            rkey: None,
            raddr: None,
            len: None,
            operand: None,
            swap: None,
            data: None,
            mw: None,
            window: None,
            ah: None,
            dqpn: None,
            qkey: None,
        }
    }

    /// A SEND of this range of its memory.
    pub fn send(id: u64, from: Range<usize>) -> SendWr {
        SendWr { sges: vec![entry(from)], ..SendWr::new(Operation::Send, id) }
    }

    /// A WRITE of this range of its memory.
    pub fn write(id: u64, from: Range<usize>, raddr: u64, rkey: u32) -> SendWr {
        SendWr { op: Operation::RdmaWrite, ..SendWr::send(id, from) }.at(raddr, rkey)
    }

    /// A READ to this range of its memory.
    pub fn read(id: u64, to: Range<usize>, raddr: u64, rkey: u32) -> SendWr {
        SendWr { op: Operation::RdmaRead, ..SendWr::send(id, to) }.at(raddr, rkey)
    }

    /// A COMPARE-AND-SWAP, whose result goes to the eight bytes at `to`.
    pub fn cmp_swap(id: u64, to: usize, raddr: u64, rkey: u32, [was, new]: [u64; 2]) -> SendWr {
        let (operand, swap) = (Some(format!("{was:#x}")), Some(format!("{new:#x}")));
        let op = Operation::CmpSwap;
        SendWr { op, operand, swap, ..SendWr::send(id, to..to + 8) }.at(raddr, rkey)
    }

    /// A FETCH-AND-ADD, whose result goes to the eight bytes at `to`.
    pub fn fetch_add(id: u64, to: usize, raddr: u64, rkey: u32, add: u64) -> SendWr {
        let operand = Some(format!("{add:#x}"));
        let op = Operation::FetchAdd;
        SendWr { op, operand, ..SendWr::send(id, to..to + 8) }.at(raddr, rkey)
    }

    /// An ATOMIC WRITE of eight bytes, as they stand in memory.
    pub fn atomic_write(id: u64, raddr: u64, rkey: u32, bytes: [u8; 8]) -> SendWr {
        let data = Some(format!("{:016x}", u64::from_be_bytes(bytes)));
        SendWr { data, ..SendWr::new(Operation::AtomicWrite, id) }.at(raddr, rkey)
    }

    /// A FLUSH of a range.
    pub fn flush(id: u64, raddr: u64, rkey: u32, len: u64) -> SendWr {
        SendWr { len: Some(len), ..SendWr::new(Operation::Flush, id) }.at(raddr, rkey)
    }

    /// Invalidates a key of its own.
    pub fn local_inv(id: u64, key: u32) -> SendWr {
        SendWr { inv: Some(key), ..SendWr::new(Operation::LocalInv, id) }
    }

    /// Binds a window of type 2.
    pub fn bind(id: u64, mw: &str, window: Window) -> SendWr {
        let mw = Some(mw.to_string());
        SendWr { mw, window: Some(window), ..SendWr::new(Operation::BindMw, id) }
    }

    fn at(self, raddr: u64, rkey: u32) -> SendWr {
        SendWr { raddr: Some(raddr), rkey: Some(rkey), ..self }
    }

    /// With immediate data.
    pub fn imm(self, imm: u32) -> SendWr {
        let op = match self.op {
            Operation::RdmaWrite => Operation::RdmaWriteWithImm,
            Operation::Send => Operation::SendWithImm,
            other => other,
        };
        SendWr { op, imm: Some(imm), ..self }
    }

    /// A SEND that invalidates a key of the peer.
    pub fn inv(self, rkey: u32) -> SendWr {
        SendWr { op: Operation::SendWithInv, inv: Some(rkey), ..self }
    }

    /// Without a completion if it succeeds.
    pub fn unsignaled(self) -> SendWr {
        SendWr { signaled: false, ..self }
    }

    /// Begins when all READs and atomics before it have ended.
    pub fn fence(self) -> SendWr {
        SendWr { fence: true, ..self }
    }

    /// Asks for an event at the peer.
    pub fn solicited(self) -> SendWr {
        SendWr { solicited: true, ..self }
    }

    /// The data is copied as it is posted.
    pub fn inline(self) -> SendWr {
        SendWr { inline: true, ..self }
    }

    /// A datagram to this QP.
    pub fn to(self, ah: &str, dqpn: u32, qkey: u32) -> SendWr {
        SendWr { ah: Some(ah.to_string()), dqpn: Some(dqpn), qkey: Some(qkey), ..self }
    }
}

fn entry(range: Range<usize>) -> (usize, usize) {
    (range.start, range.len())
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecvWr {
    /// The completion's number.
    pub id: u64,
    /// Offsets and lengths.
    pub sges: Vec<(usize, usize)>,
}

impl RecvWr {
    /// A receive to this range of its memory.
    pub fn new(id: u64, to: Range<usize>) -> RecvWr {
        RecvWr { id, sges: vec![entry(to)] }
    }
}

/// What of a memory region a window opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The region.
    pub of: String,
    /// The first byte.
    pub off: usize,
    /// Bytes.
    pub len: usize,
    /// What the peer may do, as `ibv_access_flags`.
    pub access: u32,
}

/// A number of 64 bits in hex; `None` if it is none.
pub fn number(text: Option<&str>) -> Option<u64> {
    let text = text?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}
