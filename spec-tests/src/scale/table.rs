//! Rows of figures, what is asked of them, and how they are shown.

use std::fmt::Write;

/// What is asked of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// Both.
    Between(f64, f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
            Bound::Between(least, most) => (least..=most).contains(&value),
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtLeast(least) => format!(">= {}", number(least)),
            Bound::AtMost(most) => format!("<= {}", number(most)),
            Bound::Between(least, most) => format!("{} to {}", number(least), number(most)),
        }
    }
}

/// A figure that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// What it is, with its unit.
    pub name: &'static str,
    pub value: f64,
    pub bound: Option<Bound>,
}

impl Figure {
    /// Whether it is as it must be.
    pub fn holds(&self) -> bool {
        self.bound.is_none_or(|bound| bound.holds(self.value))
    }

    fn text(&self) -> String {
        let value = number(self.value);
        match self.bound {
            None => value,
            Some(bound) if self.holds() => format!("{value} ({})", bound.text()),
            Some(bound) => format!("{value} (MISSED {})", bound.text()),
        }
    }
}

/// One run: what was tried, and what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub case: String,
    pub figures: Vec<Figure>,
}

impl Row {
    /// A row without figures.
    pub fn new(case: impl Into<String>) -> Row {
        Row { case: case.into(), figures: Vec::new() }
    }

    /// Adds a figure that is only shown.
    #[must_use]
    pub fn shows(self, name: &'static str, value: f64) -> Row {
        self.with(name, value, None)
    }

    /// Adds a figure that must be within a bound.
    #[must_use]
    pub fn must(self, name: &'static str, value: f64, bound: Bound) -> Row {
        self.with(name, value, Some(bound))
    }

    /// Adds a figure, perhaps with a bound.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64, bound: Option<Bound>) -> Row {
        self.figures.push(Figure { name, value, bound });
        self
    }

    /// The figures that are not as they must be.
    pub fn missed(&self) -> Vec<String> {
        let missed = self.figures.iter().filter(|figure| !figure.holds());
        missed.map(|figure| format!("{}: {} {}", self.case, figure.name, figure.text())).collect()
    }

    /// As one line.
    pub fn line(&self) -> String {
        let figures = self.figures.iter().map(|f| format!("{} {}", f.name, f.text()));
        format!("{}: {}", self.case, figures.collect::<Vec<_>>().join(", "))
    }
}

/// Rows as a table; each run of rows with the same figures has its own head.
pub fn table(rows: &[Row]) -> String {
    let names = |row: &Row| row.figures.iter().map(|figure| figure.name).collect::<Vec<_>>();
    let mut text = String::new();
    for rows in rows.chunk_by(|a, b| names(a) == names(b)) {
        let mut lines = vec![["".to_owned()].into_iter().collect::<Vec<String>>()];
        lines[0].extend(names(&rows[0]).into_iter().map(str::to_owned));
        for row in rows {
            let mut line = vec![row.case.clone()];
            line.extend(row.figures.iter().map(Figure::text));
            lines.push(line);
        }
        let width =
            |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
        for line in &lines {
            let mut shown = format!("{:<width$}", line[0], width = widths[0]);
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                let _ = write!(shown, " | {cell:<width$}");
            }
            let _ = writeln!(text, "{}", shown.trim_end());
        }
    }
    text
}

/// A number with three significant digits, as far as they are behind the point.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_outside_of_its_bound_is_missed_and_shown_so() {
        let row = Row::new("case")
            .must("share", 0.5, Bound::AtLeast(0.95))
            .must("gap ms", 3.0, Bound::AtMost(20.0))
            .must("ratio", 2.5, Bound::Between(0.5, 2.0))
            .shows("drops", 7.0);
        let missed = row.missed();
        assert_eq!(missed.len(), 2, "{missed:?}");
        assert_eq!(missed[0], "case: share 0.5 (MISSED >= 0.95)");
        assert!(missed[1].starts_with("case: ratio 2.5"));
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let rows =
            [Row::new("a").shows("x", 1.0), Row::new("longer").must("x", 0.25, Bound::AtMost(1.0))];
        assert_eq!(table(&rows), "       | x\na      | 1\nlonger | 0.25 (<= 1)\n");
    }

    #[test]
    fn numbers_have_as_many_digits_as_they_are_worth() {
        let texts = [0.0, 0.12345, 1.2345, 12.345, 1234.5].map(number);
        assert_eq!(texts, ["0", "0.123", "1.23", "12.3", "1234"]);
    }
}
