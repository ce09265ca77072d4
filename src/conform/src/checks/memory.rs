//! Memory that is written: contents, bounds and keys.

use super::requests::{MTU, silent_write, write_only, writes, writes_with_imm};
use crate::check::{Check, Outcome, Risk, Stop};
use crate::device::Setup;
use crate::expect::{ack, nak};
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::NakCode::RemoteAccess;
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "memory/bytes-arrive",
        rule: "RC-RESP-009",
        says: "A WRITE of several packets puts its bytes where its RETH says, and nowhere else.",
        risk: Risk::None,
        run: bytes_arrive,
    },
    Check {
        name: "memory/the-last-byte-of-the-region",
        rule: "RC-RESP-012",
        says: "A WRITE may reach to the last byte of its region.",
        risk: Risk::None,
        run: the_last_byte_of_the_region,
    },
    Check {
        name: "memory/later-writes-win",
        rule: "ORDER-001",
        says: "Of two WRITEs to one place the later one stays.",
        risk: Risk::None,
        run: later_writes_win,
    },
    Check {
        name: "memory/overlapping-writes",
        rule: "ORDER-001",
        says: "WRITEs that overlap are done in their order.",
        risk: Risk::None,
        run: overlapping_writes,
    },
    Check {
        name: "memory/immediate-data",
        rule: "RC-RESP-007",
        says: "A WRITE with immediate data is acknowledged as one message.",
        risk: Risk::None,
        run: immediate_data,
    },
    Check {
        name: "memory/immediate-data-without-payload",
        rule: "RC-RESP-007",
        says: "A WRITE of no bytes may bring immediate data.",
        risk: Risk::None,
        run: immediate_data_without_payload,
    },
    Check {
        name: "memory/past-the-end",
        rule: "RC-RESP-012",
        says: "A WRITE of one byte past the end of its region is a remote access error.",
        risk: Risk::None,
        run: past_the_end,
    },
    Check {
        name: "memory/behind-the-end",
        rule: "RC-RESP-012",
        says: "A WRITE right behind its region is a remote access error.",
        risk: Risk::None,
        run: behind_the_end,
    },
    Check {
        name: "memory/before-the-start",
        rule: "RC-RESP-012",
        says: "A WRITE that begins one byte before its region is a remote access error.",
        risk: Risk::None,
        run: before_the_start,
    },
    Check {
        name: "memory/past-the-end-in-packets",
        rule: "RC-RESP-012",
        says: "A WRITE whose last packet would pass the end of its region is a remote access \
               error.",
        risk: Risk::None,
        run: past_the_end_in_packets,
    },
    Check {
        name: "memory/around-the-address-space",
        rule: "RC-RESP-013",
        says: "A WRITE whose address and length pass 2^64 is a remote access error.",
        risk: Risk::Hostile,
        run: around_the_address_space,
    },
    Check {
        name: "memory/longer-than-the-region",
        rule: "RC-RESP-012",
        says: "A WRITE of 2^31 bytes to a small region is a remote access error.",
        risk: Risk::None,
        run: longer_than_the_region,
    },
    Check {
        name: "memory/key-with-another-low-byte",
        rule: "MEM-004",
        says: "A key that differs in its low eight bits opens nothing.",
        risk: Risk::None,
        run: key_with_another_low_byte,
    },
    Check {
        name: "memory/key-with-another-index",
        rule: "MEM-001",
        says: "A key that differs in its upper bits opens nothing.",
        risk: Risk::None,
        run: key_with_another_index,
    },
    Check {
        name: "memory/key-0",
        rule: "MEM-001",
        says: "The key 0 opens nothing.",
        risk: Risk::None,
        run: key_0,
    },
    Check {
        name: "memory/key-of-another-connections-memory",
        rule: "RC-RESP-013",
        says: "The key of one region does not open the addresses of another.",
        risk: Risk::None,
        run: key_of_another_connections_memory,
    },
    Check {
        name: "memory/path-mtu-256",
        rule: "RC-RESP-041",
        says: "The path MTU of the connection counts: with 256, packets of 256 bytes are full.",
        risk: Risk::None,
        run: path_mtu_256,
    },
    Check {
        name: "memory/path-mtu-4096",
        rule: "RC-RESP-041",
        says: "With a path MTU of 4096, packets of 4096 bytes are full.",
        risk: Risk::None,
        run: path_mtu_4096,
    },
];

fn bytes_arrive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    t.send_all(&writes(t, 0, 0, &[0xaa; 4 * MTU]))?;
    t.expect_acked(3, 1)?;
    let data = t.bytes(2500);
    t.send_all(&writes(t, 4, 100, &data))?;
    t.expect_acked(6, 2)?;
    let mut wanted = vec![0xaa; 4 * MTU];
    wanted[100..2600].copy_from_slice(&data);
    t.expect_memory(7, 3, 0, &wanted)
}

fn the_last_byte_of_the_region(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(40);
    let at = end(t) - 40;
    t.send(write_only(t, 0, at, &data))?;
    t.expect_acked(0, 1)?;
    t.expect_memory(1, 2, at, &data)
}

fn later_writes_win(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let (first, second) = (t.bytes(200), t.bytes(200));
    t.send_all(&[silent_write(t, 0, 64, &first), silent_write(t, 1, 64, &second)])?;
    t.expect_memory(2, 3, 64, &second)
}

fn overlapping_writes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let (first, second) = (t.bytes(100), t.bytes(100));
    t.send_all(&[silent_write(t, 0, 0, &first), silent_write(t, 1, 50, &second)])?;
    let wanted = [&first[..50], &second[..]].concat();
    t.expect_memory(2, 3, 0, &wanted)
}

fn immediate_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().receives(4, 64))?;
    t.send_all(&writes_with_imm(t, 0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    t.send_all(&writes_with_imm(t, 1, &[1; 2000]))?;
    t.expect_acked(2, 2)?;
    t.expect_nothing()
}

fn immediate_data_without_payload(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().receives(4, 64))?;
    t.send_all(&writes_with_imm(t, 0, &[]))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn past_the_end(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let at = end(t) - 7;
    t.send(write_only(t, 0, at, &[1; 8]))?;
    t.expect_refused(RemoteAccess, 0)
}

fn behind_the_end(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let at = end(t);
    t.send(write_only(t, 0, at, &[1; 8]))?;
    t.expect_refused(RemoteAccess, 0)
}

fn before_the_start(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let (addr, rkey) = (t.addr(0) - 1, t.rkey());
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(addr, rkey, 8).payload(&[1; 8]).ack_req())?;
    t.expect_refused(RemoteAccess, 0)
}

fn past_the_end_in_packets(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let at = end(t) - 2 * MTU as u64;
    let data = t.bytes(2 * MTU + 1);
    t.send_all(&writes(t, 0, at, &data))?;
    let expected = [0, 1, 2].map(|psn| nak(RemoteAccess, psn).msn(0));
    let refused = t.expect_one_of(&expected)?.0;
    if refused != 0 {
        t.allow(format!("refuses a WRITE that leaves its region at packet {refused}"));
    }
    t.expect_no_service(refused as i32)
}

fn around_the_address_space(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let rkey = t.rkey();
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(u64::MAX - 3, rkey, 8).payload(&[1; 8]).ack_req())?;
    t.expect_refused(RemoteAccess, 0)
}

fn longer_than_the_region(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let first = packet(Opcode::RC_WRITE_FIRST).reth(t.addr(0), t.rkey(), 1 << 31);
    t.send(first.payload(&[1; MTU]).ack_req())?;
    if t.expect_one_of(&[nak(RemoteAccess, 0), ack(0).msn(0)])?.0 == 0 {
        return t.expect_no_service(0);
    }
    // The first packet that is not within.
    let outside = t.memory().len.div_ceil(MTU) as i32;
    let middle = |psn| packet(Opcode::RC_WRITE_MIDDLE).at(psn).payload(&[1; MTU]);
    let mut packets: Vec<Packet> = (1..=outside).map(middle).collect();
    if let Some(last) = packets.last_mut() {
        last.ack_req = true;
    }
    t.send_all(&packets)?;
    t.expect_answer(nak(RemoteAccess, outside).msn(0))?;
    t.allow(format!("refuses a WRITE that leaves its region at packet {outside}"));
    t.expect_no_service(outside)
}

fn key_with_another_low_byte(t: &mut Script<'_>) -> Outcome {
    wrong_key(t, |rkey| rkey ^ 1)
}

fn key_with_another_index(t: &mut Script<'_>) -> Outcome {
    wrong_key(t, |rkey| rkey ^ 0x0800_0000)
}

fn key_0(t: &mut Script<'_>) -> Outcome {
    wrong_key(t, |_| 0)
}

fn key_of_another_connections_memory(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let (addr, other) = (t.addr(0), t.rkey());
    t.connect(&Setup::rc().write())?;
    let rkey = t.rkey();
    if rkey == other {
        return Err(Stop::Inconclusive("both connections have the same memory".into()));
    }
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(addr, rkey, 8).payload(&[1; 8]).ack_req())?;
    t.expect_refused(RemoteAccess, 0)
}

fn path_mtu_256(t: &mut Script<'_>) -> Outcome {
    with_mtu(t, PathMtu::Mtu256)
}

fn path_mtu_4096(t: &mut Script<'_>) -> Outcome {
    with_mtu(t, PathMtu::Mtu4096)
}

/// The offset of the end of the device's memory.
fn end(t: &Script<'_>) -> u64 {
    t.memory().len as u64
}

fn wrong_key(t: &mut Script<'_>, change: impl Fn(u32) -> u32) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let (addr, wrong) = (t.addr(0), change(t.rkey()));
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(addr, wrong, 8).payload(&[7; 8]).ack_req())?;
    t.expect_refused(RemoteAccess, 0)
}

fn with_mtu(t: &mut Script<'_>, mtu: PathMtu) -> Outcome {
    t.connect(&Setup { mtu, ..Setup::rc().write() })?;
    let data = t.bytes(2 * mtu.bytes() + 9);
    let packets: Vec<Packet> = crate::packet::write_message(0, t.addr(0), t.rkey(), &data, mtu);
    t.send_all(&packets)?;
    t.expect_acked(2, 1)?;
    t.expect_nothing()
}
