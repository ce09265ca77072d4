//! The kernel's uverbs device, as far as stock rdma-core sees it.
//!
//! Data takes one way: [`Context::write`] gets the bytes of a command; [`frame`] takes its framing
//! apart, [`command`] decodes it, [`context`] does it, by requests to the daemon, and [`reply`]
//! lays the answer out for the program. All but [`context`] is pure. A doorbell leaves this way at
//! once ([`doorbells`]); [`events`] go the other way.
//!
//! - [`advise`]: the one command that comes by `ioctl`.
//! - [`flush`]: what is done of that when the daemon is gone.
//! - [`abi`]: the kernel's structures. [`method`]: which commands there are, and their lengths.
//! - [`attr`], [`device`]: the kernel's numbers for what the daemon says in ours.

pub(crate) mod abi;
mod advise;
mod attr;
mod command;
mod context;
pub(crate) mod device;
mod doorbells;
mod events;
mod flush;
mod frame;
mod method;
mod reply;
#[cfg(test)]
mod tests;

pub(crate) use attr::{ah_attr, qp_attr, qp_state};
pub(crate) use command::Registration;
pub(crate) use context::Context;
pub(crate) use events::{AsyncEvents, CompletionEvents, MAX_EVENT_LEN};
