//! Ring entries as plain values.
//!
//! Encoding serves the program, decoding the daemon. Decoding works on a private copy of the
//! entry, believes nothing in it, and gives each malformed thing a name.

use crate::control::{AddressVector, Gid};
use crate::memory::region::Window;
use crate::ring::geometry::Geometry;
use crate::ring::layout::{
    AtomicArgs, Av, DmaInfo, FlushArgs, MwArgs, NETWORK_IPV4, NETWORK_IPV6, RdmaArgs, RecvEntry,
    SEND_FENCE, SEND_INLINE, SEND_SIGNALED, SEND_SOLICITED, SendEntry, Sge, UdArgs,
    WR_ATOMIC_WRITE, WR_BIND_MW, WR_COMPARE_SWAP, WR_FETCH_ADD, WR_FLUSH, WR_LOCAL_INV,
    WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM,
    WR_SEND_WITH_INV,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with what the last packet carries besides the data.
    Send(Extra),
    /// RDMA WRITE to `remote_addr`, with immediate data if given.
    Write {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: u32,
        /// Immediate data (the four wire bytes as a big-endian number).
        imm: Option<u32>,
    },
    /// RDMA READ from `remote_addr` into the scatter list.
    Read {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: u32,
    },
    /// ATOMIC COMPARE-AND-SWAP of 8 bytes.
    CompareSwap {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: u32,
        /// Value that must be there.
        compare: u64,
        /// Value put there if it was.
        swap: u64,
    },
    /// ATOMIC FETCH-AND-ADD of 8 bytes.
    FetchAdd {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: u32,
        /// Value added, wrapping.
        add: u64,
    },
    /// ATOMIC WRITE of the 8 bytes of the gather list, or of 8 inline bytes.
    AtomicWrite {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: u32,
    },
    /// FLUSH: earlier WRITEs to the range get as far as `placement` says.
    Flush {
        /// Address at the responder.
        remote_addr: u64,
        /// Key of the responder's memory.
        rkey: u32,
        /// Bytes.
        length: u32,
        /// Placement types: 1 global visibility, 2 persistence, or both.
        placement: u8,
        /// 0: the range; 1: the whole MR.
        selectivity: u8,
    },
    /// Binds a memory window.
    BindMw {
        /// The window's present rkey.
        mw: u32,
        /// Gives the low 8 bits of the rkey that it shall have.
        new_rkey: u32,
        /// lkey of the MR that it opens a part of.
        mr: u32,
        /// First byte, in the MR's terms.
        addr: u64,
        /// Bytes.
        length: u64,
        /// What the peer may do: access bits.
        access: u32,
    },
    /// Closes a window's or an MR's key.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
}

/// Where a datagram goes: `wr.ud` of `ibv_send_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The path.
    pub path: DatagramPath,
    /// The QP there; 0xff_ffff for a multicast group.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

/// The path of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramPath {
    /// The number of an address handle, never 0.
    Handle(u32),
    /// Told with the work request itself, as `librxe` did before it had address handle numbers.
    Vector(AddressVector),
}

/// What the last packet of a SEND carries besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    None,
    /// Immediate data (the four wire bytes as a big-endian number).
    Imm(u32),
    /// An rkey that the responder shall invalidate.
    Invalidate(u32),
}

/// A send work request, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The program's own number, given back in the completion.
    pub wr_id: u64,
    /// The operation and its arguments.
    pub op: SendOp,
    /// Where it goes, on a UD QP. Only a SEND can have it.
    pub to: Option<Destination>,
    /// `IBV_SEND_FENCE`: starts only when all READs and atomics before it have completed.
    pub fence: bool,
    /// `IBV_SEND_SIGNALED`: completes with a CQE also on success.
    pub signaled: bool,
    /// `IBV_SEND_SOLICITED`: asks for an event at the responder.
    pub solicited: bool,
}

/// A send work request as the daemon takes it. Its SGEs or its inline data went into the buffers
/// that the caller gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// What is to be done.
    pub wr: SendWr,
    /// Whether its data came with it, or else lies in the memory of its SGEs.
    pub inline: bool,
    /// Bytes in all: the sum over the SGEs, or the length of the inline data.
    pub length: u64,
}

/// A receive work request as the daemon takes it. Its SGEs went into the buffer that the caller
/// gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// The program's own number, given back in the completion.
    pub wr_id: u64,
    /// Room in bytes: the sum over the SGEs.
    pub length: u64,
}

/// Where the data of a send is.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here: `IBV_SEND_INLINE`. It is copied, and may be changed as soon as it is posted.
    Inline(&'a [u8]),
}

/// What was found at the head of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// Nothing.
    Empty,
    /// A work request.
    Ready(T),
    /// An entry that is no work request. It was taken off all the same.
    Malformed {
        /// The number that stands in it.
        wr_id: u64,
        /// What is wrong with it.
        error: EntryError,
    },
}

impl<T> Taken<T> {
    fn of(wr_id: u64, result: Result<T, EntryError>) -> Self {
        match result {
            Ok(wqe) => Taken::Ready(wqe),
            Err(error) => Taken::Malformed { wr_id, error },
        }
    }
}

/// An entry that is no work request.
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

/// A work request that does not fit into an entry, or a queue that it does not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full; `ENOMEM` in verbs.
    #[error("the queue is full: {capacity} work requests")]
    QueueFull {
        /// What the queue holds.
        capacity: u32,
    },
    /// The work request is wrong in itself, or too large for the queue; `EINVAL` in verbs.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The daemon's side of the ring is broken.
    #[error(transparent)]
    Index(#[from] crate::ring::cursor::IndexError),
}

impl SendWr {
    /// The fixed part of the entry.
    // Into the ring directly: a copy of the 208 bytes in between costs a third of a post.
    #[inline]
    pub(crate) fn encode(
        &self,
        data: SendData<'_>,
        geometry: &Geometry,
    ) -> Result<SendEntry, EntryError> {
        let rdma = |remote_addr, rkey| args(&RdmaArgs { remote_addr, rkey, reserved: 0 });
        let (opcode, imm_or_rkey, args, iova) = match self.op {
            SendOp::Send(Extra::None) => (WR_SEND, 0, [0; 15], 0),
            SendOp::Send(Extra::Imm(imm)) => (WR_SEND_WITH_IMM, imm.to_be(), [0; 15], 0),
            SendOp::Send(Extra::Invalidate(rkey)) => (WR_SEND_WITH_INV, rkey, [0; 15], 0),
            SendOp::Write { remote_addr, rkey, imm: None } => {
                (WR_RDMA_WRITE, 0, rdma(remote_addr, rkey), remote_addr)
            }
            SendOp::Write { remote_addr, rkey, imm: Some(imm) } => {
                (WR_RDMA_WRITE_WITH_IMM, imm.to_be(), rdma(remote_addr, rkey), remote_addr)
            }
            SendOp::Read { remote_addr, rkey } => {
                (WR_RDMA_READ, 0, rdma(remote_addr, rkey), remote_addr)
            }
            SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
                let atomic =
                    AtomicArgs { remote_addr, compare_add: compare, swap, rkey, reserved: 0 };
                (WR_COMPARE_SWAP, 0, self::args(&atomic), remote_addr)
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                let atomic =
                    AtomicArgs { remote_addr, compare_add: add, swap: 0, rkey, reserved: 0 };
                (WR_FETCH_ADD, 0, self::args(&atomic), remote_addr)
            }
            SendOp::AtomicWrite { remote_addr, rkey } => {
                (WR_ATOMIC_WRITE, 0, rdma(remote_addr, rkey), remote_addr)
            }
            SendOp::Flush { remote_addr, rkey, length, placement, selectivity } => {
                let flush = FlushArgs {
                    remote_addr,
                    length,
                    rkey,
                    kind: placement,
                    level: selectivity,
                    pad: [0; 6],
                };
                (WR_FLUSH, 0, self::args(&flush), remote_addr)
            }
            SendOp::BindMw { mw, new_rkey, mr, addr, length, access } => {
                let bind =
                    MwArgs { addr, length, mr_lkey: mr, mw_rkey: mw, rkey: new_rkey, access };
                (WR_BIND_MW, 0, self::args(&bind), 0)
            }
            SendOp::LocalInvalidate { key } => (WR_LOCAL_INV, key, [0; 15], 0),
        };
        let args = match &self.to {
            Some(to) => self::args(&ud_args(to)),
            None => args,
        };
        let (inline, dma) = match data {
            SendData::Sges(sges) => (false, sge_dma(sges, geometry)?),
            SendData::Inline(bytes) => (
                true,
                DmaInfo {
                    length: check_inline(opcode, bytes.len(), geometry)?,
                    ..Default::default()
                },
            ),
        };
        let flag = |set, bit| if set { bit } else { 0 };
        let send_flags = flag(self.fence, SEND_FENCE)
            | flag(self.signaled, SEND_SIGNALED)
            | flag(self.solicited, SEND_SOLICITED)
            | flag(inline, SEND_INLINE);
        let wr_id = self.wr_id;
        Ok(SendEntry {
            wr_id,
            opcode,
            send_flags,
            imm_or_rkey,
            args,
            iova,
            dma,
            ..Default::default()
        })
    }

    fn decode(entry: &SendEntry, datagram: bool) -> Result<Self, EntryError> {
        let imm = u32::from_be(entry.imm_or_rkey);
        let rdma: RdmaArgs = from_args(&entry.args);
        let atomic: AtomicArgs = from_args(&entry.args);
        let RdmaArgs { remote_addr, rkey, .. } = rdma;
        let op = match entry.opcode {
            WR_SEND => SendOp::Send(Extra::None),
            WR_SEND_WITH_IMM => SendOp::Send(Extra::Imm(imm)),
            WR_SEND_WITH_INV => SendOp::Send(Extra::Invalidate(entry.imm_or_rkey)),
            WR_RDMA_WRITE => SendOp::Write { remote_addr, rkey, imm: None },
            WR_RDMA_WRITE_WITH_IMM => SendOp::Write { remote_addr, rkey, imm: Some(imm) },
            WR_RDMA_READ => SendOp::Read { remote_addr, rkey },
            WR_COMPARE_SWAP => SendOp::CompareSwap {
                remote_addr: atomic.remote_addr,
                rkey: atomic.rkey,
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
            WR_FETCH_ADD => SendOp::FetchAdd {
                remote_addr: atomic.remote_addr,
                rkey: atomic.rkey,
                add: atomic.compare_add,
            },
            WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote_addr, rkey },
            WR_FLUSH => {
                let FlushArgs { remote_addr, length, rkey, kind, level, .. } =
                    from_args(&entry.args);
                SendOp::Flush { remote_addr, rkey, length, placement: kind, selectivity: level }
            }
            WR_BIND_MW => {
                let MwArgs { addr, length, mr_lkey, mw_rkey, rkey, access } =
                    from_args(&entry.args);
                let (mw, new_rkey, mr) = (mw_rkey, rkey, mr_lkey);
                SendOp::BindMw { mw, new_rkey, mr, addr, length, access }
            }
            WR_LOCAL_INV => SendOp::LocalInvalidate { key: entry.imm_or_rkey },
            opcode => return Err(EntryError::Opcode { opcode }),
        };
        let to = datagram.then(|| destination(&from_args(&entry.args)));
        let has = |bit| entry.send_flags & bit != 0;
        let (fence, signaled) = (has(SEND_FENCE), has(SEND_SIGNALED));
        Ok(Self { wr_id: entry.wr_id, op, to, fence, signaled, solicited: has(SEND_SOLICITED) })
    }
}

impl SendWqe {
    /// Copies an entry out of the ring and makes sense of it; `datagram` says that the QP is UD.
    pub(crate) fn decode(
        window: &Window,
        geometry: &Geometry,
        slot: u32,
        datagram: bool,
        sges: &mut Vec<Sge>,
        inline: &mut Vec<u8>,
    ) -> Taken<Self> {
        let offset = geometry.element(slot);
        // HOST-004: from here on only the copy is looked at.
        let entry: SendEntry = load(window, offset);
        let data = offset + size_of::<SendEntry>();
        let result = SendWr::decode(&entry, datagram).and_then(|wr| {
            if entry.send_flags & SEND_INLINE != 0 || brings_its_eight_bytes(&entry) {
                let len = check_inline(entry.opcode, entry.dma.length as usize, geometry)?;
                load_bytes(window, data, len, inline);
                Ok(Self { wr, inline: true, length: u64::from(len) })
            } else {
                // HOST-003
                let length = load_sges(window, data, entry.dma.num_sge, geometry, sges)?;
                Ok(Self { wr, inline: false, length })
            }
        });
        Taken::of(entry.wr_id, result)
    }
}

impl RecvWqe {
    /// Copies an entry out of the ring and makes sense of it.
    pub(crate) fn decode(
        window: &Window,
        geometry: &Geometry,
        slot: u32,
        sges: &mut Vec<Sge>,
    ) -> Taken<Self> {
        let offset = geometry.element(slot);
        let entry: RecvEntry = load(window, offset);
        let data = offset + size_of::<RecvEntry>();
        let wr_id = entry.wr_id;
        let length = load_sges(window, data, entry.dma.num_sge, geometry, sges);
        Taken::of(wr_id, length.map(|length| Self { wr_id, length }))
    }
}

impl RecvEntry {
    /// The fixed part of the entry.
    pub(crate) fn encode(
        wr_id: u64,
        sges: &[Sge],
        geometry: &Geometry,
    ) -> Result<Self, EntryError> {
        Ok(Self { wr_id, reserved: 0, dma: sge_dma(sges, geometry)? })
    }
}

/// A destination as an entry has it.
fn ud_args(to: &Destination) -> UdArgs {
    let (ah_num, av) = match to.path {
        DatagramPath::Handle(number) => (number, Av::default()),
        DatagramPath::Vector(vector) => {
            let is_ipv4 = vector.dgid.to_ip().is_ipv4();
            let av = Av {
                port: 1,
                network_type: if is_ipv4 { NETWORK_IPV4 } else { NETWORK_IPV6 },
                dgid: vector.dgid.0,
                flow_label: vector.flow_label,
                sgid_index: vector.sgid_index,
                hop_limit: vector.hop_limit,
                traffic_class: vector.traffic_class,
                ..Av::default()
            };
            (0, av)
        }
    };
    UdArgs { remote_qpn: to.qpn, remote_qkey: to.qkey, ah_num, av, ..UdArgs::default() }
}

/// The destination that an entry has.
fn destination(args: &UdArgs) -> Destination {
    let path = match args.ah_num {
        0 => DatagramPath::Vector(AddressVector {
            dgid: Gid(args.av.dgid),
            sgid_index: args.av.sgid_index,
            traffic_class: args.av.traffic_class,
            hop_limit: args.av.hop_limit,
            flow_label: args.av.flow_label,
        }),
        number => DatagramPath::Handle(number),
    };
    Destination { path, qpn: args.remote_qpn & 0xff_ffff, qkey: args.remote_qkey }
}

/// Puts an operation's arguments where the entry has them.
fn args(value: &(impl IntoBytes + Immutable)) -> [u64; 15] {
    let mut args = [0; 15];
    args.as_mut_bytes()[..size_of_val(value)].copy_from_slice(value.as_bytes());
    args
}

/// The operation's arguments, seen as one of their types.
fn from_args<T: FromBytes>(args: &[u64; 15]) -> T {
    const { assert!(size_of::<T>() <= size_of::<[u64; 15]>()) };
    match T::read_from_prefix(args.as_bytes()) {
        Ok((value, _)) => value,
        Err(_) => unreachable!("no kind of arguments is longer than their place"),
    }
}

/// Whether it is an ATOMIC WRITE as `librxe` posts it: its 8 bytes follow the entry although it is
/// not marked as inline.
fn brings_its_eight_bytes(entry: &SendEntry) -> bool {
    entry.opcode == WR_ATOMIC_WRITE && (entry.dma.num_sge, entry.dma.length) == (0, 8)
}

fn check_inline(opcode: u32, length: usize, geometry: &Geometry) -> Result<u32, EntryError> {
    if matches!(opcode, WR_RDMA_READ | WR_COMPARE_SWAP | WR_FETCH_ADD | WR_FLUSH) {
        return Err(EntryError::InlineNotAllowed { opcode });
    }
    let (length, max_inline) = (u32::try_from(length).unwrap_or(u32::MAX), geometry.max_inline());
    if length > max_inline {
        return Err(EntryError::InlineTooLong { length, max_inline });
    }
    Ok(length)
}

fn check_num_sge(num_sge: u32, geometry: &Geometry) -> Result<(), EntryError> {
    let max_sge = geometry.max_sge();
    if num_sge > max_sge {
        return Err(EntryError::TooManySges { num_sge, max_sge });
    }
    Ok(())
}

/// What an entry says about its SGEs.
fn sge_dma(sges: &[Sge], geometry: &Geometry) -> Result<DmaInfo, EntryError> {
    let num_sge = u32::try_from(sges.len()).unwrap_or(u32::MAX);
    check_num_sge(num_sge, geometry)?;
    let length = sges.iter().fold(0u32, |sum, sge| sum.wrapping_add(sge.length));
    Ok(DmaInfo { length, resid: length, num_sge, ..Default::default() })
}

/// Appends an entry's SGEs to `sges`, and returns the sum of their lengths.
fn load_sges(
    window: &Window,
    offset: usize,
    num_sge: u32,
    geometry: &Geometry,
    sges: &mut Vec<Sge>,
) -> Result<u64, EntryError> {
    check_num_sge(num_sge, geometry)?;
    let first = sges.len();
    sges.resize(first + num_sge as usize, Sge::default());
    let added = &mut sges[first..];
    window.load(offset, added.as_mut_bytes());
    Ok(added.iter().map(|sge| u64::from(sge.length)).sum())
}

fn load_bytes(window: &Window, offset: usize, len: u32, bytes: &mut Vec<u8>) {
    let first = bytes.len();
    bytes.resize(first + len as usize, 0);
    window.load(offset, &mut bytes[first..]);
}

/// A private copy of an entry's fixed part.
fn load<T: Default + FromBytes + IntoBytes>(window: &Window, offset: usize) -> T {
    let mut entry = T::default();
    window.load(offset, entry.as_mut_bytes());
    entry
}
