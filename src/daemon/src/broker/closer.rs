//! Closes what a program may have had its hands on, in a thread of its own.
//!
//! To close the last descriptor of a socket closes what was sent to it and not received: that may
//! be a TCP socket that lingers, or a file whose server does not answer, and takes as long as the
//! program likes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use urxe_shm::control::closing::close_by_exit;

/// Descriptors that are closed at a time.
const BATCH: usize = 64;

/// Where descriptors go to be closed.
pub(crate) struct Closer {
    thread: Sender<OwnedFd>,
}

impl Closer {
    pub(crate) fn new() -> io::Result<Closer> {
        let (thread, descriptors) = channel();
        // It ends after the last has been closed, for which nobody waits.
        std::thread::Builder::new()
            .name("urxed-closer".into())
            .spawn(move || close_all(&descriptors))?;
        Ok(Closer { thread })
    }

    /// Closes a descriptor some time.
    pub(crate) fn close(&self, descriptor: OwnedFd) {
        // SLOT-001: the thread lives as long as this end.
        let _ = self.thread.send(descriptor);
    }
}

/// Even this thread waits for none: what is to be closed after one would wait with it.
fn close_all(descriptors: &Receiver<OwnedFd>) {
    while let Ok(first) = descriptors.recv() {
        // SHARE-105
        close_by_exit(std::iter::once(first).chain(descriptors.try_iter().take(BATCH)).collect());
    }
}
