//! What is reported: a line for each step as soon as it is known, and a sentence at the end.

use crate::error::Error;
use crate::output;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use urxe_verbs::PathMtu;

/// A part of the way, in the order in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Part {
    Name,
    Route,
    Neighbour,
    Port,
    PathMtu,
    Device,
    Answers,
    Icrc,
    TrafficClass,
}

impl Part {
    const ALL: [Part; 9] = [
        Part::Name,
        Part::Route,
        Part::Neighbour,
        Part::Port,
        Part::PathMtu,
        Part::Device,
        Part::Answers,
        Part::Icrc,
        Part::TrafficClass,
    ];

    fn name(self) -> &'static str {
        match self {
            Part::Name => "name",
            Part::Route => "route",
            Part::Neighbour => "neighbour",
            Part::Port => "port",
            Part::PathMtu => "path-mtu",
            Part::Device => "device",
            Part::Answers => "answers",
            Part::Icrc => "icrc",
            Part::TrafficClass => "traffic-class",
        }
    }
}

/// How it is with a part of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    Ok,
    /// It works, but not well.
    Warning,
    Failed,
    /// It cannot be told.
    Unknown,
    /// It was not looked at, because a part before it failed.
    LeftOut,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Failed => "failed",
            State::Unknown => "unknown",
            State::LeftOut => "left out",
        }
    }
}

/// What was found at a part of the way, and what the next parts need of it: nothing if it failed.
pub(super) type Found<T> = (Finding, Option<T>);

/// What is said of a part of the way.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) state: State,
    /// A sentence without its end.
    pub(super) says: String,
    /// What usually causes it, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
    #[serde(flatten)]
    pub(super) facts: Option<Facts>,
}

/// The same for programs; times in microseconds.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Facts {
    Name {
        addresses: Vec<IpAddr>,
    },
    Route {
        source: IpAddr,
        interface: Option<String>,
        interface_mtu: Option<u32>,
        gateway: Option<IpAddr>,
    },
    Neighbour {
        neighbour: IpAddr,
        link_address: Option<String>,
    },
    PathMtu {
        largest_packet: u32,
        path_mtu: Option<PathMtu>,
        /// ICMP echoes came back, by which long packets were tried.
        echoed: bool,
    },
    Device {
        device: String,
        address: IpAddr,
        /// Of the daemon that has it.
        socket: PathBuf,
        /// It was made for this, and ends with it.
        own: bool,
    },
    Answers(Answers),
    Icrc {
        wrong: u64,
    },
    TrafficClass {
        class_sent: u8,
        /// Of the echo that came back.
        class_back: Option<u8>,
    },
}

/// Questions to the peer's connection manager, and its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Answers {
    pub(super) asked: u64,
    pub(super) answered: u64,
    /// Messages that the device sent again because no answer came, of all its programs.
    pub(super) repeated: u64,
    pub(super) min_us: f64,
    pub(super) mean_us: f64,
    pub(super) max_us: f64,
}

impl Finding {
    pub(super) fn ok(says: impl Into<String>) -> Finding {
        Finding { state: State::Ok, says: says.into(), advice: None, facts: None }
    }

    pub(super) fn failed(says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { state: State::Failed, advice: Some(advice.into()), ..Finding::ok(says) }
    }

    pub(super) fn warning(says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { state: State::Warning, ..Finding::failed(says, advice) }
    }

    pub(super) fn unknown(says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { state: State::Unknown, ..Finding::failed(says, advice) }
    }

    pub(super) fn with(self, facts: Facts) -> Finding {
        Finding { facts: Some(facts), ..self }
    }
}

/// A part of the way and what was found there.
#[derive(Debug, Serialize)]
struct Step {
    part: Part,
    #[serde(flatten)]
    finding: Finding,
    /// How long it took to find out.
    took_ms: f64,
}

impl Step {
    fn new(part: Part, finding: Finding, took: Duration) -> Step {
        Step { part, finding, took_ms: took.as_micros() as f64 / 1e3 }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { state, says, advice, .. } = &self.finding;
        writeln!(f, "{:<8} {:<13} {says}", state.name(), self.part.name())?;
        match advice {
            Some(advice) => writeln!(f, "{:<22} -> {advice}", ""),
            None => Ok(()),
        }
    }
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    host: String,
    /// Whether the peer's device answered, and nothing on the way failed.
    pub(super) reached: bool,
    steps: Vec<Step>,
    summary: String,
    /// Steps are printed as they are taken.
    #[serde(skip)]
    as_text: bool,
}

impl Report {
    pub(super) fn new(host: &str, as_json: bool) -> Report {
        Report {
            host: host.to_owned(),
            reached: false,
            steps: Vec::new(),
            summary: String::new(),
            as_text: !as_json,
        }
    }

    /// Looks at a part of the way. Returns what the next parts need of it: nothing if it failed.
    pub(super) fn look<T>(
        &mut self,
        part: Part,
        look: impl FnOnce() -> Found<T>,
    ) -> Result<Option<T>, Error> {
        let start = Instant::now();
        let (finding, found) = look();
        let step = Step::new(part, finding, start.elapsed());
        if self.as_text {
            output::even_if_unread(output::text(&step))?;
        }
        self.steps.push(step);
        Ok(found)
    }

    /// Says what was not looked at, and what came of it all.
    pub(super) fn end(&mut self) {
        let failed = self.steps.iter().find(|step| step.finding.state == State::Failed);
        let failed = failed.map(|step| step.part);
        if let Some(part) = failed {
            let left_out = &Part::ALL[self.steps.len()..];
            let finding = || Finding {
                state: State::LeftOut,
                ..Finding::ok(format!("the way ends before, at {}", part.name()))
            };
            let steps = left_out.iter().map(|part| Step::new(*part, finding(), Duration::ZERO));
            self.steps.extend(steps);
        }
        self.reached = failed.is_none();
        self.summary = match failed {
            Some(part) => format!("The way to {} ends at {}.", self.host, part.name()),
            None => format!("RoCEv2 works to {}{}.", self.host, self.figures()),
        };
    }

    /// Prints what came of it all, or all of it for a program.
    pub(super) fn print_end(&self) -> Result<(), Error> {
        output::even_if_unread(self.print_rest())
    }

    fn print_rest(&self) -> Result<(), Error> {
        if !self.as_text {
            return output::json(self);
        }
        let left_out = self.steps.iter().filter(|step| step.finding.state == State::LeftOut);
        let left_out: Vec<&str> = left_out.map(|step| step.part.name()).collect();
        if !left_out.is_empty() {
            output::text(format_args!("left out {}\n", left_out.join(", ")))?;
        }
        output::text(format_args!("\n{}\n", self.summary))
    }

    /// What a user wants to know of a way that works.
    fn figures(&self) -> String {
        let facts = self.steps.iter().filter_map(|step| step.finding.facts.as_ref());
        let figures = facts.map(|facts| match facts {
            Facts::PathMtu { path_mtu: Some(path_mtu), .. } => format!(", path MTU {path_mtu}"),
            Facts::Answers(Answers { asked, answered, .. }) => {
                format!(", {answered} of {asked} questions answered")
            }
            _ => String::new(),
        });
        figures.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_behind_a_failure_are_left_out_and_said_to_be() {
        let mut report = Report::new("far", true);
        report.look(Part::Name, || (Finding::ok("is 10.0.0.1"), Some(()))).unwrap();
        let failure = || (Finding::failed("there is none", "make one"), None::<()>);
        assert_eq!(report.look(Part::Route, failure).unwrap(), None);
        report.end();
        let states: Vec<State> = report.steps.iter().map(|step| step.finding.state).collect();
        assert_eq!(states[..2], [State::Ok, State::Failed]);
        assert_eq!(states[2..], [State::LeftOut; 7]);
        assert!(!report.reached);
        assert_eq!(report.summary, "The way to far ends at route.");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["steps"][1]["state"], "failed");
        assert_eq!(json["steps"][1]["advice"], "make one");
    }

    #[test]
    fn parts_that_cannot_be_told_or_work_badly_are_no_failures() {
        let mut report = Report::new("far", true);
        report.look(Part::Name, || (Finding::unknown("not seen", "look"), Some(()))).unwrap();
        report.look(Part::Route, || (Finding::warning("lossy", "look"), Some(()))).unwrap();
        let path_mtu = Some(PathMtu::Mtu1024);
        let facts = Facts::PathMtu { largest_packet: 1500, path_mtu, echoed: true };
        let finding = Finding::ok("fits").with(facts);
        report.look(Part::PathMtu, || (finding, Some(()))).unwrap();
        report.end();
        assert!(report.reached);
        assert_eq!(report.summary, "RoCEv2 works to far, path MTU 1024.");
    }

    #[test]
    fn parts_have_the_names_that_programs_read() {
        for part in Part::ALL {
            assert_eq!(serde_json::to_value(part).unwrap(), part.name());
        }
    }
}
