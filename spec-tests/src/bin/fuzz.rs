//! Plays the corpus of each target and inputs that follow from a seed, with nothing but a stable
//! Rust; `cargo xtask fuzz --short` starts it.

use clap::Parser;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use urxe_spec_tests::fuzz::{TARGETS, Target, requests, seeded};

/// Plays the corpus of each target, then inputs that follow from a seed.
#[derive(Parser)]
#[command(bin_name = "cargo xtask fuzz")]
struct Args {
    /// Only these targets.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Inputs for each target, beside the corpus.
    #[arg(long)]
    inputs: u64,
    /// The number of the first: where an earlier run with the same seed and corpus has ended.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// What they follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After so many seconds a target has no further input.
    #[arg(long)]
    seconds: Option<u64>,
}

/// An input that is played at so many looks, one a second, hangs: far more than one takes on a
/// machine that is busy. Looks are counted, and not the time, because there are none while the
/// process is stopped.
const HANGS: u32 = 60;

/// How often it is said how far a target is.
const PROGRESS: Duration = Duration::from_secs(10);

/// What is played: the target, the number of the input or none for one of the corpus, since when,
/// by which it is told from the one before.
static PLAYED: Mutex<Option<(&str, Option<u64>, Instant)>> = Mutex::new(None);

/// Some thread has panicked, also where the panic was caught: as with libFuzzer, none may.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let args = Args::parse();
    let is_target = |name: &String| TARGETS.iter().any(|(target, _)| target == name);
    if let Some(unknown) = args.targets.iter().find(|name| !is_target(name)) {
        let names = TARGETS.map(|(name, _)| name).join(", ");
        eprintln!("fuzz: target {unknown:?}: expected one of {names}");
        return ExitCode::FAILURE;
    }
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HAS_PANICKED.store(true, Ordering::Relaxed);
        show(panic);
    }));
    std::thread::spawn(end_if_one_hangs);
    let wanted = |name: &str| args.targets.is_empty() || args.targets.iter().any(|n| n == name);
    let mut is_good = true;
    for (name, run) in TARGETS.into_iter().filter(|(name, _)| wanted(name)) {
        // The others are worth playing although one broke something.
        if let Err(problem) = play(&args, name, run) {
            eprintln!("fuzz: {name}: {problem}");
            is_good = false;
        }
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Ends the process when an input takes too long, and says which.
fn end_if_one_hangs() {
    let (mut last, mut looks) = (None, 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let played = *PLAYED.lock().unwrap_or_else(PoisonError::into_inner);
        looks = if played.is_some() && played == last { looks + 1 } else { 0 };
        last = played;
        match played {
            Some((name, number, _)) if looks >= HANGS => {
                let number = number.map_or("of the corpus".to_owned(), |number| number.to_string());
                eprintln!("fuzz: {name}: input {number} hangs");
                std::process::exit(1);
            }
            _ => {}
        }
    }
}

fn play(args: &Args, name: &'static str, run: Target) -> Result<(), String> {
    let corpus = corpus(name)?;
    for (path, bytes) in &corpus {
        one(name, None, run, bytes).map_err(|()| format!("{} breaks it", path.display()))?;
    }
    let corpus: Vec<_> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let begun = Instant::now();
    let mut said = begun;
    let mut number = args.from;
    let end = args.from.saturating_add(args.inputs);
    let is_late = || args.seconds.is_some_and(|most| begun.elapsed().as_secs() >= most);
    let say = |number: u64| {
        let played = number - args.from;
        let rate = played as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        let kept = corpus.len();
        // An input of this target is a program with many of them.
        let asked = match name {
            "requests" => format!(" of {} requests", requests::asked()),
            _ => String::new(),
        };
        eprintln!(
            "{name}: corpus of {kept}, {played} inputs{asked}, {rate:.0}/s, next is {number}"
        );
    };
    while number < end && !is_late() {
        let bytes = seeded::input(&corpus, args.seed, number);
        one(name, Some(number), run, &bytes).map_err(|()| {
            let seed = args.seed;
            format!(
                "repeat it by: cargo xtask fuzz {name} --seed {seed} --from {number} --inputs 1"
            )
        })?;
        number += 1;
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            say(number);
        }
    }
    say(number);
    Ok(())
}

/// Plays an input; the panic, if there is one, has said why.
fn one(name: &'static str, number: Option<u64>, run: Target, bytes: &[u8]) -> Result<(), ()> {
    let played = |now| *PLAYED.lock().unwrap_or_else(PoisonError::into_inner) = now;
    played(Some((name, number, Instant::now())));
    let result = catch_unwind(AssertUnwindSafe(|| run(bytes)));
    played(None);
    let has_panicked = HAS_PANICKED.swap(false, Ordering::Relaxed);
    if result.is_err() || has_panicked { Err(()) } else { Ok(()) }
}

/// The corpus of a target by the names of its files, so that its order is the same everywhere.
fn corpus(name: &str) -> Result<Vec<(PathBuf, Vec<u8>)>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    let files = std::fs::read_dir(&folder).map_err(told)?;
    let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    let read = |path: PathBuf| Ok((path.clone(), std::fs::read(path)?));
    paths.into_iter().map(read).collect::<std::io::Result<_>>().map_err(told)
}
