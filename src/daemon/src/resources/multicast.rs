//! Multicast: which of a session's UD QPs receive what is sent to a group.

use super::{Refusal, check_quota, find, refuse};
use crate::limits::{MAX_MCAST_ATTACHMENTS, MAX_MCAST_GROUPS};
use crate::nic::Nic;
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::net::IpAddr;
use urxe_engine::McastError;
use urxe_shm::control::{ControlError, Gid, QpHandle, Reply};
use urxe_types::Qpn;

impl Session {
    pub(crate) fn attach_mcast(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        qp: QpHandle,
        gid: Gid,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.qps, "queue pair", qp.0)?;
        let attachment = (qp.0, gid.to_ip());
        if !self.attachments.contains(&attachment) {
            check_quota("multicast attachments", self.attachments.len(), MAX_MCAST_ATTACHMENTS)?;
            let groups: BTreeSet<IpAddr> =
                self.attachments.iter().map(|&(_, group)| group).collect();
            if !groups.contains(&gid.to_ip()) {
                check_quota("multicast groups", groups.len(), MAX_MCAST_GROUPS)?;
            }
            ctx.nics[found.nic].attach_mcast(found.qpn, gid.to_ip())?;
            self.attachments.insert(attachment);
        }
        Ok(Reply::Done.into())
    }

    pub(crate) fn detach_mcast(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        qp: QpHandle,
        gid: Gid,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.qps, "queue pair", qp.0)?;
        ctx.nics[found.nic].detach_mcast(found.qpn, gid.to_ip())?;
        self.attachments.remove(&(qp.0, gid.to_ip()));
        Ok(Reply::Done.into())
    }
}

impl Nic {
    /// Attaches a QP to a group; with the group's first, the port joins it.
    fn attach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ControlError> {
        let is_first = self.device.attach_mcast(qpn, group).map_err(refuse_mcast)?;
        if is_first && let Err(error) = self.join(group) {
            let undone = self.device.detach_mcast(qpn, group);
            debug_assert!(undone.is_ok(), "{undone:?}");
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
            return Err(error).or_refuse(errno, &format!("gid {group}: the port cannot join"));
        }
        Ok(())
    }

    /// Detaches a QP from a group; with the group's last, the port leaves it.
    fn detach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ControlError> {
        self.device.detach_mcast(qpn, group).map_err(refuse_mcast)?;
        self.leave_unused_groups();
        Ok(())
    }
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
