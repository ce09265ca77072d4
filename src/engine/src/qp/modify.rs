//! `modify_qp`: checks all of a change, then makes it.

use super::requester::Requester;
use super::responder::Responder;
use super::retry::Retry;
use super::send_queue::SendQueue;
use super::state::{Attribute, transition};
use super::{Failure, Path, Qp};
use crate::attr::DeviceConfig;
use crate::limits::MAX_RD_ATOMIC;
use crate::path::{PathError, flow_to_host};
use urxe_types::{PathMtu, Psn, QpAttr, QpState, QpType, Qpn};
use urxe_wire::flow_source_port;

/// Why a change was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyQpError {
    /// There is no such QP.
    #[error("QP {0}: does not exist")]
    NoSuchQp(Qpn),
    /// `cur_state` is not the state that the QP is in.
    #[error("cur_state {given:?}: the QP is in {actual:?}")]
    WrongCurrentState {
        /// What the caller believed.
        given: QpState,
        /// What is.
        actual: QpState,
    },
    /// The states do not follow each other.
    #[error("qp_state {to:?}: cannot be reached from {from:?}; the way is RESET, INIT, RTR, RTS")]
    NoTransition {
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// An attribute that the change needs is missing.
    #[error("{}: must be given to go from {from:?} to {to:?}", .attribute.name())]
    Missing {
        /// The attribute.
        attribute: Attribute,
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// An attribute that the change does not allow is given.
    #[error("{}: cannot be changed when going from {from:?} to {to:?}", .attribute.name())]
    NotAllowed {
        /// The attribute.
        attribute: Attribute,
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// A value outside of its range.
    #[error("{} {value}: must be {min} to {max}", .attribute.name())]
    Range {
        /// The attribute.
        attribute: Attribute,
        /// Its value.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The path MTU is larger than the link carries, and the peer is another machine's.
    #[error(
        "path_mtu {}: the way to the peer is over the device's link, which carries at most {}",
        .path_mtu.bytes(), .active.bytes()
    )]
    MtuTooLarge {
        /// The path MTU asked for.
        path_mtu: PathMtu,
        /// The largest the link carries.
        active: PathMtu,
    },
    /// The path leads nowhere.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A change that was checked, and that nothing can refuse any more.
pub(crate) struct Change {
    to: QpState,
    /// The attributes after it, as they were set.
    attr: QpAttr,
    path: Option<Path>,
}

impl Qp {
    /// Checks a change.
    pub(crate) fn check_modify(
        &self,
        config: &DeviceConfig,
        attr: &QpAttr,
    ) -> Result<Change, ModifyQpError> {
        let from = self.state;
        let qp_type = self.init.qp_type;
        if let Some(given) = attr.cur_state.filter(|&given| given != from) {
            return Err(ModifyQpError::WrongCurrentState { given, actual: from });
        }
        let to = attr.state.unwrap_or(from);
        check_attributes(qp_type, from, to, attr)?;
        check_ranges(attr)?;
        let path = self.resolve_path(config, to, attr)?;
        let mut merged = self.attr.clone();
        merge(&mut merged, attr);
        Ok(Change { to, attr: merged, path })
    }

    /// Makes a change.
    pub(super) fn apply(&mut self, config: &DeviceConfig, change: Change) {
        let Change { to, attr, path } = change;
        let from = self.state;
        match to {
            QpState::Reset => {
                *self = Qp {
                    counters: std::mem::take(&mut self.counters),
                    ..Qp::new(self.qpn, self.init.clone(), self.recv_pd)
                };
                return;
            }
            QpState::Err => {
                self.failure = Some(Failure::Requested);
                return;
            }
            _ => {}
        }
        self.attr = attr;
        self.path = path;
        self.state = to;
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                self.responder = Responder::new(self.attr.rq_psn.unwrap_or(Psn::new(0)));
            }
            (QpState::Rtr, QpState::Rts) => {
                self.sq = SendQueue::new(self.attr.sq_psn.unwrap_or(Psn::new(0)));
                self.requester = Requester::default();
                self.retry = Retry::new(
                    self.attr.retry_cnt.unwrap_or(0),
                    self.attr.rnr_retry.unwrap_or(0),
                    self.mtu(config),
                );
            }
            (QpState::Rts, QpState::Sqd) => self.requester.drained = false,
            _ => {}
        }
    }

    /// The path after the change, from RTR on.
    fn resolve_path(
        &self,
        config: &DeviceConfig,
        to: QpState,
        attr: &QpAttr,
    ) -> Result<Option<Path>, ModifyQpError> {
        if matches!(to, QpState::Reset | QpState::Init | QpState::Err) {
            return Ok(None);
        }
        let mut path = self.path;
        if let Some(av) = attr.av {
            let dest_qpn = attr.dest_qpn.or(self.attr.dest_qpn).unwrap_or(Qpn::new(0));
            let mut flow = flow_to_host(&config.gids, &av)?;
            flow.src_port = config
                .source_port
                .unwrap_or_else(|| flow_source_port(flow.flow_label, self.qpn, dest_qpn));
            let mtu = attr.path_mtu.or(self.attr.path_mtu).unwrap_or(PathMtu::Mtu256);
            let is_local = config.is_local(av.dgid);
            if mtu > config.active_mtu && !is_local {
                return Err(ModifyQpError::MtuTooLarge {
                    path_mtu: mtu,
                    active: config.active_mtu,
                });
            }
            path = Some(Path { flow, mtu: mtu.bytes() as u32, dest_qpn });
        }
        Ok(path)
    }
}

fn check_attributes(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    attr: &QpAttr,
) -> Result<(), ModifyQpError> {
    let transition =
        transition(qp_type, from, to).ok_or(ModifyQpError::NoTransition { from, to })?;
    for attribute in Attribute::ALL {
        let set = attribute.is_set(attr);
        let required = transition.required.contains(&attribute);
        if required && !set {
            return Err(ModifyQpError::Missing { attribute, from, to });
        }
        if set && !required && !transition.optional.contains(&attribute) {
            return Err(ModifyQpError::NotAllowed { attribute, from, to });
        }
    }
    Ok(())
}

fn check_ranges(attr: &QpAttr) -> Result<(), ModifyQpError> {
    let check = |attribute, value: Option<u64>, min: u64, max: u64| match value {
        Some(value) if value < min || value > max => {
            Err(ModifyQpError::Range { attribute, value, min, max })
        }
        _ => Ok(()),
    };
    let rd_atomic = u64::from(MAX_RD_ATOMIC);
    check(Attribute::PkeyIndex, attr.pkey_index.map(u64::from), 0, 0)?;
    check(Attribute::Port, attr.port.map(u64::from), 1, 1)?;
    check(Attribute::MaxRdAtomic, attr.max_rd_atomic.map(u64::from), 0, rd_atomic)?;
    check(Attribute::MaxDestRdAtomic, attr.max_dest_rd_atomic.map(u64::from), 0, rd_atomic)?;
    check(Attribute::MinRnrTimer, attr.min_rnr_timer.map(u64::from), 0, 31)?;
    check(Attribute::Timeout, attr.timeout.map(u64::from), 0, 31)?;
    check(Attribute::RetryCnt, attr.retry_cnt.map(u64::from), 0, 7)?;
    check(Attribute::RnrRetry, attr.rnr_retry.map(u64::from), 0, 7)
}

fn merge(current: &mut QpAttr, change: &QpAttr) {
    fn set<T: Clone>(current: &mut Option<T>, change: &Option<T>) {
        if change.is_some() {
            current.clone_from(change);
        }
    }
    let QpAttr {
        state: _,
        cur_state: _,
        access,
        pkey_index,
        port,
        av,
        path_mtu,
        dest_qpn,
        qkey,
        rq_psn,
        sq_psn,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        timeout,
        retry_cnt,
        rnr_retry,
    } = change;
    set(&mut current.access, access);
    set(&mut current.pkey_index, pkey_index);
    set(&mut current.port, port);
    set(&mut current.av, av);
    set(&mut current.path_mtu, path_mtu);
    set(&mut current.dest_qpn, dest_qpn);
    set(&mut current.qkey, qkey);
    set(&mut current.rq_psn, rq_psn);
    set(&mut current.sq_psn, sq_psn);
    set(&mut current.max_rd_atomic, max_rd_atomic);
    set(&mut current.max_dest_rd_atomic, max_dest_rd_atomic);
    set(&mut current.min_rnr_timer, min_rnr_timer);
    set(&mut current.timeout, timeout);
    set(&mut current.retry_cnt, retry_cnt);
    set(&mut current.rnr_retry, rnr_retry);
}
