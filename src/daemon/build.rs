//! Finds out which commit this is built from, for `--version`.
//!
//! `URXE_COMMIT` says it to who builds without the repository, as packagers do; then the checkout
//! that this folder is in; then what cargo put into a published crate. Where nothing says it, or it
//! is empty, the version has no commit, and the build goes on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// How many digits of a commit are shown.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=URXE_COMMIT");
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = env::var("URXE_COMMIT").ok();
    let commit = commit.or_else(|| checked_out(&folder)).or_else(|| published(&folder));
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // Cargo takes a further line for a further instruction.
    let version = match commit.as_deref().and_then(|commit| commit.trim().lines().next()) {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=URXE_VERSION={version}");
}

/// The commit of the repository that this folder belongs to, with its day.
fn checked_out(folder: &Path) -> Option<String> {
    // Somebody else's repository may have this crate among its own files.
    let top = PathBuf::from(git(folder, &["rev-parse", "--show-toplevel"])?);
    let is_ours = top.join("src/daemon").canonicalize().ok()? == folder.canonicalize().ok()?;
    is_ours.then_some(())?;
    watch(folder);
    // Git would make the commit as long as it has to be to be unique in this clone.
    let said = git(folder, &["log", "-1", "--no-show-signature", "--format=%H %cs"])?;
    let (commit, day) = said.split_once(' ')?;
    Some(format!("{}, {day}", commit.get(..DIGITS)?))
}

/// Has cargo run this again when HEAD is another commit, in a worktree as well.
fn watch(folder: &Path) {
    let path = |name: &str| {
        let path = folder.join(git(folder, &["rev-parse", "--git-path", name])?);
        // Of a file that is not there, cargo thinks that it is always new.
        path.exists().then_some(path)
    };
    // Each change is written to the log, if this repository keeps one.
    let files = match path("logs/HEAD") {
        Some(log) => vec![log],
        None => {
            let branch = git(folder, &["symbolic-ref", "--quiet", "HEAD"]);
            let branch = branch.and_then(|branch| path(&branch));
            [path("HEAD"), branch, path("packed-refs")].into_iter().flatten().collect()
        }
    };
    for file in files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
}

/// What git says of this folder, whichever repository the hook is of that this may run in.
fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(args).env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
    let output = git.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The commit that cargo notes in a crate that it packs.
fn published(folder: &Path) -> Option<String> {
    let noted = fs::read_to_string(folder.join(".cargo_vcs_info.json")).ok()?;
    let commit = noted.split_once("\"sha1\"")?.1.split('"').nth(1)?;
    commit.get(..DIGITS).map(str::to_owned)
}
