//! The responder's other half: what it owes the peer, put into packets.

use super::replay::{AtomicResource, Done, ReadResource};
use super::{Reply, Responder, acknowledges_selectively};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{AsyncEvent, Host};
use crate::qp::common::{Cx, Failure};
use crate::qp::parameters::Route;
use crate::tuning::WireForm;
use urxe_types::{Access, Pkey, Psn, WcStatus};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Aeth, Bth, Headers, NakCode, Response, Syndrome};

impl Responder {
    /// Whether something is owed to the peer.
    pub(in crate::qp::rc) fn owes_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether an ACK is all that is owed to the peer, and acknowledges nothing selectively.
    pub(in crate::qp::rc) fn owes_only_an_ack(&self) -> bool {
        // RC-RESP-036: there is never one behind another.
        self.replies.len() == 1
            && matches!(self.replies[0], Reply::Ack { .. })
            && self.early.is_empty()
    }

    /// Sends what is owed to the peer, in order. Returns whether there is more, held up by the
    /// batch's room or the end of this QP's turn. After a failure the peer is still to be told of
    /// it.
    pub(in crate::qp::rc) fn transmit<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        tx: &mut TxBatch,
        budget: &mut u32,
    ) -> Result<bool, Failure> {
        // RC-RESP-019
        while let Some(&reply) = self.replies.front() {
            if *budget == 0 || !tx.has_room() {
                return Ok(true);
            }
            match reply {
                Reply::Ack { psn, msn } => {
                    self.answered(psn);
                    let aeth = Aeth { syndrome: Syndrome::ACK, msn };
                    self.send_ack(cx, route, tx, psn, aeth);
                }
                Reply::Nak { psn, syndrome } => {
                    // RC-RESP-060: the peer lets go what is before it.
                    self.answered(psn.prev());
                    let aeth = Aeth { syndrome, msn: self.msn };
                    self.put_reply(cx, route, tx, psn, Response::Ack(aeth));
                }
                Reply::Atomic(AtomicResource { psn, original, msn }) => {
                    self.answered(psn);
                    let aeth = Aeth { syndrome: Syndrome::ACK, msn };
                    self.put_reply(cx, route, tx, psn, Response::AtomicAck { aeth, original });
                }
                Reply::AtomicWrite(Done { psn, msn }) | Reply::Flush(Done { psn, msn }) => {
                    self.answered(psn);
                    let aeth = Aeth { syndrome: Syndrome::ACK, msn };
                    // FAW-001, FAW-016
                    self.put_reply(cx, route, tx, psn, Response::ReadOnly(aeth));
                }
                Reply::Read { read, sent } => {
                    *budget -= 1;
                    if self.send_read_response(cx, route, tx, read, sent).is_err() {
                        match self.was_answered(&read) {
                            true => self.drop_repeat(cx),
                            false => return Err(self.fail_read(cx, read.first_psn + sent)),
                        }
                        continue;
                    }
                    if sent + 1 < read.packets {
                        let rest = Reply::Read { read, sent: sent + 1 };
                        self.replies[0] = rest;
                        continue;
                    }
                    self.kept.forget(read.first_psn + sent);
                    self.replies.pop_front();
                    continue;
                }
            }
            *budget -= 1;
            self.replies.pop_front();
        }
        Ok(false)
    }

    /// Sends an ACK, or, where something is kept behind the missing request and the peer
    /// understands it, a selective one.
    fn send_ack<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        tx: &mut TxBatch,
        psn: Psn,
        aeth: Aeth,
    ) {
        let is_up_to_date = psn.next() == self.expected;
        // REPAIR-010
        if self.early.is_empty() || !is_up_to_date || !acknowledges_selectively(cx, route) {
            cx.count(Counter::AcksSent, 1);
            return self.put_reply(cx, route, tx, psn, Response::Ack(aeth));
        }
        cx.count(Counter::SelectiveAcksSent, 1);
        let bitmap = self.early.bitmap(self.expected);
        let bth = self.bth(cx, route, psn);
        let headers = Headers::new(bth, Response::SelectiveAck { aeth });
        let Ok(()) = tx.push(&route.flow, &headers, bitmap.bytes().len(), |buf| {
            buf.copy_from_slice(bitmap.bytes());
            Ok::<(), std::convert::Infallible>(())
        });
        cx.count_sent(bitmap.bytes().len());
    }

    fn send_read_response<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        tx: &mut TxBatch,
        read: ReadResource,
        number: u32,
    ) -> Result<(), Cause> {
        let offset = number * route.mtu;
        let left_out = if fault!(ReadResponseShort) { 4 } else { 0 };
        let len = (read.len - offset).min(route.mtu - left_out);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: read.msn };
        // RC-RESP-017
        let response = match (number == 0, number + 1 == read.packets) {
            // TRAIN-022
            _ if read.in_onlys && route.wire == WireForm::Uniform => Response::ReadOnly(aeth),
            (true, true) => Response::ReadOnly(aeth),
            (true, false) => Response::ReadFirst(aeth),
            (false, true) if fault!(ReadEndsWithMiddle) => Response::ReadMiddle,
            (false, false) if fault!(ReadGoesOnWithFirst) => Response::ReadFirst(aeth),
            (false, false) => Response::ReadMiddle,
            (false, true) => Response::ReadLast(aeth),
        };
        let psn = read.first_psn + number;
        let told = if fault!(ReadResponsePsnStays) { read.first_psn } else { psn };
        let headers = Headers::new(self.bth(cx, route, told), response);
        let va = read.va.wrapping_add(u64::from(offset));
        let scope = cx.qp.key_scope();
        let kept = self.kept.find(psn, route.mtu);
        tx.push(&route.flow, &headers, len as usize, |buf| {
            if buf.is_empty() {
                return Ok(());
            }
            // Checked again for each packet: the MR may have been deregistered meanwhile.
            let span = cx
                .keys
                // RC-RESP-022, MW-027
                .remote(read.rkey, scope, va, buf.len() as u64, Access::REMOTE_READ)
                .map_err(|_| Cause::RequestRefused)?;
            if let Some(kept) = kept.and_then(|kept| kept.get(..buf.len())) {
                buf.copy_from_slice(kept);
                return Ok(());
            }
            let left = u64::from(read.len - offset);
            cx.host.read_ahead(span.region, span.offset, left);
            cx.host.read(span.region, span.offset, buf).map_err(|_| Cause::LocalMemory)
        })?;
        self.answered(psn);
        cx.count_sent(len as usize);
        Ok(())
    }

    /// Puts a reply without payload into the batch.
    fn put_reply<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        tx: &mut TxBatch,
        psn: Psn,
        response: Response,
    ) {
        let headers = Headers::new(self.bth(cx, route, psn), response);
        let Ok(()) = tx.push(&route.flow, &headers, 0, |_| Ok::<(), std::convert::Infallible>(()));
        cx.count_sent(0);
    }

    /// The BTH of a reply, which tells a peer that understands it of a congestion mark.
    fn bth<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route, psn: Psn) -> Bth {
        // REPAIR-018
        let becn = std::mem::take(&mut self.was_marked)
            && cx.peers.capabilities(route.flow.dst).is_some_and(|peer| peer.echoes_marks);
        cx.count(Counter::MarksEchoed, u64::from(becn));
        Bth {
            becn: becn || fault!(ReplyWithBecn),
            ack_req: fault!(ReplyAsksForAck),
            pkey: if fault!(ReplyOfOtherPartition) { Pkey(0x8001) } else { Pkey::DEFAULT },
            ..Bth::new(route.dest_qpn, psn)
        }
    }

    /// A reply spoke for everything up to `psn`; a replay may say less than was said before.
    fn answered(&mut self, psn: Psn) {
        if self.unanswered_from.precedes(psn.next()) {
            self.unanswered_from = psn.next();
        }
    }

    /// The memory of a READ that was answered before is gone. The peer most likely had the answer,
    /// which was only late, and what it then did is why the memory is gone (it had the window
    /// closed, for example). So this is no reason to end the connection.
    fn drop_repeat<H>(&mut self, cx: &mut Cx<'_, H>) {
        cx.count(Counter::DropUnknownDuplicate, 1);
        self.replies.pop_front();
    }

    /// The memory of a READ under way is gone: a NAK takes the place of the rest.
    fn fail_read<H>(&mut self, cx: &mut Cx<'_, H>, psn: Psn) -> Failure {
        cx.count(Counter::RemoteAccessNaksSent, 1);
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        self.reply_only(Reply::Nak { psn, syndrome });
        Failure::Receive {
            status: WcStatus::LocalAccess,
            cause: Cause::RequestRefused,
            event: Some(AsyncEvent::QpAccessError(cx.qp.qpn)),
        }
    }
}
