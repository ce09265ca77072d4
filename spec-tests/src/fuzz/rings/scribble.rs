//! What a program writes where it likes, and a thread that does so all the while.

use super::Input;
use super::shared::Span;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use urxe_shm::memory::region::Mapping;

/// Where a ring's header has its two indices.
const INDICES: [u64; 2] = [128, 256];

/// What a program writes where.
#[derive(Clone, Copy)]
pub(super) struct Scribble {
    at: u64,
    bytes: [u8; 8],
    len: usize,
}

impl Scribble {
    /// Somewhere in a ring: at an index, or anywhere.
    pub(super) fn new(places: &[Span], input: &mut Input<'_>) -> Scribble {
        let Span { at, len } = places[input.index(places.len())];
        let kind = input.u8();
        let within = match kind & 3 {
            0 => INDICES[usize::from(kind >> 7)],
            _ => u64::from(input.u16()),
        };
        let mut bytes = input.array();
        if kind & 0x40 != 0 {
            // Near to what was there: an index or a count that is nearly right.
            bytes = u64::from(bytes[0] % 16).to_le_bytes();
        }
        let len_of_it = [1, 2, 4, 8][usize::from(kind >> 2 & 3)];
        Scribble { at: at + within % (len - 8), bytes, len: len_of_it }
    }

    pub(super) fn write(&self, memory: &Mapping) {
        memory.write(self.at, &self.bytes[..self.len]).expect("rings lie within the file");
    }
}

/// A thread that writes into rings while they are read. It is there for all runs, for to begin one
/// takes as long as a run.
pub(super) struct Scribbler(Sender<Arc<Job>>);

struct Job {
    rings: Arc<Mapping>,
    scribbles: [Scribble; 4],
    has_ended: AtomicBool,
    /// Held as long as the thread writes.
    writes: Mutex<()>,
}

/// The thread writes until this is dropped, and then no more.
pub(super) struct Scribbling(Arc<Job>);

impl Scribbler {
    pub(super) fn new() -> Scribbler {
        let (jobs, given) = channel::<Arc<Job>>();
        std::thread::spawn(move || given.iter().for_each(|job| job.work()));
        Scribbler(jobs)
    }

    /// Has it write these over and over again.
    pub(super) fn begin(&self, rings: &Arc<Mapping>, scribbles: [Scribble; 4]) -> Scribbling {
        let (rings, has_ended) = (Arc::clone(rings), AtomicBool::new(false));
        let job = Arc::new(Job { rings, scribbles, has_ended, writes: Mutex::new(()) });
        self.0.send(Arc::clone(&job)).expect("it ends with this");
        Scribbling(job)
    }
}

impl Job {
    fn work(&self) {
        let _writes = self.writes.lock();
        while !self.has_ended.load(Ordering::Relaxed) {
            self.scribbles.iter().for_each(|scribble| scribble.write(&self.rings));
        }
    }
}

impl Drop for Scribbling {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
        // It has written its last, or has not begun and will see that it need not.
        drop(self.0.writes.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
