//! FLUSH and ATOMIC WRITE at the requester of a reliable connection. A device need not have them.

use crate::agent::{SendWr, Status};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::{SOURCE, Setup};
use crate::expect::request;
use crate::packet::{Packet, positive_ack, read_responses};
use crate::script::{OUR_ADDR, OUR_RKEY, Script};
use urxe_types::PathMtu;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "requester-placement/atomic-write-is-one-packet",
        "FAW-016",
        "An ATOMIC WRITE is one packet with address, key and a length of eight, and its eight \
         bytes; it completes when it is answered by a READ response of nothing.",
        atomic_write_is_one_packet,
    ),
    Check::new(
        "requester-placement/atomic-write-needs-its-answer",
        "FAW-014",
        "An ACK of an ATOMIC WRITE is not its answer.",
        |t| needs_its_answer(t, atomic_write()),
    ),
    Check::new(
        "requester-placement/flush-is-one-packet",
        "FAW-012",
        "A FLUSH is one packet with placement, selectivity, address, key and length, and \
         completes when it is answered by a READ response of nothing.",
        flush_is_one_packet,
    ),
    Check::new(
        "requester-placement/flush-needs-its-answer",
        "FAW-014",
        "An ACK of a FLUSH is not its answer.",
        |t| needs_its_answer(t, flush()),
    ),
    Check::new(
        "requester-placement/fence-waits-for-a-flush",
        "FAW-013",
        "A SEND with a fence is not sent before the FLUSH before it has its answer.",
        fence_waits_for_a_flush,
    ),
    Check::new(
        "requester-placement/flush-answered-with-data",
        "FAW-015",
        "An answer to a FLUSH that brings data is a bad response.",
        flush_answered_with_data,
    ),
];

fn atomic_write() -> SendWr {
    SendWr::atomic_write(1, OUR_ADDR, OUR_RKEY, *b"12345678")
}

fn flush() -> SendWr {
    SendWr::flush(1, OUR_ADDR, OUR_RKEY, 4096)
}

/// The answer to either.
fn answer(at: i32, msn: u32) -> Vec<Packet> {
    read_responses(at, &[], PathMtu::Mtu1024, msn)
}

fn atomic_write_is_one_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[atomic_write()])?;
    let reth = (OUR_ADDR, OUR_RKEY, 8);
    t.expect(request(RC_ATOMIC_WRITE, 0).reth(reth.0, reth.1, reth.2).payload(b"12345678"))?;
    t.send_all(&answer(0, 1))?;
    t.expect_success([1])?;
    t.expect_requester_works(1, 2)
}

fn flush_is_one_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[flush()])?;
    let arrived = t.expect(request(RC_FLUSH, 0).reth(OUR_ADDR, OUR_RKEY, 4096).len(0))?;
    // To be seen by all, a range.
    let feth = arrived.body().first_chunk::<4>().copied();
    ensure(feth == Some([0, 0, 0, 1]), "global visibility of a range", || format!("{feth:x?}"))?;
    t.send_all(&answer(0, 1))?;
    t.expect_success([1])?;
    t.expect_requester_works(1, 2)
}

fn needs_its_answer(t: &mut Script<'_>, wr: SendWr) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[wr])?;
    let first = t.next(t.waits().reply)?;
    let first = first.ok_or_else(|| Stop::failed("the request", "nothing"))?;
    t.send(positive_ack(0, 1))?;
    match t.completion(t.waits().quiet)? {
        None => {}
        Some(wc) if wc.status == Status::BadRespErr => {
            t.allow("calls an ACK in the place of an answer a bad response");
            return Ok(());
        }
        Some(wc) => return Err(Stop::failed("the request again", format!("{wc:?}"))),
    }
    let again = t.next(t.waits().reply)?;
    // All but the ICRC, which covers what a sender may change from packet to packet.
    let is_same = again.as_ref().is_some_and(|again| again.body() == first.body());
    ensure(is_same, "the request again", || format!("{again:?}"))?;
    t.send_all(&answer(0, 1))?;
    t.expect_success([1])
}

fn fence_waits_for_a_flush(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[flush(), SendWr::send(2, SOURCE..SOURCE + 8).fence()])?;
    t.expect(request(RC_FLUSH, 0))?;
    t.expect_nothing_new(1)?;
    t.send_all(&answer(0, 1))?;
    t.expect(request(RC_SEND_ONLY, 1))?;
    t.send(positive_ack(1, 2))?;
    t.expect_success(1..=2)
}

fn flush_answered_with_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[flush()])?;
    t.expect(request(RC_FLUSH, 0))?;
    t.send_all(&read_responses(0, &[1; 8], PathMtu::Mtu1024, 1))?;
    t.expect_bad_response(1)
}
