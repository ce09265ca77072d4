//! The rules that the engine keeps, and the tests that say so: `spec-tests/rules/*.toml`.

mod list;
mod source;

use list::{Area, Problems, Rule};
use serde::Serialize;
use std::io::Write;
use urxe_shell::{Result, files_below, root};

/// How the rules are shown.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Print everything as JSON: each rule with its source and its tests.
    #[arg(long)]
    json: bool,
}

/// Reads the lists and checks them; prints the report unless something is wrong.
///
/// # Errors
/// If a list is no list, an ID is not unique or not well formed, or a rule has neither a test
/// that exists nor a reason why it is not kept.
pub(crate) fn run(options: &Options) -> Result {
    let areas = read()?;
    let report = if options.json { json(&areas) } else { table(&areas) };
    let mut stdout = std::io::stdout();
    stdout.write_all(report.as_bytes()).map_err(|error| format!("standard output: {error}"))
}

fn read() -> Result<Vec<Area>> {
    let root = root();
    let dir = root.join("spec-tests/rules");
    let mut files = Vec::new();
    files_below(&dir, "toml", &mut files).map_err(|error| format!("{}: {error}", dir.display()))?;
    files.sort();
    let mut problems = Problems::default();
    let mut areas = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
        areas.extend(list::parse(&name, &text, &mut problems));
    }
    let read_source = |file: &str| std::fs::read_to_string(root.join(file)).ok();
    list::check(&areas, read_source, &mut problems);
    problems.into_result().map(|()| areas)
}

/// How many rules there are, and how they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Count {
    rules: usize,
    tested: usize,
    excepted: usize,
}

impl Count {
    fn of<'a>(areas: impl IntoIterator<Item = &'a Area>) -> Count {
        let mut count = Count::default();
        for rule in areas.into_iter().flat_map(|area| &area.rules) {
            count.rules += 1;
            match rule.excepted {
                Some(_) => count.excepted += 1,
                None => count.tested += 1,
            }
        }
        count
    }
}

/// The report for people.
fn table(areas: &[Area]) -> String {
    let mut text = format!("{:<20} {:>6} {:>7} {:>9}\n", "area", "rules", "tested", "excepted");
    let line = |name: &str, Count { rules, tested, excepted }: Count| {
        format!("{name:<20} {rules:>6} {tested:>7} {excepted:>9}\n")
    };
    for area in areas {
        text += &line(&area.area, Count::of([area]));
    }
    text += &line("all", Count::of(areas));
    let rules = || areas.iter().flat_map(|area| &area.rules);
    let excepted = rules().filter_map(|rule| Some((rule, rule.excepted.as_ref()?)));
    text += &reasons("Not kept, and why:", excepted);
    let differing = rules().filter_map(|rule| Some((rule, rule.differs.as_ref()?)));
    text += &reasons("Unlike the kernel's rxe:", differing);
    text
}

fn reasons<'a>(title: &str, reasons: impl Iterator<Item = (&'a Rule, &'a String)>) -> String {
    let lines =
        reasons.map(|(Rule { id, rule, .. }, why)| format!("  {id}  {rule}\n      {why}\n"));
    let lines = lines.collect::<String>();
    if lines.is_empty() { lines } else { format!("\n{title}\n{lines}") }
}

/// The report for programs.
fn json(areas: &[Area]) -> String {
    let count = Count::of(areas);
    format!("{:#}\n", serde_json::json!({ "count": count, "areas": areas }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_counts_rules_and_gives_reasons() {
        let text = r#"
            area = "a"
            prefix = "A"
            rule = [
                { id = "A-001", rule = "One.", tests = ["f::t"] },
                { id = "A-002", rule = "Two.", excepted = "Because." },
                { id = "A-003", rule = "Three.", tests = ["f::t", "f::u"] },
            ]
        "#;
        let area = list::parse("a.toml", text, &mut Problems::default()).unwrap();
        assert_eq!(Count::of([&area]), Count { rules: 3, tested: 2, excepted: 1 });
        let table = table(&[area]);
        assert!(table.contains("\na                         3       2         1\n"), "{table}");
        assert!(table.ends_with("Not kept, and why:\n  A-002  Two.\n      Because.\n"), "{table}");
    }
}
