//! What the QP and its memory do not allow.

use super::requests::{compare_swap, fetch_add, read, write_only, writes};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::packet::Packet;
use crate::script::Script;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "rights/write-where-only-reads-are-allowed",
        rule: "RC-RESP-014",
        says: "A WRITE to a QP and memory that only let be read is refused.",
        risk: Risk::None,
        run: write_where_only_reads_are_allowed,
    },
    Check {
        name: "rights/write-in-packets-where-only-reads-are-allowed",
        rule: "RC-RESP-014",
        says: "A WRITE of several packets is refused at its first, where writing is not allowed.",
        risk: Risk::None,
        run: write_in_packets_where_only_reads_are_allowed,
    },
    Check {
        name: "rights/read-where-only-writes-are-allowed",
        rule: "RC-RESP-014",
        says: "A READ from a QP and memory that only let be written to is refused.",
        risk: Risk::None,
        run: read_where_only_writes_are_allowed,
    },
    Check {
        name: "rights/fetch-add-where-only-reads-and-writes-are-allowed",
        rule: "RC-RESP-014",
        says: "A FETCH ADD where atomics are not allowed is refused.",
        risk: Risk::None,
        run: fetch_add_where_only_reads_and_writes_are_allowed,
    },
    Check {
        name: "rights/compare-swap-where-only-writes-are-allowed",
        rule: "RC-RESP-014",
        says: "A COMPARE SWAP where atomics are not allowed is refused.",
        risk: Risk::None,
        run: compare_swap_where_only_writes_are_allowed,
    },
    Check {
        name: "rights/write-where-only-atomics-are-allowed",
        rule: "RC-RESP-014",
        says: "A WRITE where only atomics are allowed is refused.",
        risk: Risk::None,
        run: write_where_only_atomics_are_allowed,
    },
    Check {
        name: "rights/read-where-only-atomics-are-allowed",
        rule: "RC-RESP-014",
        says: "A READ where only atomics are allowed is refused.",
        risk: Risk::None,
        run: read_where_only_atomics_are_allowed,
    },
];

fn write_where_only_reads_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().read(), |t| write_only(t, 0, 0, &[1; 8]))
}

fn write_in_packets_where_only_reads_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().read(), |t| writes(t, 0, 0, &[1; 2000])[0].clone())
}

fn read_where_only_writes_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().write(), |t| read(t, 0, 0, 8))
}

fn fetch_add_where_only_reads_and_writes_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().write().read(), |t| fetch_add(t, 0, 0, 1))
}

fn compare_swap_where_only_writes_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().write(), |t| compare_swap(t, 0, 0, 0, 1))
}

fn write_where_only_atomics_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().atomic(), |t| write_only(t, 0, 0, &[1; 8]))
}

fn read_where_only_atomics_are_allowed(t: &mut Script<'_>) -> Outcome {
    refused(t, &Setup::rc().atomic(), |t| read(t, 0, 0, 8))
}

/// A request that neither QP nor memory allow is an invalid request, since the QP is asked first.
fn refused(t: &mut Script<'_>, setup: &Setup, request: impl Fn(&Script<'_>) -> Packet) -> Outcome {
    t.connect(setup)?;
    t.send(request(t))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 0)
}
