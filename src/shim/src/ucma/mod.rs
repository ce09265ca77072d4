//! The kernel's connection manager, `/dev/infiniband/rdma_cm`, as far as stock librdmacm sees it.
//!
//! To open it is to make an event channel, and the program gets the read end of the channel's
//! pipe, which holds a byte whenever events wait: so `poll`, `epoll`, `O_NONBLOCK` and signals mean
//! what they mean for the device, and nobody has to stand in for it there.
//!
//! Data takes one way: [`Channel::write`] gets the bytes of a command; [`command`] decodes it,
//! [`channel`] does it, by requests to the daemon, and [`reply`] lays the answer out for the
//! program. All but [`channel`] is pure. A command that asks for an event waits first, and that is
//! done where no lock is held: in the hook, by reading the pipe.
//!
//! - [`abi`]: the kernel's structures. [`address`]: socket addresses, as they lie in them.
//! - [`option`]: what options mean.
//!
//! An address of InfiniBand's own family is refused with `EINVAL`, as by a kernel without it:
//! librdmacm tries one at its start, and uses the commands for IP addresses from then on.

mod abi;
mod address;
mod channel;
mod command;
mod failures;
mod option;
mod reply;

pub(crate) use channel::{Channel, Done};
