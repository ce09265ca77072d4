//! What programs ask for, one kind of object in each file: a request comes in, is judged, and
//! becomes an action on the device.
//!
//! The rules are the same everywhere. A request that fails has changed nothing. An object that
//! another one uses cannot be destroyed (`EBUSY`). Quotas are in [`limits`](crate::limits); what
//! goes beyond them is `ENOMEM`. Every refusal is a sentence that names the parameter, its value,
//! and what was expected.

mod ah;
mod comp_channel;
mod context;
mod cq;
pub(crate) mod failure;
mod mr;
mod multicast;
mod mw;
mod pd;
mod qp;
mod srq;

pub(crate) use ah::Ah;
pub(crate) use comp_channel::CompChannel;
pub(crate) use context::Context;
pub(crate) use cq::Cq;
pub(crate) use mr::Mr;
pub(crate) use mw::Mw;
pub(crate) use pd::{Pd, PdUser};
pub(crate) use qp::Qp;
pub(crate) use srq::Srq;

use crate::refusal::{Refusal, check_descriptors, no_such, refuse};
use crate::session::{Answer, Session, SlotCtx};
use mr::MrRequest;
use qp::QpRequest;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use urxe_shm::control::{CmRequest, ControlError, Request};
use urxe_shm::ring::MoveError;

/// Does what a request asks for, and closes the descriptors that came with it. If it fails, nothing
/// has changed.
pub(crate) fn handle(
    session: &mut Session,
    ctx: &mut SlotCtx,
    request: Request,
    mut fds: Vec<OwnedFd>,
) -> Result<Answer, ControlError> {
    let answer = answer(session, ctx, request, &mut fds);
    fds.into_iter().for_each(|fd| ctx.close(fd));
    answer
}

/// Whether a request has this process open something that stays.
fn takes_descriptors(request: &Request) -> bool {
    let is_channel = |request: &CmRequest| matches!(request, CmRequest::CreateChannel);
    match request {
        Request::Hello { .. }
        | Request::OpenDevice { .. }
        | Request::CreateCompChannel { .. }
        | Request::AttachMcast { .. }
        | Request::NextCaptureStream => true,
        Request::Cm(request) | Request::CmWithin { request, .. } => is_channel(request),
        _ => false,
    }
}

fn answer(
    session: &mut Session,
    ctx: &mut SlotCtx,
    request: Request,
    fds: &mut Vec<OwnedFd>,
) -> Result<Answer, ControlError> {
    if takes_descriptors(&request) {
        check_descriptors(&*session)?;
    }
    if let Request::Hello { program } = request {
        return session.hello(ctx, &program, fds);
    }
    if let Request::HostSlot = request {
        return session.ask_for_slot(ctx, fds);
    }
    // HOST-025: there is nothing shared before.
    session.shared()?;
    let taken = usize::from(matches!(request, Request::RegMr { .. }));
    // HOST-016
    if let unasked @ 1.. = fds.len().saturating_sub(taken) {
        let sentence = format!("{unasked} descriptors came with a request that takes none");
        return Err(refuse(Errno::PROTO, sentence));
    }
    match request {
        Request::Hello { .. } | Request::HostSlot => unreachable!("answered above"),
        Request::ListDevices => Ok(context::list_devices(ctx)),
        Request::ListCauses => Ok(context::list_causes()),
        Request::OpenDevice { name } => context::open_device(session, ctx, &name),
        Request::CloseDevice { context } => context::close_device(session, context),
        Request::QueryDevice { context } => context::query_device(session, ctx, context),
        Request::QueryPort { context, port } => context::query_port(session, ctx, context, port),
        Request::QueryGid { context, port, index } => {
            context::query_gid(session, ctx, context, port, index)
        }
        Request::AllocPd { context } => pd::alloc(session, ctx, context),
        Request::DeallocPd { pd } => pd::dealloc(session, ctx, pd),
        Request::RegMr { pd, addr, length, iova, access, backing } => {
            let wanted = MrRequest { addr, length, iova, access, backing };
            mr::reg(session, ctx, pd, wanted, fds.first())
        }
        Request::DeregMr { mr } => mr::dereg(session, ctx, mr),
        Request::CreateCompChannel { context } => comp_channel::create(session, ctx, context),
        Request::DestroyCompChannel { channel } => comp_channel::destroy(session, ctx, channel),
        Request::CreateCq { context, cqe, channel, user_handle, comp_vector } => {
            cq::create(session, ctx, context, cqe, channel, user_handle, comp_vector)
        }
        Request::ResizeCq { cq, cqe } => cq::resize(session, ctx, cq, cqe),
        Request::DestroyCq { cq } => cq::destroy(session, ctx, cq),
        Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq, caps, sq_sig_all, user_handle } => {
            let cqs = (send_cq, recv_cq);
            let wanted = QpRequest { qp_type, cqs, srq, caps, sq_sig_all, user_handle };
            qp::create(session, ctx, pd, &wanted)
        }
        Request::ModifyQp { qp, attr } => qp::modify(session, ctx, qp, &attr),
        Request::QueryQp { qp } => qp::query(session, ctx, qp),
        Request::ExplainFailure { qp, cause } => failure::explain(session, ctx, qp, cause),
        Request::DestroyQp { qp } => qp::destroy(session, ctx, qp),
        Request::CreateSrq { pd, attr, user_handle } => {
            srq::create(session, ctx, pd, attr, user_handle)
        }
        Request::ModifySrq { srq, max_wr, limit } => srq::modify(session, ctx, srq, max_wr, limit),
        Request::QuerySrq { srq } => srq::query(session, ctx, srq),
        Request::DestroySrq { srq } => srq::destroy(session, ctx, srq),
        Request::CreateAh { pd, av } => ah::create(session, ctx, pd, &av),
        Request::DestroyAh { ah } => ah::destroy(session, ctx, ah),
        Request::AllocMw { pd, mw_type } => mw::alloc(session, ctx, pd, mw_type),
        Request::DeallocMw { mw } => mw::dealloc(session, ctx, mw),
        Request::AttachMcast { qp, gid } => multicast::attach(session, ctx, qp, gid),
        Request::DetachMcast { qp, gid } => multicast::detach(session, ctx, qp, gid),
        Request::BeginCapture(spec) => {
            // A longer one would not fit into what the slots are told.
            spec.check().map_err(|sentence| refuse(Errno::INVAL, sentence))?;
            session.ask_broker(ctx, Request::BeginCapture(spec))
        }
        // It is of the whole daemon.
        request @ (Request::Resources { .. }
        | Request::Paths { .. }
        | Request::Histories { .. }
        | Request::Stats { .. }
        | Request::NextCaptureStream
        | Request::Cm(_)
        | Request::CmWithin { .. }) => session.ask_broker(ctx, request),
    }
}

/// The device has no room for another.
fn device_full(what: &str) -> ControlError {
    refuse(Errno::NOMEM, format!("{what}: the device can have no more"))
}

/// Refuses to go on with another ring.
fn refuse_move(error: MoveError, what: &str) -> ControlError {
    let errno = match error {
        MoveError::TooMany { .. } => Errno::BUSY,
        MoveError::TooSmall { .. } | MoveError::Ring(_) => Errno::INVAL,
    };
    refuse(errno, format!("{what}: {error}"))
}

/// Refuses to destroy what is in use.
fn check_unused(what: &str, users: usize, of: &str) -> Result<(), ControlError> {
    if users == 0 {
        return Ok(());
    }
    Err(refuse(Errno::BUSY, format!("{what}: still used by {users} {of}; destroy them first")))
}
