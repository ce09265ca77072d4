//! Which runs are made, and how one of them is repeated.
//!
//! `URXE_SIM_RUNS=<n>` makes so many runs of each family instead of its usual number;
//! `URXE_SIM_SEED=<seed>` makes one run only, and prints what happens in it. `cargo xtask soak`
//! makes runs of all families for as long as it is told.

use std::ops::Range;

/// Seeds from here on draw from a wider choice of networks, machines and connections than those
/// below, which are those of CI. `cargo xtask soak` uses these, unless it is told to begin below.
pub const WIDE: u64 = 1 << 32;

/// Runs of one kind, which differ by their seeds only.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name of its test.
    pub name: &'static str,
    /// The seed of the first run that its test makes.
    pub first: u64,
    /// How many runs its test makes.
    pub runs: u64,
    /// Makes the run of a seed; says whether to print what happens. It panics if a check fails.
    pub run: fn(u64, bool),
}

impl Family {
    /// Makes the runs of the test, unless the environment says which.
    ///
    /// # Panics
    /// If one of them fails, after printing how to repeat it.
    pub fn check(&self) {
        self.check_by(self.run);
    }

    /// The same, where `run` makes the family's runs and keeps what they came to. Returns whether
    /// those of the test were made, all of them.
    ///
    /// # Panics
    /// As [`check`](Self::check) does.
    pub fn check_by(&self, mut run: impl FnMut(u64, bool)) -> bool {
        if let Some(seed) = variable("URXE_SIM_SEED") {
            eprintln!("{}: seed {seed}", self.name);
            run(seed, true);
            return false;
        }
        let runs = variable("URXE_SIM_RUNS").unwrap_or(self.runs);
        let seeds: Range<u64> = self.first..self.first + runs;
        for seed in seeds {
            let message = OnPanic { family: self.name, seed };
            run(seed, false);
            std::mem::forget(message);
        }
        runs >= self.runs
    }
}

/// A number from the environment.
///
/// # Panics
/// If it is not one.
pub fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value}: must be a number"),
    }
}

/// Prints how to repeat the run, if it is dropped while panicking.
struct OnPanic {
    family: &'static str,
    seed: u64,
}

impl Drop for OnPanic {
    fn drop(&mut self) {
        let OnPanic { family, seed } = self;
        eprintln!(
            "seed {seed} of `{family}` failed; again, with a trace:\n  \
             URXE_SIM_SEED={seed} cargo test -p urxe-spec-tests {family} -- --nocapture"
        );
    }
}
