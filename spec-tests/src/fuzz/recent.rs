//! What was on the wire of late, to come again.

use super::Input;
use std::collections::VecDeque;

/// How many are remembered.
const MOST: usize = 16;

/// The last few messages that were handed over.
pub(super) struct Recent<T>(VecDeque<T>);

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent(VecDeque::new())
    }
}

impl<T> Recent<T> {
    /// Another one was handed over.
    pub(super) fn push(&mut self, message: T) {
        self.0.push_back(message);
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// One of them, if there is any.
    pub(super) fn one(&self, input: &mut Input<'_>) -> Option<&T> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(input.index(self.0.len()))
    }
}
