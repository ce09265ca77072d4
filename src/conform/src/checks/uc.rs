//! Unreliable connections.

use crate::agent::{RecvWr, SendWr, Status};
use crate::check::{Check, Outcome, ensure};
use crate::device::{RECEIVES, SOURCE, Setup};
use crate::packet::{Packet, message, packet};
use crate::script::{OUR_ADDR, OUR_RKEY, Script};
use urxe_types::PathMtu;
use urxe_wire::Opcode::{self, *};

const SEND: [Opcode; 4] = [UC_SEND_FIRST, UC_SEND_MIDDLE, UC_SEND_LAST, UC_SEND_ONLY];
const WRITE: [Opcode; 4] = [UC_WRITE_FIRST, UC_WRITE_MIDDLE, UC_WRITE_LAST, UC_WRITE_ONLY];

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "uc-requester/short-send",
        "UC-001",
        "A short SEND is one packet, and completes when it was sent, without an answer.",
        |t| send(t, 100),
    ),
    Check::new(
        "uc-requester/long-send",
        "UC-001",
        "A longer SEND is FIRST, MIDDLEs and LAST.",
        |t| send(t, 2500),
    ),
    Check::new(
        "uc-requester/write",
        "UC-001",
        "A WRITE is FIRST with the RETH of all of it, MIDDLEs and LAST.",
        write,
    ),
    Check::new(
        "uc-requester/completes-in-order",
        "UC-002",
        "Sends complete in the order in which they were posted, and PSNs go on from one to the \
         next.",
        completes_in_order,
    ),
    Check::new("uc-requester/psn-wraps", "UC-005", "After PSN 0xffffff comes 0.", psn_wraps),
    Check::new(
        "uc-responder/send-completes-without-an-answer",
        "UC-006",
        "A SEND fills its receive, and nothing is sent back, even if it asks for that.",
        |t| received(t, 100),
    ),
    Check::new(
        "uc-responder/long-send",
        "UC-006",
        "A SEND of several packets completes one receive with its whole length.",
        |t| received(t, 2500),
    ),
    Check::new(
        "uc-responder/immediate-data",
        "UC-006",
        "A SEND with immediate data completes with it.",
        immediate_data,
    ),
    Check::new(
        "uc-responder/write-lands",
        "UC-007",
        "A WRITE changes memory and completes nothing.",
        write_lands,
    ),
    Check::new(
        "uc-responder/write-with-immediate-data",
        "UC-007",
        "A WRITE with immediate data completes a receive with the length of the whole.",
        write_with_immediate_data,
    ),
    Check::new(
        "uc-responder/lost-middle-drops-the-message",
        "UC-008",
        "A message of which a packet was lost completes nothing, and the next one gets its receive.",
        |t| lost(t, 1),
    ),
    Check::new(
        "uc-responder/lost-first-drops-the-message",
        "UC-010",
        "The rest of a message whose beginning was lost completes nothing.",
        |t| lost(t, 0),
    ),
    Check::new(
        "uc-responder/lost-last-drops-the-message",
        "UC-008",
        "A message whose end was lost completes nothing, and the next one gets its receive.",
        |t| lost(t, 2),
    ),
    Check::new(
        "uc-responder/goes-on-after-a-gap",
        "UC-009",
        "After a gap between messages the next message is received.",
        gap_between_messages,
    ),
    Check::new(
        "uc-responder/without-a-receive-is-dropped",
        "UC-014",
        "A message without a receive is dropped; the next one is received when there is one.",
        without_a_receive,
    ),
];

fn send(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::uc())?;
    let data = t.bytes(len);
    t.post_sends(&[&data])?;
    let packets = t.expect_message(SEND, 0, &data)?;
    if packets.iter().any(|packet| packet.ack_req()) {
        t.allow("asks for acknowledgements, which nobody sends");
    }
    t.expect_success([1])?;
    t.expect_nothing()
}

fn write(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc())?;
    let data = t.bytes(2500);
    t.fill(SOURCE, &data)?;
    t.post(&[SendWr::write(1, SOURCE..SOURCE + 2500, OUR_ADDR, OUR_RKEY)])?;
    let packets = t.expect_message(WRITE, 0, &data)?;
    let reth = packets.first().and_then(|first| first.reth());
    let wanted = Some((OUR_ADDR, OUR_RKEY, 2500));
    ensure(reth == wanted, &format!("RETH {wanted:x?}"), || format!("{reth:x?}"))?;
    t.expect_success([1])
}

fn completes_in_order(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc())?;
    let data = [t.bytes(10), t.bytes(1500), t.bytes(20)];
    t.post_sends(&data.each_ref().map(Vec::as_slice))?;
    for (at, data) in [0, 1, 3].into_iter().zip(&data) {
        t.expect_message(SEND, at, data)?;
    }
    t.expect_success(1..=3)
}

fn psn_wraps(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { their_psn: Some(0xff_ffff), ..Setup::uc() })?;
    let data = t.bytes(2500);
    t.post_sends(&[&data])?;
    t.expect_message(SEND, 0, &data)?;
    t.expect_success([1])
}

fn parts(at: i32, data: &[u8]) -> Vec<Packet> {
    message(SEND, at, data, PathMtu::Mtu1024, |first| first)
}

fn expect_receive(t: &mut Script<'_>, id: u64, data: &[u8]) -> Outcome {
    let wc = t.expect_completion(id, Status::Success)?;
    let (wanted, found) = (data.len() as u32, wc.len);
    ensure(wanted == found, &format!("a length of {wanted}"), || found.to_string())?;
    let found = t.buffer(RECEIVES + id as usize * 4096, data.len())?;
    ensure(found == data, "the message in its receive", || "other bytes".into())
}

fn received(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::uc().exactly(2, 4096))?;
    let data = t.bytes(len);
    t.send_all(&parts(0, &data))?;
    expect_receive(t, 0, &data)?;
    t.expect_nothing()
}

fn immediate_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc().exactly(1, 4096))?;
    let imm = t.random();
    t.send(packet(UC_SEND_ONLY_IMM).imm(imm).payload(&[1; 20]))?;
    let wc = t.expect_completion(0, Status::Success)?;
    ensure(wc.imm == Some(imm), &format!("immediate data {imm:#x}"), || format!("{:x?}", wc.imm))
}

fn write_lands(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc().write().exactly(1, 4096))?;
    let data = t.bytes(2500);
    let (addr, rkey) = (t.addr(0), t.rkey());
    t.send_all(&message(WRITE, 0, &data, PathMtu::Mtu1024, |p| p.reth(addr, rkey, 2500)))?;
    t.expect_no_completion()?;
    let found = t.memory_at(0, 2500)?;
    ensure(found == data, "the data in memory", || "other bytes".into())?;
    t.expect_nothing()
}

fn write_with_immediate_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc().write().exactly(1, 4096))?;
    let (data, imm) = (t.bytes(2000), t.random());
    let (addr, rkey) = (t.addr(0), t.rkey());
    let opcodes = [UC_WRITE_FIRST, UC_WRITE_MIDDLE, UC_WRITE_LAST_IMM, UC_WRITE_ONLY_IMM];
    let begin = |first: Packet| first.reth(addr, rkey, 2000);
    let mut packets = message(opcodes, 0, &data, PathMtu::Mtu1024, begin);
    packets[1] = packets[1].clone().imm(imm);
    t.send_all(&packets)?;
    let wc = t.expect_completion(0, Status::Success)?;
    ensure(wc.len == 2000 && wc.imm == Some(imm), "2000 bytes and the immediate data", || {
        format!("{wc:x?}")
    })
}

fn lost(t: &mut Script<'_>, missing: usize) -> Outcome {
    t.connect(&Setup::uc().exactly(2, 4096))?;
    let (lost, data) = (t.bytes(2500), t.bytes(300));
    let mut packets = parts(0, &lost);
    packets.remove(missing);
    t.send_all(&packets)?;
    t.expect_no_completion()?;
    t.send_all(&parts(3, &data))?;
    expect_receive(t, 0, &data)
}

fn gap_between_messages(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc().exactly(2, 4096))?;
    let (first, second) = (t.bytes(100), t.bytes(1500));
    t.send_all(&parts(0, &first))?;
    expect_receive(t, 0, &first)?;
    t.send_all(&parts(20, &second))?;
    expect_receive(t, 1, &second)
}

fn without_a_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::uc())?;
    let data = t.bytes(100);
    t.send_all(&parts(0, &[1; 100]))?;
    t.expect_nothing()?;
    t.post_recv(&[RecvWr::new(0, RECEIVES..RECEIVES + 4096)])?;
    t.send_all(&parts(1, &data))?;
    expect_receive(t, 0, &data)
}
