//! What a peer understands beside the standard: a question and its answer, of a management class
//! that is free for vendors.
//!
//! Offsets count from the end of the common header. First stands what all classes of this range
//! have: an RMPP header of zeros, for the message is a single datagram, and an OUI, which tells
//! whose messages these are. Ours is locally administered: `02-75-72`.
//!
//! The kernel answers a question that it does not understand with a copy of it and a status; a
//! question therefore says nothing that an answer could mean.

use super::layout::{Layout, at, bits, fields};
use super::{BASE_VERSION, HEADER_LEN, Header, MAD_LEN};

const CLASS: u8 = 0x4a;
const CLASS_VERSION: u8 = 1;
const ATTRIBUTE: u16 = 0x0010;
const METHOD_GET: u8 = 0x01;
const METHOD_GET_RESP: u8 = 0x81;
const OUI: [u8; 3] = [0x02, 0x75, 0x72];
/// The version of what follows the OUI; a later one adds to it.
const VERSION: u16 = 1;

fields! {
    /// What a peer understands beside the standard.
    #[derive(Default)]
    pub struct Capabilities {
        /// As a requester, it understands selective acknowledgements
        /// ([`Response::SelectiveAck`](crate::Response::SelectiveAck)).
        selective_ack: bool = bits(3, 7..8),
        /// As a responder, it tells of congestion marks on requests by BECN in its
        /// acknowledgements.
        echoes_marks: bool = bits(3, 6..7),
        /// As a responder, it answers a READ in packets of one size where the request
        /// [asks for that](crate::Bth::ANSWER_IN_ONLYS).
        answers_in_onlys: bool = bits(3, 5..6),
        /// As a requester, it takes in an ACK that ends a segmented send of requests before them.
        takes_ack_first: bool = bits(3, 4..5),
        /// It takes a request and an ACK that come [in one datagram](crate::joined), the ACK first.
        takes_joined: bool = bits(3, 3..4),
    }
}

fields! {
    /// What follows the common header.
    struct Data {
        oui: [u8; 3] = at(13),
        version: u16 = at(16),
        capabilities: Capabilities = at(20),
    }
}

/// A management datagram about capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapabilityMad {
    /// Transaction ID: an answer has that of its question.
    pub tid: u64,
    /// Question or answer.
    pub message: CapabilityMessage,
}

/// Question or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityMessage {
    /// Get: asks what the receiver understands.
    Get,
    /// GetResp: says what the sender understands.
    GetResp(Capabilities),
    /// GetResp of one that did not understand the question.
    Refused,
}

impl CapabilityMad {
    /// Reads a management datagram; `None` if it is another one.
    pub fn parse(bytes: &[u8; MAD_LEN]) -> Option<CapabilityMad> {
        let (header, body) = bytes.split_at(HEADER_LEN);
        let header: Header = at(0).read(header);
        let data: Data = at(0).read(body);
        let Header { base_version, class, class_version, method, status, tid, attribute } = header;
        let is_ours = (base_version, class, class_version, attribute, data.oui)
            == (BASE_VERSION, CLASS, CLASS_VERSION, ATTRIBUTE, OUI);
        if !is_ours {
            return None;
        }
        let message = match method {
            METHOD_GET => CapabilityMessage::Get,
            // REPAIR-005
            METHOD_GET_RESP if status == 0 && data.version >= VERSION => {
                CapabilityMessage::GetResp(data.capabilities)
            }
            METHOD_GET_RESP => CapabilityMessage::Refused,
            _ => return None,
        };
        Some(CapabilityMad { tid, message })
    }

    /// The bytes of the datagram.
    pub fn bytes(&self) -> [u8; MAD_LEN] {
        let (method, status, version, capabilities) = match self.message {
            CapabilityMessage::Get => (METHOD_GET, 0, 0, Capabilities::default()),
            CapabilityMessage::GetResp(capabilities) => (METHOD_GET_RESP, 0, VERSION, capabilities),
            CapabilityMessage::Refused => {
                (METHOD_GET_RESP, STATUS_UNSUPPORTED, 0, Capabilities::default())
            }
        };
        let header = Header {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method,
            status,
            tid: self.tid,
            attribute: ATTRIBUTE,
        };
        let data = Data { oui: OUI, version, capabilities };
        let mut bytes = [0; MAD_LEN];
        let (front, body) = bytes.split_at_mut(HEADER_LEN);
        at(0).write(&header, front);
        at(0).write(&data, body);
        bytes
    }
}

/// A method or attribute that the agent does not support.
const STATUS_UNSUPPORTED: u16 = 0x000c;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: Capabilities = Capabilities {
        selective_ack: true,
        echoes_marks: true,
        answers_in_onlys: true,
        takes_ack_first: true,
        takes_joined: true,
    };

    #[test]
    fn every_field_at_its_place() {
        let tid = 0x0102_0304_0506_0708;
        let answer = CapabilityMad { tid, message: CapabilityMessage::GetResp(ALL) };
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, 0x4a, 1, 0x81]);
        bytes[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[17] = 0x10;
        bytes[37..40].copy_from_slice(&[0x02, 0x75, 0x72]);
        bytes[41] = 1;
        bytes[47] = 0b1_1111;
        assert_eq!(answer.bytes(), bytes);
        assert_eq!(CapabilityMad::parse(&bytes), Some(answer));
        bytes[47] = 0b1110_0001;
        let first = Capabilities { selective_ack: true, ..Capabilities::default() };
        let read = CapabilityMad::parse(&bytes).map(|mad| mad.message);
        assert_eq!(read, Some(CapabilityMessage::GetResp(first)), "unknown bits mean nothing");
    }

    #[test]
    fn a_question_sent_back_is_no_answer() {
        let mut bytes = CapabilityMad { tid: 7, message: CapabilityMessage::Get }.bytes();
        bytes[3] = METHOD_GET_RESP;
        let refused = CapabilityMad { tid: 7, message: CapabilityMessage::Refused };
        assert_eq!(CapabilityMad::parse(&bytes), Some(refused), "without a status");
        bytes[5] = 0x0c;
        assert_eq!(CapabilityMad::parse(&bytes), Some(refused), "as the kernel does");
        assert_eq!(refused.bytes(), bytes);
    }

    #[test]
    fn datagrams_of_others_are_left_to_them() {
        let good = CapabilityMad { tid: 7, message: CapabilityMessage::GetResp(ALL) }.bytes();
        for (at, byte) in [(0, 2), (1, 7), (2, 2), (3, 0x03), (17, 0x11), (37, 0), (39, 0x73)] {
            let mut bytes = good;
            bytes[at] = byte;
            assert_eq!(CapabilityMad::parse(&bytes), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn messages_survive(tid: u64, which in 0..4u8, [a, b, c, d, e] in any::<[bool; 5]>()) {
            let (selective_ack, echoes_marks) = (a, b);
            let (answers_in_onlys, takes_ack_first, takes_joined) = (c, d, e);
            let message = match which {
                0 => CapabilityMessage::Get,
                1 => CapabilityMessage::Refused,
                _ => CapabilityMessage::GetResp(Capabilities {
                    selective_ack,
                    echoes_marks,
                    answers_in_onlys,
                    takes_ack_first,
                    takes_joined,
                }),
            };
            let mad = CapabilityMad { tid, message };
            prop_assert_eq!(CapabilityMad::parse(&mad.bytes()), Some(mad));
        }
    }
}
