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
    git.current_dir(folder).args(["tag", "--list", "--merged", "HEAD"]);
    Ok(newest(&output(&mut git)?).map(str::to_owned))
}

/// The tag with the greatest version, such as v0.10.0.
fn newest(tags: &str) -> Option<&str> {
    let version = |tag: &str| -> Option<Vec<u64>> {
        let numbers = tag.strip_prefix('v')?.split('.').map(|number| number.parse().ok());
        numbers.collect::<Option<Vec<_>>>().filter(|numbers| numbers.len() == 3)
    };
    tags.lines().filter(|tag| version(tag).is_some()).max_by_key(|tag| version(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_is_the_greatest_version_and_no_other_tag() {
        assert_eq!(newest(""), None);
        assert_eq!(newest("other\nv0\nvendor\nv1.x.0\n"), None);
        assert_eq!(newest("v0.10.0\nv0.9.0\nvendor\nv1\n"), Some("v0.10.0"));
    }
}
