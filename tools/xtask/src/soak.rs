//! The simulation for as long as wanted.

use crate::libtest;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use urxe_shell::{Result, cargo};

/// How long, from which seed.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// For how many minutes of real time; parts of a minute are possible.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Make only the run of this seed, with a trace of all that happens in it; needs `--only`.
    #[arg(long, requires = "only", conflicts_with = "from")]
    seed: Option<u64>,
    /// The first seed; else one that follows from the time. It is printed. Seeds below 2^32 draw
    /// networks, machines and connections as CI does, all others from a wider choice.
    #[arg(long)]
    from: Option<u64>,
    /// Runs at once; as many as there are processors by default.
    #[arg(long)]
    jobs: Option<usize>,
    /// Only the families of runs with this in their names, which are those of their tests.
    #[arg(long, value_name = "FAMILY")]
    only: Option<String>,
    /// Write what was run and what failed to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Seeds from here on are of wide draws: `spec-tests/src/simulation/seeds.rs`.
const WIDE: u64 = 1 << 32;

/// The first seed follows from the time in units of so many seeds: more than are used in a second.
const SEEDS_A_SECOND: u64 = 100_000;

pub(crate) fn run(options: &Options) -> Result {
    let mut command = cargo();
    command.args(["test", "--profile", "soak", "-p", "urxe-spec-tests", "--test", "simulation"]);
    if let (Some(seed), Some(family)) = (options.seed, &options.only) {
        command.env("URXE_SIM_SEED", seed.to_string());
        return libtest::run(command.args(["--", "--nocapture"]).arg(family));
    }
    let first = options.from.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WIDE + now.as_secs() * SEEDS_A_SECOND
    });
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(processors).max(1);
    eprintln!("{} minutes, {jobs} at once, from seed {first}", options.minutes);
    let settings = [
        ("URXE_SOAK_SEED", first),
        ("URXE_SOAK_SECONDS", (options.minutes * 60.0).ceil() as u64),
        ("URXE_SOAK_JOBS", jobs as u64),
    ];
    command.envs(settings.map(|(name, value)| (name, value.to_string())));
    if let Some(family) = &options.only {
        command.env("URXE_SOAK_ONLY", family);
    }
    if let Some(file) = &options.json {
        // The tests run in the folder of their crate.
        let file = std::path::absolute(file).map_err(|error| error.to_string())?;
        command.env("URXE_SOAK_SUMMARY", file);
    }
    // Every run would ask the system for its memory, and give it back.
    command.envs([("MALLOC_TRIM_THRESHOLD_", "268435456"), ("MALLOC_MMAP_THRESHOLD_", "33554432")]);
    // What failed is printed where it fails; a trace of the end of the test is of no use.
    command.env("RUST_BACKTRACE", "0");
    command.args(["--", "--ignored", "--exact", "--nocapture", "soak::soak"]);
    libtest::run(&mut command)
}
