//! The provider's functions in the program's own structures of libibverbs, and how ours are put
//! before them.
//!
//! What every program may know of these structures, since inline functions of
//! `infiniband/verbs.h` use it, never changes.

use crate::memory;
use libc::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `struct ibv_context`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct VerbsContext {
    device: *mut c_void,
    pub(crate) ops: [*mut c_void; 32],
    /// The descriptor of `/dev/infiniband/uverbsN`.
    pub(crate) cmd_fd: c_int,
}

/// Where functions stand in `struct ibv_context_ops`.
pub(crate) mod op {
    pub(crate) const POLL_CQ: usize = 11;
    pub(crate) const POST_SRQ_RECV: usize = 20;
    pub(crate) const POST_SEND: usize = 25;
    pub(crate) const POST_RECV: usize = 26;
}

/// Puts a function of ours before the provider's, which is remembered. `false` if there is none.
pub(crate) fn wrap(
    base: u64,
    offset: usize,
    provider: &AtomicPtr<c_void>,
    ours: *mut c_void,
) -> bool {
    let Some(present) = read_word(base, offset) else { return false };
    let present = std::ptr::with_exposed_provenance_mut::<c_void>(present as usize);
    if present == ours {
        return true;
    }
    let (set, unset) = (Ordering::Relaxed, Ordering::Relaxed);
    match provider.compare_exchange(null_mut(), present, set, unset) {
        // Of a second copy of the library: what it does is not known to us.
        Err(other) if other != present => {}
        _ => {
            let place = base as usize + offset;
            let place = std::ptr::with_exposed_provenance_mut::<*mut c_void>(place);
            // After the provider's was remembered: other threads may call ours from now on.
            // SAFETY: it is a field of a structure that libibverbs has made and lets the provider
            // fill in, as its descriptor in the other shows; it was read just now, and the program
            // uses it as long as the descriptor is open. Other threads may read it meanwhile, a
            // word that is aligned.
            unsafe { AtomicPtr::from_ptr(place) }.store(ours, Ordering::Release);
        }
    }
    true
}

/// The provider's function, for ours that the program has called. It was remembered before ours was
/// to be found, but the program reads ours without any order: a processor may have read what is
/// remembered even before that, and then finds it when it looks again.
#[inline]
pub(crate) fn remembered(provider: &AtomicPtr<c_void>) -> *mut c_void {
    loop {
        let function = provider.load(Ordering::Acquire);
        if !function.is_null() {
            return function;
        }
        std::hint::spin_loop();
    }
}

/// A word of the program's memory that is not zero.
pub(crate) fn read_word(base: u64, offset: usize) -> Option<u64> {
    let mut word = [0; 8];
    memory::read(base.checked_add(offset as u64)?, &mut word).ok()?;
    Some(u64::from_ne_bytes(word)).filter(|&word| word != 0)
}
