//! System calls that no crate wraps as we need them: the only `unsafe` of this crate.

pub(crate) mod message;
pub(crate) mod option;

pub(crate) use message::{Message, Received, Receiver, Sender};
