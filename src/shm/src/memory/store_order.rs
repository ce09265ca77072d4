//! The order in which stores to a program's memory become visible.
//!
//! Programs poll memory that a peer writes: the last byte of a message, a counter behind it, a
//! flag that was written after it. Hardware shows them stores in the order of the wire, so a
//! program that sees the flag may use the data. A plain copy does not give that. `memcpy` promises
//! no order, and glibc's ends with what it read first; a processor carries out `rep movsb`, with
//! which the kernel copies, cache line by cache line as the lines come in. Measured on an AMD EPYC
//! with a reader that polls the last 8 bytes of 256: 1 of 30,000 such copies by the kernel, and 1
//! of 300 by glibc, had older bytes before them; none of 9 million whose last word was stored by
//! itself.
//!
//! So every copy into a program's memory has two parts: the last aligned word, and all before.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The length of the stretch, in bytes and aligned to itself, within which the processor shows a
/// copy's stores in their order, or at once. On x86 that is a cache line; elsewhere nothing is
/// known but that an aligned word is stored at once.
const ORDERED_LEN: u64 = if cfg!(target_arch = "x86_64") { 64 } else { 8 };

/// How many of the `len` bytes to be copied to `addr` come before the last ones, which have to be
/// copied by themselves: those of the last aligned 8-byte word. 0 where all of them may be copied
/// at once.
pub fn body_len(addr: u64, len: usize) -> usize {
    let Some(last) = (len as u64).checked_sub(1).map(|last| addr.wrapping_add(last)) else {
        return 0;
    };
    match addr / ORDERED_LEN == last / ORDERED_LEN {
        true => 0,
        false => last_word(addr, len),
    }
}

/// Where among the `len` bytes at `addr` the last aligned 8-byte word begins that has any of
/// them; 0 if all are in it.
pub(crate) fn last_word(addr: u64, len: usize) -> usize {
    let in_word = (addr.wrapping_add(len as u64).wrapping_sub(1) % 8 + 1) as usize;
    len.saturating_sub(in_word)
}

/// The length of the largest aligned number of 1, 2, 4 or 8 bytes that the `len` bytes at `addr`
/// begin with; `len` is not 0.
pub(crate) fn first_number(addr: u64, len: usize) -> usize {
    let aligned = 1 << addr.trailing_zeros().min(3);
    aligned.min(1 << len.ilog2())
}

/// Copies into memory that others look at meanwhile: after all that was stored there before, and
/// the last bytes last. Those are the ones in the last aligned 8-byte word; a number of 2, 4 or 8
/// bytes that is aligned, and ends the data, is stored at once.
///
/// # Safety
/// `target` must be good for writes of `data.len()` bytes, which may be accessed by other
/// processes, and in this one by atomics only; `data` must not overlap them.
pub(crate) unsafe fn copy_last_bytes_last(target: NonNull<u8>, data: &[u8]) {
    // ORDER-002, ORDER-003
    let (body, tail) = data.split_at(last_word(target.addr().get() as u64, data.len()));
    // What was stored before comes before. On x86, these fences are for the compiler alone.
    fence(Ordering::Release);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), target.as_ptr(), body.len()) };
    fence(Ordering::Release);
    // SAFETY: the caller's promise; the tail begins where the body ends.
    unsafe { store_numbers(target.add(body.len()), tail) };
}

/// Stores bytes in their order, as the largest aligned numbers that they make.
///
/// # Safety
/// As for [`copy_last_bytes_last`].
unsafe fn store_numbers(mut target: NonNull<u8>, mut bytes: &[u8]) {
    fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|i| bytes[i])
    }
    const ORDER: Ordering = Ordering::Release;
    while !bytes.is_empty() {
        let (word, rest) = bytes.split_at(first_number(target.addr().get() as u64, bytes.len()));
        // SAFETY: the bytes are the caller's promise, they are aligned as `first_number` says, and
        // an atomic may be shared with anybody. The next bytes are at most at the target's end.
        unsafe {
            match word.len() {
                8 => target
                    .cast::<AtomicU64>()
                    .as_ref()
                    .store(u64::from_ne_bytes(number(word)), ORDER),
                4 => target
                    .cast::<AtomicU32>()
                    .as_ref()
                    .store(u32::from_ne_bytes(number(word)), ORDER),
                2 => target
                    .cast::<AtomicU16>()
                    .as_ref()
                    .store(u16::from_ne_bytes(number(word)), ORDER),
                _ => target.cast::<AtomicU8>().as_ref().store(word[0], ORDER),
            }
            target = target.add(word.len());
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_aligned_word_is_copied_by_itself() {
        assert_eq!(last_word(0x1000, 0), 0);
        assert_eq!(last_word(0x1000, 8), 0);
        assert_eq!(last_word(0x1000, 9), 8);
        assert_eq!(last_word(0x1000, 1024), 1016);
        assert_eq!(last_word(0x1004, 1024), 1020);
        assert_eq!(last_word(0x1007, 2), 1);
        assert_eq!(last_word(u64::MAX, 1), 0);
    }

    #[test]
    fn within_one_ordered_stretch_all_is_copied_at_once() {
        let line = ORDERED_LEN as usize;
        assert_eq!(body_len(0x1000, 0), 0);
        assert_eq!(body_len(0x1000, line), 0);
        assert_eq!(body_len(0x1000, line + 1), line);
        assert_eq!(body_len(0x1000 + ORDERED_LEN - 1, 2), 1);
        assert_eq!(body_len(u64::MAX, 1), 0);
    }

    proptest! {
        /// Every byte arrives, and no other is touched, whatever the alignment and length.
        #[test]
        fn a_copy_is_a_copy(at in 0..64usize, data in prop::collection::vec(any::<u8>(), 0..300)) {
            #[repr(align(64))]
            struct Arena([u8; 512]);
            let mut arena = Arena([0xa5; 512]);
            let mut model = arena.0;
            model[at..at + data.len()].copy_from_slice(&data);
            let target = NonNull::from(&mut arena.0).cast::<u8>();
            // SAFETY: the arena is 512 bytes, of which at most 364 are used, and ours alone.
            unsafe { copy_last_bytes_last(target.add(at), &data) };
            prop_assert_eq!(arena.0, model);
        }
    }
}
