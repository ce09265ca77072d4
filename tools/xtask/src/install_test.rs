//! Whether people who build nothing can install urxe and use it: each way in, from nothing, by
//! `interop/install`.

use crate::ci::published_crates;
use crate::package::{self, Kind};
use crate::packages::{IP, MMDEBSTRAP, lacking_root_or};
use std::process::Command;
use urxe_shell::{Result, build_release, release_binary, root, run, target_directory};

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
    /// The crates as they are packed, in an empty project.
    Crate,
    /// What is built for musl, as in Alpine. Builds rdma-core too, for many minutes the first time:
    /// only where it is asked for.
    Musl,
}

/// What is walked where none is named.
const USUAL: [Installation; 4] =
    [Installation::Deb, Installation::Tarball, Installation::Binary, Installation::Crate];

/// Why those that are no crates cannot be tried here.
pub(crate) fn lacks() -> Option<String> {
    lacking_root_or(&[MMDEBSTRAP, IP])
        .or_else(|| package::lacks(Kind::Deb))
        .or_else(|| package::lacks(Kind::Tarball))
}

/// Makes the packages, and walks every usual way, or the one that is named.
pub(crate) fn check(options: &Options) -> Result {
    let lacking = match options.only {
        Some(Installation::Crate) => None,
        // What else it needs, it says itself.
        Some(Installation::Musl) => lacking_root_or(&[MMDEBSTRAP, IP]),
        _ => lacks(),
    };
    if let Some(reason) = lacking {
        return Err(reason);
    }
    let mut failed = Vec::new();
    for way in options.only.map_or(USUAL.to_vec(), |only| vec![only]) {
        let (name, file) = match way {
            Installation::Deb => ("deb", package::make(Kind::Deb, None)?),
            Installation::Tarball => ("tarball", package::make(Kind::Tarball, None)?),
            Installation::Binary => {
                build_release()?;
                ("binary", release_binary("urxe"))
            }
            Installation::Crate => {
                published_crates()?;
                ("crate", target_directory().join("package"))
            }
            Installation::Musl => {
                build_release()?;
                ("musl", release_binary("urxe"))
            }
        };
        let mut walk = Command::new(root().join("interop/install/run"));
        failed.extend(run(walk.arg(name).arg("--file").arg(file)).err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}
