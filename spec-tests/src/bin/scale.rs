//! Runs the scenarios of [`urxe_spec_tests::scale`] and shows what came of them; `cargo xtask
//! scale` starts it.

#![allow(clippy::print_stdout)] // the table is what it is for

use clap::Parser;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use urxe_spec_tests::scale::{Extent, Row, SCENARIOS, Scenario, table};

/// Runs the scenarios and shows what came of them.
#[derive(Parser)]
#[command(bin_name = "cargo xtask scale")]
struct Args {
    /// More cases, for longer; writes the table to `spec-tests/scale.txt`.
    #[arg(long)]
    long: bool,
    /// Show JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Only this scenario; can be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(unknown) = args.only.iter().find(|name| SCENARIOS.iter().all(|s| s.name != **name))
    {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        eprintln!("there is no scenario {unknown}; there are {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let extent = if args.long { Extent::Long } else { Extent::Short };
    let is_wanted = |s: &&Scenario| args.only.is_empty() || args.only.iter().any(|n| n == s.name);
    let mut text = String::new();
    let mut results = Vec::new();
    let (mut missed, mut broken) = (0, false);
    for scenario in SCENARIOS.iter().filter(is_wanted) {
        eprintln!("==> {}", scenario.name);
        let mut rows: Vec<Row> = Vec::new();
        let mut last = Instant::now();
        let mut take = |row: Row| {
            eprintln!("{:>6.1} s  {}", last.elapsed().as_secs_f64(), row.line());
            last = Instant::now();
            rows.push(row);
        };
        // The others are worth seeing although one broke the engine.
        let outcome = catch_unwind(AssertUnwindSafe(|| scenario.run(extent, &mut take)));
        broken |= outcome.is_err();
        missed += rows.iter().map(|row| row.missed().len()).sum::<usize>();
        text += &format!("{}: {}\n\n{}\n", scenario.name, scenario.about, table(&rows));
        results.push((scenario.name, rows));
    }
    match args.json {
        true => println!("{}", json(&results)),
        false => print!("{text}"),
    }
    eprintln!("{missed} figures missed their bound");
    if broken {
        return ExitCode::FAILURE;
    }
    if args.long && args.only.is_empty() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scale.txt");
        if let Err(error) = std::fs::write(&path, &text) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn json(results: &[(&str, Vec<Row>)]) -> serde_json::Value {
    let figures = |row: &Row| {
        let figures = row.figures.iter().map(|figure| {
            let holds = figure.bound.map(|_| figure.holds());
            (figure.name.to_owned(), serde_json::json!({ "value": figure.value, "holds": holds }))
        });
        figures.collect::<serde_json::Map<_, _>>()
    };
    let rows = |rows: &[Row]| {
        let rows =
            rows.iter().map(|row| serde_json::json!({ "case": row.case, "figures": figures(row) }));
        rows.collect::<Vec<_>>()
    };
    let scenarios = results.iter().map(|(name, found)| ((*name).to_owned(), rows(found).into()));
    serde_json::Value::Object(scenarios.collect())
}
