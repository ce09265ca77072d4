//! The log of `urxed`: events of `tracing`, as lines on standard error.
//!
//! An event has a sentence for people and fields for programs. Its target says what it is about
//! ([`SESSION`] and others). No event is on the way of data: what a packet causes is counted, and
//! only what a program, a link or a slot has come to is said.
//!
//! Inside another program ([`Daemon::start`](crate::Daemon::start)) the events go to the
//! subscriber of that program, if it has one.

mod filter;
mod line;
mod stderr;

pub use filter::LogFilter;
pub(crate) use filter::{DAEMON, DEVICE, QP, REQUEST, SESSION, SLOT};
pub(crate) use line::Style;

use clap::ValueEnum;
use line::Record;
use rustix::fs::fstat;
use serde::Deserialize;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;
use stderr::{Sink, Stderr};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use urxe_slot::rate_limit::RateLimit;

/// The environment variable that says what `--log` says, where that is not given.
pub(crate) const VARIABLE: &str = "URXED_LOG";

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// A sentence in each line; for journald, where that reads them, with its priority.
    #[default]
    Text,
    /// A JSON object in each line: time, level, target, message and fields.
    Json,
}

impl LogFormat {
    /// What that comes to on the standard error of this process.
    fn style(self) -> Style {
        match self {
            LogFormat::Json => Style::Json,
            LogFormat::Text if stderr_is_journal() => Style::Journal,
            LogFormat::Text => Style::Text,
        }
    }
}

/// Whether journald reads the standard error, which it names by device and inode.
fn stderr_is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let stat = fstat(rustix::stdio::stderr());
    stat.is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// How this process logs, since [`begin`].
static BEGUN: OnceLock<(Style, LogFilter)> = OnceLock::new();

/// How this process logs, for those that it starts and that are to do the same.
pub(crate) fn begun() -> Option<(Style, &'static LogFilter)> {
    BEGUN.get().map(|(style, filter)| (*style, filter))
}

/// Logs from now on. Once in a process: what else would log there is left alone.
pub(crate) fn begin(format: LogFormat, filter: LogFilter) {
    begin_with(format.style(), filter);
}

/// The same in a known style.
pub(crate) fn begin_with(style: Style, filter: LogFilter) {
    let subscriber = subscriber(style, &filter, Stderr::default());
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = BEGUN.set((style, filter));
        log_panics();
    }
}

fn subscriber(style: Style, filter: &LogFilter, sink: impl Sink) -> impl Subscriber + Send + Sync {
    let lines = Lines { style, limit: Mutex::default(), sink };
    Registry::default().with(filter.targets()).with(lines)
}

/// Has panics logged as all else is. With `RUST_BACKTRACE` they are also printed as usual.
fn log_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        tracing::error!(target: DAEMON, thread, "thread {thread} {panic}");
        if Backtrace::capture().status() == BacktraceStatus::Captured {
            print(panic);
        }
    }));
}

/// What is limited by itself: where an event is made, and which user caused it.
type Kind = (&'static str, Option<u64>);

/// Writes each event as a line, but not too many of a kind.
struct Lines<S> {
    style: Style,
    limit: Mutex<RateLimit<Kind>>,
    sink: S,
}

impl<C: Subscriber, S: Sink> Layer<C> for Lines<S> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, C>) {
        let metadata = event.metadata();
        let record = Record::of(event);
        let kind = (metadata.name(), record.uid);
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        // LOG-001
        let admitted = limit.admit(Instant::now(), kind, record.unlogged);
        drop(limit);
        let Some(unlogged) = admitted else { return };
        let line = |record: &Record| self.style.line(metadata, record);
        let lost = |count| {
            let message = format!("{count} lines are lost, because nobody has read them");
            line(&Record { message, ..Record::default() })
        };
        self.sink.write(&line(&record), &lost);
        if unlogged > 0 {
            self.sink.write(&line(&Record::of_unlogged(unlogged, record.uid)), &lost);
        }
    }
}

/// Collects what is logged in a test.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<String>>);

    impl Sink for Collected {
        fn write(&self, line: &str, _: &dyn Fn(u64) -> String) {
            self.0.lock().unwrap().push_str(line);
        }
    }

    /// What `run` logs in this thread.
    pub(crate) fn logged(style: Style, filter: &str, run: impl FnOnce()) -> String {
        let collected = Collected::default();
        let subscriber = subscriber(style, &filter.parse().unwrap(), collected.clone());
        tracing::subscriber::with_default(subscriber, run);
        let text = collected.0.lock().unwrap();
        text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::logged;
    use super::*;
    use serde_json::Value;

    fn say_all() {
        tracing::error!(target: SLOT, slot = 3, "it panicked");
        tracing::warn!(target: SESSION, uid = 7u32, "a program is refused");
        tracing::info!(target: DAEMON, "ready");
        tracing::debug!(target: SLOT, user = "a\nb", "slot {} has started", "\x1b[1m");
    }

    #[test]
    fn on_a_terminal_a_line_is_a_sentence_with_the_level_where_it_matters() {
        let lines = "urxed: error: it panicked\nurxed: warning: a program is refused\n\
                     urxed: ready\n";
        assert_eq!(logged(Style::Text, "warn,daemon=info", say_all), lines);
        let all = format!("{lines}urxed: slot \u{fffd}[1m has started\n");
        assert_eq!(logged(Style::Text, "debug", say_all), all);
    }

    #[test]
    fn journald_reads_the_level_as_a_priority() {
        let lines = "<3>it panicked\n<4>a program is refused\n<6>ready\n\
                     <7>slot \u{fffd}[1m has started\n";
        assert_eq!(logged(Style::Journal, "debug", say_all), lines);
    }

    #[test]
    fn a_collector_gets_an_object_in_each_line() {
        let text = logged(Style::Json, "debug", say_all);
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [error, warning, ready, debug] = &lines[..] else { panic!("{text}") };
        assert_eq!((&error["level"], &error["target"]), (&"error".into(), &"slot".into()));
        assert_eq!(
            (&error["message"], &error["fields"]["slot"]),
            (&"it panicked".into(), &3.into())
        );
        assert_eq!((&warning["level"], &warning["fields"]["uid"]), (&"warn".into(), &7.into()));
        assert_eq!((&ready["level"], &ready["target"]), (&"info".into(), &"daemon".into()));
        assert_eq!(debug["fields"]["user"], "a b");
        let time = ready["time"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z') && time.contains('T'), "{time}");
    }

    #[test]
    fn of_each_user_a_kind_is_logged_some_times_and_what_it_says_of_others_is_told() {
        let refuse = |uid: u64, unlogged: u64| {
            tracing::warn!(target: SESSION, uid, unlogged, "user {uid} is refused");
        };
        let text = logged(Style::Text, "info", || {
            (0..10_000).for_each(|_| refuse(7, 0));
            refuse(8, 41);
            tracing::warn!(target: SESSION, uid = 7u64, "something else");
        });
        let of_7 = text.matches("user 7 is refused").count();
        // What takes long has room for more.
        assert!((20..1000).contains(&of_7), "{text}");
        let expected = "urxed: warning: user 8 is refused\n\
                        urxed: warning: before this one, 41 more of this kind were not logged\n\
                        urxed: warning: something else\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn the_longest_line_fits_into_a_pipe_at_once() {
        const PIPE_BUF: usize = 4096;
        for style in [Style::Text, Style::Journal, Style::Json] {
            for char in ["\"", "\\", "\x1b", "\u{1f600}"] {
                let text = logged(style, "info", || {
                    tracing::warn!(target: SESSION, uid = 7u64, "{}", char.repeat(100_000));
                });
                assert!(text.len() < PIPE_BUF, "{} bytes", text.len());
                assert_eq!(text.lines().count(), 1);
            }
        }
    }
}
