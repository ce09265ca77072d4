//! Whether the version says what has changed of the crates' public API since the last release, by
//! cargo-semver-checks.

use std::path::Path;
use std::process::Command;
use urxe_shell::{Result, cargo, output, root, run};

/// The version that is installed, which knows the Rust that is pinned for development.
pub(crate) const VERSION: &str = "0.51.0";

/// Why the tool is not here. It is no part of plain `setup`: to build it takes minutes.
pub(crate) fn lacks_tool() -> Option<String> {
    let found = output(cargo().args(["semver-checks", "--version"])).is_ok();
    (!found).then(|| "needs cargo-semver-checks: cargo xtask setup --all".to_owned())
}

/// Why it cannot run here.
pub(crate) fn lacks() -> Option<String> {
    lacks_tool().or_else(|| match last_release(&root()) {
        Ok(Some(_)) => None,
        Ok(None) => Some("there is no earlier release here to compare with (a tag v*)".to_owned()),
        Err(problem) => Some(problem),
    })
}

/// Compares the crates that are published with those of the last release.
pub(crate) fn check() -> Result {
    match lacks() {
        Some(reason) => Err(format!("could not run: {reason}")),
        None => check_in(&root()),
    }
}

/// The same in a clone, where it is known that the check can run.
pub(crate) fn check_in(folder: &Path) -> Result {
    let Some(tag) = last_release(folder)? else { return Ok(()) };
    let mut check = cargo();
    check.current_dir(folder).args(["semver-checks", "--workspace", "--baseline-rev", &tag]);
    run(&mut check)
}

/// The tag of the newest release that this commit comes after.
fn last_release(folder: &Path) -> Result<Option<String>> {
    let mut git = Command::new("git");
    git.current_dir(folder).args(["tag", "--list", "v[0-9]*", "--merged", "HEAD"]);
    let tags = output(git.args(["--sort", "-version:refname"]))?;
    Ok(tags.lines().next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_is_the_greatest_version_and_no_other_tag() {
        let folder = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(folder.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            output(git.args(args)).unwrap()
        };
        git(&["init", "--quiet"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "first"]);
        assert_eq!(last_release(folder.path()), Ok(None));
        for tag in ["v0.9.0", "v0.10.0", "vendor", "other"] {
            git(&["tag", tag]);
        }
        assert_eq!(last_release(folder.path()), Ok(Some("v0.10.0".to_owned())));
    }
}
