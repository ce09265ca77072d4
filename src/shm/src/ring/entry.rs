//! Ring entries to work requests and completions, and back.
//!
//! Encoding serves the program, decoding the daemon. Decoding works on a private copy of the
//! entry, believes nothing in it, and gives each malformed thing a name: here bytes of a program
//! become types.

use crate::memory::region::Window;
use crate::ring::geometry::Geometry;
use crate::ring::layout::{
    AtomicArgs, Av, CqEntry, DmaInfo, FlushArgs, MwArgs, NETWORK_IPV4, NETWORK_IPV6, RdmaArgs,
    RecvEntry, SEND_FENCE, SEND_INLINE, SEND_SIGNALED, SEND_SOLICITED, SL_IPV4, SL_IPV6, SendEntry,
    UdArgs, WC_GRH, WC_WITH_IMM, WC_WITH_INV, WR_ATOMIC_WRITE, WR_BIND_MW, WR_COMPARE_SWAP,
    WR_FETCH_ADD, WR_FLUSH, WR_LOCAL_INV, WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM,
    WR_SEND, WR_SEND_WITH_IMM, WR_SEND_WITH_INV,
};
use urxe_types::{
    Access, AddressVector, AhId, Completion, DatagramPath, Destination, EntryError, Extra,
    FlushPlacement, FlushSelectivity, Gid, GrhKind, Lkey, Qkey, Qpn, RecvWqe, Rkey, SendData,
    SendOp, SendWqe, SendWr, Sge,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What was found at the head of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing.
    Empty,
    /// A work request.
    Ready,
    /// An entry that is no work request, for this reason. It was taken off all the same, and its
    /// number is known.
    Malformed(EntryError),
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

impl SendEntry {
    /// The fixed part of the entry.
    // Into the ring directly: a copy of the 208 bytes in between costs a third of a post.
    #[inline]
    pub(crate) fn encode(
        wr: &SendWr,
        data: SendData<'_>,
        geometry: &Geometry,
    ) -> Result<SendEntry, EntryError> {
        let rdma =
            |remote_addr, rkey: Rkey| args(&RdmaArgs { remote_addr, rkey: rkey.0, reserved: 0 });
        let (opcode, imm_or_rkey, args, iova) = match wr.op {
            SendOp::Send(Extra::None) => (WR_SEND, 0, [0; 15], 0),
            SendOp::Send(Extra::Imm(imm)) => (WR_SEND_WITH_IMM, imm.to_be(), [0; 15], 0),
            SendOp::Send(Extra::Invalidate(rkey)) => (WR_SEND_WITH_INV, rkey.0, [0; 15], 0),
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
                let compare_add = compare;
                let atomic =
                    AtomicArgs { remote_addr, compare_add, swap, rkey: rkey.0, reserved: 0 };
                (WR_COMPARE_SWAP, 0, self::args(&atomic), remote_addr)
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                let compare_add = add;
                let atomic =
                    AtomicArgs { remote_addr, compare_add, swap: 0, rkey: rkey.0, reserved: 0 };
                (WR_FETCH_ADD, 0, self::args(&atomic), remote_addr)
            }
            SendOp::AtomicWrite { remote_addr, rkey } => {
                (WR_ATOMIC_WRITE, 0, rdma(remote_addr, rkey), remote_addr)
            }
            SendOp::Flush { remote_addr, rkey, length, placement, selectivity } => {
                let flush = FlushArgs {
                    remote_addr,
                    length,
                    rkey: rkey.0,
                    kind: placement.bits(),
                    level: selectivity.code(),
                    pad: [0; 6],
                };
                (WR_FLUSH, 0, self::args(&flush), remote_addr)
            }
            SendOp::BindMw { mw, new_rkey, mr, addr, length, access } => {
                let bind = MwArgs {
                    addr,
                    length,
                    mr_lkey: mr.0,
                    mw_rkey: mw.0,
                    rkey: new_rkey.0,
                    access: access.bits(),
                };
                (WR_BIND_MW, 0, self::args(&bind), 0)
            }
            SendOp::LocalInvalidate { key } => (WR_LOCAL_INV, key.0, [0; 15], 0),
        };
        let args = match &wr.to {
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
        let send_flags = flag(wr.fence, SEND_FENCE)
            | flag(wr.signaled, SEND_SIGNALED)
            | flag(wr.solicited, SEND_SOLICITED)
            | flag(inline, SEND_INLINE);
        let wr_id = wr.wr_id;
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

    /// The operation and its arguments.
    fn op(&self) -> Result<SendOp, EntryError> {
        let imm = u32::from_be(self.imm_or_rkey);
        let rdma: RdmaArgs = from_args(&self.args);
        let atomic: AtomicArgs = from_args(&self.args);
        let (remote_addr, rkey) = (rdma.remote_addr, Rkey(rdma.rkey));
        Ok(match self.opcode {
            WR_SEND => SendOp::Send(Extra::None),
            WR_SEND_WITH_IMM => SendOp::Send(Extra::Imm(imm)),
            WR_SEND_WITH_INV => SendOp::Send(Extra::Invalidate(Rkey(self.imm_or_rkey))),
            WR_RDMA_WRITE => SendOp::Write { remote_addr, rkey, imm: None },
            WR_RDMA_WRITE_WITH_IMM => SendOp::Write { remote_addr, rkey, imm: Some(imm) },
            WR_RDMA_READ => SendOp::Read { remote_addr, rkey },
            WR_COMPARE_SWAP => SendOp::CompareSwap {
                remote_addr: atomic.remote_addr,
                rkey: Rkey(atomic.rkey),
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
            WR_FETCH_ADD => SendOp::FetchAdd {
                remote_addr: atomic.remote_addr,
                rkey: Rkey(atomic.rkey),
                add: atomic.compare_add,
            },
            WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote_addr, rkey },
            WR_FLUSH => {
                let flush: FlushArgs = from_args(&self.args);
                SendOp::Flush {
                    remote_addr: flush.remote_addr,
                    rkey: Rkey(flush.rkey),
                    length: flush.length,
                    placement: FlushPlacement::from_bits_retain(flush.kind),
                    selectivity: FlushSelectivity::from_code(flush.level),
                }
            }
            WR_BIND_MW => {
                let bind: MwArgs = from_args(&self.args);
                SendOp::BindMw {
                    mw: Rkey(bind.mw_rkey),
                    new_rkey: Rkey(bind.rkey),
                    mr: Lkey(bind.mr_lkey),
                    addr: bind.addr,
                    length: bind.length,
                    access: Access::from_bits_retain(bind.access),
                }
            }
            WR_LOCAL_INV => SendOp::LocalInvalidate { key: Rkey(self.imm_or_rkey) },
            opcode => return Err(EntryError::Opcode { opcode }),
        })
    }
}

/// Copies a send entry out of the ring and makes sense of it; `datagram` says that the QP is UD.
/// The buffer is taken, and given to the work request, if its data is inline.
pub(super) fn take_send(
    window: &Window,
    geometry: &Geometry,
    slot: u32,
    datagram: bool,
    wqe: &mut SendWqe,
    buffer: &mut Vec<u8>,
) -> Taken {
    let offset = geometry.element(slot);
    // HOST-004: from here on only the copy is looked at.
    let entry: SendEntry = load(window, offset);
    let data = offset + size_of::<SendEntry>();
    wqe.wr.wr_id = entry.wr_id;
    wqe.sges.clear();
    wqe.inline = None;
    let mut decode = || {
        let has = |bit| entry.send_flags & bit != 0;
        wqe.wr = SendWr {
            wr_id: entry.wr_id,
            op: entry.op()?,
            to: datagram.then(|| destination(&from_args(&entry.args))),
            fence: has(SEND_FENCE),
            signaled: has(SEND_SIGNALED),
            solicited: has(SEND_SOLICITED),
        };
        if has(SEND_INLINE) || brings_its_eight_bytes(&entry) {
            let len = check_inline(entry.opcode, entry.dma.length as usize, geometry)?;
            buffer.clear();
            buffer.resize(len as usize, 0);
            window.load(data, buffer);
            wqe.inline = Some(std::mem::take(buffer));
            Ok(())
        } else {
            // HOST-003
            load_sges(window, data, entry.dma.num_sge, geometry, &mut wqe.sges)
        }
    };
    decode().map_or_else(Taken::Malformed, |()| Taken::Ready)
}

/// Copies a receive entry out of the ring and makes sense of it.
pub(super) fn take_recv(
    window: &Window,
    geometry: &Geometry,
    slot: u32,
    wqe: &mut RecvWqe,
) -> Taken {
    let offset = geometry.element(slot);
    let entry: RecvEntry = load(window, offset);
    let data = offset + size_of::<RecvEntry>();
    wqe.wr_id = entry.wr_id;
    wqe.sges.clear();
    let sges = load_sges(window, data, entry.dma.num_sge, geometry, &mut wqe.sges);
    sges.map_or_else(Taken::Malformed, |()| Taken::Ready)
}

impl From<&Completion> for CqEntry {
    fn from(completion: &Completion) -> CqEntry {
        let (imm_or_rkey, wc_flags) = match completion.extra {
            Extra::None => (0, 0),
            Extra::Imm(imm) => (imm.to_be(), WC_WITH_IMM),
            Extra::Invalidate(rkey) => (rkey.0, WC_WITH_INV),
        };
        let (grh, sl) = match completion.grh {
            None => (0, 0),
            Some(GrhKind::Ipv4) => (WC_GRH, SL_IPV4),
            Some(GrhKind::Ipv6) => (WC_GRH, SL_IPV6),
        };
        CqEntry {
            wr_id: completion.wr_id,
            status: completion.status as u32,
            opcode: completion.opcode as u32,
            vendor_err: completion.vendor_err,
            byte_len: completion.byte_len,
            imm_or_rkey,
            qp_num: completion.qpn.get(),
            src_qp: completion.src_qpn.get(),
            wc_flags: wc_flags | grh,
            sl,
            port_num: 1,
            ..CqEntry::default()
        }
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
        DatagramPath::Handle(AhId(number)) => (number, Av::default()),
        DatagramPath::Vector(vector) => {
            let av = Av {
                port: 1,
                network_type: if vector.dgid.is_ipv4() { NETWORK_IPV4 } else { NETWORK_IPV6 },
                dgid: Gid::from(vector.dgid).0,
                flow_label: vector.flow_label,
                sgid_index: vector.sgid_index,
                hop_limit: vector.hop_limit,
                traffic_class: vector.traffic_class,
                ..Av::default()
            };
            (0, av)
        }
    };
    let (remote_qpn, remote_qkey) = (to.qpn.get(), to.qkey.0);
    UdArgs { remote_qpn, remote_qkey, ah_num, av, ..UdArgs::default() }
}

/// The destination that an entry has.
fn destination(args: &UdArgs) -> Destination {
    let path = match args.ah_num {
        // As `librxe` did before it had address handle numbers.
        0 => DatagramPath::Vector(AddressVector {
            dgid: Gid(args.av.dgid).to_ip(),
            sgid_index: args.av.sgid_index,
            traffic_class: args.av.traffic_class,
            hop_limit: args.av.hop_limit,
            flow_label: args.av.flow_label,
        }),
        number => DatagramPath::Handle(AhId(number)),
    };
    Destination { path, qpn: Qpn::new(args.remote_qpn), qkey: Qkey(args.remote_qkey) }
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

/// Refills `sges` with an entry's SGEs.
fn load_sges(
    window: &Window,
    offset: usize,
    num_sge: u32,
    geometry: &Geometry,
    sges: &mut Vec<Sge>,
) -> Result<(), EntryError> {
    check_num_sge(num_sge, geometry)?;
    sges.resize(num_sge as usize, Sge::default());
    window.load(offset, sges.as_mut_bytes());
    Ok(())
}

/// A private copy of an entry's fixed part.
fn load<T: Default + FromBytes + IntoBytes>(window: &Window, offset: usize) -> T {
    let mut entry = T::default();
    window.load(offset, entry.as_mut_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::{WcOpcode, WcStatus};

    /// Of a message that was received with immediate data.
    fn completion(grh: Option<GrhKind>) -> Completion {
        Completion {
            wr_id: 1,
            status: WcStatus::Success,
            opcode: WcOpcode::RecvRdmaWithImm,
            vendor_err: 0,
            byte_len: 5,
            extra: Extra::Imm(0x0102_0304),
            qpn: Qpn::new(0x11),
            src_qpn: Qpn::new(0x12),
            grh,
            solicited: false,
        }
    }

    #[test]
    fn a_datagram_says_what_header_is_before_it() {
        for (grh, flags, sl) in
            [(None, 0, 0), (Some(GrhKind::Ipv4), WC_GRH, 2), (Some(GrhKind::Ipv6), WC_GRH, 1)]
        {
            let entry = CqEntry::from(&completion(grh));
            assert_eq!((entry.wc_flags, entry.sl), (flags | WC_WITH_IMM, sl));
        }
    }

    #[test]
    fn immediate_data_stands_in_the_ring_as_its_wire_bytes() {
        let entry = CqEntry::from(&completion(None));
        assert_eq!(entry.imm_or_rkey.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(entry.wc_flags, WC_WITH_IMM);
        assert_eq!((entry.opcode, entry.qp_num, entry.src_qp), (129, 0x11, 0x12));
    }

    #[test]
    fn an_invalidated_rkey_is_a_number_and_not_bytes() {
        let (opcode, imm_or_rkey) = (WR_SEND_WITH_INV, 0x0102_0304);
        let entry = SendEntry { opcode, imm_or_rkey, ..SendEntry::default() };
        assert_eq!(entry.op(), Ok(SendOp::Send(Extra::Invalidate(Rkey(0x0102_0304)))));
    }
}
