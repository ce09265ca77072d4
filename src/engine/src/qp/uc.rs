//! UC: connected, in order, but nothing is acknowledged, and what is lost stays lost.
//!
//! A message of which a packet was lost or refused is dropped whole. Its receive stays in use, and
//! the next message gets it (IBTA 9.9.3, class D errors).

use super::common::{Cx, Error, Failure};
use super::message::{Incoming, check_enabled};
use super::parameters::Route;
use super::receive::Refusal;
use super::send_queue::SendQueue;
use crate::counters::Counter;
use crate::host::Host;
use urxe_types::{Access, Extra, Psn};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Body, Headers, Packet, Request};

/// The service of a UC QP.
#[derive(Debug)]
pub(super) struct Uc {
    route: Route,
    /// What the peer may do.
    access: Access,
    /// The PSN of the next request.
    expected: Psn,
    incoming: Incoming,
}

impl Uc {
    pub(super) fn new(route: Route, access: Access, rq_psn: Psn) -> Uc {
        Uc { route, access, expected: rq_psn, incoming: Incoming::default() }
    }

    pub(super) fn update(&mut self, route: Route, access: Access) {
        self.route = route;
        self.access = access;
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    pub(super) fn route_mut(&mut self) -> &mut Route {
        &mut self.route
    }

    pub(super) fn expected_psn(&self) -> Psn {
        self.expected
    }

    pub(super) fn end_receive(&mut self) -> Option<u64> {
        self.incoming.end_receive()
    }

    /// Sends what may be sent now. Returns whether there is more, held up only by the batch's
    /// room or the end of this QP's turn.
    pub(super) fn transmit<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        budget: &mut u32,
    ) -> Result<bool, Failure> {
        sq.transmit_unanswered(cx, tx, budget, self.route.mtu, |sq, cx, tx, most| {
            self.send_current(cx, sq, tx, most)
        })
    }

    /// Sends the current packet and those behind it in its message, but at most so many. Returns
    /// how many of the turn's packets that takes.
    fn send_current<H: Host>(
        &self,
        cx: &mut Cx<'_, H>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        most: u32,
    ) -> Result<u32, Error> {
        let Some((pending, packet)) = sq.current() else { return Ok(1) };
        let packets = pending.packets();
        let end = packets.min(packet + most.min(tx.room_in_datagrams() as u32));
        let body = |request: Request| request.unreliable().map(Body::Uc);
        // UC-001
        let put = pending.put_train(cx, tx, &self.route, packet..end, false, body);
        let sent_to = put.as_ref().err().map_or(end, |unsent| unsent.from);
        if sent_to > packet {
            sq.sent_current(sent_to);
        }
        put.map_err(|unsent| unsent.error)?;
        // UC-002: a message ends with its last packet.
        if end == packets {
            sq.end_front(cx);
        }
        Ok(end - packet)
    }

    /// A request packet arrived.
    pub(super) fn handle_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Failure> {
        if !cx.qp.may_receive() {
            cx.count(Counter::DropQpNotReady, 1);
            return Ok(());
        }
        cx.establish();
        let Headers { bth, body: request } = &packet.headers;
        let starts = request.starts();
        let is_next = bth.psn == self.expected;
        if !is_next {
            cx.count(Counter::UcGaps, 1);
        }
        // UC-008, UC-011, UC-012
        if (!is_next && !fault!(UcHoleTaken)) || starts {
            self.drop_message(cx);
        }
        // UC-009
        if is_next || !fault!(UcStaysAtGap) {
            self.expected = bth.psn.next();
        }
        // UC-010
        if !starts && !self.incoming.is_under_way() {
            cx.count(Counter::DropMessagePart, 1);
            return Ok(());
        }
        self.execute(cx, packet).or_else(|refusal| {
            self.drop_message(cx);
            refusal.drop_message(cx, self.incoming.receive())
        })
    }

    fn execute<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Refusal> {
        let Packet { headers: Headers { bth, body: request }, payload } = packet;
        self.incoming.check_sequence(request)?;
        check_enabled(self.access, request)?;
        self.incoming.check_length(packet, self.route.mtu)?;
        self.incoming.check_receive(cx, request)?;
        // What the last packet of a message brings for the receive, if that is consumed.
        let ended = match request {
            Request::Send(part) => {
                self.incoming.put(cx, payload)?;
                part.end().map(|extra| Some(*extra))
            }
            Request::Write(part) => {
                let target = self.incoming.check_write(cx, part, payload)?;
                self.incoming.store(cx, target, payload, part.ends())?;
                // UC-007
                part.end().map(|imm| imm.map(Extra::Imm))
            }
            _ => return Err(Refusal::InvalidRequest),
        };
        if let Some(extra) = ended {
            // UC-006: nothing is sent back.
            self.incoming.end(cx, self.route.dest_qpn, bth.solicited, extra);
        }
        Ok(())
    }

    /// Gives up the message under way, if there is one.
    fn drop_message<H>(&mut self, cx: &mut Cx<'_, H>) {
        if self.incoming.drop_message() {
            cx.count(Counter::UcMessagesDropped, 1);
        }
    }
}
