//! Where a page of a list begins.

use serde::{Deserialize, Serialize};

/// Where a page of a list begins: in which of the parts that a device is made of, and behind which
/// of its numbers. The default is the beginning. The daemon says where the next page begins; to
/// everybody else this is a thing to be handed back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// The part.
    pub slot: u8,
    /// Behind this number of that part; `None`: from its first one on.
    pub after: Option<u32>,
}

impl Cursor {
    /// The next page of who has had the one from here on, if there is one. One that brings no
    /// further is none, or a faulty daemon would keep its programs asking for ever.
    #[must_use]
    pub fn advanced_to(self, next: Option<Cursor>) -> Option<Cursor> {
        next.filter(|next| *next > self)
    }
}
