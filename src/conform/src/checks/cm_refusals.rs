//! Requests that a connection manager refuses, and with which reason.

use super::cm_call::{
    Call, NOBODY, accepted, answer, is_there, listener, needed, program_time, rejected, words,
};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::REJECTION;
use crate::packet::Packet;
use crate::script::{Script, management};
use urxe_wire::mad::{Message, PortSpace, Reason, Rejected, Rep, Req, ServiceId, TransportService};

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "cm-refusals/nobody-listens",
        "CM-012",
        "A REQ to a port at which nobody listens is rejected with reason 8.",
        |t| to_nobody(t, |_, _| Ok(())),
    ),
    Check::new(
        "cm-refusals/rej-names-the-request",
        "CM-014",
        "The REJ of a REQ has its communication ID and its transaction, and says that it is of a \
         REQ.",
        |t| {
            to_nobody(t, |call, (tid, rejected)| {
                ensure(tid == call.tid, "the REQ's transaction", || format!("{tid:#x}"))?;
                ensure(rejected == Rejected::Req, "a REJ of a REQ", || format!("of {rejected:?}"))
            })
        },
    ),
    Check::new(
        "cm-refusals/nobody-listens-the-second-time-either",
        "CM-010",
        "A REQ that was rejected and comes again is rejected again.",
        |t| {
            is_there(t)?;
            let call = Call::new(t);
            for _ in 0..2 {
                let req = call.req(t, NOBODY);
                rejected(t, &call, req, Reason::InvalidServiceId, &[])?;
            }
            Ok(())
        },
    ),
    Check::new(
        "cm-refusals/port-of-another-space",
        "CM-005",
        "A port of UDP's space is not the same one of TCP's.",
        |t| {
            let port = listener(t)?;
            let call = Call::new(t);
            let req = call.req_to(t, ServiceId::ip(PortSpace::Udp, port));
            rejected(t, &call, req, Reason::InvalidServiceId, &[]).map(drop)
        },
    ),
    Check::new(
        "cm-refusals/service-id-of-no-port",
        "CM-012",
        "A service ID that is that of a port but for its high bits is another one.",
        |t| {
            let port = listener(t)?;
            let call = Call::new(t);
            let service = ServiceId(ServiceId::ip(PortSpace::Tcp, port).0 | 1 << 40);
            let req = call.req_to(t, service);
            rejected(t, &call, req, Reason::InvalidServiceId, &[Reason::Consumer]).map(drop)
        },
    ),
    Check::new(
        "cm-refusals/other-transport",
        "CM-012",
        "A REQ for UC to a program that takes RC is rejected: with reason 9, or by the program.",
        |t| {
            let other = |req| Req { transport: TransportService::Uc, ..req };
            refused(t, other, Reason::InvalidTransport, &[Reason::Consumer])
        },
    ),
    Check::new(
        "cm-refusals/path-mtu-that-means-nothing",
        "CM-012",
        "A REQ with the reserved path MTU 0 is rejected, best with reason 26.",
        |t| {
            let none = |req| Req { path_mtu: None, ..req };
            refused(t, none, Reason::InvalidPathMtu, &[Reason::Consumer, Reason::Unsupported])
        },
    ),
    Check::new(
        "cm-refusals/other-version-of-the-ip-service",
        "CM-004",
        "A REQ whose private data begin with another version of the RDMA IP CM service is rejected \
         with reason 28.",
        |t| refused(t, |req| private(req, |data| data[0] = 0x10), Reason::Consumer, WRONG_HEADER),
    ),
    Check::new(
        "cm-refusals/other-version-of-ip",
        "CM-004",
        "A REQ whose private data name neither IPv4 nor IPv6 is rejected with reason 28.",
        |t| refused(t, |req| private(req, |data| data[1] = 0x50), Reason::Consumer, WRONG_HEADER),
    ),
    Check::new(
        "cm-refusals/program-rejects",
        "CM-014",
        "What a program rejects is rejected with reason 28 and the program's private data.",
        |t| program_rejects(t, 1),
    ),
    Check::new(
        "cm-refusals/program-rejects-once",
        "CM-010",
        "A REQ that a program has rejected and that comes again is rejected again.",
        |t| program_rejects(t, 2),
    ),
    Check::new(
        "cm-refusals/rejected-caller-may-try-again",
        "CM-013",
        "A QP whose REQ was rejected may connect to another service.",
        try_again,
    ),
    malformed(
        "cm-malformed/other-base-version",
        "CM-003",
        "A management datagram of another base version is not taken for a REQ.",
        |t| unanswered(t, |req| damaged(req, |mad| mad[0] = 2)),
    ),
    malformed(
        "cm-malformed/other-class-version",
        "CM-003",
        "A REQ of another class version is not accepted.",
        |t| unanswered(t, |req| damaged(req, |mad| mad[2] = 1)),
    ),
    malformed(
        "cm-malformed/other-method",
        "CM-003",
        "A REQ with the method Get is not accepted.",
        |t| unanswered(t, |req| damaged(req, |mad| mad[3] = 1)),
    ),
    malformed(
        "cm-malformed/unknown-attribute",
        "CM-003",
        "A message with an attribute that connection management does not have is not answered.",
        |t| unanswered(t, |req| damaged(req, |mad| mad[16..18].copy_from_slice(&[0, 0x7f]))),
    ),
    malformed(
        "cm-malformed/wrong-key",
        "UD-016",
        "A datagram to QP 1 without the Q_Key of QP 1 is dropped.",
        |t| {
            unanswered(t, |req| {
                let mut packet = management(req);
                packet.extended[3] ^= 1;
                packet
            })
        },
    ),
    malformed(
        "cm-malformed/wrong-icrc",
        "WIRE-028",
        "A management datagram with a wrong ICRC is dropped.",
        |t| unanswered(t, |req| management(req).wrong_icrc()),
    ),
    malformed(
        "cm-malformed/too-short",
        "CM-003",
        "A datagram that is shorter than 256 bytes is no REQ that is accepted.",
        |t| malformed_req(t, |req| management(&req[..100]), |_| true),
    ),
    malformed("cm-malformed/empty", "CM-003", "An empty datagram to QP 1 does no harm.", |t| {
        unanswered(t, |_| management(&[]))
    }),
    malformed(
        "cm-malformed/of-a-connection",
        "UD-022",
        "A packet of a reliable connection to QP 1 is dropped.",
        |t| {
            unanswered(t, |req| {
                let mut packet = management(req);
                packet.opcode = urxe_wire::Opcode::RC_SEND_ONLY as u8;
                packet.ack_req()
            })
        },
    ),
];

/// Reasons that are right too for private data that begin wrongly.
const WRONG_HEADER: &[Reason] = &[Reason::InvalidServiceId, Reason::Unsupported];

/// A check that sends what no sound sender does.
const fn malformed(
    name: &'static str,
    rule: &'static str,
    says: &'static str,
    run: fn(&mut Script<'_>) -> Outcome,
) -> Check {
    Check { risk: crate::Risk::Hostile, ..Check::new(name, rule, says, run) }
}

fn to_nobody(t: &mut Script<'_>, check: impl FnOnce(&Call, (u64, Rejected)) -> Outcome) -> Outcome {
    is_there(t)?;
    let call = Call::new(t);
    let req = call.req(t, NOBODY);
    let (mad, rej) = rejected(t, &call, req, Reason::InvalidServiceId, &[])?;
    check(&call, (mad.tid, rej.rejected))
}

/// A REQ to the program that accepts, which is changed so that it is not to be accepted.
fn refused(
    t: &mut Script<'_>,
    change: impl FnOnce(Req) -> Req,
    reason: Reason,
    others: &[Reason],
) -> Outcome {
    let port = listener(t)?;
    let call = Call::new(t);
    let req = change(call.req(t, port));
    rejected(t, &call, req, reason, others).map(drop)
}

fn private(req: Req, change: impl FnOnce(&mut [u8])) -> Req {
    let mut private_data = req.private_data;
    change(&mut private_data);
    Req { private_data, ..req }
}

fn program_rejects(t: &mut Script<'_>, times: usize) -> Outcome {
    let port = needed(t.services().rejects, "rejects connections")?;
    let call = Call::new(t);
    for _ in 0..times {
        let req = call.req(t, port);
        let (_, rej) = rejected(t, &call, req, Reason::Consumer, &[])?;
        let expected = String::from_utf8_lossy(REJECTION);
        let data = &rej.private_data;
        ensure(data.starts_with(REJECTION), &format!("private data {expected:?}"), || {
            format!("{:02x?}", &data[..REJECTION.len()])
        })?;
    }
    Ok(())
}

fn try_again(t: &mut Script<'_>) -> Outcome {
    listener(t)?;
    let first = Call::new(t);
    let req = first.req(t, NOBODY);
    rejected(t, &first, req, Reason::InvalidServiceId, &[])?;
    accepted(
        t,
        |req| Req { local_qpn: urxe_types::Qpn::new(first.qpn), ..req },
        |_, agreed| {
            let Rep { local_qpn, .. } = agreed.rep;
            ensure(local_qpn.get() > 1, "a QP", || local_qpn.to_string())
        },
    )
}

/// A management datagram with some bytes changed.
fn damaged(req: &[u8], change: impl FnOnce(&mut [u8])) -> Packet {
    let mut mad = req.to_vec();
    change(&mut mad);
    management(&mad)
}

/// What is made of a REQ gets no answer, or one that says that it is not understood.
fn unanswered(t: &mut Script<'_>, damage: impl FnOnce(&[u8]) -> Packet) -> Outcome {
    malformed_req(t, damage, |reason| {
        matches!(reason, Reason::InvalidClassVersion | Reason::Unsupported)
    })
}

/// What is made of a REQ gets no answer, or one that rejects for such a reason; and the device
/// lives on.
fn malformed_req(
    t: &mut Script<'_>,
    damage: impl FnOnce(&[u8]) -> Packet,
    is_allowed: impl Fn(Reason) -> bool,
) -> Outcome {
    is_there(t)?;
    let port = t.services().accepts.unwrap_or(NOBODY);
    let call = Call::new(t);
    let mad = call.mad(call.req(t, port));
    t.send_outside(&damage(&mad.bytes()))?;
    let quiet = t.waits().quiet.max(program_time(t) / 8);
    let found = t.next_mad(quiet, |found| call.concerns(found) || found.tid == mad.tid)?;
    match found.map(|(_, mad)| mad) {
        None => {}
        Some(mad) => match mad.message {
            Message::Rej(rej) if is_allowed(rej.reason) => {
                t.allow(format!("rejects with {}", rej.reason));
            }
            _ => return Err(Stop::failed("nothing", mad.to_string())),
        },
    }
    // A sound one is answered as ever.
    let call = Call::new(t);
    let req = call.req(t, NOBODY);
    t.send_mad(&call.mad(req))?;
    match answer(t, &call)?.map(|(_, mad)| mad) {
        Some(mad) if matches!(mad.message, Message::Rej(_)) => Ok(()),
        other => Err(Stop::failed("REJ of a sound REQ afterwards", words(other))),
    }
}
