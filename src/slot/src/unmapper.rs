//! Letting go of memory that was shared with a program, beside the data path.
//!
//! Whoever is the last to let go of a file that is kept in memory frees its pages, all that it has,
//! however little of it was mapped: 0.2 ms for a mebibyte, in which nobody is served. A thread of
//! its own does it, which comes after the data path where both want the processor.

use rustix::process::setpriority_process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

/// What is let go of by the hundred, or of a program that is gone, and is of a file of fewer bytes,
/// is let go of where it is: 15 us at most.
pub(crate) const LARGE: u64 = 64 * 1024;

/// The same where a program asks for it each time, and waits: 0.2 ms at most, if the pages are not
/// its own any more. Where they are, as mostly, this costs less than another thread would.
pub(crate) const LARGE_AT_REQUEST: u64 = 1 << 20;

/// So many bytes that are still mapped keep requests waiting: programs that come, register memory
/// and end, again and again, would have the slot run out of addresses.
const MOST: u64 = 1 << 32;

/// How far the thread stands behind others (`nice`).
const NICE: i32 = 10;

/// Unmaps memory, or closes a file in memory, by dropping what holds it. Its thread is started with
/// the first.
pub(crate) struct Unmapper {
    /// What the thread is to call first of all.
    first: fn(),
    thread: Option<Sender<Unneeded>>,
    /// Bytes that it has yet to unmap.
    bytes: Arc<AtomicU64>,
}

/// What the thread is to drop, in this order.
struct Unneeded {
    memory: Box<dyn Send>,
    /// Bytes that are mapped.
    length: u64,
    /// What an [`Unmapping`] looks at.
    exists: Arc<()>,
}

/// Something that is being unmapped.
pub(crate) struct Unmapping(Weak<()>);

impl Unmapping {
    /// Whether it is not mapped any more.
    pub(crate) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Unmapper {
    pub(crate) fn new(first: fn()) -> Unmapper {
        Unmapper { first, thread: None, bytes: Arc::default() }
    }

    /// Whether little enough is yet to be unmapped that more may come.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < MOST
    }

    /// Lets go some time of what has so many bytes mapped.
    pub(crate) fn unmap(&mut self, memory: impl Send + 'static, length: u64) -> Unmapping {
        if self.thread.is_none() {
            self.thread = self.start();
        }
        let exists = Arc::new(());
        let unmapping = Unmapping(Arc::downgrade(&exists));
        // SHARE-122: it lives as long as this end. Without it, all is unmapped here.
        if let Some(thread) = &self.thread {
            self.bytes.fetch_add(length, Ordering::Relaxed);
            let _ = thread.send(Unneeded { memory: Box::new(memory), length, exists });
        }
        unmapping
    }

    fn start(&self) -> Option<Sender<Unneeded>> {
        let (thread, unneeded) = channel();
        let (first, bytes) = (self.first, Arc::clone(&self.bytes));
        let unmapper = std::thread::Builder::new().name("urxed-unmapper".into());
        let run = move || {
            first();
            // On Linux that of this thread alone. Where it is refused, it is a thread like others.
            let _ = setpriority_process(None, NICE);
            unmap_all(&unneeded, &bytes);
        };
        unmapper.spawn(run).is_ok().then_some(thread)
    }
}

fn unmap_all(unneeded: &Receiver<Unneeded>, bytes: &AtomicU64) {
    for Unneeded { memory, length, exists } in unneeded {
        drop(memory);
        bytes.fetch_sub(length, Ordering::Relaxed);
        drop(exists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::ThreadId;

    /// Memory that takes until it is told to be unmapped, and says who does it.
    struct Slow(Receiver<()>, Sender<ThreadId>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(std::thread::current().id());
        }
    }

    /// SHARE-122
    #[test]
    fn memory_is_unmapped_by_a_thread_that_nobody_waits_for() {
        let mut unmapper = Unmapper::new(|| ());
        let (done, until_done) = channel();
        let memory = || {
            let (go, until_go) = channel();
            (go, Slow(until_go, done.clone()))
        };
        let (little, too_much) = (memory(), memory());
        let unmapping = [unmapper.unmap(little.1, 1), unmapper.unmap(too_much.1, MOST - 1)];
        assert!(!unmapper.has_room(), "and it has not been waited for");
        let here = std::thread::current().id();
        for (go, unmapping) in [little.0, too_much.0].into_iter().zip(unmapping) {
            assert!(!unmapping.is_over());
            go.send(()).unwrap();
            assert_ne!(until_done.recv().unwrap(), here);
            while !unmapping.is_over() {
                std::thread::yield_now();
            }
            assert!(unmapper.has_room());
        }
    }
}
