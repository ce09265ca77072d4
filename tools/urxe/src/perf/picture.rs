//! What was measured, as a picture: of one length over time, or how latencies are distributed; of
//! several, over lengths.

use super::plan::Plan;
use super::report::Row;
use urxe_chart::{Across, Chart, Panel, Series};

/// The picture of a test that is called so.
pub(super) fn chart(title: String, plan: &Plan, rows: &[Row]) -> Chart {
    let is_latency = plan.test.is_latency();
    let panels = match rows {
        [row] if is_latency => vec![distribution(row)],
        [row] => vec![over_time(row)],
        _ if is_latency => vec![latencies(rows)],
        _ => bandwidths(plan, rows),
    };
    Chart { title, panels }
}

fn over_time(row: &Row) -> Panel {
    let series = vec![Series { name: "sent".into(), points: row.curve.clone() }];
    let title = format!("Gbit/s, messages of {} bytes", row.size);
    Panel { title, across: Across::Seconds, series }
}

fn distribution(row: &Row) -> Panel {
    let series = vec![Series { name: "latency".into(), points: row.curve.clone() }];
    let title = format!("microseconds, messages of {} bytes", row.size);
    Panel { title, across: Across::Percentile, series }
}

fn latencies(rows: &[Row]) -> Panel {
    let points = rows.iter().flat_map(|row| {
        let of_row =
            row.latency_us.map(|us| [("median", us.median), ("p99", us.p99), ("p99.9", us.p99_9)]);
        let named = |(name, us): (&str, f64)| (name.to_owned(), (f64::from(row.size), us));
        of_row.into_iter().flatten().map(named)
    });
    Panel { title: "microseconds".into(), across: Across::Bytes, series: Series::group(points) }
}

fn bandwidths(plan: &Plan, rows: &[Row]) -> Vec<Panel> {
    let panel = |title: &str, figure: fn(&super::report::Bandwidth) -> f64| {
        let points = rows.iter().flat_map(|row| {
            let sent = row.bandwidth.as_ref().map(|bandwidth| ("sent", bandwidth));
            let received = row.received.as_ref().map(|received| ("received", &received.bandwidth));
            let all = sent.into_iter().chain(received);
            all.map(|(name, bandwidth)| (name.to_owned(), (f64::from(row.size), figure(bandwidth))))
        });
        Panel { title: title.into(), across: Across::Bytes, series: Series::group(points) }
    };
    let mut panels = vec![
        panel("Gbit/s", |bandwidth| bandwidth.bandwidth_gbit_s),
        panel("messages a second", |bandwidth| bandwidth.messages_per_s),
    ];
    if plan.transport.is_reliable() {
        // All that is sent arrives.
        let series = panels.iter_mut().flat_map(|panel| &mut panel.series);
        series.for_each(|series| series.name = plan.test.name());
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Test, Transport, tests::plan};
    use super::super::report::Received;
    use super::*;
    use crate::latency::Latencies;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn several_lengths_are_a_curve_over_bytes() {
        let rows = [64, 4096].map(|size| Row::bandwidth(size, 1_000_000, SECOND));
        let chart = chart("a".into(), &plan(Test::WriteBw, 64), &rows);
        assert_eq!(chart.panels.len(), 2);
        assert_eq!(chart.panels[0].series[0].name, "write-bw");
        assert_eq!(chart.panels[0].series[0].points, [(64., 0.512), (4096., 32.768)]);
        assert_eq!(chart.panels[1].series[0].points, [(64., 1e6), (4096., 1e6)]);
    }

    #[test]
    fn unreliable_messages_that_arrive_are_a_curve_of_their_own() {
        let received = Some(Received::new(1000, 500, 1000, SECOND));
        let row = |size| Row { received, ..Row::bandwidth(size, 1000, SECOND) };
        let plan = Plan { transport: Transport::Ud, ..plan(Test::SendBw, 1000) };
        let chart = chart("a".into(), &plan, &[row(1000), row(2000)]);
        let names: Vec<_> = chart.panels[0].series.iter().map(|series| &series.name).collect();
        assert_eq!(names, ["sent", "received"]);
        assert_eq!(chart.panels[1].series[1].points[0], (1000., 500.));
    }

    #[test]
    fn one_length_is_a_distribution_and_several_are_percentiles_over_bytes() {
        let mut times = Latencies::new();
        (1..=1000).for_each(|us| times.record(Duration::from_micros(us)));
        let row = |size| Row::latency(size, SECOND, &times);
        let plan = plan(Test::SendLat, 8);
        let one = chart("a".into(), &plan, &[row(8)]);
        assert!(matches!(one.panels[0].across, Across::Percentile));
        let last = one.panels[0].series[0].points.last().copied().unwrap();
        assert_eq!(last.0, 1000., "the slowest of a thousand");
        let two = chart("a".into(), &plan, &[row(8), row(16)]);
        let names: Vec<_> = two.panels[0].series.iter().map(|series| &series.name).collect();
        assert_eq!(names, ["median", "p99", "p99.9"]);
    }
}
