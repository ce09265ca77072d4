//! Sequence numbers: gaps, recovery, the wrap, and both halves of the number space.

use super::requests::{read, silent_write, write_only, writes};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::{ack, nak};
use crate::script::Script;
use urxe_wire::NakCode::SequenceError;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "psn/a-gap-is-told",
        rule: "RC-RESP-033",
        says: "A request ahead of the expected one gets a sequence error NAK for the expected one.",
        risk: Risk::None,
        run: a_gap_is_told,
    },
    Check {
        name: "psn/a-gap-is-told-once",
        rule: "RC-RESP-033",
        says: "What follows behind a gap gets no second NAK, however much it is.",
        risk: Risk::None,
        run: a_gap_is_told_once,
    },
    Check {
        name: "psn/a-gap-is-told-without-ackreq",
        rule: "RC-RESP-033",
        says: "A gap is told whether or not the packet behind it asks for an acknowledgement.",
        risk: Risk::None,
        run: a_gap_is_told_without_ackreq,
    },
    Check {
        name: "psn/the-nak-speaks-for-what-is-before",
        rule: "RC-RESP-060",
        says: "The NAK for a gap tells how many messages before it are done.",
        risk: Risk::None,
        run: the_nak_speaks_for_what_is_before,
    },
    Check {
        name: "psn/recovery",
        rule: "RC-RESP-052",
        says: "After a gap the peer goes on from the missing request, and all is done once.",
        risk: Risk::None,
        run: recovery,
    },
    Check {
        name: "psn/the-next-gap-is-told-again",
        rule: "RC-RESP-033",
        says: "Once a gap is filled, the next one gets a NAK of its own.",
        risk: Risk::None,
        run: the_next_gap_is_told_again,
    },
    Check {
        name: "psn/a-gap-inside-a-message",
        rule: "RC-RESP-033",
        says: "A missing packet in the midst of a message is told with its PSN.",
        risk: Risk::None,
        run: a_gap_inside_a_message,
    },
    Check {
        name: "psn/a-read-behind-a-gap-is-told",
        rule: "RC-RESP-033",
        says: "A READ ahead of the expected request gets a sequence error NAK and no data.",
        risk: Risk::None,
        run: a_read_behind_a_gap_is_told,
    },
    Check {
        name: "psn/a-duplicate-behind-a-nak",
        rule: "RC-RESP-026",
        says: "While a request is missing, one that was done is still acknowledged.",
        risk: Risk::None,
        run: a_duplicate_behind_a_nak,
    },
    Check {
        name: "psn/wrap",
        rule: "RC-RESP-035",
        says: "After PSN 0xffffff comes 0.",
        risk: Risk::None,
        run: wrap,
    },
    Check {
        name: "psn/wrap-inside-a-message",
        rule: "RC-RESP-035",
        says: "A message may go on over the wrap of the PSNs.",
        risk: Risk::None,
        run: wrap_inside_a_message,
    },
    Check {
        name: "psn/wrap-inside-read-responses",
        rule: "RC-RESP-035",
        says: "The responses to a READ go on over the wrap of the PSNs.",
        risk: Risk::None,
        run: wrap_inside_read_responses,
    },
    Check {
        name: "psn/wrap-inside-a-gap",
        rule: "RC-RESP-035",
        says: "A request beyond the wrap is ahead of one before it.",
        risk: Risk::None,
        run: wrap_inside_a_gap,
    },
    Check {
        name: "psn/a-duplicate-from-before-the-wrap",
        rule: "RC-RESP-035",
        says: "A request before the wrap is a duplicate after it.",
        risk: Risk::None,
        run: a_duplicate_from_before_the_wrap,
    },
    Check {
        name: "psn/far-ahead-is-a-gap",
        rule: "WIRE-020",
        says: "A PSN almost half of the number space ahead is a gap.",
        risk: Risk::None,
        run: far_ahead_is_a_gap,
    },
    Check {
        name: "psn/far-behind-is-a-duplicate",
        rule: "WIRE-020",
        says: "A PSN almost half of the number space behind is a duplicate: no gap, and not \
               carried out.",
        risk: Risk::None,
        run: far_behind_is_a_duplicate,
    },
    Check {
        name: "psn/right-behind-is-a-duplicate",
        rule: "WIRE-020",
        says: "The PSN before the first one that is expected is a duplicate, and no gap.",
        risk: Risk::None,
        run: right_behind_is_a_duplicate,
    },
    Check {
        name: "psn/the-first-is-the-connections",
        rule: "RC-RESP-035",
        says: "The first PSN that is expected is the one that was agreed upon, 0 like any other.",
        risk: Risk::None,
        run: the_first_is_the_connections,
    },
];

fn a_gap_is_told(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    t.expect_nothing()
}

fn a_gap_is_told_once(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    for psn in 2..5 {
        t.send(write_only(t, psn, 0, &[1; 8]))?;
    }
    t.expect_nothing()
}

fn a_gap_is_told_without_ackreq(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(silent_write(t, 2, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    t.expect_nothing()
}

fn the_nak_speaks_for_what_is_before(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let before = [silent_write(t, 0, 0, &[1; 8]), silent_write(t, 1, 0, &[1; 8])];
    t.send_all(&before)?;
    t.send(write_only(t, 3, 0, &[1; 8]))?;
    t.expect_answer(nak(SequenceError, 2).msn(2))?;
    t.expect_nothing()
}

fn recovery(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0))?;
    let again = [write_only(t, 0, 0, &[1; 8]), write_only(t, 1, 0, &[1; 8])];
    t.send_all(&again)?;
    t.expect_acked(1, 2)?;
    if t.expect_nothing_or(&[ack(1).msn(2)])?.is_some() {
        t.allow("keeps requests behind a gap, and acknowledges their repeat");
    }
    t.expect_service(2, 3)
}

fn the_next_gap_is_told_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    let again = [write_only(t, 0, 0, &[1; 8]), write_only(t, 1, 0, &[1; 8])];
    t.send_all(&again)?;
    t.expect_acked(1, 2)?;
    t.wait(t.waits().quiet)?;
    while t.next(std::time::Duration::ZERO)?.is_some() {}
    t.send(write_only(t, 3, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 2).msn(2))?;
    t.expect_nothing()
}

fn a_gap_inside_a_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let data = t.bytes(3000);
    let packets = writes(t, 0, 0, &data);
    t.send_all(&[packets[0].clone(), packets[2].clone()])?;
    t.expect_answer(nak(SequenceError, 1).msn(0))?;
    t.send_all(&packets[1..])?;
    t.expect_acked(2, 1)?;
    Ok(())
}

fn a_read_behind_a_gap_is_told(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 1, 0, 100))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    t.expect_nothing()
}

fn a_duplicate_behind_a_nak(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    t.send(write_only(t, 2, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 1).msn(1))?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    t.expect(ack(0).msn(1))?;
    Ok(())
}

fn wrap(t: &mut Script<'_>) -> Outcome {
    t.connect(&wrapping(2))?;
    for psn in 0..4 {
        t.expect_service(psn, psn as u32 + 1)?;
    }
    Ok(())
}

fn wrap_inside_a_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&wrapping(2))?;
    let data = t.bytes(4000);
    t.send_all(&writes(t, 0, 0, &data))?;
    t.expect_acked(3, 1)?;
    t.expect_service(4, 2)
}

fn wrap_inside_read_responses(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { our_psn: Some(0xff_fffe), ..Setup::rc().read() })?;
    t.send(read(t, 0, 0, 4000))?;
    t.expect_read(0, 4000, 1)?;
    t.expect_service(4, 2)
}

fn wrap_inside_a_gap(t: &mut Script<'_>) -> Outcome {
    t.connect(&wrapping(1))?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    t.expect_nothing()
}

fn a_duplicate_from_before_the_wrap(t: &mut Script<'_>) -> Outcome {
    t.connect(&wrapping(1))?;
    t.expect_service(0, 1)?;
    t.expect_service(1, 2)?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    duplicate_is_acknowledged(t, 0, 1, 2)
}

fn far_ahead_is_a_gap(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0x7f_fff0, 0, &[1; 8]))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    t.expect_service(0, 1)
}

fn far_behind_is_a_duplicate(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    t.send(write_only(t, -0x7f_fff0, 0, &[1; 8]))?;
    duplicate_is_acknowledged(t, -0x7f_fff0, 0, 1)
}

fn right_behind_is_a_duplicate(t: &mut Script<'_>) -> Outcome {
    // No PSN that a counter of nothing yields is near.
    t.connect(&Setup { our_psn: Some(0xc0_1234), ..Setup::rc().write() })?;
    t.send(write_only(t, -1, 0, &[1; 8]))?;
    if t.expect_nothing_or(&[ack(-1).msn(0)])?.is_none() {
        t.allow("ignores a PSN that was never used");
    }
    t.expect_service(0, 1)
}

fn the_first_is_the_connections(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { our_psn: Some(0), ..Setup::rc().write() })?;
    t.expect_service(0, 1)?;
    t.expect_service(1, 2)
}

/// So many PSNs are left before the wrap.
fn wrapping(left: u32) -> Setup {
    Setup { our_psn: Some(0x100_0000 - left), ..Setup::rc().write() }
}

/// A duplicate at `psn` is acknowledged by an ACK of the newest request at `newest`, or of its own
/// PSN; or not, as one that nobody can have sent again need not be.
fn duplicate_is_acknowledged(t: &mut Script<'_>, psn: i32, newest: i32, msn: u32) -> Outcome {
    let expected = [ack(newest).msn(msn), ack(psn)];
    match t.expect_nothing_or(&expected)? {
        Some(0) => {}
        Some(_) => t.allow("acknowledges a duplicate with its own PSN"),
        None => t.allow("ignores a duplicate"),
    }
    t.expect_service(newest + 1, msn + 1)
}
