//! The arrays of message headers that `sendmmsg` and `recvmmsg` work on.
//!
//! They are made once. The pointers in them are set anew for every call, from borrows that last as
//! long as the call does, and mean nothing between calls.

use super::control::Control;
use super::name::Name;
use std::mem;

/// Pieces that a message is gathered from at most.
pub(super) const PARTS: usize = 2;

/// The arrays of headers for one call.
pub(super) struct Headers {
    pub(super) messages: Box<[libc::mmsghdr]>,
    pub(super) vectors: Box<[[libc::iovec; PARTS]]>,
    pub(super) names: Box<[Name]>,
    pub(super) controls: Box<[Control]>,
}

// SAFETY: the pointers inside are written right before a system call and read by nothing but that
// call; between calls they are never used, so it does not matter which thread holds them.
unsafe impl Send for Headers {}

impl Headers {
    pub(super) fn new(count: usize) -> Self {
        // SAFETY: message headers and vectors are plain old data; all zeroes (null pointers and
        // lengths of 0) is a valid value of each.
        let (message, vector) =
            unsafe { (mem::zeroed::<libc::mmsghdr>(), mem::zeroed::<libc::iovec>()) };
        Headers {
            messages: vec![message; count].into(),
            vectors: vec![[vector; PARTS]; count].into(),
            names: vec![Name::NONE; count].into(),
            controls: vec![Control::default(); count].into(),
        }
    }

    /// Points the first `count` messages at their names, vectors and controls. These must not be
    /// touched any more before the system call.
    pub(super) fn link(&mut self, count: usize) {
        let names = self.names.as_mut_ptr();
        let vectors = self.vectors.as_mut_ptr();
        let controls = self.controls.as_mut_ptr();
        for (i, message) in self.messages[..count].iter_mut().enumerate() {
            let header = &mut message.msg_hdr;
            header.msg_name = names.wrapping_add(i).cast();
            header.msg_iov = vectors.wrapping_add(i).cast();
            header.msg_control = controls.wrapping_add(i).cast();
        }
    }
}
