//! The states of a QP, and what each change of state needs and allows.
//!
//! ```text
//!                              UC, UD: a send failed +-----+
//!                                             +----->| SQE |
//!                                             |      +-----+
//!                                             |         | modify
//!          +-------+     +------+     +-----+     +-----+ <---> +-----+
//!  create->| RESET |---->| INIT |---->| RTR |---->| RTS |       | SQD |
//!          +-------+     +------+     +-----+     +-----+       +-----+
//!              ^ any state                any state | modify, or an error
//!              +------------------------------+     v
//!                                             |  +-----+
//!                                             +--| ERR |
//!                                                +-----+
//! ```

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use QpType::{Rc, Uc, Ud};
use urxe_types::{QpAttr, QpState, QpType};

/// An attribute of [`QpAttr`], named as in `ibv_qp_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `qp_access_flags`
    Access,
    /// `pkey_index`
    PkeyIndex,
    /// `port_num`
    Port,
    /// `ah_attr`
    Av,
    /// `path_mtu`
    PathMtu,
    /// `dest_qp_num`
    DestQpn,
    Qkey,
    /// `rq_psn`
    RqPsn,
    /// `sq_psn`
    SqPsn,
    /// `max_rd_atomic`
    MaxRdAtomic,
    /// `max_dest_rd_atomic`
    MaxDestRdAtomic,
    /// `min_rnr_timer`
    MinRnrTimer,
    Timeout,
    /// `retry_cnt`
    RetryCnt,
    /// `rnr_retry`
    RnrRetry,
}

use Attribute::*;

impl Attribute {
    /// All of them.
    pub const ALL: [Attribute; 15] = [
        Access,
        PkeyIndex,
        Port,
        Av,
        PathMtu,
        DestQpn,
        Qkey,
        RqPsn,
        SqPsn,
        MaxRdAtomic,
        MaxDestRdAtomic,
        MinRnrTimer,
        Timeout,
        RetryCnt,
        RnrRetry,
    ];

    /// Its name in `ibv_qp_attr`.
    pub const fn name(self) -> &'static str {
        match self {
            Access => "qp_access_flags",
            PkeyIndex => "pkey_index",
            Port => "port_num",
            Av => "ah_attr",
            PathMtu => "path_mtu",
            DestQpn => "dest_qp_num",
            Qkey => "qkey",
            RqPsn => "rq_psn",
            SqPsn => "sq_psn",
            MaxRdAtomic => "max_rd_atomic",
            MaxDestRdAtomic => "max_dest_rd_atomic",
            MinRnrTimer => "min_rnr_timer",
            Timeout => "timeout",
            RetryCnt => "retry_cnt",
            RnrRetry => "rnr_retry",
        }
    }

    /// Its bit in the mask of `ibv_modify_qp`.
    pub const fn mask(self) -> &'static str {
        match self {
            Access => "IBV_QP_ACCESS_FLAGS",
            PkeyIndex => "IBV_QP_PKEY_INDEX",
            Port => "IBV_QP_PORT",
            Av => "IBV_QP_AV",
            PathMtu => "IBV_QP_PATH_MTU",
            DestQpn => "IBV_QP_DEST_QPN",
            Qkey => "IBV_QP_QKEY",
            RqPsn => "IBV_QP_RQ_PSN",
            SqPsn => "IBV_QP_SQ_PSN",
            MaxRdAtomic => "IBV_QP_MAX_QP_RD_ATOMIC",
            MaxDestRdAtomic => "IBV_QP_MAX_DEST_RD_ATOMIC",
            MinRnrTimer => "IBV_QP_MIN_RNR_TIMER",
            Timeout => "IBV_QP_TIMEOUT",
            RetryCnt => "IBV_QP_RETRY_CNT",
            RnrRetry => "IBV_QP_RNR_RETRY",
        }
    }

    /// Whether `attr` sets it.
    pub(super) fn is_set(self, attr: &QpAttr) -> bool {
        match self {
            Access => attr.access.is_some(),
            PkeyIndex => attr.pkey_index.is_some(),
            Port => attr.port.is_some(),
            Av => attr.av.is_some(),
            PathMtu => attr.path_mtu.is_some(),
            DestQpn => attr.dest_qpn.is_some(),
            Qkey => attr.qkey.is_some(),
            RqPsn => attr.rq_psn.is_some(),
            SqPsn => attr.sq_psn.is_some(),
            MaxRdAtomic => attr.max_rd_atomic.is_some(),
            MaxDestRdAtomic => attr.max_dest_rd_atomic.is_some(),
            MinRnrTimer => attr.min_rnr_timer.is_some(),
            Timeout => attr.timeout.is_some(),
            RetryCnt => attr.retry_cnt.is_some(),
            RnrRetry => attr.rnr_retry.is_some(),
        }
    }
}

/// What a change of state needs, and what else it may bring.
pub(super) struct Transition {
    pub(super) required: &'static [Attribute],
    pub(super) optional: &'static [Attribute],
}

/// The change of a QP from one state to another, if there is one (the kernel's
/// `ib_modify_qp_is_ok`, IBTA 11.2.5.2).
pub(super) fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    // STATE-001
    let (required, optional): (&[_], &[_]) = match (from, to, qp_type) {
        (_, Reset | Err, _) => (&[], &[]),

        (Reset, Init, Rc | Uc) => (&[PkeyIndex, Port, Access], &[]),
        (Reset, Init, Ud) => (&[PkeyIndex, Port, Qkey], &[]),
        (Init, Init, Rc | Uc) => (&[], &[PkeyIndex, Port, Access]),
        (Init, Init, Ud) => (&[], &[PkeyIndex, Port, Qkey]),

        (Init, Rtr, Rc) => {
            (&[Av, PathMtu, DestQpn, RqPsn, MaxDestRdAtomic, MinRnrTimer], &[Access, PkeyIndex])
        }
        (Init, Rtr, Uc) => (&[Av, PathMtu, DestQpn, RqPsn], &[Access, PkeyIndex]),
        (Init, Rtr, Ud) => (&[], &[PkeyIndex, Qkey]),

        (Rtr, Rts, Rc) => {
            (&[Timeout, RetryCnt, RnrRetry, SqPsn, MaxRdAtomic], &[Access, MinRnrTimer])
        }
        (Rtr, Rts, Uc) => (&[SqPsn], &[Access]),
        (Rtr, Rts, Ud) => (&[SqPsn], &[Qkey]),

        (Rts | Sqd, Rts, Rc) => (&[], &[Access, MinRnrTimer]),
        (Rts | Sqd | Sqe, Rts, Uc) => (&[], &[Access]),
        (Rts | Sqd | Sqe, Rts, Ud) => (&[], &[Qkey]),

        (Rts, Sqd, _) => (&[], &[]),
        // STATE-032
        (Sqd, Sqd, Rc) => (
            &[],
            &[
                Access,
                PkeyIndex,
                Port,
                Av,
                MaxRdAtomic,
                MaxDestRdAtomic,
                MinRnrTimer,
                Timeout,
                RetryCnt,
                RnrRetry,
            ],
        ),
        (Sqd, Sqd, Uc) => (&[], &[Access, PkeyIndex, Av]),
        (Sqd, Sqd, Ud) => (&[], &[PkeyIndex, Qkey]),
        _ => return None,
    };
    Some(Transition { required, optional })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    fn table(qp_type: QpType) -> String {
        let row = |from| {
            let cell = |to| if transition(qp_type, from, to).is_some() { 'x' } else { '.' };
            STATES.map(cell).iter().collect::<String>() + "\n"
        };
        STATES.map(row).concat()
    }

    #[test]
    fn every_pair_of_states_is_as_the_diagram_says() {
        // Columns: RESET INIT RTR RTS SQD SQE ERR.
        let up_to_sqd = "xx....x\n\
                         xxx...x\n\
                         x..x..x\n\
                         x..xx.x\n\
                         x..xx.x\n";
        assert_eq!(table(Rc), format!("{up_to_sqd}x.....x\nx.....x\n"), "RC is never in SQE");
        for qp_type in [Uc, Ud] {
            assert_eq!(table(qp_type), format!("{up_to_sqd}x..x..x\nx.....x\n"), "{qp_type:?}");
        }
    }

    #[test]
    fn each_transport_needs_what_it_uses() {
        let required = |qp_type, from, to| transition(qp_type, from, to).unwrap().required;
        assert_eq!(required(Uc, Init, Rtr), [Av, PathMtu, DestQpn, RqPsn]);
        assert_eq!(required(Uc, Rtr, Rts), [SqPsn]);
        assert_eq!(required(Ud, Reset, Init), [PkeyIndex, Port, Qkey]);
        assert_eq!(required(Ud, Init, Rtr), []);
        assert_eq!(required(Ud, Rtr, Rts), [SqPsn]);
    }
}
