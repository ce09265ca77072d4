//! READ at the responder of a reliable connection.

use super::answers::read_is_refused;
use super::requests::{MTU, read, silent_write, write_only, writes};
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::{nak, read_response};
use crate::packet::{Packet, packet};
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::NakCode::{InvalidRequest, RemoteAccess};
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "read/only",
        rule: "RC-RESP-017",
        says: "A READ of less than the path MTU is answered by READ RESPONSE ONLY.",
        risk: Risk::None,
        run: only,
    },
    Check {
        name: "read/of-one-packet",
        rule: "RC-RESP-017",
        says: "A READ of just the path MTU is answered by READ RESPONSE ONLY.",
        risk: Risk::None,
        run: of_one_packet,
    },
    Check {
        name: "read/of-one-byte-more",
        rule: "RC-RESP-017",
        says: "A READ of one byte more than the path MTU is answered by FIRST and by LAST of \
               one byte.",
        risk: Risk::None,
        run: of_one_byte_more,
    },
    Check {
        name: "read/of-full-packets",
        rule: "RC-RESP-017",
        says: "A READ of a multiple of the path MTU ends with a full LAST.",
        risk: Risk::None,
        run: of_full_packets,
    },
    Check {
        name: "read/in-packets",
        rule: "RC-RESP-017",
        says: "A long READ is answered by FIRST, MIDDLEs and LAST with consecutive PSNs.",
        risk: Risk::None,
        run: in_packets,
    },
    Check {
        name: "read/of-one-byte",
        rule: "WIRE-012",
        says: "A READ of one byte is answered with three zeros of padding.",
        risk: Risk::None,
        run: of_one_byte,
    },
    Check {
        name: "read/of-two-bytes",
        rule: "WIRE-012",
        says: "A READ of two bytes is answered with two zeros of padding.",
        risk: Risk::None,
        run: of_two_bytes,
    },
    Check {
        name: "read/of-three-bytes",
        rule: "WIRE-012",
        says: "A READ of three bytes is answered with one zero of padding.",
        risk: Risk::None,
        run: of_three_bytes,
    },
    Check {
        name: "read/at-an-odd-address",
        rule: "RC-RESP-017",
        says: "A READ may begin and end at any byte.",
        risk: Risk::None,
        run: at_an_odd_address,
    },
    Check {
        name: "read/takes-as-many-psns-as-responses",
        rule: "RC-RESP-018",
        says: "The request behind a READ follows the last of its responses.",
        risk: Risk::None,
        run: takes_as_many_psns_as_responses,
    },
    Check {
        name: "read/a-psn-of-its-responses-is-no-new-request",
        rule: "RC-RESP-018",
        says: "A request at the PSN of a READ's second response is no new one.",
        risk: Risk::None,
        run: a_psn_of_its_responses_is_no_new_request,
    },
    Check {
        name: "read/several-at-once",
        rule: "RC-RESP-020",
        says: "As many READs as may be outstanding are answered in their order.",
        risk: Risk::None,
        run: several_at_once,
    },
    Check {
        name: "read/more-than-may-be-outstanding",
        rule: "RC-RESP-020",
        says: "READs beyond those that may be outstanding are an invalid request, or answered \
               in their turn.",
        risk: Risk::None,
        run: more_than_may_be_outstanding,
    },
    Check {
        name: "read/none-may-be-outstanding",
        rule: "RC-RESP-020",
        says: "A QP that takes no READs at all refuses the first.",
        risk: Risk::None,
        run: none_may_be_outstanding,
    },
    Check {
        name: "read/sees-writes-before-it",
        rule: "ORDER-006",
        says: "A READ sees what WRITEs before it have written, also if all come at once.",
        risk: Risk::None,
        run: sees_writes_before_it,
    },
    Check {
        name: "read/before-a-write-to-the-same-place",
        rule: "ORDER-006",
        says: "A READ that comes before a WRITE to its place may be answered with the older \
               data or the newer.",
        risk: Risk::None,
        run: before_a_write_to_the_same_place,
    },
    Check {
        name: "read/acknowledges-what-is-before-it",
        rule: "RC-RESP-019",
        says: "The answer to a READ speaks for the WRITEs before it.",
        risk: Risk::None,
        run: acknowledges_what_is_before_it,
    },
    Check {
        name: "read/with-ackreq-draws-no-ack",
        rule: "RC-RESP-019",
        says: "A READ that asks for an acknowledgement is answered by its responses alone.",
        risk: Risk::None,
        run: with_ackreq_draws_no_ack,
    },
    Check {
        name: "read/wrong-key-is-refused",
        rule: "RC-RESP-011",
        says: "A READ with a key that opens nothing is a remote access error.",
        risk: Risk::None,
        run: wrong_key_is_refused,
    },
    Check {
        name: "read/past-the-end",
        rule: "RC-RESP-011",
        says: "A READ of one byte past the end of its region is a remote access error, before or \
               after what lies within.",
        risk: Risk::None,
        run: past_the_end,
    },
    Check {
        name: "read/before-the-start",
        rule: "RC-RESP-011",
        says: "A READ that begins one byte before its region is a remote access error.",
        risk: Risk::None,
        run: before_the_start,
    },
    Check {
        name: "read/around-the-address-space",
        rule: "RC-RESP-013",
        says: "A READ whose address and length pass 2^64 is a remote access error.",
        risk: Risk::Hostile,
        run: around_the_address_space,
    },
    Check {
        name: "read/of-two-gigabytes",
        rule: "RC-RESP-011",
        says: "A READ of 2^31 bytes from a small region is a remote access error.",
        risk: Risk::Hostile,
        run: of_two_gigabytes,
    },
    Check {
        name: "read/responses-have-sound-headers",
        rule: "WIRE-001",
        says: "READ responses ask for no acknowledgement, are not solicited, and have zeros in \
               reserved bits.",
        risk: Risk::None,
        run: responses_have_sound_headers,
    },
    Check {
        name: "read/with-a-payload",
        rule: "WIRE-010",
        says: "A READ request that brings data is not taken for a good one, or its data is \
               ignored.",
        risk: Risk::Hostile,
        run: with_a_payload,
    },
    Check {
        name: "read/path-mtu-256",
        rule: "RC-RESP-017",
        says: "READ responses are of the connection's path MTU, here 256.",
        risk: Risk::None,
        run: path_mtu_256,
    },
    Check {
        name: "read/path-mtu-4096",
        rule: "RC-RESP-017",
        says: "READ responses are of the connection's path MTU, here 4096.",
        risk: Risk::None,
        run: path_mtu_4096,
    },
];

fn only(t: &mut Script<'_>) -> Outcome {
    answered(t, 100)
}

fn of_one_packet(t: &mut Script<'_>) -> Outcome {
    answered(t, MTU)
}

fn of_one_byte_more(t: &mut Script<'_>) -> Outcome {
    answered(t, MTU + 1)
}

fn of_full_packets(t: &mut Script<'_>) -> Outcome {
    answered(t, 3 * MTU)
}

fn in_packets(t: &mut Script<'_>) -> Outcome {
    answered(t, 4 * MTU + 100)
}

fn of_one_byte(t: &mut Script<'_>) -> Outcome {
    padded(t, 1, 3)
}

fn of_two_bytes(t: &mut Script<'_>) -> Outcome {
    padded(t, 2, 2)
}

fn of_three_bytes(t: &mut Script<'_>) -> Outcome {
    padded(t, 3, 1)
}

fn at_an_odd_address(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(2000);
    t.send_all(&writes(t, 0, 0, &data))?;
    t.expect_acked(1, 1)?;
    t.expect_memory(2, 2, 13, &data[13..1500])
}

fn takes_as_many_psns_as_responses(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send_all(&[read(t, 0, 0, 3000), read(t, 3, 0, 3000), read(t, 6, 0, 8)])?;
    t.expect_read_among(0, 3000, 1, 3)?;
    t.expect_read_among(3, 3000, 2, 3)?;
    t.expect_read(6, 8, 3)?;
    t.expect_nothing()
}

fn a_psn_of_its_responses_is_no_new_request(t: &mut Script<'_>) -> Outcome {
    // No PSN that a counter of nothing yields is near.
    t.connect(&Setup { our_psn: Some(0xc0_1234), ..Setup::rc().write().read() })?;
    t.send(read(t, 0, 0, 3000))?;
    t.expect_read(0, 3000, 1)?;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    t.expect_nothing_or(&[crate::expect::ack(2).msn(1), crate::expect::ack(1)])?;
    t.expect_service(3, 2)
}

fn several_at_once(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_dest_rd_atomic: Some(4), ..Setup::rc().read() })?;
    let reads: Vec<Packet> = (0..4).map(|i| read(t, 2 * i, 64 * i as u64, 1500)).collect();
    t.send_all(&reads)?;
    for i in 0..4 {
        t.expect_read_among(2 * i, 1500, i as u32 + 1, 4)?;
    }
    t.expect_nothing()
}

fn more_than_may_be_outstanding(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_dest_rd_atomic: Some(1), ..Setup::rc().read() })?;
    let reads: Vec<Packet> = (0..3).map(|i| read(t, 2 * i, 0, 1500)).collect();
    t.send_all(&reads)?;
    for (psn, msn) in [(0, 1), (2, 2), (4, 3)] {
        let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, psn).msns(msn - 1..=3);
        let (found, first) = t.expect_one_of(&[first, nak(InvalidRequest, psn)])?;
        if found == 1 {
            return t.expect_no_service(psn);
        }
        let last = read_response(Opcode::RC_READ_RESPONSE_LAST, psn + 1).msns(msn..=3);
        let last = t.expect(last)?;
        t.allow_newer_msn(&first, msn);
        t.allow_newer_msn(&last, msn);
    }
    t.allow("answers more READs than may be outstanding");
    Ok(())
}

fn none_may_be_outstanding(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_dest_rd_atomic: Some(0), ..Setup::rc().read() })?;
    t.send(read(t, 0, 0, 8))?;
    t.expect_refused(InvalidRequest, 0)
}

fn sees_writes_before_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let data = t.bytes(2000);
    let mut packets = writes(t, 0, 0, &data);
    packets[1].ack_req = false;
    packets.push(read(t, 2, 0, 2000));
    t.send_all(&packets)?;
    let found = t.expect_read(2, 2000, 2)?;
    ensure(found == data, "what was written", || "other data".into())
}

fn before_a_write_to_the_same_place(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let (old, new) = (t.bytes(100), t.bytes(100));
    t.send(write_only(t, 0, 0, &old))?;
    t.expect_acked(0, 1)?;
    t.send_all(&[read(t, 1, 0, 100), write_only(t, 2, 0, &new)])?;
    let found = t.expect_read_among(1, 100, 2, 3)?;
    t.expect_acked(2, 3)?;
    if found == new {
        t.allow("a READ sees what a WRITE behind it wrote");
        return Ok(());
    }
    ensure(found == old, "the old data or the new", || "neither".into())
}

fn acknowledges_what_is_before_it(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let before = [silent_write(t, 0, 0, &[1; 8]), silent_write(t, 1, 0, &[1; 8])];
    t.send_all(&before)?;
    t.send(read(t, 2, 0, 8))?;
    t.expect_read(2, 8, 3)?;
    t.expect_nothing()
}

fn with_ackreq_draws_no_ack(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 2000).ack_req())?;
    t.expect_read(0, 2000, 1)?;
    t.expect_nothing()
}

fn wrong_key_is_refused(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let (addr, wrong) = (t.addr(0), t.rkey() ^ 0x1000_0001);
    t.send(packet(Opcode::RC_READ_REQUEST).reth(addr, wrong, 8))?;
    t.expect_refused(RemoteAccess, 0)
}

fn past_the_end(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let len = t.memory().len;
    t.send(read(t, 0, len as u64 - 3000, 3001))?;
    read_is_refused(t, 2)
}

fn before_the_start(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let (addr, rkey) = (t.addr(0) - 1, t.rkey());
    t.send(packet(Opcode::RC_READ_REQUEST).reth(addr, rkey, 8))?;
    t.expect_refused(RemoteAccess, 0)
}

fn around_the_address_space(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    let rkey = t.rkey();
    t.send(packet(Opcode::RC_READ_REQUEST).reth(u64::MAX - 3, rkey, 8))?;
    t.expect_refused(RemoteAccess, 0)
}

fn of_two_gigabytes(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 1 << 31))?;
    let within = t.memory().len / MTU;
    read_is_refused(t, within)
}

fn responses_have_sound_headers(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 2500))?;
    for psn in 0..3 {
        let Some(part) = t.next(t.waits().reply)? else {
            return Err(crate::Stop::failed("three responses", format!("{psn}")));
        };
        let bits = (part.ack_req(), part.solicited(), part.reserved(), part.congestion());
        ensure(bits == (false, false, 0, 0), "all of it 0", || format!("{bits:?}"))?;
        ensure(part.pad() == 0, "pad count 0", || part.pad().to_string())?;
        ensure(part.flags() & 15 == 0, "version 0", || format!("{:#04x}", part.flags()))?;
    }
    Ok(())
}

fn with_a_payload(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 8).payload(&[1; 8]))?;
    let response = read_response(Opcode::RC_READ_RESPONSE_ONLY, 0).len(8);
    match t.expect_nothing_or(&[nak(InvalidRequest, 0), response])? {
        None => t.expect_service(0, 1),
        Some(0) => t.expect_no_service(0),
        Some(_) => {
            t.allow("ignores the payload of a READ request");
            t.expect_service(1, 2)
        }
    }
}

fn path_mtu_256(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { mtu: PathMtu::Mtu256, ..Setup::rc().read() })?;
    t.send(read(t, 0, 0, 1000))?;
    t.expect_read(0, 1000, 1)?;
    t.expect_nothing()
}

fn path_mtu_4096(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { mtu: PathMtu::Mtu4096, ..Setup::rc().read() })?;
    t.send(read(t, 0, 0, 9000))?;
    t.expect_read(0, 9000, 1)?;
    t.expect_nothing()
}

/// A READ of so many bytes is answered, and by nothing more.
fn answered(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, len))?;
    t.expect_read(0, len, 1)?;
    t.expect_nothing()
}

fn padded(t: &mut Script<'_>, len: usize, pad: u8) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, len))?;
    let only = read_response(Opcode::RC_READ_RESPONSE_ONLY, 0).len(len);
    let answer = t.expect(only)?;
    ensure(answer.pad() == pad, &format!("pad count {pad}"), || answer.pad().to_string())?;
    let body = answer.body();
    let padding = &body[body.len() - usize::from(pad)..];
    ensure(padding.iter().all(|&byte| byte == 0), "zeros", || format!("{padding:02x?}"))
}
