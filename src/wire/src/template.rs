//! Headers of packets that follow each other in a message, and differ in little.

use crate::{Bth, Headers, Opcode, Reth};
use urxe_types::Qpn;

/// The headers of a packet, as a batch takes them.
pub trait EmitHeaders {
    /// The QP that the packet is for.
    fn dest_qp(&self) -> Qpn;

    /// Bytes on the wire.
    fn header_len(&self) -> usize;

    /// Writes as many bytes to the front of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter.
    fn emit_to(&self, buf: &mut [u8]);
}

impl EmitHeaders for Headers {
    #[inline]
    fn dest_qp(&self) -> Qpn {
        self.bth.dest_qp
    }

    #[inline]
    fn header_len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn emit_to(&self, buf: &mut [u8]) {
        self.emit(buf);
    }
}

/// The emitted headers of a packet between the first and the last of a message, for those that
/// follow it: [`advance`](Self::advance) is less work than to emit the next one's.
#[derive(Clone, Copy, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; Headers::MAX_LEN],
    len: usize,
    has_reth: bool,
}

/// Where a RETH lies that comes right behind the BTH.
const RETH_AT: usize = Bth::LEN;

impl HeaderTemplate {
    /// The headers of such a packet.
    pub fn new(headers: &Headers) -> HeaderTemplate {
        let mut bytes = [0; Headers::MAX_LEN];
        headers.emit(&mut bytes);
        let opcode = headers.body.opcode();
        let has_reth = [Opcode::RC_WRITE_ONLY, Opcode::UC_WRITE_ONLY].contains(&opcode);
        HeaderTemplate { bytes, len: headers.len(), has_reth }
    }

    /// Makes them those of the next packet: with the next PSN and, where each packet says where its
    /// data goes (a WRITE in packets that are each a whole one), an address that is further by
    /// `payload` bytes.
    pub fn advance(&mut self, payload: usize) {
        Bth::advance_psn(&mut self.bytes);
        if self.has_reth {
            Reth::advance(&mut self.bytes[RETH_AT..], payload as u64);
        }
    }

    /// Whether the packet asks for an acknowledgement.
    pub fn set_ack_req(&mut self, ack_req: bool) {
        Bth::emit_ack_req(&mut self.bytes, ack_req);
    }
}

impl EmitHeaders for HeaderTemplate {
    #[inline]
    fn dest_qp(&self) -> Qpn {
        Bth::dest_qp_in(&self.bytes).unwrap_or_default()
    }

    #[inline]
    fn header_len(&self) -> usize {
        self.len
    }

    #[inline]
    fn emit_to(&self, buf: &mut [u8]) {
        buf[..self.len].copy_from_slice(&self.bytes[..self.len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::headers;
    use crate::{Body, Part, Request, UcRequest};
    use proptest::prelude::*;

    fn emitted(headers: &impl EmitHeaders) -> Vec<u8> {
        let mut bytes = vec![0; headers.header_len()];
        headers.emit_to(&mut bytes);
        bytes
    }

    /// The headers of the packet behind this one in a message.
    fn next(headers: &Headers, payload: usize, ack_req: bool) -> Headers {
        let bth = Bth { psn: headers.bth.psn.next(), ack_req, ..headers.bth };
        let moved = |reth: Reth| Reth { va: reth.va.wrapping_add(payload as u64), ..reth };
        let body = match headers.body {
            Body::RcRequest(Request::Write(Part::Only(reth, None))) => {
                Body::RcRequest(Request::Write(Part::Only(moved(reth), None)))
            }
            Body::Uc(UcRequest::Write(Part::Only(reth, None))) => {
                Body::Uc(UcRequest::Write(Part::Only(moved(reth), None)))
            }
            body => body,
        };
        Headers { bth, body }
    }

    proptest! {
        #[test]
        fn the_next_headers_differ_in_psn_address_and_ack_request_alone(
            mut expected in headers(),
            steps in proptest::collection::vec((1usize..=4096, any::<bool>()), 1..8),
        ) {
            let mut template = HeaderTemplate::new(&expected);
            prop_assert_eq!(emitted(&template), emitted(&expected));
            for (payload, ack_req) in steps {
                expected = next(&expected, payload, ack_req);
                template.advance(payload);
                template.set_ack_req(ack_req);
                prop_assert_eq!(emitted(&template), emitted(&expected));
            }
        }
    }
}
