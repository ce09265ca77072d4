//! The names of verbs for what the engine speaks of.

use urxe_conform::agent::{Path, State, Status};
use urxe_types::{AddressVector, QpState, WcOpcode, WcStatus};

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

pub(super) fn status(status: WcStatus) -> Status {
    match status {
        WcStatus::Success => Status::Success,
        WcStatus::LocalLength => Status::LocLenErr,
        WcStatus::LocalQpOperation => Status::LocQpOpErr,
        WcStatus::LocalProtection => Status::LocProtErr,
        WcStatus::WrFlush => Status::WrFlushErr,
        WcStatus::MwBind => Status::MwBindErr,
        WcStatus::BadResponse => Status::BadRespErr,
        WcStatus::LocalAccess => Status::LocAccessErr,
        WcStatus::RemoteInvalidRequest => Status::RemInvReqErr,
        WcStatus::RemoteAccess => Status::RemAccessErr,
        WcStatus::RemoteOperation => Status::RemOpErr,
        WcStatus::RetryExceeded => Status::RetryExcErr,
        WcStatus::RnrRetryExceeded => Status::RnrRetryExcErr,
        _ => Status::Other,
    }
}

pub(super) fn opcode(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "SEND",
        WcOpcode::RdmaWrite => "RDMA_WRITE",
        WcOpcode::RdmaRead => "RDMA_READ",
        WcOpcode::CompareSwap => "COMP_SWAP",
        WcOpcode::FetchAdd => "FETCH_ADD",
        WcOpcode::BindMw => "BIND_MW",
        WcOpcode::LocalInvalidate => "LOCAL_INV",
        WcOpcode::Flush => "FLUSH",
        WcOpcode::AtomicWrite => "ATOMIC_WRITE",
        WcOpcode::Recv => "RECV",
        WcOpcode::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
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
