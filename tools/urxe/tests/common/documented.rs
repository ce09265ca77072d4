//! `JSON.md`, which says what the commands print for programs.

use serde_json::Value;

const PAGE: &str = include_str!("../../JSON.md");

/// A key that is printed, with those of the objects and lists that it is in: `a[].b`.
struct Printed {
    key: String,
    /// It has nothing that could have keys itself: `null`, or an empty object or list.
    is_empty: bool,
}

/// A row of a table. `NAME` in its key stands for any key.
struct Row {
    key: &'static str,
    is_optional: bool,
}

impl Row {
    fn is_of(&self, printed: &Printed) -> bool {
        let (row, key) = (self.key.split('.'), printed.key.split('.'));
        let is_same = row.clone().count() == key.clone().count()
            && row.zip(key).all(|(row, key)| row == "NAME" || row == key);
        let rest = self.key.strip_prefix(&printed.key);
        is_same || printed.is_empty && rest.is_some_and(|rest| rest.starts_with(['.', '[']))
    }
}

/// The commands that have a section.
pub(crate) fn commands() -> Vec<&'static str> {
    let titles = PAGE.lines().filter_map(|line| line.strip_prefix("## `urxe "));
    titles.map(|title| title.trim_end_matches('`')).collect()
}

/// The rows of a command's section.
fn rows(command: &str) -> Vec<Row> {
    let title = format!("## `urxe {command}`");
    let section = PAGE.lines().skip_while(|line| *line != title).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    let rows = section.filter_map(|line| {
        let (key, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let (value, _) = rest.split_once(" | ")?;
        Some(Row { key, is_optional: value.ends_with(", optional") })
    });
    rows.collect()
}

fn collect(value: &Value, key: String, found: &mut Vec<Printed>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (name, value) in object {
                let dot = if key.is_empty() { "" } else { "." };
                collect(value, format!("{key}{dot}{name}"), found);
            }
        }
        Value::Array(values) if !values.is_empty() => {
            values.iter().for_each(|value| collect(value, format!("{key}[]"), found));
        }
        Value::Object(_) | Value::Array(_) | Value::Null => {
            found.push(Printed { key, is_empty: true });
        }
        _ => found.push(Printed { key, is_empty: false }),
    }
}

/// Panics unless what the command printed has the version, all its keys are in the command's
/// section, and all keys there that are not optional were printed.
pub(crate) fn check(command: &str, reports: &[&Value]) {
    let (mut printed, rows) = (Vec::new(), rows(command));
    for report in reports {
        assert_eq!(report["version"], 1, "{command}: {report}");
        collect(report, String::new(), &mut printed);
    }
    printed.retain(|printed| printed.key != "version");
    let unknown = printed.iter().filter(|printed| !rows.iter().any(|row| row.is_of(printed)));
    let unknown: Vec<&str> = unknown.map(|printed| printed.key.as_str()).collect();
    assert!(unknown.is_empty(), "{command}: JSON.md does not have {unknown:?}");
    let missing =
        rows.iter().filter(|row| !row.is_optional && !printed.iter().any(|key| row.is_of(key)));
    let missing: Vec<&str> = missing.map(|row| row.key).collect();
    assert!(missing.is_empty(), "{command}: JSON.md has {missing:?}, which was not printed");
}
