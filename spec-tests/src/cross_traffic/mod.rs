//! Others on the network: senders that do not know RoCE as we speak it, and want a share of a line.
//!
//! Each is a state machine without a clock, and an endpoint around it that sends packets of
//! [`PAYLOAD`] bytes without end. What is lost is not sent again: how fast a flow goes is all that
//! matters here, as for DCCP's TCP-like congestion control (RFC 4341).
//!
//! | module | |
//! | --- | --- |
//! | [`dcqcn`] | the rate of a DCQCN sender |
//! | [`window`] | the windows of Reno and CUBIC |
//! | [`packet`] | what goes over the network |
//! | [`endpoint`] | senders and the receivers that answer them |

pub mod dcqcn;
pub mod endpoint;
pub mod packet;
pub mod window;

/// Bytes that a data packet is worth: as many as a RoCE packet of path MTU 1024.
pub const PAYLOAD: usize = 1024;
