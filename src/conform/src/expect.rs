//! What a check expects to come.

use crate::Arrived;
use std::fmt::Write;
use std::ops::RangeInclusive;
use urxe_types::RnrTimer;
use urxe_wire::{NakCode, Opcode, Syndrome};

/// A packet that a check waits for: its opcode, and of the rest as much as the rule says.
///
/// PSNs are counted as those of a [`Packet`](crate::packet::Packet) are.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    opcode: u8,
    at: Option<i32>,
    syndrome: Option<Answer>,
    msn: Option<RangeInclusive<u32>>,
    payload: Option<Vec<u8>>,
    payload_len: Option<usize>,
    ack_req: Option<bool>,
    solicited: Option<bool>,
    reth: Option<(u64, u32, u32)>,
    original: Option<u64>,
    immediate: Option<u32>,
}

/// What an AETH says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// ACK, with any credits.
    Ack,
    /// NAK.
    Nak(NakCode),
    /// RNR NAK, with any timer.
    NotReady,
    /// RNR NAK with this timer code, or with one of a longer time: the QP's is the least.
    NotReadyFor(u8),
}

impl Answer {
    fn is(self, syndrome: Syndrome) -> bool {
        match (self, syndrome) {
            (Answer::Ack, Syndrome::Ack { .. }) | (Answer::NotReady, Syndrome::RnrNak { .. }) => {
                true
            }
            (Answer::Nak(code), Syndrome::Nak(found)) => code == found,
            (Answer::NotReadyFor(code), Syndrome::RnrNak { timer }) => {
                timer.duration() >= RnrTimer::new(code).duration()
            }
            _ => false,
        }
    }
}

/// A packet of this opcode, at any PSN.
pub fn any(opcode: Opcode) -> Expect {
    Expect { opcode: opcode as u8, ..Expect::default() }
}

/// A request of the device at this place of its sequence.
pub fn request(opcode: Opcode, at: i32) -> Expect {
    Expect { at: Some(at), ..any(opcode) }
}

/// An acknowledgement of our packet at this PSN.
pub fn ack(at: i32) -> Expect {
    Expect { at: Some(at), syndrome: Some(Answer::Ack), ..any(Opcode::RC_ACK) }
}

/// An acknowledgement, of whatever.
pub fn any_ack() -> Expect {
    Expect { syndrome: Some(Answer::Ack), ..any(Opcode::RC_ACK) }
}

/// A refusal of our packet at this PSN.
pub fn nak(code: NakCode, at: i32) -> Expect {
    Expect { syndrome: Some(Answer::Nak(code)), ..ack(at) }
}

/// "Receiver not ready" for our packet at this PSN.
pub fn rnr_nak(at: i32) -> Expect {
    Expect { syndrome: Some(Answer::NotReady), ..ack(at) }
}

/// A part of the answer to a READ: FIRST, MIDDLE, LAST or ONLY. All but a MIDDLE acknowledge.
pub fn read_response(opcode: Opcode, at: i32) -> Expect {
    let acknowledges = opcode != Opcode::RC_READ_RESPONSE_MIDDLE;
    Expect { at: Some(at), syndrome: acknowledges.then_some(Answer::Ack), ..any(opcode) }
}

/// The answer to a FLUSH or an ATOMIC WRITE: that to a READ of nothing.
pub fn empty_response(at: i32) -> Expect {
    read_response(Opcode::RC_READ_RESPONSE_ONLY, at).len(0)
}

/// The answer to an atomic: the value that was there.
pub fn atomic_ack(at: i32, original: u64) -> Expect {
    Expect { original: Some(original), ..atomic_result(at) }
}

/// The answer to an atomic, whatever was there.
pub fn atomic_result(at: i32) -> Expect {
    Expect { at: Some(at), syndrome: Some(Answer::Ack), ..any(Opcode::RC_ATOMIC_ACK) }
}

impl Expect {
    /// With this message sequence number.
    pub fn msn(self, msn: u32) -> Expect {
        self.msns(msn..=msn)
    }

    /// With one of these message sequence numbers.
    pub fn msns(mut self, msns: RangeInclusive<u32>) -> Expect {
        self.msn = Some(msns);
        self
    }

    /// With this payload.
    pub fn payload(mut self, payload: &[u8]) -> Expect {
        self.payload = Some(payload.to_vec());
        self
    }

    /// With a payload of so many bytes.
    pub fn len(mut self, len: usize) -> Expect {
        self.payload_len = Some(len);
        self
    }

    /// Asking for an acknowledgement, or not.
    pub fn ack_req(mut self, asks: bool) -> Expect {
        self.ack_req = Some(asks);
        self
    }

    /// With the solicited event bit, or without.
    pub fn solicited(mut self, solicited: bool) -> Expect {
        self.solicited = Some(solicited);
        self
    }

    /// To or from this memory: address, key, length.
    pub fn reth(mut self, addr: u64, rkey: u32, len: u32) -> Expect {
        self.reth = Some((addr, rkey, len));
        self
    }

    /// With this immediate data.
    pub fn imm(mut self, imm: u32) -> Expect {
        self.immediate = Some(imm);
        self
    }

    /// With this RNR timer code, or one of a longer time.
    pub fn timer(mut self, code: u8) -> Expect {
        self.syndrome = Some(Answer::NotReadyFor(code));
        self
    }

    /// The PSN that it is expected at, if one is.
    pub fn place(&self) -> Option<i32> {
        self.at
    }

    /// What is different; `None`: it is as expected. `first_psn` is the number of PSN 0.
    pub fn mismatch(&self, arrived: &Arrived, first_psn: u32) -> Option<String> {
        let mut wrong = String::new();
        let mut differs = |field: &str, found: String, wanted: String| {
            let comma = if wrong.is_empty() { "" } else { ", " };
            let _ = write!(wrong, "{comma}{field} {found}, not {wanted}");
        };
        if !arrived.icrc_is_right {
            differs("ICRC", "wrong".into(), "right".into());
        }
        if arrived.opcode() != self.opcode {
            differs("opcode", name(arrived.opcode()), name(self.opcode));
            return Some(wrong);
        }
        if let Some(at) = self.at {
            let found = relative(arrived.psn(), first_psn);
            if found != at {
                differs("PSN", found.to_string(), at.to_string());
            }
        }
        let aeth = arrived.aeth();
        if let Some(answer) = self.syndrome {
            match aeth {
                Some((syndrome, _)) if answer.is(syndrome) => {}
                Some((syndrome, _)) => {
                    differs("syndrome", syndrome.to_string(), format!("{answer:?}"));
                }
                None => differs("AETH", "missing".into(), format!("{answer:?}")),
            }
        }
        if let (Some(msns), Some((_, found))) = (&self.msn, aeth)
            && !msns.contains(&found)
        {
            differs("MSN", found.to_string(), numbers(msns));
        }
        if let Some(payload) = &self.payload
            && arrived.payload() != payload
        {
            differs("payload", excerpt(arrived.payload()), excerpt(payload));
        }
        if let Some(len) = self.payload_len
            && arrived.payload().len() != len
        {
            differs("payload", format!("{} bytes", arrived.payload().len()), len.to_string());
        }
        if let Some(asks) = self.ack_req
            && arrived.ack_req() != asks
        {
            differs("AckReq", arrived.ack_req().to_string(), asks.to_string());
        }
        if let Some(solicited) = self.solicited
            && arrived.solicited() != solicited
        {
            differs("solicited event", arrived.solicited().to_string(), solicited.to_string());
        }
        if let Some(reth) = self.reth
            && arrived.reth() != Some(reth)
        {
            differs("RETH", format!("{:x?}", arrived.reth()), format!("{reth:x?}"));
        }
        if let Some(original) = self.original {
            let found = arrived.body().last_chunk().map(|&bytes| u64::from_be_bytes(bytes));
            if found != Some(original) {
                differs("original value", format!("{found:x?}"), format!("{original:x}"));
            }
        }
        if let Some(imm) = self.immediate {
            let found = arrived.immediate();
            if found != Some(imm) {
                differs("immediate data", format!("{found:x?}"), format!("{imm:x}"));
            }
        }
        if wrong.is_empty() { None } else { Some(wrong) }
    }

    /// The packet in words.
    pub fn describe(&self) -> String {
        let mut text = name(self.opcode);
        if let Some(answer) = self.syndrome {
            let _ = write!(text, " ({answer:?})");
        }
        if let Some(at) = self.at {
            let _ = write!(text, " at PSN {at}");
        }
        if let Some(msns) = &self.msn {
            let _ = write!(text, ", MSN {}", numbers(msns));
        }
        text
    }
}

/// A PSN as an offset from the first of the connection.
pub fn relative(psn: u32, first: u32) -> i32 {
    (psn.wrapping_sub(first) << 8) as i32 >> 8
}

fn name(opcode: u8) -> String {
    match Opcode::from_byte(opcode) {
        Some(opcode) => opcode.to_string(),
        None => format!("{opcode:#04x}"),
    }
}

fn numbers(range: &RangeInclusive<u32>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

fn excerpt(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let more = if bytes.len() > 8 { "..." } else { "" };
    format!("{shown}{more} ({} bytes)", bytes.len())
}
