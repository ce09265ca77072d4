//! The configuration file: TOML, with the names of the options.

use crate::config::{Config, ConfigError, Settings};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A configuration file as it was read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    /// What it says, word for word.
    table: Table,
    /// What that means.
    pub(crate) settings: Settings,
}

impl ConfigFile {
    /// Reads one.
    ///
    /// # Errors
    /// If there is none, or a line of it makes no sense.
    pub(crate) fn read(path: &Path) -> Result<ConfigFile, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
        ConfigFile::parse(path, &text)
    }

    /// What a file of this path says, or said.
    ///
    /// # Errors
    /// If a line of it makes no sense.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<ConfigFile, ConfigError> {
        let malformed = |error| malformed(path, text, &error);
        let table = toml::from_str(text).map_err(malformed)?;
        let settings = toml::from_str(text).map_err(malformed)?;
        Ok(ConfigFile { path: path.to_path_buf(), table, settings })
    }

    /// What is in effect of it, as a file would say it.
    pub(crate) fn text(&self) -> String {
        self.table.to_string()
    }

    /// What was chosen by options, and by the file where these say nothing.
    pub(crate) fn below(&self, options: &Settings) -> Settings {
        options.clone().or(self.settings.clone())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it says anything of this.
    pub(crate) fn names(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// What it says of this, as people read it.
    pub(crate) fn said(&self, key: &str) -> String {
        self.table.get(key).map_or_else(|| "not set".to_owned(), text)
    }

    /// Takes over what another one says of this.
    pub(crate) fn take(&mut self, key: &str, other: &ConfigFile) {
        match other.table.get(key) {
            Some(value) => drop(self.table.insert(key.to_owned(), value.clone())),
            None => drop(self.table.remove(key)),
        }
    }
}

/// A value without the marks that the file needs.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
        value => value.to_string(),
    }
}

/// Which line is wrong, in one line.
fn malformed(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.as_bytes().get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count();
    ConfigError::Malformed {
        path: path.to_path_buf(),
        line: line + 1,
        text: text.lines().nth(line).unwrap_or_default().trim().to_owned(),
        problem: error.message().lines().collect::<Vec<_>>().join(", "),
    }
}

/// The settings in which two configurations differ, by their names in the file.
pub(crate) fn differing(one: &Config, other: &Config) -> Vec<&'static str> {
    let same = [
        ("addr", one.addrs == other.addrs),
        ("interface", one.interfaces == other.interfaces),
        ("name", one.names == other.names),
        ("socket", one.socket == other.socket),
        ("mode", one.mode == other.mode),
        ("slots", one.slots == other.slots),
        ("port-backend", one.port_backend == other.port_backend),
        ("congestion", one.tuning.congestion == other.tuning.congestion),
        ("source-ports", one.source_ports == other.source_ports),
        ("loopback", one.loopback == other.loopback),
        ("wire", one.tuning.wire == other.tuning.wire),
        ("fault", one.fault == other.fault),
        ("capture", one.capture == other.capture),
        ("metrics", one.metrics == other.metrics),
        ("linger", one.linger == other.linger),
        ("drain", one.drain == other.drain),
        ("sessions-per-user", one.sessions_per_user == other.sessions_per_user),
        ("cm-ids-per-user", one.cm_ids_per_user == other.cm_ids_per_user),
    ];
    same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
}

/// The settings that can be changed while a daemon runs. The others need a restart.
pub(crate) const CHANGEABLE: [&str; 5] =
    ["metrics", "linger", "drain", "sessions-per-user", "cm-ids-per-user"];

/// The same of the log, which begins before there is a configuration: it needs a restart.
pub(crate) fn differing_in_log(one: &Settings, other: &Settings) -> Vec<&'static str> {
    let same = [("log", one.log == other.log), ("log-format", one.log_format == other.log_format)];
    same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Loopback, PortBackend, SocketMode, Wire};
    use crate::log::LogFormat;
    use std::num::NonZeroU32;

    fn read(text: &str) -> Result<ConfigFile, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ConfigFile::read(file.path())
    }

    #[test]
    fn a_mistake_is_one_line_with_its_number_and_what_was_expected() {
        for (text, line, expected) in [
            ("drain = 30\nslots = 99\n", "line 2, `slots = 99`", "expected 1 to 63"),
            ("# é\n\ndrian = 30\n", "line 3, `drian = 30`", "`drain`"),
            ("drain = \"long\"", "line 1, `drain = \"long\"`", "drain \"long\": expected 1 to"),
            ("slots = 300", "line 1, `slots = 300`", "slots 300: expected 1 to 63"),
            ("fault = \"drop=1%\"\nmode = \"rw\"", "line 2, `mode = \"rw\"`", "expected octal"),
            ("drain = 30\nlinger = \n", "line 2, `linger =`", "expected"),
            ("drain = 30\ndrain = 31\n", "line 2, `drain = 31`", "duplicate key"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(line) && said.contains(expected), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }

    #[test]
    fn every_setting_that_differs_is_named() {
        let all = Settings {
            addr: vec!["10.0.0.1".parse().unwrap()],
            interface: vec!["eth0".into()],
            name: vec!["mlx5_0".into()],
            socket: Some("/run/urxe/a.sock".into()),
            mode: Some(SocketMode(0o666)),
            slots: Some(63),
            port_backend: Some(PortBackend::Raw),
            source_ports: Some(4),
            loopback: Some(Loopback::Kernel),
            wire: Some(Wire::Strict),
            congestion: Some("off".parse().unwrap()),
            fault: Some("drop=1%".parse().unwrap()),
            capture: Some("/tmp/a.pcapng".into()),
            metrics: Some("127.0.0.1:9100".parse().unwrap()),
            log: Some("info".parse().unwrap()),
            log_format: Some(LogFormat::Json),
            linger: NonZeroU32::new(10),
            drain: NonZeroU32::new(30),
            sessions_per_user: NonZeroU32::new(12),
            cm_ids_per_user: NonZeroU32::new(1000),
        };
        let of_log = differing_in_log(&all, &Settings::default());
        let [all, none] = [all, Settings::default()].map(Config::unchecked);
        let named = [differing(&all, &none), of_log].concat();
        // Whoever adds a setting finds out here, and in the file's own list of names.
        let known = read("known = 1").unwrap_err().to_string();
        assert_eq!(named.len(), known.matches('`').count() / 2 - 2, "{known}");
        for name in &named {
            assert!(known.contains(&format!("`{name}`")), "{name}: {known}");
        }
        assert!(CHANGEABLE.iter().all(|key| named.contains(key)));
        assert!(differing(&none, &none).is_empty());
    }
}
