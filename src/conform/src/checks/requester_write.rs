//! WRITEs of the requester of a reliable connection.

use crate::agent::SendWr;
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::{SOURCE, Setup};
use crate::packet::positive_ack;
use crate::script::{OUR_ADDR, OUR_RKEY, Script};
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "requester-write/short-one-is-one-packet",
        "RC-REQ-004",
        "A WRITE that fits into the path MTU is one WRITE ONLY with address, key and length.",
        |t| write(t, 100),
    ),
    Check::new(
        "requester-write/long-one-covers-its-range-in-order",
        "RC-REQ-004",
        "A longer WRITE is FIRST with the RETH of all of it, MIDDLEs and LAST; or, which is \
         allowed, WRITE ONLYs that lie end to end.",
        |t| write(t, 2500),
    ),
    Check::new(
        "requester-write/multiple-of-the-path-mtu-has-no-empty-packet",
        "RC-REQ-003",
        "A WRITE of three times the path MTU is three packets.",
        |t| write(t, 3072),
    ),
    Check::new(
        "requester-write/empty-one-is-one-packet",
        "RC-REQ-007",
        "A WRITE of no bytes is one WRITE ONLY with a RETH.",
        |t| write(t, 0),
    ),
    Check::new(
        "requester-write/immediate-in-one-packet",
        "RC-REQ-005",
        "A short WRITE with immediate data is one packet with RETH and immediate data.",
        |t| write_with_immediate(t, 100),
    ),
    Check::new(
        "requester-write/immediate-in-the-last-packet",
        "RC-REQ-005",
        "A longer WRITE with immediate data is one message: the RETH of all of it stands in the \
         first packet, the immediate data in the last.",
        |t| write_with_immediate(t, 2500),
    ),
];

fn write(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc().writing(len))?;
    t.begin()?;
    let packets = t.take_message(0, len)?;
    let end = packets.len() - 1;
    let in_parts = packets.iter().all(|packet| packet.opcode() == RC_WRITE_ONLY as u8);
    let mut received: Vec<u8> = Vec::new();
    for (i, packet) in packets.iter().enumerate() {
        let (opcode, reth) = match (i == 0, i == end) {
            _ if in_parts => {
                let len = packet.payload().len() as u32;
                (RC_WRITE_ONLY, Some((OUR_ADDR + received.len() as u64, OUR_RKEY, len)))
            }
            (true, _) => (RC_WRITE_FIRST, Some((OUR_ADDR, OUR_RKEY, len as u32))),
            (false, true) => (RC_WRITE_LAST, None),
            (false, false) => (RC_WRITE_MIDDLE, None),
        };
        if packet.opcode() != opcode as u8 || packet.reth() != reth {
            let seen = format!("{packet} with RETH {:x?}", packet.reth());
            return Err(Stop::failed(format!("{opcode} with RETH {reth:x?}"), seen));
        }
        received.extend(packet.payload());
    }
    if t.is_told() {
        let posted = t.buffer(SOURCE, len)?;
        ensure(received == posted, "the bytes that were posted", || "others".into())?;
    }
    if !packets[end].ack_req() {
        let rest = t.take_rest_of_work(packets.len() as i32)?;
        let asks = rest.last().is_some_and(|last| last.ack_req());
        ensure(asks, "AckReq in the last packet", || "not".into())?;
        t.allow("asks for one acknowledgement of several messages");
    }
    if in_parts && end > 0 {
        t.allow("sends a WRITE in parts that are WRITE ONLYs");
    }
    t.finish_work()?;
    t.expect_nothing()
}

fn write_with_immediate(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(len);
    let imm = t.random();
    t.fill(SOURCE, &data)?;
    t.post(&[SendWr::write(1, SOURCE..SOURCE + len, OUR_ADDR, OUR_RKEY).imm(imm)])?;
    let opcodes = [RC_WRITE_FIRST, RC_WRITE_MIDDLE, RC_WRITE_LAST_IMM, RC_WRITE_ONLY_IMM];
    let packets = t.expect_message(opcodes, 0, &data)?;
    let reth = packets.first().and_then(|first| first.reth());
    let wanted = Some((OUR_ADDR, OUR_RKEY, len as u32));
    ensure(reth == wanted, &format!("RETH {wanted:x?}"), || format!("{reth:x?}"))?;
    let found = packets.last().and_then(|last| last.immediate());
    ensure(found == Some(imm), &format!("immediate data {imm:#x}"), || format!("{found:x?}"))?;
    t.send(positive_ack(packets.len() as i32 - 1, 1))?;
    t.expect_success([1])
}
