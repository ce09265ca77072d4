//! Membership in multicast groups.

use super::channel::{ChannelInner, Subject};
use super::event::{Event, EventKind, failure};
use super::id::{Id, check_device, source};
use super::{EventChannel, UdParam};
use crate::session::unexpected;
use crate::{Error, Qp, QpType};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use urxe_shm::control::{CmEvent, CmEventKind, CmEventParam, CmPortSpace, CmReply, CmRequest};

/// A queue pair's membership in a multicast group.
///
/// Made by [`EventChannel::join_multicast`]. While it lasts, the queue pair receives what is sent
/// to the group; what it tells of the group is where to send:
///
/// ```no_run
/// # use urxe_verbs::{Error, Inline, Qp, SendWr, cm::{EventChannel, UDP_QKEY}};
/// # fn run(channel: &EventChannel, qp: &Qp) -> Result<(), Error> {
/// qp.start_datagrams(UDP_QKEY)?;
/// let group = channel.join_multicast("239.1.2.3:0".parse().unwrap(), qp)?.wait_joined(None)?;
/// let to = group.joined().unwrap();
/// let ah = qp.pd().create_ah(&to.av)?;
/// qp.post_send(&[SendWr::send(1, Inline(b"hello")).to(&ah, to.qpn, to.qkey)])?;
/// # Ok(())
/// # }
/// ```
///
/// A clone is another name for the same membership. When the last one is dropped, the group is
/// left, unless the queue pair has another membership in it.
#[derive(Clone, Debug)]
pub struct Membership(pub(super) Arc<MembershipInner>);

#[derive(Debug)]
pub(super) struct MembershipInner {
    id: Id,
    qp: Qp,
    group: SocketAddr,
    joined: Mutex<Option<UdParam>>,
}

impl Membership {
    pub(super) fn join(
        channel: &Arc<ChannelInner>,
        group: SocketAddr,
        qp: &Qp,
    ) -> Result<Membership, Error> {
        const CALL: &str = "join_multicast";
        check_device(channel, qp, None)?;
        let id = Id::create(channel, CmPortSpace::Udp, QpType::Ud)?;
        id.bind(source(&qp.context(), group)?)?;
        let qp = qp.clone();
        let inner = Arc::new(MembershipInner { id, qp, group, joined: Mutex::default() });
        let Id { handle, token, .. } = inner.id;
        inner.id.register(Subject::Membership(Arc::downgrade(&inner)));
        let request = CmRequest::JoinMulticast { id: handle, user_handle: token, group };
        match channel.raw.call(CALL, request)? {
            CmReply::Multicast(_) => Ok(Membership(inner)),
            _ => Err(unexpected(CALL)),
        }
    }

    /// Waits until the group is joined.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if it cannot be joined, or not within `timeout`; what kept the queue
    /// pair from being attached; [`Error::DaemonGone`]. The group is left, unless there is another
    /// clone.
    pub fn wait_joined(self, timeout: Option<Duration>) -> Result<Membership, Error> {
        let Id { channel, token, .. } = &self.0.id;
        channel.outcome(*token, || self.joined().is_some(), timeout)?;
        match self.joined() {
            Some(_) => Ok(self),
            None => Err(Error::Unreachable { peer: self.0.group, errno: libc::ETIMEDOUT }),
        }
    }

    /// Where to send, while the group is joined.
    pub fn joined(&self) -> Option<UdParam> {
        self.0.joined.lock().clone()
    }

    /// The queue pair that receives what is sent to the group.
    pub fn qp(&self) -> &Qp {
        &self.0.qp
    }

    /// The group.
    pub fn group(&self) -> SocketAddr {
        self.0.group
    }

    /// The channel of its events.
    pub fn channel(&self) -> EventChannel {
        EventChannel(self.0.id.channel.clone())
    }

    pub(super) fn event(self, kind: EventKind) -> Option<Event> {
        match kind {
            EventKind::Done => Some(Event::Joined(self)),
            EventKind::Failed(error) => Some(Event::MulticastFailed(self, error)),
            _ => None,
        }
    }
}

impl MembershipInner {
    /// Handles an event of the daemon. Returns what of it is for the program.
    pub(super) fn handle(&self, event: CmEvent) -> Option<EventKind> {
        match (event.kind, event.param) {
            (CmEventKind::MulticastJoin, CmEventParam::Ud(param)) => {
                if let Err(error) = self.qp.join_group(param.av.dgid) {
                    return Some(EventKind::Failed(error));
                }
                *self.joined.lock() = Some(param);
                Some(EventKind::Done)
            }
            (CmEventKind::MulticastError, param) => {
                self.detach();
                Some(EventKind::Failed(failure(self.group, CmEvent { param, ..event })))
            }
            _ => None,
        }
    }

    /// The queue pair receives nothing of the group any more.
    fn detach(&self) {
        if let Some(param) = self.joined.lock().take() {
            self.qp.leave_group(param.av.dgid);
        }
    }
}

/// Two handles are equal if they name the same membership.
impl PartialEq for Membership {
    fn eq(&self, other: &Membership) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Membership {}

impl Drop for MembershipInner {
    fn drop(&mut self) {
        self.detach();
    }
}
