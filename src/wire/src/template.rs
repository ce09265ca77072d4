//! Headers of packets that follow each other in a message, and differ in little.

use crate::{Bth, Headers, Opcode, Reth};

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

    /// The headers as they go on the wire.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::headers;
    use crate::{Body, Part, Request, UcRequest};
    use proptest::prelude::*;

    fn emitted(headers: &Headers) -> Vec<u8> {
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
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
            prop_assert_eq!(template.bytes(), emitted(&expected));
            for (payload, ack_req) in steps {
                expected = next(&expected, payload, ack_req);
                template.advance(payload);
                template.set_ack_req(ack_req);
                prop_assert_eq!(template.bytes(), emitted(&expected));
            }
        }
    }
}
