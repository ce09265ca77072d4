//! Stock verbs programs on urxe, as distributions ship them, run by an ordinary user: their output
//! and exit status are checked. And programs that fail, are killed, or misuse what they have.
//!
//! | module | |
//! | --- | --- |
//! | `testbed` | daemons, and the environment of an ordinary user |
//! | `list` | programs of ibverbs-utils, perftest and UCX |
//! | `connected` | programs that connect through librdmacm |
//! | `conform` | `urxe conform` asks urxe |
//! | `faults`, `memory_order` | our own programs: faults, and what polling programs see |
//! | `iproute` | `rdma` of iproute2 |
//! | `mistakes` | what is said of mistakes that people make |
//! | `judge` | whether the output of a program is right |

mod conform;
mod connected;
mod faults;
mod iproute;
mod judge;
mod list;
mod memory_order;
mod mistakes;
mod testbed;

pub use judge::table;

use list::Program;
use std::collections::BTreeSet;
use std::fmt;
use testbed::{NoIpv6, Side, Testbed};
use urxe_shell::Result;

/// What cannot run a slot of its own, by words of its name, and why.
const NOT_IN_PROCESS: [(&str, &str); 3] = [
    ("librspreload", "it takes the descriptors of all threads for those of the program"),
    // OWN-024
    ("under valgrind", "valgrind gives a thread no descriptors of its own"),
    ("valgrind's leak check", "valgrind gives a thread no descriptors of its own"),
];

/// One line of the table.
struct Row {
    name: String,
    daemons: &'static str,
    /// The figure that it printed, or why it failed.
    outcome: Result<String>,
}

/// Runs everything that has `only` in its name or options, on the release build, and prints the
/// table; an error if anything failed. With `in_process`, each program runs a slot of its own, and
/// one that is served by a daemon has failed; what cannot is left out, and said. If nothing has
/// `only` in its name, that is an error.
pub fn check(only: &str, in_process: bool) -> Result {
    let testbed = Testbed::new(in_process)?;
    let mut rows = Vec::new();
    let mut left_out = BTreeSet::new();
    let mut wanted = |name: &str| {
        let why_not = NOT_IN_PROCESS.iter().find(|(words, _)| in_process && name.contains(words));
        if let Some((_, why)) = why_not.filter(|_| name.contains(only)) {
            left_out.insert(format!("{name}: not in process, {why}"));
        }
        why_not.is_none() && name.contains(only)
    };
    for program in list::all().filter(|program| wanted(&program.name())) {
        for daemons in program.daemons() {
            rows.push(run_one(&testbed, &program, daemons));
        }
    }
    let mut over_ipv6 = BTreeSet::new();
    for test in connected::all() {
        let name = test.name();
        if !wanted(&name) {
            continue;
        }
        let outcome = match testbed.no_ipv6().filter(|_| test.is_over_ipv6()) {
            None => test.run(&testbed),
            Some(NoIpv6 { is_possible: true, why }) => Err(why.clone()),
            Some(NoIpv6 { is_possible: false, why }) => {
                over_ipv6.insert(format!("{name}: could not run: {why}"));
                continue;
            }
        };
        rows.push(Row::new(name, test.daemons(), outcome));
    }
    let faults = faults::ALL.into_iter().chain(connected::FAULTS).chain(memory_order::ALL);
    let faults = faults.chain(mistakes::ALL).chain(conform::ALL).chain(iproute::ALL);
    for (name, fault) in faults.filter(|(name, _)| wanted(name)) {
        rows.push(Row::new(name.into(), "", fault(&testbed)));
    }
    left_out.append(&mut over_ipv6);
    if rows.is_empty() && left_out.is_empty() {
        return Err(format!("no program or test has {only:?} in its name or options"));
    }
    let nothing_left = testbed.wait_until_no_objects_left().map(|()| String::new());
    rows.push(Row::new("nothing is left".into(), "all", nothing_left));
    print(&rows);
    left_out.iter().for_each(|line| eprintln!("{line}"));
    let failed: Vec<_> = rows.iter().filter(|row| row.outcome.is_err()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    // Once more, each with its reason: who reads only the end of a long log still learns them.
    let lines: Vec<_> = failed.iter().map(|row| row.to_string()).collect();
    Err(format!("{} of {} failed:\n{}", failed.len(), rows.len(), lines.join("\n")))
}

fn run_one(testbed: &Testbed, program: &Program, daemons: &'static str) -> Row {
    let server = if daemons == "1" { Side::A } else { Side::B };
    let outcome = if program.is_alone() {
        let ended = testbed.run(Side::A, &program.words(), testbed::TIMEOUT);
        ended.and_then(|ended| judge::alone(program, &ended.success()?))
    } else {
        testbed
            .run_pair((server, Side::A), &program.words())
            .and_then(|(server, client)| judge::pair(program, &server, &client))
    };
    Row::new(program.name(), daemons, outcome)
}

impl Row {
    /// Prints the row at once: the table comes after minutes.
    fn new(name: String, daemons: &'static str, outcome: Result<String>) -> Row {
        let row = Row { name, daemons, outcome };
        eprintln!("{row}");
        row
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { name, daemons, outcome } = self;
        let (how, text) = match outcome {
            Ok(figure) => ("passed", figure),
            Err(reason) => ("FAILED", reason),
        };
        write!(f, "{name:<46} {daemons:>7}  {how}  {text}")
    }
}

#[allow(clippy::print_stdout)] // the table is what this is for
fn print(rows: &[Row]) {
    println!("\n{:<46} {:>7}  {:<6}  figure", "program", "daemons", "");
    rows.iter().for_each(|row| println!("{row}"));
}
