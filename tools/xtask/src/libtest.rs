//! Tests that are chosen by their names: libtest calls it a success that no name matches.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use urxe_shell::Result;

/// Runs `cargo test` to the end, output going where ours goes; an error if it fails, or if not one
/// test has passed.
#[allow(clippy::print_stdout)] // what the tests print is what is looked at
pub(crate) fn run(command: &mut Command) -> Result {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo test cannot be started: {error}"))?;
    let mut passed = 0;
    for line in child.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
        let line = line.map_err(|error| format!("what the tests print: {error}"))?;
        println!("{line}");
        passed += passed_by(&line);
    }
    let status = child.wait().map_err(|error| format!("cargo test: {error}"))?;
    match (status.success(), passed) {
        (false, _) => Err(format!("cargo test ended with {status}")),
        (true, 0) => Err("no test has the name that was asked for".to_owned()),
        (true, _) => Ok(()),
    }
}

/// How many tests have passed, by the line that ends the output of a test binary.
fn passed_by(line: &str) -> u64 {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split_once(" passed"));
    count.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_passed_are_counted_and_no_others() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out";
        assert_eq!(passed_by(line), 12);
        assert_eq!(passed_by(&line.replace("12", "0")), 0);
        assert_eq!(passed_by("test a::b ... ok"), 0);
    }

    #[test]
    fn a_run_in_which_no_test_passed_is_an_error() {
        let ended = |script| run(Command::new("sh").args(["-c", script]));
        assert!(ended("echo 'test result: ok. 1 passed; 0 failed'").is_ok());
        assert!(ended("echo 'test result: ok. 0 passed; 0 failed'").is_err());
        assert!(ended("echo 'test result: ok. 1 passed; 0 failed'; exit 1").is_err());
    }
}
