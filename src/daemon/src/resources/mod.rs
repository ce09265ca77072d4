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
mod listing;
mod mr;
mod multicast;
mod mw;
mod paths;
mod pd;
mod qp;
mod srq;
mod stats;

pub(crate) use ah::Ah;
pub(crate) use comp_channel::CompChannel;
pub(crate) use context::Context;
pub(crate) use cq::Cq;
pub(crate) use mr::Mr;
pub(crate) use mw::Mw;
pub(crate) use pd::{Pd, PdUser};
pub(crate) use qp::Qp;
pub(crate) use srq::Srq;

use crate::cm;
use crate::session::{Answer, DaemonCtx, Session};
use mr::MrRequest;
use qp::QpRequest;
use rustix::io::Errno;
use rustix::process::Resource;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use urxe_shm::control::{ControlError, Request};

/// Does what a request asks for. If it fails, nothing has changed.
pub(crate) fn handle(
    session: &mut Session,
    ctx: &mut DaemonCtx,
    request: Request,
    mut fds: Vec<OwnedFd>,
) -> Result<Answer, ControlError> {
    if let Request::Hello { program } = request {
        return session.hello(ctx, &program, fds);
    }
    // HOST-025: there is nothing shared before.
    session.shared()?.free_retired_rings();
    let memory = match request {
        Request::RegMr { .. } => fds.pop(),
        _ => None,
    };
    // HOST-016
    if !fds.is_empty() {
        let sentence = format!("{} descriptors came with a request that takes none", fds.len());
        return Err(refuse(Errno::PROTO, sentence));
    }
    match request {
        Request::Hello { .. } => unreachable!("answered above"),
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
            mr::reg(session, ctx, pd, wanted, memory)
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
        Request::Resources { device, kind, after } => {
            listing::list(session, ctx, &device, kind, after)
        }
        Request::Paths { device, after } => paths::list(session, ctx, &device, after),
        Request::Stats { device, after_qpn } => stats::stats(session, ctx, &device, after_qpn),
        Request::Cm(request) => cm::handle(session, ctx, request),
        Request::CmWithin { channel, request } => {
            cm::check_within(session, ctx, channel, &request)?;
            cm::handle(session, ctx, request)
        }
    }
}

/// A request is refused, for this reason.
pub(crate) fn refuse(errno: Errno, sentence: impl Into<String>) -> ControlError {
    ControlError { errno: errno.raw_os_error(), message: without_number(&sentence.into()) }
}

/// A sentence without the number that the text of a system's error ends with: the refusal's own
/// number goes with it, and would stand there twice.
fn without_number(sentence: &str) -> String {
    let text = sentence.rsplit_once(" (os error ").filter(|(_, number)| number.ends_with(')'));
    text.map_or(sentence, |(text, _)| text).to_owned()
}

/// Turns the error of something that a request needed into its refusal.
pub(crate) trait Refusal<T> {
    /// Refuses with this number and a sentence of `what` and the error.
    fn or_refuse(self, errno: Errno, what: &str) -> Result<T, ControlError>;
}

impl<T, E: Display> Refusal<T> for Result<T, E> {
    fn or_refuse(self, errno: Errno, what: &str) -> Result<T, ControlError> {
        self.map_err(|error| match errno {
            Errno::MFILE => {
                let limit = rustix::process::getrlimit(Resource::Nofile).current;
                let limit = limit.map_or_else(|| "no limit".into(), |limit| limit.to_string());
                let error = without_number(&error.to_string());
                let sentence = format!(
                    "{what}: {error}; the daemon's limit of open descriptors is {limit}, and each \
                     program takes some: raise it (ulimit -n) where the daemon is started"
                );
                refuse(errno, sentence)
            }
            errno => refuse(errno, format!("{what}: {error}")),
        })
    }
}

/// The device has no room for another.
fn device_full(what: &str) -> ControlError {
    refuse(Errno::NOMEM, format!("{what}: the device can have no more"))
}

/// A handle finds nothing.
pub(crate) fn no_such(what: &str, handle: u32) -> ControlError {
    refuse(Errno::NOENT, format!("{what} handle {handle}: does not exist in this session"))
}

/// Refuses to destroy what is in use.
fn check_unused(what: &str, users: usize, of: &str) -> Result<(), ControlError> {
    if users == 0 {
        return Ok(());
    }
    Err(refuse(Errno::BUSY, format!("{what}: still used by {users} {of}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_number_once() {
        let refused: Result<(), _> = Err(Errno::MFILE);
        let refused = refused.or_refuse(Errno::MFILE, "event pipe").unwrap_err();
        assert_eq!(refused.errno, Errno::MFILE.raw_os_error());
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap().to_string();
        for part in ["event pipe: Too many open files; ", &limit, "ulimit -n"] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
        let error = format!("port 7: {}", Errno::ACCESS);
        assert_eq!(refuse(Errno::ACCESS, error).message, "port 7: Permission denied");
        assert_eq!(refuse(Errno::INVAL, "7 (seven)").message, "7 (seven)");
    }
}
