//! Reads the file when its slot has ended.

use super::record::{self, NoRecord, Record};
use super::{Clock, PLACE_LEN, PLACES, counts_place, offset};
use crate::link::Counts;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use urxe_shm::control::QpHistory;
use urxe_types::Traffic;

/// Bytes that are read of each place, and of most are enough.
const SHORT_LEN: usize = 4096;

/// What a file holds.
#[derive(Debug, Default)]
pub struct HistoriesRead {
    /// Of all QPs with a place.
    pub histories: Vec<WrittenHistory>,
    /// Places that were being written, or held something else than a history.
    pub damaged: usize,
}

/// A history as the file had it.
#[derive(Debug, PartialEq, Eq)]
pub struct WrittenHistory {
    /// The number of its device, as the slot has it.
    pub device: usize,
    /// What the QP had counted when it was written.
    pub traffic: Traffic,
    /// Its times are as long ago as they were when it was written.
    pub history: QpHistory,
    /// How long ago that was.
    pub age: Duration,
}

/// Reads all that a file holds. Nothing of it can be believed but that it can be shown.
pub fn read(file: &File, now: Instant) -> HistoriesRead {
    let clock = Clock::new(now);
    let (mut found, mut place) = (HistoriesRead::default(), [0; PLACE_LEN]);
    for number in 0..PLACES {
        // Its size is sealed, so that this does not fail.
        let fill = |part: &mut [u8], from: usize| {
            file.read_exact_at(part, offset(number) + from as u64).is_ok()
        };
        let mut is_read = fill(&mut place[..SHORT_LEN], 0);
        if record::end(&place) > SHORT_LEN {
            is_read &= fill(&mut place[SHORT_LEN..], SHORT_LEN);
        }
        match if is_read { record::read(&place) } else { Err(NoRecord::Damaged) } {
            Ok((Record { device, traffic, history }, since_boot)) => {
                let age = clock.ago(since_boot);
                found.histories.push(WrittenHistory { device, traffic, history, age });
            }
            Err(NoRecord::Empty) => {}
            Err(NoRecord::Damaged) => found.damaged += 1,
        }
    }
    found
}

/// What a slot had counted of a device when it wrote last; `None` if it did not, or it cannot be
/// read.
pub fn read_counts(file: &File, device: usize) -> Option<Counts> {
    let mut place = [0; PLACE_LEN];
    file.read_exact_at(&mut place, offset(counts_place(device))).ok()?;
    record::read_any(&place).ok().map(|(counts, _)| counts)
}
