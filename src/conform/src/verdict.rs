//! What is said of a device.

use crate::check::{Check, Stop};
use crate::script::Evidence;
use std::fmt;

/// How a device does at one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// As the rule says.
    Pass,
    /// As the standard allows, but not as most do.
    Variation,
    /// Not as the rule says.
    Fail,
    /// It cannot be told: sometimes right and sometimes not, or the network stood in the way.
    Inconclusive,
    /// The device does not have it.
    NotSupported,
    /// It can only be seen from the device's own program.
    NeedsAgent,
    /// It can only be sent or seen through the raw port.
    NeedsRaw,
}

impl Verdict {
    /// All there are.
    pub const ALL: [Verdict; 7] = [
        Verdict::Pass,
        Verdict::Variation,
        Verdict::Fail,
        Verdict::Inconclusive,
        Verdict::NotSupported,
        Verdict::NeedsAgent,
        Verdict::NeedsRaw,
    ];

    /// Its name, as reports and lists of known results have it.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Variation => "variation",
            Verdict::Fail => "fail",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotSupported => "not-supported",
            Verdict::NeedsAgent => "needs-agent",
            Verdict::NeedsRaw => "needs-raw",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The result of one check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The check.
    pub check: &'static Check,
    /// How the device does.
    pub verdict: Verdict,
    /// What was expected, where it fails.
    pub expected: Option<String>,
    /// What was seen, or why nothing was.
    pub seen: String,
    /// How often it was tried, and how often it passed.
    pub attempts: u32,
    /// How many of them passed.
    pub passed: u32,
    /// It is inconclusive, and answers came too late at the time for it to be told.
    pub is_late: bool,
    /// The packets of the attempt that the verdict is of.
    pub evidence: Evidence,
}

impl Stop {
    /// The verdict on an attempt that ended so.
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Stop::Failed { .. } => Verdict::Fail,
            Stop::NotSupported(_) => Verdict::NotSupported,
            Stop::NeedsAgent(_) => Verdict::NeedsAgent,
            Stop::NeedsRaw(_) => Verdict::NeedsRaw,
            Stop::Inconclusive(_) => Verdict::Inconclusive,
        }
    }
}
