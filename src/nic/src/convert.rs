//! Ring entries to work requests, completions to ring entries: between the words of shared
//! memory and those of the engine.

use crate::counters::HostCounters;
use urxe_shm::ring::entry::{self, EntryError};
use urxe_shm::ring::layout::{self, CqEntry, SL_IPV4, SL_IPV6, WC_GRH, WC_WITH_IMM, WC_WITH_INV};
use urxe_types::{
    Access, AddressVector, AhId, Completion, DatagramPath, Destination, Extra, FlushPlacement,
    FlushSelectivity, GrhKind, Lkey, Qkey, Qpn, Rkey, SendOp, Sge, WcStatus,
};

/// An operation as the engine knows it.
pub(crate) fn send_op(op: entry::SendOp) -> SendOp {
    match op {
        entry::SendOp::Send(extra) => SendOp::Send(match extra {
            entry::Extra::None => Extra::None,
            entry::Extra::Imm(imm) => Extra::Imm(imm),
            entry::Extra::Invalidate(rkey) => Extra::Invalidate(Rkey(rkey)),
        }),
        entry::SendOp::Write { remote_addr, rkey, imm } => {
            SendOp::Write { remote_addr, rkey: Rkey(rkey), imm }
        }
        entry::SendOp::Read { remote_addr, rkey } => SendOp::Read { remote_addr, rkey: Rkey(rkey) },
        entry::SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            SendOp::CompareSwap { remote_addr, rkey: Rkey(rkey), compare, swap }
        }
        entry::SendOp::FetchAdd { remote_addr, rkey, add } => {
            SendOp::FetchAdd { remote_addr, rkey: Rkey(rkey), add }
        }
        entry::SendOp::AtomicWrite { remote_addr, rkey } => {
            SendOp::AtomicWrite { remote_addr, rkey: Rkey(rkey) }
        }
        entry::SendOp::Flush { remote_addr, rkey, length, placement, selectivity } => {
            let placement = FlushPlacement::from_bits_retain(placement);
            let selectivity = FlushSelectivity::from_code(selectivity);
            SendOp::Flush { remote_addr, rkey: Rkey(rkey), length, placement, selectivity }
        }
        entry::SendOp::BindMw { mw, new_rkey, mr, addr, length, access } => SendOp::BindMw {
            mw: Rkey(mw),
            new_rkey: Rkey(new_rkey),
            mr: Lkey(mr),
            addr,
            length,
            access: Access::from_bits_retain(access),
        },
        entry::SendOp::LocalInvalidate { key } => SendOp::LocalInvalidate { key },
    }
}

/// A datagram's destination as the engine knows it.
pub(crate) fn destination(to: &entry::Destination) -> Destination {
    let path = match to.path {
        entry::DatagramPath::Handle(number) => DatagramPath::Handle(AhId(number)),
        entry::DatagramPath::Vector(av) => DatagramPath::Vector(AddressVector {
            dgid: av.dgid.to_ip(),
            sgid_index: av.sgid_index,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
        }),
    };
    Destination { path, qpn: Qpn::new(to.qpn), qkey: Qkey(to.qkey) }
}

/// Refills a work request's scatter list.
pub(crate) fn fill_sges(sges: &mut Vec<Sge>, from: &[layout::Sge]) {
    sges.clear();
    sges.extend(from.iter().map(|sge| Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: Lkey(sge.lkey),
    }));
}

/// Counts an entry that is no work request under its reason.
pub(crate) fn count_malformed(counters: &mut HostCounters, error: EntryError) {
    *match error {
        EntryError::Opcode { .. } => &mut counters.malformed_opcode,
        EntryError::TooManySges { .. } => &mut counters.malformed_num_sge,
        EntryError::InlineTooLong { .. } => &mut counters.malformed_inline_length,
        EntryError::InlineNotAllowed { .. } => &mut counters.malformed_inline_opcode,
    } += 1;
}

/// A completion as it stands in a ring.
pub(crate) fn cq_entry(completion: &Completion) -> CqEntry {
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

/// Whether a completion says that its QP has failed.
pub(crate) fn is_error(completion: &Completion) -> bool {
    completion.status != WcStatus::Success
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::WcOpcode;

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
            let entry = cq_entry(&completion(grh));
            assert_eq!((entry.wc_flags, entry.sl), (flags | WC_WITH_IMM, sl));
        }
    }

    #[test]
    fn immediate_data_stands_in_the_ring_as_its_wire_bytes() {
        let entry = cq_entry(&completion(None));
        assert_eq!(entry.imm_or_rkey.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(entry.wc_flags, WC_WITH_IMM);
        assert_eq!((entry.opcode, entry.qp_num, entry.src_qp), (129, 0x11, 0x12));
    }

    #[test]
    fn an_invalidated_rkey_is_a_number_and_not_bytes() {
        let op = entry::SendOp::Send(entry::Extra::Invalidate(0x0102_0304));
        assert_eq!(send_op(op), SendOp::Send(Extra::Invalidate(Rkey(0x0102_0304))));
    }
}
