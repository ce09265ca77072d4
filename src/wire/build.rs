//! Says whether the compiler has the wide carry-less multiplications: their intrinsics are stable
//! since Rust 1.89, one later than the oldest that this workspace builds with.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "cargo's own interface")]

use std::process::Command;

/// The minor version of the first Rust 1 that has them.
const FIRST: u32 = 89;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(wide_clmul)");
    if minor_version().is_some_and(|minor| minor >= FIRST) {
        println!("cargo:rustc-cfg=wide_clmul");
    }
}

/// The `89` of "rustc 1.89.0 (...)".
fn minor_version() -> Option<u32> {
    let rustc = std::env::var_os("RUSTC")?;
    let output = Command::new(rustc).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}
