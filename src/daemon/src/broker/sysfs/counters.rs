//! `counters` and `hw_counters` of a port: which files the kernel has there, and what of ours they
//! say.
//!
//! The first are those of the InfiniBand standard (`PortCounters`), the others those of the
//! kernel's rxe. What we do not count has no file.

use super::files::Files;
use crate::broker::device::RdmaDevice;
use crate::broker::snapshot::{DeviceSnapshot, Snapshot};
use std::collections::BTreeMap;
use urxe_engine::Counter;
use urxe_port::PortCounters;
use urxe_slot::DaemonCounters;
use urxe_slot::link::Counts;

/// A file, and the sum of which counters it shows.
struct Row {
    file: &'static str,
    /// So many of ours are one of theirs.
    unit: u64,
    of: &'static [&'static str],
}

const fn row(file: &'static str, of: &'static [&'static str]) -> Row {
    Row { file, unit: 1, of }
}

/// Amounts of data are in words of 4 bytes.
const fn words(file: &'static str, of: &'static [&'static str]) -> Row {
    Row { file, unit: 4, of }
}

/// What could not be sent.
const NOT_SENT: &[&str] = &[
    "tx_too_large",
    "tx_unreachable",
    "tx_refused",
    "tx_forbidden",
    "tx_no_buffer",
    "tx_wrong_flow",
    "tx_failed",
];

// METRIC-005
const ROWS: &[Row] = &[
    words("counters/port_xmit_data", &["tx_bytes"]),
    words("counters/port_rcv_data", &["rx_bytes"]),
    row("counters/port_xmit_packets", &["tx_datagrams"]),
    row("counters/port_rcv_packets", &["rx_datagrams"]),
    row(
        "counters/port_rcv_errors",
        &[
            "rx_truncated",
            "rx_malformed",
            "rx_overflow",
            "drop_bad_icrc",
            "drop_too_short",
            "drop_unknown_opcode",
            "drop_malformed",
        ],
    ),
    row("counters/port_xmit_discards", NOT_SENT),
    row("counters/link_downed", &["port_errors"]),
    row("hw_counters/sent_pkts", &["sent_packets"]),
    row("hw_counters/rcvd_pkts", &["received_packets"]),
    row("hw_counters/duplicate_request", &["duplicate_requests"]),
    row("hw_counters/out_of_seq_request", &["out_of_sequence"]),
    row("hw_counters/rcvd_rnr_err", &["rnr_naks_received"]),
    row("hw_counters/send_rnr_err", &["rnr_naks_sent"]),
    row("hw_counters/rcvd_seq_err", &["sequence_naks_received"]),
    row("hw_counters/retry_exceeded_err", &["retries_exceeded"]),
    row("hw_counters/retry_rnr_exceeded_err", &["rnr_retries_exceeded"]),
    row(
        "hw_counters/completer_retry_err",
        &["ack_timeouts", "sequence_naks_received", "implied_naks"],
    ),
    row("hw_counters/send_err", NOT_SENT),
    row("hw_counters/link_downed", &["port_errors"]),
];

/// For how many milliseconds a value is told again.
const LIFESPAN_MS: u32 = 1000;

/// What a device has counted since the daemon began, slots that have ended included.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// What each slot that runs had counted when it answered last.
    of_slots: BTreeMap<usize, Vec<u64>>,
    /// What slots had counted that have ended.
    of_ended: Vec<u64>,
    /// What is counted of the device as a whole.
    of_device: Vec<(&'static str, u64)>,
    /// What each file shows, in the order of [`ROWS`].
    shown: Vec<u64>,
}

/// The names of what [`Totals`] has of each slot.
fn names() -> impl Iterator<Item = &'static str> {
    let engine = Counter::ALL.iter().map(|counter| counter.name());
    engine.chain(PortCounters::default().iter().map(|(name, ..)| name))
}

/// What belongs to these [names]. A slot may have listed more or fewer.
fn values(counts: &Counts) -> Vec<u64> {
    let (mut values, ports) = (counts.engine.clone(), PortCounters::default().iter().count());
    values.resize(Counter::ALL.len(), 0);
    values.extend(counts.port.iter().copied().chain(std::iter::repeat(0)).take(ports));
    values
}

impl Totals {
    /// What the broker knows of a device without asking any slot.
    pub(super) fn of_device(device: &RdmaDevice) -> Totals {
        let mut totals = Totals::default();
        totals.of_slots.insert(0, values(&device.counts(&DaemonCounters::default())));
        totals.of_ended = device.of_ended_slots().map(values).unwrap_or_default();
        totals.show();
        totals
    }

    /// Takes in what has been counted of a device until now.
    pub(super) fn take_in(&mut self, snapshot: &Snapshot, device: usize) {
        let Some(DeviceSnapshot { counters, of_ended_slots, .. }) = snapshot.devices.get(device)
        else {
            return;
        };
        self.of_device = counters.iter().map(|(name, value, _)| (name, value)).collect();
        // COUNT-022
        self.of_ended = of_ended_slots.as_ref().map(values).unwrap_or_default();
        self.of_slots.retain(|slot, _| snapshot.running.contains(slot));
        for slot in &snapshot.slots {
            if let Some(counts) = slot.counts.get(device) {
                self.of_slots.insert(slot.number, values(counts));
            }
        }
        self.show();
    }

    /// Works out what the files show.
    fn show(&mut self) {
        self.shown.resize(ROWS.len(), 0);
        for (index, row) in ROWS.iter().enumerate() {
            let sum = row.of.iter().fold(0, |sum: u64, name| sum.saturating_add(self.get(name)));
            // METRIC-006: of a program that was killed, less may be known than when it was asked.
            self.shown[index] = self.shown[index].max(sum);
        }
    }

    /// One counter.
    fn get(&self, name: &str) -> u64 {
        if let Some((_, value)) = self.of_device.iter().find(|(found, _)| *found == name) {
            return *value;
        }
        let Some(index) = names().position(|found| found == name) else { return 0 };
        let all = self.of_slots.values().chain([&self.of_ended]);
        all.filter_map(|counts| counts.get(index)).fold(0, |sum, value| sum.saturating_add(*value))
    }

    /// The files of a port.
    pub(super) fn files(&self, device: &str) -> Files {
        let port = format!("class/infiniband/{device}/ports/1");
        let content = |(row, shown): (&Row, &u64)| {
            (format!("{port}/{}", row.file), format!("{}\n", shown / row.unit))
        };
        let lifespan = (format!("{port}/hw_counters/lifespan"), format!("{LIFESPAN_MS}\n"));
        ROWS.iter().zip(&self.shown).map(content).chain([lifespan]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::snapshot::SlotSnapshot;
    use crate::counters::{CmObjectCounters, DeviceCounters, counter_meanings};
    use urxe_cm::CmCounters;

    fn counts(engine: u64, port: u64) -> Counts {
        let port = vec![port; PortCounters::default().iter().count()];
        let engine = vec![engine; Counter::ALL.len()];
        let [nic, daemon, objects, paths] = Default::default();
        Counts { engine, port, nic, daemon, objects, paths }
    }

    fn read(totals: &Totals, file: &str) -> u64 {
        let files = totals.files("urxe0");
        files[&format!("class/infiniband/urxe0/ports/1/{file}")].trim().parse().unwrap()
    }

    #[test]
    fn every_file_shows_counters_that_there_are() {
        let all = counter_meanings();
        for name in ROWS.iter().flat_map(|row| row.of) {
            assert!(all.iter().any(|(known, _)| known == name), "{name}");
        }
        let files: Vec<&str> = ROWS.iter().map(|row| row.file).collect();
        assert!((1..files.len()).all(|index| !files[..index].contains(&files[index])));
    }

    /// What is known once these slots have answered, these run, and slots have ended that had
    /// counted this.
    fn snapshot(slots: &[(usize, Counts)], running: &[usize], ended: Option<Counts>) -> Snapshot {
        let slots = slots.iter().map(|(number, counts)| SlotSnapshot {
            number: *number,
            user: 0,
            sessions: 1,
            counts: vec![counts.clone()],
        });
        let device = DeviceSnapshot {
            name: "urxe0".into(),
            cm: CmCounters::default(),
            counters: DeviceCounters::default(),
            of_ended_slots: ended,
        };
        Snapshot {
            devices: vec![device],
            slots: slots.collect(),
            running: running.to_vec(),
            cm_objects: CmObjectCounters::default(),
        }
    }

    #[test]
    fn data_is_in_words_and_a_file_may_be_a_sum() {
        let mut totals = Totals::default();
        let slots = [(1, counts(5, 1000)), (2, counts(7, 2000))];
        totals.take_in(&snapshot(&slots, &[0, 1, 2], None), 0);
        assert_eq!(read(&totals, "counters/port_xmit_data"), 750);
        assert_eq!(read(&totals, "counters/port_rcv_packets"), 3000);
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), 12);
        assert_eq!(read(&totals, "hw_counters/completer_retry_err"), 36);
        assert_eq!(read(&totals, "hw_counters/send_err"), 21_000);
        assert_eq!(read(&totals, "hw_counters/lifespan"), 1000);
    }

    /// COUNT-022
    #[test]
    fn a_slot_that_ends_takes_nothing_away_and_leaves_all_that_it_counted() {
        let mut totals = Totals::default();
        let (one, two) = ((1, counts(5, 50)), (2, counts(100, 100)));
        totals.take_in(&snapshot(&[one.clone(), two], &[1, 2], None), 0);
        // It counts on, ends, and another one begins in its place that has counted as much.
        let ended = Some(counts(110, 120));
        totals.take_in(&snapshot(&[one.clone(), (2, counts(100, 100))], &[1, 2], ended), 0);
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), 215);
        // One that has run within a second leaves its part too.
        let ended = Some(counts(117, 130));
        totals.take_in(&snapshot(&[one, (2, counts(101, 100))], &[1, 2], ended), 0);
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), 223);
        assert_eq!(read(&totals, "counters/port_xmit_packets"), 280);
    }

    /// METRIC-006
    #[test]
    fn a_file_never_shows_less() {
        let mut totals = Totals::default();
        totals.take_in(&snapshot(&[(1, counts(5, 0)), (2, counts(100, 0))], &[1, 2], None), 0);
        // It is stopped: what it had counted when it answered last is known.
        totals.take_in(&snapshot(&[(1, counts(9, 0))], &[1, 2], None), 0);
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), 109);
        // It was killed, and had not written all down.
        totals.take_in(&snapshot(&[(1, counts(10, 0))], &[1], Some(counts(97, 0))), 0);
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), 109);
        totals.take_in(&snapshot(&[(1, counts(20, 0))], &[1], Some(counts(97, 0))), 0);
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), 117);
    }

    #[test]
    fn whatever_a_slot_lists_is_no_more_than_a_number() {
        let mut totals = Totals::default();
        let long =
            Counts { engine: vec![u64::MAX; 500], port: vec![u64::MAX; 500], ..counts(0, 0) };
        let short = Counts { engine: Vec::new(), port: Vec::new(), ..counts(0, 0) };
        for counts in [&long, &short, &long] {
            totals.take_in(&snapshot(&[(3, counts.clone())], &[3], Some(long.clone())), 0);
        }
        assert_eq!(read(&totals, "hw_counters/sent_pkts"), u64::MAX);
        assert_eq!(read(&totals, "counters/port_xmit_packets"), u64::MAX);
    }
}
