//! What the user sees of it.

use super::model::{Column, Row, Top, gbit};
use crate::table::Align;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState};

const HELP: &str = "arrows: select, sort   r: reverse   /: filter   return: one alone   q: end";
const HELP_ALONE: &str = "escape: all queue pairs   q: end";

/// Between two columns.
const GAP: u16 = 1;

/// Draws everything.
pub(super) fn draw(top: &mut Top, frame: &mut Frame<'_>) {
    let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    let mut status = top.status();
    let help = match top.alone() {
        Some((row, plot)) => {
            alone(row, &plot, frame, body);
            HELP_ALONE
        }
        None => {
            let shown = all(top, frame, body);
            if shown < Column::ALL.len() {
                status += &format!("  ({shown} of {} columns)", Column::ALL.len());
            }
            HELP
        }
    };
    frame.render_widget(Paragraph::new(status), head);
    let dim = Style::default().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(help).style(dim), foot);
}

/// Draws the table; returns how many columns have room.
fn all(top: &Top, frame: &mut Frame<'_>, area: Rect) -> usize {
    let rows = top.rows();
    let width = |column: Column| {
        let cells = rows.iter().map(|row| column.cell(row).chars().count());
        cells.max().unwrap_or(0).max(column.head().len())
    };
    let widths = Column::ALL.map(width);
    let room = usize::from(area.width);
    let shown = Column::fitting(&widths, usize::from(GAP), room, top.sort());
    let aligned = |column: Column, text: String| {
        let alignment = match column.align() {
            Align::Left => Alignment::Left,
            Align::Right => Alignment::Right,
        };
        Cell::from(Text::from(text).alignment(alignment))
    };
    let heads = shown.iter().map(|&column| {
        let head = aligned(column, column.head().to_owned());
        let is_sorted = top.sort() == Some(column);
        head.style(match is_sorted {
            true => Style::default().add_modifier(Modifier::REVERSED),
            false => Style::default().add_modifier(Modifier::BOLD),
        })
    });
    let body = rows
        .iter()
        .map(|row| TableRow::new(shown.iter().map(|&column| aligned(column, column.cell(row)))));
    let widths = shown.iter().map(|&column| Constraint::Length(widths[column as usize] as u16));
    let table = Table::new(body, widths)
        .column_spacing(GAP)
        .header(TableRow::new(heads))
        .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(top.selected());
    frame.render_stateful_widget(table, area, &mut state);
    shown.len()
}

/// Characters of a name before its value.
const NAME: usize = 12;

/// Characters that a line must have for two names with their values.
const TWO: u16 = 60;

/// One queue pair: each column by name, and its plot if there is room below.
fn alone(row: &Row, plot: &[u64], frame: &mut Frame<'_>, area: Rect) {
    let field = |name: &str, value: &str| format!("{name:<NAME$}{value}");
    let mut short: Vec<String> = Column::ALL
        .iter()
        .filter(|column| !matches!(column, Column::Program | Column::Peer))
        .map(|column| field(column.head(), &column.cell(row)))
        .collect();
    let peer_qpn = row.peer_qpn.map_or("-".into(), |qpn| format!("{qpn:#08x}"));
    short.push(field("peer's qpn", &peer_qpn));
    short.push(field("last cut by", row.last_cut.unwrap_or("nothing")));
    let mut lines = match area.width >= TWO {
        true => side_by_side(&short, usize::from(area.width / 2)),
        false => short,
    };
    for column in [Column::Program, Column::Peer] {
        lines.push(field(column.head(), &column.cell(row)));
    }
    lines.push(field("last cause", row.cause.as_deref().unwrap_or("none")));
    lines.push(format!("What happened to it: urxe why {:#x}", row.qpn));
    let parts = [Constraint::Length(lines.len() as u16), Constraint::Min(0)];
    let [text, below] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(lines.join("\n")), text);
    // Two of them are its frame.
    if below.height < 3 {
        return;
    }
    let most = plot.iter().max().copied().unwrap_or(0) as f64 * 1e-6;
    let title = format!("sent and received, at most {} Gbit/s", gbit(most));
    let block = Block::bordered().title(title);
    // As much of the newest as there is room for.
    let room = usize::from(below.width.saturating_sub(2));
    let newest = &plot[plot.len().saturating_sub(room)..];
    frame.render_widget(Sparkline::default().block(block).data(newest), below);
}

/// The first half of some lines beside the second, which begins at this column.
fn side_by_side(lines: &[String], column: usize) -> Vec<String> {
    let (left, right) = lines.split_at(lines.len().div_ceil(2));
    let right = right.iter().map(String::as_str).chain(std::iter::repeat(""));
    left.iter().zip(right).map(|(left, right)| format!("{left:<column$}{right}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::model::{Key, Rates};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(top: &mut Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(top, frame)).unwrap();
        terminal.backend().to_string()
    }

    fn top() -> Top {
        let row = |qpn, sent_gbit_s| Row {
            device: "urxe0".into(),
            qpn,
            transport: "RC",
            state: "RTS".into(),
            program: "ib_write_bw[7]".into(),
            sent_gbit_s,
            messages_per_s: 12_345.0,
            window: Some(1 << 20),
            held_by: Some("window"),
            cause: Some("0x2 AckTimeout".into()),
            ..Row::default()
        };
        let mut top = Top::new(String::new());
        top.update(Rates { interval_s: 1.0, qps: vec![row(0x11, 0.5), row(0x12, 21.25)] });
        top
    }

    #[test]
    fn the_table_has_a_line_for_each_queue_pair_the_busiest_first() {
        let shown = screen(&mut top(), 160, 8);
        assert!(
            shown.contains("2 of 2 queue pairs in 1.0 s: 21.75 Gbit/s out, 0.00 in"),
            "{shown}"
        );
        let (first, second) = (shown.find("0x000012").unwrap(), shown.find("0x000011").unwrap());
        assert!(first < second, "{shown}");
        for text in ["12,345", "21.25", "1,048,576", "held by", "q: end"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }

    /// A figure without its first digits would be another figure.
    #[test]
    fn a_narrow_terminal_shows_fewer_columns_and_no_figure_in_part() {
        let mut top = top();
        for width in 20..160 {
            let shown = screen(&mut top, width, 8);
            let cells = shown.lines().filter(|line| line.contains("0x0000"));
            let figures = cells.flat_map(|line| line.trim_matches('"').split_whitespace());
            let whole = [
                "urxe0",
                "0x000011",
                "0x000012",
                "RC",
                "RTS",
                "ib_write_bw[7]",
                "-",
                "12,345",
                "0.50",
                "21.25",
                "0",
                "0.00",
                "1,048,576",
                "window",
            ];
            for figure in figures {
                assert!(whole.contains(&figure), "{width}: {figure:?}: {shown}");
            }
        }
        assert!(screen(&mut top, 80, 8).contains(" of 14 columns)"));
        assert!(!screen(&mut top, 160, 8).contains(" of 14 columns)"));
    }

    #[test]
    fn one_queue_pair_is_shown_alone_with_its_plot() {
        let mut top = top();
        top.press(Key::Rows(1));
        top.press(Key::Enter);
        let shown = screen(&mut top, 80, 30);
        for text in [
            "urxe why 0x12",
            "at most 21.25 Gbit/s",
            "last cut by nothing",
            "last cause  0x2 AckTimeout",
        ] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        assert!(!shown.contains("0x000011"), "{shown}");
    }

    #[test]
    fn one_queue_pair_alone_is_whole_on_a_terminal_of_80_columns_and_24_lines_or_16() {
        let mut top = top();
        top.press(Key::Rows(1));
        top.press(Key::Enter);
        for height in [24, 16] {
            let shown = screen(&mut top, 80, height);
            let names = Column::ALL.map(Column::head);
            let rest =
                ["peer's qpn", "last cut by", "last cause", "urxe why 0x12", "at most 21.25"];
            for text in names.into_iter().chain(rest).chain(["q: end", "1,048,576"]) {
                assert!(shown.contains(text), "{text}, {height} lines: {shown}");
            }
        }
        let shown = screen(&mut top, 40, 24);
        assert!(shown.contains("urxe why 0x12") && shown.contains("1,048,576"), "{shown}");
        let shown = screen(&mut top, 80, 12);
        assert!(shown.contains("out Gbit/s  21.25") && !shown.contains("at most"), "{shown}");
    }

    /// Windows can be as small as users make them.
    #[test]
    fn no_size_is_too_small() {
        let mut top = top();
        for _ in 0..2 {
            for (width, height) in
                (1..90).flat_map(|width| (1..26).map(move |height| (width, height)))
            {
                screen(&mut top, width, height);
            }
            top.press(Key::Rows(1));
            top.press(Key::Enter);
        }
    }
}
