//! What came of the attacks.

use super::Attack;
use super::resources::Resources;
use super::victim::Latency;
use serde::Serialize;
use std::fmt::Write;

/// Whose program attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attacker {
    /// Another user's than the daemon's: a worker serves it.
    OtherUser,
    /// The daemon's own user's: a thread of the daemon serves it.
    DaemonsUser,
}

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

    /// Whether it goes on, but a WRITE took so long that this is no matter of shares, or half of
    /// them so much longer than before.
    fn stalls(&self) -> bool {
        let Ok(attacked) = &self.attacked else { return false };
        attacked.worst > STALL || attacked.median > self.idle.median.max(USUAL) * MEDIAN
    }

    /// The one that was slowed down less.
    fn least(self, other: Seen) -> Seen {
        let is_less = (other.stalls(), other.ratio()) < (self.stalls(), self.ratio());
        if is_less { other } else { self }
    }
}

/// What came of an attack.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub attack: &'static str,
    /// What of [`FOUND`](super::found::FOUND) it repeats.
    pub found: Option<&'static str>,
    pub what: &'static str,
    pub attacker: Attacker,
    /// Why it could not be made on this machine, if it could not: nothing else here says anything.
    pub could_not_run: Option<String>,
    /// The attacker said that it was under way.
    pub is_under_way: bool,
    /// Why the attacker could not go on, or begin, if it could not.
    pub stopped: Option<String>,
    /// The daemon still runs.
    pub is_daemon_up: bool,
    /// Why somebody else who came meanwhile was not served.
    pub newcomer_refused: Option<String>,
    /// A victim of another user than the attacker's, where there can be one.
    pub other_user: Option<Seen>,
    /// A victim of the attacker's user, unless that may be lost.
    pub same_user: Option<Seen>,
    /// Mebibytes by which the daemon had grown meanwhile, the workers of other users aside.
    pub memory_charged: i64,
    /// What is left when the attacker is gone; `None` if the daemon does not say.
    pub left: Option<Resources>,
}

/// What the 99th percentile of a victim of another user, and of the same, may be at most, as a
/// multiple of what it is otherwise. It is judged in the long form alone, which wants a machine
/// that does nothing else.
const BOUNDS: [f64; 2] = [3.0, 5.0];

/// Microseconds that no WRITE may take, however busy the machine is.
const STALL: f64 = 1e6;

/// How many times as long half of the WRITEs may take on a busy machine, and the least microseconds
/// that this is a multiple of: what a WRITE takes there by itself. Linux gives the processor back
/// to who yields it after 50 ms where several programs compute (6.18), which is no daemon's doing.
const MEDIAN: f64 = 100.0;
const USUAL: f64 = 1_000.0;

/// More mebibytes than this are not what the daemon needs itself to serve the attacker.
const CHARGED: i64 = 100;

const REFUSED: &str = "newcomer refused";
const CHARGED_TO_DAEMON: &str = "memory charged to the daemon";

/// What is known to go wrong where the attacker is of the daemon's user, so that one process serves
/// both: the attack, and the words of [`Row::problems`]. That a newcomer is refused is known where
/// it is of that user too. It only gets shorter. Where the attacker is of another user nothing is
/// known.
const KNOWN: &[(&str, &str)] = &[
    ("address-space", REFUSED),
    ("silent-sessions", REFUSED),
    ("cm-channels", REFUSED),
    ("sparse-memory", CHARGED_TO_DAEMON),
    ("doorbells", CHARGED_TO_DAEMON),
];

impl Row {
    /// An attack that could not be made here, and why.
    pub(super) fn could_not_run(attack: &Attack, attacker: Attacker, reason: &str) -> Row {
        Row {
            attack: attack.name,
            found: attack.found,
            what: attack.what,
            attacker,
            could_not_run: Some(reason.to_owned()),
            is_under_way: false,
            stopped: None,
            is_daemon_up: true,
            newcomer_refused: None,
            other_user: None,
            same_user: None,
            memory_charged: 0,
            left: Some(Resources::default()),
        }
    }

    /// What must not be so, whatever else the machine does.
    pub fn problems(&self) -> Vec<&'static str> {
        let other = self.other_user.as_ref();
        let same = self.same_user.as_ref();
        let candidates = [
            (!self.is_under_way && self.could_not_run.is_none(), "attacker was never under way"),
            (!self.is_daemon_up, "daemon down"),
            (self.newcomer_refused.is_some(), REFUSED),
            (other.is_some_and(|seen| seen.attacked.is_err()), "other user's connection lost"),
            (other.is_some_and(Seen::stalls), "other user's WRITEs stall"),
            (same.is_some_and(|seen| seen.attacked.is_err()), "same user's connection lost"),
            (same.is_some_and(Seen::stalls), "same user's WRITEs stall"),
            (self.memory_charged > CHARGED, CHARGED_TO_DAEMON),
            (self.left.is_none(), "daemon does not say what is left"),
        ];
        let these = candidates.into_iter().filter(|(is_so, _)| *is_so).map(|(_, problem)| problem);
        these.chain(self.left.iter().flat_map(Resources::growth)).collect()
    }

    fn is_known(&self, problem: &str) -> bool {
        self.attacker == Attacker::DaemonsUser
            && (problem != REFUSED || self.other_user.is_none())
            && KNOWN.contains(&(self.attack, problem))
    }

    /// Those that are not known.
    pub fn news(&self) -> Vec<&'static str> {
        let mut problems = self.problems();
        problems.retain(|problem| !self.is_known(problem));
        problems
    }

    /// Whether no victim is slowed down beyond the bounds for it.
    pub fn is_within_bounds(&self) -> bool {
        let seen = [self.other_user.as_ref(), self.same_user.as_ref()];
        let is_within = |(seen, bound): (Option<&Seen>, f64)| {
            seen.and_then(Seen::ratio).is_none_or(|ratio| ratio <= bound)
        };
        seen.into_iter().zip(BOUNDS).all(is_within)
    }

    /// Whether no victim stalls.
    pub fn is_flowing(&self) -> bool {
        !self.other_user.iter().chain(&self.same_user).any(Seen::stalls)
    }

    /// Of two trials of one attack, the figures of each victim that was slowed down less.
    pub fn least(self, other: Row) -> Row {
        Row {
            other_user: self.other_user.zip(other.other_user).map(|(a, b)| a.least(b)),
            same_user: self.same_user.zip(other.same_user).map(|(a, b)| a.least(b)),
            ..other
        }
    }
}

/// What is known and was not seen, of the attacks that were made.
pub fn not_seen(rows: &[Row]) -> Vec<&'static (&'static str, &'static str)> {
    let is_missing = |(attack, problem): &&(&str, &str)| {
        let mut made = rows.iter().filter(|row| row.could_not_run.is_none());
        made.any(|row| {
            row.attack == *attack && row.is_known(problem) && !row.problems().contains(problem)
        })
    };
    KNOWN.iter().filter(is_missing).collect()
}

/// The table.
pub fn show(rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<18} {:<5} {:<8} {:>24} {:>24} {:>5} {:>5} {:>5} {:>5}  problems",
        "attack",
        "found",
        "attacker",
        "other user p99 us",
        "same user p99 us",
        "MiB",
        "left",
        "fds",
        "objs"
    );
    for row in rows {
        let shown = |seen: &Option<Seen>, bound| {
            seen.as_ref().map_or("-".to_owned(), |seen| figures(seen, bound))
        };
        let other = shown(&row.other_user, BOUNDS[0]);
        let same = shown(&row.same_user, BOUNDS[1]);
        let attacker = match row.attacker {
            Attacker::OtherUser => "other",
            Attacker::DaemonsUser => "daemon's",
        };
        let left = row.left.unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<18} {:<5} {attacker:<8} {other:>24} {same:>24} {:>5} {:>5} {:>5} {:>5}  {}",
            row.attack,
            row.found.unwrap_or("-"),
            row.memory_charged,
            left.memory,
            left.descriptors,
            left.objects,
            notes(row).join(", ")
        );
    }
    let _ = writeln!(
        text,
        "p99 of a 64-byte WRITE: idle -> attacked (ratio); ! is more than {} x, or {} x for the \
         same user\nMiB: what the daemon itself has grown by while attacked; left: what it and \
         its workers have grown by after that",
        BOUNDS[0], BOUNDS[1]
    );
    text
}

/// What there is to say of an attack beside its figures.
fn notes(row: &Row) -> Vec<String> {
    let known = |problem: &&str| match row.is_known(problem) {
        true => format!("{problem} (known)"),
        false => (*problem).to_owned(),
    };
    let mut notes: Vec<String> = row.problems().iter().map(known).collect();
    notes.extend(row.could_not_run.iter().map(|why| format!("could not run: {why}")));
    notes.extend(row.newcomer_refused.iter().map(|why| format!("[{why}]")));
    let victims = row.other_user.iter().chain(&row.same_user);
    let lost = victims.filter_map(|seen| seen.attacked.as_ref().err());
    notes.extend(lost.map(|why| format!("[{why}]")));
    notes.extend(row.stopped.iter().map(|why| format!("(the attacker: {why})")));
    notes
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
