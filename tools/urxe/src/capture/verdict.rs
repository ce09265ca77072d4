//! What the device made of a packet.

use urxe_shm::control::CounterInfo;

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

    fn said_of(counted: &[Counter]) -> String {
        let info = |counter: &Counter| CounterInfo {
            name: counter.name().into(),
            meaning: counter.meaning().into(),
        };
        let counters: Vec<CounterInfo> = Counter::ALL.iter().map(info).collect();
        let place = |counter| Counter::ALL.iter().position(|known| known == counter).unwrap() as u8;
        let places: Vec<u8> = counted.iter().map(place).collect();
        verdict(&counters, &places)
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
        assert!(WORDS.iter().all(|(name, _)| is_counter(name)));
        assert!(NOTHING_SPECIAL.iter().all(|name| is_counter(name)));
    }
}
