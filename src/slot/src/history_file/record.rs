//! What a place of the file holds: when it was written, a length, a checksum, and the history, or
//! the counts, as in a message.
//!
//! The checksum finds what was being written when the slot ended. Against bytes that are made up it
//! is of no use, and need not be: they are checked as any that come from outside.

use super::PLACE_LEN;
use crate::pages::{HISTORY_LEN, MAX_SHOWN_NAME};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use urxe_engine::{Cause, Counter, MAX_HISTORY_ENTRIES};
use urxe_shm::control::{Happening, QpHistory, decode, encode};
use urxe_types::Traffic;

/// Bytes before the history.
pub(super) const HEADER_LEN: usize = 20;

/// Characters of a reason, which may be longer by what was seen of the peer.
const MAX_REASON_LEN: usize = 4096;

/// A QP of a device, with the times of its history as they were when it was written.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) device: usize,
    /// What it had counted by then.
    pub(super) traffic: Traffic,
    pub(super) history: QpHistory,
}

/// A place that holds no history.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRecord {
    /// Nothing was ever written there.
    Empty,
    /// What was written is not whole, or is nothing that a slot writes.
    Damaged,
}

/// Writes a record, or counts, into a buffer of the size of a place. Returns how many bytes it
/// takes; `None` if there is no room for it.
pub(super) fn write(
    record: &impl Serialize,
    since_boot: Duration,
    place: &mut [u8],
) -> Option<usize> {
    let (header, body) = place.split_at_mut_checked(HEADER_LEN)?;
    let len = encode(record, body.get_mut(..HISTORY_LEN)?).ok()?;
    let since_boot = u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX);
    header[4..12].copy_from_slice(&since_boot.to_le_bytes());
    header[12..20].copy_from_slice(&(len as u64).to_le_bytes());
    let end = HEADER_LEN + len;
    let sum = crc32fast::hash(&place[4..end]);
    place[..4].copy_from_slice(&sum.to_le_bytes());
    Some(end)
}

/// Where the record of a place ends, as far as its first bytes can be believed.
pub(super) fn end(place: &[u8; PLACE_LEN]) -> usize {
    let len = place.get(12..20).into_iter().flatten().rev();
    let len = len.fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    usize::try_from(len).map_or(PLACE_LEN, |len| len.saturating_add(HEADER_LEN))
}

/// Reads what a place holds, and since when, as the kernel's monotonic clock has it.
pub(super) fn read(place: &[u8; PLACE_LEN]) -> Result<(Record, Duration), NoRecord> {
    let (record, since_boot): (Record, _) = read_any(place)?;
    // HISTORY-017
    match is_possible(&record.history) {
        true => Ok((record, since_boot)),
        false => Err(NoRecord::Damaged),
    }
}

/// The same of whatever can be read, without a look at what it says.
pub(super) fn read_any<T: DeserializeOwned>(
    place: &[u8; PLACE_LEN],
) -> Result<(T, Duration), NoRecord> {
    let Some((header, body)) = place.split_first_chunk::<HEADER_LEN>() else {
        return Err(NoRecord::Empty);
    };
    if *header == [0; HEADER_LEN] {
        return Err(NoRecord::Empty);
    }
    let [s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7, ..] = *header;
    let sum = u32::from_le_bytes([s0, s1, s2, s3]);
    let since_boot = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
    let bytes = body.get(..end(place) - HEADER_LEN).filter(|bytes| bytes.len() <= HISTORY_LEN);
    let bytes = bytes.ok_or(NoRecord::Damaged)?;
    if crc32fast::hash(&place[4..HEADER_LEN + bytes.len()]) != sum {
        return Err(NoRecord::Damaged);
    }
    let record = decode(bytes).map_err(|_| NoRecord::Damaged)?;
    Ok((record, Duration::from_nanos(since_boot)))
}

/// Whether a history is one that a slot of ours writes, and can be shown to anybody.
fn is_possible(history: &QpHistory) -> bool {
    let is_text = |text: &str| !text.chars().any(char::is_control);
    let is_counter = |name: &str| Counter::ALL.iter().any(|counter| counter.name() == name);
    let reason = history.reason.as_deref().unwrap_or_default();
    let is_entry = |what: &Happening| match what {
        Happening::Modified(_) | Happening::Heard => true,
        Happening::Failed { cause, .. } => Cause::from_number(*cause).is_some(),
        Happening::Counted(name) => is_counter(name),
        // Whoever reads the file says so.
        Happening::SlotEnded(_) => false,
    };
    history.program.len() <= MAX_SHOWN_NAME
        && is_text(&history.program)
        && reason.len() <= MAX_REASON_LEN
        && is_text(reason)
        && history.entries.len() <= MAX_HISTORY_ENTRIES
        && history.entries.iter().all(|entry| is_entry(&entry.what))
        && history.counters.len() <= Counter::ALL.len()
        && history.counters.iter().all(|(name, _)| is_counter(name))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use urxe_shm::control::HistoryEntry;
    use urxe_types::{QpAttr, QpState, QpType};

    pub(crate) fn history(qpn: u32) -> QpHistory {
        let entry = HistoryEntry {
            at: Duration::from_secs(2),
            span: Duration::ZERO,
            times: 1,
            what: Happening::Counted("ack_timeouts".into()),
            traffic: Traffic::default(),
        };
        QpHistory {
            qpn,
            program: "test[7]".into(),
            uid: 1000,
            qp_type: QpType::Rc,
            state: QpState::Rts,
            attr: QpAttr::default(),
            gone: None,
            heard: None,
            entries: vec![entry],
            left_out: 0,
            failed: None,
            reason: None,
            counters: vec![("ack_timeouts".into(), 1)],
        }
    }

    fn written(history: QpHistory) -> ([u8; PLACE_LEN], usize) {
        let mut place = [0; PLACE_LEN];
        let record = Record { device: 1, traffic: Traffic::default(), history };
        let len = write(&record, Duration::from_nanos(77), &mut place).unwrap();
        (place, len)
    }

    #[test]
    fn a_record_that_was_written_is_read() {
        let (place, _) = written(history(7));
        let (record, since_boot) = read(&place).unwrap();
        assert_eq!((record.device, record.history), (1, history(7)));
        assert_eq!(since_boot, Duration::from_nanos(77));
        assert_eq!(read(&[0; PLACE_LEN]), Err(NoRecord::Empty));
    }

    #[test]
    fn a_record_that_was_being_written_is_damaged() {
        let (whole, len) = written(history(7));
        let (before, _) = written(QpHistory { program: "another[9]".into(), ..history(9) });
        for written in 1..len {
            let mut torn = before;
            torn[..written].copy_from_slice(&whole[..written]);
            if torn[..len] == whole[..len] {
                continue;
            }
            assert_eq!(read(&torn), Err(NoRecord::Damaged), "{written} of {len} bytes");
        }
    }

    #[test]
    fn a_history_that_no_slot_writes_is_damaged() {
        let with = |change: fn(&mut QpHistory)| {
            let mut history = history(7);
            change(&mut history);
            read(&written(history).0)
        };
        assert!(with(|_| ()).is_ok());
        let changes: [fn(&mut QpHistory); 8] = [
            |history| history.program = "p".repeat(MAX_SHOWN_NAME + 1),
            |history| history.program = "\u{1b}[2J".into(),
            |history| history.reason = Some("\n".into()),
            |history| history.reason = Some("r".repeat(MAX_REASON_LEN + 1)),
            |history| history.entries = vec![history.entries[0].clone(); MAX_HISTORY_ENTRIES + 1],
            |history| history.entries[0].what = Happening::Counted("\u{1b}".into()),
            |history| history.entries[0].what = Happening::SlotEnded("It is not so.".into()),
            |history| history.counters[0].0 = "nothing".into(),
        ];
        for change in changes {
            assert_eq!(with(change), Err(NoRecord::Damaged));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut place = [0; PLACE_LEN];
            place[..bytes.len()].copy_from_slice(&bytes);
            // With a checksum that is right.
            let len = bytes.len().saturating_sub(HEADER_LEN);
            place[12..20].copy_from_slice(&(len as u64).to_le_bytes());
            let sum = crc32fast::hash(&place[4..HEADER_LEN + len]);
            place[..4].copy_from_slice(&sum.to_le_bytes());
            let _ = read(&place);
            let (mut place, len) = written(history(7));
            for (at, byte) in bytes.iter().enumerate() {
                place[HEADER_LEN + at % (len - HEADER_LEN)] ^= byte;
            }
            let sum = crc32fast::hash(&place[4..len]);
            place[..4].copy_from_slice(&sum.to_le_bytes());
            let _ = read(&place);
        }
    }
}
