//! Connections by address: what librdmacm is to libibverbs.
//!
//! [`Qp::connect`](crate::Qp::connect) leaves it to the programs to tell each other their queue
//! pairs. The connection manager does that for them: the server listens at an IP address and a
//! port, the client connects to it, and either side may be any other RDMA-CM program on any other
//! NIC.
//!
//! ```no_run
//! use std::time::Duration;
//! use urxe_verbs::cm::ConnParam;
//! use urxe_verbs::{Access, Context, InitAttr, Inline, OpenOptions, QpInit, RecvWr, SendWr, Wc};
//!
//! const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));
//!
//! /// Waits for one client, and for one message of it.
//! fn serve(context: &Context) -> Result<Vec<u8>, urxe_verbs::Error> {
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
//!     let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//!     let channel = context.create_event_channel()?;
//!     let listener = channel.listen("0.0.0.0:7471".parse().unwrap(), 10)?;
//!     let Some(request) = listener.wait(TIMEOUT)? else { return Ok(Vec::new()) };
//!     if !request.param().private_data.starts_with(b"hello") {
//!         request.reject(b"expected hello")?;
//!         return Ok(Vec::new());
//!     }
//!     let qp = pd.create_qp(&QpInit::new(&cq))?;
//!     // A receive can be posted from INIT on: before the client can send anything.
//!     qp.to_init(InitAttr::new(Access::default()))?;
//!     qp.post_recv(&[RecvWr::new(1, &[mr.sge(..)?])])?;
//!     let connection = request.accept(&qp, &ConnParam::default())?.wait_established(TIMEOUT)?;
//!     let mut wc = [Wc::default()];
//!     while cq.poll(&mut wc)? == 0 {}
//!     let mut message = vec![0; wc[0].check()?.byte_len as usize];
//!     mr.read_at(0, &mut message)?;
//!     connection.wait_disconnected(TIMEOUT)?;
//!     Ok(message)
//! }
//!
//! /// Connects, and sends a message.
//! fn send(context: &Context, message: &[u8]) -> Result<(), urxe_verbs::Error> {
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
//!     let qp = pd.create_qp(&QpInit::new(&cq))?;
//!     let channel = context.create_event_channel()?;
//!     let param = ConnParam { private_data: b"hello".to_vec(), ..ConnParam::default() };
//!     let to = "10.0.0.1:7471".parse().unwrap();
//!     let connection = channel.connect(to, &qp, &param)?.wait_established(TIMEOUT)?;
//!     qp.post_send(&[SendWr::send(1, Inline(message)).signaled()])?;
//!     let mut wc = [Wc::default()];
//!     while cq.poll(&mut wc)? == 0 {}
//!     wc[0].check()?;
//!     connection.disconnect()
//! }
//! # let context = Context::open(&OpenOptions::new())?;
//! # serve(&context)?;
//! # send(&context, b"message")?;
//! # Ok::<(), urxe_verbs::Error>(())
//! ```
//!
//! # The objects
//!
//! | librdmacm | here | made by |
//! |---|---|---|
//! | `rdma_event_channel` | [`EventChannel`] | [`Context::create_event_channel`] |
//! | `rdma_cm_id` that listens | [`Listener`] | [`EventChannel::listen`] |
//! | | [`ServiceListener`] | [`EventChannel::listen_for_datagrams`] |
//! | a request of a peer | [`ConnectRequest`] | [`Listener::wait`] |
//! | | [`ServiceRequest`] | [`ServiceListener::wait`] |
//! | `rdma_cm_id` that connects | [`Connection`] | [`EventChannel::connect`] |
//! | and that accepts | [`Connection`] | [`ConnectRequest::accept`] |
//! | `rdma_cm_id` with datagrams | [`Service`] | [`EventChannel::find_service`] |
//! | its membership in a group | [`Membership`] | [`EventChannel::join_multicast`] |
//! | `rdma_conn_param` | [`ConnParam`] | the program |
//! | `rdma_ud_param` | [`UdParam`] | [`Service::wait_found`], [`Membership::joined`] |
//! | `rdma_cm_event` | [`Event`] | [`EventChannel::next_event`] |
//!
//! [`Context::create_event_channel`]: crate::Context::create_event_channel
//!
//! Their handles can be cloned, and what they stand for ends when the last one is dropped: a
//! connection is closed, a request that nobody answered refused, a group left.
//!
//! # Steps that are taken by themselves
//!
//! Finding address and route, taking the queue pair through INIT, RTR and RTS at the right moment,
//! confirming the peer's acceptance, answering its disconnect: the library does all that, so a
//! program hears only of what it must decide. What answers an event it does when that is read: a
//! connection comes about while somebody waits for it, or for events of its channel. A queue pair
//! in RESET is opened to the peer for WRITE, and for READ and atomics if
//! [`ConnParam::responder_resources`] is not 0, wherever the memory region allows them; one that
//! the program took to INIT itself keeps the rights that it was given there, and may have
//! receives.
//!
//! # Waiting
//!
//! No call waits but those that have a timeout: they wait for what happens to their own object, and
//! leave what happens to others of the channel to whoever asks for it. A program that serves many
//! connections in one thread calls [`EventChannel::next_event`] instead; together with other
//! descriptors, or in an asynchronous runtime, it waits for the channel's descriptor to become
//! readable, then calls [`EventChannel::try_next_event`] until there is nothing more:
//!
//! ```no_run
//! # use urxe_verbs::{Context, Error, Qp};
//! # use urxe_verbs::cm::{ConnParam, Event, EventChannel};
//! # use std::collections::HashMap;
//! # fn new_qp() -> Result<Qp, Error> { unimplemented!() }
//! # fn wait_readable(_channel: &EventChannel) {}
//! # fn run(channel: &EventChannel) -> Result<(), Error> {
//! let listener = channel.listen("[::]:7471".parse().unwrap(), 0)?;
//! let mut connections = HashMap::new();
//! loop {
//!     wait_readable(channel);
//!     while let Some(event) = channel.try_next_event()? {
//!         match event {
//!             Event::ConnectRequest(request) => {
//!                 let connection = request.accept(&new_qp()?, &ConnParam::default())?;
//!                 connections.insert(connection.qp().qpn(), connection);
//!             }
//!             Event::Established(connection) => println!("{} is here", connection.peer_addr()),
//!             Event::ConnectFailed(connection, _) | Event::Disconnected(connection) => {
//!                 connections.remove(&connection.qp().qpn());
//!             }
//!             _ => {}
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! Each event is told once. Who waits for an object in one thread and takes all events in another
//! will miss some in either; and as a thread that waits takes events of others off the descriptor
//! to keep them, the two do not go together with a `poll` on it.
//!
//! # Datagrams
//!
//! Datagrams have no connections, but addresses and ports all the same. A server listens by
//! [`EventChannel::listen_for_datagrams`] and tells who asks which queue pair takes them; a client
//! asks by [`EventChannel::find_service`]. A group is joined by [`EventChannel::join_multicast`],
//! so that switches and other members hear of it.

#[cfg(feature = "tokio")]
pub(crate) mod asynchronous;
mod channel;
mod connection;
mod event;
mod id;
mod listener;
mod multicast;
mod param;
mod raw_channel;
mod service;

pub use channel::EventChannel;
pub use connection::Connection;
pub use event::Event;
pub use listener::{ConnectRequest, Listener, ServiceListener, ServiceRequest};
pub use multicast::Membership;
pub use param::{ConnParam, UDP_QKEY};
pub use service::Service;
pub use urxe_shm::control::{CmIdState as IdState, CmPortSpace as PortSpace, CmUdParam as UdParam};
