//! Verbs for Rust programs.

mod async_event;
mod attr;
mod comp_channel;
mod context;
mod cq;
mod endpoint;
mod error;
mod event_pipe;
mod fork;
mod mr;
mod pd;
mod qp;
mod session;
mod wc;
mod wr;

pub use async_event::AsyncEvent;
pub use attr::{InitAttr, QpInit, RtrAttr, RtsAttr};
pub use comp_channel::CompChannel;
pub use context::{Context, OpenOptions, devices};
pub use cq::Cq;
pub use endpoint::{QpEndpoint, RemoteBuf};
pub use error::{Error, PostError, PostReason, WcError};
pub use mr::Mr;
pub use pd::Pd;
pub use qp::Qp;
pub use urxe_shm::control::{
    Access, AddressVector, DeviceAttr, DeviceInfo, Gid, PortAttr, QpAttr, QpCaps, QpQueried,
    QpState, QpType,
};
pub use urxe_shm::layout::Sge;
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{Inline, Payload, RecvWr, SendWr};
