//! What RDMA is for: known algorithms as short programs on [`urxe_verbs`].
//!
//! | module | |
//! |---|---|
//! | [`rdmc`] | a large object to many nodes: sequential send, chain, binomial tree and pipeline |
//! | [`smc`] | small messages from all to all, in the order of each sender |
//! | [`sst`] | a table that all share, and two-phase commit by it |
//! | [`atomic`] | messages in the same order at all nodes, also when nodes die |
//! | [`kv`] | a table that clients read without the server's processor |
//! | [`sequencer`] | numbers for whoever asks, by many ways |
//! | [`lecture`] | latency and bandwidth over sizes, beside TCP |
//! | [`fabric`], [`mesh`] | what the multicasts stand on: memory that is copied to other nodes |
//! | [`application`], [`cluster`] | what all stand on: commands, and processes that meet |
//! | [`namespaces`] | a network of their own for nodes |
//! | [`connect`] | a queue pair between each two of them |
//!
//! The algorithms are apart from the verbs, so that tests run them from a seed, without a network.

pub mod application;
pub mod atomic;
pub mod cluster;
pub mod connect;
pub mod error;
pub mod fabric;
pub mod kv;
pub mod lecture;
pub mod mesh;
pub mod namespaces;
pub mod rdmc;
pub mod sequencer;
pub mod smc;
pub mod sst;

#[cfg(test)]
mod sim;
