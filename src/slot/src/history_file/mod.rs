//! What happened to the QPs of a slot, and what it has counted, in a file that outlives the slot.
//!
//! A slot keeps the histories of its QPs for itself, and they go with it. So it also writes them
//! into a memfd that the broker has as well, which reads it when the slot has ended, however it
//! did: a process that is killed has no time to say anything.
//!
//! - The file has [`PLACES`] places of one size, each for one QP, and its size is sealed. A QP has
//!   a place from the time on that its program first changed its state. When all are taken, the
//!   place is another's of the QP to which that happened longest ago; but the 64 that failed last
//!   keep theirs.
//! - Nothing is written for a packet. A tenth of a second after there was something to do, the slot
//!   looks which of these QPs have counted anything since, and writes those at a bounded rate; what
//!   ended or failed is written at once.
//! - Behind these places each device has one for what the slot has counted of it, which is written
//!   as often as is looked; in a slot that a program runs also when the program closes a device,
//!   before it is told that this is done: its process may be gone the next moment.
//! - Whoever reads it trusts nothing in it ([`read`]): a place that was being written, or holds
//!   what no slot of ours writes, is left out and counted.

mod reader;
mod record;
mod writer;

pub use reader::{HistoriesRead, WrittenHistory, read, read_counts};
pub(crate) use writer::{HistoryWriter, finish, note_closed, turn};

use crate::pages::HISTORY_LEN;
use record::HEADER_LEN;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use urxe_shm::memory::region::create_memfd_of_fixed_size;

/// QPs that a file has room for: so many as a page of memory each is little beside the slot's
/// buffers, and more than most programs have.
pub const PLACES: usize = 256;

/// Bytes of a place. Of most, only the first page is ever used, and is memory.
const PLACE_LEN: usize = 16 * 1024;

const _: () = assert!(HEADER_LEN + HISTORY_LEN <= PLACE_LEN);

/// Makes a file for a slot with so many devices, in which nothing is written yet.
///
/// # Errors
/// What the system refuses.
pub fn create(devices: usize) -> io::Result<OwnedFd> {
    create_memfd_of_fixed_size("urxe-histories", offset(counts_place(devices)))
}

/// Where a place begins in the file.
fn offset(place: usize) -> u64 {
    (place * PLACE_LEN) as u64
}

/// The place of what is counted of a device.
fn counts_place(device: usize) -> usize {
    PLACES + device
}

/// The time that the slot and whoever reads its file have in common, beside ours.
#[derive(Clone, Copy, Debug)]
struct Clock {
    at: Instant,
    /// The same as the kernel's monotonic clock has it.
    since_boot: Duration,
}

impl Clock {
    fn new(now: Instant) -> Clock {
        // That clock begins with the machine, and has no time before.
        let since_boot = Duration::try_from(clock_gettime(ClockId::Monotonic));
        Clock { at: now, since_boot: since_boot.unwrap_or_default() }
    }

    /// A time of ours, not before this clock was read.
    fn since_boot(self, at: Instant) -> Duration {
        self.since_boot + at.saturating_duration_since(self.at)
    }

    /// How long before this clock was read something was; not at all, if it pretends to come.
    fn ago(self, since_boot: Duration) -> Duration {
        self.since_boot.saturating_sub(since_boot)
    }
}
