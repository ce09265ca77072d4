//! What RDMA is for: known algorithms as short programs on [`urxe_verbs`].
//!
//! | module | |
//! |---|---|
//! | [`rdmc`] | a large object to many nodes: sequential send, chain, binomial tree and pipeline |
//! | [`cluster`], [`connect`] | what they stand on: processes that meet, and are connected |
//!
//! The algorithms are apart from the verbs, so that tests run them from a seed, without a network.

pub mod cluster;
pub mod connect;
pub mod error;
pub mod rdmc;
