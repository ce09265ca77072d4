//! SENDs of the requester of a reliable connection: packets, headers and numbers.

use crate::Arrived;
use crate::agent::{SendWr, Status};
use crate::check::{Check, Outcome, ensure};
use crate::device::{SOURCE, Setup};
use crate::expect::request;
use crate::packet::positive_ack;
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::Opcode::{self, *};

/// FIRST, MIDDLE, LAST, ONLY.
pub(super) const SEND: [Opcode; 4] = [RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_LAST, RC_SEND_ONLY];

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "requester-send/short-message-is-one-packet",
        "RC-REQ-001",
        "A message that fits into the path MTU is one SEND ONLY that asks for an acknowledgement, \
         and completes when it is acknowledged.",
        short_message_is_one_packet,
    ),
    Check::new(
        "requester-send/long-message-is-cut-by-the-path-mtu",
        "RC-REQ-002",
        "A longer message is FIRST, MIDDLEs and LAST, all but the last of the path MTU.",
        |t| cut_by(t, PathMtu::Mtu1024, 2500),
    ),
    Check::new(
        "requester-send/path-mtu-256",
        "RC-REQ-002",
        "With a path MTU of 256 bytes no packet has more.",
        |t| cut_by(t, PathMtu::Mtu256, 900),
    ),
    Check::new(
        "requester-send/path-mtu-512",
        "RC-REQ-002",
        "With a path MTU of 512 bytes no packet has more.",
        |t| cut_by(t, PathMtu::Mtu512, 1025),
    ),
    Check::new(
        "requester-send/multiple-of-the-path-mtu-has-no-empty-packet",
        "RC-REQ-003",
        "A message of twice the path MTU is FIRST and LAST.",
        |t| cut_by(t, PathMtu::Mtu1024, 2048),
    ),
    Check::new(
        "requester-send/just-the-path-mtu-is-one-packet",
        "RC-REQ-001",
        "A message of just the path MTU is one SEND ONLY.",
        |t| cut_by(t, PathMtu::Mtu1024, 1024),
    ),
    Check::new(
        "requester-send/empty-message-is-one-packet",
        "RC-REQ-007",
        "A message of no bytes is a SEND ONLY without payload, and takes a PSN.",
        empty_message_is_one_packet,
    ),
    Check::new(
        "requester-send/pad-count-and-zeros",
        "WIRE-012",
        "The pad count says how many zeros bring the payload to a multiple of four.",
        pad_count_and_zeros,
    ),
    Check::new(
        "requester-send/psns-follow-each-other",
        "RC-REQ-016",
        "Each packet takes the next PSN, within messages and from one to the next.",
        psns_follow_each_other,
    ),
    Check::new(
        "requester-send/psn-wraps",
        "RC-REQ-031",
        "After PSN 0xffffff comes 0, in the midst of a message and between messages.",
        psn_wraps,
    ),
    Check::new(
        "requester-send/last-packet-asks-for-an-acknowledgement",
        "RC-REQ-001",
        "The last packet of all that a program waits for asks for an acknowledgement.",
        last_packet_asks,
    ),
    Check::new(
        "requester-send/solicited-in-the-last-packet-only",
        "RC-REQ-006",
        "The solicited event bit stands in the last packet of a message that asks for it.",
        |t| solicited(t, true),
    ),
    Check::new(
        "requester-send/not-solicited-unless-posted-so",
        "RC-REQ-006",
        "Without the flag no packet has the solicited event bit.",
        |t| solicited(t, false),
    ),
    Check::new(
        "requester-send/immediate-in-one-packet",
        "RC-REQ-005",
        "A short SEND with immediate data is one packet that has it.",
        |t| immediate(t, 100),
    ),
    Check::new(
        "requester-send/immediate-in-the-last-packet",
        "RC-REQ-005",
        "Immediate data stands in the last packet of a message.",
        |t| immediate(t, 2500),
    ),
    Check::new(
        "requester-send/key-to-invalidate-in-one-packet",
        "RC-REQ-005",
        "A short SEND with invalidate is one packet with the key.",
        |t| invalidate(t, 100),
    ),
    Check::new(
        "requester-send/key-to-invalidate-in-the-last-packet",
        "RC-REQ-005",
        "The key to invalidate stands in the last packet of a message.",
        |t| invalidate(t, 2500),
    ),
    Check::new(
        "requester-send/inline-data-is-taken-when-posted",
        "RC-REQ-008",
        "Inline data is sent as it was when it was posted.",
        inline_data,
    ),
    Check::new(
        "requester-send/gathers-its-list-in-order",
        "RC-REQ-002",
        "The entries of a gather list follow each other, whatever the packets' bounds are.",
        gathers_its_list,
    ),
    Check::new(
        "requester-send/header-fields",
        "WIRE-001",
        "Reserved bits are 0, the transport version is 0, the partition is the default one.",
        header_fields,
    ),
    Check::new(
        "requester-send/migreq-is-set",
        "WIRE-003",
        "MigReq is set: a QP without an alternate path is in the migrated state.",
        migreq_is_set,
    ),
    Check::new(
        "requester-send/order-of-posting",
        "RC-REQ-014",
        "Requests go out and complete in the order in which they were posted.",
        order_of_posting,
    ),
];

fn short_message_is_one_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(100);
    t.post_sends(&[&data])?;
    t.expect(request(RC_SEND_ONLY, 0).payload(&data).ack_req(true))?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])?;
    t.expect_nothing()
}

fn cut_by(t: &mut Script<'_>, mtu: PathMtu, len: usize) -> Outcome {
    t.connect(&Setup { mtu, ..Setup::rc() })?;
    let data = t.bytes(len);
    t.post_sends(&[&data])?;
    let packets = t.expect_message(SEND, 0, &data)?;
    t.send(positive_ack(packets.len() as i32 - 1, 1))?;
    t.expect_success([1])?;
    t.expect_nothing()
}

fn empty_message_is_one_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[SendWr::new(crate::agent::Operation::Send, 1)])?;
    t.expect_message(SEND, 0, &[])?;
    t.send(positive_ack(0, 1))?;
    t.expect_success([1])?;
    t.expect_requester_works(1, 2)
}

fn pad_count_and_zeros(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    for len in 1..=5 {
        let data = t.bytes(len);
        t.fill(SOURCE, &data)?;
        t.post(&[SendWr::send(len as u64, SOURCE..SOURCE + len)])?;
        let arrived = t.expect(request(RC_SEND_ONLY, len as i32 - 1).payload(&data))?;
        let needed = len.next_multiple_of(4) - len;
        let pad = usize::from(arrived.pad());
        ensure(pad == needed, &format!("a pad count of {needed}"), || pad.to_string())?;
        let zeros = arrived.body().iter().skip(len).all(|&byte| byte == 0);
        ensure(zeros, "zeros after the payload", || "others".into())?;
        t.send(positive_ack(len as i32 - 1, len as u32))?;
        t.expect_success([len as u64])?;
    }
    Ok(())
}

fn psns_follow_each_other(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = [t.bytes(1500), t.bytes(10), t.bytes(3000)];
    t.post_sends(&data.each_ref().map(Vec::as_slice))?;
    for (at, data) in [0, 2, 3].into_iter().zip(&data) {
        t.expect_message(SEND, at, data)?;
    }
    t.send(positive_ack(5, 3))?;
    t.expect_success(1..=3)
}

fn psn_wraps(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { their_psn: Some(0xff_fffe), ..Setup::rc() })?;
    let data = [t.bytes(3000), t.bytes(8)];
    t.post_sends(&data.each_ref().map(Vec::as_slice))?;
    t.expect_message(SEND, 0, &data[0])?;
    t.expect_message(SEND, 3, &data[1])?;
    t.send(positive_ack(3, 2))?;
    t.expect_success(1..=2)
}

/// The program SENDs messages of four packets, and the first has come.
fn long_message(t: &mut Script<'_>) -> Outcome<Vec<Arrived>> {
    t.connect(&Setup::rc().sending(4000))?;
    t.begin()?;
    t.take_beginning(0, 4, 4000)
}

fn last_packet_asks(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().sending(4000))?;
    t.begin()?;
    let packets = t.take_work()?;
    let asks = packets.last().is_some_and(|last| last.ack_req());
    ensure(asks, "AckReq in the last packet", || "not".into())?;
    let (ends, midst): (Vec<_>, Vec<_>) = packets.iter().partition(|packet| packet.ends_message());
    if ends.iter().any(|packet| !packet.ack_req()) {
        t.allow("asks for one acknowledgement of several messages");
    }
    if midst.iter().any(|packet| packet.ack_req()) {
        t.allow("asks for acknowledgements in the midst of messages");
    }
    t.finish_work()
}

fn solicited(t: &mut Script<'_>, asked: bool) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(2500);
    t.fill(SOURCE, &data)?;
    let wr = SendWr::send(1, SOURCE..SOURCE + data.len());
    t.post(&[if asked { wr.solicited() } else { wr }])?;
    let packets = t.expect_message(SEND, 0, &data)?;
    let bits: Vec<bool> = packets.iter().map(|packet| packet.solicited()).collect();
    ensure(bits == [false, false, asked], "solicited only where asked for", || {
        format!("{bits:?}")
    })?;
    t.send(positive_ack(2, 1))?;
    t.expect_success([1])
}

fn immediate(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(len);
    let imm = t.random();
    t.fill(SOURCE, &data)?;
    t.post(&[SendWr::send(1, SOURCE..SOURCE + len).imm(imm)])?;
    let opcodes = [RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_LAST_IMM, RC_SEND_ONLY_IMM];
    let packets = t.expect_message(opcodes, 0, &data)?;
    let found = packets.last().and_then(|last| last.immediate());
    ensure(found == Some(imm), &format!("immediate data {imm:#x}"), || format!("{found:x?}"))?;
    t.send(positive_ack(packets.len() as i32 - 1, 1))?;
    t.expect_success([1])
}

fn invalidate(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(len);
    let key = t.random();
    t.fill(SOURCE, &data)?;
    t.post(&[SendWr::send(1, SOURCE..SOURCE + len).inv(key)])?;
    let opcodes = [RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_LAST_INV, RC_SEND_ONLY_INV];
    let packets = t.expect_message(opcodes, 0, &data)?;
    let found = packets.last().and_then(|last| last.body().first_chunk().copied());
    let found = found.map(u32::from_be_bytes);
    ensure(found == Some(key), &format!("the key {key:#x}"), || format!("{found:x?}"))?;
    t.send(positive_ack(packets.len() as i32 - 1, 1))?;
    t.expect_success([1])
}

fn inline_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let (before, data) = (t.bytes(8), t.bytes(32));
    t.fill(SOURCE, &before)?;
    t.fill(SOURCE + 64, &data)?;
    t.post(&[SendWr::send(2, SOURCE + 64..SOURCE + 96).inline()])?;
    t.fill(SOURCE + 64, &[0; 32])?;
    t.expect(request(RC_SEND_ONLY, 0).payload(&data))?;
    t.send(positive_ack(0, 1))?;
    t.expect_completion(2, Status::Success).map(drop)
}

fn gathers_its_list(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(2000);
    t.fill(SOURCE + 3000, &data[..700])?;
    t.fill(SOURCE + 1001, &data[700..1900])?;
    t.fill(SOURCE, &data[1900..])?;
    let sges = vec![(SOURCE + 3000, 700), (SOURCE + 1001, 1200), (SOURCE, 100)];
    t.post(&[SendWr { sges, ..SendWr::send(1, 0..0) }])?;
    t.expect_message(SEND, 0, &data)?;
    t.send(positive_ack(1, 1))?;
    t.expect_success([1])
}

fn header_fields(t: &mut Script<'_>) -> Outcome {
    for packet in long_message(t)? {
        let (version, reserved) = (packet.flags() & 15, packet.reserved());
        ensure(version == 0, "transport version 0", || version.to_string())?;
        ensure(reserved == 0, "seven reserved bits of 0", || format!("{reserved:#04x}"))?;
        let congestion = packet.congestion();
        ensure(congestion & 0x3f == 0, "six reserved bits of 0", || format!("{congestion:#04x}"))?;
        let pkey = packet.pkey();
        ensure(pkey == 0xffff, "the default partition", || format!("{pkey:#06x}"))?;
    }
    t.finish_work()
}

fn migreq_is_set(t: &mut Script<'_>) -> Outcome {
    for packet in long_message(t)? {
        ensure(packet.flags() & 0x40 != 0, "MigReq set", || "0".into())?;
    }
    t.finish_work()
}

fn order_of_posting(t: &mut Script<'_>) -> Outcome {
    use crate::script::{OUR_ADDR, OUR_RKEY};
    t.connect(&Setup::rc())?;
    let data = t.bytes(64);
    t.fill(SOURCE, &data)?;
    let range = SOURCE..SOURCE + 64;
    t.post(&[
        SendWr::write(1, range.clone(), OUR_ADDR, OUR_RKEY),
        SendWr::send(2, range.clone()),
        SendWr::write(3, range, OUR_ADDR, OUR_RKEY),
    ])?;
    for (at, opcode) in [RC_WRITE_ONLY, RC_SEND_ONLY, RC_WRITE_ONLY].into_iter().enumerate() {
        t.expect(request(opcode, at as i32).payload(&data))?;
    }
    t.send(positive_ack(2, 3))?;
    t.expect_success(1..=3)
}
