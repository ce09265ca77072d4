//! Which runs are made, and how one of them is repeated.
//!
//! `URXE_SIM_RUNS=<n>` makes so many runs of each family instead of its usual number;
//! `URXE_SIM_SEED=<seed>` makes one run only, and prints what happens in it.

use std::ops::Range;

/// The seed to be run alone, if there is one.
fn single() -> Option<u64> {
    variable("URXE_SIM_SEED")
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value}: must be a number"),
    }
}

/// Makes the runs of a family: seeds from `base` on, `count` of them unless the environment says
/// otherwise. `run` is given the seed, and whether to print.
///
/// # Panics
/// If a run does, after printing how to repeat it.
pub fn for_each_seed(family: &str, base: u64, count: u64, mut run: impl FnMut(u64, bool)) {
    if let Some(seed) = single() {
        eprintln!("{family}: seed {seed}");
        return run(seed, true);
    }
    let seeds: Range<u64> = base..base + variable("URXE_SIM_RUNS").unwrap_or(count);
    for seed in seeds {
        let message = OnPanic { family, seed };
        run(seed, false);
        std::mem::forget(message);
    }
}

/// Prints how to repeat the run, if it is dropped while panicking.
struct OnPanic<'a> {
    family: &'a str,
    seed: u64,
}

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        let OnPanic { family, seed } = self;
        eprintln!(
            "seed {seed} of `{family}` failed; again, with a trace:\n  \
             URXE_SIM_SEED={seed} cargo test -p urxe-spec-tests {family} -- --nocapture"
        );
    }
}
