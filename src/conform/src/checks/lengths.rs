//! Lengths: of packets by their place in a message, and of messages.

use super::requests::{MTU, read, send_only, sends, silent_write, write_only, writes};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess};
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "lengths/write-first-short",
        rule: "RC-RESP-041",
        says: "A WRITE FIRST of less than the path MTU is an invalid request.",
        risk: Risk::None,
        run: write_first_short,
    },
    Check {
        name: "lengths/write-first-long",
        rule: "RC-RESP-041",
        says: "A WRITE FIRST of more than the path MTU is an invalid request.",
        risk: Risk::None,
        run: write_first_long,
    },
    Check {
        name: "lengths/write-first-empty",
        rule: "RC-RESP-041",
        says: "A WRITE FIRST without payload is an invalid request.",
        risk: Risk::None,
        run: write_first_empty,
    },
    Check {
        name: "lengths/write-middle-short",
        rule: "RC-RESP-041",
        says: "A WRITE MIDDLE of less than the path MTU is an invalid request.",
        risk: Risk::None,
        run: write_middle_short,
    },
    Check {
        name: "lengths/write-middle-long",
        rule: "RC-RESP-041",
        says: "A WRITE MIDDLE of more than the path MTU is an invalid request.",
        risk: Risk::None,
        run: write_middle_long,
    },
    Check {
        name: "lengths/write-middle-empty",
        rule: "RC-RESP-041",
        says: "A WRITE MIDDLE without payload is an invalid request.",
        risk: Risk::None,
        run: write_middle_empty,
    },
    Check {
        name: "lengths/write-last-empty",
        rule: "RC-RESP-043",
        says: "A WRITE LAST without payload is an invalid request.",
        risk: Risk::None,
        run: write_last_empty,
    },
    Check {
        name: "lengths/write-first-of-all-the-bytes",
        rule: "RC-RESP-044",
        says: "A WRITE FIRST that leaves nothing for a LAST is an invalid request, at once or \
               at the LAST.",
        risk: Risk::None,
        run: write_first_of_all_the_bytes,
    },
    Check {
        name: "lengths/write-last-long",
        rule: "RC-RESP-042",
        says: "A WRITE LAST of more than the path MTU is an invalid request.",
        risk: Risk::None,
        run: write_last_long,
    },
    Check {
        name: "lengths/write-only-long",
        rule: "RC-RESP-042",
        says: "A WRITE ONLY of more than the path MTU is an invalid request.",
        risk: Risk::None,
        run: write_only_long,
    },
    Check {
        name: "lengths/send-first-short",
        rule: "RC-RESP-041",
        says: "A SEND FIRST of less than the path MTU is an invalid request.",
        risk: Risk::None,
        run: send_first_short,
    },
    Check {
        name: "lengths/send-middle-short",
        rule: "RC-RESP-041",
        says: "A SEND MIDDLE of less than the path MTU is an invalid request.",
        risk: Risk::None,
        run: send_middle_short,
    },
    Check {
        name: "lengths/send-last-empty",
        rule: "RC-RESP-043",
        says: "A SEND LAST without payload is an invalid request.",
        risk: Risk::None,
        run: send_last_empty,
    },
    Check {
        name: "lengths/send-last-long",
        rule: "RC-RESP-042",
        says: "A SEND LAST of more than the path MTU is an invalid request.",
        risk: Risk::None,
        run: send_last_long,
    },
    Check {
        name: "lengths/send-only-long",
        rule: "RC-RESP-042",
        says: "A SEND ONLY of more than the path MTU is an invalid request, also where the \
               receive has room.",
        risk: Risk::None,
        run: send_only_long,
    },
    Check {
        name: "lengths/write-only-says-more",
        rule: "RC-RESP-044",
        says: "A WRITE ONLY that brings fewer bytes than its RETH says is an invalid request.",
        risk: Risk::None,
        run: write_only_says_more,
    },
    Check {
        name: "lengths/write-only-says-less",
        rule: "RC-RESP-044",
        says: "A WRITE ONLY that brings more bytes than its RETH says is an invalid request.",
        risk: Risk::None,
        run: write_only_says_less,
    },
    Check {
        name: "lengths/write-only-says-more-by-padding",
        rule: "RC-RESP-044",
        says: "Pad bytes are no payload: a WRITE of eight bytes that brings five is an invalid \
               request.",
        risk: Risk::None,
        run: write_only_says_more_by_padding,
    },
    Check {
        name: "lengths/write-only-says-nothing",
        rule: "RC-RESP-044",
        says: "A WRITE ONLY of nothing by its RETH that brings bytes is not carried out as a \
               good one.",
        risk: Risk::Hostile,
        run: write_only_says_nothing,
    },
    Check {
        name: "lengths/write-last-too-early",
        rule: "RC-RESP-044",
        says: "A WRITE that ends with fewer bytes than its RETH says is an invalid request.",
        risk: Risk::None,
        run: write_last_too_early,
    },
    Check {
        name: "lengths/write-last-too-late",
        rule: "RC-RESP-044",
        says: "A WRITE that ends with more bytes than its RETH says is an invalid request.",
        risk: Risk::None,
        run: write_last_too_late,
    },
    Check {
        name: "lengths/write-middle-too-late",
        rule: "RC-RESP-044",
        says: "A WRITE MIDDLE that brings more than is left of the message is an invalid request.",
        risk: Risk::None,
        run: write_middle_too_late,
    },
    Check {
        name: "lengths/write-longer-than-a-message",
        rule: "RC-RESP-045",
        says: "A WRITE of more than 2^31 bytes is an invalid request.",
        risk: Risk::None,
        run: write_longer_than_a_message,
    },
    Check {
        name: "lengths/read-longer-than-a-message",
        rule: "RC-RESP-045",
        says: "A READ of more than 2^31 bytes is an invalid request.",
        risk: Risk::None,
        run: read_longer_than_a_message,
    },
    Check {
        name: "lengths/write-of-nothing",
        rule: "RC-RESP-010",
        says: "A WRITE of no bytes is carried out.",
        risk: Risk::None,
        run: write_of_nothing,
    },
    Check {
        name: "lengths/write-of-nothing-with-a-wrong-key",
        rule: "RC-RESP-010",
        says: "A WRITE of no bytes names no memory, whatever its key and address.",
        risk: Risk::None,
        run: write_of_nothing_with_a_wrong_key,
    },
    Check {
        name: "lengths/read-of-nothing",
        rule: "RC-RESP-010",
        says: "A READ of no bytes is answered by READ RESPONSE ONLY without payload.",
        risk: Risk::None,
        run: read_of_nothing,
    },
    Check {
        name: "lengths/read-of-nothing-with-a-wrong-key",
        rule: "RC-RESP-010",
        says: "A READ of no bytes names no memory, whatever its key and address.",
        risk: Risk::None,
        run: read_of_nothing_with_a_wrong_key,
    },
    Check {
        name: "lengths/send-of-nothing",
        rule: "RC-RESP-003",
        says: "A SEND of no bytes is acknowledged.",
        risk: Risk::None,
        run: send_of_nothing,
    },
    Check {
        name: "lengths/write-of-one-packet",
        rule: "RC-RESP-009",
        says: "A WRITE ONLY of just the path MTU is carried out.",
        risk: Risk::None,
        run: write_of_one_packet,
    },
    Check {
        name: "lengths/write-of-one-byte-more",
        rule: "RC-RESP-009",
        says: "A WRITE of one byte more than the path MTU ends with a LAST of one byte.",
        risk: Risk::None,
        run: write_of_one_byte_more,
    },
    Check {
        name: "lengths/write-of-full-packets",
        rule: "RC-RESP-009",
        says: "A WRITE of a multiple of the path MTU ends with a full LAST.",
        risk: Risk::None,
        run: write_of_full_packets,
    },
    Check {
        name: "lengths/write-of-small-lengths",
        rule: "WIRE-011",
        says: "WRITEs of 1, 2, 3 and 5 bytes change just these bytes.",
        risk: Risk::None,
        run: write_of_small_lengths,
    },
    Check {
        name: "lengths/send-of-full-packets",
        rule: "RC-RESP-002",
        says: "A SEND of a multiple of the path MTU ends with a full LAST.",
        risk: Risk::None,
        run: send_of_full_packets,
    },
];

fn write_first_short(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![first(t, 2000, 1020)])
}

fn write_first_long(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![first(t, 3000, 1028)])
}

fn write_first_empty(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![first(t, 2000, 0)])
}

fn write_middle_short(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 3000, MTU), middle(1, 1020)])
}

fn write_middle_long(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 5000, MTU), middle(1, 1028)])
}

fn write_middle_empty(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 3000, MTU), middle(1, 0)])
}

fn write_last_empty(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 2048, MTU), last(1, 0)])
}

fn write_first_of_all_the_bytes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&[first(t, MTU, MTU), last(1, 0)])?;
    let at = t.expect_one_of(&[nak(InvalidRequest, 0), nak(InvalidRequest, 1)])?.0;
    t.expect_no_service(at as i32)
}

fn write_last_long(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 2056, MTU), last(1, 1032)])
}

fn write_only_long(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![write_only(t, 0, 0, &[1; 1028])])
}

fn send_first_short(t: &mut Script<'_>) -> Outcome {
    send_refused(t, 0, &[part(Opcode::RC_SEND_FIRST, 0, 1020)])
}

fn send_middle_short(t: &mut Script<'_>) -> Outcome {
    let first = part(Opcode::RC_SEND_FIRST, 0, MTU);
    send_refused(t, 1, &[first, part(Opcode::RC_SEND_MIDDLE, 1, 512)])
}

fn send_last_empty(t: &mut Script<'_>) -> Outcome {
    let first = part(Opcode::RC_SEND_FIRST, 0, MTU);
    send_refused(t, 1, &[first, part(Opcode::RC_SEND_LAST, 1, 0)])
}

fn send_last_long(t: &mut Script<'_>) -> Outcome {
    let first = part(Opcode::RC_SEND_FIRST, 0, MTU);
    send_refused(t, 1, &[first, part(Opcode::RC_SEND_LAST, 1, 1028)])
}

fn send_only_long(t: &mut Script<'_>) -> Outcome {
    send_refused(t, 0, &[part(Opcode::RC_SEND_ONLY, 0, 1028)])
}

fn write_only_says_more(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![says(t, Opcode::RC_WRITE_ONLY, 16, 8)])
}

fn write_only_says_less(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![says(t, Opcode::RC_WRITE_ONLY, 8, 16)])
}

fn write_only_says_more_by_padding(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![says(t, Opcode::RC_WRITE_ONLY, 8, 5)])
}

fn write_only_says_nothing(t: &mut Script<'_>) -> Outcome {
    refused(t, 0, |t| vec![says(t, Opcode::RC_WRITE_ONLY, 0, 8)])
}

fn write_last_too_early(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 2048, MTU), last(1, 1000)])
}

fn write_last_too_late(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 1500, MTU), last(1, 1024)])
}

fn write_middle_too_late(t: &mut Script<'_>) -> Outcome {
    refused(t, 1, |t| vec![first(t, 1500, MTU), middle(1, MTU)])
}

fn write_longer_than_a_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(first(t, (1 << 31) + 1, MTU))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 0)
}

fn read_longer_than_a_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, (1 << 31) + 1))?;
    t.expect_refused_or(InvalidRequest, RemoteAccess, 0)
}

fn write_of_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[]))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn write_of_nothing_with_a_wrong_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let (addr, rkey) = (t.addr(1 << 40), t.rkey() ^ 0x5500_0000);
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(addr, rkey, 0).ack_req())?;
    t.expect_acked(0, 1)?;
    t.expect_service(1, 2)
}

fn read_of_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 0))?;
    t.expect_read(0, 0, 1)?;
    t.expect_nothing()
}

fn read_of_nothing_with_a_wrong_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let (addr, rkey) = (t.addr(1 << 40), t.rkey() ^ 0x5500_0000);
    t.send(packet(Opcode::RC_READ_REQUEST).reth(addr, rkey, 0))?;
    t.expect_read(0, 0, 1)?;
    t.expect_service(1, 2)
}

fn send_of_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(1, 64))?;
    t.send(send_only(0, &[]))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn write_of_one_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; MTU]))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn write_of_one_byte_more(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&writes(t, 0, 0, &[1; MTU + 1]))?;
    t.expect_acked(1, 1)?;
    t.expect_nothing()
}

fn write_of_full_packets(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&writes(t, 0, 0, &[1; 3 * MTU]))?;
    t.expect_acked(2, 1)?;
    t.expect_nothing()
}

fn write_of_small_lengths(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    t.send(write_only(t, 0, 0, &[0xee; 64]))?;
    t.expect_acked(0, 1)?;
    let mut wanted = vec![0xee; 64];
    for (i, len) in [1, 2, 3, 5].into_iter().enumerate() {
        let data = t.bytes(len);
        let at = 3 + 13 * i;
        wanted[at..at + len].copy_from_slice(&data);
        t.send(silent_write(t, i as i32 + 1, at as u64, &data))?;
    }
    t.expect_memory(5, 6, 0, &wanted)
}

fn send_of_full_packets(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(1, 4096))?;
    t.send_all(&sends(0, &[1; 3 * MTU]))?;
    t.expect_acked(2, 1)?;
    t.expect_nothing()
}

fn says(t: &Script<'_>, opcode: Opcode, says: usize, brings: usize) -> Packet {
    packet(opcode).reth(t.addr(0), t.rkey(), says as u32).payload(&vec![1; brings]).ack_req()
}

fn first(t: &Script<'_>, message: usize, len: usize) -> Packet {
    says(t, Opcode::RC_WRITE_FIRST, message, len)
}

fn part(opcode: Opcode, psn: i32, len: usize) -> Packet {
    packet(opcode).at(psn).payload(&vec![1; len]).ack_req()
}

fn middle(psn: i32, len: usize) -> Packet {
    part(Opcode::RC_WRITE_MIDDLE, psn, len)
}

fn last(psn: i32, len: usize) -> Packet {
    part(Opcode::RC_WRITE_LAST, psn, len)
}

/// Of these packets the last one, at this PSN, is an invalid request.
fn refused(t: &mut Script<'_>, psn: i32, packets: impl Fn(&Script<'_>) -> Vec<Packet>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send_all(&packets(t))?;
    t.expect_refused(InvalidRequest, psn)
}

/// Of these packets of a SEND the last one, at this PSN, is an invalid request.
fn send_refused(t: &mut Script<'_>, psn: i32, packets: &[Packet]) -> Outcome {
    t.connect(&Setup::rc().receives(4, 4096))?;
    t.send_all(packets)?;
    t.expect_refused(InvalidRequest, psn)
}
