//! Which checks are played.

use super::Arguments;
use crate::error::Error;
use crate::output::note;
use std::fmt::Write;
use urxe_conform::check::Risk;
use urxe_conform::known::Known;
use urxe_conform::{Check, checks, rules};

/// The checks that are asked for, in the order in which they are played.
pub(super) fn of(arguments: &Arguments) -> Result<Vec<&'static Check>, Error> {
    for name in &arguments.only {
        if !checks::all().any(|check| is_meant(check, name)) {
            return Err(Error::Usage(format!(
                "--only {name}: no check, area or rule has that name; `urxe conform --list` shows \
                 all"
            )));
        }
    }
    let is_wanted = |check: &&Check| {
        arguments.only.is_empty() || arguments.only.iter().any(|name| is_meant(check, name))
    };
    let is_safe = |check: &&Check| !arguments.safe || check.risk == Risk::None;
    let mut found: Vec<_> = checks::all().filter(is_wanted).filter(is_safe).collect();
    // What may stop a device comes when all else is known.
    found.sort_by_key(|check| check.risk == Risk::Hostile);
    Ok(found)
}

/// Without those that are known to stop the device; says which they are.
pub(super) fn without_those_that_stop(
    checks: Vec<&'static Check>,
    known: &Known,
) -> Vec<&'static Check> {
    let (stop, rest): (Vec<&Check>, Vec<_>) =
        checks.into_iter().partition(|check| known.stops(check.name));
    for check in stop {
        note(format_args!("{} is left out: it is known to stop the device", check.name));
    }
    rest
}

/// Whether a name is that of the check, of its area, of its rule or of the rule's list.
fn is_meant(check: &Check, name: &str) -> bool {
    let list = check.rule.rsplit_once('-').map_or("", |(list, _)| list);
    check.name == name
        || check.area() == name
        || check.rule.eq_ignore_ascii_case(name)
        || list.eq_ignore_ascii_case(name)
}

/// Each check in a few lines.
pub(super) fn list(checks: &[&'static Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let hostile = if check.risk == Risk::Hostile { "  (not with --safe)" } else { "" };
        let _ = writeln!(text, "{}{hostile}\n    {}", check.name, check.says);
        if let Some(rule) = rules::find(check.rule) {
            let source = rule.source.as_deref().map(|source| format!(" ({source})"));
            let _ = writeln!(text, "    {}{}: {}", rule.id, source.unwrap_or_default(), rule.text);
        }
    }
    let _ = writeln!(text, "{} checks", checks.len());
    text
}
