//! `cargo xtask package`: what is handed to people who build nothing.
//!
//! A package is a tree of files below `target/package`, staged by [`Tree`], and packed by Debian's
//! own tools or by tar. The texts that are in it and not made lie in `packaging`.

mod deb;
mod glibc;
mod tarball;
mod tree;

use crate::packages::{BINUTILS, lacking};
use std::path::{Path, PathBuf};
use std::process::Command;
use tree::{Folders, Tree};
use urxe_shell::{Result, build_release, output, root, target_directory};

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to make.
    #[arg(value_enum)]
    kind: Kind,
    /// Who answers for a Debian package: `Name <address>` [default: $DEBFULLNAME and $DEBEMAIL;
    /// else the author of the newest commit].
    #[arg(long)]
    maintainer: Option<String>,
}

/// A kind of package.
#[derive(clap::ValueEnum, Clone, Copy)]
pub(crate) enum Kind {
    /// A Debian package, checked by lintian if that is installed.
    Deb,
    /// A tarball with an install script, for every other distribution.
    Tarball,
}

/// Makes a package and says where it is.
#[allow(clippy::print_stdout)] // the path is what the command is for
pub(crate) fn run_one(options: &Options) -> Result {
    let path = make(options.kind, options.maintainer.as_deref())?;
    println!("{}", path.display());
    Ok(())
}

/// Makes a package, from a release build; the symbols lie beside it.
pub(crate) fn make(kind: Kind, maintainer: Option<&str>) -> Result<PathBuf> {
    if let Some(lacks) = lacks(kind) {
        return Err(lacks);
    }
    build_release()?;
    let folder = target_directory().join("package");
    match kind {
        Kind::Deb => deb::make(&folder, maintainer),
        Kind::Tarball => tarball::make(&folder),
    }
}

/// Why a package cannot be made here.
pub(crate) fn lacks(kind: Kind) -> Option<String> {
    match kind {
        Kind::Deb => lacking(&[BINUTILS, crate::packages::DPKG_DEB]),
        Kind::Tarball => lacking(&[BINUTILS]),
    }
}

/// The version of everything here, which they share.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// When the newest commit was made: the time of all that is packed, so that the same sources make
/// the same package. In seconds since 1970.
fn source_date() -> Result<String> {
    let date = output(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"]))?;
    Ok(date.trim().to_owned())
}

/// An error of a file's, in a sentence.
fn says(path: &Path) -> impl FnOnce(std::io::Error) -> String + use<> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}
