//! SENDs and WRITEs that come again.

use super::requests::{send_only, sends, silent_write, write_only, writes};
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::{ack, rnr_nak};
use crate::packet::packet;
use crate::script::Script;
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "duplicates/a-write-is-acknowledged-again",
        rule: "RC-RESP-026",
        says: "A WRITE that comes again is acknowledged again, and does not count again.",
        risk: Risk::None,
        run: a_write_is_acknowledged_again,
    },
    Check {
        name: "duplicates/the-ack-tells-the-newest",
        rule: "RC-RESP-026",
        says: "The ACK for an old request that comes again tells all that is done.",
        risk: Risk::None,
        run: the_ack_tells_the_newest,
    },
    Check {
        name: "duplicates/a-write-is-not-done-again",
        rule: "ORDER-007",
        says: "A WRITE that comes again does not overwrite what was written since.",
        risk: Risk::None,
        run: a_write_is_not_done_again,
    },
    Check {
        name: "duplicates/a-write-of-several-packets-is-not-done-again",
        rule: "ORDER-007",
        says: "A WRITE of several packets that comes again is acknowledged once or more, and \
               not done again.",
        risk: Risk::None,
        run: a_write_of_several_packets_is_not_done_again,
    },
    Check {
        name: "duplicates/other-content-is-not-written",
        rule: "ORDER-007",
        says: "A repeated PSN with other content changes nothing.",
        risk: Risk::None,
        run: other_content_is_not_written,
    },
    Check {
        name: "duplicates/another-key-is-not-looked-at",
        rule: "RC-RESP-026",
        says: "A repeated WRITE is acknowledged or ignored, but not refused, whatever its key.",
        risk: Risk::None,
        run: another_key_is_not_looked_at,
    },
    Check {
        name: "duplicates/within-a-message-under-way",
        rule: "RC-RESP-026",
        says: "An old request that comes again in the midst of a message does not disturb it.",
        risk: Risk::None,
        run: within_a_message_under_way,
    },
    Check {
        name: "duplicates/a-packet-of-the-message-under-way",
        rule: "RC-RESP-026",
        says: "The first packet of a message that comes again behind the second begins nothing \
               anew.",
        risk: Risk::None,
        run: a_packet_of_the_message_under_way,
    },
    Check {
        name: "duplicates/a-packet-doubled-by-the-network",
        rule: "RC-RESP-026",
        says: "Packets that the network doubles are carried out once.",
        risk: Risk::None,
        run: a_packet_doubled_by_the_network,
    },
    Check {
        name: "duplicates/a-send-is-acknowledged-again",
        rule: "RC-RESP-027",
        says: "A SEND that comes again is acknowledged again, and does not count again.",
        risk: Risk::None,
        run: a_send_is_acknowledged_again,
    },
    Check {
        name: "duplicates/a-send-takes-no-second-receive",
        rule: "RC-RESP-027",
        says: "A SEND that comes again takes no second receive.",
        risk: Risk::None,
        run: a_send_takes_no_second_receive,
    },
    Check {
        name: "duplicates/a-send-of-several-packets",
        rule: "RC-RESP-027",
        says: "A SEND of several packets that comes again is acknowledged, and no message \
               follows from it.",
        risk: Risk::None,
        run: a_send_of_several_packets,
    },
];

fn a_write_is_acknowledged_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let write = write_only(t, 0, 0, &[1; 8]);
    t.send(write.clone())?;
    t.expect_acked(0, 1)?;
    t.send(write)?;
    t.expect(ack(0).msn(1))?;
    t.expect_service(1, 2)
}

fn the_ack_tells_the_newest(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for psn in 0..4 {
        t.expect_service(psn, psn as u32 + 1)?;
    }
    t.send(write_only(t, 1, 0, &[]))?;
    if t.expect_one_of(&[ack(3).msn(4), ack(1)])?.0 == 1 {
        t.allow("acknowledges a duplicate with its own PSN");
    }
    t.expect_service(4, 5)
}

fn a_write_is_not_done_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let (old, new) = (t.bytes(64), t.bytes(64));
    t.send_all(&[silent_write(t, 0, 0, &old), write_only(t, 1, 0, &new)])?;
    t.expect_acked(1, 2)?;
    t.send(write_only(t, 0, 0, &old))?;
    duplicate_is_acknowledged(t, 0, 1, 2)?;
    t.expect_memory(2, 3, 0, &new)
}

fn a_write_of_several_packets_is_not_done_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let (old, new) = (t.bytes(3000), t.bytes(3000));
    let first = writes(t, 0, 0, &old);
    t.send_all(&first)?;
    t.expect_acked(2, 1)?;
    t.send_all(&writes(t, 3, 0, &new))?;
    t.expect_acked(5, 2)?;
    t.send_all(&first)?;
    duplicate_is_acknowledged(t, 2, 5, 2)?;
    t.expect_memory(6, 3, 0, &new)
}

fn other_content_is_not_written(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(64);
    t.send(write_only(t, 0, 0, &data))?;
    t.expect_acked(0, 1)?;
    t.send(write_only(t, 0, 0, &[0xdd; 64]))?;
    duplicate_is_acknowledged(t, 0, 0, 1)?;
    t.expect_memory(1, 2, 0, &data)
}

fn another_key_is_not_looked_at(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    let wrong = t.rkey() ^ 0x1000_0001;
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(t.addr(0), wrong, 8).payload(&[1; 8]).ack_req())?;
    t.expect_nothing_or(&[ack(0).msn(1)])?;
    t.expect_service(1, 2)
}

fn within_a_message_under_way(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    let data = t.bytes(3000);
    let message = writes(t, 1, 0, &data);
    t.send(message[0].clone())?;
    t.send(write_only(t, 0, 0, &[]))?;
    t.send_all(&message[1..])?;
    t.expect_acked(3, 2)?;
    t.expect_service(4, 3)
}

fn a_packet_of_the_message_under_way(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(3000);
    let message = writes(t, 0, 0, &data);
    t.send_all(&[message[0].clone(), message[1].clone(), message[0].clone(), message[1].clone()])?;
    t.send(message[2].clone())?;
    t.expect_acked(2, 1)?;
    t.expect_memory(3, 2, 0, &data)
}

fn a_packet_doubled_by_the_network(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let message = writes(t, 0, 0, &[1; 3000]);
    let doubled: Vec<_> =
        message.iter().flat_map(|packet| [packet.clone(), packet.clone()]).collect();
    t.send_all(&doubled)?;
    t.expect_acked(2, 1)?;
    // One ACK speaks for a request and its repeat, or each has its own.
    t.expect_nothing_or(&[ack(2).msn(1)])?;
    t.expect_service(3, 2)
}

fn a_send_is_acknowledged_again(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 64))?;
    t.send(send_only(0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    t.send(send_only(0, &[1; 8]))?;
    t.expect(ack(0).msn(1))?;
    t.send(send_only(1, &[1; 8]))?;
    t.expect_acked(1, 2)?;
    Ok(())
}

fn a_send_takes_no_second_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(2, 64))?;
    t.send(send_only(0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    t.send(send_only(0, &[1; 8]))?;
    t.expect(ack(0).msn(1))?;
    t.send(send_only(1, &[1; 8]))?;
    t.expect_acked(1, 2)?;
    t.send(send_only(2, &[1; 8]))?;
    t.expect_answer(rnr_nak(2).msn(2))?;
    Ok(())
}

fn a_send_of_several_packets(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 4096))?;
    let message = sends(0, &[1; 3000]);
    t.send_all(&message)?;
    t.expect_acked(2, 1)?;
    t.send_all(&message)?;
    duplicate_is_acknowledged(t, 2, 2, 1)?;
    t.send(send_only(3, &[1; 8]))?;
    t.expect_acked(3, 2)?;
    Ok(())
}

/// A duplicate at `psn` is acknowledged by an ACK of all that is done up to `newest`, or of its own
/// PSN, once or for each packet.
fn duplicate_is_acknowledged(t: &mut Script<'_>, psn: i32, newest: i32, msn: u32) -> Outcome {
    let mut answers = 0;
    let expected = [ack(newest).msn(msn), ack(psn)];
    let expected = if psn == newest { &expected[..1] } else { &expected };
    while let Some(found) = t.expect_nothing_or(expected)? {
        answers += 1;
        if found == 1 {
            t.allow("acknowledges a duplicate with its own PSN");
        }
    }
    ensure(answers > 0, &expected[0].describe(), || "nothing".into())
}
