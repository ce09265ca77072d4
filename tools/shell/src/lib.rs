//! Running programs; and what tests of several crates do alike.

pub mod testing;

use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// How much of what a command said last is its reason to have failed.
const REASON_LINES: usize = 10;

/// What went wrong, in a sentence.
pub type Result<T = ()> = std::result::Result<T, String>;

/// The root of the repository.
pub fn root() -> PathBuf {
    // What cargo says now counts before what it said when this was built: two clones may share
    // what is built, and then this program may have been built for the other.
    let now = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let built_at = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = now.as_deref().and_then(root_above).or_else(|| root_above(built_at));
    found.unwrap_or(Path::new(".")).into()
}

/// The nearest repository of ours that a folder is in.
fn root_above(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|above| above.join("tools/shell/Cargo.toml").is_file())
}

/// Collects the files below a folder whose names end so; build folders are left out.
pub fn files_below(dir: &Path, extension: &str, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files_below(&path, extension, files)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    Ok(())
}

/// The cargo that runs us.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(root());
    command
}

/// Where cargo puts what it builds: `CARGO_TARGET_DIR`, or what its configuration says, or
/// `target`.
pub fn target_directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let mut metadata = cargo();
        metadata.args(["metadata", "--format-version", "1", "--no-deps"]);
        let text = output(&mut metadata).unwrap_or_default();
        let metadata: Value = serde_json::from_str(&text).unwrap_or_default();
        metadata["target_directory"].as_str().map_or_else(|| root().join("target"), PathBuf::from)
    })
}

/// Where cargo puts release binaries.
pub fn release_binary(name: &str) -> PathBuf {
    target_directory().join("release").join(name)
}

/// Builds the release binaries that are run by others than their developers, and the shim, which is
/// a library.
pub fn build_release() -> Result {
    build_release_with(&[])
}

/// Builds the release binaries, and more of the workspace.
///
/// All that is built here for a release is built by this command. Of fewer packages, cargo enables
/// fewer features of the crates that they depend on, and would build all of them again.
pub fn build_release_with(more: &[&str]) -> Result {
    let mut build = cargo();
    build.args(["build", "--release", "--workspace", "--locked", "--lib"]);
    for name in ["urxe", "urxed", "urxe-peer", "attack"].iter().chain(more) {
        build.args(["--bin", name]);
    }
    run(&mut build)
}

/// Runs to the end, output going where ours goes; an error if it fails.
pub fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{} ended with {status}", show(command))),
    }
}

/// Runs to the end, output going where ours goes; an error that ends with what it said last on its
/// standard error if it fails.
pub fn run_for_reason(command: &mut Command) -> Result {
    let mut child =
        command.stderr(Stdio::piped()).spawn().map_err(|error| cannot_start(command, &error))?;
    let mut last = VecDeque::new();
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
        let line = line.map_err(|error| format!("{}: {error}", show(command)))?;
        eprintln!("{line}");
        last.push_back(line);
        if last.len() > REASON_LINES {
            last.pop_front();
        }
    }
    let status = child.wait().map_err(|error| format!("{}: {error}", show(command)))?;
    match status.success() {
        true => Ok(()),
        false => {
            let last = Vec::from(last).join("\n");
            Err(format!("{} ended with {status}: {last}", show(command)))
        }
    }
}

/// Runs to the end and returns what it printed; an error, with its error output, if it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().map_err(|error| cannot_start(command, &error))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        false => Err(format!(
            "{} ended with {status}: {}",
            show(command),
            String::from_utf8_lossy(&stderr).trim()
        )),
    }
}

/// Whether a program can be found.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Whether we are root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("{} cannot be started: {error}", show(command))
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_output_lies_where_cargo_says() {
        // This test itself was built: its folder is `deps` in that of a profile.
        let test = std::env::current_exe().unwrap();
        assert!(test.starts_with(target_directory()), "{}", target_directory().display());
        assert!(release_binary("urxe").ends_with("release/urxe"));
    }

    #[test]
    fn a_clone_within_a_repository_is_a_root_of_its_own() {
        let built_at = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(root_above(built_at), built_at.ancestors().nth(2));
        assert_eq!(root_above(Path::new("/")), None);
        let outer = std::env::temp_dir().join(format!("urxe-root-{}.d", std::process::id()));
        let clone = outer.join("target/clone");
        for root in [&outer, &clone] {
            std::fs::create_dir_all(root.join("tools/shell")).unwrap();
            std::fs::write(root.join("tools/shell/Cargo.toml"), "").unwrap();
        }
        let found =
            [&outer, &clone].map(|root| root_above(&root.join("tools/xtask")).map(PathBuf::from));
        std::fs::remove_dir_all(&outer).unwrap();
        assert_eq!(found, [Some(outer), Some(clone)]);
    }
}
