//! Opcodes by words of their names.

use std::str::FromStr;
use urxe_wire::Opcode;

/// The opcodes that some words stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpcodeWords(pub(super) Vec<Opcode>);

impl FromStr for OpcodeWords {
    type Err = String;

    fn from_str(words: &str) -> Result<OpcodeWords, String> {
        let sought = words.to_uppercase().replace(['_', '-'], " ");
        let sought = format!(" {} ", sought.split_whitespace().collect::<Vec<_>>().join(" "));
        let is_named = |opcode: &&Opcode| format!(" {opcode} ").contains(&sought);
        let named: Vec<Opcode> = Opcode::ALL.iter().filter(is_named).copied().collect();
        if named.is_empty() {
            let expected = "expected words of one such as 'write', 'rc send only', 'ack' or 'cnp'";
            return Err(format!("no opcode has {words:?} in its name, {expected}"));
        }
        Ok(OpcodeWords(named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &str) -> OpcodeWords {
        words.parse().unwrap()
    }

    #[test]
    fn opcodes_are_named_by_whole_words_of_their_names() {
        assert_eq!(words("rc_ack"), OpcodeWords(vec![Opcode::RC_ACK]));
        assert_eq!(words("Read  Request"), OpcodeWords(vec![Opcode::RC_READ_REQUEST]));
        assert!(words("write").0.contains(&Opcode::UC_WRITE_MIDDLE));
        assert!(words("with immediate").0.contains(&Opcode::UD_SEND_ONLY_IMM));
        for wrong in ["rit", "write send", "ackk"] {
            let error = wrong.parse::<OpcodeWords>().unwrap_err();
            assert!(error.contains(wrong) && error.contains("expected"), "{error}");
        }
    }
}
