//! Snapshots in the text format of [OpenMetrics](https://openmetrics.io) 1.0.
//!
//! Names and sentences are those of `urxe stat`, from the same tables. What a slot counts has
//! series of its own: a slot begins at 0 whenever it is started, so that a sum over all of them
//! would seem to go backwards when one ends.

use crate::broker::snapshot::{DeviceSnapshot, SlotSnapshot, Snapshot};
use crate::counters::{CmObjectCounters, DeviceCounters};
use std::fmt::{self, Display, Write};
use urxe_cm::CmCounter;
use urxe_engine::Counter;
use urxe_nic::{HostCounters, ObjectCounts};
use urxe_port::PortCounters;
use urxe_slot::link::Counts;
use urxe_slot::{DaemonCounters, PathSums};

/// The media type of what is written here.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All that a snapshot has.
pub(super) fn exposition(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    // It never fails: a string takes everything.
    let _ = write_all(&mut text, snapshot);
    text
}

/// Names and sentences, as the tables of counters list them.
type Table<'a> = &'a mut dyn Iterator<Item = (&'static str, &'static str)>;

/// Labels, and a value for each line of a table.
type Series = (String, Vec<u64>);

fn write_all(text: &mut String, snapshot: &Snapshot) -> fmt::Result {
    // METRIC-001
    let engine = &mut Counter::ALL.iter().map(|counter| (counter.name(), counter.meaning()));
    counters(text, engine, &of_slots(snapshot, |counts| &counts.engine))?;
    let port = &mut PortCounters::default().iter().map(named);
    counters(text, port, &of_slots(snapshot, |counts| &counts.port))?;
    let nic = &mut HostCounters::default().iter().map(named);
    counters(text, nic, &of_slots(snapshot, |counts| &counts.nic))?;

    let cm = &mut CmCounter::ALL.iter().map(|counter| (counter.name(), counter.meaning()));
    counters(text, cm, &of_devices(snapshot, |device| values(device.cm.iter())))?;
    let device = &mut DeviceCounters::default().iter().map(named);
    counters(text, device, &of_devices(snapshot, |device| values(device.counters.iter())))?;

    let cm_objects = &mut CmObjectCounters::default().iter().map(named);
    counters(text, cm_objects, &[(String::new(), values(snapshot.cm_objects.iter()))])?;
    let daemon = &mut DaemonCounters::default().iter().map(named);
    let of_daemon = |slot: &SlotSnapshot| {
        Some((format!("{{{}}}", slot_labels(slot)), slot.counts.first()?.daemon.clone()))
    };
    counters(text, daemon, &snapshot.slots.iter().filter_map(of_daemon).collect::<Vec<_>>())?;

    let objects = &mut ObjectCounts::default().iter().map(named);
    gauges(text, objects, &of_slots(snapshot, |counts| &counts.objects))?;
    let paths = &mut PathSums::default().iter().map(named);
    gauges(text, paths, &of_slots(snapshot, |counts| &counts.paths))?;
    let sessions = &mut [("sessions", "Programs that are connected.")].into_iter();
    let of_daemon =
        |slot: &SlotSnapshot| (format!("{{{}}}", slot_labels(slot)), vec![slot.sessions as u64]);
    gauges(text, sessions, &snapshot.slots.iter().map(of_daemon).collect::<Vec<_>>())?;
    text.write_str("# EOF\n")
}

/// What slots count of devices.
fn of_slots(snapshot: &Snapshot, counts: fn(&Counts) -> &Vec<u64>) -> Vec<Series> {
    // METRIC-002
    let of_slot = |slot: &SlotSnapshot| {
        let each = snapshot.devices.iter().zip(&slot.counts);
        let each = each.map(|(device, found)| {
            let labels = format!("{{{},{}}}", device_label(device), slot_labels(slot));
            (labels, counts(found).clone())
        });
        each.collect::<Vec<Series>>()
    };
    snapshot.slots.iter().flat_map(of_slot).collect()
}

/// What is counted of whole devices.
fn of_devices(snapshot: &Snapshot, values: fn(&DeviceSnapshot) -> Vec<u64>) -> Vec<Series> {
    let devices = snapshot.devices.iter();
    devices.map(|device| (format!("{{{}}}", device_label(device)), values(device))).collect()
}

fn device_label(device: &DeviceSnapshot) -> String {
    format!("device=\"{}\"", Escaped(&device.name))
}

fn slot_labels(slot: &SlotSnapshot) -> String {
    format!("slot=\"{}\",user=\"{}\"", slot.number, slot.user)
}

fn named((name, _, meaning): (&'static str, u64, &'static str)) -> (&'static str, &'static str) {
    (name, meaning)
}

fn values(counters: impl Iterator<Item = (&'static str, u64, &'static str)>) -> Vec<u64> {
    counters.map(|(_, value, _)| value).collect()
}

/// A family for each counter of a table.
fn counters(text: &mut String, table: Table<'_>, series: &[Series]) -> fmt::Result {
    families(text, ("counter", "_total"), table, series)
}

/// The same for what becomes more and less.
fn gauges(text: &mut String, table: Table<'_>, series: &[Series]) -> fmt::Result {
    families(text, ("gauge", ""), table, series)
}

fn families(
    text: &mut String,
    (kind, suffix): (&str, &str),
    table: Table<'_>,
    series: &[Series],
) -> fmt::Result {
    for (index, (name, meaning)) in table.enumerate() {
        family(text, name, kind, meaning)?;
        for (labels, values) in series {
            // A slot may have listed fewer.
            if let Some(value) = values.get(index) {
                writeln!(text, "urxe_{name}{suffix}{labels} {value}")?;
            }
        }
    }
    Ok(())
}

/// What stands before the samples of a family.
fn family(text: &mut String, name: &str, kind: &str, meaning: &str) -> fmt::Result {
    writeln!(text, "# TYPE urxe_{name} {kind}")?;
    if let Some((_, unit @ "bytes")) = name.rsplit_once('_') {
        writeln!(text, "# UNIT urxe_{name} {unit}")?;
    }
    writeln!(text, "# HELP urxe_{name} {}", Escaped(meaning))
}

/// Text in which nothing ends it early.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            char => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(first: u64) -> Counts {
        let all = |len: usize| (first..).take(len).collect();
        let nic = HostCounters::default().iter().count();
        let (port, daemon) = (PortCounters::default().iter().count(), 3);
        Counts {
            engine: all(Counter::ALL.len()),
            port: all(port),
            nic: all(nic),
            daemon: all(daemon),
            objects: all(ObjectCounts::default().iter().count()),
            paths: all(PathSums::default().iter().count()),
        }
    }

    fn snapshot() -> Snapshot {
        let device = |name: &str| DeviceSnapshot {
            name: name.into(),
            cm: urxe_cm::CmCounters::default(),
            counters: DeviceCounters { gid_changes: 5, ..DeviceCounters::default() },
            of_ended_slots: None,
        };
        let slot = |number, user, first| SlotSnapshot {
            number,
            user,
            sessions: number,
            counts: vec![counts(first), counts(first + 1000)],
        };
        Snapshot {
            devices: vec![device("urxe0"), device("mlx5_0")],
            slots: vec![slot(0, 7, 0), slot(3, 1000, 100)],
            running: vec![0, 3],
            cm_objects: CmObjectCounters::default(),
        }
    }

    #[test]
    fn each_slot_has_series_of_its_own() {
        let text = exposition(&snapshot());
        let family = "\
# TYPE urxe_sent_bytes counter
# UNIT urxe_sent_bytes bytes
# HELP urxe_sent_bytes Payload bytes put on the wire, repeats included.
urxe_sent_bytes_total{device=\"urxe0\",slot=\"0\",user=\"7\"} 1
urxe_sent_bytes_total{device=\"mlx5_0\",slot=\"0\",user=\"7\"} 1001
urxe_sent_bytes_total{device=\"urxe0\",slot=\"3\",user=\"1000\"} 101
urxe_sent_bytes_total{device=\"mlx5_0\",slot=\"3\",user=\"1000\"} 1101
# TYPE ";
        assert!(text.contains(family), "{text}");
        assert!(text.contains("\nurxe_gid_changes_total{device=\"mlx5_0\"} 5\n"), "{text}");
        assert!(text.contains("\nurxe_sessions_closed_total{slot=\"3\",user=\"1000\"} 101\n"));
        assert!(text.contains("\nurxe_sessions{slot=\"3\",user=\"1000\"} 3\n"), "{text}");
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn counters_that_a_slot_does_not_list_are_left_out() {
        let text = exposition(&snapshot());
        assert!(text.contains("# TYPE urxe_sleeps counter\n"), "{text}");
        assert!(!text.contains("urxe_sleeps_total"), "{text}");
    }

    #[test]
    fn no_text_ends_its_line_or_its_quotes() {
        assert_eq!(Escaped("a\\b\"c\nd").to_string(), "a\\\\b\\\"c\\nd");
    }
}
