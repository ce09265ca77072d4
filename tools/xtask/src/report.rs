//! Stages, and how they ended.

use crate::descendants::{self, Watchdog};
use std::time::{Duration, Instant};
use urxe_shell::Result;

/// How long a stage may take before what it runs is killed: twice as long as the longest takes.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How a stage ended.
enum Outcome {
    Passed,
    Failed(String),
    CouldNotRun(String),
}

/// All stages of a run.
#[derive(Default)]
pub(crate) struct Report {
    stages: Vec<(&'static str, Outcome, f64)>,
}

impl Report {
    /// Runs a stage, unless it `lacks` something.
    pub(crate) fn stage(
        &mut self,
        name: &'static str,
        lacks: Option<String>,
        work: impl FnOnce() -> Result,
    ) {
        let start = Instant::now();
        eprintln!("\n==> {name}");
        let outcome = match lacks {
            Some(reason) => Outcome::CouldNotRun(reason),
            None => {
                let watchdog = Watchdog::new(LIMIT);
                let result = work();
                match (watchdog.finish(), result) {
                    (true, _) => Outcome::Failed(format!("took over {} s", LIMIT.as_secs())),
                    (false, Ok(())) => Outcome::Passed,
                    (false, Err(problem)) => Outcome::Failed(problem),
                }
            }
        };
        descendants::clear();
        match &outcome {
            Outcome::Passed => {}
            Outcome::Failed(problem) => eprintln!("{name} FAILED: {problem}"),
            Outcome::CouldNotRun(reason) => eprintln!("{name} could not run: {reason}"),
        }
        self.stages.push((name, outcome, start.elapsed().as_secs_f64()));
    }

    /// Prints the table; returns whether nothing failed.
    #[allow(clippy::print_stdout)] // the table is what the command is for
    pub(crate) fn finish(&self) -> bool {
        println!();
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (name, outcome, seconds) in &self.stages {
            let text = match outcome {
                Outcome::Passed => {
                    passed += 1;
                    "passed".to_owned()
                }
                Outcome::Failed(problem) => {
                    failed += 1;
                    format!("FAILED: {problem}")
                }
                Outcome::CouldNotRun(reason) => {
                    skipped += 1;
                    format!("could not run: {reason}")
                }
            };
            println!("{name:<34} {seconds:>6.1} s  {text}");
        }
        println!("\n{passed} passed, {failed} failed, {skipped} skipped");
        // Once more where errors are looked for: the last lines of a long log.
        for (name, outcome, _) in &self.stages {
            if let Outcome::Failed(problem) = outcome {
                eprintln!("error: stage \"{name}\" failed: {problem}");
            }
        }
        failed == 0
    }
}
