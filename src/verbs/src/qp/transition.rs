//! The states of a queue pair, and the ways between them.

use super::{Qp, Receives};
use crate::{
    Access, Context, Error, InitAttr, QpAttr, QpEndpoint, QpState, QpType, RtrAttr, RtsAttr,
};
use urxe_shm::control::Request;
use urxe_types::AddressVector;

/// READs and atomics that a device of urxe serves at a time on one queue pair (`max_qp_rd_atom`).
const MAX_RD_ATOMIC: u8 = 128;

impl Qp {
    /// What the peer must know to [`connect`](Self::connect) to it. The PSN was drawn at random
    /// when the queue pair was made; the GID is the first one in the port's table.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn endpoint(&self) -> Result<QpEndpoint, Error> {
        self.endpoint_at(0)
    }

    /// The same with another of the port's GIDs, for [`connect_from`](Self::connect_from).
    ///
    /// # Errors
    /// [`Error::Refused`] if the table has no such entry; [`Error::DaemonGone`].
    pub fn endpoint_at(&self, sgid_index: u8) -> Result<QpEndpoint, Error> {
        let context = self.context();
        let gid = context.query_gid(1, sgid_index.into())?;
        let mtu = context.query_port(1)?.active_mtu;
        Ok(QpEndpoint { qpn: self.qpn(), psn: self.0.psn, mtu, gid })
    }

    /// RC and UC: connects it to `remote`, which is to do the same with our
    /// [`endpoint`](Self::endpoint): RESET → INIT → RTR → RTS. The peer gets the rights `access`,
    /// where the memory region allows them too. As many READs and atomics may be under way as the
    /// device serves, which short READs need to fill a path. Everything else is as [`RtrAttr::new`]
    /// and [`RtsAttr::new`] have it, with the smaller path MTU of the two ends.
    ///
    /// Nothing is exchanged with the peer: work posted before the peer has done its part is
    /// retried until then on RC, for as long as [`RtsAttr`] says, and is lost on UC.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on UD; else as [`modify`](Self::modify). A step that failed
    /// leaves the queue pair where the last one led; [`to_reset`](Self::to_reset) begins anew.
    pub fn connect(&self, remote: &QpEndpoint, access: Access) -> Result<(), Error> {
        self.connect_from(0, remote, access)
    }

    /// The same from another of the port's GIDs; the peer must have been given the
    /// [`endpoint_at`](Self::endpoint_at) of the same index.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_from(
        &self,
        sgid_index: u8,
        remote: &QpEndpoint,
        access: Access,
    ) -> Result<(), Error> {
        if self.0.qp_type == QpType::Ud {
            return Err(self.wrong_transport("RC or UC: UD has no connections"));
        }
        let local = self.endpoint_at(sgid_index)?;
        self.to_init(InitAttr::new(access))?;
        self.to_rtr(RtrAttr {
            path_mtu: Some(local.mtu.min(remote.mtu)),
            av: AddressVector { sgid_index, ..AddressVector::to(remote.gid) },
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            ..RtrAttr::new(remote.qpn, remote.psn, remote.gid)
        })?;
        self.to_rts(RtsAttr { max_rd_atomic: MAX_RD_ATOMIC, ..RtsAttr::new(local.psn) })
    }

    /// UD: makes it ready to receive datagrams that carry `qkey`, and to send any: RESET → INIT →
    /// RTR → RTS.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on RC and UC; else as [`modify`](Self::modify).
    pub fn start_datagrams(&self, qkey: u32) -> Result<(), Error> {
        if self.0.qp_type != QpType::Ud {
            return Err(self.wrong_transport("UD"));
        }
        self.to_init(InitAttr::datagram(qkey))?;
        self.to_rtr_datagram()?;
        self.to_rts(RtsAttr::new(self.0.psn))
    }

    /// RESET → INIT: receives may be posted.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_init(&self, attr: InitAttr) -> Result<(), Error> {
        self.modify(&attr.of(self.0.qp_type))
    }

    /// RC and UC: INIT → RTR: the peer's requests are answered.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_rtr(&self, attr: RtrAttr) -> Result<(), Error> {
        let mut all = attr.of(self.0.qp_type)?;
        if all.path_mtu.is_none() {
            all.path_mtu = Some(self.context().query_port(1)?.active_mtu);
        }
        self.modify(&all)
    }

    /// UD: INIT → RTR: datagrams are received.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_rtr_datagram(&self) -> Result<(), Error> {
        self.modify(&state_alone(QpState::Rtr))
    }

    /// RTR → RTS: sends may be posted. Of the attributes, UC and UD have only the PSN.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_rts(&self, attr: RtsAttr) -> Result<(), Error> {
        self.modify(&attr.of(self.0.qp_type)?)
    }

    /// RTS → SQD: what has begun ends, nothing new begins. When that is so,
    /// [`AsyncEvent::SqDrained`](crate::AsyncEvent::SqDrained) says it.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_sqd(&self) -> Result<(), Error> {
        self.modify(&state_alone(QpState::Sqd))
    }

    /// SQD or SQE → RTS: sends go on. UC and UD queue pairs go to SQE by themselves when one of
    /// their sends fails; they go on receiving there, while sends are flushed.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn resume(&self) -> Result<(), Error> {
        self.modify(&state_alone(QpState::Rts))
    }

    /// Any state → ERR: every work request, posted before or later, is flushed.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_error(&self) -> Result<(), Error> {
        self.modify(&state_alone(QpState::Err))
    }

    /// [`to_error`](Self::to_error), unless it is in RESET, where nothing can be outstanding.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        // Before the lock: in a fork, another thread of the parent may hold it for ever.
        self.session().check_process()?;
        match self.is_reset() {
            true => Ok(()),
            false => self.to_error(),
        }
    }

    /// Any state → RESET: as it was when it was made. Work requests that are outstanding are
    /// forgotten, without a completion; completions already in a queue stay there.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_reset(&self) -> Result<(), Error> {
        self.modify(&state_alone(QpState::Reset))
    }

    /// Changes the state and attributes: `ibv_modify_qp`. What is `Some` is changed.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such step from the present state, if it lacks an
    /// attribute or has one too many, or if a value is out of range; then nothing has changed.
    /// [`Error::DaemonGone`].
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        let session = self.session();
        // Before the locks: in a fork, another thread of the parent may hold them for ever.
        session.check_process()?;
        let request = Request::ModifyQp { qp: self.0.handle, attr: attr.clone() };
        let Some(state) = attr.state else { return session.order("modify_qp", &request) };
        let mut send_queue = self.0.send_queue.lock();
        let mut recv_queue = match &self.0.receives {
            Receives::Own(queue) => Some(queue.lock()),
            Receives::Shared(_) => None,
        };
        session.order("modify_qp", &request)?;
        send_queue.state = state;
        if state == QpState::Reset {
            // The daemon has rewound both rings.
            send_queue.end.reset();
        }
        if let Some(recv_queue) = &mut recv_queue {
            recv_queue.state = state;
            if state == QpState::Reset {
                recv_queue.end.reset();
            }
        }
        Ok(())
    }

    /// Whether the last transition led to RESET, or there was none.
    pub(crate) fn is_reset(&self) -> bool {
        self.0.send_queue.lock().state == QpState::Reset
    }

    pub(crate) fn context(&self) -> Context {
        Context(self.0.pd.context.clone())
    }

    fn wrong_transport(&self, expected: &str) -> Error {
        let transport = self.0.qp_type.name();
        Error::invalid("transport of the queue pair", transport, expected)
    }
}

/// A step that sets nothing else.
fn state_alone(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}
