//! How connections of the connection manager end, and messages for those that are not there.

use super::cm_call::{
    Agreed, Call, accepted, answer, carries_data, connected, is_there, program_time, silent, words,
};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::script::Script;
use std::time::Duration;
use urxe_types::{Psn, Qkey, Qpn, TimeCode};
use urxe_wire::mad::{
    AprStatus, Ari, CommId, Drep, Lap, Mad, Message, Mra, Reason, Received, Rej, Rejected, Rep,
    Rtu, ServiceId, SidrRep, SidrStatus,
};

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "cm-end/dreq-is-answered-by-a-drep",
        "CM-017",
        "A DREQ is answered by a DREP with both communication IDs.",
        |t| connected(t, |t, agreed| drep(t, agreed).map(drop)),
    ),
    Check::new(
        "cm-end/drep-is-of-the-same-transaction",
        "CM-017",
        "A DREP has the transaction ID of its DREQ.",
        same_transaction,
    ),
    Check::new(
        "cm-end/duplicate-dreq-is-answered-again",
        "CM-010",
        "A DREQ that comes again, since the DREP was lost, is answered again.",
        duplicate_dreq,
    ),
    Check::new(
        "cm-end/dreq-before-the-rtu-is-answered",
        "CM-017",
        "A DREQ that comes though no RTU has come is answered by a DREP.",
        |t| accepted(t, |req| req, |t, agreed| drep(t, agreed).map(drop)),
    ),
    Check::new(
        "cm-end/dreq-stops-the-repeats-of-a-rep",
        "CM-017",
        "A REP is not repeated after the DREQ of its connection.",
        stops_repeats,
    ),
    Check::new(
        "cm-end/dreq-of-another-qp-ends-nothing",
        "CM-017",
        "A DREQ that names another QP of the device does not end the connection.",
        dreq_of_another_qp,
    ),
    Check::new(
        "cm-end/dreq-of-a-stranger-ends-nothing",
        "CM-025",
        "A DREQ with another communication ID of ours does not end the connection.",
        dreq_of_a_stranger,
    ),
    Check::new(
        "cm-end/rej-of-a-stranger-ends-nothing",
        "CM-025",
        "A REJ with another communication ID of ours does not end the connection.",
        rej_of_a_stranger,
    ),
    Check::new(
        "cm-end/rej-instead-of-the-rtu-is-not-answered",
        "CM-014",
        "A REJ of a REP ends the repeats of the REP, and is not answered.",
        rej_of_a_rep,
    ),
    Check::new(
        "cm-end/drep-without-a-dreq-ends-nothing",
        "CM-025",
        "A DREP that nobody asked for does not end the connection.",
        drep_without_a_dreq,
    ),
    Check::new(
        "cm-end/dreq-of-nothing",
        "CM-017",
        "A DREQ of an unknown connection is answered by a DREP, or not at all.",
        dreq_of_nothing,
    ),
    Check::new(
        "cm-end/rep-of-nothing",
        "CM-015",
        "A REP to what nobody asked for is rejected with reason 6, or dropped.",
        rep_of_nothing,
    ),
    Check::new(
        "cm-end/rtu-of-nothing",
        "CM-025",
        "An RTU of an unknown connection is not answered.",
        |t| {
            ignored(t, |call, unknown| {
                let private_data = [0; Rtu::PRIVATE_LEN];
                Rtu { local_comm_id: call.id, remote_comm_id: unknown, private_data }.into()
            })
        },
    ),
    Check::new(
        "cm-end/rej-of-nothing",
        "CM-014",
        "A REJ of an unknown connection is not answered.",
        |t| ignored(t, |call, unknown| rej(call.id, unknown).into()),
    ),
    Check::new(
        "cm-end/mra-of-nothing",
        "CM-025",
        "An MRA of an unknown connection is not answered.",
        |t| {
            ignored(t, |call, unknown| {
                Mra {
                    local_comm_id: call.id,
                    remote_comm_id: unknown,
                    received: Received::Req,
                    service_timeout: TimeCode::new(16),
                    private_data: [0; Mra::PRIVATE_LEN],
                }
                .into()
            })
        },
    ),
    Check::new(
        "cm-end/drep-of-nothing",
        "CM-025",
        "A DREP of an unknown connection is not answered.",
        |t| {
            ignored(t, |call, unknown| {
                let private_data = [0; Drep::PRIVATE_LEN];
                Drep { local_comm_id: call.id, remote_comm_id: unknown, private_data }.into()
            })
        },
    ),
    Check::new(
        "cm-end/sidr-rep-of-nothing",
        "CM-025",
        "A SIDR REP that nobody asked for is not answered.",
        |t| {
            ignored(t, |_, unknown| {
                SidrRep {
                    request_id: unknown,
                    status: SidrStatus::Valid,
                    qpn: Qpn::new(77),
                    service_id: ServiceId(0x0111_1d2f),
                    qkey: Qkey(1),
                    information_len: 0,
                    information: [0; SidrRep::INFORMATION_LEN],
                    private_data: [0; SidrRep::PRIVATE_LEN],
                }
                .into()
            })
        },
    ),
    Check::new(
        "cm-end/alternate-path-is-not-taken",
        "CM-026",
        "A LAP is refused by an APR, or not answered: RoCE has no alternate paths.",
        alternate_path,
    ),
];

/// A DREQ, and its DREP.
fn drep(t: &mut Script<'_>, agreed: &Agreed) -> Outcome<Mad> {
    let dreq = agreed.dreq();
    t.send_mad(&dreq)?;
    let until = t.now() + program_time(t);
    loop {
        match answer(t, &agreed.call)?.map(|(_, mad)| mad) {
            // A REP that was under way; the end as the device's program sees it.
            Some(Mad { message: Message::Rep(_) | Message::Dreq(_), .. }) if t.now() < until => {}
            Some(mad) => {
                let right = matches!(mad.message, Message::Drep(drep)
                    if drep.local_comm_id == agreed.rep.local_comm_id);
                ensure(right, "DREP with both numbers", || mad.to_string())?;
                return Ok(mad);
            }
            None => return Err(Stop::failed("DREP", "nothing")),
        }
    }
}

fn same_transaction(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let (wanted, tid) = (agreed.dreq().tid, drep(t, agreed)?.tid);
        ensure(tid == wanted, &format!("{wanted:#x}"), || format!("{tid:#x}"))
    })
}

fn duplicate_dreq(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        drep(t, agreed)?;
        drep(t, agreed).map(drop)
    })
}

fn stops_repeats(t: &mut Script<'_>) -> Outcome {
    accepted(
        t,
        |req| req,
        |t, agreed| {
            t.send_mad(&agreed.dreq())?;
            let program_time = program_time(t);
            let ended =
                |mad: &Mad| agreed.call.concerns(mad) && matches!(mad.message, Message::Drep(_));
            if t.next_mad(program_time, ended)?.is_none() {
                t.allow("does not answer a DREQ that comes before the RTU");
            }
            let is_rep =
                |mad: &Mad| agreed.call.concerns(mad) && matches!(mad.message, Message::Rep(_));
            // One that was under way has come with the DREP.
            while t.next_mad(Duration::ZERO, is_rep)?.is_some() {}
            match t.next_mad(Duration::from_millis(500), is_rep)? {
                None => Ok(()),
                Some((_, mad)) => Err(Stop::failed("no REP", mad.to_string())),
            }
        },
    )
}

fn dreq_of_another_qp(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let qpn = Qpn::new(agreed.rep.local_qpn.get() ^ 0x800);
        let rep = Rep { local_qpn: qpn, ..agreed.rep };
        t.send_mad(&Agreed { rep, ..*agreed }.dreq())?;
        still_connected(t, agreed)
    })
}

fn dreq_of_a_stranger(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let call = Call { id: CommId(agreed.call.id.0 ^ 0x55), ..agreed.call };
        t.send_mad(&Agreed { call, ..*agreed }.dreq())?;
        still_connected(t, agreed)
    })
}

fn rej_of_a_stranger(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let stranger = CommId(agreed.call.id.0 ^ 0x55);
        t.send_mad(&agreed.call.mad(rej(stranger, agreed.rep.local_comm_id)))?;
        still_connected(t, agreed)
    })
}

fn drep_without_a_dreq(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        t.send_mad(&agreed.call.mad(Drep {
            local_comm_id: agreed.call.id,
            remote_comm_id: agreed.rep.local_comm_id,
            private_data: [0; Drep::PRIVATE_LEN],
        }))?;
        still_connected(t, agreed)
    })
}

/// Nothing has ended: no word of it, and data go.
fn still_connected(t: &mut Script<'_>, agreed: &Agreed) -> Outcome {
    let quiet = t.waits().quiet;
    silent(t, &agreed.call, quiet)?;
    carries_data(t)
}

fn rej(local_comm_id: CommId, remote_comm_id: CommId) -> Rej {
    Rej {
        local_comm_id,
        remote_comm_id,
        rejected: Rejected::Rep,
        ari: Ari::NONE,
        reason: Reason::Consumer,
        private_data: [0; Rej::PRIVATE_LEN],
    }
}

fn rej_of_a_rep(t: &mut Script<'_>) -> Outcome {
    accepted(
        t,
        |req| req,
        |t, agreed| {
            t.send_mad(&agreed.call.mad(rej(agreed.call.id, agreed.rep.local_comm_id)))?;
            silent(t, &agreed.call, Duration::from_millis(500))
        },
    )
}

/// A message of a connection that the device does not have; then whether it is still there.
fn of_nothing(
    t: &mut Script<'_>,
    message: impl FnOnce(&Call, CommId) -> Message,
) -> Outcome<(Call, CommId, Option<Mad>)> {
    is_there(t)?;
    let (call, unknown) = (Call::new(t), CommId(t.unique().max(1)));
    t.send_mad(&call.mad(message(&call, unknown)))?;
    let reply = t.waits().reply;
    let found = t.next_mad(reply, |mad| call.concerns(mad) || mad.tid == call.tid)?;
    is_there(t)?;
    Ok((call, unknown, found.map(|(_, mad)| mad)))
}

fn ignored(t: &mut Script<'_>, message: impl FnOnce(&Call, CommId) -> Message) -> Outcome {
    match of_nothing(t, message)?.2 {
        None => Ok(()),
        Some(mad) => Err(Stop::failed("nothing", mad.to_string())),
    }
}

fn dreq_of_nothing(t: &mut Script<'_>) -> Outcome {
    let dreq =
        |call: &Call, unknown| Agreed { call: *call, rep: rep(call, unknown) }.dreq().message;
    let wanted = |mad: &Mad, call: &Call| call.concerns(mad);
    is_there(t)?;
    let (call, unknown) = (Call::new(t), CommId(t.unique().max(1)));
    t.send_mad(&call.mad(dreq(&call, unknown)))?;
    let program_time = program_time(t);
    match t.next_mad(program_time, |mad| wanted(mad, &call))?.map(|(_, mad)| mad) {
        Some(Mad { message: Message::Drep(drep), tid, .. }) => {
            let right = drep.local_comm_id == unknown && tid == call.tid;
            ensure(right, "the DREQ's numbers, and its transaction", || drep.to_string())
        }
        None => {
            t.allow("does not answer a DREQ of a connection that it does not know");
            Ok(())
        }
        other => Err(Stop::failed("DREP, or nothing", words(other))),
    }
}

/// A REP of ours to a REQ that there never was.
fn rep(call: &Call, unknown: CommId) -> Rep {
    Rep {
        // As `Agreed` takes it, which is the one that has the other side's REP.
        local_comm_id: unknown,
        remote_comm_id: call.id,
        local_qkey: Qkey::default(),
        local_qpn: Qpn::new(0x1234),
        starting_psn: Psn::new(call.psn),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: TimeCode::new(15),
        failover: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: call.guid,
        private_data: [0; Rep::PRIVATE_LEN],
    }
}

fn rep_of_nothing(t: &mut Script<'_>) -> Outcome {
    let (.., found) = of_nothing(t, |call, unknown| {
        let rep = rep(call, unknown);
        Rep { local_comm_id: call.id, remote_comm_id: unknown, ..rep }.into()
    })?;
    match found.map(|mad| (mad, mad.message)) {
        Some((_, Message::Rej(rej))) if rej.reason == Reason::InvalidCommId => Ok(()),
        None => {
            t.allow("drops a REP of a connection that it does not know");
            Ok(())
        }
        Some((mad, _)) => Err(Stop::failed("REJ: InvalidCommId (6), or nothing", mad.to_string())),
    }
}

fn alternate_path(t: &mut Script<'_>) -> Outcome {
    connected(t, |t, agreed| {
        let port = super::cm_call::listener(t)?;
        let lap = Lap {
            local_comm_id: agreed.call.id,
            remote_comm_id: agreed.rep.local_comm_id,
            remote_qpn: agreed.rep.local_qpn,
            remote_response_timeout: TimeCode::new(16),
            alternate: agreed.call.req(t, port).primary,
            private_data: [0; Lap::PRIVATE_LEN],
        };
        t.send_mad(&agreed.call.mad(lap))?;
        let reply = t.waits().reply;
        match super::cm_call::next(t, &agreed.call, reply)? {
            None => t.allow("does not answer a LAP"),
            Some(mad) => {
                let refused = match mad.message {
                    Message::Apr(apr) => apr.status != AprStatus::Taken,
                    message => matches!(message, Message::Rej(_)),
                };
                ensure(refused, "APR with a refusal, or nothing", || mad.to_string())?;
            }
        }
        carries_data(t)
    })
}
