//! What the QP and its memory do not allow.

use super::requests::{compare_swap, fetch_add, read, write_only, writes};
use crate::agent::{Command, Key, ModifyQp};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_types::Access;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess};
use urxe_wire::Opcode;

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
    Check {
        name: "rights/qp-that-does-not-let-write",
        rule: "RC-RESP-014",
        says: "A WRITE to a region that lets be written is refused, where the QP does not let.",
        risk: Risk::None,
        run: qp_that_does_not_let_write,
    },
    Check {
        name: "rights/qp-that-does-not-let-read",
        rule: "RC-RESP-014",
        says: "A READ of a region that lets be read is refused, where the QP does not let.",
        risk: Risk::None,
        run: qp_that_does_not_let_read,
    },
    Check {
        name: "rights/qp-that-lets-no-atomics",
        rule: "RC-RESP-014",
        says: "An atomic on a region that lets atomics is refused, where the QP does not let.",
        risk: Risk::None,
        run: qp_that_lets_no_atomics,
    },
    Check {
        name: "rights/region-that-does-not-let-write",
        rule: "RC-RESP-015",
        says: "A WRITE is a remote access error where the QP lets and the region does not.",
        risk: Risk::None,
        run: region_that_does_not_let_write,
    },
    Check {
        name: "rights/region-that-does-not-let-read",
        rule: "RC-RESP-015",
        says: "A READ is a remote access error where the QP lets and the region does not.",
        risk: Risk::None,
        run: region_that_does_not_let_read,
    },
    Check {
        name: "rights/region-that-lets-no-atomics",
        rule: "RC-RESP-015",
        says: "An atomic is a remote access error where the QP lets and the region does not.",
        risk: Risk::None,
        run: region_that_lets_no_atomics,
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

fn qp_that_does_not_let_write(t: &mut Script<'_>) -> Outcome {
    qp_refuses(t, &both(), Access::REMOTE_READ, |t| write_only(t, 0, 0, &[1; 8]))
}

fn qp_that_does_not_let_read(t: &mut Script<'_>) -> Outcome {
    qp_refuses(t, &both(), Access::REMOTE_WRITE, |t| read(t, 0, 0, 8))
}

fn qp_that_lets_no_atomics(t: &mut Script<'_>) -> Outcome {
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    qp_refuses(t, &both().atomic(), rights, |t| fetch_add(t, 0, 0, 1))
}

fn region_that_does_not_let_write(t: &mut Script<'_>) -> Outcome {
    region_refuses(t, &both(), Access::REMOTE_READ, |key| {
        packet(Opcode::RC_WRITE_ONLY).reth(key.addr, key.rkey, 8).payload(&[1; 8]).ack_req()
    })
}

fn region_that_does_not_let_read(t: &mut Script<'_>) -> Outcome {
    region_refuses(t, &both(), Access::REMOTE_WRITE, |key| {
        packet(Opcode::RC_READ_REQUEST).reth(key.addr, key.rkey, 8)
    })
}

fn region_that_lets_no_atomics(t: &mut Script<'_>) -> Outcome {
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    region_refuses(t, &both().atomic(), rights, |key| {
        packet(Opcode::RC_FETCH_ADD).atomic(key.addr, key.rkey, 1, 0)
    })
}

/// A QP whose memory lets this setup, and that itself lets only this, refuses a request.
fn qp_refuses(
    t: &mut Script<'_>,
    setup: &Setup,
    rights: Access,
    request: impl Fn(&Script<'_>) -> Packet,
) -> Outcome {
    t.connect(setup)?;
    let access = Some((Access::LOCAL_WRITE | rights).bits());
    t.modify_with(ModifyQp { access, ..ModifyQp::default() })?;
    t.send(request(t))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 0)
}

/// Where a QP lets this setup, memory that lets only this is closed to a request.
fn region_refuses(
    t: &mut Script<'_>,
    setup: &Setup,
    rights: Access,
    request: impl Fn(&Key) -> Packet,
) -> Outcome {
    t.connect(setup)?;
    let access = (Access::LOCAL_WRITE | rights).bits();
    let name = "closed".into();
    let key: Key = t.tell(&Command::RegMr { name, len: 4096, access })?;
    t.send(request(&key))?;
    t.expect_refused(RemoteAccess, 0)
}

/// Peers may WRITE and READ. Atomics are optional, and so are only where they are asked about.
fn both() -> Setup {
    Setup::rc().write().read()
}

/// A request that neither QP nor memory allow is an invalid request, since the QP is asked first.
fn refused(t: &mut Script<'_>, setup: &Setup, request: impl Fn(&Script<'_>) -> Packet) -> Outcome {
    t.connect(setup)?;
    t.send(request(t))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 0)
}
