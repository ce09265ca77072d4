//! The rules that are kept, `src/conform/rules/*.toml`: the tests that say so, and the lines of the
//! code that decide them.

mod comments;
mod list;
mod source;

use list::{Area, Problems, Rule};
use serde::Serialize;
use std::fmt::Display;
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
/// that exists nor a reason why it is not kept, or neither a place in the code nor a reason why it
/// has none.
pub(crate) fn run(options: &Options) -> Result {
    let areas = read()?;
    let report = if options.json { json(&areas) } else { table(&areas) };
    let mut stdout = std::io::stdout();
    stdout.write_all(report.as_bytes()).map_err(|error| format!("standard output: {error}"))
}

fn read() -> Result<Vec<Area>> {
    let root = root();
    let dir = root.join("src/conform/rules");
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
    let mut files = Vec::new();
    files_below(&root.join("src"), "rs", &mut files).map_err(|error| format!("src: {error}"))?;
    files.sort();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().into_owned();
        if comments::is_product(&name) {
            let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
            list::place(&mut areas, &name, &text, &mut problems);
        }
    }
    list::check_places(&areas, &mut problems);
    problems.into_result().map(|()| areas)
}

/// How many rules there are, and how they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Count {
    rules: usize,
    tested: usize,
    excepted: usize,
    /// Decided at a line of the code that names it.
    placed: usize,
    /// Decided by no line, with a reason.
    no_place: usize,
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
            count.placed += usize::from(!rule.places.is_empty());
            count.no_place += usize::from(rule.no_place.is_some());
        }
        count
    }

    fn columns(&self) -> [&dyn Display; 5] {
        [&self.rules, &self.tested, &self.excepted, &self.placed, &self.no_place]
    }
}

/// The report for people.
fn table(areas: &[Area]) -> String {
    let line = |name: &str, columns: [&dyn Display; 5]| {
        let [rules, tested, excepted, placed, no_place] = columns;
        format!("{name:<20} {rules:>6} {tested:>7} {excepted:>9} {placed:>7} {no_place:>9}\n")
    };
    let head: [&dyn Display; 5] = [&"rules", &"tested", &"excepted", &"placed", &"no place"];
    let mut text = line("area", head);
    for area in areas {
        text += &line(&area.area, Count::of([area]).columns());
    }
    text += &line("all", Count::of(areas).columns());
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

/// Of the report for programs: higher once a key is no more, or means something else.
const JSON_VERSION: u32 = 1;

/// The report for programs.
fn json(areas: &[Area]) -> String {
    let count = Count::of(areas);
    let all = serde_json::json!({ "version": JSON_VERSION, "count": count, "areas": areas });
    format!("{all:#}\n")
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
        let count = Count { rules: 3, tested: 2, excepted: 1, ..Count::default() };
        assert_eq!(Count::of([&area]), count);
        let table = table(&[area]);
        assert!(
            table.contains("\na                         3       2         1       0         0\n"),
            "{table}"
        );
        assert!(table.ends_with("Not kept, and why:\n  A-002  Two.\n      Because.\n"), "{table}");
    }
}
