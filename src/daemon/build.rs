//! Finds out which commit this is built from, for `--version`.
//!
//! `URXE_COMMIT` says it to who builds without the repository, as packagers do; then the checkout
//! that this folder is in; then what cargo put into a published crate. Where nothing says it, the
//! version has no commit, and the build goes on.

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
    let version = match commit.as_deref().map(str::trim) {
        Some(commit) if !commit.is_empty() => format!("{version} ({commit})"),
        _ => version,
    };
    println!("cargo::rustc-env=URXE_VERSION={version}");
}

/// The commit of the repository that this folder belongs to, with its day.
fn checked_out(folder: &Path) -> Option<String> {
    // Somebody else's repository may have this crate among its own files.
    let top = git(folder, &["rev-parse", "--show-toplevel"])?;
    let is_ours = Path::new(&top).join("src/daemon").canonicalize().ok()? == folder;
    is_ours.then_some(())?;
    // Each change of HEAD is written there, in a worktree as well.
    let log = folder.join(git(folder, &["rev-parse", "--git-path", "logs/HEAD"])?);
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let format = format!("--abbrev={DIGITS}");
    git(folder, &["log", "-1", &format, "--format=%h, %cs"])
}

fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The commit that cargo notes in a crate that it packs.
fn published(folder: &Path) -> Option<String> {
    let noted = fs::read_to_string(folder.join(".cargo_vcs_info.json")).ok()?;
    let commit = noted.split_once("\"sha1\"")?.1.split('"').nth(1)?;
    commit.get(..DIGITS).map(str::to_owned)
}
