//! Programs that post work and check every completion.
//!
//! | module | |
//! | --- | --- |
//! | [`rc`] | both ends of an RC connection, each carrying out a plan |
//! | [`datagram`] | programs whose messages may be lost: UC, UD, groups, SRQs |
//! | [`cm`] | programs that find each other through connection managers, and die |
//! | [`traffic`] | a world with such programs in it, all at work |

pub mod cm;
pub mod datagram;
pub mod rc;
pub mod traffic;
