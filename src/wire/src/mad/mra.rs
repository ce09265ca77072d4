//! MRA: "your message has come, its answer takes more time".

use super::CommId;
use super::layout::{at, bits, message, numbers};
use std::fmt;
use urxe_types::TimeCode;

/// What an MRA is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    Req,
    Rep,
    Lap,
    /// The code that means nothing, 3.
    Reserved,
}

numbers! {
    Received: 2, |code| {
        use Received::{Lap, Rep, Req, Reserved};
        [Req, Rep, Lap, Reserved][code as usize]
    }, |received| received as u128;
}

message! {
    /// A message receipt acknowledgement.
    Mra {
        /// The sender's number of the connection.
        local_comm_id: CommId = at(0),
        /// The receiver's number of it.
        remote_comm_id: CommId = at(4),
        /// What was received.
        received: Received = bits(8, 0..2),
        /// How much longer the answer takes.
        service_timeout: TimeCode = bits(9, 0..5),
        ..private_data = at(10),
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mra { local_comm_id, remote_comm_id, received, service_timeout, .. } = self;
        let time = service_timeout.duration();
        write!(f, "id {local_comm_id} peer {remote_comm_id} of {received:?}, {time:?} more")
    }
}
