//! Loss and reordering on the way to the responder.

use super::requests::{MTU, read, send_only, sends, silent_write, write_only, writes};
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::{ack, nak};
use crate::packet::Packet;
use crate::script::Script;
use urxe_wire::NakCode::SequenceError;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "loss/the-first-packet",
        rule: "RC-RESP-052",
        says: "A WRITE whose first packet was lost is done once all has come.",
        risk: Risk::None,
        run: the_first_packet,
    },
    Check {
        name: "loss/a-packet-in-the-midst",
        rule: "RC-RESP-052",
        says: "A WRITE that lost a packet in its midst is done once all has come.",
        risk: Risk::None,
        run: a_packet_in_the_midst,
    },
    Check {
        name: "loss/the-last-packet",
        rule: "RC-RESP-052",
        says: "A WRITE whose last packet was lost is done once that has come.",
        risk: Risk::None,
        run: the_last_packet,
    },
    Check {
        name: "loss/two-gaps",
        rule: "RC-RESP-033",
        says: "A WRITE that lost two packets apart is done once all has come.",
        risk: Risk::None,
        run: two_gaps,
    },
    Check {
        name: "loss/swapped-packets",
        rule: "RC-RESP-052",
        says: "A WRITE two of whose packets were swapped is done once all has come in order.",
        risk: Risk::None,
        run: swapped_packets,
    },
    Check {
        name: "loss/in-reverse",
        rule: "RC-RESP-052",
        says: "A WRITE whose packets came in reverse is done once all has come in order.",
        risk: Risk::None,
        run: in_reverse,
    },
    Check {
        name: "loss/doubled-and-swapped",
        rule: "RC-RESP-052",
        says: "A WRITE whose packets came twice and out of order is done once.",
        risk: Risk::None,
        run: doubled_and_swapped,
    },
    Check {
        name: "loss/all-of-it",
        rule: "RC-RESP-026",
        says: "A WRITE that comes a second time as a whole, since its ACK was lost, is \
               acknowledged and done once.",
        risk: Risk::None,
        run: all_of_it,
    },
    Check {
        name: "loss/a-send-out-of-order",
        rule: "RC-RESP-052",
        says: "A SEND two of whose packets were swapped is one message once all has come in order.",
        risk: Risk::None,
        run: a_send_out_of_order,
    },
    Check {
        name: "loss/messages-out-of-order",
        rule: "RC-RESP-052",
        says: "Messages that were swapped are done in the order of their PSNs.",
        risk: Risk::None,
        run: messages_out_of_order,
    },
    Check {
        name: "loss/a-read-overtakes-a-write",
        rule: "ORDER-006",
        says: "A READ that overtakes a WRITE on the way sees what that writes.",
        risk: Risk::None,
        run: a_read_overtakes_a_write,
    },
    Check {
        name: "loss/a-lost-request-is-repeated-alone",
        rule: "REPAIR-053",
        says: "After a gap, a repeat of the missing packet alone is acknowledged at least as \
               far as that.",
        risk: Risk::None,
        run: a_lost_request_is_repeated_alone,
    },
    Check {
        name: "loss/a-gap-and-a-repeat-from-the-start",
        rule: "RC-RESP-026",
        says: "A peer that goes back farther than it was told repeats what was done: nothing is \
               done twice.",
        risk: Risk::None,
        run: a_gap_and_a_repeat_from_the_start,
    },
];

fn the_first_packet(t: &mut Script<'_>) -> Outcome {
    arrives(t, &[1, 2, 3])
}

fn a_packet_in_the_midst(t: &mut Script<'_>) -> Outcome {
    arrives(t, &[0, 2, 3])
}

fn the_last_packet(t: &mut Script<'_>) -> Outcome {
    arrives(t, &[0, 1, 2])
}

fn two_gaps(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(6 * MTU);
    let all = writes(t, 0, 0, &data);
    let first: Vec<Packet> = [0, 2, 4, 5].map(|i| all[i].clone()).into();
    t.deliver(0, &all, &first, 1)?;
    settle(t)?;
    t.expect_memory(6, 2, 0, &data)
}

fn swapped_packets(t: &mut Script<'_>) -> Outcome {
    arrives(t, &[0, 2, 1, 3])
}

fn in_reverse(t: &mut Script<'_>) -> Outcome {
    arrives(t, &[3, 2, 1, 0])
}

fn doubled_and_swapped(t: &mut Script<'_>) -> Outcome {
    arrives(t, &[0, 0, 2, 1, 2, 3, 1, 3])
}

fn all_of_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(3 * MTU);
    let all = writes(t, 0, 0, &data);
    t.send_all(&all)?;
    t.expect_acked(2, 1)?;
    t.send_all(&all)?;
    t.expect_answer(ack(2).msn(1))?;
    settle(t)?;
    t.expect_memory(3, 2, 0, &data)
}

fn a_send_out_of_order(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 8192))?;
    let all = sends(0, &[1; 4 * MTU]);
    let first: Vec<Packet> = [0, 2, 1, 3].map(|i| all[i].clone()).into();
    t.deliver(0, &all, &first, 1)?;
    settle(t)?;
    t.send(send_only(4, &[1; 8]))?;
    t.expect_acked(4, 2)?;
    Ok(())
}

fn messages_out_of_order(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let (first, second) = (t.bytes(64), t.bytes(64));
    let all = [silent_write(t, 0, 0, &first), write_only(t, 1, 0, &second)];
    t.deliver(0, &all, &[all[1].clone(), all[0].clone()], 2)?;
    settle(t)?;
    t.expect_memory(2, 3, 0, &second)
}

fn a_read_overtakes_a_write(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(100);
    t.send(read(t, 1, 0, 100))?;
    t.expect(nak(SequenceError, 0).msn(0))?;
    t.send_all(&[silent_write(t, 0, 0, &data), read(t, 1, 0, 100)])?;
    let found = t.expect_read(1, 100, 2)?;
    ensure(found == data, "what was written before it", || "other data".into())?;
    settle(t)?;
    t.expect_service(2, 3)
}

fn a_lost_request_is_repeated_alone(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let all = writes(t, 0, 0, &[1; 4 * MTU]);
    t.send_all(&[all[0].clone(), all[2].clone(), all[3].clone()])?;
    t.expect_answer(nak(SequenceError, 1).msn(0))?;
    t.send(Packet { ack_req: true, ..all[1].clone() })?;
    if t.expect_one_of(&[ack(3).msn(1), ack(1).msn(0)])?.0 == 1 {
        t.deliver(2, &all[2..], &all[2..], 1)?;
    } else {
        t.allow("keeps packets behind a gap");
    }
    settle(t)?;
    t.expect_service(4, 2)
}

fn a_gap_and_a_repeat_from_the_start(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(4 * MTU);
    let all = writes(t, 0, 0, &data);
    t.send_all(&[all[0].clone(), all[1].clone(), all[3].clone()])?;
    t.expect_answer(nak(SequenceError, 2).msn(0))?;
    t.deliver(0, &all, &all, 1)?;
    settle(t)?;
    t.expect_memory(4, 2, 0, &data)
}

/// A WRITE of four packets is done, once the device has had them all, if these come first.
fn arrives(t: &mut Script<'_>, first: &[usize]) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(4 * MTU - 24);
    let all = writes(t, 0, 0, &data);
    let first: Vec<Packet> = first.iter().map(|&i| all[i].clone()).collect();
    t.deliver(0, &all, &first, 1)?;
    settle(t)?;
    t.expect_memory(4, 2, 0, &data)
}

/// Answers to repeats may still come; none is waited for.
fn settle(t: &mut Script<'_>) -> Outcome {
    t.wait(t.waits().quiet)?;
    while t.next(std::time::Duration::ZERO)?.is_some() {}
    Ok(())
}
