//! The picture.

use crate::{Across, Axis, Chart, Panel, short};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::io;
use std::ops::Range;
use std::path::Path;

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
/// Of a bar that lies, and of what is free between two names.
const BAR_HEIGHT: usize = 12;

type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Chart {
    /// Draws it as an SVG, with the command that made it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path, command: &str) -> io::Result<()> {
        let mut svg = String::new();
        let height = self.panels.iter().map(Panel::height).max().unwrap_or(HEIGHT);
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        self.draw(&area, command).map_err(|error| io::Error::other(error.to_string()))?;
        drop(area);
        std::fs::write(path, svg)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, command: &str) -> Drawn {
        area.fill(&WHITE)?;
        let style = ("sans-serif", 19).into_font().color(&BLACK);
        area.draw(&Text::new(self.title.as_str(), (16, 14), style))?;
        let corner = Pos::new(HPos::Right, VPos::Bottom);
        let style = ("monospace", 11).into_font().color(&GREY).pos(corner);
        let place = (WIDTH as i32 - 22, area.dim_in_pixel().1 as i32 - 6);
        area.draw(&Text::new(command, place, style))?;
        let inner = area.margin(TITLE_HEIGHT, COMMAND_HEIGHT, 0, 0);
        let areas = inner.split_evenly((1, self.panels.len().max(1)));
        self.panels.iter().zip(&areas).try_for_each(|(panel, area)| panel.draw(area))?;
        Ok(area.present()?)
    }
}

impl Panel {
    /// Of the picture that it is in, in pixels.
    fn height(&self) -> u32 {
        let Across::Rows(names) = &self.across else { return HEIGHT };
        let bars = names.len() * (self.series.len() + 1) * BAR_HEIGHT;
        (bars as u32 + 150).max(HEIGHT)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        self.draw_legend(area)?;
        let (lies, is_bars) = match self.across {
            Across::Rows(_) => (true, true),
            Across::Names(_) => (false, true),
            _ => (false, false),
        };
        let (x, y) = match lies {
            false => (self.axis_across(), self.axis_values()),
            true => (self.axis_values(), self.axis_across().reversed()),
        };
        // How wide letters are is known only where it is shown.
        let longest = y.ticks().iter().map(|tick| tick.1.chars().count()).max().unwrap_or(0);
        let mut builder = ChartBuilder::on(area);
        builder.margin_right(if lies { 44 } else { 22 }).margin_bottom(8).margin_top(LEGEND_HEIGHT);
        let left = if lies { longest as u32 * 13 / 2 + 24 } else { 62 };
        builder.set_label_area_size(LabelAreaPosition::Left, left);
        builder.set_label_area_size(LabelAreaPosition::Bottom, 44);
        let mut chart = builder.build_cartesian_2d(x, y)?;
        let small = ("sans-serif", 13).into_font().color(&GREY);
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(GREY.mix(0.6))
            .bold_line_style(GREY.mix(0.25))
            .light_line_style(TRANSPARENT)
            .label_style(small);
        match self.across {
            Across::Names(_) => mesh.disable_x_mesh(),
            Across::Rows(_) => mesh.disable_y_mesh(),
            _ => mesh.x_desc(self.across.caption()),
        };
        mesh.draw()?;
        let (left, top) = area.get_base_pixel();
        let bottom = chart.as_coord_spec().y_spec().range.start;
        for (place, series) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            if !is_bars {
                chart.draw_series(LineSeries::new(
                    series.points.iter().copied(),
                    colour.stroke_width(2),
                ))?;
            }
            if matches!(self.across, Across::Count(_) | Across::Bytes) {
                let dot = |point: &(f64, f64)| Circle::new(*point, 3, colour.filled());
                chart.draw_series(series.points.iter().map(dot))?;
            }
            for &(group, value) in series.points.iter().filter(|_| is_bars) {
                let (from, to) = self.bar(group, place);
                let middle = (from + to) / 2.;
                let (corners, end, anchor, (right, down)) = match lies {
                    false => {
                        let anchor = Pos::new(HPos::Center, VPos::Bottom);
                        ([(from, bottom), (to, value)], (middle, value), anchor, (0, -2))
                    }
                    true => {
                        let anchor = Pos::new(HPos::Left, VPos::Center);
                        ([(0., from), (value, to)], (value, middle), anchor, (4, 0))
                    }
                };
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                let (x, y) = chart.backend_coord(&end);
                let style = ("sans-serif", 11).into_font().color(&GREY).pos(anchor);
                let place = (x - left + right, y - top + down);
                // Behind a bar there is room for what two long ones differ by.
                let text = match lies && (0.1..100.).contains(&value) {
                    true => format!("{value:.2}"),
                    false => short(value),
                };
                area.draw(&Text::new(text, place, style))?;
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
        let in_group = |series: &&crate::Series| series.at(group).is_some();
        let count = self.series.iter().filter(in_group).count();
        let before = self.series[..series].iter().filter(in_group).count();
        let width = 0.86 / self.series.len() as f64;
        let from = group + (before as f64 - count as f64 / 2.) * width;
        (from + width * 0.06, from + width * 0.94)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (f64::from(limit.1 - limit.0) * self.part(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks().iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks().iter().find(|tick| tick.0 == *value);
        tick.map_or_else(String::new, |tick| tick.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;

    fn svg(across: Across) -> String {
        let points = [("none", (0., 1000.)), ("batch", (0., 2500.)), ("none", (1., 40.))];
        let series = Series::group(points.map(|(name, point)| (name.to_owned(), point)));
        let panel = Panel { title: "requests a second".into(), across, series };
        let chart = Chart { title: "A <sequencer>".into(), panels: vec![panel] };
        let file = tempfile::NamedTempFile::new().unwrap();
        chart.save(file.path(), "urxe-apps --svg <FILE>").unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn the_picture_has_a_bar_for_each_number_and_names_that_are_safe_in_xml() {
        let names = || vec!["tcp".into(), "send & receive".into()];
        for across in [Across::Names(names()), Across::Rows(names())] {
            let svg = svg(across);
            for text in
                ["A &lt;sequencer&gt;", "--svg &lt;FILE&gt;", "send &amp; receive", "2.5k", "40"]
            {
                assert!(svg.contains(text), "{text} is missing in {svg}");
            }
            // The background, a square for each series, and the bars.
            assert_eq!(svg.matches("<rect").count(), 1 + 2 + 3, "{svg}");
        }
    }

    #[test]
    fn a_series_over_time_or_percentiles_is_one_line() {
        for across in [Across::Seconds, Across::Percentile] {
            let svg = svg(across);
            assert_eq!(svg.matches("stroke-width=\"2\"").count(), 2, "{svg}");
            assert_eq!(svg.matches("<circle").count(), 0, "{svg}");
        }
    }
}
