//! What goes between requester and completer.

use crate::path::Standing;
use std::time::Instant;
use urxe_types::Psn;

/// What the requester may send to a peer that may be short of receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Whether anything may be sent.
    pub(super) may_send: bool,
    /// Whether nothing may follow the next packet that takes a receive before it is acknowledged.
    pub(super) is_next_the_last: bool,
    /// What is known of whether the peer answers.
    pub(super) standing: Standing,
}

/// What the requester has sent: one packet, or several of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) packets: u32,
    /// That of the last packet.
    pub(super) psn: Psn,
    pub(super) is_repeated: bool,
    pub(super) asks_for_ack: bool,
    pub(super) takes_receive: bool,
}

/// The oldest packet was repeated to draw an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probed {
    pub(super) psn: Psn,
    /// The PSN after all that was sent before.
    pub(super) sent: Psn,
    /// How many repeats had been made before.
    pub(super) repeats_made: u64,
    pub(super) at: Instant,
}
