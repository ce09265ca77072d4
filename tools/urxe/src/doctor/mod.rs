//! `urxe doctor`: whether unmodified verbs programs can run on this machine, and what to do if not.
//!
//! [`facts`] looks at the machine, [`trial`] tries what programs do, [`rules`] judges what came of
//! it, and none does another's work.

mod facts;
mod rules;
mod trial;

pub(crate) use trial::{Arguments as TrialArguments, run_here as run_trial};

use crate::output;
use clap::Args;
use facts::Facts;
use rules::{Finding, Level};
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  urxe doctor
      What is missing on this machine for `urxe run`, and how to mend it.
  urxe doctor --json
      The same for a script.

Exit codes: 0 if a program could run, 1 if not.";

/// Say what keeps unmodified verbs programs from running on this machine, and how to mend it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// Looks, judges and prints.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let report = Report::new(rules::judge(&Facts::of_this_machine()));
    match output::even_if_unread(output::print(arguments.json, &report)) {
        Ok(()) if report.can_run => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => error.report("urxe"),
    }
}

/// All findings, the worst first.
#[derive(Debug, Serialize)]
struct Report {
    can_run: bool,
    checks: Vec<Finding>,
}

impl Report {
    fn new(mut checks: Vec<Finding>) -> Report {
        checks.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        Report { can_run: checks.iter().all(|finding| finding.level < Level::Problem), checks }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { name, level, says, mend } in &self.checks {
            writeln!(f, "{:<8} {name:<10} {says}", level.to_string())?;
            if let Some(mend) = mend {
                writeln!(f, "{:<19} -> {mend}", "")?;
            }
        }
        match self.checks.iter().filter(|finding| finding.level == Level::Problem).count() {
            0 => writeln!(f, "\nVerbs programs can run: try `urxe run ibv_devinfo`."),
            1 => writeln!(f, "\nVerbs programs cannot run yet: 1 problem."),
            count => writeln!(f, "\nVerbs programs cannot run yet: {count} problems."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &'static str, level: Level) -> Finding {
        Finding { name, level, says: "so".into(), mend: None }
    }

    #[test]
    fn problems_come_first_and_only_they_keep_programs_from_running() {
        let ok_and_warning = vec![finding("a", Level::Ok), finding("b", Level::Warning)];
        let report = Report::new(ok_and_warning);
        assert!(report.can_run && report.to_string().contains("can run"));
        assert_eq!(report.checks[0].name, "b");
        let report = Report::new(vec![finding("a", Level::Ok), finding("b", Level::Problem)]);
        assert!(!report.can_run && report.to_string().contains("1 problem."));
        assert!(report.to_string().starts_with("problem  b"));
    }
}
