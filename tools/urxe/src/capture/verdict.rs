//! What the device made of a packet that came, and why it sent one.

use std::fmt;
use urxe_shm::control::CounterInfo;
use urxe_wire::{Body, Response, Syndrome};

/// Words for what is counted of packets often; what is not here has the name of its counter.
const WORDS: &[(&str, &str)] = &[
    ("duplicate_requests", "duplicate"),
    ("out_of_sequence", "out of order"),
    ("uc_gaps", "out of order"),
    ("early_kept", "kept early"),
];

/// What is counted of any packet of its kind.
const NOTHING_SPECIAL: &[&str] = &["mads_received", "cnps_received", "selective_acks_received"];

/// Says what became of a packet while which these counters were counted, by their places.
pub(super) fn verdict(counters: &[CounterInfo], counted: &[u8]) -> String {
    let counted = counted.iter().filter_map(|&place| counters.get(usize::from(place)));
    let told = counted.filter(|counter| !NOTHING_SPECIAL.contains(&counter.name.as_str()));
    let words: Vec<String> = told.map(word).collect();
    if words.is_empty() { "accepted".into() } else { words.join(", ") }
}

/// The counter of packets that were sent again.
const REPEATED: &str = "retransmitted_packets";

/// What made the requester send again, by what was counted then.
const REASONS: &[(&str, &str)] = &[
    ("ack_timeouts", "ACK timeout"),
    ("probes", "answer late"),
    ("sequence_naks_received", "sequence NAK"),
    ("selective_acks_received", "selective ACK"),
    ("rnr_naks_received", "RNR NAK"),
    ("implied_naks", "answer missing"),
];

/// Why a packet was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// For the first time: a request, or something that is not understood.
    New,
    /// It was sent before, and the requester has learned that it must be sent again: how, in words.
    Again(Option<String>),
    /// What a READ or atomic asked for, or that another request of its kind was done.
    Answer,
    /// It says up to where requests were carried out.
    Acknowledgement,
    /// A NAK.
    Refusal,
    /// What came has met congestion.
    Notification,
}

impl Why {
    /// Why this was sent, while which these counters were counted, by their places.
    pub(super) fn of(body: Option<&Body>, counters: &[CounterInfo], counted: &[u8]) -> Why {
        let names = || names(counters, counted);
        match body {
            _ if names().any(|name| name == REPEATED) => {
                Why::Again(names().find(|&name| name != REPEATED).map(|name| {
                    let known = REASONS.iter().find(|(counter, _)| *counter == name);
                    known.map_or(name, |(_, reason)| reason).to_owned()
                }))
            }
            Some(Body::Cnp) => Why::Notification,
            Some(Body::RcResponse(Response::Ack(aeth) | Response::SelectiveAck { aeth })) => {
                match aeth.syndrome {
                    Syndrome::Ack { .. } => Why::Acknowledgement,
                    _ => Why::Refusal,
                }
            }
            Some(Body::RcResponse(_)) => Why::Answer,
            _ => Why::New,
        }
    }

    /// Whether it was sent before.
    pub(super) fn is_again(&self) -> bool {
        matches!(self, Why::Again(_))
    }

    /// In one word.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Why::New => "new",
            Why::Again(_) => "again",
            Why::Answer => "answer",
            Why::Acknowledgement => "acknowledgement",
            Why::Refusal => "refusal",
            Why::Notification => "notification",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Why::Again(Some(reason)) => write!(f, " ({reason})"),
            _ => Ok(()),
        }
    }
}

/// The names of counters by their places.
pub(super) fn names<'a>(
    counters: &'a [CounterInfo],
    counted: &[u8],
) -> impl Iterator<Item = &'a str> {
    let counted = counted.iter().filter_map(|&place| counters.get(usize::from(place)));
    counted.map(|counter| counter.name.as_str())
}

fn word(counter: &CounterInfo) -> String {
    let name = &counter.name;
    match WORDS.iter().find(|(known, _)| known == name) {
        Some((_, word)) => (*word).into(),
        None if counter.meaning.starts_with("Dropped:") => format!("dropped ({name})"),
        None if name.ends_with("_naks_sent") => format!("NAK sent ({name})"),
        None => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_engine::Counter;
    use urxe_types::Msn;
    use urxe_wire::{Aeth, Opcode};

    fn counters() -> Vec<CounterInfo> {
        let info = |counter: &Counter| CounterInfo {
            name: counter.name().into(),
            meaning: counter.meaning().into(),
        };
        Counter::ALL.iter().map(info).collect()
    }

    fn places(counted: &[Counter]) -> Vec<u8> {
        let place = |counter| Counter::ALL.iter().position(|known| known == counter).unwrap() as u8;
        counted.iter().map(place).collect()
    }

    fn said_of(counted: &[Counter]) -> String {
        verdict(&counters(), &places(counted))
    }

    #[test]
    fn why_a_packet_was_sent_is_said_in_a_word_and_of_one_sent_again_what_made_it() {
        let zeroed = |opcode| Body::zeroed(opcode);
        let why = |body: Body, counted: &[Counter]| {
            Why::of(Some(&body), &counters(), &places(counted)).to_string()
        };
        let write = zeroed(Opcode::RC_WRITE_ONLY);
        assert_eq!(why(write, &[]), "new");
        let after = |counter| why(write, &[Counter::RetransmittedPackets, counter]);
        assert_eq!(after(Counter::SequenceNaksReceived), "again (sequence NAK)");
        assert_eq!(after(Counter::ImpliedNaks), "again (answer missing)");
        assert_eq!(after(Counter::GhostResponses), "again (ghost_responses)");
        assert_eq!(why(write, &[Counter::RetransmittedPackets]), "again");
        assert_eq!(why(zeroed(Opcode::RC_ACK), &[]), "acknowledgement");
        assert_eq!(why(zeroed(Opcode::RC_READ_RESPONSE_ONLY), &[]), "answer");
        assert_eq!(why(zeroed(Opcode::CNP), &[]), "notification");
        let aeth = Aeth { syndrome: Syndrome::from_byte(0x62), msn: Msn::new(0) };
        assert_eq!(why(Body::RcResponse(Response::Ack(aeth)), &[]), "refusal");
        assert_eq!(Why::of(None, &[], &[7]), Why::New);
    }

    #[test]
    fn a_packets_fate_is_said_in_words_or_by_the_counter() {
        assert_eq!(said_of(&[]), "accepted");
        assert_eq!(said_of(&[Counter::MadsReceived]), "accepted");
        assert_eq!(said_of(&[Counter::DuplicateRequests]), "duplicate");
        let early = [Counter::OutOfSequence, Counter::EarlyKept];
        assert_eq!(said_of(&early), "out of order, kept early");
        assert_eq!(said_of(&[Counter::DropBadIcrc]), "dropped (drop_bad_icrc)");
        let refused = said_of(&[Counter::RemoteAccessNaksSent]);
        assert_eq!(refused, "NAK sent (remote_access_naks_sent)");
        assert_eq!(verdict(&[], &[7]), "accepted", "a counter that nobody has named");
    }

    #[test]
    fn every_word_is_of_a_counter() {
        let is_counter = |name: &str| Counter::ALL.iter().any(|counter| counter.name() == name);
        assert!(WORDS.iter().chain(REASONS).all(|(name, _)| is_counter(name)));
        assert!(is_counter(REPEATED));
        assert!(NOTHING_SPECIAL.iter().all(|name| is_counter(name)));
    }
}
