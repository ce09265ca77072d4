//! What follows a NAK, and what it says of what was before.

use super::requests::{read, silent_write, write_only};
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess, SequenceError};
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "naks/the-msn-counts-what-was-done-before",
        rule: "RC-RESP-060",
        says: "A NAK's MSN counts the messages that were done before the refused one.",
        risk: Risk::None,
        run: the_msn_counts_what_was_done_before,
    },
    Check {
        name: "naks/a-refused-message-does-not-count",
        rule: "RC-RESP-046",
        says: "A NAK for the second packet of a message does not count the message.",
        risk: Risk::None,
        run: a_refused_message_does_not_count,
    },
    Check {
        name: "naks/requests-behind-are-not-done",
        rule: "RC-RESP-046",
        says: "Requests behind a refused one are not carried out, even if they came together \
               with it.",
        risk: Risk::None,
        run: requests_behind_are_not_done,
    },
    Check {
        name: "naks/reads-behind-are-not-answered",
        rule: "RC-RESP-046",
        says: "READs behind a refused request are not answered.",
        risk: Risk::None,
        run: reads_behind_are_not_answered,
    },
    Check {
        name: "naks/the-refused-request-is-not-taken-when-mended",
        rule: "RC-RESP-046",
        says: "A fatal NAK is final: a right request at its PSN is not carried out.",
        risk: Risk::None,
        run: the_refused_request_is_not_taken_when_mended,
    },
    Check {
        name: "naks/duplicates-are-not-answered-after-a-fatal-one",
        rule: "RC-RESP-046",
        says: "A QP that has failed acknowledges no repeated request with more than was done.",
        risk: Risk::None,
        run: duplicates_are_not_answered_after_a_fatal_one,
    },
    Check {
        name: "naks/other-connections-go-on",
        rule: "HOST-001",
        says: "A QP that fails takes no other one with it.",
        risk: Risk::None,
        run: other_connections_go_on,
    },
    Check {
        name: "naks/has-the-length-of-an-ack",
        rule: "WIRE-010",
        says: "A NAK is a BTH, an AETH and the ICRC.",
        risk: Risk::None,
        run: has_the_length_of_an_ack,
    },
    Check {
        name: "naks/a-sequence-error-is-not-fatal",
        rule: "RC-RESP-033",
        says: "After a sequence error the QP works as before.",
        risk: Risk::None,
        run: a_sequence_error_is_not_fatal,
    },
];

fn the_msn_counts_what_was_done_before(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&[silent_write(t, 0, 0, &[1; 8]), silent_write(t, 1, 8, &[1; 8]), bad(t, 2)])?;
    t.expect_answer(nak(RemoteAccess, 2).msn(2))?;
    t.expect_no_service(2)
}

fn a_refused_message_does_not_count(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let first = packet(Opcode::RC_WRITE_FIRST).reth(t.addr(0), t.rkey(), 4096).payload(&[1; 1024]);
    let last = packet(Opcode::RC_WRITE_LAST).at(1).payload(&[1; 8]).ack_req();
    t.send_all(&[first, last])?;
    t.expect_answer(nak(InvalidRequest, 1).msn(0))?;
    t.expect_no_service(1)
}

fn requests_behind_are_not_done(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let behind: Vec<Packet> = (1..4).map(|psn| write_only(t, psn, 0, &[1; 8])).collect();
    t.send(bad(t, 0))?;
    t.send_all(&behind)?;
    t.expect_answer(nak(RemoteAccess, 0).msn(0))?;
    t.expect_no_service(0)
}

fn reads_behind_are_not_answered(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let refused = packet(Opcode::RC_READ_REQUEST).reth(t.addr(0), t.rkey() ^ 0x1000_0001, 8);
    t.send_all(&[refused, read(t, 1, 0, 100)])?;
    t.expect_answer(nak(RemoteAccess, 0).msn(0))?;
    t.expect_no_service(0)
}

fn the_refused_request_is_not_taken_when_mended(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(bad(t, 0))?;
    t.expect(nak(RemoteAccess, 0))?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    if t.expect_nothing_or(&[nak(RemoteAccess, 0)])?.is_some() {
        t.allow("repeats the NAK of a fatal error");
    }
    t.expect_no_service(0)
}

fn duplicates_are_not_answered_after_a_fatal_one(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    t.send(bad(t, 1))?;
    t.expect(nak(RemoteAccess, 1).msn(1))?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    if t.expect_nothing_or(&[crate::expect::ack(0).msn(1)])?.is_some() {
        t.allow("acknowledges repeated requests after a fatal error");
    }
    t.expect_no_service(1)
}

fn other_connections_go_on(t: &mut Script<'_>) -> Outcome {
    let good = t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    t.connect(&Setup::rc().write())?;
    t.send(bad(t, 0))?;
    t.expect(nak(RemoteAccess, 0))?;
    t.select(good);
    t.expect_service(1, 2)
}

fn has_the_length_of_an_ack(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    let found = t.expect(nak(SequenceError, 0))?;
    ensure(found.bytes.len() == 20, "20 bytes", || format!("{} bytes", found.bytes.len()))
}

fn a_sequence_error_is_not_fatal(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for psn in 0..3 {
        let msn = psn as u32;
        t.send(silent_write(t, psn + 1, 0, &[1; 8]))?;
        t.expect(nak(SequenceError, psn).msn(msn))?;
        t.send(write_only(t, psn, 0, &[1; 8]))?;
        // Who keeps what came early is one further now.
        let found = t.expect_one_of(&[
            crate::expect::ack(psn).msn(msn + 1),
            crate::expect::ack(psn + 1).msn(msn + 2),
        ])?;
        if found.0 == 1 {
            t.allow("keeps requests behind a gap");
            return t.expect_service(psn + 2, msn + 3);
        }
    }
    t.expect_service(3, 4)
}

/// A WRITE with a key that opens nothing.
fn bad(t: &Script<'_>, psn: i32) -> Packet {
    packet(Opcode::RC_WRITE_ONLY)
        .at(psn)
        .reth(t.addr(0), t.rkey() ^ 0x1000_0001, 8)
        .payload(&[7; 8])
        .ack_req()
}
