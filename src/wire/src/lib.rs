//! RoCEv2 between bytes and meaning.
//!
//! One file per header, each with its diagram; [`Body`] is what a packet can be, with the headers
//! that it then has; [`Packet`] reads and [`Headers`] writes them, [`icrc`] computes and checks the
//! invariant CRC together with the [outer headers](Flow) that it covers, and [`batch`] lays
//! finished datagrams into memory the way that a segmenting socket sends them. [`mad`] has the
//! messages of connection management.
//!
//! What this crate does not do: no I/O, no clock, no randomness, no state of any connection.
//!
//! ```
//! use urxe_wire::batch::{TxBatch, TxLimits};
//! use urxe_wire::icrc::{Checker, Verdict};
//! use urxe_wire::{Bth, Flow, Headers, Ident, Outer, Packet, Part, Request};
//! use urxe_types::{Extra, Psn, Qpn};
//!
//! let flow = Flow {
//!     src: [192, 0, 2, 1].into(),
//!     dst: [192, 0, 2, 2].into(),
//!     src_port: 49152,
//!     traffic_class: 0,
//!     hop_limit: 64,
//!     flow_label: 0,
//! };
//!
//! // What an engine does: headers, payload; padding and ICRC are added.
//! let mut batch = TxBatch::new(TxLimits::segmented(64), 1 << 20);
//! let bth = Bth { ack_req: true, ..Bth::new(Qpn::new(0x11), Psn::new(7)) };
//! let headers = Headers::new(bth, Request::Send(Part::Only((), Extra::None)));
//! let payload = b"hello";
//! batch.push(&flow, &headers, payload.len(), |buf| {
//!     buf.copy_from_slice(payload);
//!     Ok::<(), std::convert::Infallible>(())
//! })?;
//!
//! // What comes out at the other end of a plain UDP socket.
//! let datagram = batch.datagrams().next().unwrap();
//! let outer = Outer { flow, ident: Ident::Hidden { guess: 0 } };
//! assert_eq!(Checker::new().check(&outer, datagram.bytes), Verdict::Exact);
//! let packet = Packet::parse(datagram.bytes)?;
//! assert_eq!(packet.headers.to_string(), "RC SEND ONLY qp 0x000011 psn 0x000007 ack-req");
//! assert_eq!(packet.payload, payload);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Panics
//!
//! Whatever comes from outside never panics: every `parse` and every `from_…`, and
//! [`icrc::Checker::check`], take any bytes. What our own code hands in is held to the stated
//! contract: to write into a buffer that is too short ([`Headers::emit`]), to push into a batch
//! without room ([`batch::TxBatch::push`]) is a mistake of the caller, and panics.
//!
//! # Names
//!
//! Those of the InfiniBand Architecture Specification (its volume 1, with annex A17 for RoCEv2)
//! and of the verbs: BTH, RETH, AETH, PSN, MSN, QPN, rkey, P_Key, Q_Key.

#![deny(unsafe_code)]

use atomic::AtomicAckEth;
use ieth::Ieth;
use immdt::ImmDt;

mod aeth;
mod atomic;
pub mod batch;
mod body;
mod bth;
mod deth;
pub mod ecn;
mod feth;
mod grh;
pub mod icrc;
mod ieth;
mod immdt;
pub mod joined;
mod link_mtu;
pub mod mad;
mod opcode;
mod outer;
mod packet;
mod reth;
mod selective_ack;
mod source_port;
mod template;
#[cfg(test)]
mod testing;
mod u24;

pub use aeth::{Aeth, Credits, NakCode, Syndrome};
pub use atomic::AtomicEth;
pub use body::{Body, Datagram, Part, Request, Response, UcRequest};
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use grh::GRH_LEN;
pub use link_mtu::largest_path_mtu;
pub use opcode::{Opcode, Transport};
pub use outer::{DONT_FRAGMENT, Flow, Ident, MAX_UDP_PAYLOAD, Outer, OuterHeaders, ROCE_PORT};
pub use packet::{Headers, Packet, ParseError};
pub use reth::Reth;
pub use selective_ack::EarlyBitmap;
pub use source_port::{FIRST_SOURCE_PORT, SourcePorts, datagram_source_port, flow_source_port};
pub use template::{EmitHeaders, HeaderTemplate};
