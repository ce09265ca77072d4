//! Which QP takes the datagrams of a service: SIDR REQ and SIDR REP.

use super::cm_call::{Call, NOBODY, is_there, needed, program_time, with_header};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::script::Script;
use urxe_types::Pkey;
use urxe_wire::mad::{Mad, Message, PortSpace, ServiceId, SidrRep, SidrReq, SidrStatus};

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "cm-sidr/service-names-a-qp",
        "CM-027",
        "The SIDR REP of a service that is there has status 0 and names a QP.",
        |t| {
            let (_, rep) = resolve(t)?;
            ensure(rep.qpn.get() > 1, "a QP above 1", || rep.qpn.to_string())
        },
    ),
    Check::new(
        "cm-sidr/rep-names-the-request",
        "CM-027",
        "A SIDR REP has the request's number, its transaction and its service.",
        |t| {
            let service = ServiceId::ip(PortSpace::Udp, datagrams(t)?);
            let call = Call::new(t);
            let (mad, rep) = ask(t, &call, service)?;
            ensure(mad.tid == call.tid, "the request's transaction", || format!("{:#x}", mad.tid))?;
            ensure(rep.service_id == service, &service.to_string(), || rep.service_id.to_string())
        },
    ),
    Check::new(
        "cm-sidr/duplicate-is-answered-the-same",
        "CM-010",
        "A SIDR REQ that comes again is answered again, with the same QP and the same Q_Key.",
        duplicate,
    ),
    Check::new(
        "cm-sidr/nobody-listens",
        "CM-027",
        "A SIDR REQ to a port at which nobody listens is answered with status 1.",
        |t| unsupported(t, ServiceId::ip(PortSpace::Udp, NOBODY)),
    ),
    Check::new(
        "cm-sidr/service-of-connections",
        "CM-027",
        "A SIDR REQ to the port of a program that takes connections is answered with status 1.",
        |t| {
            let port = super::cm_call::listener(t)?;
            unsupported(t, ServiceId::ip(PortSpace::Tcp, port))
        },
    ),
    Check::new(
        "cm-sidr/other-version-of-the-ip-service",
        "CM-004",
        "A SIDR REQ whose private data begin with another version of the RDMA IP CM service is \
         refused.",
        other_version,
    ),
];

fn datagrams(t: &mut Script<'_>) -> Outcome<u16> {
    needed(t.services().datagrams, "takes datagrams (`udaddy`, named with --cm-datagrams)")
}

fn req(t: &Script<'_>, call: &Call, service_id: ServiceId) -> SidrReq {
    let private_data = with_header(t);
    SidrReq { request_id: call.id, pkey: Pkey::DEFAULT, service_id, private_data }
}

/// Asks, and is answered.
fn ask(t: &mut Script<'_>, call: &Call, service: ServiceId) -> Outcome<(Mad, SidrRep)> {
    let req = req(t, call, service);
    answered(t, call, req)
}

fn answered(t: &mut Script<'_>, call: &Call, req: SidrReq) -> Outcome<(Mad, SidrRep)> {
    t.send_mad(&call.mad(req))?;
    let within = program_time(t);
    match t.next_mad(within, |mad| call.concerns(mad))?.map(|(_, mad)| (mad, mad.message)) {
        Some((mad, Message::SidrRep(rep))) => Ok((mad, rep)),
        Some((mad, _)) => Err(Stop::failed("SIDR REP", mad.to_string())),
        None => Err(Stop::failed("SIDR REP", "nothing")),
    }
}

fn resolve(t: &mut Script<'_>) -> Outcome<(Call, SidrRep)> {
    let service = ServiceId::ip(PortSpace::Udp, datagrams(t)?);
    let call = Call::new(t);
    let (_, rep) = ask(t, &call, service)?;
    ensure(rep.status == SidrStatus::Valid, "status 0", || rep.to_string())?;
    Ok((call, rep))
}

fn duplicate(t: &mut Script<'_>) -> Outcome {
    let (call, first) = resolve(t)?;
    let (_, again) = ask(t, &call, first.service_id)?;
    let same = (again.status, again.qpn, again.qkey) == (first.status, first.qpn, first.qkey);
    ensure(same, &first.to_string(), || again.to_string())
}

fn unsupported(t: &mut Script<'_>, service: ServiceId) -> Outcome {
    is_there(t)?;
    let call = Call::new(t);
    let (_, rep) = ask(t, &call, service)?;
    if rep.status == SidrStatus::Rejected && service.0 as u16 != NOBODY {
        t.allow("rejects (2) where a service that is not supported (1) says more");
        return Ok(());
    }
    ensure(rep.status == SidrStatus::Unsupported, "status 1", || rep.to_string())
}

fn other_version(t: &mut Script<'_>) -> Outcome {
    let service = ServiceId::ip(PortSpace::Udp, datagrams(t)?);
    let call = Call::new(t);
    let mut req = req(t, &call, service);
    req.private_data[0] = 0x10;
    let (_, rep) = answered(t, &call, req)?;
    ensure(rep.status != SidrStatus::Valid, "a status that is not 0", || rep.to_string())
}
