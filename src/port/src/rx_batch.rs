//! Received datagrams, one at a time out of a few large buffers.

use std::ops::Range;
use urxe_wire::{Ident, Opcode, Outer, joined};

/// Size of one receive buffer: the largest IPv6 packet (40 + 65,535 bytes) fits, with what a packet
/// socket puts in front of it, so nothing is ever truncated.
pub(crate) const BUFFER_LEN: usize = 64 * 1024 + 256;

/// Datagrams that one receive buffer is assumed to hold at most, for the bookkeeping's size.
const DATAGRAMS_PER_BUFFER: usize = 64;

/// Receive buffers, made when they are needed first and used again and again.
///
/// [`Port::recv`](crate::Port::recv) fills it, [`next_datagram`](Self::next_datagram) walks through
/// it. A buffer in which the kernel had gathered many datagrams (GRO) comes out as the datagrams
/// that went in, and a datagram of [two packets](joined) as two; where an ACK came behind requests,
/// it comes out first. It goes last so that it ends their segmented send or their datagram, and a
/// program that waits for events may rely on it to come before what its peer sent after it had seen
/// what the ACK acknowledges.
pub struct RxBatch {
    buffers: Vec<Box<[u8]>>,
    /// How many of them there may be.
    most: usize,
    /// What was received, in order.
    spans: Vec<Span>,
    /// How many datagrams that is.
    datagrams: usize,
    /// Buffers in use, counted from the first; the last of them is filled up to `tail`.
    used: usize,
    tail: usize,
    /// Spans taken, and datagrams taken of the one after.
    span: usize,
    index: usize,
    /// All of it came from other ports of this process.
    is_within_process: bool,
}

/// Datagrams back to back in one buffer, all as long as `segment` but for a shorter last one.
struct Span {
    buffer: usize,
    start: usize,
    len: usize,
    segment: usize,
    /// How many they are.
    datagrams: usize,
    /// The last one comes out first.
    is_last_first: bool,
    /// They are two packets of one datagram.
    is_joined: bool,
    /// The identification of the first.
    first_ident: Ident,
    /// The outer headers, of the one that was taken last or else of the first: they differ by their
    /// identification alone.
    outer: Outer,
}

impl Span {
    fn one(buffer: usize, start: usize, len: usize, outer: Outer) -> Span {
        Span {
            buffer,
            start,
            len,
            segment: len,
            datagrams: 1,
            is_last_first: false,
            is_joined: false,
            first_ident: outer.ident,
            outer,
        }
    }

    /// The same bytes, each datagram as long as `segment` but for a shorter last one.
    fn cut(self, segment: usize) -> Span {
        Span { segment, datagrams: self.len.div_ceil(segment), ..self }
    }

    /// Which of them this is in the buffer, by the order in which they come out.
    fn index(&self, position: usize) -> usize {
        match (self.is_last_first, position) {
            (false, _) => position,
            (true, 0) => self.datagrams - 1,
            (true, _) => position - 1,
        }
    }

    /// Where one of them is in the buffer.
    fn range(&self, index: usize) -> Range<usize> {
        let from = index * self.segment;
        self.start + from..self.start + self.len.min(from + self.segment)
    }

    /// The identification of one of them. Segmentation numbers segments in order, so it counts up.
    fn ident(&self, index: usize) -> Ident {
        let number = if self.is_joined { 0 } else { index as u16 };
        match self.first_ident {
            Ident::Known { ident, fragment } => {
                Ident::Known { ident: ident.wrapping_add(number), fragment }
            }
            Ident::Hidden { guess } => Ident::Hidden { guess: guess.wrapping_add(number) },
        }
    }

    /// What one of them came with.
    fn outer(&self, index: usize) -> Outer {
        Outer { ident: self.ident(index), ..self.outer }
    }
}

impl RxBatch {
    /// A batch of so many buffers of 64 KiB: as many as one system call can fill.
    pub fn new(buffers: usize) -> Self {
        let most = buffers.max(1);
        RxBatch {
            buffers: Vec::new(),
            most,
            spans: Vec::with_capacity(most * DATAGRAMS_PER_BUFFER),
            datagrams: 0,
            used: 0,
            tail: 0,
            span: 0,
            index: 0,
            is_within_process: false,
        }
    }

    /// Takes the next datagram (the UDP payload, ICRC included) and what it came with.
    pub fn next_datagram(&mut self) -> Option<(&Outer, &mut [u8])> {
        let span = self.spans.get_mut(self.span)?;
        let index = span.index(self.index);
        span.outer.ident = span.ident(index);
        self.index += 1;
        if self.index == span.datagrams {
            self.span += 1;
            self.index = 0;
        }
        Some((&span.outer, &mut self.buffers[span.buffer][span.range(index)]))
    }

    /// How many datagrams there are, taken or not.
    pub fn len(&self) -> usize {
        self.datagrams
    }

    /// How many bytes they are.
    pub(crate) fn bytes(&self) -> usize {
        self.spans.iter().map(|span| span.len).sum()
    }

    /// How much of the room for copies is taken, from 0 to 1.
    pub(crate) fn fill(&self) -> f32 {
        let of_buffers = self.used as f32 / self.most as f32;
        of_buffers.max(self.spans.len() as f32 / self.most_spans() as f32)
    }

    /// Whether there are none, taken or not.
    pub fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// From now on the datagrams that there are come out in the order in which they came, ACKs
    /// behind the requests that they followed too: for who looks at what a peer sends.
    pub fn keep_order(&mut self) {
        self.spans.iter_mut().for_each(|span| span.is_last_first = false);
    }

    /// Shows all datagrams, taken or not, in the order in which they came.
    pub fn as_received(&self) -> impl Iterator<Item = (Outer, &[u8])> {
        self.spans.iter().flat_map(move |span| {
            (0..span.datagrams).map(move |index| {
                (span.outer(index), &self.buffers[span.buffer][span.range(index)])
            })
        })
    }

    /// Shows the datagrams that were not taken yet.
    pub fn iter(&self) -> impl Iterator<Item = (Outer, &[u8])> {
        let spans = self.spans.get(self.span..).unwrap_or_default();
        let datagrams = spans.iter().flat_map(move |span| {
            (0..span.datagrams).map(move |position| {
                let index = span.index(position);
                (span.outer(index), &self.buffers[span.buffer][span.range(index)])
            })
        });
        datagrams.skip(self.index)
    }

    /// Forgets everything received, taken or not.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.datagrams = 0;
        self.used = 0;
        self.tail = 0;
        self.span = 0;
        self.index = 0;
        self.is_within_process = false;
    }

    /// Adds a copy of one datagram. False: there is no room for it, and nothing was added.
    ///
    /// For ports that have their datagrams in memory; the socket ports let the kernel write into
    /// the buffers.
    pub fn push(&mut self, outer: &Outer, datagram: &[u8]) -> bool {
        let Some((buffer, start)) = self.copy(datagram) else { return false };
        self.datagrams += 1;
        self.spans.push(Span::one(buffer, start, datagram.len(), *outer));
        true
    }

    /// Adds a copy of datagrams that lie back to back, as [`add`](Self::add) has them described.
    /// False: there is no room for them, and nothing was added.
    pub(crate) fn push_run(&mut self, outer: &Outer, bytes: &[u8], segment: usize) -> bool {
        let Some((buffer, start)) = self.copy(bytes) else { return false };
        self.describe((buffer, start, bytes.len()), segment, *outer);
        true
    }

    /// Copies bytes into a buffer, if there is room. Returns into which, and where they begin.
    fn copy(&mut self, bytes: &[u8]) -> Option<(usize, usize)> {
        let len = bytes.len();
        if len == 0 || len > BUFFER_LEN || !self.has_room() {
            return None;
        }
        if self.used == 0 || self.tail + len > BUFFER_LEN {
            if self.used == self.most {
                return None;
            }
            self.used += 1;
            self.make_buffers(self.used);
            self.tail = 0;
        }
        let (buffer, start) = (self.used - 1, self.tail);
        self.buffers[buffer][start..start + len].copy_from_slice(bytes);
        self.tail += len;
        Some((buffer, start))
    }

    /// Whether all of it came from other ports of this process, through memory: it waited for
    /// nothing but this thread.
    pub fn is_within_process(&self) -> bool {
        self.is_within_process
    }

    /// Says that all of it came from other ports of this process, until it is cleared.
    pub fn set_within_process(&mut self) {
        self.is_within_process = true;
    }

    /// Takes all that another batch has, which is empty then; their buffers change places.
    pub(crate) fn take_all(&mut self, other: &mut RxBatch) {
        std::mem::swap(self, other);
        // Each keeps what it is to have at most.
        std::mem::swap(&mut self.most, &mut other.most);
        other.clear();
    }

    /// Whether [`push`](Self::push) has room for a datagram of a few thousand bytes.
    pub(crate) fn has_room(&self) -> bool {
        self.spans.len() < self.most_spans()
    }

    fn most_spans(&self) -> usize {
        self.most * DATAGRAMS_PER_BUFFER
    }

    /// The buffers, for the kernel to write to. Only after [`clear`](Self::clear).
    pub(crate) fn buffers(&mut self) -> &mut [Box<[u8]>] {
        debug_assert!(self.used == 0, "the buffers are in use");
        self.make_buffers(self.most);
        &mut self.buffers[..self.most]
    }

    /// Has at least so many buffers there.
    fn make_buffers(&mut self, buffers: usize) {
        while self.buffers.len() < buffers {
            self.buffers.push(vec![0; BUFFER_LEN].into_boxed_slice());
        }
    }

    /// The bytes that the kernel wrote to a buffer.
    pub(crate) fn buffer(&self, buffer: usize) -> &[u8] {
        &self.buffers[buffer]
    }

    /// Says that `len` bytes at `start` of a buffer are datagrams of `segment` bytes each (the last
    /// one what is left), of which the first came with `outer`. Returns their number.
    ///
    /// The caller has checked that the bytes lie in the buffer and are not none.
    pub(crate) fn add(
        &mut self,
        buffer: usize,
        start: usize,
        len: usize,
        segment: usize,
        outer: Outer,
    ) -> usize {
        self.used = self.most;
        self.tail = BUFFER_LEN;
        self.describe((buffer, start, len), segment, outer)
    }

    /// Says what the bytes that lie there are. Returns how many datagrams.
    fn describe(
        &mut self,
        (buffer, start, len): (usize, usize, usize),
        segment: usize,
        outer: Outer,
    ) -> usize {
        debug_assert!(len > 0 && start + len <= BUFFER_LEN);
        let segment = if segment == 0 { len } else { segment.min(len) };
        let bytes = &self.buffers[buffer][start..][..len];
        let gathered = Span::one(buffer, start, len, outer).cut(segment);
        let are_two = |datagram: &[u8]| joined::request_len(datagram).is_some();
        let before = self.datagrams;
        if segment <= joined::MAX_LEN && bytes.chunks(segment).any(are_two) {
            self.add_joined(&gathered);
        } else {
            // TRAIN-026
            let is_last_first = are_requests_and_an_ack(bytes, segment);
            self.datagrams += gathered.datagrams;
            self.spans.push(Span { is_last_first, ..gathered });
        }
        self.datagrams - before
    }

    /// Adds the datagrams of a buffer of which some hold two packets.
    fn add_joined(&mut self, gathered: &Span) {
        for index in 0..gathered.datagrams {
            let (outer, range) = (gathered.outer(index), gathered.range(index));
            let request_len = joined::request_len(&self.buffers[gathered.buffer][range.clone()]);
            let alone = Span::one(gathered.buffer, range.start, range.len(), outer);
            let span = match request_len {
                // TRAIN-027
                Some(segment) => {
                    Span { is_last_first: true, is_joined: true, ..alone.cut(segment) }
                }
                None => alone,
            };
            self.datagrams += span.datagrams;
            self.spans.push(span);
        }
    }
}

/// Whether the last of these datagrams is an ACK, and all before it are requests, or nothing that
/// we know.
fn are_requests_and_an_ack(bytes: &[u8], segment: usize) -> bool {
    let mut datagrams = bytes.chunks(segment).rev();
    let is_ack = |datagram: &[u8]| datagram[0] == Opcode::RC_ACK.byte();
    bytes.len() > segment
        && datagrams.next().is_some_and(is_ack)
        && !datagrams
            .any(|datagram| Opcode::from_byte(datagram[0]).is_some_and(Opcode::is_response))
}

impl Default for RxBatch {
    /// 16 buffers: 1 MiB.
    fn default() -> Self {
        RxBatch::new(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::push;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;
    use urxe_wire::Flow;
    use urxe_wire::batch::{TxBatch, TxLimits};

    fn outer(guess: u16) -> Outer {
        let addr = Ipv4Addr::LOCALHOST.into();
        let flow = Flow {
            src: addr,
            dst: addr,
            src_port: 1,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        Outer { flow, ident: Ident::Hidden { guess } }
    }

    fn guess(outer: &Outer) -> u16 {
        match outer.ident {
            Ident::Hidden { guess } => guess,
            Ident::Known { .. } => panic!("{outer:?}"),
        }
    }

    #[test]
    fn a_gathered_buffer_is_cut_into_what_was_gathered() {
        let mut rx = RxBatch::new(2);
        for (i, byte) in rx.buffers()[1].iter_mut().enumerate() {
            *byte = i as u8;
        }
        assert_eq!(rx.add(1, 10, 25, 10, outer(7)), 3);
        let mut seen = Vec::new();
        while let Some((outer, bytes)) = rx.next_datagram() {
            seen.push((guess(outer), bytes.to_vec()));
        }
        let bytes = |range: Range<u8>| range.collect::<Vec<u8>>();
        assert_eq!(seen, [(7, bytes(10..20)), (8, bytes(20..30)), (9, bytes(30..35))]);
    }

    /// In which order datagrams of these opcodes come out that were gathered in one buffer, by
    /// their identification.
    fn order(opcodes: &[Opcode]) -> Vec<u16> {
        let mut rx = RxBatch::new(1);
        for (at, opcode) in opcodes.iter().enumerate() {
            rx.buffers()[0][at * 20] = opcode.byte();
        }
        assert_eq!(rx.add(0, 0, opcodes.len() * 20, 20, outer(0)), opcodes.len());
        let shown: Vec<u16> = rx.iter().map(|(outer, _)| guess(&outer)).collect();
        let mut taken = Vec::new();
        while let Some((outer, bytes)) = rx.next_datagram() {
            assert_eq!(bytes[0], opcodes[usize::from(guess(outer))].byte());
            taken.push(guess(outer));
        }
        assert_eq!(shown, taken);
        taken
    }

    #[test]
    fn an_ack_gathered_behind_requests_comes_out_first() {
        let (ack, send, write) = (Opcode::RC_ACK, Opcode::RC_SEND_ONLY, Opcode::RC_WRITE_ONLY);
        assert_eq!(order(&[write, send, ack]), [2, 0, 1]);
        assert_eq!(order(&[ack]), [0]);
        // What it acknowledges may be what comes before it.
        let answers = [Opcode::RC_READ_RESPONSE_ONLY, Opcode::RC_ATOMIC_ACK, Opcode::RC_ACK];
        for answer in answers {
            assert_eq!(order(&[answer, write, ack]), [0, 1, 2]);
            assert_eq!(order(&[write, answer, ack]), [0, 1, 2]);
        }
        assert_eq!(order(&[ack, write]), [0, 1]);
    }

    #[test]
    fn datagrams_can_be_seen_in_the_order_in_which_they_came() {
        let mut rx = RxBatch::new(1);
        let opcodes = [Opcode::RC_WRITE_ONLY, Opcode::RC_SEND_ONLY, Opcode::RC_ACK];
        for (at, opcode) in opcodes.iter().enumerate() {
            rx.buffers()[0][at * 20] = opcode.byte();
        }
        assert_eq!(rx.add(0, 0, 60, 20, outer(0)), 3);
        let came: Vec<u8> = rx.as_received().map(|(_, bytes)| bytes[0]).collect();
        assert_eq!(came, opcodes.map(Opcode::byte));
        let ack = rx.next_datagram().map(|(_, bytes)| bytes[0]);
        assert_eq!(ack, Some(Opcode::RC_ACK.byte()));
        assert_eq!(rx.as_received().count(), 3);

        rx.clear();
        assert_eq!(rx.add(0, 0, 60, 20, outer(0)), 3);
        rx.keep_order();
        let taken: Vec<u8> =
            std::iter::from_fn(|| rx.next_datagram().map(|(_, bytes)| bytes[0])).collect();
        assert_eq!(taken, opcodes.map(Opcode::byte));
    }

    /// A request of 8 bytes and an ACK behind it, in one datagram.
    fn two_in_one() -> Vec<u8> {
        let mut batch = TxBatch::new(TxLimits::segmented(64), 1 << 14);
        push(&mut batch, &outer(0).flow, Opcode::RC_SEND_ONLY, 0, 8);
        push(&mut batch, &outer(0).flow, Opcode::RC_ACK, 0, 0);
        assert!(batch.join_ack());
        batch.runs().next().unwrap().bytes.to_vec()
    }

    #[test]
    fn a_datagram_of_a_request_and_an_ack_comes_out_as_two_and_the_ack_first() {
        let two = two_in_one();
        let mut alone = two.clone();
        // What follows is no ACK.
        alone[two.len() - 20] = Opcode::RC_SEND_ONLY.byte();
        let (ack, request) = (Opcode::RC_ACK.byte(), Opcode::RC_SEND_ONLY.byte());
        for (gathered, expected) in [
            (vec![&two], vec![(0, ack, 20), (0, request, 24)]),
            (vec![&alone], vec![(0, request, 44)]),
            (
                vec![&two, &alone, &two],
                vec![
                    (0, ack, 20),
                    (0, request, 24),
                    (1, request, 44),
                    (2, ack, 20),
                    (2, request, 24),
                ],
            ),
        ] {
            let mut rx = RxBatch::new(1);
            let (bytes, each) = (gathered.into_iter().flatten().copied().collect::<Vec<_>>(), 44);
            rx.buffers()[0][..bytes.len()].copy_from_slice(&bytes);
            assert_eq!(rx.add(0, 0, bytes.len(), each, outer(0)), expected.len());
            let mut taken = Vec::new();
            while let Some((outer, bytes)) = rx.next_datagram() {
                taken.push((guess(outer), bytes[0], bytes.len()));
            }
            assert_eq!(taken, expected);
        }
    }

    #[test]
    fn a_segment_length_of_none_or_too_much_means_one_datagram() {
        for segment in [0, 25, 26, usize::MAX] {
            let mut rx = RxBatch::new(1);
            assert_eq!(rx.buffers().len(), 1);
            assert_eq!(rx.add(0, 0, 25, segment, outer(0)), 1);
            assert_eq!(rx.next_datagram().map(|(_, bytes)| bytes.len()), Some(25));
            assert!(rx.next_datagram().is_none());
        }
    }

    #[test]
    fn a_full_batch_takes_no_part_of_a_datagram() {
        let mut rx = RxBatch::new(1);
        let pushed = std::iter::repeat_with(|| rx.push(&outer(0), &[1; 20_000]));
        assert_eq!(pushed.take_while(|pushed| *pushed).count(), 3);
        assert_eq!(rx.iter().count(), 3);
        rx.clear();
        assert!(rx.push(&outer(0), &[1; 20_000]));
    }

    proptest! {
        #[test]
        fn copied_runs_come_out_as_those_of_the_kernel_do(
            runs in prop::collection::vec((1usize..=40, 1usize..30), 1..8),
        ) {
            let (mut copied, mut taken) = (RxBatch::new(2), RxBatch::new(1));
            let mut expected = Vec::new();
            for (segments, segment) in runs {
                let bytes: Vec<u8> = (0..segments * segment).map(|at| at as u8 | 0x80).collect();
                prop_assert!(copied.push_run(&outer(3), &bytes, segment));
                let mut of_kernel = RxBatch::new(1);
                of_kernel.buffers()[0][..bytes.len()].copy_from_slice(&bytes);
                of_kernel.add(0, 0, bytes.len(), segment, outer(3));
                expected.extend(of_kernel.iter().map(|(outer, bytes)| (outer, bytes.to_vec())));
            }
            taken.take_all(&mut copied);
            prop_assert!(copied.is_empty() && copied.next_datagram().is_none());
            prop_assert_eq!(taken.len(), expected.len());
            let came = std::iter::from_fn(|| {
                taken.next_datagram().map(|(outer, bytes)| (*outer, bytes.to_vec()))
            });
            prop_assert_eq!(came.collect::<Vec<_>>(), expected);
            // What each may hold is as before.
            taken.clear();
            prop_assert_eq!((taken.buffers().len(), copied.buffers().len()), (1, 2));
        }

        #[test]
        fn entries_come_out_in_order_and_once(
            lens in prop::collection::vec(1usize..3000, 0..60), taken in 0usize..60,
        ) {
            let mut rx = RxBatch::new(4);
            let pushed: Vec<(u16, Vec<u8>)> =
                (0..).zip(lens).map(|(i, len)| (i, vec![i as u8; len])).collect();
            for (i, bytes) in &pushed {
                prop_assert!(rx.push(&outer(*i), bytes));
            }
            let mut seen = Vec::new();
            for _ in 0..taken {
                let Some((outer, bytes)) = rx.next_datagram() else { break };
                seen.push((guess(outer), bytes.to_vec()));
            }
            seen.extend(rx.iter().map(|(outer, bytes)| (guess(&outer), bytes.to_vec())));
            prop_assert_eq!(seen, pushed);
        }
    }
}
