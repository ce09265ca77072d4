//! What the user sees of it.

use super::model::{Column, Row, Top};
use crate::table::Align;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState};

const HELP: &str = "arrows: select, sort   r: reverse   /: filter   return: one alone   q: end";
const HELP_ALONE: &str = "escape: all queue pairs   q: end";

/// Draws everything.
pub(super) fn draw(top: &mut Top, frame: &mut Frame<'_>) {
    let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(top.status()), head);
    let help = match top.alone() {
        Some((row, plot)) => {
            alone(row, &plot, frame, body);
            HELP_ALONE
        }
        None => {
            all(top, frame, body);
            HELP
        }
    };
    let dim = Style::default().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(help).style(dim), foot);
}

fn all(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let rows = top.rows();
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| Column::ALL.map(|column| column.cell(row)).to_vec()).collect();
    let width = |(index, column): (usize, &Column)| {
        let widest = cells.iter().map(|cells| cells[index].chars().count()).max().unwrap_or(0);
        Constraint::Length(widest.max(column.head().len()) as u16)
    };
    let widths: Vec<Constraint> = Column::ALL.iter().enumerate().map(width).collect();
    let aligned = |column: Column, text: String| {
        let alignment = match column.align() {
            Align::Left => Alignment::Left,
            Align::Right => Alignment::Right,
        };
        Cell::from(Text::from(text).alignment(alignment))
    };
    let heads = Column::ALL.map(|column| {
        let head = aligned(column, column.head().to_owned());
        let is_sorted = top.sort() == Some(column);
        head.style(match is_sorted {
            true => Style::default().add_modifier(Modifier::REVERSED),
            false => Style::default().add_modifier(Modifier::BOLD),
        })
    });
    let body = cells.into_iter().map(|cells| {
        TableRow::new(Column::ALL.iter().zip(cells).map(|(&column, text)| aligned(column, text)))
    });
    let table = Table::new(body, widths)
        .header(TableRow::new(heads))
        .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(top.selected());
    frame.render_stateful_widget(table, area, &mut state);
}

/// One queue pair: each column on a line of its own, and its plot.
fn alone(row: &Row, plot: &[u64], frame: &mut Frame<'_>, area: Rect) {
    let mut lines: Vec<String> = Column::ALL
        .iter()
        .map(|column| format!("{:<12}{}", column.head(), column.cell(row)))
        .collect();
    if let Some(qpn) = row.peer_qpn {
        lines.push(format!("{:<12}{qpn:#08x}", "peer's qpn"));
    }
    lines.push(format!("{:<12}{}", "last cut by", row.last_cut.unwrap_or("nothing")));
    lines.push(format!("What happened to it: urxe why {:#x}", row.qpn));
    let parts = [Constraint::Length(lines.len() as u16 + 1), Constraint::Min(3)];
    let [text, below] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(lines.join("\n")), text);
    let most = plot.iter().max().copied().unwrap_or(0) as f64 * 1e-6;
    let title = format!("sent and received, at most {most:.2} Gbit/s");
    let block = Block::bordered().title(title);
    // As much of the newest as there is room for.
    let room = usize::from(below.width.saturating_sub(2));
    let newest = &plot[plot.len().saturating_sub(room)..];
    frame.render_widget(Sparkline::default().block(block).data(newest), below);
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
            ..Row::default()
        };
        let mut top = Top::new(String::new());
        top.update(Rates { interval_s: 1.0, qps: vec![row(0x11, 0.5), row(0x12, 21.25)] });
        top
    }

    #[test]
    fn the_table_has_a_line_for_each_queue_pair_the_busiest_first() {
        let shown = screen(&mut top(), 160, 8);
        assert!(shown.contains("2 of 2 queue pairs, in 1.0 s"), "{shown}");
        let (first, second) = (shown.find("0x000012").unwrap(), shown.find("0x000011").unwrap());
        assert!(first < second, "{shown}");
        for text in ["12,345", "21.25", "1,048,576", "held by", "q: end"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }

    #[test]
    fn one_queue_pair_is_shown_alone_with_its_plot() {
        let mut top = top();
        top.press(Key::Rows(1));
        top.press(Key::Enter);
        let shown = screen(&mut top, 80, 30);
        for text in ["urxe why 0x12", "at most 21.25 Gbit/s", "last cut by nothing"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        assert!(!shown.contains("0x000011"), "{shown}");
    }

    /// Windows can be as small as users make them.
    #[test]
    fn no_size_is_too_small() {
        let mut top = top();
        for (width, height) in [(1, 1), (2, 3), (20, 2), (200, 1)] {
            screen(&mut top, width, height);
        }
        top.press(Key::Rows(1));
        top.press(Key::Enter);
        for (width, height) in [(1, 1), (2, 3), (20, 2), (200, 1)] {
            screen(&mut top, width, height);
        }
    }
}
