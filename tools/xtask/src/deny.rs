//! What `cargo deny` says of our dependencies; `deny.toml` is what it holds them to.

use std::process::Command;
use urxe_shell::{Result, cargo, output, run};

/// The version that `deny.toml` was written for.
pub(crate) const VERSION: &str = "0.20.2";

/// Why it cannot run here. It is no part of plain `setup`: to build it takes minutes, and what it
/// checks changes only with `Cargo.lock`.
pub(crate) fn lacks() -> Option<String> {
    let found = output(cargo().args(["deny", "--version"])).is_ok();
    (!found).then(|| "needs cargo-deny: cargo xtask setup --all".to_owned())
}

/// Licences, banned crates, sources. Crates that are there in two versions are warnings.
pub(crate) fn licences_bans_sources() -> Result {
    run(deny().args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))
}

/// Why the advisories cannot be looked at: their database comes from the network.
pub(crate) fn lacks_advisories() -> Option<String> {
    lacks().or_else(|| {
        let reason = output(deny().args(["fetch", "db"])).err()?;
        let line = reason.lines().find(|line| line.contains("fatal:")).unwrap_or(&reason);
        Some(format!("the database of advisories cannot be fetched: {}", line.trim()))
    })
}

/// Advisories, and versions that were taken back.
pub(crate) fn advisories() -> Result {
    run(deny().args(["check", "--disable-fetch", "--hide-inclusion-graph", "advisories"]))
}

fn deny() -> Command {
    let mut command = cargo();
    command.args(["deny", "--locked"]);
    command
}
