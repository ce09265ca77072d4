//! All that can be explained, from the tables in which it stands.

use serde::Serialize;
use std::fmt;
use urxe_conform::rules;
use urxe_engine::Cause;
use urxe_shm::control::errnos;
use urxe_types::WcStatus;
use urxe_wire::mad::Reason;

/// What something is.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// The status of a completion (ibv_wc_status).
    Status,
    /// The vendor_err of a completion: the cause behind its status.
    VendorErr,
    /// What a call has returned, or set.
    Errno,
    /// The reason of a rejected connection (RDMA_CM_EVENT_REJECTED).
    Reject,
    /// A counter of `urxe stat`.
    Counter,
    /// A rule that urxe keeps.
    Rule,
}

/// Something with its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Term {
    pub(super) kind: Kind,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    meaning: String,
}

impl Term {
    fn new(kind: Kind, number: Option<u32>, name: &str, meaning: &str) -> Term {
        Term { kind, name: name.to_owned(), number, meaning: meaning.to_owned() }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Term { kind, name, number, meaning } = self;
        let what = match kind {
            Kind::Status => "status",
            Kind::VendorErr => "vendor_err",
            Kind::Errno => "errno",
            Kind::Reject => "reject reason",
            Kind::Counter => "counter",
            Kind::Rule => "rule",
        };
        match number {
            Some(number) => writeln!(f, "{what} {number} (0x{number:x}), {name}")?,
            None => writeln!(f, "{what} {name}")?,
        }
        write!(f, "    {meaning}")
    }
}

/// Everything, kind by kind.
pub(super) fn all() -> Vec<Term> {
    let statuses = WcStatus::ALL.iter().map(|&status| {
        let meaning = format!("{} {}", sentence(status.text()), status.meaning());
        Term::new(Kind::Status, Some(status as u32), status.name(), &meaning)
    });
    let causes = Cause::ALL.iter().map(|&cause| {
        Term::new(Kind::VendorErr, Some(cause as u32), &format!("{cause:?}"), cause.text())
    });
    let errnos = errnos::ERRNOS.iter().map(|(errno, name, meaning)| {
        Term::new(Kind::Errno, u32::try_from(errno.raw_os_error()).ok(), name, meaning)
    });
    let reasons = Reason::ALL.iter().map(|&reason| {
        let number = Some(u32::from(reason.code()));
        Term::new(Kind::Reject, number, &format!("{reason:?}"), reason.text())
    });
    let counters = urxe_daemon::counter_meanings().into_iter();
    let counters = counters.map(|(name, meaning)| Term::new(Kind::Counter, None, name, meaning));
    let rules = rules::all().map(|rule| {
        let source = rule.source.iter().map(|source| format!(" Source: {source}."));
        let differs = rule.differs.iter().map(|differs| format!(" Elsewhere: {differs}"));
        let more: String = source.chain(differs).collect();
        Term::new(Kind::Rule, None, &rule.id, &format!("{}{more}", rule.text))
    });
    statuses.chain(causes).chain(errnos).chain(reasons).chain(counters).chain(rules).collect()
}

/// What a number or a name stands for: all that has the number; else what has the name; else all
/// of whose name it is a part, if it is long enough to say something.
pub(super) fn find<'a>(all: &'a [Term], wanted: &str) -> Vec<&'a Term> {
    if let Some(number) = number(wanted) {
        return all.iter().filter(|term| term.number == Some(number)).collect();
    }
    let wanted = plain(wanted);
    let exact: Vec<&Term> = all.iter().filter(|term| plain(&term.name) == wanted).collect();
    if !exact.is_empty() || wanted.len() < LEAST_PART {
        return exact;
    }
    all.iter().filter(|term| plain(&term.name).contains(&wanted)).collect()
}

/// Names that are nearly that, at most five.
pub(super) fn like<'a>(all: &'a [Term], wanted: &str) -> Vec<&'a str> {
    let wanted = plain(wanted);
    let mut near: Vec<(f64, &str)> = all
        .iter()
        .map(|term| (strsim::jaro_winkler(&plain(&term.name), &wanted), term.name.as_str()))
        .filter(|(likeness, _)| *likeness > LIKE)
        .collect();
    near.sort_by(|(first, _), (second, _)| second.total_cmp(first));
    near.into_iter().map(|(_, name)| name).take(5).collect()
}

/// A part of a name says something from so many letters on.
const LEAST_PART: usize = 3;

/// From this likeness on (Jaro-Winkler, up to 1) a name may be what was meant.
const LIKE: f64 = 0.85;

/// An errno is often shown as a negative number.
fn number(wanted: &str) -> Option<u32> {
    let digits = wanted.strip_prefix('-').unwrap_or(wanted);
    match digits.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// Without what people write in different ways.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().into_iter().flat_map(char::to_uppercase);
    first.chain(rest.clone()).collect::<String>() + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(wanted: &str) -> Vec<(Kind, String)> {
        find(&all(), wanted).into_iter().map(|term| (term.kind, term.name.clone())).collect()
    }

    #[test]
    fn a_number_is_everything_that_has_it_however_it_is_written() {
        for six in ["6", "0x6", "-6"] {
            let names = found(six);
            for expected in ["IBV_WC_MW_BIND_ERR", "PeerRemoteAccess", "InvalidCommId"] {
                assert!(names.iter().any(|(_, name)| name == expected), "{six}: {names:?}");
            }
        }
        assert!(found("22").contains(&(Kind::Errno, "EINVAL".into())));
        assert_eq!(found("4000000000"), []);
    }

    #[test]
    fn a_name_is_found_in_any_case_and_by_a_part_of_it() {
        let retry = (Kind::Status, "IBV_WC_RETRY_EXC_ERR".to_owned());
        assert_eq!(found("ibv_wc_retry_exc_err"), std::slice::from_ref(&retry));
        assert!(found("retry-exc").contains(&retry));
        assert_eq!(found("PeerRemoteAccess"), [(Kind::VendorErr, "PeerRemoteAccess".into())]);
        assert_eq!(found("rc-resp-004"), [(Kind::Rule, "RC-RESP-004".into())]);
        assert_eq!(found("early_dropped"), [(Kind::Counter, "early_dropped".into())]);
        assert_eq!(found("er"), [], "two letters say nothing");
    }

    #[test]
    fn everything_has_a_name_of_its_own_in_its_kind_and_a_sentence() {
        let all = all();
        for term in &all {
            let twin = |other: &&Term| other.kind == term.kind && other.name == term.name;
            assert_eq!(all.iter().filter(twin).count(), 1, "{term}");
            assert!(term.meaning.ends_with(['.', '?']), "{term}");
        }
    }
}
