//! The responder's other half: what it owes the peer, put into packets.

use super::replay::{AtomicResource, Done, ReadResource};
use super::{Reply, Responder, acknowledges_selectively};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::{AsyncEvent, Host};
use crate::memory::Span;
use crate::qp::common::{Cx, Failure};
use crate::qp::parameters::Route;
use crate::qp::train::Train;
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
                    let (sent, put) = self.send_read_responses(cx, route, tx, read, sent, budget);
                    if put.is_err() {
                        match self.was_answered(&read) {
                            true => self.drop_repeat(cx),
                            false => return Err(self.fail_read(cx, read.first_psn + sent)),
                        }
                    } else if sent < read.packets {
                        self.replies[0] = Reply::Read { read, sent };
                    } else {
                        self.kept.forget(read.end().prev());
                        self.replies.pop_front();
                    }
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

    /// Sends the answers to a READ from this one on, as many as there is room for. Returns which
    /// is the next, and why it cannot be made if so.
    fn send_read_responses<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        tx: &mut TxBatch,
        read: ReadResource,
        mut number: u32,
        budget: &mut u32,
    ) -> (u32, Result<(), Cause>) {
        let last = read.packets - 1;
        let mut train: Option<Train> = None;
        while number <= last && *budget > 0 && tx.has_room() {
            *budget -= 1;
            let left_out = if fault!(ReadResponseShort) { 4 } else { 0 };
            let len = (read.len - number * route.mtu).min(route.mtu - left_out) as usize;
            let put = if let Some(train) = &mut train
                && number < last
            {
                train.advance();
                tx.push(&route.flow, &train.headers, len, |buf| {
                    self.fill_read_response(cx, route, &read, number, Some(train), buf)
                })
            } else {
                let headers = self.read_response_headers(cx, route, &read, number);
                // The first differs from those behind it, and so does the last; and a mark is told
                // of once.
                if number > 0 && number + 1 < last && !headers.bth.becn {
                    let len = read.len - number * route.mtu;
                    let memory = read_memory(cx, route, &read, number, len).ok();
                    train = Some(Train::new(&headers, memory, route.mtu as usize));
                }
                tx.push(&route.flow, &headers, len, |buf| {
                    self.fill_read_response(cx, route, &read, number, None, buf)
                })
            };
            if put.is_err() {
                return (number, put);
            }
            self.answered(read.first_psn + number);
            cx.count_sent(len);
            number += 1;
        }
        (number, Ok(()))
    }

    /// The headers of an answer to a READ.
    fn read_response_headers<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        read: &ReadResource,
        number: u32,
    ) -> Headers {
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
        let told = if fault!(ReadResponsePsnStays) { 0 } else { number };
        Headers::new(self.bth(cx, route, read.first_psn + told), response)
    }

    /// Copies the data of an answer to a READ.
    fn fill_read_response<H: Host>(
        &self,
        cx: &mut Cx<'_, H>,
        route: &Route,
        read: &ReadResource,
        number: u32,
        train: Option<&Train>,
        buf: &mut [u8],
    ) -> Result<(), Cause> {
        if buf.is_empty() {
            return Ok(());
        }
        let kept = self.kept.find(read.first_psn + number, route.mtu);
        let kept = kept.and_then(|kept| kept.get(..buf.len()));
        let ahead = u64::from(read.len - number * route.mtu);
        if kept.is_none()
            && let Some(done) = train.and_then(|train| train.read(cx.host, buf, ahead))
        {
            return done;
        }
        // Checked again in each turn: the MR may have been deregistered meanwhile.
        let Span { region, offset } = read_memory(cx, route, read, number, buf.len() as u32)?;
        if let Some(kept) = kept {
            buf.copy_from_slice(kept);
            return Ok(());
        }
        cx.host.read_ahead(region, offset, ahead);
        cx.host.read(region, offset, buf).map_err(|_| Cause::LocalMemory)
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

/// Where `len` bytes that a READ asks for lie, from this answer on.
fn read_memory<H>(
    cx: &Cx<'_, H>,
    route: &Route,
    read: &ReadResource,
    number: u32,
    len: u32,
) -> Result<Span, Cause> {
    let va = read.va.wrapping_add(u64::from(number * route.mtu));
    cx.keys
        // RC-RESP-022, MW-027
        .remote(read.rkey, cx.qp.key_scope(), va, u64::from(len), Access::REMOTE_READ)
        .map_err(|_| Cause::RequestRefused)
}
