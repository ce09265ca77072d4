//! Mistakes that people make with verbs, and what `urxe run --explain` says of each.
//!
//! `mistakes.c` makes them, each in a process of its own; `mistakes.expected` is what is printed,
//! with `N` where numbers differ from run to run. A mistake of which nothing is said, or something
//! else, fails the test. After a sentence was changed, `URXE_BLESS=1` writes the file anew.

use crate::faults::Fault;
use crate::testbed::{Side, TIMEOUT, Testbed};
use std::net::IpAddr;
use urxe_shell::{Result, root};

/// All tests.
pub(crate) const ALL: [(&str, Fault); 1] = [("mistakes are explained", mistakes_are_explained)];

/// As many mistakes are in the table at least.
const LEAST: usize = 60;

const EXPECTED: &str = include_str!("../mistakes.expected");

fn mistakes_are_explained(testbed: &Testbed) -> Result<String> {
    let program = testbed.binary("mistakes");
    let ended = testbed.explain(Side::A, &[&program.to_string_lossy()])?.wait(TIMEOUT)?;
    let output = ended.success()?;
    let printed: Vec<String> =
        output.lines().map(|line| plain(line, testbed.address(Side::A))).collect();
    if std::env::var_os("URXE_BLESS").is_some() {
        let path = root().join("interop/programs/mistakes.expected");
        let text = printed.join("\n") + "\n";
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let count = check(&printed)?;
    for (printed, expected) in printed.iter().zip(EXPECTED.lines()) {
        if printed != expected {
            return Err(format!("prints {printed:?}, expected {expected:?}"));
        }
    }
    match printed.len() == EXPECTED.lines().count() {
        true => Ok(format!("{count} mistakes")),
        false => Err(format!("prints {} lines, expected others", printed.len())),
    }
}

/// Each mistake has a sentence, and each sentence says what was wrong and what to do. Returns how
/// many mistakes there are.
fn check(printed: &[String]) -> Result<usize> {
    let mut count = 0;
    for (at, line) in printed.iter().enumerate() {
        if let Some(mistake) = line.strip_prefix("== ") {
            count += 1;
            let next = printed.get(at + 1).filter(|next| next.starts_with("urxe: "));
            next.ok_or_else(|| format!("{mistake}: nothing is said of it"))?;
        } else if !says_something(line) {
            return Err(format!("says neither what was wrong nor what to do: {line}"));
        }
    }
    match count >= LEAST {
        true => Ok(count),
        false => Err(format!("{count} mistakes, expected at least {LEAST}")),
    }
}

/// A refused verb says what was expected; a failed work request has a cause of the table, which
/// are sentences that a person can act on; an event has its reason.
fn says_something(line: &str) -> bool {
    let expectation = [
        "expected",
        "must",
        "need",
        "choose another",
        "is not the address",
        "the queue was made for",
        "the queue is full",
        "destroy them first",
        "this device has",
        "post them there",
        "no device has it",
        "with no route",
        "vendor_err",
        "RDMA_CM_EVENT_",
    ];
    line.starts_with("urxe: ") && expectation.iter().any(|part| line.contains(part))
}

/// A line with `N` for what differs from run to run: addresses of memory, numbers of QPs, and how
/// many packets there were; and `ADDR` for the device's own address.
fn plain(line: &str, own: IpAddr) -> String {
    let line = line.replace(&own.to_string(), "ADDR");
    let (head, counted) = match line.find("This QP has sent") {
        Some(at) => line.split_at(at),
        None => (line.as_str(), ""),
    };
    let mut plain = String::new();
    let mut rest = head;
    while let Some(at) = rest.find("0x") {
        let digits = rest[at + 2..].chars().take_while(char::is_ascii_hexdigit).count();
        // Shorter ones are the same each time.
        let is_long = digits >= 6;
        plain.push_str(&rest[..at]);
        plain.push_str(if is_long { "N" } else { &rest[at..at + 2 + digits] });
        rest = &rest[at + 2 + digits..];
    }
    plain.push_str(rest);
    let mut was_digit = false;
    for c in counted.chars() {
        if !c.is_ascii_digit() {
            plain.push(c);
        } else if !was_digit {
            plain.push('N');
        }
        was_digit = c.is_ascii_digit();
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_has_a_sentence_that_says_what_was_expected() {
        let lines: Vec<String> = EXPECTED.lines().map(str::to_owned).collect();
        check(&lines).unwrap();
        let silent: Vec<String> =
            lines.iter().filter(|line| !line.contains("path_mtu 6")).cloned().collect();
        assert_eq!(check(&silent), Err("path_mtu_of_no_code: nothing is said of it".into()));
        let vague = ["== port_2".into(), "urxe: ibv_modify_qp: failed (EINVAL)".into()];
        assert!(check(&vague).unwrap_err().contains("neither"));
    }

    #[test]
    fn every_mistake_of_the_program_is_in_the_table_and_no_other() {
        let source = include_str!("../mistakes.c");
        let made = source.lines().filter_map(|line| {
            line.strip_prefix("    MISTAKE(").and_then(|rest| rest.strip_suffix("),"))
        });
        let expected = EXPECTED.lines().filter_map(|line| line.strip_prefix("== "));
        assert_eq!(made.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn numbers_that_differ_from_run_to_run_are_replaced() {
        let own = [127, 77, 3, 1].into();
        let line = "urxe: SEND of QP 0x0a1b2c, vendor_err 0x2: 127.77.3.1. \
                    This QP has sent 18 packets, and 2 have come back.";
        assert_eq!(
            plain(line, own),
            "urxe: SEND of QP N, vendor_err 0x2: ADDR. This QP has sent N packets, and N have come \
             back."
        );
    }
}
