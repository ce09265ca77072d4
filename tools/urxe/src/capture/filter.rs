//! Which packets are shown.

use std::net::IpAddr;
use std::str::FromStr;
use urxe_types::Qpn;
use urxe_wire::{Body, Flow, Headers, Opcode};

/// What a packet must have to be shown: one of each list that is not empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) qps: Vec<u32>,
    pub(super) peers: Vec<IpAddr>,
    pub(super) opcodes: Vec<OpcodeWords>,
}

/// The opcodes that some words stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpcodeWords(Vec<Opcode>);

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

impl Filter {
    /// Whether something between these two addresses may be shown, whatever it is.
    pub(super) fn has_addresses(&self, flow: &Flow) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| [flow.src, flow.dst].contains(peer))
    }

    /// Whether it is given by addresses at most, so that what is no packet may be shown.
    pub(super) fn asks_for_no_header(&self) -> bool {
        self.qps.is_empty() && self.opcodes.is_empty()
    }

    /// Whether a packet with these headers is to be shown.
    pub(super) fn takes(&self, flow: &Flow, headers: &Headers) -> bool {
        let source = match headers.body {
            Body::Ud(datagram) => Some(datagram.deth.src_qp),
            _ => None,
        };
        let is_of = |qp: &u32| [Some(headers.bth.dest_qp), source].contains(&Some(Qpn::new(*qp)));
        let opcode = headers.body.opcode();
        self.has_addresses(flow)
            && (self.qps.is_empty() || self.qps.iter().any(is_of))
            && (self.opcodes.is_empty()
                || self.opcodes.iter().any(|OpcodeWords(named)| named.contains(&opcode)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::{Psn, Qkey};
    use urxe_wire::{Bth, Datagram, Deth};

    fn words(words: &str) -> OpcodeWords {
        words.parse().unwrap()
    }

    fn flow(src: &str, dst: &str) -> Flow {
        Flow {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 50_000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
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

    #[test]
    fn a_packet_is_shown_that_has_one_of_each_list() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::new(0x22) };
        let bth = Bth::new(Qpn::new(0x11), Psn::new(0));
        let datagram = Headers::new(bth, Datagram { deth, imm: None });
        let ack = Headers::new(bth, Body::zeroed(Opcode::RC_ACK));
        let all = Filter::default();
        assert!(all.takes(&flow, &datagram) && all.takes(&flow, &ack));

        let from = Filter { qps: vec![0x22, 0x33], ..Filter::default() };
        assert!(from.takes(&flow, &datagram), "a datagram tells where it is from");
        assert!(!from.takes(&flow, &ack));

        let both = Filter { qps: vec![0x11], opcodes: vec![words("ack")], ..Filter::default() };
        assert!(both.takes(&flow, &ack));
        assert!(!both.takes(&flow, &datagram), "the QP is right, the opcode is not");

        for (peer, is_shown) in [("10.0.0.1", true), ("10.0.0.2", true), ("10.0.0.3", false)] {
            let filter = Filter { peers: vec![peer.parse().unwrap()], ..Filter::default() };
            assert_eq!(filter.takes(&flow, &ack), is_shown, "{peer}");
        }
    }
}
