//! Every bound of the connection manager, with its reason.

/// Listeners of one connection manager.
pub const MAX_LISTENERS: usize = 1 << 16;

/// Connections of one connection manager that a program still knows of, requests included.
pub const MAX_CONNECTIONS: usize = 1 << 20;

/// Requests of one connection manager that no program has answered yet, besides one that each
/// listener may always have waiting. Each costs about a kilobyte, and anybody can send them.
pub const MAX_REQUESTS: usize = 4096;

/// Connections of one connection manager that no program knows of any more, and that are kept for
/// what may still arrive. Beyond that the oldest are forgotten early: they protect against late
/// packets, and must not keep new connections out.
pub const MAX_LINGERING: usize = 1 << 14;

/// Messages of a connection manager that may wait to be fetched; what is more is lost, and sent
/// again by those who need it.
pub const MAX_OUTGOING: usize = 1024;

/// The longest that a peer's MRA or its local ACK timeout, both of which it may choose freely, make
/// us wait, as a code: 69 s, which is what the kernel asks for.
pub const MAX_PEER_TIME: u8 = 24;
