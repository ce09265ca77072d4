//! The invariant CRC of requests.

use super::requests::{send_only, write_only};
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::packet::Packet;
use crate::script::Script;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "icrc/wrong-is-dropped",
        rule: "COUNT-001",
        says: "A request with a wrong ICRC is dropped in silence, and its PSN is still expected.",
        risk: Risk::Hostile,
        run: wrong_is_dropped,
    },
    Check {
        name: "icrc/every-byte-counts",
        rule: "WIRE-028",
        says: "An ICRC that is wrong in any one of its four bytes is wrong.",
        risk: Risk::Hostile,
        run: every_byte_counts,
    },
    Check {
        name: "icrc/inverted-as-a-whole",
        rule: "COUNT-001",
        says: "An ICRC whose bits are all inverted is wrong.",
        risk: Risk::Hostile,
        run: inverted_as_a_whole,
    },
    Check {
        name: "icrc/wrong-in-a-gap-is-no-gap",
        rule: "COUNT-001",
        says: "A packet with a wrong ICRC is no sign of a missing one: its PSN is not looked at.",
        risk: Risk::Hostile,
        run: wrong_in_a_gap_is_no_gap,
    },
    Check {
        name: "icrc/wrong-duplicate-is-not-acknowledged",
        rule: "COUNT-001",
        says: "A repeated request with a wrong ICRC is not acknowledged again.",
        risk: Risk::Hostile,
        run: wrong_duplicate_is_not_acknowledged,
    },
    Check {
        name: "icrc/wrong-takes-no-receive",
        rule: "COUNT-001",
        says: "A SEND with a wrong ICRC draws no RNR NAK and no acknowledgement.",
        risk: Risk::Hostile,
        run: wrong_takes_no_receive,
    },
    Check {
        name: "icrc/hop-limit-is-not-covered",
        rule: "WIRE-025",
        says: "The ICRC does not cover the hop limit.",
        risk: Risk::None,
        run: hop_limit_is_not_covered,
    },
    Check {
        name: "icrc/traffic-class-is-not-covered",
        rule: "WIRE-025",
        says: "The ICRC does not cover the traffic class.",
        risk: Risk::None,
        run: traffic_class_is_not_covered,
    },
    Check {
        name: "icrc/pad-bytes-are-covered",
        rule: "WIRE-024",
        says: "The ICRC covers the pad bytes: a request of every length modulo four is taken.",
        risk: Risk::None,
        run: pad_bytes_are_covered,
    },
];

fn wrong_is_dropped(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; 8]).wrong_icrc())?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn every_byte_counts(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for byte in 0..4 {
        let damage = 0x80 << (8 * byte);
        t.send(Packet { icrc_damage: damage, ..write_only(t, 0, 0, &[1; 8]) })?;
    }
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn inverted_as_a_whole(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(Packet { icrc_damage: u32::MAX, ..write_only(t, 0, 0, &[1; 8]) })?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn wrong_in_a_gap_is_no_gap(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 5, 0, &[1; 8]).wrong_icrc())?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn wrong_duplicate_is_not_acknowledged(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    t.expect_acked(0, 1)?;
    t.send(write_only(t, 0, 0, &[1; 8]).wrong_icrc())?;
    t.expect_nothing()?;
    t.expect_service(1, 2)
}

fn wrong_takes_no_receive(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    t.send(send_only(0, &[1; 8]).wrong_icrc())?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

fn hop_limit_is_not_covered(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for (psn, hop_limit) in [(0, 9), (1, 33), (2, 255)] {
        let mut flow = t.flow();
        flow.hop_limit = hop_limit;
        t.set_flow(flow);
        t.expect_service(psn, psn as u32 + 1)?;
    }
    Ok(())
}

fn traffic_class_is_not_covered(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for (psn, traffic_class) in [(0, 0x20), (1, 0x68), (2, 0xb8)] {
        let mut flow = t.flow();
        flow.traffic_class = traffic_class;
        t.set_flow(flow);
        t.expect_service(psn, psn as u32 + 1)?;
    }
    Ok(())
}

fn pad_bytes_are_covered(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for len in 1..=5_i32 {
        let data = t.bytes(len as usize);
        t.send(write_only(t, len - 1, 0, &data))?;
        t.expect_acked(len - 1, len as u32)?;
    }
    t.expect_nothing()
}
