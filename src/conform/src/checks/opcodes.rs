//! The order of opcodes within messages, and opcodes that a reliable connection does not have.

use super::requests::{MTU, compare_swap, fetch_add, read, send_only, write_only};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::InvalidRequest;
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "opcodes/write-middle-without-first",
        rule: "RC-RESP-038",
        says: "A WRITE MIDDLE outside of a message is an invalid request.",
        risk: Risk::None,
        run: write_middle_without_first,
    },
    Check {
        name: "opcodes/write-last-without-first",
        rule: "RC-RESP-038",
        says: "A WRITE LAST outside of a message is an invalid request.",
        risk: Risk::None,
        run: write_last_without_first,
    },
    Check {
        name: "opcodes/write-last-with-immediate-without-first",
        rule: "RC-RESP-038",
        says: "A WRITE LAST with immediate data outside of a message is an invalid request.",
        risk: Risk::None,
        run: write_last_with_immediate_without_first,
    },
    Check {
        name: "opcodes/write-middle-after-only",
        rule: "RC-RESP-038",
        says: "A WRITE ONLY is a whole message: a MIDDLE behind it is an invalid request.",
        risk: Risk::None,
        run: write_middle_after_only,
    },
    Check {
        name: "opcodes/write-last-after-last",
        rule: "RC-RESP-038",
        says: "A WRITE that has ended does not end again.",
        risk: Risk::None,
        run: write_last_after_last,
    },
    Check {
        name: "opcodes/send-middle-without-first",
        rule: "RC-RESP-038",
        says: "A SEND MIDDLE outside of a message is an invalid request.",
        risk: Risk::None,
        run: send_middle_without_first,
    },
    Check {
        name: "opcodes/send-last-without-first",
        rule: "RC-RESP-038",
        says: "A SEND LAST outside of a message is an invalid request.",
        risk: Risk::None,
        run: send_last_without_first,
    },
    Check {
        name: "opcodes/send-last-with-immediate-without-first",
        rule: "RC-RESP-038",
        says: "A SEND LAST with immediate data outside of a message is an invalid request.",
        risk: Risk::None,
        run: send_last_with_immediate_without_first,
    },
    Check {
        name: "opcodes/send-last-with-invalidate-without-first",
        rule: "RC-RESP-038",
        says: "A SEND LAST with invalidate outside of a message is an invalid request.",
        risk: Risk::None,
        run: send_last_with_invalidate_without_first,
    },
    Check {
        name: "opcodes/write-first-inside-a-write",
        rule: "RC-RESP-039",
        says: "A WRITE FIRST inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: write_first_inside_a_write,
    },
    Check {
        name: "opcodes/write-only-inside-a-write",
        rule: "RC-RESP-039",
        says: "A WRITE ONLY inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: write_only_inside_a_write,
    },
    Check {
        name: "opcodes/send-only-inside-a-write",
        rule: "RC-RESP-039",
        says: "A SEND ONLY inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: send_only_inside_a_write,
    },
    Check {
        name: "opcodes/send-first-inside-a-write",
        rule: "RC-RESP-039",
        says: "A SEND FIRST inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: send_first_inside_a_write,
    },
    Check {
        name: "opcodes/read-inside-a-write",
        rule: "RC-RESP-039",
        says: "A READ inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: read_inside_a_write,
    },
    Check {
        name: "opcodes/fetch-add-inside-a-write",
        rule: "RC-RESP-039",
        says: "An atomic inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: fetch_add_inside_a_write,
    },
    Check {
        name: "opcodes/compare-swap-inside-a-write",
        rule: "RC-RESP-039",
        says: "A COMPARE SWAP inside a WRITE is an invalid request.",
        risk: Risk::None,
        run: compare_swap_inside_a_write,
    },
    Check {
        name: "opcodes/send-first-inside-a-send",
        rule: "RC-RESP-039",
        says: "A SEND FIRST inside a SEND is an invalid request.",
        risk: Risk::None,
        run: send_first_inside_a_send,
    },
    Check {
        name: "opcodes/send-only-inside-a-send",
        rule: "RC-RESP-039",
        says: "A SEND ONLY inside a SEND is an invalid request.",
        risk: Risk::None,
        run: send_only_inside_a_send,
    },
    Check {
        name: "opcodes/read-inside-a-send",
        rule: "RC-RESP-039",
        says: "A READ inside a SEND is an invalid request.",
        risk: Risk::None,
        run: read_inside_a_send,
    },
    Check {
        name: "opcodes/send-middle-inside-a-write",
        rule: "RC-RESP-040",
        says: "A WRITE that goes on as a SEND is an invalid request.",
        risk: Risk::None,
        run: send_middle_inside_a_write,
    },
    Check {
        name: "opcodes/send-last-inside-a-write",
        rule: "RC-RESP-040",
        says: "A WRITE that ends as a SEND is an invalid request.",
        risk: Risk::None,
        run: send_last_inside_a_write,
    },
    Check {
        name: "opcodes/write-middle-inside-a-send",
        rule: "RC-RESP-040",
        says: "A SEND that goes on as a WRITE is an invalid request.",
        risk: Risk::None,
        run: write_middle_inside_a_send,
    },
    Check {
        name: "opcodes/write-last-inside-a-send",
        rule: "RC-RESP-040",
        says: "A SEND that ends as a WRITE is an invalid request.",
        risk: Risk::None,
        run: write_last_inside_a_send,
    },
    Check {
        name: "opcodes/reserved-0x15",
        rule: "RC-RESP-062",
        says: "The reserved opcode 0x15 in the place of the next request is an invalid request.",
        risk: Risk::Hostile,
        run: reserved_0x15,
    },
    Check {
        name: "opcodes/reserved-0x1f",
        rule: "RC-RESP-062",
        says: "The reserved opcode 0x1f in the place of the next request is an invalid request.",
        risk: Risk::Hostile,
        run: reserved_0x1f,
    },
    Check {
        name: "opcodes/reserved-ahead-is-no-request",
        rule: "RC-RESP-062",
        says: "A reserved opcode at a PSN that was done is not acknowledged for more than that.",
        risk: Risk::Hostile,
        run: reserved_ahead_is_no_request,
    },
    Check {
        name: "opcodes/unreliable-connection-is-dropped",
        rule: "COUNT-007",
        says: "An opcode of unreliable connections is nothing to a QP of a reliable one.",
        risk: Risk::Hostile,
        run: unreliable_connection_is_dropped,
    },
    Check {
        name: "opcodes/datagram-is-dropped",
        rule: "COUNT-007",
        says: "An opcode of datagrams is nothing to a QP of a reliable connection.",
        risk: Risk::Hostile,
        run: datagram_is_dropped,
    },
    Check {
        name: "opcodes/reliable-datagram-is-dropped",
        rule: "COUNT-007",
        says: "An opcode of reliable datagrams is nothing to a QP of a reliable connection.",
        risk: Risk::Hostile,
        run: reliable_datagram_is_dropped,
    },
    Check {
        name: "opcodes/extended-connection-is-dropped",
        rule: "COUNT-007",
        says: "An opcode of extended reliable connections is nothing to a QP of a reliable one.",
        risk: Risk::Hostile,
        run: extended_connection_is_dropped,
    },
    Check {
        name: "opcodes/answers-without-a-request-are-dropped",
        rule: "HOST-001",
        says: "An ACK, an atomic's answer or a READ response to nothing does nothing.",
        risk: Risk::Hostile,
        run: answers_without_a_request_are_dropped,
    },
];

fn write_middle_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(packet(Opcode::RC_WRITE_MIDDLE).payload(&[1; MTU]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn write_last_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(packet(Opcode::RC_WRITE_LAST).payload(&[1; 8]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn write_last_with_immediate_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().receives(1, 64))?;
    t.send(packet(Opcode::RC_WRITE_LAST_IMM).imm(7).payload(&[1; 8]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn write_middle_after_only(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    t.send(packet(Opcode::RC_WRITE_MIDDLE).at(1).payload(&[1; MTU]).ack_req())?;
    t.expect_refused(InvalidRequest, 1)
}

fn write_last_after_last(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_first(t, 0, 2 * MTU))?;
    t.send(packet(Opcode::RC_WRITE_LAST).at(1).payload(&[1; MTU]).ack_req())?;
    t.expect_acked(1, 1)?;
    t.send(packet(Opcode::RC_WRITE_LAST).at(2).payload(&[1; MTU]).ack_req())?;
    t.expect_refused(InvalidRequest, 2)
}

fn send_middle_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&with_receives())?;
    t.send(packet(Opcode::RC_SEND_MIDDLE).payload(&[1; MTU]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn send_last_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&with_receives())?;
    t.send(packet(Opcode::RC_SEND_LAST).payload(&[1; 8]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn send_last_with_immediate_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&with_receives())?;
    t.send(packet(Opcode::RC_SEND_LAST_IMM).imm(7).payload(&[1; 8]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn send_last_with_invalidate_without_first(t: &mut Script<'_>) -> Outcome {
    t.connect(&with_receives())?;
    t.send(packet(Opcode::RC_SEND_LAST_INV).invalidate(7).payload(&[1; 8]).ack_req())?;
    t.expect_refused(InvalidRequest, 0)
}

fn write_first_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write(t, |t| write_first(t, 1, 2 * MTU))
}

fn write_only_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write(t, |t| write_only(t, 1, 0, &[1; 8]))
}

fn send_only_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write(t, |_| send_only(1, &[1; 8]))
}

fn send_first_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write(t, |_| packet(Opcode::RC_SEND_FIRST).at(1).payload(&[1; MTU]).ack_req())
}

fn read_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write_of(t, &Setup::rc().write().read(), |t| read(t, 1, 0, 8))
}

fn fetch_add_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write_of(t, &Setup::rc().write().atomic(), |t| fetch_add(t, 1, 0, 1))
}

fn compare_swap_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write_of(t, &Setup::rc().write().atomic(), |t| compare_swap(t, 1, 0, 1, 2))
}

fn send_first_inside_a_send(t: &mut Script<'_>) -> Outcome {
    inside_send(t, &packet(Opcode::RC_SEND_FIRST).at(1).payload(&[1; MTU]).ack_req())
}

fn send_only_inside_a_send(t: &mut Script<'_>) -> Outcome {
    inside_send(t, &send_only(1, &[1; 8]))
}

fn read_inside_a_send(t: &mut Script<'_>) -> Outcome {
    inside_send(t, &packet(Opcode::RC_READ_REQUEST).at(1).reth(0, 0, 0))
}

fn send_middle_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write(t, |_| packet(Opcode::RC_SEND_MIDDLE).at(1).payload(&[1; MTU]).ack_req())
}

fn send_last_inside_a_write(t: &mut Script<'_>) -> Outcome {
    inside_write(t, |_| packet(Opcode::RC_SEND_LAST).at(1).payload(&[1; MTU]).ack_req())
}

fn write_middle_inside_a_send(t: &mut Script<'_>) -> Outcome {
    inside_send(t, &packet(Opcode::RC_WRITE_MIDDLE).at(1).payload(&[1; MTU]).ack_req())
}

fn write_last_inside_a_send(t: &mut Script<'_>) -> Outcome {
    inside_send(t, &packet(Opcode::RC_WRITE_LAST).at(1).payload(&[1; MTU]).ack_req())
}

fn reserved_0x15(t: &mut Script<'_>) -> Outcome {
    reserved(t, 0x15)
}

fn reserved_0x1f(t: &mut Script<'_>) -> Outcome {
    reserved(t, 0x1f)
}

fn reserved_ahead_is_no_request(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    t.send(Packet::new(0x15).payload(&[1; 8]).ack_req())?;
    t.expect_nothing_or(&[crate::expect::ack(0).msn(1)])?;
    t.expect_service(1, 2)
}

fn unreliable_connection_is_dropped(t: &mut Script<'_>) -> Outcome {
    let write = |t: &Script<'_>| {
        packet(Opcode::UC_WRITE_ONLY).reth(t.addr(0), t.rkey(), 8).payload(&[1; 8]).ack_req()
    };
    dropped(t, write)
}

fn datagram_is_dropped(t: &mut Script<'_>) -> Outcome {
    let send =
        |_: &Script<'_>| packet(Opcode::UD_SEND_ONLY).deth(0x1111_1111, 0x11).payload(&[1; 8]);
    dropped(t, send)
}

fn reliable_datagram_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, |_| Packet { extended: vec![0; 12], ..Packet::new(0x44) }.payload(&[1; 8]).ack_req())
}

fn extended_connection_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, |_| Packet { extended: vec![0; 4], ..Packet::new(0xa4) }.payload(&[1; 8]).ack_req())
}

fn answers_without_a_request_are_dropped(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&[
        packet(Opcode::RC_ACK).aeth(0x1f, 0),
        packet(Opcode::RC_ATOMIC_ACK).aeth(0x1f, 0).payload(&[0; 8]),
        packet(Opcode::RC_READ_RESPONSE_ONLY).aeth(0x1f, 0).payload(&[0; 8]),
        packet(Opcode::RC_READ_RESPONSE_MIDDLE).payload(&[0; MTU]),
    ])?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn with_receives() -> Setup {
    Setup::rc().receives(4, 4096)
}

fn write_first(t: &Script<'_>, psn: i32, len: usize) -> Packet {
    let first = packet(Opcode::RC_WRITE_FIRST).at(psn);
    first.reth(t.addr(0), t.rkey(), len as u32).payload(&[1; MTU])
}

/// What comes behind the first packet of a WRITE is an invalid request.
fn inside_write(t: &mut Script<'_>, next: impl Fn(&Script<'_>) -> Packet) -> Outcome {
    inside_write_of(t, &Setup::rc().write(), next)
}

/// The same where what comes behind needs rights of its own, for want of which it is not to be
/// refused.
fn inside_write_of(
    t: &mut Script<'_>,
    setup: &Setup,
    next: impl Fn(&Script<'_>) -> Packet,
) -> Outcome {
    t.connect(setup)?;
    t.send_all(&[write_first(t, 0, 3 * MTU), next(t)])?;
    t.expect_refused(InvalidRequest, 1)
}

/// What comes behind the first packet of a SEND is an invalid request.
fn inside_send(t: &mut Script<'_>, next: &Packet) -> Outcome {
    // Nothing is to be refused for want of rights.
    t.connect(&with_receives().read())?;
    let first = packet(Opcode::RC_SEND_FIRST).payload(&[1; MTU]);
    t.send_all(&[first, next.clone()])?;
    t.expect_refused(InvalidRequest, 1)
}

/// A reserved opcode as the next request is refused. Many devices drop it as none of theirs.
fn reserved(t: &mut Script<'_>, opcode: u8) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(Packet::new(opcode).payload(&[1; 8]).ack_req())?;
    match t.expect_nothing_or(&[nak(InvalidRequest, 0)])? {
        Some(_) => t.expect_no_service(0),
        None => {
            t.allow("drops a reserved opcode");
            t.expect_service(0, 1)
        }
    }
}

/// A packet of another transport service is dropped.
fn dropped(t: &mut Script<'_>, other: impl Fn(&Script<'_>) -> Packet) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(other(t))?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}
