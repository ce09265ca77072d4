//! Letting go of large memory that was shared with a program that is gone, beside the data path.
//!
//! Whoever unmaps memory that its program has no more frees its pages: 0.2 ms for a mebibyte,
//! in which nobody is served. A thread of its own does it, which comes after the data path where
//! both want the processor.

use rustix::process::setpriority_process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use urxe_nic::Mr;

/// What is shorter is unmapped where it is let go of: 15 us at most.
const LARGE: u64 = 64 * 1024;

/// So many bytes that are still mapped keep requests waiting: programs that come, register memory
/// and end, again and again, would have the slot run out of addresses.
const MOST: u64 = 1 << 32;

/// How far the thread stands behind others (`nice`).
const NICE: i32 = 10;

/// Unmaps memory, by dropping what holds it. Its thread is started with the first that is large.
pub(crate) struct Unmapper<M = Mr> {
    /// What the thread is to call first of all.
    first: fn(),
    thread: Option<Sender<(M, u64)>>,
    /// Bytes that it has yet to unmap.
    bytes: Arc<AtomicU64>,
}

impl<M: Send + 'static> Unmapper<M> {
    pub(crate) fn new(first: fn()) -> Unmapper<M> {
        Unmapper { first, thread: None, bytes: Arc::default() }
    }

    /// Whether little enough is yet to be unmapped that more may come.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < MOST
    }

    /// Unmaps memory of so many bytes, some time if they are many.
    pub(crate) fn unmap(&mut self, memory: M, length: u64) {
        if length < LARGE {
            return;
        }
        if self.thread.is_none() {
            self.thread = self.start();
        }
        // SHARE-122: it lives as long as this end. Without it, all is unmapped here.
        if let Some(thread) = &self.thread {
            self.bytes.fetch_add(length, Ordering::Relaxed);
            let _ = thread.send((memory, length));
        }
    }

    fn start(&self) -> Option<Sender<(M, u64)>> {
        let (thread, memory) = channel();
        let (first, bytes) = (self.first, Arc::clone(&self.bytes));
        let unmapper = std::thread::Builder::new().name("urxed-unmapper".into());
        let run = move || {
            first();
            // On Linux that of this thread alone. Where it is refused, it is a thread like others.
            let _ = setpriority_process(None, NICE);
            unmap_all(&memory, &bytes);
        };
        unmapper.spawn(run).is_ok().then_some(thread)
    }
}

fn unmap_all<M>(memory: &Receiver<(M, u64)>, bytes: &AtomicU64) {
    for (memory, length) in memory {
        drop(memory);
        bytes.fetch_sub(length, Ordering::Relaxed);
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
    fn large_memory_is_unmapped_by_a_thread_that_nobody_waits_for() {
        let mut unmapper = Unmapper::new(|| ());
        let (done, until_done) = channel();
        let memory = || {
            let (go, until_go) = channel();
            (go, Slow(until_go, done.clone()))
        };
        let (large, too_much) = (memory(), memory());
        unmapper.unmap(large.1, LARGE);
        assert!(unmapper.has_room(), "and it has not been waited for");
        unmapper.unmap(too_much.1, MOST);
        assert!(!unmapper.has_room());
        let here = std::thread::current().id();
        for go in [large.0, too_much.0] {
            go.send(()).unwrap();
            assert_ne!(until_done.recv().unwrap(), here);
        }
        while !unmapper.has_room() {
            std::thread::yield_now();
        }
        let small = memory();
        small.0.send(()).unwrap();
        unmapper.unmap(small.1, LARGE - 1);
        assert_eq!(until_done.try_recv(), Ok(here));
    }
}
