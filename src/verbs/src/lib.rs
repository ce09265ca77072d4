//! RDMA for Rust programs, through [`urxed`](https://docs.rs/urxe-daemon): verbs without a NIC.
//!
//! `urxed` is a RoCEv2 network card in user space. This library is how a Rust program uses one:
//! the objects, the rules and the names are those of the verbs (`libibverbs`), in Rust's terms.
//! Data paths go through memory shared with the daemon: posting and polling are a few dozen
//! nanoseconds and no system call.
//!
//! # A first program
//!
//! Two queue pairs of one program, connected to each other; the first writes into memory of the
//! second. Over a network it is the same, with the [`QpEndpoint`]s and the [`RemoteBuf`] carried
//! from one program to the other (the example `ping_pong` does so over TCP).
//!
//! ```no_run
//! use urxe_verbs::{Access, Context, OpenOptions, QpInit, SendWr, Wc};
//!
//! # fn main() -> Result<(), urxe_verbs::Error> {
//! let context = Context::open(&OpenOptions::new())?;
//! let pd = context.alloc_pd()?;
//! let channel = context.create_comp_channel()?;
//! let cq = context.create_cq(64, Some(&channel))?;
//!
//! // Memory that work requests may name; the target is open to the peer.
//! let source = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//! let target = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! source.write_at(0, b"hello")?;
//!
//! // Each side tells the other its endpoint, and what it may write to.
//! let near = pd.create_qp(&QpInit::new(&cq))?;
//! let far = pd.create_qp(&QpInit::new(&cq))?;
//! near.connect(&far.endpoint()?, Access::default())?;
//! far.connect(&near.endpoint()?, Access::REMOTE_WRITE)?;
//! let there = target.remote_buf(..)?;
//!
//! near.post_send(&[SendWr::write(1, &[source.sge(..5)?], there).signaled()])?;
//! let mut wcs = [Wc::default(); 4];
//! let count = cq.wait(&mut wcs, None)?;
//! for wc in &wcs[..count] {
//!     wc.check()?;
//! }
//!
//! let mut text = [0; 5];
//! target.read_at(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # In tests
//!
//! A test needs no daemon installed: with `urxe-daemon` among its crate's `dev-dependencies` it has
//! one of its own, on an address that is free. This runs on any machine, and needs no root:
//!
//! ```
//! use urxe_daemon::testing::TestDaemon;
//! use urxe_verbs::{Access, Context, OpenOptions, QpInit, SendWr, Wc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let daemon = TestDaemon::start(1)?;
//! let context = Context::open(&OpenOptions::new().socket(daemon.socket()))?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16, None)?;
//! let mr = pd.alloc_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let (near, far) = (pd.create_qp(&QpInit::new(&cq))?, pd.create_qp(&QpInit::new(&cq))?);
//! near.connect(&far.endpoint()?, Access::default())?;
//! far.connect(&near.endpoint()?, Access::REMOTE_WRITE)?;
//! mr.write_at(0, b"hello")?;
//! near.post_send(&[SendWr::write(1, &[mr.sge(..5)?], mr.remote_buf(32..)?).signaled()])?;
//! let mut wcs = [Wc::default(); 1];
//! while cq.poll(&mut wcs)? == 0 {}
//! wcs[0].check()?;
//! let mut text = [0; 5];
//! mr.read_at(32, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # By address
//!
//! Two programs that share nothing but an IP network meet through the connection manager, [`cm`]:
//! one listens at an address and a port, the other connects its queue pair to them, and the peer
//! may be any program that uses librdmacm, on any NIC.
//!
//! ```no_run
//! use std::time::Duration;
//! use urxe_verbs::cm::ConnParam;
//! use urxe_verbs::{Context, Error, Qp};
//!
//! const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));
//!
//! /// Takes the first who comes.
//! fn serve(context: &Context, qp: &Qp) -> Result<(), Error> {
//!     let channel = context.create_event_channel()?;
//!     let listener = channel.listen("0.0.0.0:7471".parse().unwrap(), 10)?;
//!     let Some(request) = listener.wait(TIMEOUT)? else { return Ok(()) };
//!     let connection = request.accept(qp, &ConnParam::default())?.wait_established(TIMEOUT)?;
//!     // Receives and sends go here.
//!     connection.wait_disconnected(None)?;
//!     Ok(())
//! }
//!
//! /// Connects to it.
//! fn visit(context: &Context, qp: &Qp) -> Result<(), Error> {
//!     let channel = context.create_event_channel()?;
//!     let to = "10.0.0.1:7471".parse().unwrap();
//!     let connection =
//!         channel.connect(to, qp, &ConnParam::default())?.wait_established(TIMEOUT)?;
//!     // The queue pair is in RTS.
//!     connection.disconnect()
//! }
//! ```
//!
//! # The objects
//!
//! | verbs | here | made by |
//! |---|---|---|
//! | `ibv_context` | [`Context`] | [`Context::open`] |
//! | `ibv_pd` | [`Pd`] | [`Context::alloc_pd`] |
//! | `ibv_mr` | [`Mr`] | [`Pd::alloc_mr`], [`Pd::reg_mr`] |
//! | `ibv_comp_channel` | [`CompChannel`] | [`Context::create_comp_channel`] |
//! | `ibv_cq` | [`Cq`] | [`Context::create_cq`] |
//! | `ibv_srq` | [`Srq`] | [`Pd::create_srq`] |
//! | `ibv_qp` | [`Qp`] | [`Pd::create_qp`] |
//! | `ibv_ah` | [`Ah`] | [`Pd::create_ah`], [`Pd::create_ah_from_wc`] |
//! | `ibv_mw` | [`Mw`] | [`Pd::alloc_mw`] |
//! | `ibv_sge`, `ibv_send_wr`, `ibv_recv_wr` | [`Sge`], [`SendWr`], [`RecvWr`] | their functions |
//! | `ibv_wc` | [`Wc`] | [`Cq::poll`], [`Cq::wait`] |
//! | `ibv_async_event` | [`AsyncEvent`] | [`Context::async_event`] |
//! | `rdma_event_channel`, `rdma_cm_id` | [`cm`] | [`Context::create_event_channel`] |
//!
//! All objects are handles that can be cloned. Each keeps alive what it was made from, so they
//! can be dropped in any order; the object is destroyed in the daemon when its last handle goes.
//! When the program ends, in whatever way, the daemon frees everything that it had.
//!
//! # Memory
//!
//! [`Pd::alloc_mr`] makes memory that the program and the daemon share. It is the fast way, since
//! the daemon reaches it by loads and stores, and it needs no `unsafe`: the program copies in and
//! out, or uses atomics, because peers may write there at any time ([`Mr`] says more).
//! [`Pd::reg_mr`] registers any memory that the program has, on the promise that it stays; the
//! daemon then needs a system call for each piece.
//!
//! What is small needs no memory region at all: [`Inline`] data is copied into the work request.
//!
//! A memory region opens all of itself to every peer, for as long as it lives. A [memory
//! window](Mw) opens a part of it, to every peer or to one, and by work requests alone.
//!
//! # Transports
//!
//! | | [RC](QpType::Rc) | [UC](QpType::Uc) | [UD](QpType::Ud) |
//! |---|---|---|---|
//! | SEND, SEND with immediate | yes | yes | yes, one packet long |
//! | WRITE, WRITE with immediate | yes | yes | |
//! | SEND with invalidate, READ, atomics, ATOMIC WRITE, FLUSH | yes | | |
//! | to whom | its peer | its peer | anybody, multicast groups |
//! | what is lost | is sent again | is lost, as a whole message | is lost |
//!
//! [`Qp::connect`] and [`Qp::start_datagrams`] make a queue pair ready, as [`Qp`] shows; or [`cm`]
//! does. Receives can be shared between any number of queue pairs: [`Srq`].
//!
//! # Work requests and completions
//!
//! [`Qp::post_send`] and [`Qp::post_recv`] take lists. If one of the list cannot be posted,
//! those before it are, and [`PostError`] says which it was: `bad_wr`, that is. A send completes
//! in the completion queue if it was [`signaled`](SendWr::signaled), or went wrong; a receive
//! always does. Places in a queue become free as the oldest work requests end, whether they are
//! signaled or not; until then the queue is [full](PostReason::QueueFull).
//!
//! A [`Wc`] whose [`status`](Wc::status) is not success says why; [`Wc::check`] makes an error of
//! it. The queue pair is then in the error state, and everything behind is flushed, until it goes
//! through [`Qp::to_reset`] and is connected anew.
//!
//! # Waiting
//!
//! A program in a hurry calls [`Cq::poll`] in a loop, with a [`PollBackoff`] for when there is
//! nothing. One that would rather sleep makes the completion queue with a [`CompChannel`] and calls
//! [`Cq::wait`]. One that waits for many things gives the channel's descriptor to `poll` or
//! `epoll`: [`CompChannel`] tells the order of steps in which no wake-up is missed.
//! [`Context::async_fd`] and a [`cm::EventChannel`] can wait there too. With the feature `tokio`
//! its tasks wait: the module `asynchronous` has a completion queue, listeners and connections for
//! them.
//!
//! # Errors
//!
//! Every call returns one [`Error`], whose message is a sentence that names the parameter, its
//! value and what was expected; [`Error::errno`] is the number that C would have. What the daemon
//! refuses comes in its own words.
//!
//! When the daemon dies, every object of the context dies with it. Completions that it had made
//! can still be polled; after that every call gives [`Error::DaemonGone`] (a post, a
//! [`PostError`] that says the same), and who waits is woken. Polling notices within a
//! tenth of a second of polling in vain; who looks only at memory that a peer writes to, never.
//! A program goes on by opening a new context, once the next daemon is there; what it had of the
//! former can be dropped then or later. Its memory, with what peers had written, is still there.
//!
//! # Features
//!
//! - `in-process`, a default: `OpenOptions::in_process`, by which a context has its data path in
//!   the program itself. Without it (`default-features = false`) the client has half as many
//!   dependencies, and none of the crates that speak RoCEv2.
//! - `tokio`: the module `asynchronous`.
//!
//! # Threads and processes
//!
//! Every object can be shared between threads. A queue pair's two queues and a completion queue
//! each have a lock of their own, held for the copying of a list; without contention it takes
//! less than 10 ns.
//!
//! After a `fork` the objects belong to the parent. In the child every call gives
//! [`Error::Forked`] and changes nothing; it can open a context of its own. (The kernel tells the
//! two apart, so no call of `fork`, however hidden, is overlooked.) The memory of
//! [`Pd::alloc_mr`] is shared with a child, not copied; the child holds the connection open until
//! it ends or calls `exec`.

// The library is what strangers read: here each field has its sentence too.
#![warn(missing_docs)]

mod ah;
mod async_event;
#[cfg(feature = "tokio")]
pub mod asynchronous;
mod attr;
mod causes;
pub mod cm;
mod comp_channel;
mod context;
mod cq;
mod endpoint;
mod error;
mod event_pipe;
mod grh;
mod inbox;
mod mr;
mod mw;
mod pd;
mod poll_backoff;
mod qp;
mod session;
mod srq;
mod wc;
mod wr;

pub use ah::Ah;
pub use async_event::AsyncEvent;
pub use attr::{InitAttr, QpInit, RtrAttr, RtsAttr, SrqInit};
pub use comp_channel::CompChannel;
pub use context::{Context, OpenOptions, devices};
pub use cq::Cq;
pub use endpoint::{QpEndpoint, RemoteBuf};
pub use error::{Error, PostError, PostReason, WcError};
pub use grh::Grh;
pub use mr::Mr;
pub use mw::{BindInfo, Mw};
pub use pd::Pd;
pub use poll_backoff::PollBackoff;
pub use qp::{MULTICAST_QPN, Qp};
pub use srq::Srq;
pub use urxe_shm::NoDaemon;
pub use urxe_shm::control::{
    BoundTo, DeviceAttr, DeviceInfo, OdpCaps, PortAttr, QpCaps, QpQueried, Resource,
    ResourceDetail, ResourceKind, SrqAttr,
};
pub use urxe_types::{
    Access, AddressVector, EntryError, FlushPlacement, Gid, Lkey, MwType, PathMtu, Psn, Qkey,
    QpAttr, QpState, QpType, Qpn, Sge, WcOpcode, WcStatus,
};
pub use wc::Wc;
pub use wr::{Inline, Payload, RecvWr, SendWr};
