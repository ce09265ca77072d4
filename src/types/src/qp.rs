//! Queue pairs: transports, states, and the attributes that `ibv_modify_qp` changes.

use crate::{Access, AddressVector, PathMtu, Psn, Qkey, Qpn};
use serde::{Deserialize, Serialize};

/// The transport service of a QP: `ibv_qp_type`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection: in order, but what is lost stays lost.
    Uc = 3,
    /// Unreliable datagram: one packet, to anybody.
    Ud = 4,
}

impl QpType {
    /// Its name without the prefix `IBV_QPT_`.
    pub const fn name(self) -> &'static str {
        match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
        }
    }
}

/// The QP states of the verbs, with `ibv_qp_state`'s numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum QpState {
    /// Just made, or set back: does nothing.
    Reset = 0,
    /// Receives may be posted; nothing moves.
    Init = 1,
    /// Ready to receive: the responder works.
    Rtr = 2,
    /// Ready to send: requester and responder work.
    Rts = 3,
    /// Send queue draining: what has begun ends, nothing new begins.
    Sqd = 4,
    /// Send queue error (not RC): the responder still works.
    Sqe = 5,
    /// Error: everything is flushed.
    Err = 6,
}

impl QpState {
    /// Its name, as verbs has it.
    pub const fn name(self) -> &'static str {
        match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        }
    }
}

/// `ibv_qp_attr` with its mask: what is `Some` is to be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttr {
    /// The state to go to; `None` changes attributes in the current state.
    pub state: Option<QpState>,
    /// The state the caller believes the QP to be in.
    pub cur_state: Option<QpState>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// Index into the P_Key table; only 0 exists.
    pub pkey_index: Option<u16>,
    /// Port number; only 1 exists.
    pub port: Option<u8>,
    /// The path to the peer.
    pub av: Option<AddressVector>,
    /// Largest payload of a packet.
    pub path_mtu: Option<PathMtu>,
    /// The peer's QPN.
    pub dest_qpn: Option<Qpn>,
    /// UD: what a datagram must carry to be taken.
    pub qkey: Option<Qkey>,
    /// First PSN expected.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs, atomics and ATOMIC WRITEs that we may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// READs, atomics and ATOMIC WRITEs that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code (0 to 31) of the time a peer shall wait when we have no receive posted. The engine
    /// checks it and makes it an [`RnrTimer`](crate::RnrTimer): a larger number is refused, not
    /// cut.
    pub min_rnr_timer: Option<u8>,
    /// Code (0 to 31) of the ACK timeout, which is never less than the path needs; 0 waits for
    /// ever. The engine checks it and makes it a [`TimeCode`](crate::TimeCode), as above.
    pub timeout: Option<u8>,
    /// Tries (0 to 7) after a timeout or a sequence error, each meaning just that many.
    pub retry_cnt: Option<u8>,
    /// Tries (0 to 6) after an RNR NAK; 7 is for ever.
    pub rnr_retry: Option<u8>,
}
