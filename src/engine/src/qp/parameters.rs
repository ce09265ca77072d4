//! What a QP works with from RTR and from RTS on: the attributes, resolved when a state is entered.

use crate::tuning::WireForm;
use std::time::Duration;
use urxe_types::{Access, Qkey, Qpn, RnrTimer};
use urxe_wire::{Flow, Outer};

/// The way to the peer of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) flow: Flow,
    /// The largest payload of a packet.
    pub(super) mtu: u32,
    pub(super) dest_qpn: Qpn,
    /// How messages become packets on it.
    pub(super) wire: WireForm,
}

impl Route {
    /// Whether a packet with these outer headers came over it.
    pub(super) fn is_way_of(&self, outer: &Outer) -> bool {
        (self.flow.src, self.flow.dst) == (outer.flow.dst, outer.flow.src)
    }
}

/// What the responder of an RC QP works with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponderParameters {
    /// What the peer may do.
    pub(super) access: Access,
    /// READs, atomics and ATOMIC WRITEs that the peer may have outstanding.
    pub(super) max_dest_rd_atomic: u8,
    /// How long the peer shall wait when no receive is posted.
    pub(super) min_rnr_timer: RnrTimer,
}

/// What requester and completer of an RC QP work with.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequesterParameters {
    /// READs, atomics and ATOMIC WRITEs that may be outstanding.
    pub(super) max_rd_atomic: u8,
    /// The ACK timeout; `None` waits for ever.
    pub(super) ack_timeout: Option<Duration>,
    /// Tries after a timeout or a sequence error.
    pub(super) retry_cnt: u8,
    /// Tries after an RNR NAK; 7 is for ever.
    pub(super) rnr_retry: u8,
}

/// What a QP works with, by its service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parameters {
    Rc {
        route: Route,
        responder: ResponderParameters,
        /// From RTS on.
        requester: Option<RequesterParameters>,
    },
    Uc {
        route: Route,
        /// What the peer may do.
        access: Access,
    },
    Ud {
        /// What a datagram must carry to be taken.
        qkey: Qkey,
    },
}
