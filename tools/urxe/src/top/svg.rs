//! What a terminal would show, as a picture.

use super::model::Top;
use super::screen;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::Modifier;
use std::convert::Infallible;
use std::fmt::Write;

/// Characters of a line of the terminal.
const COLUMNS: u16 = 132;

/// Lines of it at most.
const LINES: usize = 24;

/// Lines beside those of the queue pairs.
const AROUND: usize = 4;

/// Of a character, in pixels.
const WIDTH: f64 = 8.0;
const HEIGHT: u32 = 17;
const FONT: u32 = 13;

/// Around the text, in pixels.
const MARGIN: u32 = 12;

const PAPER: &str = "#1d2021";
const INK: &str = "#ebdbb2";
const DIM: &str = "#928374";

/// The table, as on a terminal, as SVG.
pub(super) fn picture(top: &mut Top) -> String {
    let lines = (top.rows().len() + AROUND).min(LINES) as u16;
    let made = Terminal::new(TestBackend::new(COLUMNS, lines)).and_then(|mut terminal| {
        terminal.draw(|frame| screen::draw(top, frame))?;
        Ok(of_buffer(terminal.backend().buffer()))
    });
    made.unwrap_or_else(|error: Infallible| match error {})
}

/// Runs of characters that look alike are one piece of text.
fn of_buffer(buffer: &Buffer) -> String {
    let columns = usize::from(buffer.area.width);
    let (width, height) =
        ((columns as f64 * WIDTH) as u32 + 2 * MARGIN, u32::from(buffer.area.height) * HEIGHT);
    let mut svg = String::new();
    let mut add = |line: String| {
        // Text has room for as much as there is.
        let _ = writeln!(svg, "{line}");
    };
    add(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" \
         font-family=\"DejaVu Sans Mono, monospace\" font-size=\"{FONT}\">",
        height + 2 * MARGIN
    ));
    add(format!("<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{PAPER}\"/>"));
    for (line, cells) in buffer.content.chunks(columns).enumerate() {
        let top = MARGIN + line as u32 * HEIGHT;
        let mut at = 0;
        for run in cells.chunk_by(|one, other| one.modifier == other.modifier) {
            let text: String = run.iter().map(Cell::symbol).collect();
            let modifier = run.first().map_or(Modifier::empty(), |cell| cell.modifier);
            let x = f64::from(MARGIN) + at as f64 * WIDTH;
            let length = run.len() as f64 * WIDTH;
            at += run.len();
            let is_reversed = modifier.contains(Modifier::REVERSED);
            if is_reversed {
                add(format!(
                    "<rect x=\"{x}\" y=\"{top}\" width=\"{length}\" height=\"{HEIGHT}\" \
                     fill=\"{INK}\"/>"
                ));
            }
            if text.trim().is_empty() {
                continue;
            }
            let ink = match (is_reversed, modifier.contains(Modifier::DIM)) {
                (true, _) => PAPER,
                (false, true) => DIM,
                (false, false) => INK,
            };
            let bold = if modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
            add(format!(
                "<text xml:space=\"preserve\" x=\"{x}\" y=\"{}\" textLength=\"{length}\" \
                 lengthAdjust=\"spacingAndGlyphs\" fill=\"{ink}\"{bold}>{}</text>",
                top + FONT,
                escaped(&text)
            ));
        }
    }
    add("</svg>".into());
    svg
}

/// Text of XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::model::{Rates, Row};
    use super::*;

    #[test]
    fn a_picture_has_what_the_terminal_has_and_program_names_stay_text() {
        let row = Row { program: "<b>&[7]".into(), qpn: 0x11, ..Row::default() };
        let mut top = Top::new(String::new());
        top.update(Rates { interval_s: 1.0, qps: vec![row] });
        let svg = picture(&mut top);
        for text in ["1 of 1 queue pairs", "0x000011", "&lt;b&gt;&amp;[7]", "q: end", "bold"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
