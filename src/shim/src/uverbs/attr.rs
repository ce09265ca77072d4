//! The attributes of QPs and paths: the kernel's numbers and ours.

use super::abi::{AhAttr, GlobalRoute, ModifyQp, QpDest, QueryQpResp, UserQpAttr};
use crate::refused::Refused;
use rustix::io::Errno;
use urxe_shm::control::{QpCaps, QpQueried};
use urxe_types::{Access, AddressVector, Gid, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn};

/// The only port.
pub(crate) const PORT: u8 = 1;

/// The bits of `ibv_qp_attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const CUR_STATE: u32 = 1 << 1;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const ALT_PATH: u32 = 1 << 14;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const CAP: u32 = 1 << 19;
    pub(super) const DEST_QPN: u32 = 1 << 20;
    /// All that the kernel takes from this command.
    pub(super) const STANDARD: u32 = (1 << 21) - 1;
}

/// What a `MODIFY_QP` is to change. Two bits of the mask mean nothing here: that an event is
/// wanted when the SQ has drained (there always is one), and the state of path migration, which
/// RoCE devices of this kind do not have. An alternate path, and other capacities, are refused.
pub(crate) fn to_change(command: &ModifyQp) -> Result<QpAttr, Refused> {
    let bits = command.attr_mask;
    if bits & !mask::STANDARD != 0 {
        let reason = format!("attr_mask {bits:#x}: expected bits of {:#x} alone", mask::STANDARD);
        return Err(Refused::new(Errno::OPNOTSUPP, reason));
    }
    if bits & mask::ALT_PATH != 0 {
        let expected = "a mask without IBV_QP_ALT_PATH: paths do not migrate on this device";
        return Err(Refused::invalid("attr_mask", format_args!("{bits:#x}"), expected));
    }
    if bits & mask::CAP != 0 {
        let expected = "a mask without IBV_QP_CAP: queues keep the size that they are created with";
        return Err(Refused::invalid("attr_mask", format_args!("{bits:#x}"), expected));
    }
    let has = |bit| bits & bit != 0;
    let state = |bit, number| has(bit).then(|| qp_state(number)).transpose();
    Ok(QpAttr {
        state: state(mask::STATE, command.qp_state)?,
        cur_state: state(mask::CUR_STATE, command.cur_qp_state)?,
        access: has(mask::ACCESS_FLAGS)
            .then_some(Access::from_bits_retain(command.qp_access_flags)),
        pkey_index: has(mask::PKEY_INDEX).then_some(command.pkey_index),
        port: has(mask::PORT).then_some(command.port_num),
        av: has(mask::AV).then(|| path_of_qp(&command.dest)).transpose()?,
        path_mtu: has(mask::PATH_MTU).then(|| path_mtu(command.path_mtu)).transpose()?,
        dest_qpn: has(mask::DEST_QPN).then(|| qpn(command.dest_qp_num)).transpose()?,
        qkey: has(mask::QKEY).then_some(Qkey(command.qkey)),
        // The kernel cuts PSNs to their 24 bits, and programs rely on it.
        rq_psn: has(mask::RQ_PSN).then_some(Psn::new(command.rq_psn)),
        sq_psn: has(mask::SQ_PSN).then_some(Psn::new(command.sq_psn)),
        max_rd_atomic: has(mask::MAX_QP_RD_ATOMIC).then_some(command.max_rd_atomic),
        max_dest_rd_atomic: has(mask::MAX_DEST_RD_ATOMIC).then_some(command.max_dest_rd_atomic),
        min_rnr_timer: has(mask::MIN_RNR_TIMER).then_some(command.min_rnr_timer),
        timeout: has(mask::TIMEOUT).then_some(command.timeout),
        retry_cnt: has(mask::RETRY_CNT).then_some(command.retry_cnt),
        rnr_retry: has(mask::RNR_RETRY).then_some(command.rnr_retry),
    })
}

/// A QP's attributes as `QUERY_QP` answers them; what was never set is 0, as with the kernel.
pub(crate) fn queried(qp: &QpQueried) -> QueryQpResp {
    let QpQueried { attr, caps, sq_sig_all, sq_draining } = qp;
    let &QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = caps;
    let state = attr.state.map_or(0, |state| state as u8);
    QueryQpResp {
        dest: attr.av.as_ref().map(dest).unwrap_or_default(),
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
        qkey: attr.qkey.unwrap_or_default().0,
        rq_psn: attr.rq_psn.unwrap_or_default().get(),
        sq_psn: attr.sq_psn.unwrap_or_default().get(),
        dest_qp_num: attr.dest_qpn.unwrap_or_default().get(),
        qp_access_flags: attr.access.unwrap_or_default().bits(),
        pkey_index: attr.pkey_index.unwrap_or(0),
        qp_state: state,
        cur_qp_state: state,
        // A QP begins with the smallest.
        path_mtu: attr.path_mtu.unwrap_or(PathMtu::Mtu256).code(),
        sq_draining: u8::from(*sq_draining),
        max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
        port_num: attr.port.unwrap_or(0),
        timeout: attr.timeout.unwrap_or(0),
        retry_cnt: attr.retry_cnt.unwrap_or(0),
        rnr_retry: attr.rnr_retry.unwrap_or(0),
        sq_sig_all: u8::from(*sq_sig_all),
        ..QueryQpResp::default()
    }
}

/// The attributes that a QP is to be given, and which they are, as the connection manager tells it.
pub(crate) fn qp_attr(attr: &QpAttr) -> UserQpAttr {
    let mut bits = 0;
    let mut note = |bit, is_there: bool| bits |= if is_there { bit } else { 0 };
    note(mask::STATE, attr.state.is_some());
    note(mask::CUR_STATE, attr.cur_state.is_some());
    note(mask::ACCESS_FLAGS, attr.access.is_some());
    note(mask::PKEY_INDEX, attr.pkey_index.is_some());
    note(mask::PORT, attr.port.is_some());
    note(mask::QKEY, attr.qkey.is_some());
    note(mask::AV, attr.av.is_some());
    note(mask::PATH_MTU, attr.path_mtu.is_some());
    note(mask::TIMEOUT, attr.timeout.is_some());
    note(mask::RETRY_CNT, attr.retry_cnt.is_some());
    note(mask::RNR_RETRY, attr.rnr_retry.is_some());
    note(mask::RQ_PSN, attr.rq_psn.is_some());
    note(mask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic.is_some());
    note(mask::MIN_RNR_TIMER, attr.min_rnr_timer.is_some());
    note(mask::SQ_PSN, attr.sq_psn.is_some());
    note(mask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic.is_some());
    note(mask::DEST_QPN, attr.dest_qpn.is_some());
    let state = |state: Option<QpState>| state.map_or(0, |state| state as u32);
    UserQpAttr {
        qp_attr_mask: bits,
        qp_state: state(attr.state),
        cur_qp_state: state(attr.cur_state),
        path_mtu: attr.path_mtu.map_or(0, PathMtu::code).into(),
        qkey: attr.qkey.unwrap_or_default().0,
        rq_psn: attr.rq_psn.unwrap_or_default().get(),
        sq_psn: attr.sq_psn.unwrap_or_default().get(),
        dest_qp_num: attr.dest_qpn.unwrap_or_default().get(),
        qp_access_flags: attr.access.unwrap_or_default().bits(),
        ah_attr: attr.av.as_ref().map(ah_attr).unwrap_or_default(),
        pkey_index: attr.pkey_index.unwrap_or(0),
        max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
        port_num: attr.port.unwrap_or(0),
        timeout: attr.timeout.unwrap_or(0),
        retry_cnt: attr.retry_cnt.unwrap_or(0),
        rnr_retry: attr.rnr_retry.unwrap_or(0),
        ..UserQpAttr::default()
    }
}

/// The path of an address handle. `EINVAL` without a GRH, which is all of the path that RoCE has,
/// or for a port that does not exist.
pub(crate) fn path_of_ah(attr: &AhAttr) -> Result<AddressVector, Refused> {
    check_path(attr.is_global, attr.port_num)?;
    Ok(AddressVector {
        dgid: Gid(attr.grh.dgid).to_ip(),
        sgid_index: attr.grh.sgid_index,
        traffic_class: attr.grh.traffic_class,
        hop_limit: hop_limit(attr.grh.hop_limit),
        flow_label: attr.grh.flow_label,
    })
}

/// A path has a GRH, and begins at the only port.
fn check_path(is_global: u8, port_num: u8) -> Result<(), Refused> {
    if is_global == 0 {
        let expected = "1, and the destination in grh.dgid, for RoCE has no LIDs";
        return Err(Refused::invalid("ah_attr.is_global", is_global, expected));
    }
    if port_num != PORT {
        return Err(Refused::invalid("ah_attr.port_num", port_num, "1, the only port"));
    }
    Ok(())
}

/// The same, as the kernel tells it.
pub(crate) fn ah_attr(path: &AddressVector) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid::from(path.dgid).0,
        flow_label: path.flow_label,
        sgid_index: path.sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reserved: 0,
    };
    AhAttr { grh, is_global: 1, port_num: PORT, ..AhAttr::default() }
}

fn path_of_qp(dest: &QpDest) -> Result<AddressVector, Refused> {
    check_path(dest.is_global, dest.port_num)?;
    Ok(AddressVector {
        dgid: Gid(dest.dgid).to_ip(),
        sgid_index: dest.sgid_index,
        traffic_class: dest.traffic_class,
        hop_limit: hop_limit(dest.hop_limit),
        flow_label: dest.flow_label,
    })
}

fn dest(path: &AddressVector) -> QpDest {
    QpDest {
        dgid: Gid::from(path.dgid).0,
        flow_label: path.flow_label,
        sgid_index: path.sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        is_global: 1,
        port_num: PORT,
        ..QpDest::default()
    }
}

/// The kernel takes the hop limit of the route, whatever the program says; so programs leave 0 or
/// 1 there, and yet reach peers behind routers.
fn hop_limit(said: u8) -> u8 {
    const USUAL: u8 = 64;
    if said <= 1 { USUAL } else { said }
}

/// `ibv_qp_state`.
pub(crate) fn qp_state(number: u8) -> Result<QpState, Refused> {
    Ok(match number {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return Err(Refused::invalid("qp_state", number, "0 (RESET) to 6 (ERR)")),
    })
}

/// The types of QP that there are.
const QP_TYPES: &str = "IBV_QPT_RC (2), IBV_QPT_UC (3) or IBV_QPT_UD (4)";

/// `ibv_qp_type`. `EOPNOTSUPP` for those that verbs has, and we have not.
pub(crate) fn qp_type(number: u8) -> Result<QpType, Refused> {
    Ok(match number {
        2 => QpType::Rc,
        3 => QpType::Uc,
        4 => QpType::Ud,
        // Raw packets, XRC, drivers' own.
        8 | 9 | 10 | 0xff => {
            let reason = format!("qp_type {number}: this device has {QP_TYPES} only");
            return Err(Refused::new(Errno::OPNOTSUPP, reason));
        }
        _ => return Err(Refused::invalid("qp_type", number, QP_TYPES)),
    })
}

/// `ibv_mtu`.
fn path_mtu(number: u8) -> Result<PathMtu, Refused> {
    let expected = "IBV_MTU_256 (1) to IBV_MTU_4096 (5): a code, not bytes";
    PathMtu::from_code(number).ok_or_else(|| Refused::invalid("path_mtu", number, expected))
}

/// A QPN that is not cut to its 24 bits.
fn qpn(number: u32) -> Result<Qpn, Refused> {
    let number_of = |_| {
        let value = format!("{number:#x}");
        Refused::invalid("dest_qp_num", value, "the peer's qp_num, which has 24 bits")
    };
    Qpn::try_from(number).map_err(number_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modify() -> ModifyQp {
        let dest = QpDest {
            dgid: [9; 16],
            flow_label: 5,
            sgid_index: 2,
            hop_limit: 7,
            traffic_class: 8,
            is_global: 1,
            port_num: 1,
            ..QpDest::default()
        };
        ModifyQp {
            dest,
            qkey: 1,
            rq_psn: 0xff00_0002,
            sq_psn: 3,
            dest_qp_num: 4,
            qp_access_flags: 6,
            qp_state: 2,
            path_mtu: 3,
            max_rd_atomic: 10,
            max_dest_rd_atomic: 11,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 13,
            retry_cnt: 6,
            rnr_retry: 7,
            ..ModifyQp::default()
        }
    }

    #[test]
    fn only_what_the_mask_names_is_changed() {
        let change = |attr_mask| to_change(&ModifyQp { attr_mask, ..modify() });
        assert_eq!(change(0), Ok(QpAttr::default()));
        let state = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
        assert_eq!(change(1), Ok(state));
        let mut bits = 0;
        for bit in (0..21).filter(|bit| ![14, 19].contains(bit)) {
            let before = change(bits).unwrap();
            bits |= 1 << bit;
            let silent = [2, 18].contains(&bit);
            assert_eq!(change(bits).unwrap() == before, silent, "bit {bit}");
        }
        let all = change(bits).unwrap();
        assert_eq!(
            (all.rq_psn, all.path_mtu, all.timeout),
            (Some(Psn::new(2)), Some(PathMtu::Mtu1024), Some(13))
        );
        let av = all.av.unwrap();
        assert_eq!(
            (av.dgid, av.sgid_index, av.hop_limit, av.flow_label),
            (Gid([9; 16]).to_ip(), 2, 7, 5)
        );
    }

    #[test]
    fn attributes_that_cannot_change_are_refused_by_name() {
        let dest = modify().dest;
        let lid = QpDest { is_global: 0, ..dest };
        let port = QpDest { port_num: 2, ..dest };
        let refusals = [
            (1 << 21, modify(), Errno::OPNOTSUPP, "attr_mask 0x200000: "),
            (mask::ALT_PATH, modify(), Errno::INVAL, "attr_mask 0x4000: "),
            (mask::CAP, modify(), Errno::INVAL, "attr_mask 0x80000: "),
            (mask::STATE, ModifyQp { qp_state: 7, ..modify() }, Errno::INVAL, "qp_state 7: "),
            (mask::PATH_MTU, ModifyQp { path_mtu: 6, ..modify() }, Errno::INVAL, "path_mtu 6: "),
            (
                mask::DEST_QPN,
                ModifyQp { dest_qp_num: 1 << 24, ..modify() },
                Errno::INVAL,
                "dest_qp_num 0x1000000: ",
            ),
            (mask::AV, ModifyQp { dest: lid, ..modify() }, Errno::INVAL, "ah_attr.is_global 0: "),
            (mask::AV, ModifyQp { dest: port, ..modify() }, Errno::INVAL, "ah_attr.port_num 2: "),
        ];
        for (attr_mask, command, errno, begins) in refusals {
            let refused = to_change(&ModifyQp { attr_mask, ..command }).unwrap_err();
            assert_eq!(refused.errno, errno, "{begins}");
            let sentence = refused.sentence();
            assert!(sentence.starts_with(begins) && sentence.contains("expected"), "{sentence}");
        }
    }

    #[test]
    fn modified_attributes_are_queried() {
        let attr_mask = mask::STANDARD & !(mask::ALT_PATH | mask::CAP);
        let command = ModifyQp { attr_mask, rq_psn: 2, ..modify() };
        let caps = QpCaps { max_send_wr: 100, ..QpCaps::default() };
        let attr = to_change(&command).unwrap();
        let answer = queried(&QpQueried { attr, caps, sq_sig_all: true, sq_draining: false });
        assert_eq!(answer.dest, command.dest);
        assert_eq!((answer.rq_psn, answer.sq_psn, answer.qkey), (2, 3, 1));
        assert_eq!((answer.qp_state, answer.path_mtu, answer.port_num), (2, 3, 1));
        assert_eq!((answer.max_send_wr, answer.sq_sig_all, answer.timeout), (100, 1, 13));
    }

    /// What librdmacm makes of the attributes that it is told: the same, for another command.
    fn told_to_modify(told: &UserQpAttr) -> ModifyQp {
        let AhAttr { grh, is_global, port_num, .. } = told.ah_attr;
        ModifyQp {
            dest: QpDest {
                dgid: grh.dgid,
                flow_label: grh.flow_label,
                sgid_index: grh.sgid_index,
                hop_limit: grh.hop_limit,
                traffic_class: grh.traffic_class,
                is_global,
                port_num,
                ..QpDest::default()
            },
            attr_mask: told.qp_attr_mask,
            qkey: told.qkey,
            rq_psn: told.rq_psn,
            sq_psn: told.sq_psn,
            dest_qp_num: told.dest_qp_num,
            qp_access_flags: told.qp_access_flags,
            pkey_index: told.pkey_index,
            qp_state: told.qp_state as u8,
            cur_qp_state: told.cur_qp_state as u8,
            path_mtu: told.path_mtu as u8,
            max_rd_atomic: told.max_rd_atomic,
            max_dest_rd_atomic: told.max_dest_rd_atomic,
            min_rnr_timer: told.min_rnr_timer,
            port_num: told.port_num,
            timeout: told.timeout,
            retry_cnt: told.retry_cnt,
            rnr_retry: told.rnr_retry,
            ..ModifyQp::default()
        }
    }

    #[test]
    fn attributes_from_the_connection_manager_are_those_that_change() {
        let all = mask::STANDARD & !(mask::ALT_PATH | mask::CAP);
        for bit in (0..21).map(|bit| 1 << bit).filter(|bit| all & bit != 0).chain([0, all]) {
            let command = ModifyQp { attr_mask: bit, ..modify() };
            let attr = to_change(&command).unwrap();
            assert_eq!(to_change(&told_to_modify(&qp_attr(&attr))), Ok(attr), "{bit:#x}");
        }
    }

    #[test]
    fn a_path_goes_further_than_the_next_router() {
        let limit = |hop_limit| {
            let grh = crate::uverbs::abi::GlobalRoute { hop_limit, ..Default::default() };
            let attr = AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() };
            path_of_ah(&attr).unwrap().hop_limit
        };
        assert_eq!([0, 1, 2, 255].map(limit), [64, 64, 2, 255]);
    }

    #[test]
    fn path_mtus_have_numbers() {
        let of = |number| path_mtu(number).ok();
        assert_eq!(
            [0, 1, 5, 6].map(of),
            [None, Some(PathMtu::Mtu256), Some(PathMtu::Mtu4096), None]
        );
    }
}
