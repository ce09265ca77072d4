//! The message that arrives on a connection, packet by packet, and what its packets are checked
//! for before anything of them is executed.

use super::common::Cx;
use super::receive::{Receive, Refusal};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::MAX_MESSAGE;
use crate::memory::Span;
use crate::seeded;
use urxe_types::{Access, Completion, Extra, FlushSelectivity, Qpn, Rkey, WcOpcode};
use urxe_wire::{Feth, Packet, Part, Request, Reth};

/// The message under way, and the receive that it consumes.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    message: Message,
    receive: Receive,
    /// The peer has ended a message without asking for an acknowledgement.
    ends_silently: bool,
}

/// What the next packet must go on with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    #[default]
    None,
    Send {
        /// Bytes received.
        received: u64,
    },
    Write(Write),
}

/// A WRITE under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write {
    /// Where the next byte goes.
    va: u64,
    rkey: Rkey,
    /// The whole message's length.
    length: u32,
    /// Bytes still to come.
    remaining: u32,
}

/// A part of a WRITE that may be stored: nobody has looked at its bytes yet.
pub(super) struct WritePart {
    write: Write,
    /// Where its bytes go, if it has any.
    pub(super) span: Option<Span>,
}

/// The rights that a FLUSH of this kind needs; `None` if there is no such kind.
pub(super) fn flush_rights(feth: &Feth) -> Option<Access> {
    match feth.selectivity {
        FlushSelectivity::Range | FlushSelectivity::Mr => feth.placement.access(),
        FlushSelectivity::Reserved(_) => None,
    }
}

/// Whether a QP that lets its peer do this lets it make such a request.
pub(super) fn check_enabled(access: Access, request: &Request) -> Result<(), Refusal> {
    let needs = match request {
        Request::Send(_) => Access::default(),
        Request::Write(_) | Request::AtomicWrite(_) => Access::REMOTE_WRITE,
        Request::Read(_) => Access::REMOTE_READ,
        Request::CompareSwap(_) | Request::FetchAdd(_) => Access::REMOTE_ATOMIC,
        // A kind that does not exist is refused where it would be executed.
        // FAW-004
        Request::Flush { feth, .. } => flush_rights(feth).unwrap_or_default(),
    };
    // RC-RESP-014, RC-RESP-051, MW-003
    let may =
        access.contains(needs) || seeded::takes_without_right(needs) || fault!(QpRightsNotChecked);
    may.then_some(()).ok_or(Refusal::InvalidRequest)
}

/// Where the peer may reach `len` bytes, of which there is at least one.
pub(super) fn check_rkey<H>(
    cx: &Cx<'_, H>,
    rkey: Rkey,
    va: u64,
    len: u32,
    access: Access,
) -> Result<Span, Refusal> {
    cx.keys
        // RC-RESP-013, RC-RESP-015, RC-RESP-016: the key says which bytes and rights it opens.
        .remote(rkey, cx.qp.key_scope(), va, u64::from(len), access)
        .map_err(|_| Refusal::RemoteAccess)
}

/// As [`check_rkey`], but the rkey of nothing is not checked (IBTA C9-88).
pub(super) fn check_range<H>(
    cx: &Cx<'_, H>,
    reth: &Reth,
    access: Access,
) -> Result<Option<Span>, Refusal> {
    match reth.len {
        // RC-RESP-010
        0 if !fault!(KeyOfNothingChecked) => Ok(None),
        len => check_rkey(cx, reth.rkey, reth.va, len, access).map(Some),
    }
}

impl Incoming {
    /// First, middle and last packets come in the order of their message.
    pub(super) fn check_sequence(&self, request: &Request) -> Result<(), Refusal> {
        let in_order = match (self.message, request) {
            // RC-RESP-038
            (Message::None, _) => request.starts(),
            // RC-RESP-039
            (Message::Send { .. }, Request::Send(part)) => {
                !part.starts() || fault!(StartInsideSendTaken)
            }
            (Message::Write(_), Request::Write(part)) => !part.starts(),
            // RC-RESP-039, RC-RESP-040
            (Message::Send { .. } | Message::Write(_), _) => fault!(OtherInsideMessageTaken),
        };
        in_order.then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// Every packet but the last is full, and the lengths add up.
    pub(super) fn check_length(
        &self,
        packet: &Packet<'_, Request>,
        mtu: u32,
    ) -> Result<(), Refusal> {
        let request = &packet.headers.body;
        // RC-RESP-045
        if request.reth().is_some_and(|reth| u64::from(reth.len) > MAX_MESSAGE) {
            return Err(Refusal::InvalidRequest);
        }
        let len = packet.payload.len();
        let is_right = match request {
            // FAW-017
            Request::AtomicWrite(reth) => len == 8 && reth.len == 8,
            Request::Send(part) => is_full(part, len, mtu),
            Request::Write(part) => {
                let left = match (self.message, part.start()) {
                    (Message::Write(write), _) => Some(write.remaining),
                    (_, start) => start.map(|reth| reth.len),
                };
                // RC-RESP-044
                let adds_up = |left| {
                    (part.ends() == (left == len) || fault!(DmaLengthNotChecked)) && len <= left
                };
                is_full(part, len, mtu) && left.is_none_or(|left| adds_up(left as usize))
            }
            _ => true,
        };
        is_right.then_some(()).ok_or(Refusal::InvalidRequest)
    }

    /// A receive for what consumes one.
    pub(super) fn check_receive<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        request: &Request,
    ) -> Result<(), Refusal> {
        match request {
            // RC-RESP-001, RC-RESP-003: the first packet takes it, of a message of no bytes too.
            Request::Send(part) if part.starts() => self.receive.take(cx),
            // RC-RESP-007
            Request::Write(part)
                if matches!(part.end(), Some(Some(_))) && !fault!(ImmediateNeedsNoReceive) =>
            {
                self.receive.take(cx)
            }
            _ => Ok(()),
        }
    }

    /// Puts a part of a SEND into the receive.
    pub(super) fn put<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let offset = match self.message {
            Message::Send { received } => received,
            _ => 0,
        };
        // RC-RESP-002
        self.receive.put(cx, offset, payload)?;
        self.message = Message::Send { received: offset + payload.len() as u64 };
        Ok(())
    }

    /// Finds where a part of a WRITE goes.
    pub(super) fn check_write<H>(
        &self,
        cx: &Cx<'_, H>,
        part: &Part<Reth, Option<u32>>,
        payload: &[u8],
    ) -> Result<WritePart, Refusal> {
        let Some(reth) = part.start() else {
            let Message::Write(write) = self.message else { return Err(Refusal::InvalidRequest) };
            let span = match payload.len() as u32 {
                0 => None,
                len => Some(check_rkey(cx, write.rkey, write.va, len, Access::REMOTE_WRITE)?),
            };
            return Ok(WritePart { write, span });
        };
        // RC-RESP-012: the whole range is checked at once, so that nothing of a write that
        // reaches outside is done.
        let span = check_range(cx, reth, Access::REMOTE_WRITE)?;
        let write = Write { va: reth.va, rkey: reth.rkey, length: reth.len, remaining: reth.len };
        Ok(WritePart { write, span })
    }

    /// Whether the WRITE that this packet ends may be a part of a longer one, which its requester
    /// sends as WRITE ONLYs: it is full and asks for no acknowledgement, as far as the peer asks
    /// for one at the end of each message. (urxe and rxe do; hardware as its program wants it.)
    pub(super) fn goes_on(
        &mut self,
        request: &Request,
        ack_req: bool,
        len: usize,
        mtu: u32,
    ) -> bool {
        let may_go_on =
            matches!(request, Request::Write(Part::Only(_, None))) && len == mtu as usize;
        // TRAIN-011
        self.ends_silently |= request.ends() && !ack_req && !may_go_on;
        // TRAIN-010
        may_go_on && !ack_req && !self.ends_silently
    }

    /// Stores a part of a WRITE. `ends`: a program may wait for the last bytes of it.
    pub(super) fn store<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        WritePart { mut write, span }: WritePart,
        payload: &[u8],
        ends: bool,
    ) -> Result<(), Refusal> {
        if let Some(span) = span {
            cx.host
                .write(span.region, span.offset, payload)
                // RC-RESP-047
                .map_err(|_| Refusal::Local(Cause::LocalMemory))?;
            cx.qp.dirty = true;
        }
        if ends {
            // ORDER-001, ORDER-003
            cx.host.write_barrier();
        }
        write.va = write.va.wrapping_add(payload.len() as u64);
        write.remaining -= payload.len() as u32;
        self.message = Message::Write(write);
        Ok(())
    }

    /// The last packet of a SEND or WRITE is done. `extra` is what it brings for the receive, if
    /// the message consumes one. Returns whether the message is done: not if what it wrote is lost.
    pub(super) fn end<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        src_qpn: Qpn,
        solicited: bool,
        extra: Option<Extra>,
    ) -> bool {
        // RC-RESP-048, ORDER-005
        if extra.is_some() && !cx.sync() {
            return false;
        }
        let message = std::mem::take(&mut self.message);
        cx.count(Counter::ReceivedMessages, 1);
        if let Some(Extra::Invalidate(rkey)) = extra
            && !fault!(InvalidateNotDone)
        {
            // MW-025
            cx.keys.unbind(rkey);
            cx.count(Counter::KeysInvalidated, 1);
        }
        // UC-013
        let Some((extra, wr_id)) = extra.and_then(|extra| Some((extra, self.receive.end()?)))
        else {
            return true;
        };
        let (opcode, byte_len) = match message {
            // RC-RESP-008
            Message::Write(_) if fault!(ImmediateLengthLost) => (WcOpcode::RecvRdmaWithImm, 0),
            Message::Write(write) => (WcOpcode::RecvRdmaWithImm, write.length),
            Message::Send { received } => (WcOpcode::Recv, received as u32),
            Message::None => (WcOpcode::Recv, 0),
        };
        let received = cx.qp.received(wr_id);
        let extra = seeded::delivered(extra);
        // RC-RESP-049
        let completion = Completion { opcode, byte_len, extra, src_qpn, solicited, ..received };
        cx.complete(cx.qp.init.recv_cq, &completion);
        true
    }

    /// Whether a message is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.message != Message::None
    }

    /// Gives up the message under way; whether there was one. Its receive stays in use.
    pub(super) fn drop_message(&mut self) -> bool {
        std::mem::take(&mut self.message) != Message::None
    }

    /// The receive that messages are put into.
    pub(super) fn receive(&self) -> &Receive {
        &self.receive
    }

    /// Takes the receive in use out to be completed: its `wr_id`.
    pub(super) fn end_receive(&mut self) -> Option<u64> {
        self.receive.end()
    }
}

/// Whether a part of a message is as long as its place in the message says.
fn is_full<S, E>(part: &Part<S, E>, len: usize, mtu: u32) -> bool {
    let mtu = mtu as usize;
    match part {
        // RC-RESP-041
        Part::First(_) | Part::Middle => {
            len == mtu
                || (len < mtu && fault!(FirstShortTaken))
                || (len > mtu && fault!(FirstLongTaken))
        }
        // RC-RESP-043
        Part::Last(_) => (len > 0 || fault!(LastEmptyTaken)) && len <= mtu,
        // RC-RESP-042
        Part::Only(..) => len <= mtu || fault!(OnlyLongTaken),
    }
}
