//! Receives of a reliable connection, as the device's program sees them.

use super::answers::too_long_is_refused;
use crate::agent::{EventKind, RecvWr, State, Status, Wc};
use crate::check::{Check, Outcome, ensure};
use crate::device::{RECEIVES, Setup};
use crate::expect::{nak, rnr_nak};
use crate::packet::{message, packet, send_message, write_message};
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::NakCode;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "receives/send-completes-with-its-length",
        "RC-RESP-001",
        "A SEND is put into the oldest receive, which completes with its length.",
        |t| receive(t, 100),
    ),
    Check::new(
        "receives/long-send-completes-once",
        "RC-RESP-002",
        "A SEND of several packets completes one receive, with its whole length.",
        |t| receive(t, 2500),
    ),
    Check::new(
        "receives/empty-send-completes-with-length-0",
        "RC-RESP-003",
        "A SEND of no bytes completes a receive with length 0.",
        |t| receive(t, 0),
    ),
    Check::new(
        "receives/scatters-over-its-list",
        "RC-RESP-002",
        "A message fills the entries of a receive in order, whatever the packets' bounds are.",
        scatters,
    ),
    Check::new(
        "receives/in-the-order-of-posting",
        "RC-RESP-001",
        "Messages take receives in the order in which they were posted.",
        in_order,
    ),
    Check::new(
        "receives/immediate-data",
        "RC-RESP-001",
        "A SEND with immediate data completes with it.",
        immediate_data,
    ),
    Check::new(
        "receives/without-immediate-data",
        "RC-RESP-001",
        "The completion of a SEND without immediate data tells of none.",
        without_immediate_data,
    ),
    Check::new(
        "receives/write-with-immediate-data",
        "RC-RESP-008",
        "A WRITE with immediate data completes a receive with it and the length of the whole.",
        |t| write_with_immediate_data(t, 100),
    ),
    Check::new(
        "receives/long-write-with-immediate-data",
        "RC-RESP-008",
        "So does one of several packets.",
        |t| write_with_immediate_data(t, 2500),
    ),
    Check::new(
        "receives/write-completes-nothing",
        "RC-RESP-009",
        "A WRITE without immediate data completes no receive.",
        write_completes_nothing,
    ),
    Check::new(
        "receives/repeated-send-completes-once",
        "RC-RESP-027",
        "A SEND that comes again is acknowledged and takes no second receive.",
        repeated_send,
    ),
    Check::new(
        "receives/unfinished-send-completes-nothing",
        "RC-RESP-002",
        "A receive completes when the last packet of its message has come, and not before.",
        unfinished_send,
    ),
    Check::new(
        "receives/refused-by-rnr-then-taken",
        "RC-RESP-006",
        "A SEND without a receive is refused by an RNR NAK; repeated when there is one, it is taken.",
        refused_then_taken,
    ),
    Check::new(
        "receives/too-long-send-is-a-local-length-error",
        "RC-RESP-004",
        "A SEND longer than its receive ends that with a local length error, and the rest is \
         flushed.",
        too_long_send,
    ),
    Check::new(
        "receives/invalid-request-flushes",
        "STATE-009",
        "An invalid request takes the QP to ERR, and its receives are flushed in order.",
        invalid_request,
    ),
    Check::new(
        "receives/invalid-request-is-told-of",
        "CQ-012",
        "An invalid request is told of by QP_REQ_ERR.",
        invalid_request_is_told_of,
    ),
    Check::new(
        "receives/access-error-flushes",
        "RC-RESP-011",
        "A request without the right takes the QP to ERR, and its receives are flushed in order.",
        access_error,
    ),
    Check::new(
        "receives/access-error-is-told-of",
        "RC-RESP-011",
        "A request without the right is told of by QP_ACCESS_ERR.",
        access_error_is_told_of,
    ),
];

/// What is received lies at the beginning of the receives, since these are of this length.
const LEN: u32 = 4096;

fn received(t: &mut Script<'_>, id: u64, len: usize) -> Outcome<Wc> {
    let wc = t.expect_completion(id, Status::Success)?;
    ensure(wc.len == len as u32, &format!("a length of {len}"), || wc.len.to_string())?;
    ensure(wc.op == "RECV", "the opcode RECV", || wc.op.clone())?;
    Ok(wc)
}

fn expect_received(t: &mut Script<'_>, at: usize, data: &[u8]) -> Outcome {
    let found = t.buffer(RECEIVES + at, data.len())?;
    ensure(found == data, "the message in its receive", || "other bytes".into())
}

fn receive(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc().exactly(2, LEN))?;
    let data = t.bytes(len);
    let packets = send_message(0, &data, PathMtu::Mtu1024);
    let last = packets.len() as i32 - 1;
    t.send_all(&packets)?;
    t.expect_acked(last, 1)?;
    let wc = received(t, 0, len)?;
    let ours = t.our_qpn();
    // A connection has one peer: only of datagrams the sender has to be told.
    if wc.src_qpn != ours && wc.src_qpn != 0 {
        t.allow("a completion of a connection names another QP than the peer's");
    }
    expect_received(t, 0, &data)?;
    t.expect_no_completion()
}

fn scatters(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let sges = vec![(RECEIVES + 2000, 700), (RECEIVES, 1200), (RECEIVES + 4001, 1000)];
    t.post_recv(&[RecvWr { id: 5, sges }])?;
    let data = t.bytes(2500);
    t.send_all(&send_message(0, &data, PathMtu::Mtu1024))?;
    t.expect_acked(2, 1)?;
    received(t, 5, 2500)?;
    expect_received(t, 2000, &data[..700])?;
    expect_received(t, 0, &data[700..1900])?;
    expect_received(t, 4001, &data[1900..])
}

fn in_order(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(3, LEN))?;
    for i in 0..3 {
        let data = t.bytes(50 + i);
        t.send_all(&send_message(i as i32, &data, PathMtu::Mtu1024))?;
        t.expect_acked(i as i32, i as u32 + 1)?;
        received(t, i as u64, data.len())?;
        expect_received(t, i * LEN as usize, &data)?;
    }
    Ok(())
}

fn immediate_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, LEN))?;
    let imm = t.random();
    t.send(packet(RC_SEND_ONLY_IMM).imm(imm).payload(&[1; 20]).ack_req())?;
    t.expect_acked(0, 1)?;
    let wc = received(t, 0, 20)?;
    ensure(wc.imm == Some(imm), &format!("immediate data {imm:#x}"), || format!("{:x?}", wc.imm))
}

fn without_immediate_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, LEN))?;
    t.send(packet(RC_SEND_ONLY).payload(&[1; 20]).ack_req())?;
    t.expect_acked(0, 1)?;
    let wc = received(t, 0, 20)?;
    ensure(wc.imm.is_none(), "no immediate data", || format!("{:x?}", wc.imm))
}

fn write_with_immediate_data(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc().write().exactly(1, LEN))?;
    let (data, imm) = (t.bytes(len), t.random());
    let (addr, rkey) = (t.addr(0), t.rkey());
    let opcodes = [RC_WRITE_FIRST, RC_WRITE_MIDDLE, RC_WRITE_LAST_IMM, RC_WRITE_ONLY_IMM];
    let begin = |first: crate::packet::Packet| first.reth(addr, rkey, len as u32);
    let mut packets = message(opcodes, 0, &data, PathMtu::Mtu1024, begin);
    let last = packets.len() - 1;
    packets[last] = packets[last].clone().imm(imm);
    t.send_all(&packets)?;
    t.expect_acked(last as i32, 1)?;
    let wc = t.expect_completion(0, Status::Success)?;
    ensure(wc.op == "RECV_RDMA_WITH_IMM", "the opcode RECV_RDMA_WITH_IMM", || wc.op.clone())?;
    ensure(wc.len == len as u32, &format!("a length of {len}"), || wc.len.to_string())?;
    ensure(wc.imm == Some(imm), &format!("immediate data {imm:#x}"), || format!("{:x?}", wc.imm))?;
    let found = t.memory_at(0, len)?;
    ensure(found == data, "the data in memory", || "other bytes".into())
}

fn write_completes_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().exactly(1, LEN))?;
    let data = t.bytes(200);
    t.send_all(&write_message(0, t.addr(0), t.rkey(), &data, PathMtu::Mtu1024))?;
    t.expect_acked(0, 1)?;
    t.expect_no_completion()?;
    let found = t.memory_at(0, 200)?;
    ensure(found == data, "the data in memory", || "other bytes".into())
}

fn repeated_send(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(2, LEN))?;
    let data = t.bytes(64);
    let packets = send_message(0, &data, PathMtu::Mtu1024);
    t.send_all(&packets)?;
    t.expect_acked(0, 1)?;
    received(t, 0, 64)?;
    t.send_all(&packets)?;
    t.expect_acked(0, 1)?;
    t.expect_no_completion()
}

fn unfinished_send(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(1, LEN))?;
    let data = t.bytes(2500);
    let packets = send_message(0, &data, PathMtu::Mtu1024);
    t.send_all(&packets[..2])?;
    t.expect_no_completion()?;
    t.send_all(&packets[2..])?;
    t.expect_acked(2, 1)?;
    received(t, 0, 2500).map(drop)
}

fn refused_then_taken(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { min_rnr_timer: Some(1), ..Setup::rc() })?;
    let data = t.bytes(64);
    let packets = send_message(0, &data, PathMtu::Mtu1024);
    t.send_all(&packets)?;
    t.expect(rnr_nak(0))?;
    t.post_recv(&[RecvWr::new(9, RECEIVES..RECEIVES + 64)])?;
    t.send_all(&packets)?;
    t.expect_acked(0, 1)?;
    received(t, 9, 64)?;
    expect_received(t, 0, &data)
}

fn too_long_send(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(3, 64))?;
    t.send_all(&send_message(0, &[1; 65], PathMtu::Mtu1024))?;
    too_long_is_refused(t, 0)?;
    t.expect_completion(0, Status::LocLenErr)?;
    t.expect_flushed(1..=2)?;
    t.expect_state(State::Err)?;
    let behind = t.buffer(RECEIVES + 64, 64)?;
    ensure(behind.iter().all(|&byte| byte == 0), "nothing behind the receive", || {
        "bytes of the message".into()
    })
}

fn invalid_request(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().exactly(2, 64))?;
    t.send(packet(RC_SEND_LAST).payload(&[1; 8]).ack_req())?;
    t.expect(nak(NakCode::InvalidRequest, 0))?;
    t.expect_flushed(0..=1)?;
    t.expect_state(State::Err)
}

fn invalid_request_is_told_of(t: &mut Script<'_>) -> Outcome {
    invalid_request(t)?;
    t.expect_event(EventKind::QpReqErr).map(drop)
}

fn access_error(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().exactly(2, 64))?;
    let (addr, rkey) = (t.addr(0), t.rkey() ^ 0x0100_0001);
    t.send(packet(RC_WRITE_ONLY).reth(addr, rkey, 8).payload(&[1; 8]).ack_req())?;
    t.expect(nak(NakCode::RemoteAccess, 0))?;
    t.expect_flushed(0..=1)?;
    t.expect_state(State::Err)
}

fn access_error_is_told_of(t: &mut Script<'_>) -> Outcome {
    access_error(t)?;
    t.expect_event(EventKind::QpAccessErr).map(drop)
}
