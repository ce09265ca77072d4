//! Statistics as a table and as JSON.

use crate::daemon_client::{DaemonClient, DeviceStats};
use crate::error::Error;
use crate::growth::Growth;
use crate::path_view::PathView;
use crate::table::{Align, Table};
use crate::units;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_shm::control::{CounterInfo, DeviceInfo, QpStats};
use urxe_types::QpState;

/// What of the statistics is wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) device: Option<String>,
    pub(super) qp: Option<u32>,
    pub(super) nonzero: bool,
}

/// The selected statistics at one time, or what was counted between two.
pub(super) struct Snapshot {
    taken: Instant,
    interval: Option<Duration>,
    devices: Vec<(DeviceInfo, DeviceStats)>,
}

impl Snapshot {
    /// Asks the daemon.
    pub(super) fn take(client: &mut DaemonClient, selection: &Selection) -> Result<Self, Error> {
        let mut devices = Vec::new();
        for device in client.devices_named(selection.device.as_deref())? {
            let mut stats = client.stats(&device.name)?;
            stats.qps.retain(|qp| selection.qp.is_none_or(|wanted| wanted == qp.qpn));
            devices.push((device, stats));
        }
        if let (Some(qpn), true) =
            (selection.qp, devices.iter().all(|(_, stats)| stats.qps.is_empty()))
        {
            let expected = "expected one of `urxe stat`; QPs of other users are shown to root and \
                            to the daemon's own user only";
            return Err(Error::Failed(format!("no QP {qpn:#08x}: {expected}")));
        }
        Ok(Snapshot { taken: Instant::now(), interval: None, devices })
    }

    /// The form in which it is shown.
    pub(super) fn view(&self, selection: &Selection) -> View {
        let shown = |value: u64| value != 0 || !selection.nonzero;
        let mut meanings = BTreeMap::new();
        let devices = self.devices.iter().map(|(device, stats)| {
            let infos = stats.counters.iter().map(|(info, _)| info).chain(&stats.qp_counters);
            for CounterInfo { name, meaning } in infos {
                meanings.entry(name.clone()).or_insert_with(|| meaning.clone());
            }
            // For one QP the counters of the device are left out.
            let own = stats.counters.iter().filter(|_| selection.qp.is_none());
            let counters = own.filter(|(_, value)| shown(*value));
            DeviceView {
                device: device.name.clone(),
                address: device.address,
                counters: Counts(counters.map(|(i, value)| (i.name.clone(), *value)).collect()),
                paths: stats
                    .paths
                    .iter()
                    .filter(|_| selection.qp.is_none())
                    .map(PathView::from)
                    .collect(),
                qps: stats.qps.iter().map(|qp| QpView::new(qp, stats, shown)).collect(),
            }
        });
        View {
            interval_s: self.interval.map(|interval| interval.as_secs_f64()),
            devices: devices.collect(),
            meanings,
        }
    }
}

/// Snapshots one after the other, and what is counted between them.
pub(super) struct Watch {
    growth: Growth,
    before: Instant,
}

impl Watch {
    /// Begins with a first one.
    pub(super) fn from(first: &Snapshot) -> Watch {
        let mut watch = Watch { growth: Growth::default(), before: first.taken };
        watch.since_last(first);
        watch
    }

    /// What was counted since the last one.
    pub(super) fn since_last(&mut self, now: &Snapshot) -> Snapshot {
        let devices = now.devices.iter().map(|(device, stats)| {
            (device.clone(), self.growth.since_last(&device.name, stats, now.taken))
        });
        let before = std::mem::replace(&mut self.before, now.taken);
        let interval = Some(now.taken.duration_since(before));
        Snapshot { taken: now.taken, interval, devices: devices.collect() }
    }
}

/// Statistics to be shown.
#[derive(Serialize)]
pub(super) struct View {
    /// Seconds in which this was counted; without it, since the daemon or QP began.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_s: Option<f64>,
    devices: Vec<DeviceView>,
    /// What each counter counts.
    meanings: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct DeviceView {
    device: String,
    address: IpAddr,
    counters: Counts,
    /// How they are, not what was counted.
    paths: Vec<PathView>,
    qps: Vec<QpView>,
}

#[derive(Serialize)]
struct QpView {
    qpn: u32,
    state: QpState,
    program: String,
    counters: Counts,
}

impl QpView {
    fn new(qp: &QpStats, stats: &DeviceStats, shown: impl Fn(u64) -> bool) -> Self {
        let counters = stats.qp_counters.iter().zip(&qp.values);
        let counters = counters.filter(|&(_, &value)| shown(value));
        QpView {
            qpn: qp.qpn,
            state: qp.state,
            program: qp.program.clone(),
            counters: Counts(counters.map(|(i, &value)| (i.name.clone(), value)).collect()),
        }
    }
}

/// Counters in the daemon's order; an object in JSON.
struct Counts(Vec<(String, u64)>);

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            write!(f, "{} ({})", device.device, device.address)?;
            match self.interval_s {
                Some(seconds) => writeln!(f, ", in {seconds:.2} s")?,
                None => writeln!(f)?,
            }
            self.counts(f, "  ", &device.counters)?;
            for path in &device.paths {
                path.to_string().lines().try_for_each(|line| writeln!(f, "  {line}"))?;
            }
            for qp in &device.qps {
                let state = format!("{:?}", qp.state).to_uppercase();
                writeln!(f, "  QP {:#08x} {state}, of {}", qp.qpn, qp.program)?;
                self.counts(f, "    ", &qp.counters)?;
            }
        }
        Ok(())
    }
}

impl View {
    fn counts(&self, f: &mut fmt::Formatter<'_>, indent: &str, counts: &Counts) -> fmt::Result {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Right), ("", Align::Left)]);
        for (name, value) in &counts.0 {
            let meaning = self.meanings.get(name).cloned().unwrap_or_default();
            table.row(vec![name.clone(), units::count(*value), meaning]);
        }
        // The columns explain themselves; the empty head is left out.
        table.to_string().lines().skip(1).try_for_each(|line| writeln!(f, "{indent}{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(sent: u64, qp_sent: u64) -> Snapshot {
        let info = |name: &str| CounterInfo { name: name.into(), meaning: format!("{name}.") };
        let qp = QpStats {
            qpn: 17,
            state: QpState::Rts,
            program: "test".into(),
            values: vec![qp_sent, 0],
        };
        let stats = DeviceStats {
            counters: vec![(info("sent"), sent), (info("lost"), 0)],
            qp_counters: vec![info("sent"), info("lost")],
            qps: vec![qp],
            paths: vec![crate::path_view::tests::path()],
        };
        let address = IpAddr::from([127, 0, 0, 1]);
        let device = DeviceInfo { name: "urxe0".into(), node_guid: [0; 8], address };
        Snapshot { taken: Instant::now(), interval: None, devices: vec![(device, stats)] }
    }

    fn json(snapshot: &Snapshot, selection: &Selection) -> serde_json::Value {
        serde_json::to_value(snapshot.view(selection)).unwrap()
    }

    #[test]
    fn json_has_each_counter_by_its_name() {
        let view = json(&snapshot(5, 3), &Selection::default());
        assert_eq!(view["devices"][0]["counters"]["sent"], 5);
        assert_eq!(view["devices"][0]["counters"]["lost"], 0);
        assert_eq!(view["devices"][0]["qps"][0]["counters"]["sent"], 3);
        assert_eq!(view["meanings"]["sent"], "sent.");
    }

    #[test]
    fn zeros_are_left_out_on_demand() {
        let nonzero = Selection { nonzero: true, ..Selection::default() };
        let view = json(&snapshot(5, 3), &nonzero);
        assert!(view["devices"][0]["counters"].get("lost").is_none());
        let text = snapshot(5, 3).view(&nonzero).to_string();
        assert!(text.contains("sent") && !text.contains("lost"), "{text}");
    }

    #[test]
    fn paths_are_shown_as_they_are_but_not_for_one_qp() {
        let shown =
            Watch::from(&snapshot(5, 3)).since_last(&snapshot(12, 9)).view(&Selection::default());
        assert!(shown.to_string().contains("3 QPs wait for the pace"), "{shown}");
        let json = serde_json::to_value(&shown).unwrap();
        let path = &json["devices"][0]["paths"][0];
        assert_eq!((&path["peer"], &path["qps"]), (&"10.0.0.2".into(), &5.into()));
        assert_eq!(path["outward"]["held_by"], "pace");
        let one = Selection { qp: Some(17), ..Selection::default() };
        assert!(!snapshot(12, 9).view(&one).to_string().contains("path 2"));
    }

    #[test]
    fn watching_shows_what_was_counted_since_the_last_look_and_in_which_time() {
        let selection = Selection::default();
        let mut watch = Watch::from(&snapshot(5, 3));
        let view = json(&watch.since_last(&snapshot(12, 9)), &selection);
        assert_eq!(view["devices"][0]["counters"]["sent"], 7);
        assert_eq!(view["devices"][0]["qps"][0]["counters"]["sent"], 6);
        assert!(view["interval_s"].is_number());
        let view = json(&watch.since_last(&snapshot(13, 9)), &selection);
        assert_eq!(view["devices"][0]["counters"]["sent"], 1);
    }
}
