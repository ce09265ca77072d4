//! FLUSH and ATOMIC WRITE, the memory placement extensions. A device need not have them.

use super::requests::{silent_write, write_only};
use crate::check::{Check, Outcome, Risk, Stop};
use crate::device::Setup;
use crate::expect::{Expect, empty_response, nak};
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess};
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "placement/flush-is-answered",
        rule: "FAW-001",
        says: "A FLUSH of a range is answered by a READ response of nothing, and counts as a \
               message.",
        risk: Risk::None,
        run: flush_is_answered,
    },
    Check {
        name: "placement/flush-of-nothing",
        rule: "FAW-003",
        says: "A FLUSH of no bytes with a good key is answered.",
        risk: Risk::None,
        run: flush_of_nothing,
    },
    Check {
        name: "placement/flush-of-the-region",
        rule: "FAW-002",
        says: "A FLUSH of the whole region is answered, whatever its range.",
        risk: Risk::None,
        run: flush_of_the_region,
    },
    Check {
        name: "placement/flush-again",
        rule: "FAW-008",
        says: "A FLUSH that comes again is answered again, and does not count again.",
        risk: Risk::None,
        run: flush_again,
    },
    Check {
        name: "placement/flush-with-a-wrong-key",
        rule: "FAW-003",
        says: "A FLUSH with a key that opens nothing is a remote access error.",
        risk: Risk::None,
        run: flush_with_a_wrong_key,
    },
    Check {
        name: "placement/flush-past-the-end",
        rule: "FAW-002",
        says: "A FLUSH of a range that leaves its region is a remote access error.",
        risk: Risk::None,
        run: flush_past_the_end,
    },
    Check {
        name: "placement/flush-of-no-kind",
        rule: "FAW-006",
        says: "A FLUSH to no placement at all is an invalid request.",
        risk: Risk::None,
        run: flush_of_no_kind,
    },
    Check {
        name: "placement/flush-where-it-is-not-allowed",
        rule: "FAW-004",
        says: "A FLUSH where it is not allowed is refused.",
        risk: Risk::None,
        run: flush_where_it_is_not_allowed,
    },
    Check {
        name: "placement/atomic-write-is-answered",
        rule: "FAW-016",
        says: "An ATOMIC WRITE is answered by a READ response of nothing, and counts as a message.",
        risk: Risk::None,
        run: atomic_write_is_answered,
    },
    Check {
        name: "placement/atomic-write-is-seen",
        rule: "FAW-016",
        says: "The eight bytes of an ATOMIC WRITE are in memory, in order with the WRITEs \
               around it.",
        risk: Risk::None,
        run: atomic_write_is_seen,
    },
    Check {
        name: "placement/atomic-write-again",
        rule: "FAW-020",
        says: "An ATOMIC WRITE that comes again is answered again and not done again.",
        risk: Risk::None,
        run: atomic_write_again,
    },
    Check {
        name: "placement/atomic-write-misaligned",
        rule: "FAW-018",
        says: "An ATOMIC WRITE at an address that is no multiple of eight is an invalid request.",
        risk: Risk::None,
        run: atomic_write_misaligned,
    },
    Check {
        name: "placement/atomic-write-of-nothing",
        rule: "FAW-017",
        says: "An ATOMIC WRITE without payload is an invalid request.",
        risk: Risk::Hostile,
        run: atomic_write_of_nothing,
    },
    Check {
        name: "placement/atomic-write-of-sixteen-bytes",
        rule: "FAW-017",
        says: "An ATOMIC WRITE of another length than eight is an invalid request.",
        risk: Risk::None,
        run: atomic_write_of_sixteen_bytes,
    },
    Check {
        name: "placement/atomic-write-with-a-wrong-key",
        rule: "FAW-019",
        says: "An ATOMIC WRITE with a key that opens nothing is a remote access error.",
        risk: Risk::None,
        run: atomic_write_with_a_wrong_key,
    },
    Check {
        name: "placement/atomic-write-where-only-reads-are-allowed",
        rule: "FAW-019",
        says: "An ATOMIC WRITE where writing is not allowed is refused.",
        risk: Risk::None,
        run: atomic_write_where_only_reads_are_allowed,
    },
];

fn flush_is_answered(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    t.send_all(&[silent_write(t, 0, 0, &[1; 64]), flush(t, 1, GLOBAL, 64)])?;
    answer(t, empty_response(1).msn(2), 1)?;
    t.expect_service(2, 3)
}

fn flush_of_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    t.send(flush(t, 0, GLOBAL, 0))?;
    answer(t, empty_response(0).msn(1), 0)?;
    t.expect_service(1, 2)
}

fn flush_of_the_region(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    t.send(flush(t, 0, GLOBAL | WHOLE_REGION, 1 << 30))?;
    answer(t, empty_response(0).msn(1), 0)?;
    t.expect_service(1, 2)
}

fn flush_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    t.send(flush(t, 0, GLOBAL, 64))?;
    answer(t, empty_response(0).msn(1), 0)?;
    t.send(flush(t, 0, GLOBAL, 64))?;
    t.expect(empty_response(0).msn(1))?;
    t.expect_service(1, 2)
}

fn flush_with_a_wrong_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    probe_flush(t)?;
    let rkey = t.rkey() ^ 0x1000_0001;
    t.send(packet(Opcode::RC_FLUSH).at(1).feth(GLOBAL).reth(t.addr(0), rkey, 8))?;
    t.expect_refused(RemoteAccess, 1)
}

fn flush_past_the_end(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    probe_flush(t)?;
    let len = t.memory().len as u32 + 1;
    t.send(flush(t, 1, GLOBAL, len))?;
    t.expect_refused(RemoteAccess, 1)
}

fn flush_of_no_kind(t: &mut Script<'_>) -> Outcome {
    t.connect(&flushable())?;
    probe_flush(t)?;
    t.send(flush(t, 1, 0, 8))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 1)
}

fn flush_where_it_is_not_allowed(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(flush(t, 0, GLOBAL, 8))?;
    let expected = [nak(InvalidRequest, 0), nak(RemoteAccess, 0)];
    if t.expect_nothing_or(&expected)?.is_none() {
        return Err(Stop::NotSupported("it is silent to a FLUSH".into()));
    }
    t.expect_no_service(0)
}

fn atomic_write_is_answered(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(atomic_write(t, 0, 8, &[1; 8]))?;
    answer(t, empty_response(0).msn(1), 0)?;
    t.expect_service(1, 2)
}

fn atomic_write_is_seen(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    t.send(write_only(t, 0, 0, &[0xaa; 24]))?;
    t.expect_acked(0, 1)?;
    let data = t.bytes(8);
    t.send(atomic_write(t, 1, 8, &data))?;
    answer(t, empty_response(1).msn(2), 1)?;
    let wanted = [&[0xaa; 8], &data[..], &[0xaa; 8]].concat();
    t.expect_memory(2, 3, 0, &wanted)
}

fn atomic_write_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    t.send(atomic_write(t, 0, 8, &[1; 8]))?;
    answer(t, empty_response(0).msn(1), 0)?;
    t.send(write_only(t, 1, 8, &[2; 8]))?;
    t.expect_acked(1, 2)?;
    t.send(atomic_write(t, 0, 8, &[1; 8]))?;
    t.expect(empty_response(0))?;
    t.expect_memory(2, 3, 8, &[2; 8])
}

fn atomic_write_misaligned(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    probe_atomic_write(t)?;
    t.send(atomic_write(t, 1, 4, &[1; 8]))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 1)
}

fn atomic_write_of_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    probe_atomic_write(t)?;
    t.send(atomic_write(t, 1, 0, &[]))?;
    t.expect_refused(InvalidRequest, 1)
}

fn atomic_write_of_sixteen_bytes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    probe_atomic_write(t)?;
    t.send(atomic_write(t, 1, 0, &[1; 16]))?;
    t.expect_refused(InvalidRequest, 1)
}

fn atomic_write_with_a_wrong_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    probe_atomic_write(t)?;
    let rkey = t.rkey() ^ 0x1000_0001;
    t.send(packet(Opcode::RC_ATOMIC_WRITE).at(1).reth(t.addr(0), rkey, 8).payload(&[1; 8]))?;
    t.expect_refused(RemoteAccess, 1)
}

fn atomic_write_where_only_reads_are_allowed(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(atomic_write(t, 0, 0, &[1; 8]))?;
    let expected = [nak(InvalidRequest, 0), nak(RemoteAccess, 0)];
    if t.expect_nothing_or(&expected)?.is_none() {
        return Err(Stop::NotSupported("it is silent to an ATOMIC WRITE".into()));
    }
    t.expect_no_service(0)
}

/// FETH: the bytes are to be seen by all.
const GLOBAL: u32 = 1;
/// FETH: all of the region, not the range.
const WHOLE_REGION: u32 = 1 << 4;

fn flushable() -> Setup {
    Setup { flush: true, ..Setup::rc().write() }
}

fn flush(t: &Script<'_>, psn: i32, feth: u32, len: u32) -> Packet {
    packet(Opcode::RC_FLUSH).at(psn).feth(feth).reth(t.addr(0), t.rkey(), len)
}

fn atomic_write(t: &Script<'_>, psn: i32, offset: u64, data: &[u8]) -> Packet {
    let request = packet(Opcode::RC_ATOMIC_WRITE).at(psn);
    request.reth(t.addr(offset), t.rkey(), data.len() as u32).payload(data)
}

/// This answer comes. A device that has none of these requests calls them invalid, or is silent;
/// one that is silent to a FLUSH and answers an ATOMIC WRITE has lost the FLUSH.
fn answer(t: &mut Script<'_>, expected: Expect, psn: i32) -> Outcome {
    match t.expect_nothing_or(&[expected.clone(), nak(InvalidRequest, psn)])? {
        Some(0) => Ok(()),
        Some(_) => Err(Stop::NotSupported("it calls the opcode an invalid request".into())),
        None => {
            t.send(atomic_write(t, psn, 0, &[1; 8]))?;
            match t.expect_nothing_or(&[empty_response(psn), nak(InvalidRequest, psn)])? {
                Some(0) => Err(Stop::failed(expected.describe(), "nothing")),
                _ => Err(Stop::NotSupported("it is silent to the opcode".into())),
            }
        }
    }
}

/// Whether there is FLUSH at all, by one at PSN 0.
fn probe_flush(t: &mut Script<'_>) -> Outcome {
    t.send(flush(t, 0, GLOBAL, 8))?;
    answer(t, empty_response(0).msn(1), 0)
}

/// Whether there is ATOMIC WRITE at all, by one at PSN 0.
fn probe_atomic_write(t: &mut Script<'_>) -> Outcome {
    t.send(atomic_write(t, 0, 0, &[1; 8]))?;
    answer(t, empty_response(0).msn(1), 0)
}
