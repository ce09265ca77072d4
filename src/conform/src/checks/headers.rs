//! The BTH of requests: what is ignored, and what makes a packet nobody's.

use super::requests::write_only;
use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::{BECN, FECN, Packet};
use crate::script::Script;
use urxe_wire::NakCode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "headers/reserved-bits-beside-ackreq-are-ignored",
        rule: "WIRE-001",
        says: "A request whose seven reserved bits beside AckReq are set is carried out as any \
               other.",
        risk: Risk::None,
        run: reserved_bits_beside_ackreq_are_ignored,
    },
    Check {
        name: "headers/reserved-bits-beside-becn-are-ignored",
        rule: "WIRE-001",
        says: "A request whose six reserved bits beside FECN and BECN are set is carried out as \
               any other.",
        risk: Risk::None,
        run: reserved_bits_beside_becn_are_ignored,
    },
    Check {
        name: "headers/fecn-is-accepted",
        rule: "WIRE-025",
        says: "A request with FECN set is carried out.",
        risk: Risk::None,
        run: fecn_is_accepted,
    },
    Check {
        name: "headers/becn-is-accepted",
        rule: "WIRE-025",
        says: "A request with BECN set is carried out.",
        risk: Risk::None,
        run: becn_is_accepted,
    },
    Check {
        name: "headers/migreq-cleared-is-accepted",
        rule: "WIRE-003",
        says: "A request without MigReq, as one with, is carried out: no alternate path is in use.",
        risk: Risk::None,
        run: migreq_cleared_is_accepted,
    },
    Check {
        name: "headers/solicited-event-changes-nothing-of-a-write",
        rule: "WIRE-002",
        says: "The solicited event bit of a WRITE without immediate data means nothing.",
        risk: Risk::None,
        run: solicited_event_changes_nothing_of_a_write,
    },
    Check {
        name: "headers/other-version-is-dropped",
        rule: "WIRE-004",
        says: "A packet of transport header version 1 is dropped in silence, and does not count.",
        risk: Risk::None,
        run: other_version_is_dropped,
    },
    Check {
        name: "headers/highest-version-is-dropped",
        rule: "WIRE-004",
        says: "A packet of transport header version 15 is dropped in silence, and does not count.",
        risk: Risk::None,
        run: highest_version_is_dropped,
    },
    Check {
        name: "headers/source-port-may-change",
        rule: "WIRE-030",
        says: "Requests of one connection may come from different UDP source ports.",
        risk: Risk::None,
        run: source_port_may_change,
    },
    Check {
        name: "headers/pad-that-does-not-fit",
        rule: "WIRE-009",
        says: "A packet whose payload and padding are no multiple of four bytes together is not \
               carried out.",
        risk: Risk::Hostile,
        run: pad_that_does_not_fit,
    },
    Check {
        name: "headers/pad-missing",
        rule: "WIRE-009",
        says: "A packet of five bytes whose pad count is 0 is not carried out.",
        risk: Risk::Hostile,
        run: pad_missing,
    },
    Check {
        name: "headers/unknown-qp-is-silent",
        rule: "COUNT-006",
        says: "A request for a QP that does not exist draws no answer.",
        risk: Risk::Hostile,
        run: unknown_qp_is_silent,
    },
    Check {
        name: "headers/qp-0-is-silent",
        rule: "HOST-022",
        says: "A request of a reliable connection for QP 0 draws no answer.",
        risk: Risk::Hostile,
        run: qp_0_is_silent,
    },
    Check {
        name: "headers/qp-1-is-silent",
        rule: "COUNT-007",
        says: "A request of a reliable connection for QP 1, which takes datagrams, draws no \
               answer.",
        risk: Risk::Hostile,
        run: qp_1_is_silent,
    },
    Check {
        name: "headers/multicast-qp-is-silent",
        rule: "HOST-022",
        says: "A request of a reliable connection for QP 0xffffff, which stands for multicast, \
               draws no answer.",
        risk: Risk::Hostile,
        run: multicast_qp_is_silent,
    },
];

fn reserved_bits_beside_ackreq_are_ignored(t: &mut Script<'_>) -> Outcome {
    taken(t, |packet| Packet { reserved: 0x7f, ..packet })
}

fn reserved_bits_beside_becn_are_ignored(t: &mut Script<'_>) -> Outcome {
    taken(t, |packet| Packet { congestion: 0x3f, ..packet })
}

fn fecn_is_accepted(t: &mut Script<'_>) -> Outcome {
    taken(t, |packet| Packet { congestion: FECN, ..packet })
}

fn becn_is_accepted(t: &mut Script<'_>) -> Outcome {
    taken(t, |packet| Packet { congestion: BECN, ..packet })
}

fn migreq_cleared_is_accepted(t: &mut Script<'_>) -> Outcome {
    taken(t, |packet| Packet { migreq: false, ..packet })
}

fn solicited_event_changes_nothing_of_a_write(t: &mut Script<'_>) -> Outcome {
    taken(t, Packet::solicited)
}

fn other_version_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, |packet| Packet { version: 1, ..packet })
}

fn highest_version_is_dropped(t: &mut Script<'_>) -> Outcome {
    dropped(t, |packet| Packet { version: 15, ..packet })
}

fn source_port_may_change(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for (psn, port) in [(0, 0xc000), (1, 0xd234), (2, 0xffff)] {
        let mut flow = t.flow();
        flow.src_port = port;
        t.set_flow(flow);
        t.expect_service(psn, psn as u32 + 1)?;
    }
    Ok(())
}

fn pad_that_does_not_fit(t: &mut Script<'_>) -> Outcome {
    malformed(t, |packet| Packet { pad: Some(1), ..packet })
}

fn pad_missing(t: &mut Script<'_>) -> Outcome {
    malformed(t, |packet| Packet { pad: Some(0), ..packet.payload(&[1, 2, 3, 4, 5]) })
}

fn unknown_qp_is_silent(t: &mut Script<'_>) -> Outcome {
    not_ours(t, |qpn| qpn ^ 0x5a_5a5a)
}

fn qp_0_is_silent(t: &mut Script<'_>) -> Outcome {
    not_ours(t, |_| 0)
}

fn qp_1_is_silent(t: &mut Script<'_>) -> Outcome {
    not_ours(t, |_| 1)
}

fn multicast_qp_is_silent(t: &mut Script<'_>) -> Outcome {
    not_ours(t, |_| 0xff_ffff)
}

/// A changed request is carried out.
fn taken(t: &mut Script<'_>, change: impl Fn(Packet) -> Packet) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(change(write_only(t, 0, 0, &[1; 8])))?;
    t.expect_acked(0, 1)?;
    t.expect_service(1, 2)
}

/// A changed request is taken for none.
fn dropped(t: &mut Script<'_>, change: impl Fn(Packet) -> Packet) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(change(write_only(t, 0, 0, &[1; 8])))?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

/// A request with a wrong length is dropped, or refused, as the packet is checked sooner or later.
fn malformed(t: &mut Script<'_>, change: impl Fn(Packet) -> Packet) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(change(write_only(t, 0, 0, &[1; 8])))?;
    match t.expect_nothing_or(&[nak(NakCode::InvalidRequest, 0)])? {
        None => t.expect_service(0, 1),
        Some(_) => {
            t.allow("refuses it as an invalid request");
            t.expect_no_service(0)
        }
    }
}

/// A request for a QP of this number, made from the right one, is nobody's.
fn not_ours(t: &mut Script<'_>, number: impl Fn(u32) -> u32) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let other = number(t.their_qpn());
    t.send(write_only(t, 0, 0, &[1; 8]).to(other))?;
    t.expect_no_answer_at_all()?;
    t.expect_service(0, 1)
}
