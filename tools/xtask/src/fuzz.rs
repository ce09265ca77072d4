//! `cargo xtask fuzz`: libFuzzer on the targets of `spec-tests/fuzz`, or inputs that follow from a
//! seed.
//!
//! For libFuzzer they are built as cargo-fuzz builds them, whose layout the folder has, but without
//! it: a nightly Rust is all that is needed. Inputs of a seed need none, and are the same
//! everywhere.

use crate::ci::WORKSPACE;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use urxe_shell::{Result, cargo, has, output, root, run, target_directory};

/// How long, and what.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Only these targets, of `spec-tests/fuzz/fuzz_targets`.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// The corpus and 20,000 inputs of a seed each, for at most 8 seconds each; without nightly.
    #[arg(long, conflicts_with_all = ["long", "seconds", "keep", "input", "inputs"])]
    short: bool,
    /// The corpus and so many inputs of a seed each; without nightly.
    #[arg(long, conflicts_with_all = ["long", "seconds", "keep", "input"])]
    inputs: Option<u64>,
    /// The number of the first of them: where an earlier run has ended.
    #[arg(long, requires = "inputs", default_value_t = 0)]
    from: u64,
    /// What they follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// 100 million inputs each: hours.
    #[arg(long, conflicts_with = "seconds")]
    long: bool,
    /// So many seconds each.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Add to the corpus what reaches new code, and leave out of it what others reach too.
    #[arg(long)]
    keep: bool,
    /// Play this input and nothing else, for example one that was found.
    #[arg(long, value_name = "FILE", requires = "targets")]
    input: Option<PathBuf>,
}

/// Seconds for each target in the short mode at most, and its inputs.
const SHORT: (u64, u64) = (8, 20_000);

/// Inputs for each target in the long mode.
const LONG: u64 = 100_000_000;

/// The longest input in bytes.
const MAX_LEN: usize = 2048;

/// The most inputs that the corpus of a target has.
const MAX_KEPT: usize = 256;

/// Seconds after which an input counts as one that hangs: far more than one takes on a machine that
/// is busy with other things.
const HANGS: u64 = 60;

/// What the compiler is to add: coverage as libFuzzer wants it, and the address sanitizer. These
/// are cargo-fuzz's.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Code with sanitizers is built for a target that is named, so that build scripts have none.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

fn folder() -> PathBuf {
    root().join("spec-tests/fuzz")
}

/// Where what is built and found lies.
fn target() -> PathBuf {
    target_directory().join("fuzz")
}

/// Why nothing can be fuzzed here.
pub(crate) fn lacks() -> Option<String> {
    if !has("rustup") {
        return Some("needs rustup, to have a nightly Rust".to_owned());
    }
    output(nightly().args(["cargo", "--version"]))
        .is_err()
        .then(|| "needs a nightly Rust: rustup toolchain install nightly".to_owned())
}

fn nightly() -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(folder()).args(["run", "nightly"]);
    command
}

/// Builds the targets and runs one after the other.
///
/// # Errors
/// If an input was found that makes one fail; all are run.
pub(crate) fn fuzz(options: &Options) -> Result {
    let inputs = if options.short { Some(SHORT.1) } else { options.inputs };
    if let Some(inputs) = inputs {
        return seeded(options, inputs);
    }
    if let Some(why) = lacks() {
        return Err(format!("could not run: {why}"));
    }
    let all = names()?;
    let unknown = options.targets.iter().find(|name| !all.contains(name));
    if let Some(unknown) = unknown {
        return Err(format!("target {unknown:?}: expected one of {}", all.join(", ")));
    }
    let mut build = nightly();
    // Its own lock file follows what the crates here depend on.
    build.args(["cargo", "build", "--release", "--bins", "--target", TRIPLE]);
    run(build.env("CARGO_TARGET_DIR", target()).env("RUSTFLAGS", FLAGS))?;
    let chosen = if options.targets.is_empty() { &all } else { &options.targets };
    let mut problems = Vec::new();
    for name in chosen {
        problems.extend(one(name, options).err());
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("\n")),
    }
}

/// Plays inputs of a seed. In the short mode with all assertions and overflow checks, as the tests
/// are built; where there are many, fast and with the same.
fn seeded(options: &Options, inputs: u64) -> Result {
    let mut build = cargo();
    build.args(["build", "--quiet"]);
    let profile = match options.short {
        true => {
            build.args(WORKSPACE);
            "debug"
        }
        false => {
            build.args(["--package", "urxe-spec-tests", "--profile", "soak"]);
            "soak"
        }
    };
    run(build.args(["--bin", "fuzz"]))?;
    let mut command = Command::new(target_directory().join(profile).join("fuzz"));
    // What one input frees serves the next: to have it from the kernel anew takes `rings` as long
    // again. glibc's own variables.
    command
        .envs([("MALLOC_MMAP_THRESHOLD_", "1000000000"), ("MALLOC_TRIM_THRESHOLD_", "1000000000")]);
    command.args(&options.targets).arg(format!("--inputs={inputs}"));
    command.args([format!("--from={}", options.from), format!("--seed={}", options.seed)]);
    if options.short {
        command.arg(format!("--seconds={}", SHORT.0));
    }
    run(&mut command)
}

/// The short run, as CI makes it.
pub(crate) fn short() -> Result {
    fuzz(&Options { short: true, seed: 1, ..Options::default() })
}

/// The targets there are.
fn names() -> Result<Vec<String>> {
    let mut files = Vec::new();
    let folder = folder().join("fuzz_targets");
    urxe_shell::files_below(&folder, "rs", &mut files)
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    files.sort();
    let name = |file: &PathBuf| Some(file.file_stem()?.to_string_lossy().into_owned());
    Ok(files.iter().filter_map(name).collect())
}

fn one(name: &str, options: &Options) -> Result {
    let found = target().join("corpus").join(name);
    let kept = folder().join("corpus").join(name);
    let findings = target().join("findings");
    for folder in [&found, &kept, &findings] {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let prefix = findings.join(format!("{name}-"));
    let mut command = program(name);
    command.arg(format!("-artifact_prefix={}", prefix.display()));
    command.args([format!("-max_len={MAX_LEN}"), format!("-timeout={HANGS}")]);
    if let Some(input) = &options.input {
        let input = std::path::absolute(input).map_err(|error| error.to_string())?;
        return run(command.arg(input));
    }
    // Long inputs from the beginning: what they make happen takes many steps.
    command.arg("-len_control=0").arg(match options {
        Options { long: true, .. } => format!("-runs={LONG}"),
        Options { seconds, .. } => format!("-max_total_time={seconds}"),
    });
    eprintln!("fuzz: {name}");
    let result = watched(command.arg("-print_final_stats=1").args([&found, &kept]));
    let repeat = format!("repeat it by: cargo xtask fuzz {name} --input {}*", prefix.display());
    result.map_err(|problem| format!("{name}: {problem}; {repeat}"))?;
    if options.keep {
        keep(name, &found, &kept)?;
    }
    Ok(())
}

fn program(name: &str) -> Command {
    let mut command = Command::new(target().join(TRIPLE).join("release").join(name));
    command.current_dir(folder());
    command
}

/// Runs a target, and shows what it says but for each small step.
fn watched(command: &mut Command) -> Result {
    let mut child =
        command.stderr(Stdio::piped()).spawn().map_err(|error| format!("cannot start: {error}"))?;
    let steps = ["NEW ", "REDUCE ", "RELOAD ", "NEW_FUNC"];
    for line in child.stderr.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
        let line = line.map_err(|error| error.to_string())?;
        if !steps.iter().any(|step| line.contains(step)) {
            eprintln!("  {line}");
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("ended with {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes the corpus anew of the fewest inputs that reach all that is reached.
fn keep(name: &str, found: &Path, kept: &Path) -> Result {
    let fewest = target().join("fewest").join(name);
    let _ = std::fs::remove_dir_all(&fewest);
    let told = |error: std::io::Error| format!("{}: {error}", kept.display());
    std::fs::create_dir_all(&fewest).map_err(told)?;
    let mut merge = program(name);
    // By code that is reached, not by how often: a few hundred in place of thousands.
    merge.args(["-set_cover_merge=1", "-use_counters=0", &format!("-max_len={MAX_LEN}")]);
    merge.args([&fewest, kept, found]);
    watched(&mut merge)?;
    std::fs::remove_dir_all(kept).map_err(told)?;
    std::fs::create_dir_all(kept).map_err(told)?;
    // Their names say nothing of what is in them: the first ones are any.
    let mut files: Vec<_> = std::fs::read_dir(&fewest).map_err(told)?.flatten().collect();
    files.sort_by_key(|file| file.file_name());
    for file in files.iter().take(MAX_KEPT) {
        std::fs::copy(file.path(), kept.join(file.file_name())).map_err(told)?;
    }
    Ok(())
}
