//! What is written of a run: for people, for programs, and to be sent to a vendor.
//!
//! | module | |
//! | --- | --- |
//! | [`table`] | text: what was found by area, and what is not as it should be |
//! | [`json`], [`junit`] | the same for programs |
//! | [`html`] | one file that says everything to somebody who was not there |
//! | [`evidence`] | packets in words, and as pcapng |
//! | [`date`] | the calendar |

pub mod date;
pub mod evidence;
pub mod html;
pub mod json;
pub mod junit;
pub mod table;

use crate::verdict::{Finding, Verdict};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// A run, and what was found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The device.
    pub device: String,
    /// The tester, and how it was run.
    pub tester: String,
    /// The options that matter to who wants to have the same results.
    pub options: Vec<(String, String)>,
    /// When it began, on the clock of the calendar and on that of the packets.
    pub began: (SystemTime, Instant),
    /// How long it took.
    pub took: Duration,
    /// The results, in the order of the checks.
    pub findings: Vec<Finding>,
}

/// How many checks there are of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count([usize; Verdict::ALL.len()]);

impl Count {
    /// Of one verdict.
    pub fn of(&self, verdict: Verdict) -> usize {
        let at = Verdict::ALL.iter().position(|other| *other == verdict);
        at.map_or(0, |at| self.0[at])
    }

    /// Of all.
    pub fn all(&self) -> usize {
        self.0.iter().sum()
    }

    fn add(&mut self, verdict: Verdict) {
        if let Some(at) = Verdict::ALL.iter().position(|other| *other == verdict) {
            self.0[at] += 1;
        }
    }
}

impl Report {
    /// Counts the results.
    pub fn count(&self) -> Count {
        let mut count = Count::default();
        self.findings.iter().for_each(|finding| count.add(finding.verdict));
        count
    }

    /// Counts them by area.
    pub fn areas(&self) -> BTreeMap<&'static str, Count> {
        let mut areas = BTreeMap::<_, Count>::new();
        for finding in &self.findings {
            areas.entry(finding.check.area()).or_default().add(finding.verdict);
        }
        areas
    }
}

impl Verdict {
    /// Whether a device is right, as far as that could be told.
    pub fn is_good(self) -> bool {
        !matches!(self, Verdict::Fail | Verdict::Inconclusive)
    }

    /// Whether the device has not been asked.
    pub fn is_not_asked(self) -> bool {
        matches!(self, Verdict::NotSupported | Verdict::NeedsAgent | Verdict::NeedsRaw)
    }
}

#[cfg(test)]
mod tests;
