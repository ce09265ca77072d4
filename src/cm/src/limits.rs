//! Every bound of the connection manager, with its reason.

use urxe_types::TimeCode;

/// Listeners of one connection manager.
pub const MAX_LISTENERS: usize = 1 << 16;

/// Connections of one connection manager that programs have, requests included.
pub const MAX_CONNECTIONS: usize = 1 << 20;

/// Pending requests of one connection manager, besides one that each listener may always have. Each
/// costs about a kilobyte, and anybody can send them.
pub const MAX_REQUESTS: usize = 4096;

/// Requests of one connection manager that wait for the next listener of a port. More are refused
/// at once. Each costs 400 bytes, and anybody can send them.
pub const MAX_HELD: usize = 256;

/// Connections of one connection manager that no program has any more, kept for messages that may
/// still arrive. Beyond that the oldest are forgotten early: they must not keep new ones out.
pub const MAX_LINGERING: usize = 1 << 14;

/// Messages of a connection manager that may wait to be fetched. More are dropped, which retries
/// make up for.
pub const MAX_OUTGOING: usize = 1024;

/// The longest that the service timeout of a peer's MRA, or its local ACK timeout, makes us wait:
/// 69 s, the kernel's own service timeout.
pub const MAX_PEER_TIME: TimeCode = TimeCode::new(24);
