//! Work requests: `ibv_send_wr` and `ibv_recv_wr`.
//!
//! These are plain, already decoded values. The rules that need the QP or a memory key (bounds,
//! rights, limits) are checked by the requester and the responder when the work is executed.

use crate::{Access, AddressVector, AhId, FlushPlacement, FlushSelectivity, Lkey, Qkey, Qpn, Rkey};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A stretch of registered memory: `ibv_sge`, and its 16 bytes in a ring.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Sge {
    /// Address in the program's terms (the MR's `iova` space).
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the MR that holds it.
    pub lkey: Lkey,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with what the last packet carries besides the data.
    Send(Extra),
    /// RDMA WRITE to `remote_addr`, with immediate data if given (the four wire bytes as a
    /// big-endian number).
    Write {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: Rkey,
        /// Immediate data; consumes a receive at the responder.
        imm: Option<u32>,
    },
    /// RDMA READ from `remote_addr` into the scatter list.
    Read {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: Rkey,
    },
    /// ATOMIC COMPARE-AND-SWAP of 8 bytes.
    CompareSwap {
        /// Address at the responder, a multiple of 8.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: Rkey,
        /// Value that must be there.
        compare: u64,
        /// Value put there if it was.
        swap: u64,
    },
    /// ATOMIC FETCH-AND-ADD of 8 bytes.
    FetchAdd {
        /// Address at the responder, a multiple of 8.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: Rkey,
        /// Value added, wrapping.
        add: u64,
    },
    /// ATOMIC WRITE of the 8 bytes of the gather list (IBTA 1.5).
    AtomicWrite {
        /// Address at the responder, a multiple of 8.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: Rkey,
    },
    /// FLUSH: earlier WRITEs to the range get as far as `placement` says (IBTA 1.5).
    Flush {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: Rkey,
        /// Bytes.
        length: u32,
        /// How far they get.
        placement: FlushPlacement,
        /// The range, or the whole MR.
        selectivity: FlushSelectivity,
    },
    /// Binds a memory window; nothing is sent.
    BindMw {
        /// The window's present rkey.
        mw: Rkey,
        /// Gives the low 8 bits of the rkey that it shall have; the others stay.
        new_rkey: Rkey,
        /// The MR that it opens a part of.
        mr: Lkey,
        /// First byte, in the MR's terms.
        addr: u64,
        /// Bytes; 0 closes the window.
        length: u64,
        /// What the peer may do.
        access: Access,
    },
    /// Closes a type 2 window that is bound on this QP; nothing is sent.
    LocalInvalidate {
        /// The window's present rkey.
        key: Rkey,
    },
}

impl Default for SendOp {
    /// A SEND of data alone.
    fn default() -> SendOp {
        SendOp::Send(Extra::None)
    }
}

/// Where a datagram goes: `wr.ud` of `ibv_send_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub path: DatagramPath,
    /// The QP there.
    pub qpn: Qpn,
    /// Its Q_Key. With the high bit set, the sender's own QP's is sent instead (IBTA 10.2.5).
    pub qkey: Qkey,
}

/// The path of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramPath {
    /// An address handle of the QP's protection domain.
    Handle(AhId),
    /// Told with the work request itself, as older providers do.
    Vector(AddressVector),
}

/// What the last packet of a SEND carries besides its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data (the four wire bytes as a big-endian number).
    Imm(u32),
    /// An rkey that the responder shall invalidate.
    Invalidate(Rkey),
}

/// A send work request without its data: as a program posts it, and as the engine does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendWr {
    /// The program's own number, given back in the completion.
    pub wr_id: u64,
    /// The operation and its arguments.
    pub op: SendOp,
    /// Where it goes, on a UD QP; ignored on others. Only a SEND can have it.
    pub to: Option<Destination>,
    /// `IBV_SEND_FENCE`: starts only when all READs, atomics, ATOMIC WRITEs and FLUSHes before it
    /// have completed.
    pub fence: bool,
    /// `IBV_SEND_SIGNALED`, or the QP's `sq_sig_all`: completes with a CQE also on success.
    pub signaled: bool,
    /// `IBV_SEND_SOLICITED`: asks for an event at the responder.
    pub solicited: bool,
}

/// Where the data of a send is that is posted.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here: `IBV_SEND_INLINE`. It is copied, and may be changed as soon as it is posted.
    Inline(&'a [u8]),
}

/// A send work request with its data, as the engine takes it from the send queue.
///
/// The vectors are reused from one work request to the next, so that taking work allocates
/// nothing once a QP is warm: who takes it clears and refills them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendWqe {
    /// What is asked for.
    pub wr: SendWr,
    /// Where the data is, or is to be put. Ignored when `inline` is set.
    pub sges: Vec<Sge>,
    /// `IBV_SEND_INLINE`: the data itself.
    pub inline: Option<Vec<u8>>,
}

/// A receive work request as the engine takes it from a receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvWqe {
    /// The program's own number, given back in the completion.
    pub wr_id: u64,
    /// Where the message is to be put.
    pub sges: Vec<Sge>,
}

/// A work request that has no entry in a queue, or an entry that is no work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The operation does not exist, or is not provided.
    #[error("opcode {opcode} is no operation of this device")]
    Opcode {
        /// What stands there.
        opcode: u32,
    },
    /// More SGEs than the queue was made for.
    #[error("{num_sge} SGEs, but the queue was made for {max_sge}")]
    TooManySges {
        /// What stands there.
        num_sge: u32,
        /// What was granted.
        max_sge: u32,
    },
    /// More inline data than the queue was made for.
    #[error("{length} bytes of inline data, but the queue was made for {max_inline}")]
    InlineTooLong {
        /// What stands there.
        length: u32,
        /// What was granted.
        max_inline: u32,
    },
    /// The data of a READ or an atomic comes from the peer; it cannot be given with the request.
    #[error("opcode {opcode} with inline data, which only sends and writes can have")]
    InlineNotAllowed {
        /// The operation.
        opcode: u32,
    },
}
