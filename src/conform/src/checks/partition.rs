//! The partition of requests.

use super::requests::write_only;
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::script::Script;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "partition/limited-member-is-taken",
        rule: "WIRE-022",
        says: "A full member takes what a limited member of its partition sends.",
        risk: Risk::None,
        run: limited_member_is_taken,
    },
    Check {
        name: "partition/other-is-dropped",
        rule: "COUNT-005",
        says: "A request of another partition is dropped in silence.",
        risk: Risk::Hostile,
        run: other_is_dropped,
    },
    Check {
        name: "partition/other-in-one-bit-is-dropped",
        rule: "COUNT-005",
        says: "A partition that differs in one bit is another one.",
        risk: Risk::Hostile,
        run: other_in_one_bit_is_dropped,
    },
    Check {
        name: "partition/invalid-is-dropped",
        rule: "WIRE-022",
        says: "The invalid P_Key 0 matches none.",
        risk: Risk::Hostile,
        run: invalid_is_dropped,
    },
    Check {
        name: "partition/invalid-full-member-is-dropped",
        rule: "WIRE-022",
        says: "The P_Key 0x8000 is invalid as well: the lower fifteen bits count.",
        risk: Risk::Hostile,
        run: invalid_full_member_is_dropped,
    },
];

fn limited_member_is_taken(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; 8]).pkey(0x7fff))?;
    t.expect_acked(0, 1)?;
    t.expect_service(1, 2)
}

fn other_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, 0x9234)
}

fn other_in_one_bit_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, 0xfffe)
}

fn invalid_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, 0)
}

fn invalid_full_member_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, 0x8000)
}

fn dropped(t: &mut Script<'_>, pkey: u16) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; 8]).pkey(pkey))?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}
