//! Measured figures beside each other: a table as text, and the same as a picture.

mod axis;
mod svg;

pub use axis::Axis;

use std::fmt;

/// Figures of several runs.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What was run.
    pub title: String,
    /// What was measured, beside each other.
    pub panels: Vec<Panel>,
}

/// One thing that was measured.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it is, with its unit.
    pub title: String,
    /// What it depends on.
    pub across: Across,
    /// The same measured in several ways, at most as many as there are colours.
    pub series: Vec<Series>,
}

/// What a measured number depends on.
#[derive(Clone, Debug)]
pub enum Across {
    /// One of these; drawn as bars.
    Names(Vec<String>),
    /// One of these, which have long names or are many; drawn as bars that lie under each other.
    Rows(Vec<String>),
    /// A number that is called so; drawn as lines.
    Count(&'static str),
    /// Bytes; drawn as lines, with logarithmic scales for both.
    Bytes,
    /// Seconds; drawn as lines.
    Seconds,
    /// The part of all operations that took at most as long. A point is at `n` where one of `n`
    /// operations took longer; drawn as lines, with logarithmic scales for both.
    Percentile,
}

impl Across {
    /// What stands at the axis.
    pub fn caption(&self) -> &'static str {
        match self {
            Across::Names(_) | Across::Rows(_) => "",
            Across::Count(name) => name,
            Across::Bytes => "bytes",
            Across::Seconds => "seconds",
            Across::Percentile => "percentile",
        }
    }

    /// How one of its values is written.
    fn label(&self, place: f64) -> String {
        match self {
            Across::Names(names) | Across::Rows(names) => {
                names.get(place as usize).cloned().unwrap_or_default()
            }
            Across::Count(_) | Across::Seconds => format!("{place}"),
            Across::Bytes => bytes(place),
            Across::Percentile => percentile(place),
        }
    }
}

/// Points of one colour.
#[derive(Clone, Debug)]
pub struct Series {
    /// What they have in common.
    pub name: String,
    /// Where each is (of names, their index), and what was measured there.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Groups points by the name of their series, in the order in which each appears first.
    pub fn group(points: impl IntoIterator<Item = (String, (f64, f64))>) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        for (name, point) in points {
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => all.push(Series { name, points: vec![point] }),
            }
        }
        all
    }

    fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|point| point.0 == x).map(|point| point.1)
    }
}

impl Panel {
    /// Where there is anything, smallest first.
    fn places(&self) -> Vec<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut places: Vec<_> = points.map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }
}

/// The command that this process was given, with the name that its program has for its users.
pub fn command(program: &str) -> String {
    let given = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    [program.to_owned()].into_iter().chain(given).collect::<Vec<_>>().join(" ")
}

/// A number as it fits over a bar.
fn short(number: f64) -> String {
    let (scaled, unit) = match number {
        1e6.. => (number / 1e6, "M"),
        1e3.. => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let digits = match scaled {
        100.0.. => 0,
        0.1.. => 1,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = if digits == 0 { &text } else { text.trim_end_matches('0').trim_end_matches('.') };
    format!("{text}{unit}")
}

fn bytes(count: f64) -> String {
    match count {
        1048576.0.. => format!("{}M", count / 1048576.),
        1024.0.. => format!("{}K", count / 1024.),
        _ => format!("{count}"),
    }
}

/// The percentile that one of `n` is above, with as many digits as tell it from 100.
fn percentile(n: f64) -> String {
    let digits = (n.log10().ceil() - 2.).clamp(0., 9.) as usize;
    format!("{:.digits$}", 100. - 100. / n)
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.title)?;
        self.panels.iter().try_for_each(|panel| write!(f, "\n\n{panel}"))
    }
}

impl fmt::Display for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.places();
        let labels: Vec<_> = places.iter().map(|place| self.across.label(*place)).collect();
        let first = self.across.caption();
        let longest = labels.iter().map(String::len).fold(first.len(), usize::max);
        let width = |series: &Series| series.name.len().max(9) + 2;
        write!(f, "{}\n{first:longest$}", self.title)?;
        for series in &self.series {
            write!(f, "{:>1$}", series.name, width(series))?;
        }
        for (place, label) in places.iter().zip(&labels) {
            write!(f, "\n{label:longest$}")?;
            for series in &self.series {
                let value = series.at(*place).map_or_else(String::new, |value| {
                    let digits = if value < 100. { 2 } else { 0 };
                    format!("{value:.digits$}")
                });
                write!(f, "{value:>0$}", width(series))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_number_in_its_row_and_column_and_nothing_where_nothing_was_measured() {
        let points = [("none", (0., 1000.)), ("batch", (0., 2500.)), ("none", (1., 40.))];
        let points = points.map(|(name, point)| (name.to_owned(), point));
        let across = Across::Names(vec!["tcp".into(), "send & receive".into()]);
        let series = Series::group(points);
        let panel = Panel { title: "requests a second".into(), across, series };
        let text = Chart { title: "A sequencer".into(), panels: vec![panel] }.to_string();
        let rows: Vec<Vec<_>> = text.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[3], ["none", "batch"], "{text}");
        assert_eq!(rows[4], ["tcp", "1000", "2500"], "{text}");
        assert_eq!(rows[5], ["send", "&", "receive", "40.00"], "{text}");
    }

    #[test]
    fn numbers_that_are_written_shortly_are_the_same_numbers() {
        for (number, text) in
            [(0., "0"), (0.01, "0.01"), (0.6016, "0.6"), (12.34, "12.3"), (999., "999")]
        {
            assert_eq!(short(number), text);
        }
        for (number, text) in [(1000., "1k"), (118_400., "118k"), (2.5e6, "2.5M")] {
            assert_eq!(short(number), text);
        }
        assert_eq!([8., 65536., 1048576.].map(bytes), ["8", "64K", "1M"]);
        assert_eq!([1., 2., 10., 100.].map(percentile), ["0", "50", "90", "99"]);
        assert_eq!([1e3, 1e4, 1e6].map(percentile), ["99.9", "99.99", "99.9999"]);
    }
}
