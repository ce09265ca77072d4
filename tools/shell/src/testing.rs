//! What tests of several crates do alike.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// With `1` in it, a test that needs root, or rights of it that a container lacks, fails where it
/// cannot run. `cargo xtask ci` sets it where there are all of them.
pub const REQUIRE_ROOT: &str = "URXE_REQUIRE_ROOT";

/// Says that a test could not run, and why.
pub fn could_not_run(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not by eprintln: what a passing test prints that way, the harness keeps to itself.
    let _ = writeln!(std::io::stderr(), "could not run: {test}: {reason}");
}

/// Says that a test could not run for want of rights that root has; see [`REQUIRE_ROOT`].
///
/// # Panics
/// With `URXE_REQUIRE_ROOT=1`.
#[track_caller]
pub fn needs_root(reason: &str) {
    could_not_run(reason);
    let is_required = std::env::var_os(REQUIRE_ROOT).is_some_and(|value| value == "1");
    assert!(!is_required, "{REQUIRE_ROOT}=1, but: {reason}");
}

/// This test program, to run one of its tests alone: with an environment that tells that test to
/// be a program of its own.
///
/// # Panics
/// If this program cannot be found.
pub fn alone(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Asserts that a program made by [`alone`] has run its test, which has passed: one that has no
/// test of that name succeeds too.
///
/// # Panics
/// With what it printed, if not.
#[track_caller]
pub fn assert_passed(ended: &Output) {
    let [said, errors] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    let has_passed = ended.status.success() && said.contains("test result: ok. 1 passed");
    assert!(has_passed, "{}\n{said}\n{errors}", ended.status);
}

/// Has the C compiler accept a program, if there is one.
///
/// # Panics
/// With what the compiler says, if it does not.
#[track_caller]
pub fn assert_compiles(c: &str) {
    let compiler = Command::new("cc")
        .args(["-x", "c", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut compiler) = compiler else { return could_not_run("no C compiler") };
    compiler.stdin.take().expect("it is piped").write_all(c.as_bytes()).expect("cc takes it");
    let output = compiler.wait_with_output().expect("cc ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
