//! What is installed on a machine, and only here: Debian packages, the oldest Rust, cargo-deny,
//! cargo-semver-checks.

use crate::packages;
use crate::{deny, msrv, semver};
use std::process::Command;
use urxe_shell::{Result, cargo, has, is_root, run};

/// How much is installed.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Say what would be installed, and install nothing.
    #[arg(long)]
    dry_run: bool,
    /// Also what is built from source and takes minutes: cargo-deny, cargo-semver-checks.
    #[arg(long)]
    all: bool,
}

/// One thing to install.
struct Step {
    command: Vec<String>,
    /// What comes before it, whether it succeeds or not.
    before: Option<Vec<String>>,
}

/// Installs what is missing, each command said before it is run.
///
/// # Errors
/// If a command fails, or needs root. All of them are tried.
pub(crate) fn run_all(options: &Options) -> Result {
    let mut problems = Vec::new();
    let missing = packages::missing(&packages::ALL);
    let (steps, by_hand) = (steps(options.all, &missing), by_hand(&missing, has("apt-get")));
    if steps.is_empty() && by_hand.is_none() {
        eprintln!("setup: nothing is missing");
    }
    match by_hand {
        Some(what) if options.dry_run => eprintln!("setup: {what}"),
        what => problems.extend(what),
    }
    for Step { command, before } in steps {
        eprintln!("setup: {}", command.join(" "));
        if options.dry_run {
            continue;
        }
        if command[0] == "apt-get" && !is_root() {
            problems.push(format!("needs root: {}", command.join(" ")));
            continue;
        }
        if let Some(before) = before {
            let _ = run(&mut words(&before));
        }
        problems.extend(run(&mut words(&command)).err());
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("\n")),
    }
}

/// What of the missing packages nothing here installs, in words.
fn by_hand(missing: &[&str], has_apt_get: bool) -> Option<String> {
    (!has_apt_get && !missing.is_empty()).then(|| {
        format!(
            "to be installed by hand, since only apt-get is known here, by their names in Debian: \
             {}",
            missing.join(" ")
        )
    })
}

/// What is missing, and how it is installed, with these of the packages.
fn steps(all: bool, packages: &[&str]) -> Vec<Step> {
    let split = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut steps = Vec::new();
    if !packages.is_empty() && has("apt-get") {
        let install = "apt-get -qq install -y --no-install-recommends";
        let command = split(&format!("{install} {}", packages.join(" ")));
        steps.push(Step { command, before: Some(split("apt-get -qq update")) });
    }
    if has("rustup") && !msrv::is_installed() {
        // No self-update: whoever has rustup decides about its version.
        let install = "rustup toolchain install --profile minimal --no-self-update";
        steps.push(Step { command: split(&format!("{install} {}", msrv::VERSION)), before: None });
    }
    let built = [
        ("cargo-deny", deny::VERSION, deny::lacks().is_some()),
        ("cargo-semver-checks", semver::VERSION, semver::lacks_tool().is_some()),
    ];
    for (name, version, _) in built.into_iter().filter(|(_, _, is_missing)| all && *is_missing) {
        let command = split(&format!("cargo install --locked {name}@{version}"));
        steps.push(Step { command, before: None });
    }
    steps
}

fn words(command: &[String]) -> Command {
    let mut run = match command[0].as_str() {
        "cargo" => cargo(),
        program => Command::new(program),
    };
    run.args(&command[1..]).env("DEBIAN_FRONTEND", "noninteractive");
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_apt_get_what_is_missing_is_named() {
        let said = by_hand(&["tshark", "fio"], false).unwrap();
        assert!(said.ends_with("only apt-get is known here, by their names in Debian: tshark fio"));
        assert_eq!(by_hand(&["tshark"], true), None);
        assert_eq!(by_hand(&[], false), None);
    }
}
