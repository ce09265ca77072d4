//! The checks, by area.

mod acks;
mod answers;
mod atomics;
mod cm_call;
mod cm_caller;
mod cm_end;
mod cm_listener;
mod cm_refusals;
mod cm_sidr;
mod congestion;
mod duplicates;
mod headers;
mod hostile;
mod icrc;
mod lengths;
mod loss;
mod memory;
mod naks;
mod opcodes;
mod partition;
mod placement;
mod psn;
mod read;
mod receives;
mod replays;
mod requester_ack;
mod requester_placement;
mod requester_read;
mod requester_retry;
mod requester_send;
mod requester_write;
mod requests;
mod rights;
mod rnr;
mod send;
mod srq;
mod states;
mod uc;
mod ud;
mod windows;
mod write;

use crate::check::Check;

/// All of them, in the order in which they are run.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        headers::CHECKS,
        icrc::CHECKS,
        partition::CHECKS,
        acks::CHECKS,
        psn::CHECKS,
        opcodes::CHECKS,
        lengths::CHECKS,
        naks::CHECKS,
        duplicates::CHECKS,
        replays::CHECKS,
        rnr::CHECKS,
        send::CHECKS,
        write::CHECKS,
        memory::CHECKS,
        read::CHECKS,
        atomics::CHECKS,
        rights::CHECKS,
        placement::CHECKS,
        congestion::CHECKS,
        loss::CHECKS,
        hostile::CHECKS,
        requester_send::CHECKS,
        requester_write::CHECKS,
        requester_read::CHECKS,
        requester_placement::CHECKS,
        requester_ack::CHECKS,
        requester_retry::CHECKS,
        states::CHECKS,
        receives::CHECKS,
        srq::CHECKS,
        windows::CHECKS,
        uc::CHECKS,
        ud::CHECKS,
        cm_listener::CHECKS,
        cm_refusals::CHECKS,
        cm_end::CHECKS,
        cm_sidr::CHECKS,
        cm_caller::CHECKS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests;
