//! The order in which a stock program that polls its memory sees what a peer writes there: of
//! memory that is reached by system calls, and of memory that was remapped.

use crate::faults::Fault;
use crate::testbed::{Side, TIMEOUT, Testbed};
use urxe_shell::Result;

pub(crate) const ALL: [(&str, Fault); 2] = [
    ("the order of memory", |testbed| check(testbed, &[])),
    ("the order of memory, URXE_MR=remap", |testbed| check(testbed, &["env", "URXE_MR=remap"])),
];

/// Runs `polls_memory`, which fails if it finds older data behind newer.
fn check(testbed: &Testbed, before: &[&str]) -> Result<String> {
    let program = testbed.binary("polls_memory");
    let program = program.to_string_lossy();
    let words = [before, &[&program, "-n", "2000"]].concat();
    let (server, client) = testbed.start_pair((Side::B, Side::A), &words)?;
    client.wait(TIMEOUT)?.success()?;
    let output = server.wait(TIMEOUT)?.success()?;
    let looked: Option<u64> = output.lines().map(times_looked).sum();
    match looked {
        Some(looked) if looked > 0 => Ok(format!("polled {looked} times")),
        _ => Err(format!("printed no line with a number of polls: {output}")),
    }
}

/// From a line such as "... looked 12 times, older data behind it 0 times".
fn times_looked(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("looked ")?;
    rest.split_once(' ')?.0.parse().ok()
}
