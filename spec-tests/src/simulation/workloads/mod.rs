//! Programs that post work and check every completion.
//!
//! | module | |
//! | --- | --- |
//! | [`rc`] | both ends of an RC connection, each carrying out a plan |
//! | [`datagram`] | programs whose messages may be lost: UC, UD, groups, SRQs |
//! | [`cm`] | programs that connect through connection managers, and are killed |
//! | [`traffic`] | a world with such programs in it that are running |

pub mod cm;
pub mod datagram;
pub mod rc;
pub mod traffic;
