//! Noticing that this process is a fork of the one that opened a session.
//!
//! A child inherits the rings as shared memory; what it posted there would land among its
//! parent's work. So every process has a number of its own, that the kernel itself takes away
//! from a child: it stands in a page which is wiped on fork. Reading it is one load, and no kind
//! of `fork` or `clone` gets around it.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which process this is, among those that have come from one another by `fork`.
///
/// A child's number is larger than those of all its ancestors that ever had one, and that is all
/// it has to differ from: nobody else's objects can come into its hands.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    word: &'static AtomicU32,
    number: u32,
    pid: u32,
}

impl Process {
    /// The one that calls. Fails only if the system has no page left.
    pub fn current() -> Result<Process, Errno> {
        /// The last number given; a child goes on counting from its parent's.
        static LAST: AtomicU32 = AtomicU32::new(0);
        static PAGE: OnceLock<Result<&'static AtomicU32, Errno>> = OnceLock::new();

        let word = (*PAGE.get_or_init(wiped_on_fork))?;
        let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let number = match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            Err(present) => present,
        };
        Ok(Process { word, number, pid: std::process::id() })
    }

    /// Whether this still is that process, and not a fork of it.
    pub fn is_this(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }

    /// Its process id, for people.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// A word in a page that reads as 0 in every child.
fn wiped_on_fork() -> Result<&'static AtomicU32, Errno> {
    const LEN: usize = 4096;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a null hint without MAP_FIXED: the kernel chooses where, and replaces nothing.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, flags)?
    };
    // SAFETY: the page was mapped just now, and is ours alone.
    unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork)? };
    // SAFETY: the page is mapped for good, zeroed and aligned, and only ever used as this atomic.
    // (If `madvise` failed, the page is left behind; that happens once in a process at most.)
    Ok(unsafe { &*page.cast::<AtomicU32>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process_until_it_asks_itself() {
        let parent = Process::current().unwrap();
        assert!(parent.is_this() && Process::current().unwrap().is_this());
        // SAFETY: between fork and _exit the child only touches memory and atomics.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let was_parent = parent.is_this();
            let own = Process::current().is_ok_and(|own| own.is_this());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(was_parent) | i32::from(!own) << 1) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        assert!(parent.is_this());
    }
}
