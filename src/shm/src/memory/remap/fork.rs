//! What a child of `fork` has of memory that was remapped: a copy, as of all its parent's memory.
//!
//! While nothing is forked the memory is not inherited (`MADV_DONTFORK`), so that no child shares
//! it with its parent, whichever way it was made. `fork` runs the three functions here: before,
//! the memory is made to be inherited; in the child, each view is copied into memory of its own
//! that takes its place; the parent waits for that, so that the child sees what the calling thread
//! saw, and ends the inheritance. What other threads and peers write meanwhile the child may see
//! or not.
//!
//! A child of `vfork` and `posix_spawn` has its parent's memory itself until it is another program.
//! One that is made by a bare `clone` or by `_Fork`, which run nothing of this, has a hole there;
//! or shares it, if another thread forks in that very moment.

use super::areas::Area;
use super::locked::Locked;
use super::{READ_WRITE, listed, pointer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a parent waits for its child's copies, at most. After that the child may see what its
/// parent writes later.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Whether somebody has registered the functions here, or is about to.
static IS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether they are registered.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// What one fork does, from before it to after it.
struct Fork {
    /// Nobody remaps meanwhile, and the child can again.
    _state: Locked,
    views: Vec<Area>,
    /// Closed by the child when it has its copies; and where the parent sees that.
    done: Option<(OwnedFd, OwnedFd)>,
}

struct Current(UnsafeCell<Option<Fork>>);

// SAFETY: only the thread that `OWNER` names looks into it, and it names itself while it holds the
// lock of all ranges, which it puts in there.
unsafe impl Sync for Current {}

static CURRENT: Current = Current(UnsafeCell::new(None));

/// The thread that forks, by [`this_thread`]; 0 if none does.
static OWNER: AtomicUsize = AtomicUsize::new(0);

/// A number that no other thread has meanwhile, and that a child's only thread has from its parent.
fn this_thread() -> usize {
    // SAFETY: gives a pointer, which is not followed.
    unsafe { libc::__errno_location() }.addr()
}

/// What [`before`] has put down in this thread, if it has.
fn take_own() -> Option<Fork> {
    if OWNER.load(Ordering::Relaxed) != this_thread() {
        return None;
    }
    // SAFETY: see `Current`.
    let fork = unsafe { (*CURRENT.0.get()).take() };
    OWNER.store(0, Ordering::Relaxed);
    fork
}

/// Has children get copies from now on, and a lock that nobody holds.
pub(super) fn watch() {
    // No lock for this: a child of another thread could find that one taken.
    if IS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the functions are there for as long as the library that registers them, which the
    // system knows.
    let failed =
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    IS_WATCHED.store(failed == 0, Ordering::Relaxed);
}

/// Whether children get copies.
pub(super) fn is_watched() -> bool {
    IS_WATCHED.load(Ordering::Relaxed)
}

extern "C" fn before() {
    // A handler that interrupts remapping in this very thread forks without.
    let Some(state) = Locked::state() else { return };
    let areas = match state.remapped.is_empty() {
        true => Vec::new(),
        false => Area::all().unwrap_or_default(),
    };
    let ranges_here: Vec<_> = state.remapped.iter().filter_map(Weak::upgrade).collect();
    let mut views = Vec::new();
    for area in &areas {
        if let Some(range) = ranges_here.iter().find(|range| range.is_seen_in(area)) {
            views.extend(
                range.excluded.rest_of(&area.range).into_iter().map(|part| area.part(part)),
            );
        }
    }
    drop(ranges_here);
    views.retain(|view| set_inherited(view, true).is_ok());
    let done = (!views.is_empty()).then(|| pipe_with(PipeFlags::CLOEXEC).ok()).flatten();
    // SAFETY: this thread holds the lock, so that no other one is between `before` and after.
    unsafe { *CURRENT.0.get() = Some(Fork { _state: state, views, done }) };
    OWNER.store(this_thread(), Ordering::Relaxed);
}

extern "C" fn after_in_parent() {
    let Some(mut fork) = take_own() else { return };
    if let Some((copied, copying)) = fork.done.take() {
        drop(copying);
        // The child, if there is one, closes its end, or dies.
        let timeout = Timespec::try_from(LONGEST_WAIT).ok();
        let mut polled = [PollFd::new(&copied, PollFlags::IN)];
        while poll(&mut polled, timeout.as_ref()) == Err(Errno::INTR) {}
    }
    for view in &fork.views {
        // It was there just now.
        let _ = set_inherited(view, false);
    }
}

extern "C" fn after_in_child() {
    let Some(fork) = take_own() else { return };
    listed::forget_all();
    for view in &fork.views {
        if copy(view).is_err() {
            // Rather no memory than its parent's.
            unmap(&view.range);
        }
    }
}

fn len_of(view: &Area) -> usize {
    (view.range.end - view.range.start) as usize
}

/// Whether a child that is made from now on has this view.
fn set_inherited(view: &Area, is_inherited: bool) -> Result<(), Errno> {
    let advice = match is_inherited {
        true => Advice::LinuxDoFork,
        false => Advice::LinuxDontFork,
    };
    // SAFETY: changes neither contents nor what is mapped.
    unsafe { rustix::mm::madvise(pointer(view.range.start), len_of(view), advice) }
}

/// Puts a copy in the place of a view, in a process of one thread.
fn copy(view: &Area) -> Result<(), Errno> {
    if !view.is_readable {
        return Err(Errno::ACCESS);
    }
    let (len, place) = (len_of(view), pointer(view.range.start));
    // SAFETY: a null hint without MAP_FIXED: the kernel chooses where, and replaces nothing.
    let own = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE)
    }?;
    let (from, to) = (place.cast::<u64>().cast_const(), own.cast::<u64>());
    for word in 0..len / size_of::<u64>() {
        // SAFETY: both are mapped, so long, and of whole pages. What is read may change at any
        // time, and each word is read once; what is written nobody else knows of.
        unsafe { to.add(word).write(from.add(word).read_volatile()) };
    }
    if !view.is_writable {
        // SAFETY: nobody writes there any more.
        unsafe { rustix::mm::mprotect(own, len, MprotectFlags::READ)? };
    }
    // SAFETY: a view of a memfd is replaced by memory with the same bytes; pointers stay good.
    unsafe { rustix::mm::mremap_fixed(own, len, len, MremapFlags::MAYMOVE, place) }.map(drop)
}

fn unmap(range: &Range<u64>) {
    let len = (range.end - range.start) as usize;
    // SAFETY: a view of a memfd that is the parent's: the child is as if it had not inherited it.
    let _ = unsafe { rustix::mm::munmap(pointer(range.start), len) };
}
