//! The checks, by area.

mod requester_send;
mod write;

use crate::check::Check;

/// All of them, in the order in which they are run.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [write::CHECKS, requester_send::CHECKS].into_iter().flatten()
}
