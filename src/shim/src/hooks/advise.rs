//! Memory that the program says it needs no more. Where it was remapped, `madvise` alone does not
//! zero it, as allocators rely on.

use super::{answer, hooks};
use crate::next;
use libc::{c_int, c_void, size_t};
use urxe_shm::memory::remap;

hooks! {
    fn madvise(start: *mut c_void, len: size_t, advice: c_int) -> c_int {
        let result = next::madvise(start, len, advice);
        if !matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE) {
            return result;
        }
        // Memory that is shared cannot be given back later (`MADV_FREE`), so it is at once.
        answer(|| match remap::discard(start.addr() as u64, len as u64) {
            true => Ok(0),
            false => Ok(result),
        })
    }
}
