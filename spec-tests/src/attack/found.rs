//! What hostile programs and packets have achieved once, before there were slots, workers and
//! shares, and which attack repeats it; and what nothing had tried then.

use super::{Attack, all};
use serde::Serialize;

/// Something that was found, or was open.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// C: it ended the daemon or stopped it; H: it harmed others much; M: it harmed them; T: what
    /// was seen, held or open beside these.
    pub id: &'static str,
    /// What happened once, or what was asked.
    pub what: &'static str,
    /// The rules whose tests show what is so now, where an attack alone does not.
    pub rules: &'static [&'static str],
}

const fn found(id: &'static str, what: &'static str, rules: &'static [&'static str]) -> Found {
    Found { id, what, rules }
}

/// All of it.
pub const FOUND: &[Found] = &[
    found("C1", "520 legal requests about a full event pipe ended the daemon", &["HOST-027"]),
    found("C2", "128 sessions mapped all addresses of the daemon, which ended", &[]),
    found(
        "C3",
        "descriptors whose close or look-up blocks stopped the daemon",
        &["SLOT-001", "SHARE-105"],
    ),
    found("C4", "a page table that is busy held up requests of all", &[]),
    found(
        "H5",
        "a stranger's REQ or NAK ended a connection",
        &["CM-200", "HOST-200", "HOSTILE-007"],
    ),
    found(
        "H6",
        "60,000 doorbells delayed the WRITEs of others by 28 ms",
        &["SHARE-002", "SHARE-003"],
    ),
    found("H7", "freeing rings of a gigabyte stopped the daemon for seconds", &["SHARE-006"]),
    found("H8", "one user took all sessions or descriptors", &["SHARE-101", "SHARE-103"]),
    found("M9", "a program's sparse memory was charged to the daemon", &["SLOT-101"]),
    found("M10", "a packet to a group of a thousand QPs delayed requests", &["SHARE-004"]),
    found("M11", "a panic anywhere would have ended all devices", &["SLOT-002", "SLOT-106"]),
    found("T1", "SIGHUP ended the daemon and left its files", &["SLOT-120"]),
    found("T2", "a program that polls hung for ever when the daemon died", &["CLIENT-018"]),
    found("T3", "memory of a file whose server does not answer stopped the daemon", &["SLOT-107"]),
    found("T4", "sums that overflow went on as other numbers in the release", &["SLOT-121"]),
    found("T5", "random and malformed packets: nothing was achieved", &["HOST-001", "HOST-021"]),
    found("T6", "repeated READs were no amplification", &["HOST-001"]),
    found(
        "T7",
        "decoders of requests, packets and MADs held",
        &["HOSTILE-001", "HOSTILE-003", "HOSTILE-004"],
    ),
    found(
        "T8",
        "entries of rings that change while they are read were not tried",
        &["HOST-004", "HOSTILE-002"],
    ),
    found("T9", "memory that is unmapped during a transfer was not tried", &[]),
    found("T10", "fairness beside one greedy program was not tried", &["SHARE-003"]),
    found("T11", "storms of NAKs at a stuck port were not tried", &[]),
    found("T12", "memory of others is sealed and checked: nothing was achieved", &["MEM-010"]),
    found("T13", "keys and numbers cannot be guessed from others", &["HOST-018", "HOST-200"]),
    found(
        "T14",
        "coverage-guided fuzzing and sanitizers were missing",
        &["HOSTILE-001", "HOSTILE-002", "HOSTILE-003", "HOSTILE-004", "HOSTILE-005", "HOSTILE-006"],
    ),
    found("T16", "floods of REQs were bounded", &["HOSTILE-005"]),
    found("T17", "a worker that dies must harm its own user alone", &["SLOT-106"]),
];

impl Found {
    /// The attacks that repeat it.
    pub fn attacks(&self) -> impl Iterator<Item = &'static Attack> {
        let id = self.id;
        all().filter(move |attack| attack.found == Some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_that_was_found_is_repeated_or_has_a_rule() {
        for found in FOUND {
            assert!(found.attacks().next().is_some() || !found.rules.is_empty(), "{}", found.id);
            for id in found.rules {
                assert!(urxe_conform::rules::find(id).is_some(), "{}: {id}", found.id);
            }
        }
    }

    #[test]
    fn attacks_have_names_of_their_own_and_say_what_they_repeat() {
        let mut names = BTreeSet::new();
        for attack in all() {
            assert!(names.insert(attack.name), "{}", attack.name);
            let is_known = |id| FOUND.iter().any(|found| found.id == id);
            assert!(attack.found.is_none_or(is_known), "{}", attack.name);
        }
    }

    #[test]
    fn at_least_ten_attacks_repeat_nothing_that_was_found() {
        assert!(all().filter(|attack| attack.found.is_none()).count() >= 10);
    }

    #[test]
    fn the_release_is_built_with_overflow_checks() {
        let cargo: &str = include_str!("../../../Cargo.toml");
        let release = cargo.split("[profile.release]").nth(1).unwrap();
        let release = release.split("\n[").next().unwrap();
        assert!(release.contains("overflow-checks = true"), "{release}");
    }
}
