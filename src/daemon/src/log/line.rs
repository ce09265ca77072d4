//! How an event is written: one line, in which nothing that a program has named can be more than
//! text.

use super::filter::subject;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The most bytes of a text that are written: a pipe that takes a line at all takes it as a whole,
/// also where it is written as JSON.
const LONGEST_TEXT: usize = 1800;

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// For people: a sentence.
    Text,
    /// For journald, which knows program and time: the sentence behind its priority.
    Journal,
    /// For collectors: an object.
    Json,
}

impl Style {
    const NAMES: [(Style, &str); 3] =
        [(Style::Text, "text"), (Style::Journal, "journal"), (Style::Json, "json")];

    /// The style of this name.
    pub(crate) fn named(name: &str) -> Option<Style> {
        Style::NAMES.into_iter().find(|(_, known)| *known == name).map(|(style, _)| style)
    }

    pub(crate) fn name(self) -> &'static str {
        Style::NAMES.into_iter().find(|(style, _)| *style == self).map_or("", |(_, name)| name)
    }

    /// The line of an event, with its end.
    pub(super) fn line(self, metadata: &Metadata<'_>, record: &Record) -> String {
        let level = *metadata.level();
        let message = record.message.as_str();
        match self {
            Style::Text => format!("urxed: {}{message}\n", word(level)),
            Style::Journal => format!("<{}>{message}\n", priority(level)),
            Style::Json => {
                let mut time = String::new();
                // A text takes all that is written.
                let _ = SystemTime.format_time(&mut Writer::new(&mut time));
                let line = Line {
                    time,
                    level: level.as_str().to_ascii_lowercase(),
                    target: subject(metadata.target()),
                    message,
                    fields: &record.fields,
                };
                // Nothing here can fail to be JSON.
                serde_json::to_string(&line).unwrap_or_default() + "\n"
            }
        }
    }
}

/// What stands before a sentence that somebody should look at.
fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    }
}

/// The priority that syslog has for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    level: String,
    target: &'a str,
    message: &'a str,
    fields: &'a BTreeMap<&'static str, Value>,
}

/// What an event says.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) message: String,
    /// Beside the sentence, which names what matters of them.
    pub(super) fields: BTreeMap<&'static str, Value>,
    /// The user who caused it.
    pub(super) uid: Option<u64>,
    /// How many more of its kind were left out before, as far as that is known.
    pub(super) unlogged: u64,
}

impl Record {
    pub(super) fn of(event: &Event<'_>) -> Record {
        let mut record = Record::default();
        event.record(&mut record);
        record
    }

    /// That so many like this event were not logged.
    pub(super) fn of_unlogged(unlogged: u64, uid: Option<u64>) -> Record {
        let message = format!("before this one, {unlogged} more of this kind were not logged");
        let mut fields = BTreeMap::from([("unlogged", unlogged.into())]);
        fields.extend(uid.map(|uid| ("uid", uid.into())));
        Record { message, fields, uid, unlogged }
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        let text = plain(&text);
        match field.name() {
            "message" => self.message = text,
            name => drop(self.fields.insert(name, text.into())),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), plain(value).into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "unlogged" {
            self.unlogged = value;
            return;
        }
        if field.name() == "uid" {
            self.uid = Some(value);
        }
        self.fields.insert(field.name(), value.into());
    }
}

/// A text as it may be shown on a terminal: one line, no control characters, none that change the
/// direction of others, and not too long.
fn plain(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        // LOG-004
        let char = match char {
            '\n' | '\r' | '\t' => ' ',
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' => {
                char::REPLACEMENT_CHARACTER
            }
            '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => char::REPLACEMENT_CHARACTER,
            '\u{feff}' | '\u{fff9}'..='\u{fffb}' => char::REPLACEMENT_CHARACTER,
            '\u{e0000}'..='\u{e007f}' => char::REPLACEMENT_CHARACTER,
            char if char.is_control() => char::REPLACEMENT_CHARACTER,
            char => char,
        };
        // LOG-005
        if shown.len() + char.len_utf8() > LONGEST_TEXT {
            shown.push_str(" ...");
            break;
        }
        shown.push(char);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_program_gives_is_one_line_of_text_and_no_more() {
        let hostile =
            "x\x1b[2J\x1b]0;owned\x07\r\nurxed: ready\0\u{9b}31m\u{202e}txt\u{2028}\u{feff}";
        let shown = plain(hostile);
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert_eq!(
            shown,
            "x\u{fffd}[2J\u{fffd}]0;owned\u{fffd}  urxed: ready\u{fffd}\u{fffd}31m\
                           \u{fffd}txt\u{fffd}\u{fffd}"
        );
        assert_eq!(plain("größe 7 µs, \"x\""), "größe 7 µs, \"x\"", "text stays as it is");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for char in ["x", "\u{e9}", "\u{20ac}", "\u{1f600}"] {
            let shown = plain(&char.repeat(10_000));
            let kept = LONGEST_TEXT / char.len() * char.len();
            assert_eq!(shown, format!("{} ...", &char.repeat(10_000)[..kept]));
        }
        assert_eq!(plain(&"x".repeat(LONGEST_TEXT)).len(), LONGEST_TEXT);
    }

    #[test]
    fn a_style_has_a_name() {
        for (style, name) in Style::NAMES {
            assert_eq!((Style::named(name), style.name()), (Some(style), name));
        }
        assert_eq!(Style::named("xml"), None);
    }
}
