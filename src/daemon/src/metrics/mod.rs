//! Metrics: what `urxe stat` shows, for Prometheus and all that reads its text format
//! (`urxed --metrics`).
//!
//! ```text
//!  scrapers ──► listener.rs ─► server.rs ─► http.rs    one request and one answer a connection
//!                                 │  └─ text.rs ◄────── names and sentences of all counters
//!                                 ▼
//!                          broker/snapshot.rs ─► slots
//! ```
//!
//! A thread of its own does all of it, and the broker does no more than take snapshots for it.

mod address;
mod http;
mod listener;
mod server;
mod text;

pub use address::MetricsAddress;
pub(crate) use listener::Listener;

use crate::broker::snapshot::Asker;
use rustix::pipe::PipeFlags;
use server::Server;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// The metrics of a daemon, which are there until this is dropped.
#[derive(Debug)]
pub(crate) struct Metrics {
    address: MetricsAddress,
    /// Closed, it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Answers scrapers from now on.
    pub(crate) fn serve(listener: Listener, asker: Asker) -> io::Result<Metrics> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let address = listener.address().clone();
        let server = Server::new(listener, read, asker);
        let thread = std::thread::Builder::new().name("urxed-metrics".into());
        let thread = thread.spawn(move || server.run())?;
        Ok(Metrics { address, stop: Some(write), thread: Some(thread) })
    }

    /// Where they are to be had.
    pub(crate) fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Had it panicked, there would be nothing to end.
            let _ = thread.join();
        }
    }
}
