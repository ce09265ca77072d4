//! The states of an RC QP, and what each change of state needs and allows.
//!
//! ```text
//!          +-------+     +------+     +-----+     +-----+ <---> +-----+
//!  create->| RESET |---->| INIT |---->| RTR |---->| RTS |       | SQD |
//!          +-------+     +------+     +-----+     +-----+       +-----+
//!              ^ any state                any state | modify, or an error
//!              +------------------------------+     v
//!                                             |  +-----+
//!                                             +--| ERR |
//!                                                +-----+
//! ```

use crate::attr::{QpAttr, QpState};
use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};

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
    /// `timeout`
    Timeout,
    /// `retry_cnt`
    RetryCnt,
    /// `rnr_retry`
    RnrRetry,
}

use Attribute::*;

impl Attribute {
    /// All of them.
    pub const ALL: [Attribute; 14] = [
        Access,
        PkeyIndex,
        Port,
        Av,
        PathMtu,
        DestQpn,
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

    /// Whether `attr` sets it.
    pub(super) fn is_set(self, attr: &QpAttr) -> bool {
        match self {
            Access => attr.access.is_some(),
            PkeyIndex => attr.pkey_index.is_some(),
            Port => attr.port.is_some(),
            Av => attr.av.is_some(),
            PathMtu => attr.path_mtu.is_some(),
            DestQpn => attr.dest_qpn.is_some(),
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

/// The change of an RC QP from one state to another, if there is one (the kernel's
/// `ib_modify_qp_is_ok`, IBTA 11.2.5.2).
pub(super) fn transition(from: QpState, to: QpState) -> Option<Transition> {
    let (required, optional): (&[_], &[_]) = match (from, to) {
        (_, Reset | Err) => (&[], &[]),
        (Reset, Init) => (&[PkeyIndex, Port, Access], &[]),
        (Init, Init) => (&[], &[PkeyIndex, Port, Access]),
        (Init, Rtr) => {
            (&[Av, PathMtu, DestQpn, RqPsn, MaxDestRdAtomic, MinRnrTimer], &[Access, PkeyIndex])
        }
        (Rtr, Rts) => (&[Timeout, RetryCnt, RnrRetry, SqPsn, MaxRdAtomic], &[Access, MinRnrTimer]),
        (Rts | Sqd, Rts) => (&[], &[Access, MinRnrTimer]),
        (Rts, Sqd) => (&[], &[]),
        (Sqd, Sqd) => (
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
        _ => return None,
    };
    Some(Transition { required, optional })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, QpState::Sqe, Err];

    #[test]
    fn every_pair_of_states_is_as_the_diagram_says() {
        let mut table = String::new();
        for from in STATES {
            for to in STATES {
                table.push(if transition(from, to).is_some() { 'x' } else { '.' });
            }
            table.push('\n');
        }
        // Columns: RESET INIT RTR RTS SQD SQE ERR.
        let expected = "xx....x\n\
                        xxx...x\n\
                        x..x..x\n\
                        x..xx.x\n\
                        x..xx.x\n\
                        x.....x\n\
                        x.....x\n";
        assert_eq!(table, expected);
    }
}
