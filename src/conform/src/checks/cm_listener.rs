//! The connection manager of a device at which a program listens: REQ, REP, RTU.

use super::cm_call::{
    Agreed, Call, DEPTH, accepted, answer, carries_data, connected, listener, needed, next,
    program_time, request, silent, words,
};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::packet::packet;
use crate::script::Script;
use std::time::Duration;
use urxe_types::{Qpn, TimeCode};
use urxe_wire::mad::{Message, Mra, Reason, Received, Rejected, Rep, Req};
use urxe_wire::{Credits, Opcode, Syndrome};

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "cm-listener/req-is-answered-by-a-rep",
        "CM-008",
        "The REP to a REQ that is accepted names our communication ID.",
        |t| accepted(t, |req| req, |_, _| Ok(())),
    ),
    Check::new(
        "cm-listener/rep-is-of-the-same-transaction",
        "CM-008",
        "A REP has the transaction ID of its REQ, and status 0.",
        same_transaction,
    ),
    Check::new(
        "cm-listener/rep-goes-to-qp-1-with-its-key",
        "CM-001",
        "A REP is a datagram of 256 bytes to QP 1, from QP 1, with its Q_Key.",
        goes_to_qp_1,
    ),
    Check::new(
        "cm-listener/rep-names-a-qp",
        "CM-008",
        "The REP names the QP of the connection, which is not one of the special ones.",
        |t| accepted(t, |req| req, |_, agreed| names_a_qp(&agreed.rep)),
    ),
    Check::new(
        "cm-listener/rep-asks-for-no-more-reads-than-offered",
        "CM-008",
        "The initiator depth of a REP is no larger than the responder resources of the REQ.",
        |t| {
            accepted(
                t,
                |req| req,
                |_, agreed| {
                    let asked = agreed.rep.initiator_depth;
                    ensure(asked <= DEPTH, &format!("at most {DEPTH}"), || asked.to_string())
                },
            )
        },
    ),
    Check::new(
        "cm-listener/flow-control-comes-with-credits",
        "CM-060",
        "Who says in its REP that it has end-to-end flow control tells credits in its ACKs.",
        |t| {
            let asked = |req| Req { flow_control: true, ..req };
            accepted(t, asked, flow_control)
        },
    ),
    Check::new(
        "cm-listener/established-connection-carries-data",
        "CM-029",
        "When the RTU was sent, the device takes requests that begin at the PSN of its REP.",
        |t| connected(t, |t, _| carries_data(t)),
    ),
    Check::new(
        "cm-listener/data-may-come-before-the-rtu",
        "CM-016",
        "Requests are answered though the RTU was lost: who sent a REP is ready to receive.",
        |t| accepted(t, |req| req, |t, _| carries_data(t)),
    ),
    Check::new(
        "cm-listener/late-rtu-after-data-is-taken",
        "CM-016",
        "An RTU that comes after the first data does no harm.",
        late_rtu,
    ),
    Check::new(
        "cm-listener/duplicate-req-is-no-second-connection",
        "CM-010",
        "A REQ that comes twice has one REP, the same each time.",
        duplicate_req,
    ),
    Check::new(
        "cm-listener/duplicate-rtu-is-ignored",
        "CM-010",
        "A second RTU is not answered, and changes nothing.",
        duplicate_rtu,
    ),
    Check::new(
        "cm-listener/rep-is-repeated-until-the-rtu-comes",
        "CM-009",
        "A REP that is not confirmed is repeated, the same to the byte.",
        |t| accepted(t, quick, repeated),
    ),
    Check::new(
        "cm-listener/rep-is-not-repeated-after-the-rtu",
        "CM-009",
        "A REP that is confirmed is not repeated.",
        |t| accepted(t, quick, not_repeated),
    ),
    Check::new(
        "cm-listener/rep-is-given-up",
        "CM-009",
        "A REP is repeated no more often than the REQ allows; who then gives up says so with \
         reason 4.",
        |t| accepted(t, |req| Req { max_cm_retries: RETRIES, ..quick(req) }, given_up),
    ),
    Check::new(
        "cm-listener/mra-stops-the-repeats-of-a-rep",
        "CM-011",
        "After an MRA the device waits longer for the RTU, and takes it then.",
        |t| accepted(t, quick, mra),
    ),
    Check::new(
        "cm-listener/undecided-req-is-not-asked-twice",
        "CM-011",
        "A REQ that comes again while the program decides is answered by an MRA, or not at all.",
        undecided,
    ),
    Check::new(
        "cm-listener/two-requests-are-two-connections",
        "CM-022",
        "Two REQs have two communication IDs and two QPs, and both carry data.",
        two_connections,
    ),
    Check::new(
        "cm-listener/same-qp-again-is-stale",
        "CM-013",
        "A REQ of a QP that is connected already is rejected as stale.",
        same_qp,
    ),
    Check::new(
        "cm-listener/stale-connection-ends",
        "CM-013",
        "The connection of a QP that connects again is ended with a DREQ.",
        stale_ends,
    ),
    Check::new(
        "cm-listener/same-id-for-another-qp-is-no-second-connection",
        "CM-013",
        "A REQ with the communication ID of another connection is not accepted.",
        same_id,
    ),
    Check::new(
        "cm-listener/strangers-rtu-changes-nothing",
        "CM-025",
        "An RTU with another communication ID of ours does not confirm: the REP is repeated.",
        |t| accepted(t, quick, strangers_rtu),
    ),
];

/// Repeats that a REQ of ours allows.
const RETRIES: u8 = 2;
/// Our response time, as a REQ says it that wants quick repeats: 67 ms.
const QUICK: TimeCode = TimeCode::new(14);

/// A REQ of somebody who answers quickly.
fn quick(req: Req) -> Req {
    Req { local_response_timeout: QUICK, ..req }
}

/// When a REP must have come again, at the latest: devices add what they know of the network, and
/// some begin with a time of their own.
fn repeat(t: &Script<'_>) -> Duration {
    program_time(t).max(QUICK.duration() * 8)
}

fn same_transaction(t: &mut Script<'_>) -> Outcome {
    let port = listener(t)?;
    let call = Call::new(t);
    let req = call.req(t, port);
    let (_, mad, rep) = request(t, &call, req)?;
    t.send_mad(&Agreed { call, rep }.dreq())?;
    ensure(mad.tid == call.tid, &format!("{:#x}", call.tid), || format!("{:#x}", mad.tid))?;
    ensure(mad.status == 0, "status 0", || format!("{:#x}", mad.status))
}

fn goes_to_qp_1(t: &mut Script<'_>) -> Outcome {
    let port = listener(t)?;
    let call = Call::new(t);
    let req = call.req(t, port);
    let (arrived, _, rep) = request(t, &call, req)?;
    t.send_mad(&Agreed { call, rep }.dreq())?;
    let deth = [0x80, 1, 0, 0, 0, 0, 0, 1];
    ensure(arrived.body().starts_with(&deth), "Q_Key 0x80010000 and source QP 1", || {
        format!("{:02x?}", arrived.body().get(..8))
    })?;
    ensure(arrived.dest_qp() == 1 && arrived.pad() == 0, "QP 1, no padding", || {
        arrived.to_string()
    })?;
    if arrived.ack_req() {
        t.allow("asks for an acknowledgement of a datagram");
    }
    ensure(arrived.icrc_is_right, "a right ICRC", || "a wrong one".into())
}

fn names_a_qp(rep: &Rep) -> Outcome {
    ensure(rep.local_qpn.get() > 1, "a QP above 1", || rep.local_qpn.to_string())
}

fn flow_control(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    t.send_mad(&agreed.rtu())?;
    if !agreed.rep.flow_control {
        return Ok(());
    }
    // It needs no receive.
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(0, 0, 0).ack_req())?;
    let acked = t.expect_acked(0, 1)?;
    let counts = |credits: Credits| credits.code() != 31;
    let does = matches!(acked.aeth(), Some((Syndrome::Ack { credits }, _)) if counts(credits));
    ensure(does, "credits in its ACKs, as its REP says", || {
        format!("a REP with end-to-end flow control, then {acked}, with credit code 31: none")
    })
}

fn late_rtu(t: &mut Script<'_>) -> Outcome {
    accepted(
        t,
        |req| req,
        |t, agreed| {
            carries_data(t)?;
            t.send_mad(&agreed.rtu())?;
            let within = t.waits().quiet;
            // A REP that was under way is none that follows from the RTU.
            let wanted = |mad: &urxe_wire::mad::Mad| {
                agreed.call.concerns(mad) && matches!(mad.message, Message::Rej(_))
            };
            match t.next_mad(within, wanted)? {
                None => Ok(()),
                Some((_, mad)) => Err(Stop::failed("no REJ", mad.to_string())),
            }
        },
    )
}

fn duplicate_req(t: &mut Script<'_>) -> Outcome {
    let port = listener(t)?;
    let call = Call::new(t);
    let req = call.req(t, port);
    let (_, first, rep) = request(t, &call, req)?;
    t.send_mad(&call.mad(req))?;
    let reply = t.waits().reply;
    let again = next(t, &call, reply)?;
    t.send_mad(&Agreed { call, rep }.dreq())?;
    match again {
        Some(again) if again == first => Ok(()),
        Some(mad) if matches!(mad.message, Message::Mra(_)) => Ok(()),
        None => {
            t.allow("drops a REQ that comes again; its REP is repeated by a timer");
            Ok(())
        }
        other => Err(Stop::failed("the same REP", words(other))),
    }
}

fn duplicate_rtu(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        t.send_mad(&agreed.rtu())?;
        let quiet = t.waits().quiet;
        silent(t, &agreed.call, quiet)?;
        carries_data(t)
    })
}

/// The REP comes again.
fn comes_again(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    let within = repeat(t);
    match next(t, &agreed.call, within)? {
        Some(mad) if mad.message == Message::Rep(agreed.rep) => Ok(()),
        other => Err(Stop::failed("the same REP again", words(other))),
    }
}

fn repeated(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    comes_again(t, agreed)?;
    t.send_mad(&agreed.rtu())?;
    carries_data(t)
}

fn not_repeated(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    t.send_mad(&agreed.rtu())?;
    silent(t, &agreed.call, Duration::from_millis(500))
}

fn given_up(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    let mut repeats = 0;
    let within = repeat(t);
    while let Some(mad) = next(t, &agreed.call, within)? {
        match mad.message {
            Message::Rep(_) => repeats += 1,
            Message::Rej(rej) => {
                let right = rej.reason == Reason::Timeout && rej.rejected != Rejected::Req;
                ensure(right, "REJ for a timeout", || mad.to_string())?;
                break;
            }
            _ => return Err(Stop::failed("REP or REJ", mad.to_string())),
        }
        ensure(repeats <= RETRIES, &format!("at most {RETRIES} repeats"), || repeats.to_string())?;
    }
    Ok(())
}

fn mra(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    t.send_mad(&agreed.call.mad(Mra {
        local_comm_id: agreed.call.id,
        remote_comm_id: agreed.rep.local_comm_id,
        received: Received::Rep,
        service_timeout: TimeCode::new(20),
        private_data: [0; Mra::PRIVATE_LEN],
    }))?;
    silent(t, &agreed.call, Duration::from_millis(500))?;
    t.send_mad(&agreed.rtu())?;
    carries_data(t)
}

fn undecided(t: &mut Script<'_>) -> Outcome {
    let port = needed(t.services().hesitates, "leaves requests undecided")?;
    let call = Call::new(t);
    let req = call.req(t, port);
    t.send_mad(&call.mad(req))?;
    // Some say at once that it may take a while.
    let quiet = t.waits().quiet;
    let at_once = next(t, &call, quiet)?;
    t.send_mad(&call.mad(req))?;
    let reply = t.waits().reply;
    for mad in [at_once, next(t, &call, reply)?].into_iter().flatten() {
        let Message::Mra(mra) = mad.message else {
            return Err(Stop::failed("MRA, or nothing", mad.to_string()));
        };
        ensure(mra.received == Received::Req, "an MRA of a REQ", || mad.to_string())?;
    }
    Ok(())
}

fn two_connections(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, first| {
        let (first, port) = (*first, listener(t)?);
        let call = first.call.other(t);
        let req = call.req(t, port);
        let (_, _, rep) = request(t, &call, req)?;
        let second = Agreed { call, rep };
        second.adopt(t);
        t.send_mad(&second.rtu())?;
        let outcome = ensure(
            rep.local_comm_id != first.rep.local_comm_id && rep.local_qpn != first.rep.local_qpn,
            "another communication ID and another QP",
            || format!("{rep} beside {}", first.rep),
        )
        .and_then(|()| carries_data(t));
        t.send_mad(&second.dreq())?;
        outcome
    })
}

/// Connects once more from the QP of a connection.
fn again(t: &mut Script<'_>, agreed: &Agreed) -> Outcome<Call> {
    let (port, other) = (listener(t)?, agreed.call.other(t));
    let call = Call { qpn: agreed.call.qpn, ..other };
    let req = call.req(t, port);
    t.send_mad(&call.mad(req))?;
    Ok(call)
}

fn same_qp(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let call = again(t, agreed)?;
        match answer(t, &call)?.map(|(_, mad)| mad) {
            Some(mad) if is_stale(&mad.message) => Ok(()),
            other => Err(Stop::failed("REJ: stale connection (10)", words(other))),
        }
    })
}

fn is_stale(message: &Message) -> bool {
    matches!(message, Message::Rej(rej) if rej.reason == Reason::StaleConnection)
}

fn stale_ends(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        again(t, agreed)?;
        match answer(t, &agreed.call)?.map(|(_, mad)| mad) {
            Some(mad) => match mad.message {
                Message::Dreq(dreq) => {
                    // CM-200: one that has the connection drops this.
                    if dreq.remote_qpn == Qpn::new(0) {
                        t.allow("asks by a DREQ for QP 0 whether the connection is lost");
                    }
                    let right = dreq.local_comm_id == agreed.rep.local_comm_id
                        && [0, agreed.call.qpn].contains(&dreq.remote_qpn.get());
                    ensure(right, "a DREQ that names both numbers and our QP", || mad.to_string())
                }
                _ => Err(Stop::failed("DREQ", mad.to_string())),
            },
            None => {
                t.allow("keeps a connection whose QP connects again");
                Ok(())
            }
        }
    })
}

fn same_id(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let port = listener(t)?;
        let qpn = agreed.call.qpn ^ 0x10_0000;
        let call = Call { qpn, psn: agreed.call.psn ^ 1, tid: agreed.call.tid ^ 2, ..agreed.call };
        let req = call.req(t, port);
        t.send_mad(&call.mad(req))?;
        loop {
            return match answer(t, &call)?.map(|(_, mad)| mad) {
                // That of the first REQ, again.
                Some(mad) if mad.message == Message::Rep(agreed.rep) => continue,
                Some(mad) => match mad.message {
                    Message::Rep(_) => Err(Stop::failed("REJ, or nothing", mad.to_string())),
                    _ => Ok(()),
                },
                None => {
                    t.allow("drops a REQ with a number that is in use");
                    Ok(())
                }
            };
        }
    })
}

fn strangers_rtu(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    let stranger = Call { id: urxe_wire::mad::CommId(agreed.call.id.0 ^ 0x55), ..agreed.call };
    t.send_mad(&Agreed { call: stranger, rep: agreed.rep }.rtu())?;
    comes_again(t, agreed)
}
