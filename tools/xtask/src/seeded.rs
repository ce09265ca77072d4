//! `cargo xtask seeded`: whether the conformance checks find what is wrong.

use crate::ci::WORKSPACE;
use urxe_shell::{Result, cargo, run};

/// Runs all checks on engines with a fault each, and on a right one a hundred times, also where
/// packets are lost; shows which checks found which fault.
pub(crate) fn check() -> Result {
    let mut command = cargo();
    command.arg("test").args(WORKSPACE).args(["--features", "urxe-spec-tests/seeded-faults"]);
    run(command.args(["--test", "seeded", "--test", "conformance", "--", "--show-output"]))
}
