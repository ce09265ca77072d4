//! Datagrams, and multicast.

use crate::Arrived;
use crate::agent::{RecvWr, SendWr, Status, Wc};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::{GRH, RECEIVES, SOURCE, Setup};
use crate::expect::request;
use crate::packet::{Packet, packet};
use crate::script::Script;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "ud-requester/send",
        "UD-001",
        "A SEND is one packet with the Q_Key and the sender's QPN, and completes when it was sent.",
        |t| send(t, None),
    ),
    Check::new(
        "ud-requester/immediate-data",
        "UD-001",
        "A SEND with immediate data has it behind the DETH.",
        |t| send(t, Some(0x0102_0304)),
    ),
    Check::new(
        "ud-requester/asks-for-no-acknowledgement",
        "UD-001",
        "A datagram does not ask for an acknowledgement.",
        asks_for_nothing,
    ),
    Check::new(
        "ud-requester/controlled-key-is-the-qps-own",
        "UD-004",
        "A Q_Key with the high bit in the work request stands for the QP's own.",
        controlled_key,
    ),
    Check::new(
        "ud-responder/lies-behind-40-bytes",
        "UD-013",
        "A datagram lies behind 40 bytes, which its length counts; the completion names the QP \
         that sent.",
        lies_behind_40_bytes,
    ),
    Check::new(
        "ud-responder/grh-has-the-addresses",
        "UD-011",
        "The 40 bytes end with the addresses that the datagram came with.",
        grh_has_the_addresses,
    ),
    Check::new(
        "ud-responder/immediate-data",
        "UD-014",
        "Immediate data of a datagram is told.",
        immediate_data,
    ),
    Check::new("ud-responder/any-psn", "UD-015", "PSNs of datagrams mean nothing.", any_psn),
    Check::new(
        "ud-responder/any-sender",
        "UD-015",
        "Datagrams of every QP are taken, and each completion names its own.",
        any_sender,
    ),
    Check::new(
        "ud-responder/wrong-key-is-dropped",
        "UD-016",
        "A datagram with another Q_Key is dropped and takes no receive.",
        |t| dropped(t, datagram(0x1234_5678, &[1; 32])),
    ),
    Check::new(
        "ud-responder/other-partition-is-dropped",
        "UD-018",
        "A datagram of another partition is dropped.",
        |t| dropped(t, datagram(QKEY, &[1; 32]).pkey(0x8123)),
    ),
    Check::new(
        "ud-responder/packet-of-a-connection-is-dropped",
        "UD-022",
        "A packet of a connection for a QP of datagrams is dropped.",
        |t| dropped(t, packet(RC_SEND_ONLY).payload(&[1; 32]).ack_req()),
    ),
    Check::new(
        "ud-responder/wrong-icrc-is-dropped",
        "WIRE-028",
        "A datagram with a wrong ICRC is dropped.",
        |t| dropped(t, datagram(QKEY, &[1; 32]).wrong_icrc()),
    ),
    Check::new(
        "ud-responder/too-long-for-its-receive",
        "UD-020",
        "A datagram that with its 40 bytes is longer than the receive does not complete it with \
         success.",
        too_long,
    ),
    Check::new(
        "ud-responder/without-a-receive-is-dropped",
        "UD-019",
        "A datagram without a receive is dropped, nobody is told, and the next one is received.",
        without_a_receive,
    ),
    Check::new(
        "multicast/member-gets-it",
        "MCAST-001",
        "A QP that is attached to a group gets the datagrams to it.",
        member_gets_it,
    ),
    Check::new(
        "multicast/every-member-gets-a-copy",
        "MCAST-001",
        "Every QP that is attached to a group gets its own copy.",
        every_member_gets_a_copy,
    ),
    Check::new(
        "multicast/wrong-key-is-dropped",
        "MCAST-002",
        "A member drops a datagram with another Q_Key.",
        member_checks_its_key,
    ),
    Check::new(
        "multicast/detached-gets-nothing",
        "MCAST-004",
        "A QP that was detached gets nothing more.",
        detached_gets_nothing,
    ),
    Check::new(
        "multicast/other-group-is-none-of-its",
        "MCAST-003",
        "A datagram to another group does not come to a member of this one.",
        other_group,
    ),
];

const QKEY: u32 = 0x1111_1111;
/// The QP that datagrams say they are from.
const SENDER: u32 = 0x00_4321;

fn datagram(qkey: u32, data: &[u8]) -> Packet {
    packet(UD_SEND_ONLY).deth(qkey, SENDER).payload(data)
}

/// What a QP of the program sends to ours, of these bytes.
fn sent(t: &mut Script<'_>, data: &[u8], change: impl Fn(SendWr) -> SendWr) -> Outcome<Arrived> {
    t.connect(&Setup::ud())?;
    let ah = t.address_handle()?;
    let ours = t.our_qpn();
    t.fill(SOURCE, data)?;
    let wr = SendWr::send(1, SOURCE..SOURCE + data.len()).to(&ah.0, ours, 0x2222_2222);
    t.post(&[change(wr)])?;
    let arrived = t.next(t.waits().reply)?;
    let arrived = arrived.ok_or_else(|| Stop::failed("a datagram", "nothing"))?;
    t.expect_success([1])?;
    Ok(arrived)
}

fn send(t: &mut Script<'_>, imm: Option<u32>) -> Outcome {
    let data = t.bytes(100);
    let arrived = sent(t, &data, |wr| if let Some(imm) = imm { wr.imm(imm) } else { wr })?;
    let opcode = if imm.is_some() { UD_SEND_ONLY_IMM } else { UD_SEND_ONLY };
    t.check(&request(opcode, 0).payload(&data), &arrived)?;
    ensure(arrived.immediate() == imm, "the immediate data that was posted", || {
        format!("{:x?}", arrived.immediate())
    })?;
    let deth = [0x2222_2222u32.to_be_bytes(), t.their_qpn().to_be_bytes()].concat();
    ensure(arrived.body().starts_with(&deth), "Q_Key and source QPN in the DETH", || {
        format!("{:02x?}", arrived.body().get(..8))
    })?;
    t.expect_nothing()
}

fn asks_for_nothing(t: &mut Script<'_>) -> Outcome {
    let arrived = sent(t, &[1; 16], |wr| wr)?;
    ensure(!arrived.ack_req(), "no AckReq", || "AckReq".into())
}

fn controlled_key(t: &mut Script<'_>) -> Outcome {
    let arrived = sent(t, &[1; 16], |wr| SendWr { qkey: Some(0x8000_0000), ..wr })?;
    ensure(arrived.body().starts_with(&QKEY.to_be_bytes()), "the QP's own Q_Key", || {
        format!("{:02x?}", arrived.body().get(..4))
    })
}

/// The next receive has this datagram.
fn expect_datagram(t: &mut Script<'_>, id: u64, from: u32, data: &[u8]) -> Outcome<Wc> {
    let wc = t.expect_completion(id, Status::Success)?;
    let len = (GRH + data.len()) as u32;
    ensure(wc.len == len, &format!("a length of {len}"), || wc.len.to_string())?;
    ensure(wc.src_qpn == from, &format!("QP {from:#x} as the sender"), || {
        format!("{:#x}", wc.src_qpn)
    })?;
    let found = t.buffer(RECEIVES + id as usize * (GRH + LEN) + GRH, data.len())?;
    ensure(found == data, "the datagram behind 40 bytes", || "other bytes".into())?;
    Ok(wc)
}

/// Bytes of a datagram that a receive has room for.
const LEN: usize = 256;

fn receiver() -> Setup {
    Setup::ud().exactly(3, LEN as u32)
}

fn lies_behind_40_bytes(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    let data = t.bytes(100);
    t.send(datagram(QKEY, &data))?;
    let wc = expect_datagram(t, 0, SENDER, &data)?;
    ensure(wc.flags & 1 != 0, "the flag GRH", || format!("{:#x}", wc.flags))?;
    t.expect_nothing()
}

fn grh_has_the_addresses(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    t.send(datagram(QKEY, &[1; 32]))?;
    t.expect_completion(0, Status::Success)?;
    let grh = t.buffer(RECEIVES, GRH)?;
    let flow = t.flow();
    let addresses = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => [src.octets(), dst.octets()].concat(),
        (IpAddr::V6(src), IpAddr::V6(dst)) => [src.octets(), dst.octets()].concat(),
        _ => return Err(Stop::Inconclusive("two address families".into())),
    };
    ensure(grh.ends_with(&addresses), &format!("{addresses:02x?} at the end"), || {
        format!("{grh:02x?}")
    })
}

fn immediate_data(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    let imm = t.random();
    t.send(packet(UD_SEND_ONLY_IMM).deth(QKEY, SENDER).imm(imm).payload(&[1; 32]))?;
    let wc = expect_datagram(t, 0, SENDER, &[1; 32])?;
    ensure(wc.imm == Some(imm), &format!("immediate data {imm:#x}"), || format!("{:x?}", wc.imm))
}

fn any_psn(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    for (id, psn) in [500, 3, 3].into_iter().enumerate() {
        let data = t.bytes(40);
        t.send(datagram(QKEY, &data).at(psn))?;
        expect_datagram(t, id as u64, SENDER, &data)?;
    }
    Ok(())
}

fn any_sender(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    for (id, from) in [0x00_0123, 0xff_fffe, 0x80_0000].into_iter().enumerate() {
        let data = t.bytes(40);
        t.send(packet(UD_SEND_ONLY).deth(QKEY, from).payload(&data))?;
        expect_datagram(t, id as u64, from, &data)?;
    }
    Ok(())
}

/// This is dropped, and what comes after it takes the first receive.
fn dropped(t: &mut Script<'_>, wrong: Packet) -> Outcome {
    t.connect(&receiver())?;
    let data = t.bytes(32);
    t.send(wrong)?;
    t.expect_no_completion()?;
    t.expect_nothing()?;
    t.send(datagram(QKEY, &data))?;
    expect_datagram(t, 0, SENDER, &data).map(drop)
}

fn too_long(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    t.send(datagram(QKEY, &[1; LEN + 1]))?;
    match t.completion(t.waits().quiet)? {
        None => {
            t.allow("drops a datagram that is longer than its receive");
            let data = t.bytes(32);
            t.send(datagram(QKEY, &data))?;
            expect_datagram(t, 0, SENDER, &data).map(drop)
        }
        Some(wc) => {
            ensure(wc.status == Status::LocLenErr, "LOC_LEN_ERR, or nothing", || format!("{wc:?}"))
        }
    }
}

fn without_a_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::ud())?;
    t.send(datagram(QKEY, &[1; 32]))?;
    t.expect_nothing()?;
    t.post_recv(&[RecvWr::new(0, RECEIVES..RECEIVES + GRH + LEN)])?;
    let data = t.bytes(32);
    t.send(datagram(QKEY, &data))?;
    expect_datagram(t, 0, SENDER, &data).map(drop)
}

/// A group of the tests' own, of the address family that is spoken.
fn group(t: &Script<'_>, number: u8) -> IpAddr {
    match t.flow().dst {
        IpAddr::V4(_) => Ipv4Addr::new(239, 77, 1, number).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0x77, number.into()).into(),
    }
}

/// Sends a datagram to a group.
fn send_to_group(t: &mut Script<'_>, group: IpAddr, packet: Packet) -> Outcome {
    const MULTICAST: u32 = 0xff_ffff;
    let before = t.flow();
    t.set_flow(urxe_wire::Flow { dst: group, ..before });
    t.send(packet.to(MULTICAST))?;
    t.set_flow(before);
    Ok(())
}

fn member_gets_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    let group = group(t, 1);
    t.attach(group)?;
    let data = t.bytes(64);
    send_to_group(t, group, datagram(QKEY, &data))?;
    expect_datagram(t, 0, SENDER, &data)?;
    t.expect_no_completion()
}

fn every_member_gets_a_copy(t: &mut Script<'_>) -> Outcome {
    let a = t.connect(&receiver())?;
    let group = group(t, 2);
    t.attach(group)?;
    let b = t.connect(&receiver())?;
    t.attach(group)?;
    let data = t.bytes(64);
    send_to_group(t, group, datagram(QKEY, &data))?;
    for member in [a, b] {
        t.select(member);
        expect_datagram(t, 0, SENDER, &data)?;
    }
    Ok(())
}

fn member_checks_its_key(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    let group = group(t, 3);
    t.attach(group)?;
    send_to_group(t, group, datagram(QKEY ^ 1, &[1; 32]))?;
    t.expect_no_completion()?;
    send_to_group(t, group, datagram(QKEY, &[2; 32]))?;
    expect_datagram(t, 0, SENDER, &[2; 32]).map(drop)
}

fn detached_gets_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    let group = group(t, 4);
    t.attach(group)?;
    send_to_group(t, group, datagram(QKEY, &[1; 32]))?;
    expect_datagram(t, 0, SENDER, &[1; 32])?;
    t.detach(group)?;
    send_to_group(t, group, datagram(QKEY, &[2; 32]))?;
    t.expect_no_completion()
}

fn other_group(t: &mut Script<'_>) -> Outcome {
    t.connect(&receiver())?;
    let (group, other) = (group(t, 5), group(t, 6));
    t.attach(group)?;
    send_to_group(t, other, datagram(QKEY, &[1; 32]))?;
    t.expect_no_completion()
}
