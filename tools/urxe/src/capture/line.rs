//! A packet as a line.

use std::fmt;
use std::time::Duration;
use urxe_port::capture::{Content, Filter, Frame};
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Flow, Headers, Outer, Packet, ParseError};

/// Makes lines of the frames that a filter takes.
pub(super) struct Lines {
    filter: Filter,
    checker: Checker,
}

impl Lines {
    pub(super) fn new(filter: Filter) -> Lines {
        Lines { filter, checker: Checker::new() }
    }

    /// The line of a frame; `None` if it is not to be shown.
    pub(super) fn line(&mut self, frame: &Frame<'_>) -> Option<String> {
        let time = TimeOfDay(frame.time);
        match frame.content {
            Content::Roce { outer, bytes } => {
                let shown = self.datagram(&outer, bytes)?;
                let Flow { src, dst, .. } = outer.flow;
                Some(format!("{time} {src} > {dst} {shown}"))
            }
            Content::Unusable(reason) => {
                let may_be_shown = self.filter.asks_for_no_header() && self.filter.peers.is_empty();
                may_be_shown.then(|| format!("{time} frame {}: {reason}", frame.number))
            }
            Content::Other => None,
        }
    }

    fn datagram(&mut self, outer: &Outer, bytes: &[u8]) -> Option<String> {
        let Packet { headers, payload } = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                let may_be_shown =
                    self.filter.asks_for_no_header() && self.filter.has_addresses(&outer.flow);
                return may_be_shown.then(|| not_understood(bytes.len(), error));
            }
        };
        if !self.filter.takes(&outer.flow, &headers, None) {
            return None;
        }
        let mut line = shown(&headers, payload.len());
        if self.checker.check(outer, bytes) == Verdict::Bad {
            line += ", ICRC wrong";
        }
        Some(line)
    }
}

/// A packet of so many bytes, of which the first are there.
pub(super) fn described(bytes: &[u8], length: usize) -> String {
    let mut whole = bytes.to_vec();
    whole.resize(length, 0);
    match Packet::parse(&whole) {
        Ok(Packet { headers, payload }) => shown(&headers, payload.len()),
        Err(error) => not_understood(length, error),
    }
}

fn shown(headers: &Headers, payload: usize) -> String {
    match payload {
        0 => headers.to_string(),
        payload => format!("{headers} payload {payload}"),
    }
}

fn not_understood(length: usize, error: ParseError) -> String {
    format!("{length} bytes, not understood: {error}")
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
