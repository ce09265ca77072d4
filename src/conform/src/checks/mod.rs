//! The checks, by area.

mod write;

use crate::check::Check;

/// All of them, in the order in which they are run.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [write::CHECKS].into_iter().flatten()
}
