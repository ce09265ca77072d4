//! Stock verbs programs on urxe, as distributions ship them, run by an ordinary user: what each
//! prints and how it ends is judged. And what programs do that nobody hopes for.

mod connected;
mod faults;
mod judge;
mod list;
mod memory_order;
mod testbed;

pub use judge::table;

use list::Program;
use std::fmt;
use testbed::{Side, Testbed};
use urxe_shell::Result;

/// One line of the table.
struct Row {
    what: String,
    daemons: &'static str,
    /// The figure that it printed, or why it failed.
    outcome: Result<String>,
}

/// Runs everything that has `only` in its name or options, on the release build, and prints the
/// table; an error if anything failed.
pub fn check(only: &str) -> Result {
    let testbed = Testbed::new()?;
    let mut rows = Vec::new();
    let wanted = |name: &str| name.contains(only);
    for program in list::all().filter(|program| wanted(&program.name())) {
        for daemons in program.daemons() {
            rows.push(run_one(&testbed, &program, daemons));
        }
    }
    for meeting in connected::all() {
        let name = meeting.name();
        if wanted(&name) && meeting.is_possible(&testbed) {
            rows.push(Row::new(name, meeting.daemons(), meeting.run(&testbed)));
        }
    }
    let incidents = faults::ALL.into_iter().chain(connected::INCIDENTS).chain(memory_order::ALL);
    for (name, incident) in incidents.filter(|(name, _)| wanted(name)) {
        rows.push(Row::new(name.into(), "", incident(&testbed)));
    }
    let nothing_left = testbed.wait_until_nothing_is_left().map(|()| String::new());
    rows.push(Row::new("nothing is left".into(), "all", nothing_left));
    print(&rows);
    match rows.iter().filter(|row| row.outcome.is_err()).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} failed, see the table", rows.len())),
    }
}

fn run_one(testbed: &Testbed, program: &Program, daemons: &'static str) -> Row {
    let server = if daemons == "1" { Side::A } else { Side::B };
    let outcome = if program.is_alone() {
        let ended = testbed.run(Side::A, &program.words(), testbed::PATIENCE);
        ended.and_then(|ended| judge::alone(program, &ended.success()?))
    } else {
        testbed
            .run_pair((server, Side::A), &program.words())
            .and_then(|(server, client)| judge::pair(program, &server, &client))
    };
    Row::new(program.name(), daemons, outcome)
}

impl Row {
    /// Says how it went at once: the table comes at the end of minutes.
    fn new(what: String, daemons: &'static str, outcome: Result<String>) -> Row {
        let row = Row { what, daemons, outcome };
        eprintln!("{row}");
        row
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { what, daemons, outcome } = self;
        let (how, text) = match outcome {
            Ok(figure) => ("passed", figure),
            Err(reason) => ("FAILED", reason),
        };
        write!(f, "{what:<46} {daemons:>7}  {how}  {text}")
    }
}

#[allow(clippy::print_stdout)] // the table is what this is for
fn print(rows: &[Row]) {
    println!("\n{:<46} {:>7}  {:<6}  figure", "program", "daemons", "");
    rows.iter().for_each(|row| println!("{row}"));
}
