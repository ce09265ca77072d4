//! `cargo xtask release`: everything that a release is, but for publishing it.
//!
//! All is done in a clone below `target/release-of`, so that a release that fails changes nothing
//! here.

use crate::semver;
use std::fs;
use std::path::Path;
use std::process::Command;
use urxe_shell::{Result, cargo, output, root, run, target_directory};

const CURRENT: &str = env!("CARGO_PKG_VERSION");
const UNRELEASED: &str = "## [Unreleased]\n";

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The version, as 0.2.0: greater than the present one, or that if it was not released.
    version: String,
    /// Do and check all of it, and leave this repository as it is.
    #[arg(long)]
    dry_run: bool,
}

/// Makes a release, and says what is left to do.
pub(crate) fn make(options: &Options) -> Result {
    let version = options.version.as_str();
    if parse(version)? < parse(CURRENT)? {
        return Err(format!("version {version}: expected {CURRENT}, or one that is greater"));
    }
    let tag = format!("v{version}");
    let here = root();
    let changed = output(git(&here).args(["status", "--porcelain"]))?;
    if !changed.is_empty() {
        return Err(format!("there are changes that are not committed:\n{changed}"));
    }
    if !output(git(&here).args(["tag", "--list", &tag]))?.is_empty() {
        return Err(format!("version {version}: released already, there is a tag {tag}"));
    }

    step("a clone");
    let files = target_directory().join("release-of");
    let clone = files.join("clone");
    let _ = fs::remove_dir_all(&files);
    fs::create_dir_all(&files).map_err(|error| format!("{}: {error}", files.display()))?;
    run(Command::new("git").args(["clone", "--quiet"]).args([&here, &clone]))?;

    step("version and changes");
    edit(&clone.join("Cargo.toml"), |text| with_version(text, CURRENT, version))?;
    let date = output(Command::new("date").args(["--utc", "+%F"]))?;
    let heading = format!("## [{version}] - {}\n", date.trim());
    edit(&clone.join("CHANGELOG.md"), |text| with_heading(text, version, &heading))?;
    let notes = files.join("notes.md");
    let changes = read(&clone.join("CHANGELOG.md"))?;
    fs::write(&notes, notes_of(&changes, version))
        .map_err(|error| format!("{}: {error}", notes.display()))?;
    // Nothing that is built is shared: to cargo the crates of a clone are those of this repository,
    // and what was built of the one was taken for the other's.
    let target = files.join("built");
    let cargo_there = || {
        let mut cargo = cargo();
        cargo.current_dir(&clone).env("CARGO_TARGET_DIR", &target);
        cargo
    };
    for workspace in ["Cargo.toml", "spec-tests/fuzz/Cargo.toml"] {
        let update = ["update", "--workspace", "--quiet", "--manifest-path", workspace];
        run(cargo_there().args(update))?;
    }
    let message = format!("Release {version}");
    // There is nothing to commit where the version was there already.
    if !output(git(&clone).args(["status", "--porcelain"]))?.is_empty() {
        run(git(&clone).args(["commit", "--quiet", "--all", "--message", &message]))?;
    }

    step("public API since the last release");
    match semver::lacks() {
        Some(reason) => eprintln!("could not run: {reason}"),
        None => semver::check_in(&clone)?,
    }
    run(git(&clone).args(["tag", "--annotate", "--message", &message, &tag]))?;

    step("crates, built as they would be published");
    run(cargo_there().args(["publish", "--workspace", "--dry-run", "--locked"]))?;

    step("packages");
    for kind in ["deb", "tarball"] {
        run(cargo_there().args(["xtask", "package", kind]))?;
    }
    let packages = target.join("package");
    let built: Vec<_> = [format!("urxe_{version}_"), format!("urxe-{version}-")]
        .iter()
        .map(|prefix| packed(&packages, prefix))
        .collect::<Result<_>>()?;
    let sums = output(Command::new("sha256sum").current_dir(&packages).args(&built))?;
    let list = packages.join(format!("urxe-{version}.sha256"));
    fs::write(&list, &sums).map_err(|error| format!("{}: {error}", list.display()))?;
    eprint!("{sums}");

    if !options.dry_run {
        step("commit and tag");
        run(git(&here).args(["pull", "--quiet", "--ff-only", "--tags"]).arg(&clone).arg("HEAD"))?;
    }
    eprintln!("\n{version} is ready: {}, {}", notes.display(), list.display());
    match options.dry_run {
        true => eprintln!("nothing was changed here; without --dry-run it is committed and tagged"),
        false => eprintln!(
            "to publish it:\n  git push --follow-tags\n  cargo publish --workspace\n  and a release \
             of {tag} with these notes, and the files of that list"
        ),
    }
    Ok(())
}

fn step(name: &str) {
    eprintln!("\n==> {name}");
}

fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(folder);
    git
}

fn parse(version: &str) -> Result<[u32; 3]> {
    let numbers: Vec<u32> = version.split('.').filter_map(|number| number.parse().ok()).collect();
    let has_three = version.split('.').count() == 3;
    let numbers = numbers.try_into().ok().filter(|_| has_three);
    numbers.ok_or_else(|| format!("version {version:?}: expected three numbers, as 0.2.0"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn edit(path: &Path, change: impl FnOnce(&str) -> Result<String>) -> Result {
    let changed = change(&read(path)?)?;
    fs::write(path, changed).map_err(|error| format!("{}: {error}", path.display()))
}

/// The workspace's manifest with the version that all crates have, and ask of each other.
fn with_version(manifest: &str, old: &str, new: &str) -> Result<String> {
    let own = format!("\nversion = \"{old}\"\n");
    let required = format!("version = \"={old}\"");
    if manifest.matches(&own).count() != 1 || !manifest.contains(&required) {
        return Err(format!("Cargo.toml does not have the version {old} where it was expected"));
    }
    let text = manifest.replace(&own, &format!("\nversion = \"{new}\"\n"));
    Ok(text.replace(&required, &format!("version = \"={new}\"")))
}

/// How the heading of a version begins.
fn heading_of(version: &str) -> String {
    format!("## [{version}] - ")
}

/// The list of changes with what was unreleased under this heading, unless the version has one.
fn with_heading(changes: &str, version: &str, heading: &str) -> Result<String> {
    let (before, after) = changes
        .split_once(UNRELEASED)
        .ok_or_else(|| format!("CHANGELOG.md has no line {UNRELEASED:?}"))?;
    let unreleased = after.split("\n## [").next().unwrap_or_default();
    match (unreleased.trim().is_empty(), changes.contains(&heading_of(version))) {
        (true, true) => return Ok(changes.to_owned()),
        (false, false) => {}
        (true, false) => return Err("CHANGELOG.md: nothing is under [Unreleased]".to_owned()),
        (false, true) => {
            return Err(format!(
                "CHANGELOG.md: something is under [Unreleased], expected it under [{version}]"
            ));
        }
    }
    Ok(format!("{before}{UNRELEASED}\n{heading}{after}"))
}

/// What the list of changes says of a version.
fn notes_of<'a>(changes: &'a str, version: &str) -> &'a str {
    let section = changes.split_once(&heading_of(version)).map_or("", |(_, after)| after);
    let section = section.split_once('\n').map_or("", |(_, after)| after);
    section.split("\n## [").next().unwrap_or_default().trim_start()
}

/// The name of the one package that begins so; what lies beside it has symbols.
fn packed(folder: &Path, prefix: &str) -> Result<String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_package = |name: &String| {
        name.starts_with(prefix) && (name.ends_with(".deb") || name.ends_with(".tar.gz"))
    };
    let found: Vec<_> = names.filter(is_package).collect();
    match <[String; 1]>::try_from(found) {
        Ok([name]) => Ok(name),
        Err(found) => Err(format!("{}: {prefix}*: {found:?}, expected one", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_numbers_and_compared_as_such() {
        assert!(parse("0.10.0").unwrap() > parse("0.9.3").unwrap());
        for wrong in ["", "1", "1.2", "1.2.3.4", "1.2.x", "v1.2.3", "1..2"] {
            assert!(parse(wrong).unwrap_err().contains("0.2.0"), "{wrong}");
        }
    }

    #[test]
    fn all_crates_and_what_they_ask_of_each_other_have_the_version() {
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\n\
            a = { path = \"a\", version = \"=0.1.0\" }\nb = { version = \"0.1.0\" }\n";
        let changed = with_version(manifest, "0.1.0", "0.2.0").unwrap();
        assert!(changed.contains("\nversion = \"0.2.0\"\n") && changed.contains("\"=0.2.0\""));
        assert!(changed.contains("b = { version = \"0.1.0\" }"), "another's version");
        with_version(manifest, "0.0.9", "0.2.0").unwrap_err();
        let here = read(&root().join("Cargo.toml")).unwrap();
        with_version(&here, CURRENT, "99.0.0").unwrap();
    }

    #[test]
    fn unreleased_changes_are_under_the_heading_and_in_the_notes() {
        let changes = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n- old\n";
        let heading = "## [0.2.0] - 2026-02-02\n";
        let changed = with_heading(changes, "0.2.0", heading).unwrap();
        assert_eq!(
            changed,
            "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-02-02\n\n- new\n\n\
             ## [0.1.0] - 2026-01-01\n- old\n"
        );
        assert_eq!(notes_of(&changed, "0.2.0"), "- new\n");
        let of_next = |changes: &str| with_heading(changes, "0.3.0", "## [0.3.0] - 2026-03-03\n");
        assert!(of_next(&changed).unwrap_err().contains("nothing is under [Unreleased]"));
        // What has its heading keeps it, whatever day it is.
        let later = "## [0.2.0] - 2026-02-03\n";
        assert_eq!(with_heading(&changed, "0.2.0", later).as_ref(), Ok(&changed));
        let more = changed.replacen(UNRELEASED, "## [Unreleased]\n\n- newer\n", 1);
        let refused = with_heading(&more, "0.2.0", later).unwrap_err();
        assert!(refused.contains("expected it under [0.2.0]"), "{refused}");
        let here = read(&root().join("CHANGELOG.md")).unwrap();
        assert!(here.contains(UNRELEASED));
    }
}
