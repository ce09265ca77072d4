//! The program on the device that does what it is told.
//!
//! What only the device's own program sees (completions, events, states, its memory) no packet
//! shows. An agent is a small verbs program there: it takes [commands](Command), one line of JSON
//! each, and answers each with one. `interop/agent` has the program; this is their vocabulary.

mod answer;
mod command;
mod tcp;
mod wr;

pub use answer::{
    Bound, Completed, Event, EventKind, Events, Hello, Key, Made, QpInfo, Status, Wc, opcode_name,
};
pub use command::{Command, Connect, ModifyQp, Path, State};
pub use tcp::TcpAgent;
pub use wr::{Operation, RecvWr, SendWr, Window, number};

use serde_json::Value;

/// A verbs program that does what it is told.
pub trait Agent {
    /// Does one thing, and returns what came of it: an object, see [`Command`] for what is in it.
    ///
    /// # Errors
    /// If the program could not, with its reason, or if it is gone.
    fn call(&mut self, command: &Command) -> Result<Value, AgentError>;
}

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The verb failed.
    #[error("{command}: {reason}")]
    Refused {
        /// The command's name.
        command: String,
        /// What the program says.
        reason: String,
        /// The number in errno, if there was one.
        errno: Option<i32>,
    },
    /// The program, or the way to it, is gone.
    #[error("the agent is gone: {0}")]
    Gone(String),
}

impl AgentError {
    /// Whether the device, its driver or its library does not have what was asked for.
    pub fn is_not_supported(&self) -> bool {
        const ENOSYS: i32 = 38;
        const EOPNOTSUPP: i32 = 95;
        matches!(self, AgentError::Refused { errno: Some(ENOSYS | EOPNOTSUPP), .. })
    }
}
