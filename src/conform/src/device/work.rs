//! What a program on the device sends of its own accord, so that its requester can be judged.

use super::Unavailable;
use crate::agent::{Operation, Status};

/// [`COUNT`](Work::COUNT) operations of one kind and length, all posted at once. An agent does
/// that, and so does a stock client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// What each does.
    pub operation: Operation,
    /// Bytes of each.
    pub len: usize,
}

impl Work {
    /// How many: the fewest that clients of perftest do.
    pub const COUNT: u32 = 5;
}

/// How work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All of it has succeeded.
    Done,
    /// An operation has failed, with this status if it is told.
    Failed(Option<Status>),
}

/// A program on the device that does the work that it was started for, and nothing else.
pub trait Client {
    /// Has it begin.
    ///
    /// # Errors
    /// If it is gone.
    fn begin(&mut self) -> Result<(), Unavailable>;

    /// How its work has ended; `None`: it has not, or was not begun.
    fn end(&mut self) -> Option<End>;
}
