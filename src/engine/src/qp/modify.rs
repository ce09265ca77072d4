//! `modify_qp`: checks all of a change, then makes it.

use super::common::Common;
use super::parameters::{Parameters, RequesterParameters, ResponderParameters, Route};
use super::state::Attribute::*;
use super::state::{Attribute, transition};
use crate::attr::DeviceConfig;
use crate::flow::{FlowError, flow_to_host};
use crate::limits::MAX_RD_ATOMIC;
use crate::tuning::WireForm;
use urxe_types::{AddressVector, Psn, QpAttr, QpState, QpType, Qpn, RnrTimer, TimeCode};
use urxe_wire::{Flow, flow_source_port};

/// Why a change was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyQpError {
    /// There is no such QP.
    #[error("QP {0}: does not exist")]
    NoSuchQp(Qpn),
    /// `cur_state` is not the state that the QP is in.
    #[error("cur_state {}: expected {}, in which the QP is", .given.name(), .actual.name())]
    WrongCurrentState {
        /// What the caller believed.
        given: QpState,
        /// What is.
        actual: QpState,
    },
    /// The states do not follow each other.
    #[error(
        "qp_state {}: cannot be reached from {}, expected the way RESET, INIT, RTR, RTS",
        .to.name(), .from.name()
    )]
    NoTransition {
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// An attribute that the change needs is missing.
    #[error(
        "{}: must be given to go from {} to {}, expected {} in attr_mask",
        .attribute.name(), .from.name(), .to.name(), .attribute.mask()
    )]
    Missing {
        attribute: Attribute,
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// An attribute that the change does not allow is given.
    #[error(
        "{}: cannot be changed when going from {} to {}, expected attr_mask without {}",
        .attribute.name(), .from.name(), .to.name(), .attribute.mask()
    )]
    NotAllowed {
        attribute: Attribute,
        /// The QP's state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// A value outside of its range.
    #[error("{} {value}: {}", .attribute.name(), range(*min, *max))]
    Range {
        attribute: Attribute,
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
        path_mtu: urxe_types::PathMtu,
        /// The largest the link carries.
        active: urxe_types::PathMtu,
    },
    /// The path leads nowhere.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

/// What a value should have been.
fn range(min: u64, max: u64) -> String {
    if min == max {
        format!("must be {min}, the only one")
    } else {
        format!("must be {min} to {max}")
    }
}

/// A change that was checked: nothing can refuse it any more.
pub(crate) struct Change {
    pub(super) to: QpState,
    /// The attributes after it, as they were set.
    pub(super) attr: QpAttr,
    pub(super) step: Step,
}

/// What a change does to the service.
pub(super) enum Step {
    /// Nothing, or it is forgotten.
    None,
    /// The responder starts; RC and UC expect this PSN.
    StartResponder(Parameters, Psn),
    /// The requester starts, with this PSN.
    StartRequester(Parameters, Psn),
    /// The service goes on with other parameters.
    Update(Parameters),
}

impl Common {
    /// Checks a change. `path` is the way to the peer so far.
    pub(super) fn check_modify(
        &self,
        config: &DeviceConfig,
        route: Option<&Route>,
        change: &QpAttr,
    ) -> Result<Change, ModifyQpError> {
        let from = self.state;
        // STATE-020
        if let Some(given) = change.cur_state.filter(|&given| given != from) {
            return Err(ModifyQpError::WrongCurrentState { given, actual: from });
        }
        let to = change.state.unwrap_or(from);
        check_attributes(self.init.qp_type, from, to, change)?;
        check_ranges(change)?;
        // STATE-018: the QP's own stay as they are until nothing can refuse the change.
        let mut attr = self.attr.clone();
        merge(&mut attr, change);
        let missing = |attribute| ModifyQpError::Missing { attribute, from, to };
        let step = match (from, to) {
            (_, QpState::Reset | QpState::Init | QpState::Err) => Step::None,
            (QpState::Init, _) => {
                let rq_psn = match self.init.qp_type {
                    QpType::Rc | QpType::Uc => attr.rq_psn.ok_or(missing(RqPsn))?,
                    QpType::Ud => Psn::default(),
                };
                Step::StartResponder(self.resolve(config, route, change, &attr, to)?, rq_psn)
            }
            (QpState::Rtr, QpState::Rts) => {
                let sq_psn = attr.sq_psn.ok_or(missing(SqPsn))?;
                Step::StartRequester(self.resolve(config, route, change, &attr, to)?, sq_psn)
            }
            _ => Step::Update(self.resolve(config, route, change, &attr, to)?),
        };
        Ok(Change { to, attr, step })
    }

    /// What the QP works with after the change. `attr` has all that was set.
    fn resolve(
        &self,
        config: &DeviceConfig,
        route: Option<&Route>,
        change: &QpAttr,
        attr: &QpAttr,
        to: QpState,
    ) -> Result<Parameters, ModifyQpError> {
        let from = self.state;
        let missing = |attribute| ModifyQpError::Missing { attribute, from, to };
        let route = || match &change.av {
            Some(av) => {
                let dest_qpn = attr.dest_qpn.ok_or(missing(DestQpn))?;
                let mtu = attr.path_mtu.ok_or(missing(PathMtu))?;
                let wire = match self.init.qp_type {
                    QpType::Rc => config.tuning.wire,
                    // TRAIN-004: nobody repeats what is lost, and of a message of which a part
                    // was lost, nothing is to be taken for whole.
                    QpType::Uc | QpType::Ud => WireForm::Strict,
                };
                let flow = resolve_flow(config, self.qpn, av, dest_qpn, mtu)?;
                Ok(Route { flow, mtu: mtu.bytes() as u32, dest_qpn, wire })
            }
            // ADDR-012: what is not set again stays.
            None => route.copied().ok_or(missing(Av)),
        };
        let access = || attr.access.ok_or(missing(Access));
        let responder = || -> Result<_, ModifyQpError> {
            Ok(ResponderParameters {
                access: access()?,
                max_dest_rd_atomic: attr.max_dest_rd_atomic.ok_or(missing(MaxDestRdAtomic))?,
                min_rnr_timer: RnrTimer::new(attr.min_rnr_timer.ok_or(missing(MinRnrTimer))?),
            })
        };
        let requester = || -> Result<_, ModifyQpError> {
            let timeout = TimeCode::new(attr.timeout.ok_or(missing(Timeout))?);
            Ok(RequesterParameters {
                max_rd_atomic: attr.max_rd_atomic.ok_or(missing(MaxRdAtomic))?,
                ack_timeout: timeout.ack_timeout(),
                retry_cnt: match attr.retry_cnt.ok_or(missing(RetryCnt))? {
                    _ if fault!(RetryCntSeven) => 7,
                    retries => retries.saturating_sub(u8::from(fault!(RetryCntOneLess))),
                },
                rnr_retry: attr.rnr_retry.ok_or(missing(RnrRetry))?
                    + u8::from(fault!(RnrRetryOneMore)),
            })
        };
        Ok(match self.init.qp_type {
            QpType::Rc => Parameters::Rc {
                route: route()?,
                responder: responder()?,
                requester: (to != QpState::Rtr).then(requester).transpose()?,
            },
            QpType::Uc => Parameters::Uc { route: route()?, access: access()? },
            QpType::Ud => Parameters::Ud { qkey: attr.qkey.ok_or(missing(Qkey))? },
        })
    }
}

/// The way to the peer.
fn resolve_flow(
    config: &DeviceConfig,
    qpn: Qpn,
    av: &AddressVector,
    dest_qpn: Qpn,
    path_mtu: urxe_types::PathMtu,
) -> Result<Flow, ModifyQpError> {
    let mut flow = flow_to_host(&config.gids, av)?;
    let wanted = flow_source_port(flow.flow_label, qpn, dest_qpn);
    flow.src_port = config.source_port(flow.dst, wanted);
    let active = config.active_mtu;
    // STATE-019, STATE-044
    if path_mtu > active && !config.is_local(av.dgid) {
        return Err(ModifyQpError::MtuTooLarge { path_mtu, active });
    }
    Ok(flow)
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
            // STATE-015, STATE-025
            return Err(ModifyQpError::Missing { attribute, from, to });
        }
        if set && !required && !transition.optional.contains(&attribute) {
            // STATE-016
            return Err(ModifyQpError::NotAllowed { attribute, from, to });
        }
    }
    Ok(())
}

fn check_ranges(attr: &QpAttr) -> Result<(), ModifyQpError> {
    let check = |attribute, value: Option<u64>, min: u64, max: u64| match value {
        // STATE-017
        Some(value) if value < min || value > max => {
            Err(ModifyQpError::Range { attribute, value, min, max })
        }
        _ => Ok(()),
    };
    let rd_atomic = u64::from(MAX_RD_ATOMIC);
    // STATE-034
    check(PkeyIndex, attr.pkey_index.map(u64::from), 0, 0)?;
    check(Port, attr.port.map(u64::from), 1, 1)?;
    check(MaxRdAtomic, attr.max_rd_atomic.map(u64::from), 0, rd_atomic)?;
    check(MaxDestRdAtomic, attr.max_dest_rd_atomic.map(u64::from), 0, rd_atomic)?;
    check(MinRnrTimer, attr.min_rnr_timer.map(u64::from), 0, 31)?;
    check(Timeout, attr.timeout.map(u64::from), 0, 31)?;
    check(RetryCnt, attr.retry_cnt.map(u64::from), 0, 7)?;
    check(RnrRetry, attr.rnr_retry.map(u64::from), 0, 7)
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
