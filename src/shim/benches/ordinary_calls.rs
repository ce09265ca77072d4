//! What the shim costs where it has no business: system calls on ordinary files, by a C program
//! with and without the library preloaded.
//!
//! `cargo bench -p urxe-shim`. Prints the smallest time of many batches, in nanoseconds.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::path::{Path, PathBuf};
use std::process::Command;

const CALLS: [&str; 6] = ["write", "read", "fstat", "stat", "dup + close", "open + close"];
/// The program runs so often with and without, in turns.
const ROUNDS: usize = 7;

fn main() {
    let program = std::env::temp_dir().join(format!("urxe-ordinary-calls-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ordinary_calls.c");
    let compiled = Command::new("cc").arg("-O2").arg(source).arg("-o").arg(&program).status();
    assert!(compiled.expect("a C compiler").success());

    let shim = std::env::current_exe().unwrap().with_file_name("liburxe_shim.so");
    let (mut without, mut with) = ([f64::MAX; CALLS.len()], [f64::MAX; CALLS.len()]);
    for _ in 0..ROUNDS {
        keep_smallest(&mut without, &run(&program, None));
        keep_smallest(&mut with, &run(&program, Some(&shim)));
    }
    let _ = std::fs::remove_file(&program);
    println!("{:14}{:>10}{:>10}{:>12}", "", "without", "with", "difference");
    for ((call, without), with) in CALLS.iter().zip(without).zip(with) {
        println!("{call:14}{without:>10.1}{with:>10.1}{:>12.1}", with - without);
    }
}

/// What the program prints.
fn run(program: &Path, shim: Option<&PathBuf>) -> Vec<f64> {
    let mut command = Command::new(program);
    if let Some(shim) = shim {
        command.env("LD_PRELOAD", shim);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn keep_smallest(smallest: &mut [f64], times: &[f64]) {
    for (smallest, &time) in smallest.iter_mut().zip(times) {
        *smallest = smallest.min(time);
    }
}
