//! SEND at the responder of a reliable connection.

use super::answers::{invalidation_fails, too_long_is_refused};
use super::requests::{send_only, sends, write_only};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "send/only-is-acknowledged",
        rule: "RC-RESP-001",
        says: "A SEND ONLY is acknowledged with its PSN and counts as a message.",
        risk: Risk::None,
        run: only_is_acknowledged,
    },
    Check {
        name: "send/in-packets-is-one-message",
        rule: "RC-RESP-002",
        says: "A SEND of several packets counts as one message.",
        risk: Risk::None,
        run: in_packets_is_one_message,
    },
    Check {
        name: "send/many-in-a-row",
        rule: "RC-RESP-001",
        says: "SENDs that come at once are all received.",
        risk: Risk::None,
        run: many_in_a_row,
    },
    Check {
        name: "send/only-with-immediate",
        rule: "RC-RESP-001",
        says: "A SEND ONLY with immediate data is acknowledged.",
        risk: Risk::None,
        run: only_with_immediate,
    },
    Check {
        name: "send/last-with-immediate",
        rule: "RC-RESP-002",
        says: "A SEND of several packets may end with immediate data.",
        risk: Risk::None,
        run: last_with_immediate,
    },
    Check {
        name: "send/solicited",
        rule: "RC-RESP-049",
        says: "A solicited SEND is acknowledged like any other.",
        risk: Risk::None,
        run: solicited,
    },
    Check {
        name: "send/as-long-as-its-receive",
        rule: "RC-RESP-004",
        says: "A SEND of just the length of its receive fits.",
        risk: Risk::None,
        run: as_long_as_its_receive,
    },
    Check {
        name: "send/longer-than-its-receive",
        rule: "RC-RESP-004",
        says: "A SEND longer than its receive is an invalid request.",
        risk: Risk::None,
        run: longer_than_its_receive,
    },
    Check {
        name: "send/longer-than-its-receive-in-packets",
        rule: "RC-RESP-004",
        says: "A SEND that passes its receive's end at a later packet is an invalid request there.",
        risk: Risk::None,
        run: longer_than_its_receive_in_packets,
    },
    Check {
        name: "send/with-invalidate-of-an-unknown-key",
        rule: "MEM-012",
        says: "A SEND that invalidates a key that there is not is a remote access error.",
        risk: Risk::None,
        run: with_invalidate_of_an_unknown_key,
    },
    Check {
        name: "send/with-invalidate-of-a-region",
        rule: "MEM-011",
        says: "A SEND does not invalidate the key of a plain memory region.",
        risk: Risk::None,
        run: with_invalidate_of_a_region,
    },
    Check {
        name: "send/last-with-invalidate-of-an-unknown-key",
        rule: "MEM-012",
        says: "The key is looked at with the last packet of a message.",
        risk: Risk::None,
        run: last_with_invalidate_of_an_unknown_key,
    },
    Check {
        name: "send/between-writes",
        rule: "RC-RESP-036",
        says: "SENDs and WRITEs in turn count as one message each.",
        risk: Risk::None,
        run: between_writes,
    },
];

fn only_is_acknowledged(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 64))?;
    t.send(send_only(0, &[1; 64]))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn in_packets_is_one_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 4096))?;
    t.send_all(&sends(0, &[1; 2500]))?;
    t.expect_acked(2, 1)?;
    t.expect_nothing()
}

fn many_in_a_row(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(8, 64))?;
    let packets: Vec<Packet> = (0..8).map(|psn| send_only(psn, &[1; 40])).collect();
    t.send_all(&packets)?;
    t.expect_acked(7, 8)?;
    t.expect_nothing()
}

fn only_with_immediate(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 64))?;
    t.send(packet(Opcode::RC_SEND_ONLY_IMM).imm(0x0102_0304).payload(&[1; 8]).ack_req())?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn last_with_immediate(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 4096))?;
    let mut packets = sends(0, &[1; 1500]);
    packets[1] = packet(Opcode::RC_SEND_LAST_IMM).at(1).imm(5).payload(&[1; 476]).ack_req();
    t.send_all(&packets)?;
    t.expect_acked(1, 1)?;
    t.expect_nothing()
}

fn solicited(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 64))?;
    t.send(send_only(0, &[1; 8]).solicited())?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn as_long_as_its_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, 1500))?;
    t.send_all(&sends(0, &[1; 1500]))?;
    t.expect_acked(1, 1)?;
    t.expect_nothing()
}

fn longer_than_its_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, 100))?;
    t.send(send_only(0, &[1; 101]))?;
    too_long_is_refused(t, 0)
}

fn longer_than_its_receive_in_packets(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, 1100))?;
    t.send_all(&sends(0, &[1; 1500]))?;
    too_long_is_refused(t, 1)
}

fn with_invalidate_of_an_unknown_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 64))?;
    t.send(packet(Opcode::RC_SEND_ONLY_INV).invalidate(0x7fff_ff55).payload(&[1; 8]).ack_req())?;
    invalidation_fails(t, 0)
}

fn with_invalidate_of_a_region(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().receives(4, 64))?;
    let rkey = t.rkey();
    t.send(packet(Opcode::RC_SEND_ONLY_INV).invalidate(rkey).payload(&[1; 8]).ack_req())?;
    invalidation_fails(t, 0)
}

fn last_with_invalidate_of_an_unknown_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(4, 4096))?;
    let mut packets = sends(0, &[1; 1500]);
    packets[1] =
        packet(Opcode::RC_SEND_LAST_INV).at(1).invalidate(0x7fff_ff55).payload(&[1; 476]).ack_req();
    t.send_all(&packets)?;
    invalidation_fails(t, 1)
}

fn between_writes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().receives(4, 64))?;
    let packets = [
        send_only(0, &[1; 8]),
        write_only(t, 1, 0, &[1; 8]),
        send_only(2, &[1; 8]),
        write_only(t, 3, 0, &[1; 8]),
    ];
    t.send_all(&packets)?;
    t.expect_acked(3, 4)?;
    t.expect_nothing()
}
