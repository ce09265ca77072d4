//! The table as a picture: bandwidths by that of kernel TCP, beside those of an older run.

use super::{Figure, JSON_VERSION, Results};
use std::path::Path;
use urxe_chart::{Across, Chart, Panel, Series};
use urxe_shell::Result;

/// The figures of an older run.
pub(super) struct Older {
    name: String,
    results: Results,
}

impl Older {
    /// Reads them from a file.
    pub(super) fn read(path: &Path) -> Result<Older> {
        let wrong = |error: &dyn std::fmt::Display| {
            format!("--beside {}: {error}; expected figures of `cargo xtask bench`", path.display())
        };
        let text = std::fs::read(path).map_err(|error| wrong(&error))?;
        let results: Results = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
        if results.version > JSON_VERSION {
            return Err(wrong(&format_args!("version {}", results.version)));
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Older { name, results })
    }
}

/// Bars for all tests that have a bandwidth by that of TCP, with a panel for each MTU of the link.
pub(super) fn chart(results: &Results, older: Option<&Older>) -> Chart {
    let mut mtus: Vec<u32> = results.figures.iter().map(|figure| figure.link_mtu).collect();
    mtus.dedup();
    let panels = mtus.into_iter().map(|mtu| {
        let of_link = |figure: &&Figure| figure.link_mtu == mtu;
        // TCP by itself is 1.
        let is_ratio =
            |figure: &&Figure| figure.by_tcp.is_some() && !figure.test.starts_with("TCP (iperf3)");
        let figures: Vec<_> = results.figures.iter().filter(of_link).filter(is_ratio).collect();
        let series = |name: &str, find: &dyn Fn(&Figure) -> Option<f64>| {
            let values = figures.iter().map(|figure| find(figure)).enumerate();
            let points = values.filter_map(|(index, value)| Some((index as f64, value?)));
            Series { name: name.to_owned(), points: points.collect() }
        };
        let mut all = vec![series("this run", &|figure: &Figure| figure.by_tcp)];
        if let Some(older) = older {
            let same = |wanted: &Figure| {
                let mut all = older.results.figures.iter().filter(of_link);
                all.find(|figure| figure.test == wanted.test && figure.size == wanted.size)?.by_tcp
            };
            all.push(series(&older.name, &same));
        }
        let names = figures.iter().map(|figure| match figure.size {
            Some(size) => format!("{}, {size} B", figure.test),
            None => figure.test.clone(),
        });
        let across = Across::Rows(names.collect());
        Panel { title: format!("link with an MTU of {mtu}"), across, series: all }
    });
    let Results { family, rounds, .. } = results;
    let title = format!("Bandwidth by that of kernel TCP, {family}, median of {rounds} rounds");
    Chart { title, panels: panels.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(figures: &[(u32, &str, Option<f64>)]) -> Results {
        let figure = |&(link_mtu, test, by_tcp): &(u32, &str, Option<f64>)| Figure {
            link_mtu,
            test: test.into(),
            size: Some(64),
            by_tcp,
            ..Figure::default()
        };
        Results {
            version: 1,
            machine: "one".into(),
            family: "IPv4".into(),
            rounds: 3,
            seconds: 1.0,
            figures: figures.iter().map(figure).collect(),
        }
    }

    fn points(chart: &Chart) -> Vec<Vec<(f64, f64)>> {
        let series = chart.panels.iter().flat_map(|panel| &panel.series);
        series.map(|series| series.points.clone()).collect()
    }

    #[test]
    fn each_ratio_is_a_bar_in_the_panel_of_its_link() {
        let results = results(&[
            (1500, "TCP (iperf3)", Some(1.0)),
            (1500, "write-bw", Some(1.5)),
            (1500, "write-lat", None),
            (9000, "read-bw", Some(2.5)),
        ]);
        let chart = chart(&results, None);
        assert_eq!(points(&chart), [[(0., 1.5)], [(0., 2.5)]]);
        assert_eq!(chart.panels[1].title, "link with an MTU of 9000");
        let Across::Rows(names) = &chart.panels[0].across else { panic!("{chart:?}") };
        assert_eq!(*names, ["write-bw, 64 B"]);
    }

    #[test]
    fn an_older_run_has_a_bar_for_each_test_of_the_same_name_size_and_link() {
        let older = results(&[(9000, "a", Some(9.0)), (1500, "b", Some(1.0)), (1500, "c", None)]);
        let older = Older { name: "older".into(), results: older };
        let new =
            results(&[(1500, "a", Some(2.0)), (1500, "b", Some(3.0)), (1500, "c", Some(4.0))]);
        let chart = chart(&new, Some(&older));
        assert_eq!(points(&chart), [vec![(0., 2.0), (1., 3.0), (2., 4.0)], vec![(1., 1.0)]]);
    }

    #[test]
    fn figures_that_were_written_are_read_again_and_others_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("before.json");
        let written = results(&[(1500, "write-bw", Some(1.5))]);
        std::fs::write(&path, serde_json::to_string(&written).unwrap()).unwrap();
        let older = Older::read(&path).unwrap();
        assert_eq!((older.name.as_str(), older.results.figures[0].by_tcp), ("before", Some(1.5)));
        let unversioned = serde_json::to_string(&written).unwrap().replace("\"version\":1,", "");
        std::fs::write(&path, unversioned).unwrap();
        assert_eq!(Older::read(&path).unwrap().results.version, 0);
        let newer = serde_json::to_string(&Results { version: 99, ..written }).unwrap();
        for wrong in ["{}", &newer] {
            std::fs::write(&path, wrong).unwrap();
            let error = Older::read(&path).err().unwrap();
            assert!(error.contains("before.json") && error.contains("expected figures"), "{error}");
        }
    }
}
