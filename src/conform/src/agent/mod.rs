//! The program on the device that does what it is told.
//!
//! What only the device's own program sees (completions, events, states, its memory) no packet
//! shows. An agent is a small verbs program there: it takes commands, one line of JSON each, and
//! answers each with one.

use serde_json::Value;

/// A verbs program that does what it is told.
pub trait Agent {
    /// Does one thing, an object whose `do` names it, and returns what came of it.
    ///
    /// # Errors
    /// If the program could not, with its reason, or if it is gone.
    fn call(&mut self, command: &Value) -> Result<Value, AgentError>;
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
