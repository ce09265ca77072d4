//! Tables of text.

use std::fmt::{self, Write};

/// On which side the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows of text under a head, each column as wide as its widest cell.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads and nothing else.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let align = columns.iter().map(|&(_, align)| align).collect();
        let head = columns.iter().map(|&(head, _)| head.to_owned()).collect();
        Table { align, rows: vec![head] }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.align.len());
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.align) {
                match align {
                    Align::Left => write!(line, "{cell:<width$}  ")?,
                    Align::Right => write!(line, "{cell:>width$}  ")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("value", Align::Right)]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["long name".into(), "123456".into()]);
        let expected = "name        value\na               1\nlong name  123456\n";
        assert_eq!(table.to_string(), expected);
    }
}
