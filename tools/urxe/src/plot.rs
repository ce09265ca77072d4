//! Curves as text, for a terminal or a file.

use ratatui::buffer::Buffer;
use ratatui::crossterm::terminal;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{Canvas, Line};
use std::fmt;
use std::io::{IsTerminal, stdout};
use urxe_chart::{Chart, Panel, Series};

/// Lines of the curves of a panel.
const HEIGHT: u16 = 14;

/// Columns where the terminal's are not known, and the most and fewest that are used.
const WIDTH: u16 = 80;
const MAX_WIDTH: u16 = 120;
const MIN_WIDTH: u16 = 40;

/// Curves as text: each panel under the one before it.
pub(crate) struct Plot<'a> {
    chart: &'a Chart,
    width: u16,
}

impl<'a> Plot<'a> {
    /// As wide as the terminal.
    pub(crate) fn new(chart: &'a Chart) -> Self {
        let size = stdout().is_terminal().then(terminal::size).and_then(Result::ok);
        let width = size.map_or(WIDTH, |size| size.0);
        Plot { chart, width: width.clamp(MIN_WIDTH, MAX_WIDTH) }
    }
}

impl fmt::Display for Plot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for panel in &self.chart.panels {
            writeln!(f, "\n{}", panel.title)?;
            let buffer = draw(panel, self.width);
            for line in buffer.content().chunks(usize::from(self.width)) {
                let line: String = line.iter().map(|cell| cell.symbol()).collect();
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// Curves between their axes, with the name of each behind its end if there are several.
fn draw(panel: &Panel, width: u16) -> Buffer {
    let (across, values) = (panel.axis_across(), panel.axis_values());
    let count = |text: &str| text.chars().count() as u16;
    let left = values.ticks().iter().map(|tick| count(&tick.1)).max().unwrap_or(0) + 1;
    let names: &[Series] = if panel.series.len() > 1 { &panel.series } else { &[] };
    let right = names.iter().map(|series| count(&series.name) + 1).max().unwrap_or(2);
    let inner = Rect::new(left + 1, 0, width.saturating_sub(left + 1 + right).max(1), HEIGHT);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, HEIGHT + 3));
    let style = Style::default().fg(Color::Reset);
    let row = |part: f64| {
        let from_below = (part.clamp(0., 1.) * f64::from(HEIGHT - 1)).round() as u16;
        HEIGHT - 1 - from_below
    };
    let canvas = Canvas::default().marker(Marker::Braille).x_bounds([0., 1.]).y_bounds([0., 1.]);
    let curves = canvas.paint(|context| {
        for series in &panel.series {
            let place = |point: &(f64, f64)| (across.part(point.0), values.part(point.1));
            let places: Vec<_> = series.points.iter().map(place).collect();
            for pair in places.windows(2) {
                let [(x1, y1), (x2, y2)] = [pair[0], pair[1]];
                context.draw(&Line { x1, y1, x2, y2, color: Color::Reset });
            }
        }
    });
    curves.render(inner, &mut buffer);
    for y in 0..HEIGHT {
        buffer.set_string(left, y, "│", style);
    }
    for (value, text) in values.ticks() {
        let y = row(values.part(*value));
        buffer.set_string(left - 1 - count(text), y, text, style);
        buffer.set_string(left, y, "┤", style);
    }
    buffer.set_string(left, HEIGHT, "└", style);
    buffer.set_string(inner.x, HEIGHT, "─".repeat(usize::from(inner.width)), style);
    let mut free = 0;
    for (place, text) in across.ticks() {
        let x = inner.x + (across.part(*place) * f64::from(inner.width - 1)).round() as u16;
        let from = x.saturating_sub(count(text) / 2);
        if from >= free && from + count(text) <= width {
            buffer.set_string(x, HEIGHT, "┬", style);
            buffer.set_string(from, HEIGHT + 1, text, style);
            free = from + count(text) + 1;
        }
    }
    let caption = panel.across.caption();
    let centre = inner.x + (inner.width.saturating_sub(count(caption))) / 2;
    buffer.set_string(centre, HEIGHT + 2, caption, style);
    let mut taken = Vec::new();
    for series in names {
        let last = series.points.last().map_or(0., |point| values.part(point.1));
        let wanted = row(last);
        // Curves that end at one height have their names under each other, or above.
        let by_distance = (0..HEIGHT).flat_map(|far| {
            [wanted.checked_add(far), wanted.checked_sub(far)].into_iter().flatten()
        });
        let mut free = by_distance.filter(|y| *y < HEIGHT && !taken.contains(y));
        if let Some(y) = free.next() {
            buffer.set_string(inner.right() + 1, y, &series.name, style);
            taken.push(y);
        }
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_chart::Across;

    fn text(across: Across, series: Vec<Series>, width: u16) -> String {
        let panel = Panel { title: "Gbit/s".into(), across, series };
        let chart = Chart { title: String::new(), panels: vec![panel] };
        Plot { chart: &chart, width }.to_string()
    }

    fn series(name: &str, points: &[(f64, f64)]) -> Series {
        Series { name: name.into(), points: points.to_vec() }
    }

    #[test]
    fn a_curve_rises_from_its_first_point_to_its_last() {
        let text = text(Across::Seconds, vec![series("sent", &[(0., 0.), (1., 10.)])], 60);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "Gbit/s");
        let is_braille = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
        let at = |line: &str| line.chars().position(is_braille);
        let ends: Vec<_> = lines.iter().filter_map(|line| at(line)).collect();
        assert!(ends.len() > usize::from(HEIGHT / 2), "{text}");
        assert!(ends.is_sorted_by(|a, b| a >= b), "{text}");
        for tick in ["0.2", "1.0", "seconds", "10 ┤"] {
            assert!(text.contains(tick), "{tick}: {text}");
        }
    }

    #[test]
    fn curves_have_their_names_at_their_ends_also_where_they_end_together() {
        let points = [(8., 1.), (4096., 10.)];
        let all = vec![series("sent", &points), series("received", &points)];
        let text = text(Across::Bytes, all, 60);
        for name in ["sent", "received"] {
            assert_eq!(text.matches(name).count(), 1, "{text}");
        }
    }

    #[test]
    fn no_width_is_too_small_and_no_curve_too_short() {
        for points in [vec![], vec![(0., 0.)], vec![(1e-9, 1e9)]] {
            for across in [Across::Seconds, Across::Percentile, Across::Bytes] {
                for width in [MIN_WIDTH, MAX_WIDTH] {
                    let text = text(across.clone(), vec![series("a", &points)], width);
                    let widest = text.lines().map(|line| line.chars().count()).max();
                    assert!(widest <= Some(usize::from(width)), "{text}");
                }
            }
        }
    }
}
