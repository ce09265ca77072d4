//! READs keep their place among the requests: before a later request stores something where an
//! earlier READ has yet to take its answer from, that answer is copied.
//!
//! Hardly any program does that without a fence, so there is room for short READs only, such as
//! those of locks and counters; a longer one shows the newer bytes, as the standard allows. So does
//! an answer that is repeated because it was lost.

use super::{Reply, Responder};
use crate::counters::Counter;
use crate::host::Host;
use crate::limits::KEPT_READ_BYTES;
use crate::memory::Span;
use crate::qp::common::Cx;
use crate::qp::send_queue::distance;
use urxe_types::{Access, Psn};

/// Answers that were copied and are yet to be sent.
#[derive(Debug, Default)]
pub(super) struct KeptReads(Vec<KeptRead>);

#[derive(Debug)]
struct KeptRead {
    /// The PSN that the data begins with.
    first_psn: Psn,
    packets: u32,
    data: Vec<u8>,
}

impl KeptRead {
    fn has(&self, psn: Psn) -> bool {
        distance(self.first_psn, psn) < self.packets
    }
}

impl KeptReads {
    /// The data of the response with this PSN, if it was copied, and what follows it.
    pub(super) fn find(&self, psn: Psn, mtu: u32) -> Option<&[u8]> {
        let kept = self.0.iter().find(|kept| kept.has(psn))?;
        kept.data.get(distance(kept.first_psn, psn) as usize * mtu as usize..)
    }

    /// The READ that this PSN belongs to is answered.
    pub(super) fn forget(&mut self, psn: Psn) {
        self.0.retain(|kept| !kept.has(psn));
    }

    /// Nothing is answered any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|kept| kept.data.len()).sum()
    }
}

impl Responder {
    /// To be called before a request stores `len` bytes: copies what earlier READs have yet to
    /// send of them.
    pub(super) fn keep_reads<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
        mtu: u32,
        target: &Span,
        len: u64,
    ) {
        for index in 0..self.replies.len() {
            let Reply::Read { read, sent } = self.replies[index] else { continue };
            let first_psn = read.first_psn + sent;
            // A repeated answer shows what is there now.
            let settled =
                self.was_answered(&read) || self.kept.0.iter().any(|kept| kept.has(first_psn));
            if settled {
                continue;
            }
            let (va, left) = (read.va.wrapping_add(u64::from(sent * mtu)), read.len - sent * mtu);
            let source = cx.keys.remote(
                read.rkey,
                cx.qp.key_scope(),
                va,
                u64::from(left),
                Access::REMOTE_READ,
            );
            // Where the key opens nothing any more, the answer will be a refusal.
            let Ok(source) = source else { continue };
            if left == 0 || !overlap(&source, u64::from(left), target, len) {
                continue;
            }
            if self.kept.bytes() + left as usize > KEPT_READ_BYTES {
                cx.count(Counter::ReadsOvertaken, 1);
                continue;
            }
            let mut data = vec![0; left as usize];
            if cx.host.read(source.region, source.offset, &mut data).is_ok() {
                let packets = read.packets - sent;
                self.kept.0.push(KeptRead { first_psn, packets, data });
            }
        }
    }
}

fn overlap(a: &Span, a_len: u64, b: &Span, b_len: u64) -> bool {
    a.region == b.region && a.offset < b.offset + b_len && b.offset < a.offset + a_len
}
