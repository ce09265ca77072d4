//! Writes the histories of a slot's QPs into its file.

use super::record::{self, Record};
use super::{Clock, PLACE_LEN, PLACES, counts_place, offset};
use crate::Runner;
use crate::counters::DaemonCounters;
use crate::device::SlotDevice;
use crate::known_qp::KnownQp;
use crate::questions::counts;
use crate::session::{Program, SlotCtx};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use urxe_nic::{Nic, OwnerId};
use urxe_types::Qpn;

/// How long after there was something to do the slot looks which histories have changed: what a
/// history lacks at most when the slot is killed.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// At this pace histories are written that have changed, at about 10 us each: 1 % of the time.
const PACE: Duration = Duration::from_millis(1);

/// So many are written at once after a pause.
const AT_ONCE: u32 = 4;

/// Of those that have failed, so many are kept in any case.
const MOST_FAILED: usize = 64;

/// A QP whose history is in the file.
#[derive(Debug)]
struct HistoryPlace {
    qp: (usize, Qpn),
    /// When its program changed its state last, or it failed, in the order in which that happened.
    noted: u64,
    has_failed: bool,
    /// What it had counted when it was written, and its state.
    written: u64,
    /// It is to be written.
    waits: bool,
}

/// The slot's end of the file.
pub(crate) struct HistoryWriter {
    /// There is none where the broker could not make it.
    file: Option<File>,
    clock: Clock,
    places: Vec<HistoryPlace>,
    /// Which place a QP that is there has.
    place_of: BTreeMap<(usize, Qpn), usize>,
    waiting: VecDeque<usize>,
    last_note: u64,
    /// When to look which have changed, if there was anything to do.
    look_at: Option<Instant>,
    /// Up to when what was written has used the pace up.
    used_up: Instant,
    buffer: Box<[u8; PLACE_LEN]>,
}

/// Where the histories and the counters are that are written.
struct Histories<'a> {
    devices: &'a [SlotDevice],
    programs: &'a BTreeMap<OwnerId, Program>,
    counters: &'a DaemonCounters,
}

/// Does what is due of the writer of a slot, which has done something in this turn or not.
pub(crate) fn turn(ctx: &mut SlotCtx, worked: bool) {
    let now = ctx.now;
    let (writer, histories) = split(ctx);
    writer.turn(now, worked, &histories);
}

/// Writes all that has changed, before the slot ends.
pub(crate) fn finish(ctx: &mut SlotCtx) {
    let (writer, histories) = split(ctx);
    writer.finish(Instant::now(), &histories);
}

/// Writes what has been counted, if the program that closes a device runs the slot.
pub(crate) fn note_closed(ctx: &mut SlotCtx) {
    if ctx.allotment.runner == Runner::Program {
        let (writer, histories) = split(ctx);
        writer.write_counts(Instant::now(), &histories);
    }
}

fn split(ctx: &mut SlotCtx) -> (&mut HistoryWriter, Histories<'_>) {
    let SlotCtx { devices, programs, counters, history_writer, .. } = ctx;
    (history_writer, Histories { devices, programs, counters })
}

impl HistoryWriter {
    pub(crate) fn new(now: Instant, file: Option<File>) -> HistoryWriter {
        HistoryWriter {
            file,
            clock: Clock::new(now),
            places: Vec::new(),
            place_of: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_note: 0,
            look_at: None,
            used_up: now,
            buffer: Box::new([0; PLACE_LEN]),
        }
    }

    /// A QP's program has changed its state: it is in the file from now on.
    pub(crate) fn modified(&mut self, device: usize, qpn: Qpn) {
        self.note((device, qpn), false);
    }

    /// A QP has failed.
    pub(crate) fn failed(&mut self, device: usize, qpn: Qpn) {
        self.note((device, qpn), true);
    }

    fn note(&mut self, qp: (usize, Qpn), has_failed: bool) {
        if self.file.is_none() {
            return;
        }
        self.last_note += 1;
        let number = self.place_of.get(&qp).copied().unwrap_or_else(|| self.take_place(qp));
        let Some(place) = self.places.get_mut(number) else { return };
        place.noted = self.last_note;
        place.has_failed |= has_failed;
        if !std::mem::replace(&mut place.waits, true) {
            self.waiting.push_back(number);
        }
    }

    /// A place for a QP that has none.
    fn take_place(&mut self, qp: (usize, Qpn)) -> usize {
        let new = HistoryPlace { qp, noted: 0, has_failed: false, written: 0, waits: false };
        let number = self.places.len();
        if number < PLACES {
            self.places.push(new);
            self.place_of.insert(qp, number);
            return number;
        }
        // HISTORY-016
        let failed = self.places.iter().filter(|place| place.has_failed).count();
        let places = self.places.iter().enumerate();
        let of_others = places.filter(|(_, place)| place.has_failed == (failed > MOST_FAILED));
        let oldest = of_others.min_by_key(|(_, place)| place.noted);
        let number = oldest.map_or(0, |(number, _)| number);
        let place = &mut self.places[number];
        let waits = place.waits;
        let before = std::mem::replace(place, HistoryPlace { waits, ..new });
        if self.place_of.get(&before.qp) == Some(&number) {
            self.place_of.remove(&before.qp);
        }
        self.place_of.insert(qp, number);
        number
    }

    /// A QP ends now, and is written as it was at last, if it has a place.
    pub(crate) fn ended(&mut self, now: Instant, device: usize, known: &KnownQp) {
        // Its number may be another's some time.
        if let Some(number) = self.place_of.remove(&(device, known.qpn())) {
            self.places[number].has_failed |= known.has_failed();
            self.write(now, number, known);
        }
    }

    /// Looks what has changed some time after something was done, and writes some of it.
    fn turn(&mut self, now: Instant, worked: bool, histories: &Histories<'_>) {
        if self.places.is_empty() {
            return;
        }
        match self.look_at {
            Some(at) if at <= now => {
                self.look_at = None;
                self.look(histories);
                self.write_counts(now, histories);
            }
            None if worked => self.look_at = Some(now + LOOK_AFTER),
            _ => {}
        }
        while self.used_up <= now
            && let Some(number) = self.waiting.pop_front()
        {
            self.used_up = self.used_up.max(now.checked_sub(PACE * AT_ONCE).unwrap_or(now)) + PACE;
            self.write_of(now, number, histories);
        }
    }

    fn finish(&mut self, now: Instant, histories: &Histories<'_>) {
        self.look(histories);
        while let Some(number) = self.waiting.pop_front() {
            self.write_of(now, number, histories);
        }
        self.write_counts(now, histories);
    }

    /// When there is something to do although nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let write_at = (!self.waiting.is_empty()).then_some(self.used_up);
        write_at.into_iter().chain(self.look_at).min()
    }

    /// Finds out which have counted something since they were written.
    fn look(&mut self, histories: &Histories<'_>) {
        for &number in self.place_of.values() {
            let place = &mut self.places[number];
            if !place.waits && histories.summary(place.qp).is_some_and(|now| now != place.written) {
                place.waits = true;
                self.waiting.push_back(number);
            }
        }
    }

    /// Writes what waits in a place, if its QP is still there.
    fn write_of(&mut self, now: Instant, number: usize, histories: &Histories<'_>) {
        let place = &mut self.places[number];
        place.waits = false;
        let (device, qpn) = place.qp;
        if self.place_of.get(&place.qp) != Some(&number) {
            return;
        }
        place.written = histories.summary(place.qp).unwrap_or_default();
        let Some(nic) = histories.nic(device) else { return };
        if let Some(known) = KnownQp::of(nic, histories.programs, qpn) {
            self.write(now, number, &known);
        }
    }

    fn write(&mut self, now: Instant, number: usize, known: &KnownQp) {
        let (device, _) = self.places[number].qp;
        let record = Record { device, traffic: known.traffic(), history: known.shown(now) };
        self.write_record(now, number, &record);
    }

    /// Writes what has been counted until now.
    fn write_counts(&mut self, now: Instant, histories: &Histories<'_>) {
        for (device, SlotDevice { nic, .. }) in histories.devices.iter().enumerate() {
            // COUNT-022
            self.write_record(now, counts_place(device), &counts(nic, histories.counters));
        }
    }

    fn write_record(&mut self, now: Instant, place: usize, record: &impl Serialize) {
        let Some(file) = &self.file else { return };
        let len = record::write(record, self.clock.since_boot(now), &mut self.buffer[..]);
        if let Some(bytes) = len.and_then(|len| self.buffer.get(..len)) {
            // Without memory for it, it is as if the slot had been killed before.
            let _ = file.write_all_at(bytes, offset(place));
        }
    }
}

impl Histories<'_> {
    fn nic(&self, device: usize) -> Option<&Nic> {
        self.devices.get(device).map(|device| &device.nic)
    }

    /// A number that is another one when anything was counted of a QP since.
    fn summary(&self, (device, qpn): (usize, Qpn)) -> Option<u64> {
        let counters = self.nic(device)?.device().qp_counters(qpn)?;
        Some(counters.iter().fold(0, |sum: u64, (_, value, _)| sum.wrapping_add(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> HistoryWriter {
        let file = crate::history_file::create(1).unwrap();
        HistoryWriter::new(Instant::now(), Some(File::from(file)))
    }

    #[test]
    fn the_qps_that_failed_last_keep_their_places_and_of_others_the_newest() {
        let mut writer = writer();
        for number in 0..100 {
            writer.modified(0, Qpn::new(number));
            writer.failed(0, Qpn::new(number));
        }
        for number in 1_000..2_000 {
            writer.modified(0, Qpn::new(number));
        }
        assert_eq!((writer.places.len(), writer.place_of.len()), (PLACES, PLACES));
        let has_place = |number| writer.place_of.contains_key(&(0, Qpn::new(number)));
        let failed: Vec<u32> = (0..100).filter(|&number| has_place(number)).collect();
        assert_eq!(failed, (36..100).collect::<Vec<_>>());
        assert!((2_000 - (PLACES as u32 - 64)..2_000).all(has_place));
        assert!(writer.waiting.len() <= PLACES, "each waits once");
    }

    #[test]
    fn after_what_was_done_there_is_one_look_and_no_other() {
        let (mut writer, now) = (writer(), Instant::now());
        let programs = BTreeMap::new();
        let histories =
            Histories { devices: &[], programs: &programs, counters: &DaemonCounters::default() };
        assert_eq!(writer.deadline(), None, "there is no QP");
        writer.modified(0, Qpn::new(7));
        writer.turn(now, true, &histories);
        assert_eq!(writer.deadline(), Some(now + LOOK_AFTER));
        writer.turn(now + LOOK_AFTER / 2, true, &histories);
        writer.turn(now + LOOK_AFTER, false, &histories);
        assert_eq!(writer.deadline(), None, "nothing was done since");
    }

    #[test]
    fn histories_that_change_all_the_time_are_written_at_a_bounded_pace() {
        let (mut writer, now) = (writer(), Instant::now());
        let programs = BTreeMap::new();
        let histories =
            Histories { devices: &[], programs: &programs, counters: &DaemonCounters::default() };
        for number in 0..PLACES as u32 {
            writer.modified(0, Qpn::new(number));
        }
        writer.turn(now, false, &histories);
        let left = writer.waiting.len();
        assert!(left >= PLACES - AT_ONCE as usize - 1, "{left}");
        let next = writer.deadline().unwrap();
        assert!(next > now && next <= now + PACE, "{next:?}");
        writer.turn(now + PACE, false, &histories);
        assert!(writer.waiting.len() < left);
    }
}
