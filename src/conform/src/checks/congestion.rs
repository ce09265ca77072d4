//! Congestion marks and notifications at a responder.

use super::requests::{read, write_only};
use crate::Arrived;
use crate::check::{Check, Outcome, Risk, ensure};
use crate::device::Setup;
use crate::expect::{ack, any};
use crate::packet::{BECN, Packet, packet};
use crate::script::Script;
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "congestion/a-marked-request-is-notified",
        rule: "CONG-020",
        says: "A request with \"congestion experienced\" is carried out, and its sender gets a \
               CNP.",
        risk: Risk::None,
        run: a_marked_request_is_notified,
    },
    Check {
        name: "congestion/a-cnp-is-sound",
        rule: "CONG-020",
        says: "A CNP has BECN and PSN 0, asks for nothing, and brings sixteen zeros.",
        risk: Risk::None,
        run: a_cnp_is_sound,
    },
    Check {
        name: "congestion/a-cnp-is-not-markable",
        rule: "CONG-024",
        says: "A CNP is not itself sent as ECN-capable.",
        risk: Risk::None,
        run: a_cnp_is_not_markable,
    },
    Check {
        name: "congestion/cnps-are-rare",
        rule: "CONG-021",
        says: "Many marked requests at once draw few CNPs.",
        risk: Risk::None,
        run: cnps_are_rare,
    },
    Check {
        name: "congestion/ecn-capable-is-not-marked",
        rule: "CONG-020",
        says: "A request that is ECN-capable and not marked draws no CNP.",
        risk: Risk::None,
        run: ecn_capable_is_not_marked,
    },
    Check {
        name: "congestion/a-cnp-changes-no-sequence",
        rule: "CONG-010",
        says: "A CNP that comes in the midst of a message is no part of it.",
        risk: Risk::None,
        run: a_cnp_changes_no_sequence,
    },
    Check {
        name: "congestion/cnps-slow-down-but-do-not-stop",
        rule: "CONG-010",
        says: "A responder that gets many CNPs answers a READ nonetheless.",
        risk: Risk::None,
        run: cnps_slow_down_but_do_not_stop,
    },
    Check {
        name: "congestion/a-cnp-without-payload",
        rule: "CONG-010",
        says: "A CNP without its sixteen bytes is dropped or taken, and does no harm.",
        risk: Risk::Hostile,
        run: a_cnp_without_payload,
    },
];

fn a_marked_request_is_notified(t: &mut Script<'_>) -> Outcome {
    marked(t)?;
    Ok(())
}

fn a_cnp_is_sound(t: &mut Script<'_>) -> Outcome {
    let Some(cnp) = marked(t)? else { return Ok(()) };
    ensure(cnp.congestion() & BECN != 0, "BECN", || "BECN cleared".into())?;
    ensure(cnp.psn() == 0, "PSN 0", || format!("PSN {}", cnp.psn()))?;
    ensure(!cnp.ack_req() && !cnp.solicited(), "neither bit", || "AckReq or solicited".into())?;
    let body = cnp.body();
    ensure(body.len() == 16, "16 bytes", || format!("{} bytes", body.len()))?;
    ensure(body.iter().all(|&byte| byte == 0), "zeros", || format!("{body:02x?}"))
}

fn a_cnp_is_not_markable(t: &mut Script<'_>) -> Outcome {
    let Some(cnp) = marked(t)? else { return Ok(()) };
    if cnp.flow().traffic_class & 3 != 0 {
        t.allow("sends CNPs as ECN-capable");
    }
    Ok(())
}

fn cnps_are_rare(t: &mut Script<'_>) -> Outcome {
    // The first marks are over: the device knows its peer.
    marked(t)?;
    t.connect(&Setup::rc().write())?;
    let packets: Vec<Packet> =
        (0..16).map(|psn| Packet { ecn: 3, ..write_only(t, psn, 0, &[1; 8]) }).collect();
    t.send_all(&packets)?;
    let mut cnps = 0;
    while let Some(arrived) = t.next(t.waits().quiet)? {
        cnps += u32::from(arrived.opcode() == Opcode::CNP as u8);
    }
    if cnps > 8 {
        t.allow("sends a CNP for most of many requests that were marked together");
    }
    Ok(())
}

fn ecn_capable_is_not_marked(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    // Some send no CNP before they know their peer.
    for psn in 0..4 {
        let ecn = if psn % 2 == 0 { 2 } else { 1 };
        t.send(Packet { ecn, ..write_only(t, psn, 0, &[1; 8]) })?;
        t.expect_acked(psn, psn as u32 + 1)?;
        t.expect_nothing()?;
    }
    Ok(())
}

fn a_cnp_changes_no_sequence(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.expect_service(0, 1)?;
    let mut packets = super::requests::writes(t, 1, 0, &[1; 3000]);
    packets.insert(1, cnp());
    packets.insert(3, cnp());
    t.send_all(&packets)?;
    t.expect_acked(3, 2)?;
    t.expect_service(4, 3)
}

fn cnps_slow_down_but_do_not_stop(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send_all(&vec![cnp(); 20])?;
    t.send(read(t, 0, 0, 8000))?;
    t.expect_read(0, 8000, 1)?;
    t.expect_service(8, 2)
}

fn a_cnp_without_payload(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(Packet { congestion: BECN, ..packet(Opcode::CNP) })?;
    t.expect_nothing()?;
    t.expect_service(0, 1)
}

/// A notification for the device's QP.
fn cnp() -> Packet {
    let cnp = Packet { congestion: BECN, ..packet(Opcode::CNP).at_absolute(0) };
    cnp.payload(&[0; 16])
}

/// Marked requests are acknowledged, and answered with a CNP by devices that send them. Some wait
/// with the first one until they know their peer.
fn marked(t: &mut Script<'_>) -> Outcome<Option<Arrived>> {
    t.connect(&Setup::rc().write())?;
    for psn in 0..3 {
        t.send(Packet { ecn: 3, ..write_only(t, psn, 0, &[1; 8]) })?;
        let msn = psn as u32 + 1;
        let first = t.expect_one_of(&[ack(psn).msn(msn), any(Opcode::CNP)])?;
        if first.0 == 1 {
            t.expect(ack(psn).msn(msn))?;
            return Ok(Some(first.1));
        }
        if let Some(second) = t.next(t.waits().quiet)? {
            t.check(&any(Opcode::CNP), &second)?;
            return Ok(Some(second));
        }
    }
    t.allow("sends no CNPs");
    Ok(None)
}
