//! The arrays of message headers that `sendmmsg` and `recvmmsg` work on.
//!
//! Structures and calls are the kernel's own, not libc's: musl has other types for the lengths, and
//! its `sendmmsg` is a system call for each message.
//!
//! The arrays are made once. The pointers in them are set anew for every call, from borrows that
//! last as long as the call does, and mean nothing between calls.

use super::control::Control;
use super::name::Name;
use std::mem;

/// Pieces that a message is gathered from at most.
pub(super) const PARTS: usize = 2;

/// `struct user_msghdr` of the kernel's linux/socket.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Header {
    pub(super) name: *mut Name,
    pub(super) name_len: libc::c_int,
    pub(super) parts: *mut libc::iovec,
    pub(super) part_count: usize,
    pub(super) control: *mut Control,
    pub(super) control_len: usize,
    pub(super) flags: libc::c_uint,
}

/// `struct mmsghdr` of the kernel's linux/socket.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct BatchHeader {
    pub(super) header: Header,
    /// Bytes that were sent or received.
    pub(super) len: libc::c_uint,
}

// libc's have the same places, whatever it says of the types.
const _: () = assert!(size_of::<Header>() == size_of::<libc::msghdr>());
const _: () = assert!(size_of::<BatchHeader>() == size_of::<libc::mmsghdr>());

/// The arrays of headers for one call.
pub(super) struct Headers {
    pub(super) messages: Box<[BatchHeader]>,
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
            unsafe { (mem::zeroed::<BatchHeader>(), mem::zeroed::<libc::iovec>()) };
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
            let header = &mut message.header;
            header.name = names.wrapping_add(i);
            header.parts = vectors.wrapping_add(i).cast();
            header.control = controls.wrapping_add(i);
        }
    }
}
