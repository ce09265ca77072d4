//! Pipes in which the daemon says things unasked.

use crate::Error;
use crate::session::Session;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::Timespec;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The read end of one.
#[derive(Debug)]
pub(crate) struct EventPipe(OwnedFd);

impl EventPipe {
    pub(crate) fn new(fd: OwnedFd) -> Result<EventPipe, Error> {
        // Waiting is done in poll(2), which watches the daemon too.
        fcntl_getfl(&fd)
            .and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK))
            .map_err(Error::system("making an event pipe non-blocking"))?;
        Ok(EventPipe(fd))
    }

    /// The next event, which has `LEN` bytes; `None` if there was none until the deadline. Fails
    /// when the daemon is gone and has left no event.
    pub(crate) fn read<const LEN: usize>(
        &self,
        session: &Session,
        deadline: Deadline,
    ) -> Result<Option<[u8; LEN]>, Error> {
        session.check_process()?;
        let mut event = [0; LEN];
        loop {
            match rustix::io::read(&self.0, &mut event) {
                Ok(len) if len == LEN => return Ok(Some(event)),
                Ok(0) => return Err(session.daemon_gone()),
                Ok(len) => return Err(Error::Protocol(format!("an event of {len} bytes"))),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(Error::system("reading an event")(errno)),
            }
            if deadline.is_over() {
                return Ok(None);
            }
            session.wait_readable(&self.0, deadline.remaining().as_ref())?;
        }
    }
}

impl AsFd for EventPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Until when to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// In that much time from now; never, if `None`, or further away than the clock goes.
    pub(crate) fn after(timeout: Option<Duration>) -> Deadline {
        Deadline(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn instant(self) -> Option<Instant> {
        self.0
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Waits for a lock; `None` if it was not to be had until then.
    pub(crate) fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        match self.0 {
            Some(deadline) => mutex.try_lock_until(deadline),
            None => Some(mutex.lock()),
        }
    }

    fn remaining(self) -> Option<Timespec> {
        let left = self.0?.saturating_duration_since(Instant::now());
        // What does not fit is longer than anybody waits.
        Timespec::try_from(left).ok()
    }
}
