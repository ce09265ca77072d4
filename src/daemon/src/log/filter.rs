//! What is logged: of each subject the events from a level on.

use crate::config::ConfigError;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// What events are about, by the names that `--log` knows, as the targets of the events.
pub(crate) const DAEMON: &str = "urxe::daemon";
pub(crate) const SESSION: &str = "urxe::session";
pub(crate) const REQUEST: &str = "urxe::request";
pub(crate) const QP: &str = "urxe::qp";
pub(crate) const SLOT: &str = "urxe::slot";
pub(crate) const DEVICE: &str = "urxe::device";

const SUBJECTS: [&str; 6] = [DAEMON, SESSION, REQUEST, QP, SLOT, DEVICE];

const LEVELS: [(&str, LevelFilter); 5] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
];

/// The name of a subject, of the target of its events.
pub(super) fn subject(target: &str) -> &str {
    target.rsplit("::").next().unwrap_or(target)
}

/// Which events are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    level: LevelFilter,
    /// What differs from that, by subject.
    of: BTreeMap<&'static str, LevelFilter>,
}

impl Default for LogFilter {
    /// Warnings, and of the daemon itself that it is ready and that it ends.
    fn default() -> LogFilter {
        LogFilter { level: LevelFilter::WARN, of: BTreeMap::from([(DAEMON, LevelFilter::INFO)]) }
    }
}

impl LogFilter {
    pub(super) fn targets(&self) -> Targets {
        Targets::new()
            .with_default(self.level)
            .with_targets(self.of.iter().map(|(&target, &level)| (target, level)))
    }
}

impl FromStr for LogFilter {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<LogFilter, ConfigError> {
        let wrong = || ConfigError::Log(text.to_owned());
        let level = |name: &str| {
            let known = LEVELS.iter().find(|(known, _)| *known == name);
            known.map(|(_, level)| *level).ok_or_else(wrong)
        };
        let mut filter = LogFilter::default();
        // What is said of a subject holds wherever it stands.
        for part in text.split(',').filter(|part| !part.contains('=')) {
            filter = LogFilter { level: level(part)?, of: BTreeMap::new() };
        }
        for (name, of) in text.split(',').filter_map(|part| part.split_once('=')) {
            let target = SUBJECTS.into_iter().find(|&target| subject(target) == name);
            filter.of.insert(target.ok_or_else(wrong)?, level(of)?);
        }
        Ok(filter)
    }
}

/// As it would be given.
impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |level| LEVELS.iter().find(|(_, known)| *known == level).map_or("", |it| it.0);
        f.write_str(name(self.level))?;
        let mut of = self.of.iter();
        of.try_for_each(|(target, &level)| write!(f, ",{}={}", subject(target), name(level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn filter(text: &str) -> LogFilter {
        text.parse().unwrap()
    }

    #[test]
    fn a_level_is_for_all_and_a_subject_may_have_another() {
        let logs = |text: &str, target, level| filter(text).targets().would_enable(target, &level);
        assert!(logs("info", SESSION, Level::INFO) && !logs("info", SESSION, Level::DEBUG));
        assert!(!logs("warn", DAEMON, Level::INFO), "a level is for all");
        for text in ["error,slot=debug", "slot=debug,error"] {
            assert!(logs(text, SLOT, Level::DEBUG) && !logs(text, QP, Level::WARN), "{text}");
        }
        let text = "slot=debug";
        assert!(logs(text, SLOT, Level::DEBUG), "{text}");
        for (target, level) in [(DAEMON, Level::INFO), (QP, Level::WARN)] {
            assert!(logs(text, target, level), "the rest stays as it is: {target}");
        }
        assert!(!logs("off", DAEMON, Level::ERROR));
    }

    #[test]
    fn a_filter_is_shown_as_it_is_given() {
        assert_eq!(LogFilter::default().to_string(), "warn,daemon=info");
        for text in ["warn,daemon=info", "off", "debug,qp=off,request=error"] {
            assert_eq!(filter(text).to_string(), text);
        }
    }

    #[test]
    fn an_error_names_the_levels_and_subjects_that_there_are() {
        for wrong in ["", "loud", "INFO", "info,", "slots=info", "slot=", "=info", "slot=debug=1"] {
            let error = wrong.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("log {wrong:?}: expected off, error,")), "{error}");
            assert!(SUBJECTS.iter().all(|target| error.contains(subject(target))), "{error}");
        }
    }
}
