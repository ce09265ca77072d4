//! What a daemon has counted since it was asked last.
//!
//! An answer may lack some of it: a slot that says nothing, because its program is stopped, is left
//! out, and takes part again later. What it had counted before is no growth then.

use crate::daemon_client::DeviceStats;
use std::collections::HashMap;
use std::time::Instant;
use urxe_shm::control::QpStats;

/// QPs that are missing from the answers and are remembered, because they may come again.
const MAX_MISSING: usize = 16_384;

/// What was seen so far, by the names of devices.
#[derive(Default)]
pub(crate) struct Growth {
    devices: HashMap<String, Seen>,
}

/// What was seen of one device.
#[derive(Default)]
struct Seen {
    /// The most that each counter has been.
    counters: HashMap<String, u64>,
    /// QPs as they were last, and when.
    qps: HashMap<u32, (Instant, QpStats)>,
}

impl Growth {
    /// Takes in what a device has counted until `now`. Returns what is new of it. A device or QP
    /// that was not seen before has counted from 0.
    pub(crate) fn since_last(
        &mut self,
        device: &str,
        stats: &DeviceStats,
        now: Instant,
    ) -> DeviceStats {
        let seen = self.devices.entry(device.to_owned()).or_default();
        let mut grown = stats.clone();
        for (info, value) in &mut grown.counters {
            let most = seen.counters.entry(info.name.clone()).or_default();
            // A sum without a slot is less than what it was.
            let before = std::mem::replace(most, (*value).max(*most));
            *value = value.saturating_sub(before);
        }
        for qp in &mut grown.qps {
            let before = seen.qps.insert(qp.qpn, (now, qp.clone()));
            if let Some((_, before)) = before.filter(|(_, before)| is_same(before, qp)) {
                for (value, before) in qp.values.iter_mut().zip(&before.values) {
                    *value -= before;
                }
            }
        }
        seen.forget_missing(now);
        grown
    }
}

impl Seen {
    /// Forgets of the QPs that were not there now those that have been missing for longest, if
    /// there are many.
    fn forget_missing(&mut self, now: Instant) {
        let missing = self.qps.iter().filter(|(_, (at, _))| *at != now);
        let mut missing: Vec<(Instant, u32)> = missing.map(|(qpn, (at, _))| (*at, *qpn)).collect();
        missing.sort_unstable();
        let too_many = missing.len().saturating_sub(MAX_MISSING);
        for (_, qpn) in &missing[..too_many] {
            self.qps.remove(qpn);
        }
    }
}

/// Whether a QP is the one that had its number before, and not another, which counts from 0.
fn is_same(before: &QpStats, now: &QpStats) -> bool {
    let have_grown = before.values.iter().zip(&now.values).all(|(before, now)| before <= now);
    before.program == now.program && have_grown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use urxe_shm::control::CounterInfo;
    use urxe_types::QpState;

    fn qp(qpn: u32, program: &str, values: [u64; 2]) -> QpStats {
        let (state, program) = (QpState::Rts, program.to_owned());
        QpStats { qpn, state, program, values: values.to_vec() }
    }

    fn stats(sent: u64, qps: Vec<QpStats>) -> DeviceStats {
        let info = CounterInfo { name: "sent".into(), meaning: String::new() };
        DeviceStats { counters: vec![(info, sent)], qps, ..DeviceStats::default() }
    }

    /// What one look after the other shows: of the device, and of its QPs.
    fn shown(looks: Vec<DeviceStats>) -> Vec<(u64, Vec<Vec<u64>>)> {
        let (mut growth, start) = (Growth::default(), Instant::now());
        let at = |index| start + Duration::from_secs(index as u64);
        let looks = looks.iter().enumerate();
        let grown = looks.map(|(index, look)| growth.since_last("urxe0", look, at(index)));
        let values = |stats: DeviceStats| stats.qps.into_iter().map(|qp| qp.values).collect();
        grown.map(|grown| (grown.get("sent"), values(grown))).collect()
    }

    #[test]
    fn growth_between_two_looks_is_shown_and_a_new_qp_counts_from_0() {
        let [one, new] = [|values| qp(1, "a[7]", values), |values| qp(2, "a[7]", values)];
        let looks = vec![stats(10, vec![one([9, 1])]), stats(25, vec![one([12, 1]), new([8, 4])])];
        assert_eq!(shown(looks)[1], (15, vec![vec![3, 0], vec![8, 4]]));
    }

    #[test]
    fn counts_of_a_slot_from_before_it_was_silent_are_not_shown_again() {
        let [own, other] = [|values| qp(1, "a[7]", values), |values| qp(2, "b[8]", values)];
        let looks = vec![
            stats(1_010, vec![own([1_000, 0]), other([10, 0])]),
            stats(12, vec![other([12, 0])]),
            stats(13, vec![other([13, 0])]),
            stats(1_016, vec![own([1_002, 0]), other([14, 0])]),
        ];
        let shown = shown(looks);
        assert_eq!(shown[1], (0, vec![vec![2, 0]]));
        assert_eq!(shown[3], (6, vec![vec![2, 0], vec![1, 0]]));
    }

    #[test]
    fn another_qp_with_the_number_of_one_that_is_gone_counts_from_0() {
        let looks = vec![
            stats(0, vec![qp(1, "a[7]", [5, 5])]),
            stats(0, vec![qp(1, "a[7]", [7, 1])]),
            stats(0, vec![qp(1, "b[8]", [9, 2])]),
        ];
        let shown = shown(looks);
        assert_eq!((&shown[1].1[0], &shown[2].1[0]), (&vec![7, 1], &vec![9, 2]));
    }

    #[test]
    fn qps_that_are_gone_are_not_remembered_without_bound() {
        let (mut growth, now) = (Growth::default(), Instant::now());
        let all = (0..MAX_MISSING as u32 + 5).map(|qpn| qp(qpn, "a[7]", [1, 1])).collect();
        growth.since_last("urxe0", &stats(0, all), now);
        let later = now + Duration::from_secs(1);
        growth.since_last("urxe0", &stats(0, vec![qp(3, "a[7]", [2, 2])]), later);
        assert_eq!(growth.devices["urxe0"].qps.len(), MAX_MISSING + 1);
    }
}
