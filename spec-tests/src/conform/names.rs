//! The names of verbs for what the engine speaks of.

use urxe_conform::agent::{Path, State};
use urxe_types::{AddressVector, QpState};

pub(super) fn vector(path: &Path) -> AddressVector {
    AddressVector {
        dgid: path.dgid,
        sgid_index: path.gid_index,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    }
}

pub(super) fn state_of(state: State) -> QpState {
    match state {
        State::Reset => QpState::Reset,
        State::Init => QpState::Init,
        State::Rtr => QpState::Rtr,
        State::Rts => QpState::Rts,
        State::Sqd => QpState::Sqd,
        State::Sqe => QpState::Sqe,
        State::Err => QpState::Err,
    }
}

pub(super) fn state_name(state: QpState) -> State {
    match state {
        QpState::Reset => State::Reset,
        QpState::Init => State::Init,
        QpState::Rtr => State::Rtr,
        QpState::Rts => State::Rts,
        QpState::Sqd => State::Sqd,
        QpState::Sqe => State::Sqe,
        QpState::Err => State::Err,
    }
}
