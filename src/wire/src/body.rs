//! What a packet is: one variant for each kind of packet, with the extended headers that it has
//! and no others. The [opcode](Body::opcode) follows.

use crate::{Aeth, AtomicEth, Deth, Feth, Reth, Transport};
use urxe_types::{Extra, Rkey};

/// What a packet is, with its extended headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A request on a reliable connection, for the responder.
    RcRequest(Request),
    /// A response on a reliable connection, for the requester.
    RcResponse(Response),
    /// A request on an unreliable connection.
    Uc(UcRequest),
    Ud(Datagram),
    /// Congestion notification packet. Its 16 reserved bytes are the payload.
    Cnp,
}

/// A request on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SEND; the last packet may carry immediate data or a key to invalidate.
    Send(Part<(), Extra>),
    /// RDMA WRITE; the last packet may carry immediate data.
    Write(Part<Reth, Option<u32>>),
    /// RDMA READ.
    Read(Reth),
    /// COMPARE AND SWAP of 8 bytes.
    CompareSwap(AtomicEth),
    /// FETCH AND ADD of 8 bytes; `compare` means nothing.
    FetchAdd(AtomicEth),
    /// FLUSH: makes earlier writes visible or persistent.
    Flush {
        /// How far the writes shall get.
        feth: Feth,
        /// Which writes.
        reth: Reth,
    },
    /// ATOMIC WRITE of 8 bytes, which are the payload.
    AtomicWrite(Reth),
}

/// A response on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Acknowledgement, positive or negative.
    Ack(Aeth),
    /// Acknowledgement of our own between peers that agreed on it: everything up to its PSN is
    /// done, the one after it is missing, and the payload tells which behind that have arrived
    /// ([`EarlyBitmap`](crate::EarlyBitmap)).
    SelectiveAck {
        /// As in an ACK.
        aeth: Aeth,
    },
    /// READ response, the first packet of several.
    ReadFirst(Aeth),
    /// READ response, neither first nor last.
    ReadMiddle,
    /// READ response, the last packet of several.
    ReadLast(Aeth),
    /// READ response of one packet. Empty, it also answers FLUSH and ATOMIC WRITE.
    ReadOnly(Aeth),
    /// Acknowledgement of an atomic.
    AtomicAck {
        /// Syndrome and MSN.
        aeth: Aeth,
        /// The value that the atomic found.
        original: u64,
    },
}

/// A request on an unreliable connection: what of [`Request`] needs no answer and no memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcRequest {
    /// SEND; the last packet may carry immediate data.
    Send(Part<(), Option<u32>>),
    /// RDMA WRITE; the last packet may carry immediate data.
    Write(Part<Reth, Option<u32>>),
}

/// The headers of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Q_Key and source QP.
    pub deth: Deth,
    /// Immediate data: the four wire bytes as a big-endian number.
    pub imm: Option<u32>,
}

/// Where in its message a packet stands. What a message begins with (`S`) is in its first packet,
/// and what it ends with (`E`) in its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<S, E> {
    /// The first of several.
    First(S),
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last(E),
    /// The whole message in one packet.
    Only(S, E),
}

impl<S, E> Part<S, E> {
    /// The packet that begins the message or not, and ends it or not.
    pub fn new(starts: bool, ends: bool, start: S, end: E) -> Part<S, E> {
        match (starts, ends) {
            (true, false) => Part::First(start),
            (false, false) => Part::Middle,
            (false, true) => Part::Last(end),
            (true, true) => Part::Only(start, end),
        }
    }

    /// What the message begins with, if it begins here.
    pub fn start(&self) -> Option<&S> {
        match self {
            Part::First(start) | Part::Only(start, _) => Some(start),
            Part::Middle | Part::Last(_) => None,
        }
    }

    /// What the message ends with, if it ends here.
    pub fn end(&self) -> Option<&E> {
        match self {
            Part::Last(end) | Part::Only(_, end) => Some(end),
            Part::First(_) | Part::Middle => None,
        }
    }

    /// Whether a message begins here: first or only.
    pub fn starts(&self) -> bool {
        self.start().is_some()
    }

    /// Whether a message ends here: last or only.
    pub fn ends(&self) -> bool {
        self.end().is_some()
    }

    fn map_end<F>(self, map: impl FnOnce(E) -> F) -> Part<S, F> {
        match self {
            Part::First(start) => Part::First(start),
            Part::Middle => Part::Middle,
            Part::Last(end) => Part::Last(map(end)),
            Part::Only(start, end) => Part::Only(start, map(end)),
        }
    }
}

impl Request {
    /// Whether a message begins here.
    pub fn starts(&self) -> bool {
        match self {
            Request::Send(part) => part.starts(),
            Request::Write(part) => part.starts(),
            _ => true,
        }
    }

    /// Whether a message ends here.
    pub fn ends(&self) -> bool {
        match self {
            Request::Send(part) => part.ends(),
            Request::Write(part) => part.ends(),
            _ => true,
        }
    }

    /// The request on an unreliable connection; `None` where that lacks the operation.
    pub fn unreliable(self) -> Option<UcRequest> {
        match self {
            Request::Send(_) if self.invalidates().is_some() => None,
            Request::Send(part) => Some(UcRequest::Send(part.map_end(|extra| match extra {
                Extra::Imm(imm) => Some(imm),
                Extra::None | Extra::Invalidate(_) => None,
            }))),
            Request::Write(part) => Some(UcRequest::Write(part)),
            _ => None,
        }
    }

    /// The key that a SEND invalidates.
    pub fn invalidates(&self) -> Option<Rkey> {
        match self {
            Request::Send(part) => match part.end()? {
                Extra::Invalidate(rkey) => Some(*rkey),
                Extra::None | Extra::Imm(_) => None,
            },
            _ => None,
        }
    }

    /// Address, key and length of an RDMA operation.
    pub fn reth(&self) -> Option<&Reth> {
        match self {
            Request::Write(part) => part.start(),
            Request::Read(reth) | Request::AtomicWrite(reth) | Request::Flush { reth, .. } => {
                Some(reth)
            }
            Request::Send(_) | Request::CompareSwap(_) | Request::FetchAdd(_) => None,
        }
    }
}

impl From<UcRequest> for Request {
    fn from(request: UcRequest) -> Request {
        match request {
            UcRequest::Send(part) => {
                Request::Send(part.map_end(|imm| imm.map_or(Extra::None, Extra::Imm)))
            }
            UcRequest::Write(part) => Request::Write(part),
        }
    }
}

impl Response {
    /// Syndrome and MSN: in all responses but the middle ones.
    pub fn aeth(&self) -> Option<Aeth> {
        match *self {
            Response::Ack(aeth)
            | Response::SelectiveAck { aeth }
            | Response::ReadFirst(aeth)
            | Response::ReadLast(aeth)
            | Response::ReadOnly(aeth)
            | Response::AtomicAck { aeth, .. } => Some(aeth),
            Response::ReadMiddle => None,
        }
    }

    /// Whether it is a READ response.
    pub fn is_read(&self) -> bool {
        !matches!(
            self,
            Response::Ack(_) | Response::SelectiveAck { .. } | Response::AtomicAck { .. }
        )
    }

    /// Whether an answer begins here.
    pub fn begins(&self) -> bool {
        !matches!(self, Response::ReadMiddle | Response::ReadLast(_))
    }

    /// Whether an answer ends here.
    pub fn ends(&self) -> bool {
        !matches!(self, Response::ReadFirst(_) | Response::ReadMiddle)
    }
}

impl Body {
    /// The transport service.
    pub const fn transport(&self) -> Transport {
        match self {
            Body::RcRequest(_) | Body::RcResponse(_) => Transport::Rc,
            Body::Uc(_) => Transport::Uc,
            Body::Ud(_) => Transport::Ud,
            Body::Cnp => Transport::Cnp,
        }
    }

    /// The request for a responder of a connection, whether it is reliable or not.
    pub fn request(&self) -> Option<Request> {
        match *self {
            Body::RcRequest(request) => Some(request),
            Body::Uc(request) => Some(request.into()),
            Body::RcResponse(_) | Body::Ud(_) | Body::Cnp => None,
        }
    }

    /// Whether a responder handles it: everything but responses and CNPs.
    pub const fn is_request(&self) -> bool {
        !matches!(self, Body::RcResponse(_) | Body::Cnp)
    }

    /// Whether a message begins here.
    pub fn starts(&self) -> bool {
        match self {
            Body::RcResponse(Response::ReadMiddle | Response::ReadLast(_)) => false,
            _ => self.request().is_none_or(|request| request.starts()),
        }
    }

    /// Whether a message ends here.
    pub fn ends(&self) -> bool {
        match self {
            Body::RcResponse(response) => response.ends(),
            _ => self.request().is_none_or(|request| request.ends()),
        }
    }

    /// Syndrome and MSN of a response.
    pub fn aeth(&self) -> Option<Aeth> {
        match self {
            Body::RcResponse(response) => response.aeth(),
            _ => None,
        }
    }

    /// Whether bytes may follow the headers.
    pub const fn has_payload(&self) -> bool {
        use {Request::*, Response::*};
        !matches!(
            self,
            Body::RcRequest(Read(_) | CompareSwap(_) | FetchAdd(_) | Flush { .. })
                | Body::RcResponse(Ack(_) | AtomicAck { .. })
        )
    }
}

impl From<Request> for Body {
    fn from(request: Request) -> Body {
        Body::RcRequest(request)
    }
}

impl From<Response> for Body {
    fn from(response: Response) -> Body {
        Body::RcResponse(response)
    }
}

impl From<Datagram> for Body {
    fn from(datagram: Datagram) -> Body {
        Body::Ud(datagram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Opcode;

    #[test]
    fn a_message_is_one_packet_or_first_middles_last() {
        let part = |starts, ends| Part::new(starts, ends, (), ());
        for (starts, ends) in [(true, true), (true, false), (false, false), (false, true)] {
            assert_eq!((part(starts, ends).starts(), part(starts, ends).ends()), (starts, ends));
        }
        assert_eq!(part(true, true), Part::Only((), ()));
    }

    #[test]
    fn an_unreliable_request_is_the_reliable_one_of_the_same_code() {
        for opcode in Opcode::ALL.iter().filter(|opcode| opcode.transport() == Transport::Uc) {
            let request = Body::zeroed(*opcode).request().unwrap();
            assert_eq!(Body::from(request).opcode().byte(), opcode.byte() & 0x1f);
            assert_eq!(request.unreliable().map(Body::Uc), Some(Body::zeroed(*opcode)));
        }
        let invalidate = Body::zeroed(Opcode::RC_SEND_ONLY_INV).request().unwrap();
        assert_eq!(invalidate.unreliable(), None);
    }

    /// Every received packet is copied a few times on its way to its QP.
    #[test]
    fn a_body_is_no_longer_than_its_longest_header_and_a_tag() {
        assert!(size_of::<Body>() <= size_of::<AtomicEth>() + 8, "{}", size_of::<Body>());
    }
}
