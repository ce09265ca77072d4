//! What a packet says: as words of a line, and as keys of an object.

use serde::Serialize;
use std::fmt;
use urxe_types::{Extra, Rkey};
use urxe_wire::{
    Aeth, AtomicEth, Body, Datagram, Headers, Packet, ParseError, Request, Response, Reth,
};

/// What a packet says.
pub(super) enum Decoded {
    Understood { headers: Headers, payload: usize },
    NotUnderstood { length: usize, error: ParseError },
}

/// The same for programs. What a packet does not have is left out.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fields {
    /// Of `Opcode`; `None` if the packet is not understood.
    opcode: Option<String>,
    dest_qpn: Option<u32>,
    psn: Option<u32>,
    /// Bytes of it.
    payload: Option<usize>,
    /// Those of the BTH's bits that are set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bits: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    va: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rkey: Option<String>,
    /// Bytes that the request is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    dma_length: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_or_add: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compare: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalidates: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syndrome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    msn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_qpn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qkey: Option<String>,
    /// Why it is not understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Decoded {
    /// A packet that was parsed, or not.
    pub(super) fn of(parsed: Result<Packet<'_>, ParseError>, length: usize) -> Decoded {
        match parsed {
            Ok(Packet { headers, payload }) => {
                Decoded::Understood { headers, payload: payload.len() }
            }
            Err(error) => Decoded::NotUnderstood { length, error },
        }
    }

    /// A packet of so many bytes, of which the first are there.
    pub(super) fn new(bytes: &[u8], length: usize) -> Decoded {
        let mut whole = bytes.to_vec();
        whole.resize(length, 0);
        Decoded::of(Packet::parse(&whole), length)
    }

    /// What kind of packet it is, if it is understood.
    pub(super) fn body(&self) -> Option<&Body> {
        match self {
            Decoded::Understood { headers, .. } => Some(&headers.body),
            Decoded::NotUnderstood { .. } => None,
        }
    }

    /// For programs.
    pub(super) fn fields(&self) -> Fields {
        let (headers, payload) = match self {
            Decoded::Understood { headers, payload } => (headers, *payload),
            Decoded::NotUnderstood { error, .. } => {
                return Fields { error: Some(error.to_string()), ..Fields::default() };
            }
        };
        let Headers { bth, body } = headers;
        let bits = [
            (bth.ack_req, "ack-req"),
            (bth.solicited, "solicited"),
            (bth.fecn, "fecn"),
            (bth.becn, "becn"),
        ];
        let fields = Fields {
            opcode: Some(body.opcode().to_string()),
            dest_qpn: Some(bth.dest_qp.get()),
            psn: Some(bth.psn.get()),
            payload: Some(payload),
            bits: bits.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect(),
            ..Fields::default()
        };
        fields.with_extended(body)
    }
}

impl Fields {
    /// Adds what the extended headers say.
    fn with_extended(mut self, body: &Body) -> Fields {
        let request = match body {
            Body::RcRequest(request) => Some(*request),
            Body::Uc(request) => Some(Request::from(*request)),
            Body::RcResponse(_) | Body::Ud(_) | Body::Cnp => None,
        };
        if let Some(&Reth { va, rkey, len }) = request.as_ref().and_then(Request::reth) {
            self.target(va, rkey);
            self.dma_length = Some(len);
        }
        match request {
            Some(Request::Send(part)) => match part.end() {
                Some(Extra::Imm(imm)) => self.imm = Some(*imm),
                Some(Extra::Invalidate(rkey)) => self.invalidates = Some(rkey.to_string()),
                Some(Extra::None) | None => {}
            },
            Some(Request::Write(part)) => self.imm = part.end().copied().flatten(),
            Some(Request::CompareSwap(AtomicEth { va, rkey, swap_or_add, compare })) => {
                self.target(va, rkey);
                self.swap_or_add = Some(swap_or_add);
                self.compare = Some(compare);
            }
            Some(Request::FetchAdd(AtomicEth { va, rkey, swap_or_add, .. })) => {
                self.target(va, rkey);
                self.swap_or_add = Some(swap_or_add);
            }
            Some(Request::Read(_) | Request::Flush { .. } | Request::AtomicWrite(_)) | None => {}
        }
        if let Some(Aeth { syndrome, msn }) = body.aeth() {
            self.syndrome = Some(syndrome.to_string());
            self.msn = Some(msn.get());
        }
        match body {
            Body::RcResponse(Response::AtomicAck { original, .. }) => {
                self.original = Some(*original);
            }
            Body::Ud(Datagram { deth, imm }) => {
                self.src_qpn = Some(deth.src_qp.get());
                self.qkey = Some(deth.qkey.to_string());
                self.imm = *imm;
            }
            _ => {}
        }
        self
    }

    fn target(&mut self, va: u64, rkey: Rkey) {
        self.va = Some(format!("{va:#x}"));
        self.rkey = Some(rkey.to_string());
    }
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decoded::Understood { headers, payload: 0 } => headers.fmt(f),
            Decoded::Understood { headers, payload } => write!(f, "{headers} payload {payload}"),
            Decoded::NotUnderstood { length, error } => {
                write!(f, "{length} bytes, not understood: {error}")
            }
        }
    }
}
