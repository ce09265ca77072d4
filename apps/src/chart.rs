//! What several runs came to: a table as text, and the same as a picture.

use crate::error::Error;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// A picture of several runs.
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
    /// A number that is called so; drawn as lines.
    Count(&'static str),
    /// Bytes; drawn as lines, with logarithmic scales for both.
    Bytes,
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

/// Colours that people who see red and green alike can tell from each other (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x55, 0x55, 0x55),
];

const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// In pixels.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 432;
const TITLE_HEIGHT: u32 = 44;
const COMMAND_HEIGHT: u32 = 14;
const LEGEND_HEIGHT: i32 = 44;

impl Chart {
    /// Draws it as an SVG, with the command that made it.
    ///
    /// # Errors
    /// [`Error::Picture`] if the file cannot be written.
    pub fn save(&self, path: &Path, command: &str) -> Result<(), Error> {
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        self.draw(&area, command).map_err(|error| Error::Picture(error.to_string()))?;
        drop(area);
        std::fs::write(path, svg).map_err(Error::io("writing the picture"))
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, command: &str) -> Drawn {
        area.fill(&WHITE)?;
        let style = ("sans-serif", 19).into_font().color(&BLACK);
        area.draw(&Text::new(self.title.as_str(), (16, 14), style))?;
        let corner = Pos::new(HPos::Right, VPos::Bottom);
        let style = ("monospace", 11).into_font().color(&GREY).pos(corner);
        let place = (WIDTH as i32 - 22, HEIGHT as i32 - 6);
        area.draw(&Text::new(command, place, style))?;
        let inner = area.margin(TITLE_HEIGHT, COMMAND_HEIGHT, 0, 0);
        let areas = inner.split_evenly((1, self.panels.len().max(1)));
        self.panels.iter().zip(&areas).try_for_each(|(panel, area)| panel.draw(area))?;
        Ok(area.present()?)
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        self.draw_legend(area)?;
        let mut builder = ChartBuilder::on(area);
        builder.margin_right(22).margin_bottom(8).margin_top(LEGEND_HEIGHT);
        builder.set_label_area_size(LabelAreaPosition::Left, 62);
        builder.set_label_area_size(LabelAreaPosition::Bottom, 44);
        let mut chart = builder.build_cartesian_2d(self.axis_x(), self.axis_y())?;
        let small = ("sans-serif", 13).into_font().color(&GREY);
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(GREY.mix(0.6))
            .bold_line_style(GREY.mix(0.25))
            .light_line_style(TRANSPARENT);
        mesh.label_style(small.clone());
        match self.across {
            Across::Names(_) => mesh.disable_x_mesh(),
            Across::Count(name) => mesh.x_desc(name),
            Across::Bytes => mesh.x_desc("bytes"),
        };
        mesh.draw()?;
        let bottom = chart.as_coord_spec().y_spec().range.start;
        for (place, series) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            if !matches!(self.across, Across::Names(_)) {
                chart.draw_series(LineSeries::new(
                    series.points.iter().copied(),
                    colour.stroke_width(2),
                ))?;
                let dot = |point: &(f64, f64)| Circle::new(*point, 3, colour.filled());
                chart.draw_series(series.points.iter().map(dot))?;
                continue;
            }
            for &(group, value) in &series.points {
                let (from, to) = self.bar(group, place);
                let corners = [(from, bottom), (to, value)];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                let (x, y) = chart.backend_coord(&((from + to) / 2., value));
                let (left, top) = area.get_base_pixel();
                let centred = Pos::new(HPos::Center, VPos::Bottom);
                let style = ("sans-serif", 11).into_font().color(&GREY).pos(centred);
                area.draw(&Text::new(short(value), (x - left, y - top - 2), style))?;
            }
        }
        Ok(())
    }

    /// A title, and under it the name of each series behind its colour.
    fn draw_legend(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let style = |size: i32, colour: &RGBColor| ("sans-serif", size).into_font().color(colour);
        area.draw(&Text::new(self.title.as_str(), (16, 0), style(14, &GREY)))?;
        let mut x = 16;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let square = Rectangle::new([(x, 24), (x + 11, 35)], colour.filled());
            area.draw(&square)?;
            area.draw(&Text::new(series.name.as_str(), (x + 15, 22), style(13, &BLACK)))?;
            // How wide letters are is known only where it is shown.
            x += 30 + 13 * series.name.chars().count() as i32 / 2;
        }
        Ok(())
    }

    /// From where to where a bar is: those of a group stand beside each other, without gaps for
    /// series that are not in it.
    fn bar(&self, group: f64, series: usize) -> (f64, f64) {
        let in_group = |series: &&Series| series.at(group).is_some();
        let count = self.series.iter().filter(in_group).count();
        let before = self.series[..series].iter().filter(in_group).count();
        let width = 0.86 / self.series.len() as f64;
        let from = group + (before as f64 - count as f64 / 2.) * width;
        (from + width * 0.06, from + width * 0.94)
    }

    /// Where there is anything, smallest first.
    fn places(&self) -> Vec<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut places: Vec<_> = points.map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    fn label(&self, place: f64) -> String {
        match &self.across {
            Across::Names(names) => names.get(place as usize).cloned().unwrap_or_default(),
            Across::Count(_) => format!("{place}"),
            Across::Bytes => bytes(place),
        }
    }

    fn axis_x(&self) -> Axis {
        let places = self.places();
        let (first, last) =
            (places.first().copied().unwrap_or(0.), places.last().copied().unwrap_or(1.));
        let ticks = places.iter().map(|place| (*place, self.label(*place))).collect();
        let range = match self.across {
            Across::Names(_) => first - 0.5..last + 0.5,
            Across::Count(_) => first - 0.2..last + 0.2,
            Across::Bytes => first / 1.4..last * 1.4,
        };
        Axis { range, is_log: matches!(self.across, Across::Bytes), ticks }
    }

    fn axis_y(&self) -> Axis {
        let values = || self.series.iter().flat_map(|series| &series.points).map(|point| point.1);
        let most = values().fold(f64::MIN_POSITIVE, f64::max);
        let is_log = matches!(self.across, Across::Bytes);
        let ticks = match is_log {
            true => {
                let least = values().fold(most, f64::min).max(most / 1e9);
                let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
                decades.map(|decade| 10f64.powi(decade)).collect::<Vec<_>>()
            }
            false => {
                let step = round_up(most / 5.);
                (0..=(most * 1.04 / step).ceil() as u32)
                    .map(|tick| f64::from(tick) * step)
                    .collect()
            }
        };
        let range = ticks[0]..ticks[ticks.len() - 1];
        let ticks = ticks.into_iter().map(|tick| (tick, short(tick))).collect();
        Axis { range, is_log, ticks }
    }
}

/// 1, 2 or 5 with zeros behind or before it, the least that is not smaller.
fn round_up(number: f64) -> f64 {
    let unit = 10f64.powf(number.log10().floor());
    let steps = [1., 2., 5., 10.].map(|step| step * unit);
    steps.into_iter().find(|step| *step >= number).unwrap_or(10. * unit)
}

/// A scale with ticks of our own.
struct Axis {
    range: Range<f64>,
    is_log: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn scale(&self, value: f64) -> f64 {
        if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = (self.scale(self.range.start), self.scale(self.range.end));
        let part = (self.scale(*value) - from) / (to - from);
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|tick| tick.0 == *value);
        tick.map_or_else(String::new, |tick| tick.1.clone())
    }
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

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.title)?;
        self.panels.iter().try_for_each(|panel| write!(f, "\n\n{panel}"))
    }
}

impl fmt::Display for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.places();
        let labels: Vec<_> = places.iter().map(|place| self.label(*place)).collect();
        let first = match self.across {
            Across::Names(_) => "",
            Across::Count(name) => name,
            Across::Bytes => "bytes",
        };
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

    fn chart() -> Chart {
        let points = [("none", (0., 1000.)), ("batch", (0., 2500.)), ("none", (1., 40.))];
        let points = points.map(|(name, point)| (name.to_owned(), point));
        let across = Across::Names(vec!["tcp".into(), "send & receive".into()]);
        let series = Series::group(points);
        let panel = Panel { title: "requests a second".into(), across, series };
        Chart { title: "A <sequencer>".into(), panels: vec![panel] }
    }

    #[test]
    fn the_table_has_each_number_in_its_row_and_column_and_nothing_where_nothing_was_measured() {
        let text = chart().to_string();
        let rows: Vec<Vec<_>> = text.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[3], ["none", "batch"], "{text}");
        assert_eq!(rows[4], ["tcp", "1000", "2500"], "{text}");
        assert_eq!(rows[5], ["send", "&", "receive", "40.00"], "{text}");
    }

    #[test]
    fn the_picture_has_a_bar_for_each_number_and_names_that_are_safe_in_xml() {
        let path = std::env::temp_dir().join(format!("urxe-chart-{}.svg", std::process::id()));
        chart().save(&path, "urxe-apps --svg <FILE>").unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for text in
            ["A &lt;sequencer&gt;", "--svg &lt;FILE&gt;", "send &amp; receive", "2.5k", "40"]
        {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        // The background, a square for each series, and the bars.
        assert_eq!(svg.matches("<rect").count(), 1 + 2 + 3, "{svg}");
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
        assert_eq!([bytes(8.), bytes(65536.), bytes(1048576.)], ["8", "64K", "1M"]);
        assert_eq!([7., 0.11, 20., 51.].map(round_up), [10., 0.2, 20., 100.]);
    }
}
