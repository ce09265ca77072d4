//! Requests that find no receive.

use super::requests::{read, send_only, sends, silent_write, write_only, writes_with_imm};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::{ack, nak, rnr_nak};
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::SequenceError;
use urxe_wire::{Opcode, Syndrome};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "rnr/a-send-is-told",
        rule: "RC-RESP-006",
        says: "A SEND that finds no receive gets an RNR NAK with its PSN, and counts for nothing.",
        risk: Risk::None,
        run: a_send_is_told,
    },
    Check {
        name: "rnr/the-timer-is-the-qps",
        rule: "RC-RESP-006",
        says: "An RNR NAK carries the timer code that the QP was given, or one of a longer time.",
        risk: Risk::None,
        run: the_timer_is_the_qps,
    },
    Check {
        name: "rnr/the-timer-0-is-the-longest",
        rule: "RC-RESP-006",
        says: "The timer code 0, which stands for 655 ms, is sent like any other.",
        risk: Risk::None,
        run: the_timer_0_is_the_longest,
    },
    Check {
        name: "rnr/a-send-without-ackreq-is-told",
        rule: "RC-RESP-006",
        says: "A SEND that asks for no acknowledgement gets its RNR NAK nonetheless.",
        risk: Risk::None,
        run: a_send_without_ackreq_is_told,
    },
    Check {
        name: "rnr/a-send-of-nothing-is-told",
        rule: "RC-RESP-003",
        says: "A SEND of no bytes needs a receive as well.",
        risk: Risk::None,
        run: a_send_of_nothing_is_told,
    },
    Check {
        name: "rnr/requests-behind-are-silent",
        rule: "RC-RESP-006",
        says: "Requests behind one that found no receive are not answered until that one comes \
               again.",
        risk: Risk::None,
        run: requests_behind_are_silent,
    },
    Check {
        name: "rnr/a-read-behind-is-silent",
        rule: "RC-RESP-006",
        says: "A READ behind a SEND that found no receive is not answered.",
        risk: Risk::None,
        run: a_read_behind_is_silent,
    },
    Check {
        name: "rnr/the-repeat-is-told-again",
        rule: "RC-RESP-006",
        says: "A SEND that comes again and still finds no receive gets another RNR NAK.",
        risk: Risk::None,
        run: the_repeat_is_told_again,
    },
    Check {
        name: "rnr/the-next-psn-stays",
        rule: "RC-RESP-006",
        says: "A request that found no receive has not moved the sequence on: its PSN is the \
               next one.",
        risk: Risk::None,
        run: the_next_psn_stays,
    },
    Check {
        name: "rnr/a-send-in-packets-is-told-once",
        rule: "RC-RESP-006",
        says: "A SEND of several packets gets one RNR NAK, at its first.",
        risk: Risk::None,
        run: a_send_in_packets_is_told_once,
    },
    Check {
        name: "rnr/requests-before-are-done",
        rule: "RC-RESP-060",
        says: "An RNR NAK speaks for the requests before it.",
        risk: Risk::None,
        run: requests_before_are_done,
    },
    Check {
        name: "rnr/a-duplicate-is-acknowledged",
        rule: "RC-RESP-026",
        says: "After an RNR NAK a request that was done and comes again is acknowledged.",
        risk: Risk::None,
        run: a_duplicate_is_acknowledged,
    },
    Check {
        name: "rnr/a-write-needs-no-receive",
        rule: "RC-RESP-009",
        says: "A plain WRITE needs no receive.",
        risk: Risk::None,
        run: a_write_needs_no_receive,
    },
    Check {
        name: "rnr/immediate-data-is-told",
        rule: "RC-RESP-007",
        says: "A WRITE ONLY with immediate data that finds no receive gets an RNR NAK.",
        risk: Risk::None,
        run: immediate_data_is_told,
    },
    Check {
        name: "rnr/immediate-data-is-told-at-the-last-packet",
        rule: "RC-RESP-007",
        says: "A WRITE of several packets with immediate data finds no receive at its last \
               packet, not before.",
        risk: Risk::None,
        run: immediate_data_is_told_at_the_last_packet,
    },
    Check {
        name: "rnr/receives-are-counted",
        rule: "RC-RESP-001",
        says: "Each SEND takes one receive, and the one behind the last of them gets an RNR NAK.",
        risk: Risk::None,
        run: receives_are_counted,
    },
    Check {
        name: "rnr/a-send-of-nothing-takes-a-receive",
        rule: "RC-RESP-003",
        says: "A SEND of no bytes takes a receive.",
        risk: Risk::None,
        run: a_send_of_nothing_takes_a_receive,
    },
    Check {
        name: "rnr/a-send-in-packets-takes-one-receive",
        rule: "RC-RESP-002",
        says: "A SEND of several packets takes one receive.",
        risk: Risk::None,
        run: a_send_in_packets_takes_one_receive,
    },
    Check {
        name: "rnr/immediate-data-takes-one-receive",
        rule: "RC-RESP-007",
        says: "A WRITE with immediate data takes one receive, of whatever length.",
        risk: Risk::None,
        run: immediate_data_takes_one_receive,
    },
    Check {
        name: "rnr/an-invalid-request-comes-before-it",
        rule: "RC-RESP-038",
        says: "A SEND LAST without FIRST is an invalid request, also where there is no receive.",
        risk: Risk::None,
        run: an_invalid_request_comes_before_it,
    },
];

fn a_send_is_told(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.send(send_only(0, &[1; 8]))?;
    t.expect(rnr_nak(0).msn(0))?;
    t.expect_nothing()
}

fn the_timer_is_the_qps(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { min_rnr_timer: Some(21), ..Setup::rc() })?;
    t.send(send_only(0, &[1; 8]))?;
    expect_timer(t, 21)?;
    t.expect_nothing()
}

fn the_timer_0_is_the_longest(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { min_rnr_timer: Some(0), ..Setup::rc() })?;
    t.send(send_only(0, &[1; 8]))?;
    expect_timer(t, 0)?;
    t.expect_nothing()
}

fn a_send_without_ackreq_is_told(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.send(Packet { ack_req: false, ..send_only(0, &[1; 8]) })?;
    t.expect(rnr_nak(0).msn(0))?;
    t.expect_nothing()
}

fn a_send_of_nothing_is_told(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.send(send_only(0, &[]))?;
    t.expect(rnr_nak(0).msn(0))?;
    t.expect_nothing()
}

fn requests_behind_are_silent(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&[send_only(0, &[1; 8]), write_only(t, 1, 0, &[1; 8]), send_only(2, &[1; 8])])?;
    t.expect(rnr_nak(0).msn(0))?;
    silent_or_sequence_error(t, 0)
}

fn a_read_behind_is_silent(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send_all(&[send_only(0, &[1; 8]), read(t, 1, 0, 64)])?;
    t.expect(rnr_nak(0).msn(0))?;
    silent_or_sequence_error(t, 0)
}

fn the_repeat_is_told_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    for _ in 0..3 {
        t.send(send_only(0, &[1; 8]))?;
        t.expect(rnr_nak(0).msn(0))?;
    }
    t.expect_nothing()
}

fn the_next_psn_stays(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(send_only(0, &[1; 8]))?;
    t.expect(rnr_nak(0))?;
    t.expect_service(0, 1)?;
    t.expect_service(1, 2)
}

fn a_send_in_packets_is_told_once(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.send_all(&sends(0, &[1; 3000]))?;
    t.expect(rnr_nak(0).msn(0))?;
    silent_or_sequence_error(t, 0)
}

fn requests_before_are_done(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let before = [silent_write(t, 0, 0, &[1; 8]), silent_write(t, 1, 0, &[1; 8])];
    t.send_all(&before)?;
    t.send(send_only(2, &[1; 8]))?;
    t.expect_answer(rnr_nak(2).msn(2))?;
    t.expect_nothing()
}

fn a_duplicate_is_acknowledged(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    t.send(send_only(1, &[1; 8]))?;
    t.expect(rnr_nak(1).msn(1))?;
    t.send(write_only(t, 0, 0, &[]))?;
    t.expect(ack(0).msn(1))?;
    Ok(())
}

fn a_write_needs_no_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().exactly(0, 0))?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn immediate_data_is_told(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&writes_with_imm(t, 0, &[1; 8]))?;
    t.expect(rnr_nak(0).msn(0))?;
    t.expect_nothing()
}

fn immediate_data_is_told_at_the_last_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let packets = writes_with_imm(t, 0, &[1; 3000]);
    t.send_all(&packets)?;
    t.expect_answer(rnr_nak(2).msn(0))?;
    t.send(packets[2].clone())?;
    t.expect(rnr_nak(2).msn(0))?;
    t.expect_nothing()
}

fn receives_are_counted(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(2, 64))?;
    for psn in 0..2 {
        t.send(send_only(psn, &[1; 64]))?;
        t.expect_acked(psn, psn as u32 + 1)?;
    }
    t.send(send_only(2, &[1; 64]))?;
    t.expect(rnr_nak(2).msn(2))?;
    t.expect_nothing()
}

fn a_send_of_nothing_takes_a_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, 64))?;
    t.send(send_only(0, &[]))?;
    t.expect_acked(0, 1)?;
    t.send(send_only(1, &[]))?;
    t.expect(rnr_nak(1).msn(1))?;
    t.expect_nothing()
}

fn a_send_in_packets_takes_one_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(2, 4096))?;
    t.send_all(&sends(0, &[1; 3000]))?;
    t.expect_acked(2, 1)?;
    t.send_all(&sends(3, &[1; 3000]))?;
    t.expect_acked(5, 2)?;
    t.send(send_only(6, &[1; 8]))?;
    t.expect(rnr_nak(6).msn(2))?;
    t.expect_nothing()
}

fn immediate_data_takes_one_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().exactly(1, 4))?;
    t.send_all(&writes_with_imm(t, 0, &[1; 3000]))?;
    t.expect_acked(2, 1)?;
    t.send_all(&writes_with_imm(t, 3, &[1; 8]))?;
    t.expect(rnr_nak(3).msn(1))?;
    t.expect_nothing()
}

fn an_invalid_request_comes_before_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.send(packet(Opcode::RC_SEND_LAST).payload(&[1; 8]).ack_req())?;
    t.expect_refused(urxe_wire::NakCode::InvalidRequest, 0)
}

/// The QP was given this timer code, which is the shortest time that it may ask for.
fn expect_timer(t: &mut Script<'_>, code: u8) -> Outcome {
    let arrived = t.expect(rnr_nak(0).timer(code))?;
    if let Some((Syndrome::RnrNak { timer }, _)) = arrived.aeth()
        && timer.code() != code
    {
        t.allow(format!("asks for a longer wait than the QP was given: code {}", timer.code()));
    }
    Ok(())
}

/// The request at this PSN is missing since it found no receive: what follows is thrown away.
fn silent_or_sequence_error(t: &mut Script<'_>, psn: i32) -> Outcome {
    if t.expect_nothing_or(&[nak(SequenceError, psn)])?.is_some() {
        t.allow("sends a sequence error NAK behind an RNR NAK");
        t.expect_nothing()?;
    }
    Ok(())
}
