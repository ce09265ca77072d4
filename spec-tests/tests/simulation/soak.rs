//! All families of runs, over and over, for as long as `cargo xtask soak` says: it is what runs
//! this, and what explains the settings.

use crate::{
    bad_requests, connecting, faults, hostile, memory_order, messages, neighbours, overrun,
    reconnect, retries, success,
};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use urxe_spec_tests::simulation::seeds::{Family, variable};
use urxe_spec_tests::simulation::world::take_delivered;

/// Everything that CI runs from seeds.
const FAMILIES: [Family; 21] = [
    success::CALM,
    success::STORMY,
    success::REPEATED,
    messages::CALM,
    messages::STORMY,
    messages::REPEATED,
    memory_order::POLL,
    memory_order::READ_BACK,
    bad_requests::FAMILY,
    faults::FAMILY,
    hostile::FAMILY,
    neighbours::FAMILY,
    overrun::FAMILY,
    reconnect::FAMILY,
    retries::GONE,
    retries::NEVER_READY,
    retries::LATE,
    connecting::SUCCEED,
    connecting::REFUSE,
    connecting::INTERRUPT,
    connecting::KILL,
];

/// So many failed runs end the soak: they are enough to look at.
const ENOUGH_FAILURES: usize = 20;

/// So many of one check are kept and printed; more are only counted.
const ENOUGH_OF_ONE_CHECK: usize = 3;

/// Of the summary: higher once a key is no more, or means something else.
const SUMMARY_VERSION: u32 = 1;

/// How often progress is printed.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// No run takes so long, in real time: one that does is in a loop.
const HANGS_AFTER: Duration = Duration::from_secs(60);

thread_local! {
    /// Where the last panic of this thread was, and what it said.
    static LAST_PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// A run that did not end well.
struct Failure {
    family: &'static str,
    seed: u64,
    /// The line of the check that failed.
    place: String,
    message: String,
}

/// A run that is being made.
#[derive(Clone, Copy)]
struct Current {
    family: &'static str,
    seed: u64,
    since: Instant,
}

/// What the threads share.
struct Soak {
    /// One entry for each run that CI makes in a thousand, so that all families get their share.
    schedule: Vec<usize>,
    families: Vec<Family>,
    first_seed: u64,
    next: AtomicU64,
    /// Runs of each family.
    made: Vec<AtomicU64>,
    /// Packets that arrived in them.
    packets: AtomicU64,
    failures: Mutex<Vec<Failure>>,
    /// How many runs failed at each place.
    places: Mutex<BTreeMap<String, usize>>,
    /// What each thread runs, and since when.
    current: Vec<Mutex<Option<Current>>>,
    start: Instant,
    end: Instant,
}

impl Soak {
    fn new(only: Option<&str>, first_seed: u64, seconds: u64, jobs: u64) -> Soak {
        let is_wanted = |family: &Family| only.is_none_or(|only| family.name.contains(only));
        let families: Vec<Family> = FAMILIES.into_iter().filter(is_wanted).collect();
        assert!(!families.is_empty(), "no family is called {only:?}; there are {}", names());
        let start = Instant::now();
        Soak {
            schedule: schedule(&families),
            first_seed,
            next: AtomicU64::new(0),
            made: families.iter().map(|_| AtomicU64::new(0)).collect(),
            packets: AtomicU64::new(0),
            families,
            failures: Mutex::default(),
            places: Mutex::default(),
            current: (0..jobs).map(|_| Mutex::default()).collect(),
            start,
            end: start + Duration::from_secs(seconds),
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end || lock(&self.failures).len() >= ENOUGH_FAILURES
    }

    /// Makes one run after the other.
    fn work(&self, thread: usize) {
        while !self.is_over() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let index = self.schedule[number as usize % self.schedule.len()];
            let family = &self.families[index];
            let seed = self.first_seed + number;
            *lock(&self.current[thread]) =
                Some(Current { family: family.name, seed, since: Instant::now() });
            let result = catch_unwind(AssertUnwindSafe(|| (family.run)(seed, false)));
            *lock(&self.current[thread]) = None;
            self.made[index].fetch_add(1, Ordering::Relaxed);
            self.packets.fetch_add(take_delivered(), Ordering::Relaxed);
            if result.is_err() {
                let (place, message) = LAST_PANIC.take().unwrap_or_default();
                self.add_failure(Failure { family: family.name, seed, place, message });
            }
        }
    }

    fn add_failure(&self, failure: Failure) {
        let Failure { family, seed, place, message } = &failure;
        let mut places = lock(&self.places);
        let count = places.entry(place.clone()).or_default();
        *count += 1;
        if *count > ENOUGH_OF_ONE_CHECK {
            return;
        }
        let command = reproduction(family, *seed);
        eprintln!("\nFAILED {family}, seed {seed}, at {place}:\n{message}\nagain:  {command}\n");
        lock(&self.failures).push(failure);
    }

    /// Prints progress until all is over. A run that hangs cannot be ended: `false`.
    fn watch(&self) -> bool {
        let mut next_report = self.start + REPORT_EVERY;
        let is_running = || self.current.iter().any(|current| lock(current).is_some());
        while !self.is_over() || is_running() {
            std::thread::sleep(Duration::from_millis(50));
            if Instant::now() >= next_report {
                eprintln!("{}", self.progress());
                next_report += REPORT_EVERY;
            }
            let hung = self.current.iter().find_map(|current| {
                lock(current).filter(|current| current.since.elapsed() > HANGS_AFTER)
            });
            if let Some(Current { family, seed, since }) = hung {
                let message = format!("no end after {:?} of real time", since.elapsed());
                self.add_failure(Failure { family, seed, place: "(hangs)".into(), message });
                return false;
            }
        }
        true
    }

    /// The first seed of a soak that goes on where this one has ended.
    fn next_seed(&self) -> u64 {
        self.first_seed + self.runs()
    }

    fn runs(&self) -> u64 {
        self.made.iter().map(|made| made.load(Ordering::Relaxed)).sum()
    }

    /// How many times the runs of CI: those of the family that is furthest behind.
    fn times_ci(&self) -> f64 {
        let made = self.made.iter().map(|made| made.load(Ordering::Relaxed) as f64);
        let times = made.zip(&self.families).map(|(made, family)| made / family.runs as f64);
        times.fold(f64::INFINITY, f64::min)
    }

    fn progress(&self) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let (runs, packets) = (self.runs(), self.packets.load(Ordering::Relaxed));
        format!(
            "{seconds:>7.0} s  {runs:>9} runs  {:>6.0} runs/s  {:>8.2} x CI  {packets:>11} packets  \
             {} failed",
            runs as f64 / seconds,
            self.times_ci(),
            lock(&self.places).values().sum::<usize>(),
        )
    }

    fn summary(&self) -> Value {
        let failures = lock(&self.failures);
        let families = self.families.iter().zip(&self.made).map(|(family, made)| {
            json!({
                "family": family.name,
                "runs": made.load(Ordering::Relaxed),
                "runs_in_ci": family.runs,
            })
        });
        let again = failures.iter().map(|Failure { family, seed, place, message }| {
            let command = reproduction(family, *seed);
            json!({
                "family": family, "seed": seed, "place": place, "message": message,
                "again": command,
            })
        });
        json!({
            "version": SUMMARY_VERSION,
            "first_seed": self.first_seed,
            "next_seed": self.next_seed(),
            "seconds": self.start.elapsed().as_secs_f64(),
            "jobs": self.current.len(),
            "runs": self.runs(),
            "packets": self.packets.load(Ordering::Relaxed),
            "times_ci": self.times_ci(),
            "families": families.collect::<Vec<_>>(),
            "failed_at": *lock(&self.places),
            "failures": again.collect::<Vec<_>>(),
        })
    }
}

/// The families in the proportions of CI, well mixed: the one that is furthest behind is next.
fn schedule(families: &[Family]) -> Vec<usize> {
    let total: u64 = families.iter().map(|family| family.runs).sum();
    let mut done = vec![0; families.len()];
    let next = |_| {
        let behind = |&index: &usize| (done[index] + 1) as f64 / families[index].runs as f64;
        let index = (0..families.len()).min_by(|a, b| behind(a).total_cmp(&behind(b)));
        let index = index.expect("there are families");
        done[index] += 1;
        index
    };
    (0..total).map(next).collect()
}

fn reproduction(family: &str, seed: u64) -> String {
    format!("cargo xtask soak --only {family} --seed {seed}")
}

fn names() -> String {
    FAMILIES.map(|family| family.name).join(", ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
#[ignore = "as long as it is told: cargo xtask soak"]
fn soak() {
    let setting = |name| variable(name).unwrap_or_else(|| panic!("{name} is missing"));
    let only = std::env::var("URXE_SOAK_ONLY").ok();
    let first_seed = setting("URXE_SOAK_SEED");
    let (seconds, jobs) = (setting("URXE_SOAK_SECONDS"), setting("URXE_SOAK_JOBS"));
    let soak = Soak::new(only.as_deref(), first_seed, seconds, jobs);
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let message = text.unwrap_or_default().to_owned();
        LAST_PANIC.set(Some((place, message)));
    }));
    std::thread::scope(|scope| {
        for thread in 0..jobs as usize {
            let soak = &soak;
            scope.spawn(move || soak.work(thread));
        }
        if !soak.watch() {
            // The thread that hangs would be waited for.
            write_summary(&soak);
            std::process::exit(1);
        }
    });
    let _ = std::panic::take_hook();
    eprintln!("{}  next seed {}", soak.progress(), soak.next_seed());
    for (place, count) in lock(&soak.places).iter() {
        eprintln!("{count:>6} failed at {place}");
    }
    write_summary(&soak);
    assert!(lock(&soak.failures).is_empty(), "runs failed");
}

fn write_summary(soak: &Soak) {
    if let Ok(file) = std::env::var("URXE_SOAK_SUMMARY") {
        let text = format!("{:#}\n", soak.summary());
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}
