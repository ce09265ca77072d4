//! Builds the shim that a release of `urxe` carries, so that this one file is enough on another
//! machine.
//!
//! Cargo knows no dependency on another crate's shared library yet ("artifact dependencies" are for
//! nightly Rust alone), so it is called again here, with a folder of its own to build in. A
//! developer's build carries nothing: there, the shim of the same workspace lies beside the binary,
//! and is as new as that.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "liburxe_shim.so";

fn main() {
    let [out, manifest] = ["OUT_DIR", "CARGO_MANIFEST_DIR"].map(|name| PathBuf::from(var(name)));
    let carried = out.join(LIBRARY);
    if var("PROFILE") != "release" {
        println!("cargo::rerun-if-changed=build.rs");
        fs::write(&carried, []).expect("cargo's output folder can be written to");
        return;
    }
    let built = build(&manifest, &out.join("shim"));
    fs::copy(&built, &carried).expect("the shim was built");
    // What it was built from: cargo says so in the rule of a makefile beside it. Of a path with a
    // space, both halves are named, which are not there, and so the shim is built each time.
    let rule = fs::read_to_string(built.with_extension("d")).unwrap_or_default();
    let sources = rule.split_once(": ").map_or("", |(_, sources)| sources);
    for source in sources.split_whitespace() {
        println!("cargo::rerun-if-changed={source}");
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", manifest.join("../..").join(file).display());
    }
}

/// Builds the shim alone, optimized as a whole and without symbols.
fn build(manifest: &Path, target: &Path) -> PathBuf {
    let (triple, ours) = (var("TARGET"), var("HOST"));
    let mut cargo = Command::new(var("CARGO"));
    cargo.current_dir(manifest).args(["rustc", "--package", "urxe-shim", "--lib", "--release"]);
    cargo.args(["--crate-type", "cdylib"]).arg("--target-dir").arg(target);
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_DEBUG", "none");
    // Clippy stands in for the compiler where it is what was called.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let mut folder = target.to_owned();
    if triple != ours {
        cargo.arg("--target").arg(&triple);
        folder.push(triple);
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "the shim was not built: {cargo:?} ended with {status}");
    folder.join("release").join(LIBRARY)
}

fn var(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"))
}
