//! Memory that the daemon shares with programs, or reaches in them.
//!
//! - [`region`]: memfds and mappings. [`arena`]: room for rings inside a session's memfd.
//!   [`session_memory`]: that memfd in one's own address space.
//! - [`process_memory`]: any other memory of a program. [`remap`]: how such memory becomes shared.
//!   [`process`]: noticing that a program has forked, whose memory is then another's.
//! - [`own_memory`]: memory of one's own process that may not be there. [`guarded_copy`]: what
//!   notices that.
//! - [`store_order`]: in which order a program sees what is written to its memory.

pub mod arena;
pub mod guarded_copy;
pub mod own_memory;
pub mod process;
pub mod process_memory;
pub mod region;
pub mod remap;
pub mod session_memory;
pub mod store_order;
