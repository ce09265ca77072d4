//! What is shown of a frame of a file, and how as a line.

use super::decoded::Decoded;
use std::fmt;
use std::time::Duration;
use urxe_port::capture::{Content, Filter, Frame, Unusable};
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Flow, Outer, Packet};

/// Takes the frames of a file that a filter takes.
pub(super) struct Frames {
    filter: Filter,
    checker: Checker,
}

/// What is to be shown of a frame.
pub(super) enum FilePacket<'a> {
    /// A packet, and whether its ICRC is right.
    Packet { outer: &'a Outer, length: usize, decoded: Decoded, icrc: Verdict },
    /// Why it cannot be used.
    Unusable(Unusable),
}

impl Frames {
    pub(super) fn new(filter: Filter) -> Frames {
        Frames { filter, checker: Checker::new() }
    }

    /// What is to be shown of a frame, if anything.
    pub(super) fn shown<'a>(&mut self, frame: &'a Frame<'_>) -> Option<FilePacket<'a>> {
        match &frame.content {
            Content::Roce { outer, bytes } => {
                let parsed = Packet::parse(bytes);
                let may_be_shown = match &parsed {
                    Ok(packet) => self.filter.takes(&outer.flow, &packet.headers, None),
                    Err(_) => {
                        self.filter.asks_for_no_header() && self.filter.has_addresses(&outer.flow)
                    }
                };
                let icrc = match &parsed {
                    Ok(_) => self.checker.check(outer, bytes),
                    Err(_) => Verdict::Exact,
                };
                let (length, decoded) = (bytes.len(), Decoded::of(parsed, bytes.len()));
                may_be_shown.then_some(FilePacket::Packet { outer, length, decoded, icrc })
            }
            Content::Unusable(reason) => {
                let may_be_shown = self.filter.asks_for_no_header() && self.filter.peers.is_empty();
                may_be_shown.then_some(FilePacket::Unusable(*reason))
            }
            Content::Other => None,
        }
    }
}

/// The line of a frame.
pub(super) fn line(frame: &Frame<'_>, shown: &FilePacket<'_>) -> String {
    let time = TimeOfDay(frame.time);
    match shown {
        FilePacket::Packet { outer, decoded, icrc, .. } => {
            let Flow { src, dst, .. } = outer.flow;
            let wrong = if *icrc == Verdict::Bad { ", ICRC wrong" } else { "" };
            format!("{time} {src} > {dst} {decoded}{wrong}")
        }
        FilePacket::Unusable(reason) => format!("{time} frame {}: {reason}", frame.number),
    }
}

/// The time of day, UTC, of a time since 1970, to the microsecond.
pub(super) struct TimeOfDay(pub(super) Duration);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{hour:02}:{minute:02}:{second:02}.{:06}", self.0.subsec_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_the_day() {
        let time = Duration::from_secs(5 * 86_400 + 3 * 3600 + 4 * 60 + 5);
        assert_eq!(TimeOfDay(time + Duration::from_nanos(6_999)).to_string(), "03:04:05.000006");
    }
}
