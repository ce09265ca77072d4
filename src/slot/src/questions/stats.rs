//! Statistics: what a device, its port and its QPs have counted here.

use crate::counters::{DaemonCounters, PathSums};
use crate::link::Counts;
use crate::session::Program;
use std::collections::BTreeMap;
use std::ops::Add;
use urxe_engine::PathInfo;
use urxe_nic::{Nic, OwnerId};
use urxe_shm::control::QpStats;

/// So many of the QPs behind a number with their counters; and the last of them, if there are more.
pub(super) fn qps(
    nic: &Nic,
    programs: &BTreeMap<OwnerId, Program>,
    may_see: impl Fn(OwnerId) -> bool,
    after: Option<u32>,
    most: usize,
) -> (Vec<QpStats>, Option<u32>) {
    let qps = nic.qps_behind(after, may_see);
    let mut qps = qps.filter_map(|(qpn, qp)| {
        let program = programs.get(&qp.owner)?.name.to_string();
        let counters = nic.device().qp_counters(qpn)?;
        let values = counters.iter().map(|(_, value, _)| value).collect();
        Some(QpStats { qpn: qpn.get(), state: qp.info.state, program, values })
    });
    // COUNT-014
    let page: Vec<QpStats> = qps.by_ref().take(most).collect();
    let last = page.last().map(|qp| qp.qpn).filter(|_| qps.next().is_some());
    (page, last)
}

/// What is counted of the whole device, and beside it, and what it has.
pub fn counts(nic: &Nic, daemon: &DaemonCounters) -> Counts {
    fn values<'a>(
        counters: impl Iterator<Item = (&'static str, u64, &'static str)> + 'a,
    ) -> Vec<u64> {
        counters.map(|(_, value, _)| value).collect()
    }
    Counts {
        engine: values(nic.device().counters().iter()),
        port: values(nic.port_counters().iter()),
        nic: values(nic.counters().iter()),
        daemon: values(daemon.iter()),
        objects: values(nic.object_counts().iter()),
        paths: values(sum_of_paths(nic).iter()),
    }
}

/// What all paths have together. Peers are not named: whoever sees the sums need not be one who may
/// see the paths.
fn sum_of_paths(nic: &Nic) -> PathSums {
    // METRIC-008
    let paths = nic.device().paths().filter(|path| path.users > 0);
    let sums = paths.map(|PathInfo { outward, inward, .. }| PathSums {
        paths: 1,
        path_outward_window_bytes: outward.window,
        path_outward_in_flight_bytes: outward.in_flight,
        path_outward_rate_bytes_per_second: outward.rate.unwrap_or(0),
        path_outward_waiting_qps: outward.waiting as u64,
        path_inward_window_bytes: inward.window,
        path_inward_in_flight_bytes: inward.in_flight,
        path_inward_rate_bytes_per_second: inward.rate.unwrap_or(0),
        path_inward_waiting_qps: inward.waiting as u64,
    });
    sums.fold(PathSums::default(), Add::add)
}
