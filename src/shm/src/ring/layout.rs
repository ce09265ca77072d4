//! The bytes of the rings: the user ABI of the kernel's `rdma_rxe` (`rdma/rdma_user_rxe.h`).
//!
//! A ring is a header of 384 bytes and then `slots` elements of one power-of-two size, at least
//! 64 bytes each. The indices stay in `[0, slots)`; equal indices mean empty, and one slot is
//! always left free, so that a full ring can be told from an empty one.
//!
//! ```text
//!   0  log2_elem_size  index_mask  flags*           set by the daemon, read by all
//! 128  producer                                     moved by whoever produces
//! 256  consumer                                     moved by whoever consumes
//! 320  armed*                                       completion queues: wants an event
//! 384  element 0, element 1, ...
//! ```
//!
//! The words marked `*` are ours: they stand in padding that no version of `librxe` touches.
//! Everything here is in the machine's own byte order, except where a field says otherwise.

use std::mem::{align_of, offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The head of every ring: `rxe_queue_buf`.
///
/// Nobody makes a reference to one in shared memory; the type states the offsets.
#[repr(C)]
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct QueueHeader {
    /// Base-2 logarithm of the element size in bytes.
    pub log2_elem_size: u32,
    /// Number of slots minus 1.
    pub index_mask: u32,
    /// Ours. What the daemon wants of the program: [`FLAG_RING_AFTER_POST`].
    pub flags: u32,
    pad_1: [u32; 29],
    /// Index of the slot that is filled next.
    pub producer: u32,
    pad_2: [u32; 31],
    /// Index of the oldest slot in use.
    pub consumer: u32,
    pad_3: [u32; 15],
    /// Ours, in a cache line of its own because a polling program moves `consumer` all the time.
    /// On a CQ: whether the program waits for an event, one of the `ARMED_` values.
    pub armed: u32,
    pad_4: [u32; 15],
}

/// In [`QueueHeader::flags`] of a receive queue: the QP is in the error state, where nothing
/// that arrives would make the daemon look at the queue; ring the doorbell after posting, so
/// that the receives are flushed.
pub const FLAG_RING_AFTER_POST: u32 = 1;

/// In [`QueueHeader::armed`]: no event is wanted.
pub const ARMED_NONE: u32 = 0;
/// In [`QueueHeader::armed`]: the next completion shall cause an event.
pub const ARMED_ANY: u32 = 1;
/// In [`QueueHeader::armed`]: the next completion that is solicited or an error shall.
pub const ARMED_SOLICITED: u32 = 2;

/// How far a work request has come: `rxe_dma_info`. Only `length` (for inline data) and
/// `num_sge` mean anything to us; the rest is the kernel driver's scratch space.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct DmaInfo {
    /// Bytes in all. Right for inline data; for scatter lists the sum is taken instead, because
    /// `librxe` 44 stores a wrong one (`wr_set_sge_list`).
    pub length: u32,
    /// Bytes left.
    pub resid: u32,
    /// Index of the current SGE.
    pub cur_sge: u32,
    /// Number of SGEs that follow.
    pub num_sge: u32,
    /// Offset into the current SGE.
    pub sge_offset: u32,
    /// Not used.
    pub reserved: u32,
}

/// A send work request, without what follows it: `rxe_send_wqe`. Behind it stand the SGEs, or
/// the inline bytes themselves.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct SendEntry {
    /// The program's own number.
    pub wr_id: u64,
    /// Not used.
    pub reserved: u32,
    /// One of the `WR_` numbers.
    pub opcode: u32,
    /// Any of the `SEND_` bits.
    pub send_flags: u32,
    /// Immediate data, the four wire bytes as they stand in memory; or the rkey to invalidate.
    pub imm_or_rkey: u32,
    /// What the operation needs to know: [`RdmaArgs`], [`AtomicArgs`], [`UdArgs`], [`MwArgs`] or
    /// [`FlushArgs`], by opcode and QP type.
    pub args: [u64; 15],
    /// Scratch space of the kernel driver.
    pub status: u32,
    /// Scratch space of the kernel driver; may hold junk.
    pub state: u32,
    /// The remote address again.
    pub iova: u64,
    /// Scratch space of the kernel driver: mask, PSNs, ACK length, `ssn` and `has_rd_atomic`.
    pub scratch: [u32; 6],
    /// Length and number of SGEs.
    pub dma: DmaInfo,
}

/// A receive work request, without the SGEs that follow it: `rxe_recv_wqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct RecvEntry {
    /// The program's own number.
    pub wr_id: u64,
    /// Not used.
    pub reserved: u64,
    /// Length and number of SGEs.
    pub dma: DmaInfo,
}

/// [`SendEntry::args`] of RDMA WRITE and RDMA READ.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct RdmaArgs {
    /// Address at the responder.
    pub remote_addr: u64,
    /// Key of the responder's memory.
    pub rkey: u32,
    /// Not used.
    pub reserved: u32,
}

/// [`SendEntry::args`] of ATOMIC COMPARE-AND-SWAP and FETCH-AND-ADD.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct AtomicArgs {
    /// Address at the responder.
    pub remote_addr: u64,
    /// The value compared with, or the one added.
    pub compare_add: u64,
    /// The value put there if the comparison held.
    pub swap: u64,
    /// Key of the responder's memory.
    pub rkey: u32,
    /// Not used.
    pub reserved: u32,
}

/// [`SendEntry::args`] of sends on a UD QP.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct UdArgs {
    /// The QP sent to.
    pub remote_qpn: u32,
    /// Its queue key.
    pub remote_qkey: u32,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Not used.
    pub reserved: u16,
    /// Number of the address handle, or 0 if the path stands in `av`.
    pub ah_num: u32,
    /// Not used.
    pub pad: [u32; 4],
    /// The path, used only when `ah_num` is 0.
    pub av: Av,
}

/// [`SendEntry::args`] of a memory window bind.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct MwArgs {
    /// First byte of the window.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Local key of the MR it lies in.
    pub mr_lkey: u32,
    /// The window's present rkey.
    pub mw_rkey: u32,
    /// The window's new rkey.
    pub rkey: u32,
    /// What the peer may do: access bits.
    pub access: u32,
}

/// [`SendEntry::args`] of a FLUSH (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct FlushArgs {
    /// Address at the responder.
    pub remote_addr: u64,
    /// Bytes to flush.
    pub length: u32,
    /// Key of the responder's memory.
    pub rkey: u32,
    /// Placement type bits.
    pub kind: u8,
    /// Selectivity: a range, or the whole MR.
    pub level: u8,
    /// Not used.
    pub pad: [u8; 6],
}

/// A path to a peer: `rxe_av`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Av {
    /// Port number.
    pub port: u8,
    /// [`NETWORK_IPV4`] or [`NETWORK_IPV6`].
    pub network_type: u8,
    /// Ethernet address of the next hop; not used by us.
    pub dmac: [u8; 6],
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Index of our own GID.
    pub sgid_index: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Not used.
    pub pad: u8,
    /// Our own address: `sockaddr_in` or `sockaddr_in6`.
    pub sgid_addr: [u32; 7],
    /// The peer's address: `sockaddr_in` or `sockaddr_in6`.
    pub dgid_addr: [u32; 7],
}

/// A completion as `librxe` copies it out: `ib_uverbs_wc`. It is the first 48 of a slot's
/// 64 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
pub struct CqEntry {
    /// The work request's own number.
    pub wr_id: u64,
    /// How it ended: `ibv_wc_status`.
    pub status: u32,
    /// A [`WcOpcode`](urxe_types::WcOpcode)'s number.
    pub opcode: u32,
    /// Why it failed, in the provider's own terms.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, the four wire bytes as they stand in memory; or the invalidated rkey.
    pub imm_or_rkey: u32,
    /// The QP it belongs to.
    pub qp_num: u32,
    /// The QP that sent, for a receive.
    pub src_qp: u32,
    /// Any of the `WC_WITH_` and `WC_GRH` bits.
    pub wc_flags: u32,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Not used by RoCE.
    pub slid: u16,
    /// Of a datagram: [`SL_IPV4`] or [`SL_IPV6`].
    pub sl: u8,
    /// Not used by RoCE.
    pub dlid_path_bits: u8,
    pub port_num: u8,
    /// Not used.
    pub reserved: u8,
}

/// [`SendEntry::opcode`]: `IBV_WR_RDMA_WRITE`.
pub const WR_RDMA_WRITE: u32 = 0;
/// [`SendEntry::opcode`]: `IBV_WR_RDMA_WRITE_WITH_IMM`.
pub const WR_RDMA_WRITE_WITH_IMM: u32 = 1;
/// [`SendEntry::opcode`]: `IBV_WR_SEND`.
pub const WR_SEND: u32 = 2;
/// [`SendEntry::opcode`]: `IBV_WR_SEND_WITH_IMM`.
pub const WR_SEND_WITH_IMM: u32 = 3;
/// [`SendEntry::opcode`]: `IBV_WR_RDMA_READ`.
pub const WR_RDMA_READ: u32 = 4;
/// [`SendEntry::opcode`]: `IBV_WR_ATOMIC_CMP_AND_SWP`.
pub const WR_COMPARE_SWAP: u32 = 5;
/// [`SendEntry::opcode`]: `IBV_WR_ATOMIC_FETCH_AND_ADD`.
pub const WR_FETCH_ADD: u32 = 6;
/// [`SendEntry::opcode`]: `IBV_WR_LOCAL_INV`.
pub const WR_LOCAL_INV: u32 = 7;
/// [`SendEntry::opcode`]: `IBV_WR_BIND_MW`.
pub const WR_BIND_MW: u32 = 8;
/// [`SendEntry::opcode`]: `IBV_WR_SEND_WITH_INV`.
pub const WR_SEND_WITH_INV: u32 = 9;
/// [`SendEntry::opcode`]: `IBV_WR_FLUSH`.
pub const WR_FLUSH: u32 = 14;
/// [`SendEntry::opcode`]: `IBV_WR_ATOMIC_WRITE`.
pub const WR_ATOMIC_WRITE: u32 = 15;

/// [`SendEntry::send_flags`]: wait for the READs and atomics before it.
pub const SEND_FENCE: u32 = 1;
/// [`SendEntry::send_flags`]: complete with a CQE also on success.
pub const SEND_SIGNALED: u32 = 2;
/// [`SendEntry::send_flags`]: ask for an event at the responder.
pub const SEND_SOLICITED: u32 = 4;
/// [`SendEntry::send_flags`]: the data itself follows the entry.
pub const SEND_INLINE: u32 = 8;

/// The longest message in bytes: 31 bits of the length field may be used (`max_msg_sz`).
pub const MAX_MESSAGE_LEN: u64 = 1 << 31;

/// [`CqEntry::sl`]: the GRH is an IPv4 header. RoCE has no service levels; mlx5 puts the kind of
/// header here, and UCX before 1.18 looks for it with every provider: without it, it drops all.
pub const SL_IPV4: u8 = 2;
/// [`CqEntry::sl`]: the GRH is an IPv6 header.
pub const SL_IPV6: u8 = 1;
/// [`CqEntry::wc_flags`]: a GRH precedes the received data.
pub const WC_GRH: u32 = 1;
/// [`CqEntry::wc_flags`]: immediate data came with it.
pub const WC_WITH_IMM: u32 = 2;
/// [`CqEntry::wc_flags`]: an rkey was invalidated with it.
pub const WC_WITH_INV: u32 = 8;

/// [`Av::network_type`] of IPv4.
pub const NETWORK_IPV4: u8 = 1;
/// [`Av::network_type`] of IPv6.
pub const NETWORK_IPV6: u8 = 2;

/// Asserts the size of a type and the offset of each of its fields, at compile time.
macro_rules! assert_layout {
    ($type:ty, $size:literal, { $($field:ident @ $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() <= 8);
            $(assert!(offset_of!($type, $field) == $offset);)*
        };
    };
}

assert_layout!(QueueHeader, 384, {
    log2_elem_size @ 0, index_mask @ 4, flags @ 8, producer @ 128, consumer @ 256, armed @ 320,
});
// `rxe_sge`, and the same 16 bytes as `ibv_sge`.
assert_layout!(urxe_types::Sge, 16, { addr @ 0, length @ 8, lkey @ 12 });
assert_layout!(DmaInfo, 24, {
    length @ 0, resid @ 4, cur_sge @ 8, num_sge @ 12, sge_offset @ 16, reserved @ 20,
});
assert_layout!(SendEntry, 208, {
    wr_id @ 0, reserved @ 8, opcode @ 12, send_flags @ 16, imm_or_rkey @ 20, args @ 24,
    status @ 144, state @ 148, iova @ 152, scratch @ 160, dma @ 184,
});
assert_layout!(RecvEntry, 40, { wr_id @ 0, reserved @ 8, dma @ 16 });
assert_layout!(RdmaArgs, 16, { remote_addr @ 0, rkey @ 8 });
assert_layout!(AtomicArgs, 32, { remote_addr @ 0, compare_add @ 8, swap @ 16, rkey @ 24 });
assert_layout!(UdArgs, 120, {
    remote_qpn @ 0, remote_qkey @ 4, pkey_index @ 8, ah_num @ 12, pad @ 16, av @ 32,
});
assert_layout!(MwArgs, 32, {
    addr @ 0, length @ 8, mr_lkey @ 16, mw_rkey @ 20, rkey @ 24, access @ 28,
});
assert_layout!(FlushArgs, 24, {
    remote_addr @ 0, length @ 8, rkey @ 12, kind @ 16, level @ 17,
});
assert_layout!(Av, 88, {
    port @ 0, network_type @ 1, dmac @ 2, dgid @ 8, flow_label @ 24, sgid_index @ 28,
    hop_limit @ 29, traffic_class @ 30, sgid_addr @ 32, dgid_addr @ 60,
});
assert_layout!(CqEntry, 48, {
    wr_id @ 0, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_or_rkey @ 24,
    qp_num @ 28, src_qp @ 32, wc_flags @ 36, pkey_index @ 40, slid @ 42, sl @ 44,
    dlid_path_bits @ 45, port_num @ 46, reserved @ 47,
});
