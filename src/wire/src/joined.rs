//! Two packets in one datagram: a short request, and behind it the ACK that its sender owes.
//!
//! Where each message is answered by the next, each datagram is one that the other side waits for,
//! and a segmented send of two takes the kernel longer than one. Between two that have
//! agreed ([`Capabilities`](crate::mad::Capabilities)) both packets go in one: each is whole, with
//! headers and an ICRC as if it were sent alone, and `resv7` of the request says that an ACK
//! follows. Whoever receives it cuts it in two, and hands out the ACK first.

use crate::{Aeth, Bth, Opcode, icrc};
use urxe_types::Pkey;

/// Bytes of an ACK.
const ACK_LEN: usize = Bth::LEN + Aeth::LEN + icrc::LEN;

/// The longest datagram that two packets are sent in, in bytes: of a longer one the time goes into
/// its bytes.
pub const MAX_LEN: usize = 512;

/// The length of the request in a datagram that holds a request and an ACK behind it; `None` for
/// any other.
#[inline]
pub fn request_len(datagram: &[u8]) -> Option<usize> {
    if datagram.len() > MAX_LEN || Bth::resv7_in(datagram)? != Bth::ACK_BEHIND {
        return None;
    }
    let request_len = datagram.len().checked_sub(ACK_LEN).filter(|&len| len >= ACK_LEN)?;
    let (request, ack) = datagram.split_at(request_len);
    (is_request(request) && is_ack(ack)).then_some(request_len)
}

/// Whether a request and an ACK can go in one datagram.
pub(crate) fn can_join(request: &[u8], ack: &[u8]) -> bool {
    request.len() + ack.len() <= MAX_LEN
        && request.len() >= ACK_LEN
        && Bth::resv7_in(request) == Some(0)
        && is_request(request)
        && is_ack(ack)
}

/// Whether a packet is a request of a reliable connection.
fn is_request(packet: &[u8]) -> bool {
    let opcode = packet.first().and_then(|&byte| Opcode::from_byte(byte));
    opcode.is_some_and(|opcode| opcode.is_rc_request())
}

/// Whether these bytes are an ACK to all appearance: what a program sends could stand there, where
/// a port has sent the two packets apart after all.
fn is_ack(packet: &[u8]) -> bool {
    let bth = packet.first_chunk().and_then(|bytes| Bth::parse(bytes).ok());
    packet.len() == ACK_LEN
        && bth.is_some_and(|(opcode, bth)| {
            let Bth { pad, pkey, solicited, .. } = bth;
            (opcode, pad, pkey, solicited) == (Opcode::RC_ACK, 0, Pkey::DEFAULT, false)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{TxBatch, TxLimits};
    use crate::{Body, Flow};
    use proptest::prelude::*;
    use urxe_types::{Psn, Qpn};

    fn flow() -> Flow {
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        Flow { src, dst, src_port: 49152, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }

    /// The datagrams of a batch with a request of this opcode and length, and an ACK behind it that
    /// is to go with it; and how many there are to the port.
    fn joined(opcode: Opcode, payload_len: usize) -> (Vec<Vec<u8>>, usize) {
        let mut batch = TxBatch::new(TxLimits::segmented(64), 1 << 14);
        for (opcode, len) in [(opcode, payload_len), (Opcode::RC_ACK, 0)] {
            let bth = Bth::new(Qpn::new(0x11), Psn::new(7));
            let headers = crate::Headers::new(bth, Body::zeroed(opcode));
            let fill = |payload: &mut [u8]| -> Result<(), std::convert::Infallible> {
                payload.fill(0x11);
                Ok(())
            };
            batch.push(&flow(), &headers, len, fill).unwrap();
        }
        batch.join_ack();
        let sent = batch.runs().map(|run| if run.is_joined { 1 } else { run.segments }).sum();
        (batch.runs().map(|run| run.bytes.to_vec()).collect(), sent)
    }

    #[test]
    fn a_short_request_and_an_ack_are_one_datagram_and_are_found_in_it() {
        for (opcode, len) in [
            (Opcode::RC_WRITE_ONLY, 0),
            (Opcode::RC_WRITE_ONLY, 8),
            (Opcode::RC_SEND_ONLY, 5),
            (Opcode::RC_READ_REQUEST, 0),
        ] {
            let (runs, sent) = joined(opcode, len);
            assert_eq!((runs.len(), sent), (1, 1), "{opcode:?}, {len}");
            let request = request_len(&runs[0]).expect("it says so");
            assert_eq!(runs[0][request], Opcode::RC_ACK.byte());
            assert_eq!(runs[0].len() - request, ACK_LEN);
        }
    }

    #[test]
    fn packets_that_are_long_or_no_request_or_shorter_than_an_ack_are_not_joined() {
        for (opcode, len) in [
            (Opcode::RC_WRITE_ONLY, 1024),
            (Opcode::RC_SEND_ONLY, 0),
            (Opcode::RC_READ_RESPONSE_ONLY, 8),
            (Opcode::UC_WRITE_ONLY, 8),
        ] {
            let (runs, sent) = joined(opcode, len);
            assert_eq!(sent, 2, "{opcode:?}, {len}");
            assert!(runs.iter().all(|run| request_len(run).is_none()));
        }
    }

    #[test]
    fn each_of_the_two_is_the_packet_that_it_would_be_alone() {
        let (runs, _) = joined(Opcode::RC_WRITE_ONLY, 9);
        let at = request_len(&runs[0]).unwrap();
        let (mut request, ack) = (runs[0][..at].to_vec(), &runs[0][at..]);
        for packet in [&request[..], ack] {
            let mut again = packet.to_vec();
            icrc::stamp(&flow(), 0, &mut again);
            assert_eq!(again, packet, "its ICRC is of itself, with identification 0");
        }
        Bth::emit_resv7(&mut request, 0);
        assert_eq!(request_len(&[&request[..], ack].concat()), None, "it does not say so");
    }

    proptest! {
        #[test]
        fn any_bytes_are_one_packet_or_two_that_fit(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            if let Some(len) = request_len(&bytes) {
                prop_assert!(len >= ACK_LEN && len + ACK_LEN == bytes.len());
            }
        }
    }
}
