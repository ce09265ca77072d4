//! Received datagrams, one at a time out of a few large buffers.

use urxe_wire::{Ident, Outer};

/// Size of one receive buffer: the largest IPv6 packet (40 + 65,535 bytes) fits, with what a packet
/// socket puts in front of it, so nothing is ever truncated.
pub(crate) const BUFFER_LEN: usize = 64 * 1024 + 256;

/// Datagrams that one receive buffer is assumed to hold at most, for the bookkeeping's size.
const DATAGRAMS_PER_BUFFER: usize = 64;

/// Receive buffers, made once and used again and again.
///
/// [`Port::recv`](crate::Port::recv) fills it, [`next_datagram`](Self::next_datagram) walks through
/// it. A buffer in which the kernel had gathered many datagrams (GRO) comes out as the datagrams
/// that went in.
pub struct RxBatch {
    buffers: Vec<Box<[u8]>>,
    /// What was received, in order.
    spans: Vec<Span>,
    /// Buffers in use, counted from the first; the last of them is filled up to `tail`.
    used: usize,
    tail: usize,
    /// The walk: the span it stands in, and the bytes and datagrams already handed out of that.
    span: usize,
    offset: usize,
    index: u16,
    outer: Option<Outer>,
}

/// Datagrams back to back in one buffer, all as long as `segment` but for a shorter last one.
struct Span {
    buffer: usize,
    start: usize,
    len: usize,
    segment: usize,
    /// The outer headers of the first.
    outer: Outer,
}

impl Span {
    fn datagrams(&self) -> usize {
        self.len.div_ceil(self.segment)
    }
}

impl RxBatch {
    /// Makes a batch of so many buffers of 64 KiB: as many as one system call can fill.
    pub fn new(buffers: usize) -> Self {
        RxBatch {
            buffers: (0..buffers.max(1)).map(|_| vec![0; BUFFER_LEN].into_boxed_slice()).collect(),
            spans: Vec::with_capacity(buffers.max(1) * DATAGRAMS_PER_BUFFER),
            used: 0,
            tail: 0,
            span: 0,
            offset: 0,
            index: 0,
            outer: None,
        }
    }

    /// The next datagram (the UDP payload, ICRC included) and what it came with.
    pub fn next_datagram(&mut self) -> Option<(&Outer, &mut [u8])> {
        let span = self.spans.get(self.span)?;
        let len = span.segment.min(span.len - self.offset);
        let start = span.start + self.offset;
        let outer = self.outer.insert(nth(&span.outer, self.index));
        let datagram = &mut self.buffers[span.buffer][start..start + len];

        self.offset += len;
        self.index = self.index.wrapping_add(1);
        if self.offset == span.len {
            self.span += 1;
            self.offset = 0;
            self.index = 0;
        }
        Some((outer, datagram))
    }

    /// Forgets everything received, taken or not.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.used = 0;
        self.tail = 0;
        self.span = 0;
        self.offset = 0;
        self.index = 0;
    }

    /// Adds a copy of one datagram. False: there is no room for it, and nothing was added.
    ///
    /// For ports that have their datagrams in memory; the socket ports let the kernel write into
    /// the buffers.
    pub fn push(&mut self, outer: &Outer, datagram: &[u8]) -> bool {
        if datagram.is_empty() || datagram.len() > BUFFER_LEN || !self.has_room() {
            return false;
        }
        if self.used == 0 || self.tail + datagram.len() > BUFFER_LEN {
            if self.used == self.buffers.len() {
                return false;
            }
            self.used += 1;
            self.tail = 0;
        }
        let (buffer, start, len) = (self.used - 1, self.tail, datagram.len());
        self.buffers[buffer][start..start + len].copy_from_slice(datagram);
        self.tail += len;
        self.spans.push(Span { buffer, start, len, segment: len, outer: *outer });
        true
    }

    /// Whether [`push`](Self::push) has room for a datagram of a few thousand bytes.
    pub(crate) fn has_room(&self) -> bool {
        self.spans.len() < self.spans.capacity()
    }

    /// The buffers, for the kernel to write to. Only after [`clear`](Self::clear).
    pub(crate) fn buffers(&mut self) -> &mut [Box<[u8]>] {
        debug_assert!(self.used == 0, "the buffers are in use");
        &mut self.buffers
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
        debug_assert!(len > 0 && start + len <= BUFFER_LEN);
        let segment = if segment == 0 { len } else { segment.min(len) };
        let span = Span { buffer, start, len, segment, outer };
        let datagrams = span.datagrams();
        self.spans.push(span);
        self.used = self.buffers.len();
        self.tail = BUFFER_LEN;
        datagrams
    }
}

impl Default for RxBatch {
    /// 16 buffers: 1 MiB.
    fn default() -> Self {
        RxBatch::new(16)
    }
}

/// The outer headers of the datagram `index` places behind one with `outer`: its identification
/// counts up, as segmentation numbers segments.
fn nth(outer: &Outer, index: u16) -> Outer {
    let ident = match outer.ident {
        Ident::Known { ident, fragment } => {
            Ident::Known { ident: ident.wrapping_add(index), fragment }
        }
        Ident::Hidden { guess } => Ident::Hidden { guess: guess.wrapping_add(index) },
    };
    Outer { ident, ..*outer }
}
