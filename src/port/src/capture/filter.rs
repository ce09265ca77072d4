//! Which packets are shown.

use std::net::IpAddr;
use urxe_types::Qpn;
use urxe_wire::{Body, Bth, Flow, Headers, Opcode, Transport};

/// What a packet must have to be shown: one of each list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// It is for one of these QPs, or from one.
    pub qps: Vec<u32>,
    /// It is from or to one of these addresses.
    pub peers: Vec<IpAddr>,
    /// It has one of these opcodes.
    pub opcodes: Vec<Opcode>,
}

impl Filter {
    /// Whether something between these two addresses may be shown, whatever it is.
    pub fn has_addresses(&self, flow: &Flow) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| [flow.src, flow.dst].contains(peer))
    }

    /// Whether it is given by addresses at most, so that what is no packet may be shown.
    pub fn asks_for_no_header(&self) -> bool {
        self.qps.is_empty() && self.opcodes.is_empty()
    }

    /// Whether a packet with these first bytes may be shown, which costs less to find out than what
    /// its headers are. Of one that this side sent, with the QP that did.
    pub fn may_take(&self, udp_payload: &[u8], sender: Option<Qpn>) -> bool {
        let opcode = udp_payload.first().and_then(|&byte| Opcode::from_byte(byte));
        let is_datagram = opcode.is_some_and(|opcode| opcode.transport() == Transport::Ud);
        let qpn = Bth::dest_qp_in(udp_payload);
        let is_of = |qp: &u32| [qpn, sender].contains(&Some(Qpn::new(*qp)));
        (self.qps.is_empty() || is_datagram || self.qps.iter().any(is_of))
            && (self.opcodes.is_empty() || opcode.is_some_and(|it| self.opcodes.contains(&it)))
    }

    /// Whether a packet with these headers is to be shown; of one that this side sent, the QP that
    /// did, if that is known. Otherwise only a datagram tells where it is from.
    pub fn takes(&self, flow: &Flow, headers: &Headers, sender: Option<Qpn>) -> bool {
        let source = match headers.body {
            Body::Ud(datagram) => Some(datagram.deth.src_qp),
            _ => sender,
        };
        let is_of = |qp: &u32| [Some(headers.bth.dest_qp), source].contains(&Some(Qpn::new(*qp)));
        self.has_addresses(flow)
            && (self.qps.is_empty() || self.qps.iter().any(is_of))
            && (self.opcodes.is_empty() || self.opcodes.contains(&headers.body.opcode()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::{Psn, Qkey};
    use urxe_wire::{Datagram, Deth};

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
    fn a_packet_is_shown_that_has_one_of_each_list() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::new(0x22) };
        let bth = Bth::new(Qpn::new(0x11), Psn::new(0));
        let datagram = Headers::new(bth, Datagram { deth, imm: None });
        let ack = Headers::new(bth, Body::zeroed(Opcode::RC_ACK));
        let all = Filter::default();
        assert!(all.takes(&flow, &datagram, None) && all.takes(&flow, &ack, None));

        let from = Filter { qps: vec![0x22, 0x33], ..Filter::default() };
        assert!(from.takes(&flow, &datagram, None), "a datagram tells where it is from");
        assert!(!from.takes(&flow, &ack, None));
        assert!(from.takes(&flow, &ack, Some(Qpn::new(0x33))), "it is known who has sent it");

        let opcodes = vec![Opcode::RC_ACK];
        let both = Filter { qps: vec![0x11], opcodes, ..Filter::default() };
        assert!(both.takes(&flow, &ack, None));
        assert!(!both.takes(&flow, &datagram, None), "the QP is right, the opcode is not");

        for (peer, is_shown) in [("10.0.0.1", true), ("10.0.0.2", true), ("10.0.0.3", false)] {
            let filter = Filter { peers: vec![peer.parse().unwrap()], ..Filter::default() };
            assert_eq!(filter.takes(&flow, &ack, None), is_shown, "{peer}");
        }
    }

    #[test]
    fn first_bytes_refuse_only_what_headers_do() {
        let first_bytes = |opcode: Opcode, qpn: u8| [opcode.byte(), 0, 0, 0, 0, 0, 0, qpn, 0];
        let of_qp = Filter { qps: vec![0x11], ..Filter::default() };
        assert!(of_qp.may_take(&first_bytes(Opcode::RC_ACK, 0x11), None));
        assert!(!of_qp.may_take(&first_bytes(Opcode::RC_ACK, 0x22), None));
        assert!(of_qp.may_take(&first_bytes(Opcode::RC_ACK, 0x22), Some(Qpn::new(0x11))));
        let datagram = first_bytes(Opcode::UD_SEND_ONLY, 0x22);
        assert!(of_qp.may_take(&datagram, None), "it may be from that QP");
        let acks = Filter { opcodes: vec![Opcode::RC_ACK], ..Filter::default() };
        assert!(acks.may_take(&first_bytes(Opcode::RC_ACK, 0x22), None));
        assert!(!acks.may_take(&datagram, None) && !acks.may_take(&[], None));
        assert!(Filter::default().may_take(&[], None));
    }
}
