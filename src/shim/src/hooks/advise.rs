//! Memory that the program says it needs no more, or its children do not. Where it was remapped,
//! `madvise` alone does not zero it, as allocators rely on, and does not keep it from children.
//!
//! Allocators call this with a lock of theirs held, which a thread that holds one of ours may wait
//! for. So nothing is looked up here, and no lock is taken but for memory that is remapped.
//!
//! libc's own function is called, and not the system: UCX changes that where it lies, to hear of
//! memory that is given up.

use super::{answer, errno, hooks, put_errno};
use crate::next;
use libc::{c_int, c_void, size_t};
use urxe_shm::memory::remap;

hooks! {
    fn madvise(start: *mut c_void, len: size_t, advice: c_int) -> c_int {
        let before = errno();
        let result = next::madvise(start, len, advice);
        if result == 0 && matches!(advice, libc::MADV_DONTFORK | libc::MADV_DOFORK) {
            let is_inherited = advice == libc::MADV_DOFORK;
            return answer(|| {
                remap::note_inheritance(start.addr() as u64, len as u64, is_inherited);
                Ok(0)
            });
        }
        if !is_to_be_discarded(advice, result) {
            return result;
        }
        let discard = || Ok(c_int::from(remap::discard(start.addr() as u64, len as u64)));
        match (answer(discard), advice) {
            (0, _) | (1, libc::MADV_DONTNEED) => result,
            (1, _) => {
                put_errno(before);
                0
            }
            (failure, _) => failure,
        }
    }
}

/// Whether what is remapped of a range is to be zeroed, after the kernel has said this of the
/// advice.
fn is_to_be_discarded(advice: c_int, result: c_int) -> bool {
    let failure = (result != 0).then(errno);
    match advice {
        // MEM-059: what the kernel refuses changes nothing. Beside memory that is not mapped it
        // has done the rest.
        libc::MADV_DONTNEED => matches!(failure, None | Some(libc::ENOMEM)),
        // Memory that is shared cannot be given back later, which the kernel refuses, so it is at
        // once.
        libc::MADV_FREE => failure == Some(libc::EINVAL),
        _ => false,
    }
}
