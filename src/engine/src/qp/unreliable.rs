//! The responder of UC: nothing is acknowledged, and what is lost stays lost.
//!
//! A message of which a packet was lost or refused is dropped whole. Its receive stays in use, and
//! the next message gets it (IBTA 9.9.3, class D errors).

use super::responder::{Message, Refusal};
use super::{Cx, Qp};
use crate::counters::Counter;
use crate::host::Host;
use urxe_wire::{Headers, Packet, Request};

impl Qp {
    /// A UC request packet arrived.
    pub(super) fn handle_unreliable_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Request>,
    ) {
        if !self.may_receive() {
            return self.count(cx, Counter::DropQpNotReady, 1);
        }
        self.establish(cx);
        let Headers { bth, body } = &packet.headers;
        let starts = body.starts();
        let is_next = bth.psn == self.responder.expected;
        if !is_next {
            self.count(cx, Counter::UcGaps, 1);
        }
        if !is_next || starts {
            self.drop_message(cx);
        }
        self.responder.expected = bth.psn;
        if !starts && self.responder.message == Message::None {
            self.count(cx, Counter::DropMessagePart, 1);
        } else if let Err(refusal) = self.try_unreliable_request(cx, packet) {
            self.drop_refused(cx, refusal);
        }
        self.responder.expected = bth.psn.next();
    }

    fn try_unreliable_request<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &Packet<'_, Request>,
    ) -> Result<(), Refusal> {
        let request = &packet.headers.body;
        self.check_sequence(request)?;
        self.check_enabled(request)?;
        self.check_length(packet)?;
        self.check_resources(cx, request)?;
        self.execute(cx, packet)
    }

    /// Gives up the message under way, if there is one.
    fn drop_message<H>(&mut self, cx: &mut Cx<'_, H>) {
        if std::mem::replace(&mut self.responder.message, Message::None) != Message::None {
            self.count(cx, Counter::UcMessagesDropped, 1);
        }
    }

    /// Drops a request, and with it its message; nobody is told. Only what is wrong with our own
    /// side ends the QP.
    pub(super) fn drop_refused<H>(&mut self, cx: &mut Cx<'_, H>, refusal: Refusal) {
        self.drop_message(cx);
        let counter = match refusal {
            Refusal::ReceiverNotReady => Counter::DropNoReceive,
            Refusal::InvalidRequest => Counter::DropInvalidRequest,
            Refusal::RemoteAccess => Counter::DropRemoteAccess,
            Refusal::ReceiveTooShort => Counter::DropReceiveTooShort,
            Refusal::Local(_) => return self.fail_receive(refusal),
        };
        self.count(cx, counter, 1);
    }
}
