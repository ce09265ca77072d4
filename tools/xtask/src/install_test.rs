//! Whether people who build nothing can install urxe and use it: each way in, from nothing, by
//! `interop/install`.

use crate::package::{self, Kind};
use crate::packages::{IP, MMDEBSTRAP, lacking_root_or};
use std::process::Command;
use urxe_shell::{Result, release_binary, root, run};

/// Options of the task.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Only this way.
    #[arg(long, value_enum)]
    only: Option<Installation>,
}

/// A way in.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Installation {
    /// apt, from nothing to purged, with the service for two users.
    Deb,
    /// The install script of the tarball, by an ordinary user.
    Tarball,
    /// `urxe` alone, copied.
    Binary,
}

/// Why none of them can be tried here.
pub(crate) fn lacks() -> Option<String> {
    lacking_root_or(&[MMDEBSTRAP, IP])
        .or_else(|| package::lacks(Kind::Deb))
        .or_else(|| package::lacks(Kind::Tarball))
}

/// Makes the packages, and walks every way.
pub(crate) fn check(options: &Options) -> Result {
    if let Some(reason) = lacks() {
        return Err(reason);
    }
    let ways = [Installation::Deb, Installation::Tarball, Installation::Binary].into_iter();
    let mut failed = Vec::new();
    for way in ways.filter(|way| options.only.is_none_or(|only| only == *way)) {
        let (name, file) = match way {
            Installation::Deb => ("deb", package::make(Kind::Deb, None)?),
            Installation::Tarball => ("tarball", package::make(Kind::Tarball, None)?),
            Installation::Binary => {
                package::build()?;
                ("binary", release_binary("urxe"))
            }
        };
        let mut walk = Command::new(root().join("interop/install/run"));
        failed.extend(run(walk.arg(name).arg("--file").arg(file)).err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}
