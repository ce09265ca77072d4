//! Datagrams on their way out, laid so that one system call can carry many.
//!
//! A socket with segmentation offload (`UDP_SEGMENT`) takes up to 64 KiB and a segment size, and
//! sends them as datagrams of that size, the last one perhaps shorter. So datagrams are laid back
//! to back into one arena and grouped into *runs*: consecutive datagrams of one [`Flow`], one slot
//! of the peer and one length, which a shorter one may end. A longer datagram, another flow or
//! slot, or a limit of the port begins a new run.
//!
//! The ICRC is stamped while the bytes are in the cache, when a datagram is pushed. It covers the
//! IPv4 identification, so [`IdentPolicy`] says what that will be.

use crate::{Bth, EmitHeaders, Flow, Headers, MAX_UDP_PAYLOAD, icrc, joined};
use std::net::IpAddr;
use urxe_types::{PathMtu, Qpn, SlotId};

/// The longest RoCEv2 datagram (UDP payload), in bytes: what [`TxBatch::has_room`] has room for.
pub const MAX_DATAGRAM: usize = Headers::MAX_LEN + PathMtu::Mtu4096.bytes() + icrc::LEN;

/// What one send of a port may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLimits {
    /// Datagrams in a run, at least 1.
    pub max_segments: usize,
    /// Bytes in a run, at most [`MAX_UDP_PAYLOAD`]. A datagram longer than this is a run alone.
    pub max_run_bytes: usize,
    /// Which IPv4 identification each datagram is sent with.
    pub ident: IdentPolicy,
}

impl TxLimits {
    /// A port that sends each datagram for itself, with identification 0: a UDP socket without
    /// segmentation, or a raw socket that writes 0 (right for packets that must not be
    /// fragmented: RFC 6864).
    pub const SINGLE: TxLimits = TxLimits::segmented(1);

    /// A UDP socket whose kernel cuts a run into up to `max_segments` datagrams.
    pub const fn segmented(max_segments: usize) -> TxLimits {
        TxLimits { max_segments, max_run_bytes: MAX_UDP_PAYLOAD, ident: IdentPolicy::IndexInRun }
    }
}

/// Which IPv4 identification a port sends a datagram with, for the ICRC to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentPolicy {
    /// The datagram's index within its run: 0, 1, 2 ... That is what Linux makes of a run sent
    /// from an unconnected UDP socket with `IP_PMTUDISC_DO`.
    IndexInRun,
    /// One more with each datagram of the batch's life, as most senders number. For a port that
    /// writes the IP header itself and takes the number from [`Datagram::ident`].
    Counting {
        /// The next datagram's.
        next: u16,
    },
}

/// A batch of finished datagrams. Nothing is allocated per datagram, nothing zeroed.
///
/// It is also the queue that a port drains: [`runs`](Self::runs) shows what is still to be sent,
/// [`advance`](Self::advance) says how much of it was, and what is left stays for the next call
/// when a socket was full.
#[derive(Debug)]
pub struct TxBatch {
    limits: TxLimits,
    /// The datagrams, back to back; bytes from `end` on are leftovers.
    arena: Box<[u8]>,
    end: usize,
    spans: Vec<Span>,
    /// How many of the spans were sent.
    sent: usize,
    /// How many datagrams the others have.
    unsent_datagrams: usize,
}

/// Where a run lies.
#[derive(Clone, Copy, Debug)]
struct Span {
    flow: Flow,
    start: usize,
    end: usize,
    segment_len: usize,
    segments: usize,
    first_ident: u16,
    /// Its two packets are one datagram.
    is_joined: bool,
    /// The slot of the peer that all of them are for.
    slot: SlotId,
}

impl Span {
    fn run<'a>(&'a self, arena: &'a [u8]) -> Run<'a> {
        Run {
            flow: &self.flow,
            bytes: &arena[self.start..self.end],
            segment_len: self.segment_len,
            segments: self.segments,
            first_ident: self.first_ident,
            is_joined: self.is_joined,
            slot: self.slot,
        }
    }
}

/// Consecutive datagrams that one segmented send can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// The outer headers of all of them.
    pub flow: &'a Flow,
    /// The datagrams, back to back.
    pub bytes: &'a [u8],
    /// Length of each datagram but the last, which may be shorter.
    pub segment_len: usize,
    /// How many datagrams.
    pub segments: usize,
    /// The IPv4 identification of the first; each next has one more.
    pub first_ident: u16,
    /// They are two, and go [in one datagram](joined): one send without segmentation.
    pub is_joined: bool,
    /// The slot of the peer that all of them are for.
    pub slot: SlotId,
}

/// One finished datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its outer headers.
    pub flow: &'a Flow,
    /// Its IPv4 identification, which the ICRC was stamped with.
    pub ident: u16,
    /// The UDP payload, ICRC included.
    pub bytes: &'a [u8],
}

/// The IPv4 identification of a packet of a run, by its place there: two in one datagram have one.
fn ident_in_run(first_ident: u16, is_joined: bool, place: u16) -> u16 {
    if is_joined { first_ident } else { first_ident.wrapping_add(place) }
}

impl<'a> Run<'a> {
    /// The datagrams of the run, in order; each packet for itself where two are in one.
    pub fn datagrams(self) -> impl Iterator<Item = Datagram<'a>> {
        (0u16..).zip(self.bytes.chunks(self.segment_len)).map(move |(i, bytes)| Datagram {
            flow: self.flow,
            ident: ident_in_run(self.first_ident, self.is_joined, i),
            bytes,
        })
    }

    /// Whether the port cuts it into datagrams.
    pub fn is_segmented(&self) -> bool {
        self.segments > 1 && !self.is_joined
    }
}

impl TxBatch {
    /// An empty batch with room for `capacity` bytes of datagrams, or for one datagram if that is
    /// more.
    pub fn new(limits: TxLimits, capacity: usize) -> TxBatch {
        TxBatch {
            limits,
            arena: vec![0; capacity.max(MAX_DATAGRAM)].into_boxed_slice(),
            end: 0,
            spans: Vec::new(),
            sent: 0,
            unsent_datagrams: 0,
        }
    }

    /// What runs are built to.
    pub fn limits(&self) -> TxLimits {
        self.limits
    }

    /// Whether everything was sent, or nothing pushed.
    pub fn is_empty(&self) -> bool {
        self.sent == self.spans.len()
    }

    /// How many datagrams are still to be sent.
    pub fn len(&self) -> usize {
        self.unsent_datagrams
    }

    /// Whether there is room for one more datagram, of whatever length RoCEv2 allows.
    pub fn has_room(&self) -> bool {
        self.room() >= MAX_DATAGRAM
    }

    /// For how many more datagrams there is room, of whatever lengths RoCEv2 allows.
    pub fn room_in_datagrams(&self) -> usize {
        self.room() / MAX_DATAGRAM
    }

    /// Bytes of datagrams that can still be pushed.
    pub fn room(&self) -> usize {
        self.arena.len() - self.end
    }

    /// Bytes of datagrams that were pushed since it was [cleared](Self::clear).
    pub fn used(&self) -> usize {
        self.end
    }

    /// Adds a datagram: emits `headers`, lets `fill` write the payload, adds the padding (and the
    /// pad count to the BTH, whatever it says), and stamps the ICRC.
    ///
    /// What `fill` is given holds leftovers: it writes every byte, or fails, and then nothing is
    /// added.
    ///
    /// # Panics
    /// If there is no [room](Self::room) for the datagram.
    pub fn push<E>(
        &mut self,
        flow: &Flow,
        headers: &impl EmitHeaders,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let payload_at = headers.header_len();
        let pad_at = payload_at + payload_len;
        let icrc_at = pad_at.next_multiple_of(4);
        let len = icrc_at + icrc::LEN;
        let placement = self.placement(flow, headers.dest_qp(), len);
        let datagram = self.vacant(len);
        headers.emit_to(datagram);
        Bth::emit_pad(datagram, (icrc_at - pad_at) as u8);
        fill(&mut datagram[payload_at..pad_at])?;
        // WIRE-012
        datagram[pad_at..icrc_at].fill(0);
        icrc::stamp(flow, placement.ident, datagram);
        self.append(flow, len, placement);
        Ok(())
    }

    /// Adds a datagram that is there already (headers, payload and padding; whatever its ICRC is,
    /// it is stamped anew), and returns it as it lies in the batch, for those who want to damage
    /// it. One that is too short for a BTH and an ICRC goes as it is.
    ///
    /// # Panics
    /// If it is longer than a UDP datagram can be.
    pub fn push_raw(&mut self, flow: &Flow, udp_payload: &[u8]) -> &mut [u8] {
        let len = udp_payload.len();
        let placement = self.placement(flow, Bth::dest_qp_in(udp_payload).unwrap_or_default(), len);
        let datagram = self.vacant(len);
        datagram.copy_from_slice(udp_payload);
        if icrc::has_room_in(datagram) {
            icrc::stamp(flow, placement.ident, datagram);
        }
        self.append(flow, len, placement);
        &mut self.arena[self.end - len..self.end]
    }

    /// Puts the last two packets into one datagram, if they are a run of their own and a short
    /// request and an ACK behind it; returns whether they are. The peer is known to take them so.
    pub fn join_ack(&mut self) -> bool {
        let Some(run) = self.spans[self.sent..].last_mut() else { return false };
        if run.segments != 2 || self.limits.ident != IdentPolicy::IndexInRun {
            return false;
        }
        let (request, ack) = self.arena[run.start..run.end].split_at_mut(run.segment_len);
        run.is_joined = joined::can_join(request, ack);
        if run.is_joined {
            Bth::emit_resv7(request, Bth::ACK_BEHIND);
            icrc::stamp(&run.flow, run.first_ident, request);
            // It is so short that this is less work than to renumber it.
            icrc::stamp(&run.flow, run.first_ident, ack);
        }
        run.is_joined
    }

    /// The runs still to be sent, in order.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.unsent().iter().map(|span| span.run(&self.arena))
    }

    /// The datagrams still to be sent, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.runs().flat_map(Run::datagrams)
    }

    /// Says that the first `runs` runs are done with, sent or given up. When none is left the
    /// batch is as new.
    pub fn advance(&mut self, runs: usize) {
        let from = self.sent;
        self.sent = (from + runs).min(self.spans.len());
        let done: usize = self.spans[from..self.sent].iter().map(|span| span.segments).sum();
        self.unsent_datagrams -= done;
        if self.is_empty() {
            self.clear();
        }
    }

    /// Takes out the runs still to be sent for which `takes` says so, in order: they go another
    /// way. The others stay as they are.
    pub fn take_runs(&mut self, mut takes: impl FnMut(Run<'_>) -> bool) {
        let mut kept = self.sent;
        for at in self.sent..self.spans.len() {
            let span = self.spans[at];
            if takes(span.run(&self.arena)) {
                self.unsent_datagrams -= span.segments;
            } else {
                self.spans[kept] = span;
                kept += 1;
            }
        }
        self.spans.truncate(kept);
        if self.is_empty() {
            self.clear();
        }
    }

    /// Forgets every datagram.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.sent = 0;
        self.unsent_datagrams = 0;
        self.end = 0;
    }

    /// Makes every datagram still to be sent a run of its own, and every later one: for a port
    /// whose segmentation turned out not to work. ICRCs follow the identifications; one that was
    /// wrong stays wrong.
    pub fn split(&mut self) {
        self.limits.max_segments = 1;
        let whole: Vec<Span> = self.spans.drain(self.sent..).collect();
        for run in whole {
            if run.is_joined {
                self.spans.push(run);
                continue;
            }
            for (i, start) in (0u16..).zip((run.start..run.end).step_by(run.segment_len)) {
                let end = run.end.min(start + run.segment_len);
                let ident = run.first_ident.wrapping_add(i);
                let first_ident = match self.limits.ident {
                    IdentPolicy::IndexInRun => 0,
                    IdentPolicy::Counting { .. } => ident,
                };
                icrc::renumber(&run.flow, ident, first_ident, &mut self.arena[start..end]);
                let segment_len = end - start;
                self.spans.push(Span { start, end, segment_len, segments: 1, first_ident, ..run });
            }
        }
    }

    /// Brings together what leaves from one address and port, so that it can be sent in one call.
    /// The datagrams of one flow stay in their order; those of flows from other ports may change
    /// places with them.
    pub fn group_by_source(&mut self) {
        let source = |run: &Span| (run.flow.src, run.flow.src_port, run.start);
        self.spans[self.sent..].sort_unstable_by_key(source);
    }

    /// Lets what was to leave from one address and UDP port leave from another port. An ICRC that
    /// was wrong stays wrong.
    pub fn replace_source_port(&mut self, src: IpAddr, from: u16, to: u16) {
        let unsent = &mut self.spans[self.sent..];
        for run in unsent.iter_mut().filter(|run| (run.flow.src, run.flow.src_port) == (src, from))
        {
            let flow = Flow { src_port: to, ..run.flow };
            let datagrams = self.arena[run.start..run.end].chunks_mut(run.segment_len);
            for (i, datagram) in (0u16..).zip(datagrams) {
                let ident = ident_in_run(run.first_ident, run.is_joined, i);
                icrc::reroute(&run.flow, &flow, ident, datagram);
            }
            run.flow = flow;
        }
    }

    fn unsent(&self) -> &[Span] {
        &self.spans[self.sent..]
    }

    /// The bytes that the next datagram comes to lie in.
    fn vacant(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.room(), "no room for {len} bytes in {}", self.room());
        &mut self.arena[self.end..][..len]
    }

    /// Where a datagram of `len` bytes to a QP would come.
    fn placement(&self, flow: &Flow, dest_qp: Qpn, len: usize) -> Placement {
        let slot = SlotId::named_by(dest_qp);
        let continued = self.unsent().last().filter(|run| {
            let run_len = run.end - run.start;
            // After a grouping the last run need not lie last.
            run.end == self.end
                && len <= run.segment_len
                && run_len == run.segments * run.segment_len
                && run.segments < self.limits.max_segments
                && run_len + len <= self.limits.max_run_bytes
                && !run.is_joined
                // WIRE-200: what arrives together is given to one slot together.
                && run.slot == slot
                && run.flow == *flow
        });
        let ident = match (self.limits.ident, continued) {
            (IdentPolicy::Counting { next }, _) => next,
            // WIRE-032
            (IdentPolicy::IndexInRun, Some(run)) => run.segments as u16,
            (IdentPolicy::IndexInRun, None) => 0,
        };
        Placement { continues_run: continued.is_some(), ident, slot }
    }

    /// Makes the datagram of `len` bytes that now lies in the vacant part the last one.
    fn append(&mut self, flow: &Flow, len: usize, placement: Placement) {
        let start = self.end;
        self.end += len;
        self.unsent_datagrams += 1;
        if let IdentPolicy::Counting { next } = &mut self.limits.ident {
            *next = next.wrapping_add(1);
        }
        match self.spans.last_mut() {
            Some(run) if placement.continues_run => {
                run.end = self.end;
                run.segments += 1;
            }
            _ => self.spans.push(Span {
                flow: *flow,
                start,
                end: self.end,
                segment_len: len,
                segments: 1,
                first_ident: placement.ident,
                is_joined: false,
                slot: placement.slot,
            }),
        }
    }
}

/// Where a datagram comes to stand in a batch.
struct Placement {
    /// In the last run, or in one of its own.
    continues_run: bool,
    /// The identification that it is sent with.
    ident: u16,
    /// The slot that it is for.
    slot: SlotId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::{Checker, Verdict};
    use crate::testing::{UNWRITTEN, headers};
    use crate::{Body, DONT_FRAGMENT, Ident, Opcode, Outer, Packet};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use urxe_types::Psn;

    const MTU: usize = 1024;

    fn flow(last_octet: u8) -> Flow {
        Flow {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, last_octet].into(),
            src_port: 49152,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    fn headers_of(opcode: Opcode) -> Headers {
        Headers::new(Bth::new(Qpn::new(0x11), Psn::new(0)), Body::zeroed(opcode))
    }

    fn push(batch: &mut TxBatch, flow: &Flow, opcode: Opcode, payload_len: usize) {
        let fill = |payload: &mut [u8]| -> Result<(), Infallible> {
            payload.fill(payload_len as u8);
            Ok(())
        };
        batch.push(flow, &headers_of(opcode), payload_len, fill).unwrap();
    }

    /// SEND ONLYs of these payload lengths.
    fn push_sends(batch: &mut TxBatch, flow: &Flow, payload_lens: &[usize]) {
        for len in payload_lens {
            push(batch, flow, Opcode::RC_SEND_ONLY, *len);
        }
    }

    fn batch(limits: TxLimits) -> TxBatch {
        let mut batch = TxBatch::new(limits, 256 << 10);
        batch.arena.fill(UNWRITTEN);
        batch
    }

    fn segments(batch: &TxBatch) -> Vec<usize> {
        batch.runs().map(|run| run.segments).collect()
    }

    /// The slots that a run is for.
    fn slots_of(run: &Run<'_>) -> BTreeSet<SlotId> {
        run.datagrams()
            .map(|datagram| SlotId::named_by(Bth::dest_qp_in(datagram.bytes).unwrap()))
            .collect()
    }

    /// How many datagrams have an ICRC that is wrong for what they will be sent with.
    fn bad(batch: &TxBatch) -> usize {
        let is_bad = |datagram: &Datagram<'_>| {
            let ident = Ident::Known { ident: datagram.ident, fragment: DONT_FRAGMENT };
            let outer = Outer { flow: *datagram.flow, ident };
            Checker::new().check(&outer, datagram.bytes) == Verdict::Bad
        };
        batch.datagrams().filter(is_bad).count()
    }

    #[test]
    fn a_write_of_64_kib_is_two_runs() {
        let mut batch = batch(TxLimits::segmented(64));
        push(&mut batch, &flow(2), Opcode::RC_WRITE_FIRST, MTU);
        for _ in 0..62 {
            push(&mut batch, &flow(2), Opcode::RC_WRITE_MIDDLE, MTU);
        }
        push(&mut batch, &flow(2), Opcode::RC_WRITE_LAST, MTU);
        // FIRST has a RETH more than the others: the first MIDDLE ends its run.
        let runs: Vec<(usize, usize)> =
            batch.runs().map(|run| (run.segment_len, run.segments)).collect();
        assert_eq!(runs, [(28 + MTU + 4, 2), (12 + MTU + 4, 62)]);
        assert_eq!(batch.len(), 64);
        assert_eq!(bad(&batch), 0);
    }

    #[test]
    fn a_shorter_datagram_ends_a_run_and_a_longer_one_begins_one() {
        let mut batch = batch(TxLimits::segmented(64));
        push_sends(&mut batch, &flow(2), &[100, 100, 40, 40, 40, 100, 100]);
        assert_eq!(segments(&batch), [3, 2, 2]);
    }

    #[test]
    fn runs_that_go_another_way_are_taken_out_and_the_others_stay_in_order() {
        let mut batch = batch(TxLimits::segmented(64));
        for (to, count) in [(1, 3), (2, 2), (1, 1), (3, 4), (2, 5)] {
            push_sends(&mut batch, &flow(to), &[100; 5][..count]);
        }
        let mut taken = Vec::new();
        batch.take_runs(|run| {
            let takes = *run.flow == flow(2);
            taken.extend(takes.then_some(run.segments));
            takes
        });
        assert_eq!(taken, [2, 5]);
        assert_eq!(segments(&batch), [3, 1, 4]);
        assert_eq!((batch.len(), bad(&batch)), (8, 0));
        // The last one was taken out: what comes now does not lie behind the last that is there.
        push_sends(&mut batch, &flow(3), &[100]);
        assert_eq!(segments(&batch), [3, 1, 4, 1]);
        batch.advance(1);
        batch.take_runs(|_| true);
        assert!(batch.is_empty());
        assert_eq!((batch.len(), batch.used()), (0, 0));
    }

    #[test]
    fn another_flow_begins_a_run() {
        let mut batch = batch(TxLimits::segmented(64));
        for to in [2, 2, 3, 2] {
            push_sends(&mut batch, &flow(to), &[100]);
        }
        assert_eq!(segments(&batch), [2, 1, 1]);
        push_sends(&mut batch, &Flow { traffic_class: 2, ..flow(2) }, &[100]);
        assert_eq!(segments(&batch), [2, 1, 1, 1], "the traffic class is part of the flow");
    }

    #[test]
    fn another_slot_of_the_peer_begins_a_run() {
        let mut built = batch(TxLimits::segmented(64));
        let qpns = [0x11, 0x3_ffff, 0x4_0000, 0x4_0001, 0x7_ffff, 0x8_0000, 0x11];
        for qpn in qpns.map(Qpn::new) {
            let bth = Bth::new(qpn, Psn::new(0));
            let headers = Headers::new(bth, Body::zeroed(Opcode::RC_SEND_ONLY));
            built.push(&flow(2), &headers, 4, |_| Ok::<(), Infallible>(())).unwrap();
        }
        let mut copied = batch(TxLimits::segmented(64));
        for datagram in built.datagrams() {
            copied.push_raw(datagram.flow, datagram.bytes);
        }
        for batch in [built, copied] {
            assert_eq!(segments(&batch), [2, 3, 1, 1]);
            assert!(batch.runs().all(|run| slots_of(&run).len() == 1));
            assert_eq!(bad(&batch), 0);
        }
    }

    #[test]
    fn a_run_keeps_to_the_limits_of_the_port() {
        let mut by_count = batch(TxLimits::segmented(3));
        push_sends(&mut by_count, &flow(2), &[100; 7]);
        assert_eq!(segments(&by_count), [3, 3, 1]);

        let two_and_a_bit = 2 * (12 + 100 + 4) + 50;
        let limits = TxLimits { max_run_bytes: two_and_a_bit, ..TxLimits::segmented(64) };
        let mut by_bytes = batch(limits);
        push_sends(&mut by_bytes, &flow(2), &[100; 5]);
        assert_eq!(segments(&by_bytes), [2, 2, 1]);
    }

    #[test]
    fn a_run_is_never_longer_than_a_udp_datagram() {
        let mut batch = batch(TxLimits::segmented(128));
        push_sends(&mut batch, &flow(2), &[1024; 100]);
        assert_eq!(segments(&batch), [62, 38]);
        assert!(batch.runs().all(|run| run.bytes.len() <= MAX_UDP_PAYLOAD));
    }

    #[test]
    fn identifications_are_the_indices_in_the_run() {
        let mut batch = batch(TxLimits::segmented(3));
        push_sends(&mut batch, &flow(2), &[8; 5]);
        let idents: Vec<u16> = batch.datagrams().map(|datagram| datagram.ident).collect();
        assert_eq!(idents, [0, 1, 2, 0, 1]);
        assert_eq!(bad(&batch), 0);
    }

    #[test]
    fn identifications_may_count_through() {
        let ident = IdentPolicy::Counting { next: 0xfffe };
        let mut batch = batch(TxLimits { ident, ..TxLimits::segmented(2) });
        push_sends(&mut batch, &flow(2), &[8; 3]);
        push_sends(&mut batch, &flow(3), &[8; 2]);
        let idents = |batch: &TxBatch| batch.datagrams().map(|d| d.ident).collect::<Vec<u16>>();
        assert_eq!(idents(&batch), [0xfffe, 0xffff, 0, 1, 2]);
        assert_eq!(bad(&batch), 0);
        batch.clear();
        push_sends(&mut batch, &flow(2), &[8]);
        assert_eq!(idents(&batch), [3], "also from one filling to the next");
    }

    #[test]
    fn padding_is_zero_and_counted() {
        let mut batch = batch(TxLimits::SINGLE);
        for payload_len in 0..8 {
            push_sends(&mut batch, &flow(2), &[payload_len]);
            let datagram = batch.datagrams().last().unwrap();
            let packet = Packet::parse(datagram.bytes).unwrap();
            assert_eq!(packet.payload, vec![payload_len as u8; payload_len]);
            let icrc_at = datagram.bytes.len() - icrc::LEN;
            let pad = &datagram.bytes[12 + payload_len..icrc_at];
            assert!(pad.iter().all(|byte| *byte == 0), "{pad:x?}");
        }
    }

    #[test]
    fn a_payload_that_cannot_be_read_leaves_nothing() {
        let mut batch = batch(TxLimits::segmented(64));
        push_sends(&mut batch, &flow(2), &[8]);
        let headers = headers_of(Opcode::RC_SEND_ONLY);
        for to in [2, 3] {
            assert_eq!(batch.push(&flow(to), &headers, 8, |_| Err("gone")), Err("gone"));
        }
        push_sends(&mut batch, &flow(2), &[8]);
        assert_eq!(segments(&batch), [2]);
        assert_eq!(bad(&batch), 0);
    }

    #[test]
    fn a_port_that_was_interrupted_goes_on_where_it_was() {
        let mut batch = batch(TxLimits::segmented(2));
        push_sends(&mut batch, &flow(2), &[8; 5]);
        batch.advance(1);
        assert_eq!((batch.len(), segments(&batch)), (3, vec![2, 1]));
        batch.advance(0);
        assert_eq!(batch.len(), 3);
        push_sends(&mut batch, &flow(2), &[8; 2]);
        assert_eq!(segments(&batch), [2, 2, 1], "what comes meanwhile goes behind");
        let room = batch.room();
        batch.advance(3);
        assert!(batch.is_empty());
        assert!(batch.room() > room, "a batch that was sent is as new");
        assert_eq!(bad(&batch), 0);
    }

    #[test]
    fn a_run_that_was_sent_is_not_continued() {
        let mut batch = batch(TxLimits::segmented(8));
        push_sends(&mut batch, &flow(2), &[8]);
        push_sends(&mut batch, &flow(3), &[8]);
        batch.advance(1);
        batch.advance(1);
        push_sends(&mut batch, &flow(3), &[8]);
        assert_eq!(batch.datagrams().map(|d| d.ident).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn room_is_for_the_longest_datagram() {
        let mut batch = TxBatch::new(TxLimits::SINGLE, 0);
        assert!(batch.has_room(), "one always fits");
        push(&mut batch, &flow(2), Opcode::RC_WRITE_ONLY, 4096);
        assert!(!batch.has_room());
        batch.clear();
        assert!(batch.has_room());
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn pushing_without_room_is_our_own_mistake() {
        let mut batch = TxBatch::new(TxLimits::SINGLE, 0);
        push_sends(&mut batch, &flow(2), &[4096, 4096]);
    }

    #[test]
    fn splitting_makes_every_datagram_a_run_with_identification_0() {
        let mut batch = batch(TxLimits::segmented(4));
        push_sends(&mut batch, &flow(2), &[100, 100, 100, 100, 100, 20]);
        push_sends(&mut batch, &flow(3), &[7]);
        batch.advance(1);
        let payloads = |batch: &TxBatch| {
            let payload = |d: Datagram<'_>| Packet::parse(d.bytes).unwrap().payload.to_vec();
            batch.datagrams().map(payload).collect::<Vec<_>>()
        };
        let before = payloads(&batch);
        batch.split();
        assert_eq!(segments(&batch), [1, 1, 1]);
        assert!(batch.runs().all(|run| run.first_ident == 0 && run.segment_len == run.bytes.len()));
        assert_eq!(payloads(&batch), before);
        assert_eq!(bad(&batch), 0);
        push_sends(&mut batch, &flow(3), &[7]);
        assert_eq!(segments(&batch), [1, 1, 1, 1], "and that stays so");
    }

    #[test]
    fn splitting_keeps_identifications_that_count() {
        let ident = IdentPolicy::Counting { next: 40 };
        let mut batch = batch(TxLimits { ident, ..TxLimits::segmented(8) });
        push_sends(&mut batch, &flow(2), &[8; 3]);
        batch.split();
        let idents: Vec<u16> = batch.datagrams().map(|datagram| datagram.ident).collect();
        assert_eq!(idents, [40, 41, 42]);
        assert_eq!(bad(&batch), 0);
    }

    /// The source port and the length of each datagram.
    fn from_and_len(batch: &TxBatch) -> Vec<(u16, usize)> {
        let shown = |d: Datagram<'_>| (d.flow.src_port, d.bytes.len() - 16);
        batch.datagrams().map(shown).collect()
    }

    #[test]
    fn grouping_keeps_the_order_within_a_flow_and_every_icrc() {
        let from = |src_port| Flow { src_port, ..flow(2) };
        let mut batch = batch(TxLimits::segmented(8));
        for (port, lens) in [(7, [8, 4]), (9, [20, 16]), (8, [40, 40]), (9, [12, 24]), (7, [4, 8])]
        {
            push_sends(&mut batch, &from(port), &lens);
        }
        batch.advance(1);
        batch.group_by_source();
        let expected =
            [(7, 4), (7, 8), (8, 40), (8, 40), (9, 20), (9, 16), (9, 12), (9, 24)].to_vec();
        assert_eq!(from_and_len(&batch), expected);
        // The last run is one of port 9, but not what was pushed last.
        push_sends(&mut batch, &from(9), &[24]);
        assert_eq!(from_and_len(&batch).last(), Some(&(9, 24)));
        assert_eq!(bad(&batch), 0);
    }

    #[test]
    fn another_source_port_heals_no_damage() {
        let mut batch = batch(TxLimits::segmented(8));
        push_sends(&mut batch, &flow(2), &[8; 3]);
        batch.arena[40] ^= 1;
        push_sends(&mut batch, &Flow { src_port: 9, ..flow(2) }, &[8; 3]);
        push_sends(&mut batch, &flow(3), &[8; 3]);
        let (src, src_port) = (flow(2).src, flow(2).src_port);
        batch.replace_source_port([10, 0, 0, 9].into(), src_port, 4791);
        batch.replace_source_port(src, src_port, 4791);
        let expected = [[(4791, 8); 3], [(9, 8); 3], [(4791, 8); 3]].concat();
        assert_eq!(from_and_len(&batch), expected);
        assert_eq!(bad(&batch), 1);
    }

    #[test]
    fn damage_after_the_stamp_stays_damage() {
        let mut clean = batch(TxLimits::SINGLE);
        push_sends(&mut clean, &flow(2), &[8; 3]);
        let mut faulty = batch(TxLimits::segmented(8));
        for (i, datagram) in clean.datagrams().enumerate() {
            let copy = faulty.push_raw(datagram.flow, datagram.bytes);
            if i == 1 {
                copy[14] ^= 0x10;
            }
        }
        assert_eq!(segments(&faulty), [3]);
        assert_eq!(bad(&faulty), 1);
        faulty.split();
        assert_eq!(bad(&faulty), 1);
    }

    #[test]
    fn a_datagram_too_short_for_an_icrc_goes_as_it_is() {
        let mut batch = batch(TxLimits::segmented(8));
        let short: Vec<Vec<u8>> = [15, 12, 10, 4, 1].map(|len| vec![0xa5; len]).into();
        for datagram in short.iter().chain(&short) {
            batch.push_raw(&flow(2), datagram);
        }
        batch.split();
        let Flow { src, src_port, .. } = flow(2);
        batch.replace_source_port(src, src_port, 4791);
        let sent: Vec<Vec<u8>> = batch.datagrams().map(|sent| sent.bytes.to_vec()).collect();
        assert_eq!(sent, [&short[..], &short[..]].concat());
    }

    proptest! {
        /// Whatever is pushed: the datagrams come out as they went in, every ICRC is right for
        /// its identification, runs keep to the limits, and none could have been continued.
        #[test]
        fn runs_are_as_long_as_they_may_be(
            pushed in proptest::collection::vec(
                (headers(), 2u8..4, 0u32..2, proptest::sample::select(vec![0usize, 1, 60, 60, 60])),
                1..40),
            max_segments in 1usize..6,
            max_run_bytes in 60usize..400,
        ) {
            let limits = TxLimits { max_run_bytes, ..TxLimits::segmented(max_segments) };
            let mut batch = batch(limits);
            let mut expected = Vec::new();
            for (headers, to, slot, len) in &pushed {
                let dest_qp = Qpn::new(slot << 23 | headers.bth.dest_qp.get() & 0x3_ffff);
                let headers = &Headers { bth: Bth { dest_qp, ..headers.bth }, ..*headers };
                let len = if headers.body.has_payload() { *len } else { 0 };
                let pad = (len.next_multiple_of(4) - len) as u8;
                let as_sent = Headers { bth: Bth { pad, ..headers.bth }, ..*headers };
                expected.push((flow(*to), as_sent, vec![0x3c; len]));
                let fill = |payload: &mut [u8]| -> Result<(), ()> {
                    payload.fill(0x3c);
                    Ok(())
                };
                prop_assert_eq!(batch.push(&flow(*to), headers, len, fill), Ok(()));
            }

            let came_out: Vec<_> = batch
                .datagrams()
                .map(|datagram| {
                    let packet = Packet::parse(datagram.bytes).unwrap();
                    (*datagram.flow, packet.headers, packet.payload.to_vec())
                })
                .collect();
            prop_assert_eq!(came_out, expected);
            prop_assert_eq!(batch.len(), pushed.len());
            prop_assert_eq!(bad(&batch), 0);

            let runs: Vec<Run<'_>> = batch.runs().collect();
            for run in &runs {
                let lens: Vec<usize> = run.datagrams().map(|d| d.bytes.len()).collect();
                prop_assert_eq!(lens.len(), run.segments);
                prop_assert!(run.segments <= max_segments);
                prop_assert!(run.bytes.len() <= max_run_bytes || run.segments == 1);
                let (last, others) = lens.split_last().unwrap();
                prop_assert!(others.iter().all(|len| *len == run.segment_len));
                prop_assert!(*last <= run.segment_len);
                prop_assert_eq!(slots_of(run).len(), 1);
            }
            for pair in runs.windows(2) {
                let next = pair[1].datagrams().next().unwrap().bytes.len();
                let full = pair[0].bytes.len() == pair[0].segments * pair[0].segment_len;
                let could_continue = pair[0].flow == pair[1].flow
                    && slots_of(&pair[0]) == slots_of(&pair[1])
                    && full
                    && next <= pair[0].segment_len
                    && pair[0].segments < max_segments
                    && pair[0].bytes.len() + next <= max_run_bytes;
                prop_assert!(!could_continue);
            }
        }
    }
}
