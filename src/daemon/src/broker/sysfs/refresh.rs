//! The thread that keeps the files of counters up to date.

use super::counters::Totals;
use super::files::Files;
use super::tree::Overwriter;
use crate::broker::snapshot::Asker;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long after a value was written the next one is.
const INTERVAL: Duration = Duration::from_secs(1);

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Refresh {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Refresh {
    /// Keeps the files of these devices up to date from now on.
    pub(super) fn start(tree: Overwriter, asker: Asker, names: Vec<String>) -> io::Result<Refresh> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("urxed-counters".into());
        let thread = thread.spawn(move || keep_up_to_date(&tree, &asker, &names, &stopped))?;
        Ok(Refresh { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Had it panicked, there would be nothing to end.
            let _ = thread.join();
        }
    }
}

fn keep_up_to_date(tree: &Overwriter, asker: &Asker, names: &[String], stopped: &Receiver<()>) {
    let mut devices: Vec<(Totals, Files)> = names.iter().map(|_| Default::default()).collect();
    // METRIC-007
    while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let Some(snapshot) = asker.ask() else { return };
        for (index, (name, (totals, shown))) in names.iter().zip(&mut devices).enumerate() {
            totals.take_in(&snapshot, index);
            for (file, content) in totals.files(name) {
                // What could not be written is tried again the next time.
                if shown.get(&file) != Some(&content) && tree.overwrite(&file, &content).is_ok() {
                    shown.insert(file, content);
                }
            }
        }
    }
}
