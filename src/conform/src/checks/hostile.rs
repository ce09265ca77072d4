//! Packets that no sound sender sends, which stop no device and touch no connection.

use super::requests::{fetch_add, read, send_only, write_only};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::{BECN, Packet, packet};
use crate::script::Script;
use urxe_wire::NakCode::InvalidRequest;
use urxe_wire::{Bth, Opcode, icrc};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "hostile/opcode-0xff",
        rule: "WIRE-005",
        says: "The opcode 0xff, which nothing stands behind, is dropped.",
        risk: Risk::Hostile,
        run: opcode_0xff,
    },
    Check {
        name: "hostile/all-opcodes-of-other-transports",
        rule: "WIRE-005",
        says: "No opcode outside of reliable connections does anything to a QP of one.",
        risk: Risk::Hostile,
        run: all_opcodes_of_other_transports,
    },
    Check {
        name: "hostile/one-byte",
        rule: "WIRE-007",
        says: "A datagram of one byte is dropped.",
        risk: Risk::Hostile,
        run: one_byte,
    },
    Check {
        name: "hostile/four-bytes",
        rule: "WIRE-007",
        says: "A datagram of four bytes is dropped.",
        risk: Risk::Hostile,
        run: four_bytes,
    },
    Check {
        name: "hostile/half-a-bth",
        rule: "WIRE-007",
        says: "A datagram that ends within the BTH is dropped.",
        risk: Risk::Hostile,
        run: half_a_bth,
    },
    Check {
        name: "hostile/bth-without-icrc",
        rule: "WIRE-007",
        says: "A datagram of a BTH alone, without an ICRC, is dropped.",
        risk: Risk::Hostile,
        run: bth_without_icrc,
    },
    Check {
        name: "hostile/bth-without-reth",
        rule: "WIRE-007",
        says: "A WRITE that ends behind its BTH is dropped.",
        risk: Risk::Hostile,
        run: bth_without_reth,
    },
    Check {
        name: "hostile/half-a-reth",
        rule: "WIRE-007",
        says: "A WRITE that ends within its RETH is dropped.",
        risk: Risk::Hostile,
        run: half_a_reth,
    },
    Check {
        name: "hostile/without-atomic-header",
        rule: "WIRE-007",
        says: "An atomic that ends within its header is dropped, or an invalid request.",
        risk: Risk::Hostile,
        run: without_atomic_header,
    },
    Check {
        name: "hostile/write-without-payload",
        rule: "WIRE-007",
        says: "A WRITE whose payload was cut off is dropped, or an invalid request.",
        risk: Risk::Hostile,
        run: write_without_payload,
    },
    Check {
        name: "hostile/pad-larger-than-the-payload",
        rule: "WIRE-008",
        says: "A pad count beyond the payload is dropped, or an invalid request.",
        risk: Risk::Hostile,
        run: pad_larger_than_the_payload,
    },
    Check {
        name: "hostile/pad-in-a-read-request",
        rule: "WIRE-008",
        says: "A pad count in a request without payload is dropped, ignored, or an invalid \
               request.",
        risk: Risk::Hostile,
        run: pad_in_a_read_request,
    },
    Check {
        name: "hostile/pad-in-a-send-of-nothing",
        rule: "WIRE-008",
        says: "A SEND of nothing with a pad count of 3 is dropped, or an invalid request.",
        risk: Risk::Hostile,
        run: pad_in_a_send_of_nothing,
    },
    Check {
        name: "hostile/longer-than-any-path-mtu",
        rule: "RC-RESP-042",
        says: "A packet of 5000 bytes is dropped or an invalid request.",
        risk: Risk::Hostile,
        run: longer_than_any_path_mtu,
    },
    Check {
        name: "hostile/bytes-by-chance",
        rule: "HOST-001",
        says: "Datagrams of bytes by chance are dropped.",
        risk: Risk::Hostile,
        run: bytes_by_chance,
    },
    Check {
        name: "hostile/cnp-for-an-unknown-qp",
        rule: "COUNT-006",
        says: "A congestion notification for a QP that does not exist is dropped.",
        risk: Risk::Hostile,
        run: cnp_for_an_unknown_qp,
    },
    Check {
        name: "hostile/answers-with-wild-numbers",
        rule: "HOST-001",
        says: "Answers to nothing, whatever PSN, syndrome and MSN they have, do nothing.",
        risk: Risk::Hostile,
        run: answers_with_wild_numbers,
    },
];

fn opcode_0xff(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(Packet::new(0xff).ack_req())?;
    t.send(Packet::new(0xff).payload(&[1; 64]).ack_req())?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn all_opcodes_of_other_transports(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let packets: Vec<Packet> = (0x20..=0xff)
        .filter(|&opcode| opcode != Opcode::URXE_SELECTIVE_ACK as u8)
        .map(|opcode| Packet { extended: vec![0; 28], ..Packet::new(opcode) }.ack_req())
        .collect();
    t.send_all(&packets)?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn one_byte(t: &mut Script<'_>) -> Outcome {
    truncated(t, 1)
}

fn four_bytes(t: &mut Script<'_>) -> Outcome {
    truncated(t, 4)
}

fn half_a_bth(t: &mut Script<'_>) -> Outcome {
    truncated(t, 8)
}

fn bth_without_icrc(t: &mut Script<'_>) -> Outcome {
    truncated(t, Bth::LEN)
}

fn bth_without_reth(t: &mut Script<'_>) -> Outcome {
    truncated(t, Bth::LEN + icrc::LEN)
}

fn half_a_reth(t: &mut Script<'_>) -> Outcome {
    truncated(t, Bth::LEN + 8 + icrc::LEN)
}

fn without_atomic_header(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    let bytes = t.datagram(&fetch_add(t, 0, 0, 1));
    dropped_or_refused(t, &bytes[..bytes.len() - 8])
}

fn write_without_payload(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let bytes = t.datagram(&write_only(t, 0, 0, &[1; 64]));
    dropped_or_refused(t, &bytes[..bytes.len() - 64])
}

fn pad_larger_than_the_payload(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let mut bytes = t.datagram(&write_only(t, 0, 0, &[]));
    bytes[1] |= 0x30;
    dropped_or_refused(t, &bytes)
}

fn pad_in_a_read_request(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let mut bytes = t.datagram(&read(t, 0, 0, 8));
    bytes[1] |= 0x30;
    t.send_raw(&t.flow(), &bytes)?;
    let response = crate::expect::read_response(Opcode::RC_READ_RESPONSE_ONLY, 0).len(8);
    match t.expect_nothing_or(&[nak(InvalidRequest, 0), response])? {
        Some(0) => t.expect_no_service(0),
        Some(_) => {
            t.allow("ignores the pad count of a READ request");
            t.expect_service(1, 2)
        }
        None => t.expect_service(0, 1),
    }
}

fn pad_in_a_send_of_nothing(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().receives(2, 64))?;
    let mut bytes = t.datagram(&send_only(0, &[]));
    bytes[1] |= 0x30;
    t.send_raw(&t.flow(), &bytes)?;
    if t.expect_nothing_or(&[nak(InvalidRequest, 0)])?.is_some() {
        return t.expect_no_service(0);
    }
    t.send(send_only(0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    Ok(())
}

fn longer_than_any_path_mtu(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let bytes = t.datagram(&write_only(t, 0, 0, &[1; 5000]));
    dropped_or_refused(t, &bytes)
}

fn bytes_by_chance(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for len in [16, 20, 40, 64, 300] {
        let mut bytes = t.bytes(len);
        // Not for a QP that there may be.
        bytes[5..8].copy_from_slice(&[0xff, 0xff, 0xfe]);
        t.send_raw(&t.flow(), &bytes)?;
    }
    t.expect_no_answer_at_all()?;
    t.expect_service(0, 1)
}

fn cnp_for_an_unknown_qp(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let other = t.their_qpn() ^ 0x5a_5a5a;
    let cnp = Packet { congestion: BECN, ..packet(Opcode::CNP) }.payload(&[0; 16]);
    t.send(cnp.to(other))?;
    t.expect_no_answer_at_all()?;
    t.expect_service(0, 1)
}

fn answers_with_wild_numbers(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let mut packets = Vec::new();
    for syndrome in [0x00, 0x1f, 0x20, 0x3f, 0x40, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7f, 0x80, 0xff] {
        for psn in [-1, 0, 1, 0x7f_ffff] {
            packets.push(packet(Opcode::RC_ACK).at(psn).aeth(syndrome, 0xff_ffff));
        }
    }
    t.send_all(&packets)?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

/// The first bytes of a WRITE, so many with the ICRC, are dropped.
fn truncated(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let bytes = t.datagram(&write_only(t, 0, 0, &[1; 8]));
    t.send_raw(&t.flow(), &bytes[..len])?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

/// A datagram that makes no sense is dropped, or an invalid request; in both cases the device works
/// on.
fn dropped_or_refused(t: &mut Script<'_>, bytes: &[u8]) -> Outcome {
    t.send_raw(&t.flow(), bytes)?;
    if t.expect_nothing_or(&[nak(InvalidRequest, 0)])?.is_none() {
        return t.expect_service(0, 1);
    }
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)
}
