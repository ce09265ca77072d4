//! Multicast: which of a session's UD QPs receive what is sent to a group.

use super::{qp, refuse};
use crate::limits::{MAX_MCAST_ATTACHMENTS, MAX_MCAST_GROUPS};
use crate::refusal::{cannot_join, check_quota};
use crate::session::{Answer, Session, SlotCtx};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use urxe_engine::McastError;
use urxe_nic::AttachError;
use urxe_shm::control::{ControlError, QpHandle, Reply, Request};
use urxe_types::Gid;

pub(super) fn attach(
    session: &mut Session,
    ctx: &mut SlotCtx,
    handle: QpHandle,
    gid: Gid,
) -> Result<Answer, ControlError> {
    let (device, qpn) = qp::place(session, handle)?;
    let attachment = (handle.0, gid.to_ip());
    if !session.attachments.contains(&attachment) {
        check_quota("multicast attachments", session.attachments.len(), MAX_MCAST_ATTACHMENTS)?;
        let groups: BTreeSet<IpAddr> =
            session.attachments.iter().map(|&(_, group)| group).collect();
        if !groups.contains(&gid.to_ip()) {
            // MCAST-014
            check_quota("multicast groups", groups.len(), MAX_MCAST_GROUPS)?;
        }
        let group = gid.to_ip();
        let has_asked = session.has_asked_to_join(group);
        match ctx.devices[device].nic.attach_mcast(qpn, group) {
            Ok(()) => {}
            Err(AttachError::Engine(error)) => return Err(refuse_mcast(error)),
            // SLOT-109
            Err(AttachError::Port(source))
                if source.kind() == io::ErrorKind::PermissionDenied && !has_asked =>
            {
                let then = Request::AttachMcast { qp: handle, gid };
                return Ok(session.ask_to_join(ctx, device, group, then));
            }
            Err(AttachError::Port(source)) => return Err(cannot_join(group, &source)),
        }
        session.attachments.insert(attachment);
    }
    Ok(Reply::Done.into())
}

pub(super) fn detach(
    session: &mut Session,
    ctx: &mut SlotCtx,
    handle: QpHandle,
    gid: Gid,
) -> Result<Answer, ControlError> {
    let (device, qpn) = qp::place(session, handle)?;
    ctx.devices[device].nic.detach_mcast(qpn, gid.to_ip()).map_err(refuse_mcast)?;
    session.attachments.remove(&(handle.0, gid.to_ip()));
    Ok(Reply::Done.into())
}

fn refuse_mcast(error: McastError) -> ControlError {
    let errno = match error {
        McastError::NoSuchQp(_) => Errno::NOENT,
        McastError::TooManyGroups | McastError::TooManyMembers(_) => Errno::NOMEM,
        McastError::NotUd(_) | McastError::NotMulticast(_) | McastError::NotAttached { .. } => {
            Errno::INVAL
        }
    };
    refuse(errno, error.to_string())
}
