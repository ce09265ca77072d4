//! Rules: faults for certain packets.

use super::spec::Action;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use urxe_wire::{Opcode, Transport};

/// A fault for certain packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What is done to them.
    pub action: Action,
    /// Which kinds of packets count.
    pub packets: Packets,
    /// Which ones of those, counted from 1.
    pub which: RangeInclusive<u64>,
}

/// Kinds of packets: a set of BTH opcodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// One bit for each value of the opcode byte.
    opcodes: [u64; 4],
}

impl Packets {
    /// Every datagram, whatever its opcode is.
    const ANY: &str = "any";

    /// Those of a name, as [`FaultSpec`](super::FaultSpec) explains it; `None`: nothing has it.
    pub fn named(name: &str) -> Option<Packets> {
        if name == Packets::ANY {
            return Some(Packets { opcodes: [u64::MAX; 4] });
        }
        let mut packets = Packets { opcodes: [0; 4] };
        for opcode in Opcode::ALL.iter().filter(|opcode| names_of(**opcode).contains(name)) {
            packets.opcodes[usize::from(opcode.byte() / 64)] |= 1 << (opcode.byte() % 64);
        }
        (packets.opcodes != [0; 4]).then_some(packets)
    }

    /// The names that there are, but for those with a transport in front.
    pub fn names() -> Vec<String> {
        let names: BTreeSet<String> = Opcode::ALL
            .iter()
            .filter(|opcode| opcode.transport() != Transport::Uc)
            .flat_map(|opcode| names_of(*opcode))
            .filter(|name| !name.starts_with("rc-") && !name.starts_with("ud-"))
            .collect();
        std::iter::once(Packets::ANY.to_owned()).chain(names).collect()
    }

    /// Whether packets of this opcode are among them.
    pub fn include(&self, opcode: Opcode) -> bool {
        self.contain(&[opcode.byte()])
    }

    /// Whether a datagram is one of them.
    pub(super) fn contain(&self, datagram: &[u8]) -> bool {
        let opcode = datagram.first().copied().unwrap_or(0);
        self.opcodes[usize::from(opcode / 64)] >> (opcode % 64) & 1 == 1
    }
}

/// All names of an opcode: with and without its transport, and that of its family.
fn names_of(opcode: Opcode) -> BTreeSet<String> {
    // "RC WRITE LAST WITH IMMEDIATE" is rc-write-last-immediate.
    let full = opcode.to_string().to_lowercase().replace(" with ", "-").replace(' ', "-");
    let transport = format!("{}-", opcode.transport()).to_lowercase();
    let short = full.strip_prefix(&transport).unwrap_or(&full).to_owned();
    let families = ["send", "write", "read-response"];
    let family = families.into_iter().find(|family| short.starts_with(family)).unwrap_or(&short);
    BTreeSet::from([format!("{transport}{family}"), family.to_owned(), full, short])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opcodes(name: &str) -> Vec<Opcode> {
        let packets = Packets::named(name).unwrap();
        Opcode::ALL.iter().copied().filter(|opcode| packets.include(*opcode)).collect()
    }

    #[test]
    fn a_name_is_its_opcode_over_all_transports() {
        assert_eq!(opcodes("write-last"), [Opcode::RC_WRITE_LAST, Opcode::UC_WRITE_LAST]);
        assert_eq!(opcodes("uc-write-last"), [Opcode::UC_WRITE_LAST]);
        assert_eq!(opcodes("ack"), [Opcode::RC_ACK]);
        assert_eq!(opcodes("cnp"), [Opcode::CNP]);
        assert_eq!(opcodes("rc-send-last-invalidate"), [Opcode::RC_SEND_LAST_INV]);
        assert_eq!(opcodes("ud-send"), [Opcode::UD_SEND_ONLY, Opcode::UD_SEND_ONLY_IMM]);
        assert_eq!(opcodes("read-response").len(), 4);
        assert_eq!(opcodes("any"), Opcode::ALL);
    }

    #[test]
    fn every_opcode_has_a_name_of_its_own_and_every_name_listed_exists() {
        for opcode in Opcode::ALL {
            let alone = |name: &String| opcodes(name) == [*opcode];
            assert!(names_of(*opcode).iter().any(alone), "{opcode:?}");
        }
        assert!(Packets::names().iter().all(|name| Packets::named(name).is_some()));
        assert_eq!(Packets::named("rc-"), None);
    }
}
