//! Whether a number of ours is still what we have opened.

use std::os::fd::{BorrowedFd, RawFd};

/// Which open file a descriptor is, as far as can be told: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity(u64, u64);

impl FileIdentity {
    /// That of an open descriptor.
    pub fn of(fd: RawFd) -> Option<FileIdentity> {
        // `fstat` of a number that is not open is an error, and nothing else.
        // SAFETY: the number is not negative, and the borrow ends with the call.
        let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
        let found = rustix::fs::fstat(fd).ok()?;
        Some(FileIdentity(found.st_dev, found.st_ino))
    }
}
