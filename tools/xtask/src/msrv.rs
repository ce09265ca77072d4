//! The oldest Rust that `Cargo.toml` promises, `rust-version`.

use std::process::Command;
use urxe_shell::{Result, has, output, root, run, target_directory};

/// As `rust-version` says.
pub(crate) const VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// Why it cannot be tried here.
pub(crate) fn lacks() -> Option<String> {
    if !has("rustup") {
        return Some(format!("needs rustup, to have Rust {VERSION}"));
    }
    (!is_installed()).then(|| format!("needs Rust {VERSION}: cargo xtask setup"))
}

/// Whether this Rust is installed.
pub(crate) fn is_installed() -> bool {
    output(rustup().args(["rustc", "--version"])).is_ok()
}

/// Checks with it what people build: tests need what later Rusts have at most by accident.
pub(crate) fn check() -> Result {
    // Its own target folder: another compiler would evict what was built.
    let target = target_directory().join("msrv");
    run(rustup()
        .args(["cargo", "check", "--workspace", "--locked"])
        .env("CARGO_TARGET_DIR", target))
}

/// A command of this Rust.
fn rustup() -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root()).args(["run", VERSION]);
    command
}
