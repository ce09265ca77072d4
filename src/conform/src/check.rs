//! What a check is, and how it ends.

use crate::Script;
use crate::device::Unavailable;
use std::fmt;

/// One thing that a device does or does not do.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name for ever: `area/what-is-checked`.
    pub name: &'static str,
    /// The rule that it asks about, of the rule lists.
    pub rule: &'static str,
    /// What a right device does, in one sentence.
    pub says: &'static str,
    /// Whether it can disturb others on the network or harm a device that is in use: left out in
    /// the safe mode.
    pub risk: Risk,
    /// Plays it.
    pub run: fn(&mut Script<'_>) -> Outcome,
}

impl Check {
    /// A check that touches its own QPs only.
    pub const fn new(
        name: &'static str,
        rule: &'static str,
        says: &'static str,
        run: fn(&mut Script<'_>) -> Outcome,
    ) -> Check {
        Check { name, rule, says, risk: Risk::None, run }
    }

    /// The part of the name before the slash.
    pub fn area(&self) -> &'static str {
        self.name.split('/').next().unwrap_or(self.name)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What a check may do to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Risk {
    /// It touches its own QPs only.
    None,
    /// It sends what no sound sender does: malformed, forged or very many packets.
    Hostile,
}

/// How a check ends: right, or stopped by something.
pub type Outcome<T = ()> = Result<T, Stop>;

/// Why a check went no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The device does otherwise.
    Failed {
        /// What a right device does.
        expected: String,
        /// What this one did.
        seen: String,
    },
    /// The device does not have what is asked about.
    NotSupported(String),
    /// It can only be seen from the device's own program.
    NeedsAgent(String),
    /// It can only be sent or seen through the raw port.
    NeedsRaw(String),
    /// It cannot be told: the tester or the network stood in the way.
    Inconclusive(String),
}

impl Stop {
    /// The device did something else.
    pub fn failed(expected: impl Into<String>, seen: impl Into<String>) -> Stop {
        Stop::Failed { expected: expected.into(), seen: seen.into() }
    }
}

impl From<Unavailable> for Stop {
    fn from(unavailable: Unavailable) -> Stop {
        match unavailable {
            Unavailable::NeedsAgent(why) => Stop::NeedsAgent(why),
            Unavailable::NotSupported(why) => Stop::NotSupported(why),
            Unavailable::Failed(why) => Stop::Inconclusive(why),
        }
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        if error.kind() == std::io::ErrorKind::Unsupported {
            return Stop::NeedsRaw(error.to_string());
        }
        Stop::Inconclusive(format!("the port: {error}"))
    }
}

/// Fails a check unless something holds.
///
/// # Errors
/// If it does not.
pub fn ensure(holds: bool, expected: &str, seen: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Stop::failed(expected, seen())) }
}
