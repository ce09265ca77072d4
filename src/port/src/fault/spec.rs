//! The language of `--fault`.

use super::rule::{Packets, Rule};
use crate::{Chance, Impairment};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// What to do to datagrams.
///
/// Written as a list with commas: `drop=1%,delay=100us..2ms,drop:write-last:3,seed=7,dir=tx`.
///
/// | part | meaning |
/// | --- | --- |
/// | `drop=1%` | loses one in a hundred |
/// | `dup=0.5%` | lets it arrive twice |
/// | `reorder=2%` | holds it back so that later ones overtake it |
/// | `corrupt=0.1%` | flips a bit of what the ICRC covers, or of the ICRC, after it was computed |
/// | `delay=2ms`, `delay=100us..2ms` | holds every one back that long, in order (at most 256 MiB) |
/// | `drop:write-last:3` | loses the third WRITE LAST; likewise `dup`, `reorder`, `corrupt` |
/// | `drop:write-last:3-5`, `drop:write-last:3-` | third to fifth, or from the third on |
/// | `seed=7` | what chance is made of; 0 if not given |
/// | `dir=tx`, `rx`, `both` | to what is sent, what is received, or both, as if not given |
///
/// A packet's name in a rule is its opcode's: `write-last`, `send-only-immediate`, `ack`. It goes
/// for all transports, unless one is named first (`uc-write-last`). `send`, `write` and
/// `read-response` are those of every position, and `any` is every datagram. Each direction counts
/// for itself.
///
/// A long WRITE of urxe's over RC is WRITE ONLYs, unless it is told to send FIRST, MIDDLEs and LAST
/// (`urxed --wire strict`); `write` counts its packets in both forms. Likewise the answers to READs
/// are READ RESPONSE ONLYs, once two of urxe have agreed on it; `read-response` counts them all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSpec {
    /// What happens by chance.
    pub impairment: Impairment,
    /// What happens to certain packets.
    pub rules: Vec<Rule>,
    /// What chance is made of.
    pub seed: u64,
    /// Which way datagrams have to go to be concerned.
    pub direction: Direction,
}

/// Which way datagrams have to go to be concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// What is sent.
    Tx,
    /// What is received.
    Rx,
    /// Both.
    #[default]
    Both,
}

/// What is done to a packet that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It is held back, and overtaken.
    Reorder,
    /// One bit is flipped.
    Corrupt,
}

/// A part of a `--fault` specification that does not say anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultSpecError {
    /// Neither a key that exists nor a rule.
    #[error(
        "fault `{part}`: not known; allowed are drop=1%, dup=1%, reorder=1%, corrupt=1%, \
         delay=100us..2ms, seed=7, dir=tx|rx|both, and rules such as drop:write-last:3"
    )]
    Unknown {
        /// What was given.
        part: String,
    },
    /// A chance that is none.
    #[error("fault `{part}`: a chance is a percentage from 0% to 100%, such as 1% or 0.05%")]
    Chance {
        /// What was given.
        part: String,
    },
    /// A delay that is none.
    #[error(
        "fault `{part}`: a delay is one duration, or the least and the most as in 100us..2ms; \
         units are ns, us, ms and s, and the most is {}s",
        DELAY_MAX.as_secs()
    )]
    Delay {
        /// What was given.
        part: String,
    },
    /// A seed that is none.
    #[error("fault `{part}`: a seed is a whole number from 0 to {}", u64::MAX)]
    Seed {
        /// What was given.
        part: String,
    },
    /// A direction that is none.
    #[error("fault `{part}`: the direction is tx, rx or both")]
    Direction {
        /// What was given.
        part: String,
    },
    /// A rule without its three fields, or with another verb.
    #[error(
        "fault `{part}`: a rule is ACTION:PACKET:COUNT as in drop:write-last:3, and the action is \
         drop, dup, reorder or corrupt"
    )]
    Rule {
        /// What was given.
        part: String,
    },
    /// A rule for packets that do not exist.
    #[error("fault `{part}`: no such packet; allowed are {}", Packets::names().join(", "))]
    Packet {
        /// What was given.
        part: String,
    },
    /// A rule for a number of packet that does not exist.
    #[error(
        "fault `{part}`: which packet is a number from 1 on, as in 3 (the third), 3-5 (third to \
         fifth) or 3- (from the third on)"
    )]
    Count {
        /// What was given.
        part: String,
    },
}

/// The longest delay: longer than any timer of a QP, short enough to add to any time.
const DELAY_MAX: Duration = Duration::from_secs(60);

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let mut spec = FaultSpec::default();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                Some((key, value)) => spec.set(part, key, value)?,
                None => spec.rules.push(parse_rule(part)?),
            }
        }
        Ok(spec)
    }
}

impl FaultSpec {
    fn set(&mut self, part: &str, key: &str, value: &str) -> Result<(), FaultSpecError> {
        let part = || part.to_owned();
        let chance = || parse_chance(value).ok_or_else(|| FaultSpecError::Chance { part: part() });
        match key {
            "drop" => self.impairment.drop = chance()?,
            "dup" => self.impairment.duplicate = chance()?,
            "reorder" => self.impairment.reorder = chance()?,
            "corrupt" => self.impairment.corrupt = chance()?,
            "delay" => {
                self.impairment.delay =
                    parse_delay(value).ok_or_else(|| FaultSpecError::Delay { part: part() })?;
            }
            "seed" => {
                self.seed = value.parse().map_err(|_| FaultSpecError::Seed { part: part() })?;
            }
            "dir" => {
                self.direction = match value {
                    "tx" => Direction::Tx,
                    "rx" => Direction::Rx,
                    "both" => Direction::Both,
                    _ => return Err(FaultSpecError::Direction { part: part() }),
                };
            }
            _ => return Err(FaultSpecError::Unknown { part: part() }),
        }
        Ok(())
    }
}

fn parse_rule(text: &str) -> Result<Rule, FaultSpecError> {
    let part = || text.to_owned();
    let fields: Vec<&str> = text.split(':').collect();
    let [action, packet, count] = fields[..] else {
        return Err(match fields.len() {
            1 => FaultSpecError::Unknown { part: part() },
            _ => FaultSpecError::Rule { part: part() },
        });
    };
    let action = match action {
        "drop" => Action::Drop,
        "dup" => Action::Duplicate,
        "reorder" => Action::Reorder,
        "corrupt" => Action::Corrupt,
        _ => return Err(FaultSpecError::Rule { part: part() }),
    };
    let packets = Packets::named(packet).ok_or_else(|| FaultSpecError::Packet { part: part() })?;
    let which = parse_count(count).ok_or_else(|| FaultSpecError::Count { part: part() })?;
    Ok(Rule { action, packets, which })
}

/// `1%`.
fn parse_chance(text: &str) -> Option<Chance> {
    Chance::from_percent(text.strip_suffix('%')?.parse().ok()?)
}

/// `2ms` or `100us..2ms`.
fn parse_delay(text: &str) -> Option<RangeInclusive<Duration>> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let delay = parse_duration(min)?..=parse_duration(max)?;
    (!delay.is_empty()).then_some(delay)
}

/// `100us`, `1.5ms`.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
    (duration <= DELAY_MAX).then_some(duration)
}

/// `3`, `3-5` or `3-`.
fn parse_count(text: &str) -> Option<RangeInclusive<u64>> {
    let which = match text.split_once('-') {
        None => text.parse().ok()?..=text.parse().ok()?,
        Some((first, "")) => first.parse().ok()?..=u64::MAX,
        Some((first, last)) => first.parse().ok()?..=last.parse().ok()?,
    };
    (*which.start() > 0 && !which.is_empty()).then_some(which)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> FaultSpec {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_part_sets_its_own_field() {
        let spec = parse(
            "drop=1%,dup=0.5%, reorder=2%,corrupt=0.1%,delay=100us..2ms,seed=7,dir=rx,\
             drop:write-last:3",
        );
        let impairment = Impairment {
            drop: Chance::percent(1.0),
            duplicate: Chance::percent(0.5),
            reorder: Chance::percent(2.0),
            corrupt: Chance::percent(0.1),
            delay: Duration::from_micros(100)..=Duration::from_millis(2),
        };
        let packets = Packets::named("write-last").unwrap();
        let rules = vec![Rule { action: Action::Drop, packets, which: 3..=3 }];
        assert_eq!(spec, FaultSpec { impairment, rules, seed: 7, direction: Direction::Rx });
    }

    #[test]
    fn a_rule_names_one_packet_some_or_all_from_one_on() {
        let which = |text| parse(text).rules[0].which.clone();
        assert_eq!(which("dup:ack:1"), 1..=1);
        assert_eq!(which("dup:ack:2-4"), 2..=4);
        assert_eq!(which("dup:ack:5-"), 5..=u64::MAX);
    }

    #[test]
    fn a_single_delay_is_the_least_and_the_most() {
        let delay = |text| parse(text).impairment.delay;
        assert_eq!(delay("delay=1.5ms"), Duration::from_micros(1500)..=Duration::from_micros(1500));
        assert_eq!(delay("delay=0s..250ns"), Duration::ZERO..=Duration::from_nanos(250));
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        for (text, named, allowed) in [
            ("", "``", "drop=1%"),
            ("lose=1%", "`lose=1%`", "drop=1%"),
            ("drop=1%,drop", "`drop`", "dir=tx|rx|both"),
            ("drop=1", "`drop=1`", "percentage"),
            ("drop=101%", "`drop=101%`", "percentage"),
            ("drop=-1%", "`drop=-1%`", "percentage"),
            ("drop=NaN%", "`drop=NaN%`", "percentage"),
            ("delay=5", "`delay=5`", "units are ns, us, ms and s"),
            ("delay=2ms..1ms", "`delay=2ms..1ms`", "least and the most"),
            ("delay=61s", "`delay=61s`", "60s"),
            ("delay=-1ms", "`delay=-1ms`", "duration"),
            ("seed=x", "`seed=x`", "whole number"),
            ("dir=up", "`dir=up`", "tx, rx or both"),
            ("drop:ack", "`drop:ack`", "ACTION:PACKET:COUNT"),
            ("lose:ack:1", "`lose:ack:1`", "drop, dup, reorder or corrupt"),
            ("drop:nack:1", "`drop:nack:1`", "write-last"),
            ("drop:ack:0", "`drop:ack:0`", "from 1 on"),
            ("drop:ack:5-3", "`drop:ack:5-3`", "from 1 on"),
            ("drop:ack:-", "`drop:ack:-`", "from 1 on"),
        ] {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
            assert!(error.contains(allowed), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(
            text in "(drop|dup|delay|seed|dir)?[=:]?[0-9.a-z%:-]{0,9}(,|=|:)?.{0,9}",
        ) {
            let _ = text.parse::<FaultSpec>();
        }
    }
}
