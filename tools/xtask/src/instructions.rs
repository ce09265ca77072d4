//! `cargo xtask instructions`: how many instructions a message costs a data path. They depend on
//! the code and the compiler alone, so that a loss shows that a clock would hide.

use crate::ci::WORKSPACE;
use crate::packages::{VALGRIND, lacking};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use urxe_shell::{Result, cargo, output, root, target_directory};

/// Verbs and sizes of messages that are counted, and what is beside.
const MESSAGES: [(&str, u32, &str); 11] = [
    ("write", 64, ""),
    ("write", 4096, ""),
    ("write", 65_536, ""),
    ("read", 64, ""),
    ("read", 4096, ""),
    ("read", 65_536, ""),
    ("send", 64, ""),
    ("send", 65_536, ""),
    // Round trips of two that poll, each of them a message to send and one to receive.
    ("ping-pong", 8, ""),
    // A tap that takes none of the packets.
    ("write", 64, "tapped"),
    ("write", 65_536, "tapped"),
];

/// What a count is called.
fn name((verb, size, beside): (&str, u32, &str), party: &str) -> String {
    let words = [verb, &size.to_string(), beside, party];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Who pays: functions of the program that is counted.
const PARTIES: [&str; 2] = ["requester", "responder"];

/// Lists of messages in the two runs whose difference counts: what happens once is in both.
const LISTS: [u64; 2] = [40, 80];

/// Messages of a list.
const LIST: u64 = 8;

/// By how much of 100 a count may be larger than the one that is known: another compiler gives
/// slightly other code.
const TOLERANCE: i64 = 10;

/// By how much of 100 a count may be smaller: no compiler makes so much of that, and from a known
/// count that is no longer near, no loss would show.
const GAIN: i64 = 50;

/// The counts that are known.
const KNOWN: &str = "src/nic/benches/instructions.txt";

const HEADING: &str = "\
# Instructions that a data path spends on a message, all its packets and acknowledgements with it,
# from the ring to the port and in it, which is one of the simulated network and so has no system
# calls; for a ping-pong, on a message sent and one received. The ICRC is computed without the
# widest instructions, which the counter does not know.
# Made by `cargo xtask instructions --renew`.
";

/// Options of the counting.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Write the counts to the file of those that are known.
    #[arg(long)]
    renew: bool,
    /// Count only messages with this text, such as "write 64".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Why nothing can be counted on this machine.
pub(crate) fn lacks() -> Option<String> {
    lacking(&[VALGRIND])
}

/// Counts, shows the counts beside those that are known, and refuses larger ones, and ones that are
/// smaller by far.
#[allow(clippy::print_stdout)] // the table is what it is for
pub(crate) fn count(options: &Options) -> Result {
    if let Some(reason) = lacks() {
        return Err(reason);
    }
    let only = options.only.as_deref().unwrap_or_default();
    let mut names = MESSAGES.iter().flat_map(|&message| PARTIES.map(|party| name(message, party)));
    if !names.any(|name| name.contains(only)) {
        return Err(format!("no message has {only:?} in its name"));
    }
    let known_path = root().join(KNOWN);
    let known = parse(&std::fs::read_to_string(&known_path).unwrap_or_default());
    let program = build()?;
    let mut counts = BTreeMap::new();
    let (mut larger, mut smaller) = (Vec::new(), Vec::new());
    println!("{:<24} {:>12} {:>10} {:>8}", "instructions a message", "counted", "known", "");
    for message in MESSAGES {
        for party in PARTIES {
            let name = name(message, party);
            if !name.contains(only) {
                continue;
            }
            let count = per_message(&program, message, party)?;
            if count <= 0 {
                return Err(format!(
                    "{name}: {count} instructions a message: what is counted is not there"
                ));
            }
            let before = known.get(&name).copied();
            let change = before.map(|before| (count - before) * 100 / before.max(1));
            println!(
                "{name:<24} {count:>12} {:>10} {:>8}",
                before.map_or("-".to_owned(), |before| before.to_string()),
                change.map_or(String::new(), |change| format!("{change:+} %")),
            );
            if change.is_none_or(|change| change > TOLERANCE) {
                larger.push(name.clone());
            }
            if change.is_some_and(|change| change < -GAIN) {
                smaller.push(name.clone());
            }
            counts.insert(name, count);
        }
    }
    if options.renew {
        return renew(&known_path, known, counts);
    }
    let problem = |names: &[String], what: &str| {
        (!names.is_empty()).then(|| format!("{} {what}", names.join(", ")))
    };
    let problems = [
        problem(&larger, &format!("cost more than {TOLERANCE} % above {KNOWN}, or are not there")),
        problem(&smaller, &format!("cost less than half of what {KNOWN} says")),
    ];
    let problems: Vec<_> = problems.into_iter().flatten().collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{}; if that is meant, `cargo xtask instructions --renew`",
            problems.join("; ")
        )),
    }
}

fn renew(path: &Path, mut known: BTreeMap<String, i64>, counts: BTreeMap<String, i64>) -> Result {
    known.extend(counts);
    let lines = MESSAGES.iter().flat_map(|&message| PARTIES.map(|party| name(message, party)));
    let lines: String = lines
        .filter_map(|name| known.get(&name).map(|count| format!("{name} {count}\n")))
        .collect();
    std::fs::write(path, format!("{HEADING}{lines}"))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Lines of a name and a count.
fn parse(text: &str) -> BTreeMap<String, i64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
        .collect()
}

/// Builds the program that is counted, and says where it is.
fn build() -> Result<PathBuf> {
    let mut command = cargo();
    command.arg("bench").args(WORKSPACE).args(["--bench", "instructions"]);
    let text = output(command.args(["--no-run", "--message-format", "json-render-diagnostics"]))?;
    let found = text.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "instructions";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    found.ok_or_else(|| "cargo bench built no program called instructions".to_owned())
}

fn per_message(program: &Path, message: (&str, u32, &str), party: &str) -> Result<i64> {
    let [few, many] = LISTS.map(|lists| collected(program, message, party, lists));
    Ok((many? - few?) / ((LISTS[1] - LISTS[0]) * LIST) as i64)
}

/// Instructions within a function of the program.
fn collected(
    program: &Path,
    (verb, size, beside): (&str, u32, &str),
    party: &str,
    lists: u64,
) -> Result<i64> {
    let details = target_directory().join("instructions.out");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", details.display()))
        .arg(format!("--toggle-collect=instructions::{party}*"));
    command.arg(program).args([verb, &size.to_string(), &lists.to_string(), beside]);
    let ended = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    let count = said.lines().find_map(|line| line.split_once("Collected : "));
    count
        .and_then(|(_, count)| count.trim().parse().ok())
        .filter(|_| ended.status.success())
        .ok_or_else(|| format!("valgrind on {verb} {size}: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_name_and_a_count() {
        let known = parse("# a comment 7\nwrite 64 requester 123\nread 64 responder x\n");
        assert_eq!(known.into_iter().collect::<Vec<_>>(), [("write 64 requester".to_owned(), 123)]);
    }
}
