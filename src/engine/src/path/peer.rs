//! What a peer was seen to do.

/// What a peer was seen to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Whether it keeps requests that come before their turn; `None`: not known.
    pub(crate) keeps_early: Option<bool>,
    /// It sends selective acknowledgements.
    pub(crate) acknowledges_selectively: bool,
    /// It took the first part of a WRITE and called a later one an invalid request.
    pub(crate) refuses_parts: bool,
}

impl Peer {
    /// Whether what is missing there can be sent alone.
    pub(crate) fn takes_repairs(&self) -> bool {
        self.acknowledges_selectively || self.keeps_early == Some(true)
    }
}
