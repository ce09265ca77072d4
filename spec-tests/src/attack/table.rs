//! What came of the attacks.

use super::victim::Latency;
use serde::Serialize;
use std::fmt::Write;

/// A victim beside an attack.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// Without the attack.
    pub idle: Latency,
    /// With it, or what became of the connection.
    pub attacked: Result<Latency, String>,
}

impl Seen {
    /// How many times as long the slowest of a hundred WRITEs takes.
    fn ratio(&self) -> Option<f64> {
        Some(self.attacked.as_ref().ok()?.p99 / self.idle.p99.max(1.0))
    }
}

/// What came of an attack.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub attack: &'static str,
    pub what: &'static str,
    /// Why the attacker could not go on, if it could not.
    pub stopped: Option<String>,
    /// The daemon still runs.
    pub is_daemon_up: bool,
    /// Why somebody else who came meanwhile was not served.
    pub newcomer_refused: Option<String>,
    /// A victim of another user than the attacker's, where there can be one.
    pub other_user: Option<Seen>,
    /// A victim of the attacker's user.
    pub same_user: Seen,
    /// Mebibytes by which the daemon had grown meanwhile, the workers of other users aside.
    pub memory_charged: i64,
    /// Mebibytes of the daemon and its workers that are left when the attacker is gone.
    pub memory_left: i64,
    /// Descriptors of them that are left.
    pub descriptors_left: i64,
}

/// What the 99th percentile of a victim of another user, and of the same, may be at most, as a
/// multiple of what it is otherwise. It is shown and no more: figures of a busy machine prove
/// nothing.
const BOUNDS: [f64; 2] = [3.0, 5.0];

/// More mebibytes than this are growth, and not tables that were made once, or what the allocator
/// keeps of the buffers that as many sessions had as there can be: 64 KiB each.
const MEMORY: i64 = 80;

/// More mebibytes than this are not what the daemon needs itself to serve the attacker.
const CHARGED: i64 = 100;

/// More descriptors than this are: sockets for source ports are opened when they are first used.
const DESCRIPTORS: i64 = 48;

/// What is known to go wrong where all are of the daemon's user, so that one process serves them:
/// the attack, and the words of [`Row::problems`]. It only gets shorter. Where there are several
/// users nothing is.
const KNOWN: &[(&str, &str)] = &[
    ("address-space", "newcomer refused"),
    ("silent-sessions", "newcomer refused"),
    ("cm-channels", "newcomer refused"),
    ("sparse-memory", "memory charged to the daemon"),
];

impl Row {
    /// What must not be so, whatever the machine.
    pub fn problems(&self) -> Vec<&'static str> {
        let other = self.other_user.as_ref();
        let candidates = [
            (!self.is_daemon_up, "daemon down"),
            (self.newcomer_refused.is_some(), "newcomer refused"),
            (other.is_some_and(|seen| seen.attacked.is_err()), "other user's connection lost"),
            (self.same_user.attacked.is_err(), "same user's connection lost"),
            (self.memory_charged > CHARGED, "memory charged to the daemon"),
            (self.memory_left > MEMORY, "memory left"),
            (self.descriptors_left > DESCRIPTORS, "descriptors left"),
        ];
        candidates.into_iter().filter(|(is_so, _)| *is_so).map(|(_, problem)| problem).collect()
    }

    fn is_known(&self, problem: &str) -> bool {
        self.other_user.is_none() && KNOWN.contains(&(self.attack, problem))
    }

    /// Those that are not known.
    pub fn news(&self) -> Vec<&'static str> {
        let mut problems = self.problems();
        problems.retain(|problem| !self.is_known(problem));
        problems
    }
}

/// What is known and was not seen, of the attacks that were made.
pub fn not_seen(rows: &[Row]) -> Vec<&'static (&'static str, &'static str)> {
    let is_missing = |(attack, problem): &&(&str, &str)| {
        let of_attack = rows.iter().filter(|row| row.attack == *attack);
        of_attack
            .filter(|row| row.other_user.is_none())
            .any(|row| !row.problems().contains(problem))
    };
    KNOWN.iter().filter(is_missing).collect()
}

/// The table.
pub fn show(rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<18} {:>24} {:>24} {:>5} {:>5} {:>5}  problems",
        "attack", "other user p99 us", "same user p99 us", "MiB", "left", "fds"
    );
    for row in rows {
        let other = row.other_user.as_ref().map_or("-".into(), |seen| figures(seen, BOUNDS[0]));
        let same = figures(&row.same_user, BOUNDS[1]);
        let known = |problem: &&str| match row.is_known(problem) {
            true => format!("{problem} (known)"),
            false => (*problem).to_owned(),
        };
        let mut notes: Vec<String> = row.problems().iter().map(known).collect();
        notes.extend(row.newcomer_refused.iter().map(|why| format!("[{why}]")));
        let victims = row.other_user.iter().chain([&row.same_user]);
        let lost = victims.filter_map(|seen| seen.attacked.as_ref().err());
        notes.extend(lost.map(|why| format!("[{why}]")));
        notes.extend(row.stopped.iter().map(|why| format!("(the attacker: {why})")));
        let _ = writeln!(
            text,
            "{:<18} {other:>24} {same:>24} {:>5} {:>5} {:>5}  {}",
            row.attack,
            row.memory_charged,
            row.memory_left,
            row.descriptors_left,
            notes.join(", ")
        );
    }
    let _ = writeln!(
        text,
        "p99 of a 64-byte WRITE: idle -> attacked (ratio); ! is more than {} x, or {} x for the \
         same user\nMiB and descriptors of the daemon: while attacked, and left after that",
        BOUNDS[0], BOUNDS[1]
    );
    text
}

fn figures(seen: &Seen, bound: f64) -> String {
    match (&seen.attacked, seen.ratio()) {
        (Ok(attacked), Some(ratio)) => {
            let mark = if ratio > bound { "!" } else { "" };
            format!("{:.0} -> {:.0} ({ratio:.1}{mark})", seen.idle.p99, attacked.p99)
        }
        _ => "lost".to_owned(),
    }
}
