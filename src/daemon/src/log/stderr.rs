//! Standard error, as the log is written to it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};

/// How long a line waits for who reads them. Then lines are lost until some are read, rather than
/// that the daemon stands still.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where lines go.
pub(super) trait Sink: Send + Sync + 'static {
    /// Writes a line, which has its end. `told` makes the line that so many were lost before.
    fn write(&self, line: &str, told: &dyn Fn(u64) -> String);
}

/// The standard error of this process: a terminal, a file, or a pipe that perhaps nobody reads.
#[derive(Debug, Default)]
pub(super) struct Stderr {
    lost: Mutex<u64>,
}

impl Sink for Stderr {
    fn write(&self, line: &str, told: &dyn Fn(u64) -> String) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = if *lost == 0 { WAIT } else { Timespec::default() };
        // LOG-006
        if !takes_a_line(&wait) {
            *lost += 1;
            return;
        }
        if *lost > 0 {
            write_all(told(*lost).as_bytes());
            *lost = 0;
            if !takes_a_line(&WAIT) {
                *lost += 1;
                return;
            }
        }
        write_all(line.as_bytes());
    }
}

/// Whether a line can be written without waiting.
fn takes_a_line(wait: &Timespec) -> bool {
    let stderr = rustix::stdio::stderr();
    let mut stderr = [PollFd::new(&stderr, PollFlags::OUT)];
    match poll(&mut stderr, Some(wait)) {
        // An error of it is found by writing.
        Ok(ready) => ready > 0,
        Err(_) => true,
    }
}

/// Writes; where that fails there is nobody to tell.
fn write_all(mut line: &[u8]) {
    while !line.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), line) {
            Ok(len) => line = line.get(len..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
