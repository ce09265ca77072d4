//! Datagrams on their way out, laid so that one system call can carry many.
//!
//! A socket with segmentation offload (`UDP_SEGMENT`) takes up to 64 KiB and a segment size, and
//! sends them as datagrams of that size, the last one perhaps shorter. So datagrams are laid back
//! to back into one arena and grouped into *runs*: consecutive datagrams of one [`Flow`] and one
//! length, which a shorter one may end. A longer datagram, another flow, or a limit of the port
//! begins a new run.
//!
//! The ICRC is stamped while the bytes are in the cache, when a datagram is pushed. It covers the
//! IPv4 identification, so [`IdentPolicy`] says what that will be.

use crate::{Bth, Flow, Headers, MAX_UDP_PAYLOAD, PathMtu, icrc};

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

impl<'a> Run<'a> {
    /// The datagrams of the run, in order.
    pub fn datagrams(self) -> impl Iterator<Item = Datagram<'a>> {
        (0u16..).zip(self.bytes.chunks(self.segment_len)).map(move |(i, bytes)| Datagram {
            flow: self.flow,
            ident: self.first_ident.wrapping_add(i),
            bytes,
        })
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
        self.unsent().iter().map(|span| span.segments).sum()
    }

    /// Whether there is room for one more datagram, of whatever length RoCEv2 allows.
    pub fn has_room(&self) -> bool {
        self.room() >= MAX_DATAGRAM
    }

    /// Bytes of datagrams that can still be pushed.
    pub fn room(&self) -> usize {
        self.arena.len() - self.end
    }

    /// Adds a datagram: emits `headers`, lets `fill` write the payload, adds the padding (and the
    /// pad count to the BTH, whatever it says), and stamps the ICRC.
    ///
    /// What `fill` is given holds leftovers: it writes every byte, or fails, and then nothing is
    /// added.
    ///
    /// # Panics
    /// If there is no [room](Self::room) for the datagram, or as [`Headers::emit`] does.
    pub fn push<E>(
        &mut self,
        flow: &Flow,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let payload_at = headers.len();
        let pad_at = payload_at + payload_len;
        let icrc_at = pad_at.next_multiple_of(4);
        let len = icrc_at + icrc::LEN;
        let place = self.place(flow, len);
        let datagram = self.vacant(len);
        headers.emit(datagram);
        Bth::emit_pad(datagram, (icrc_at - pad_at) as u8);
        fill(&mut datagram[payload_at..pad_at])?;
        datagram[pad_at..icrc_at].fill(0);
        icrc::stamp(flow, place.ident, datagram);
        self.append(flow, len, place);
        Ok(())
    }

    /// Adds a datagram that is there already (headers, payload and padding; whatever its ICRC is,
    /// it is stamped anew), and returns it as it lies in the batch, for those who want to damage
    /// it.
    ///
    /// # Panics
    /// If there is no [room](Self::room) for it, or as [`icrc::stamp`] does.
    pub fn push_raw(&mut self, flow: &Flow, udp_payload: &[u8]) -> &mut [u8] {
        let len = udp_payload.len();
        let place = self.place(flow, len);
        let datagram = self.vacant(len);
        datagram.copy_from_slice(udp_payload);
        icrc::stamp(flow, place.ident, datagram);
        self.append(flow, len, place);
        &mut self.arena[self.end - len..self.end]
    }

    /// The runs still to be sent, in order.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.unsent().iter().map(|span| Run {
            flow: &span.flow,
            bytes: &self.arena[span.start..span.end],
            segment_len: span.segment_len,
            segments: span.segments,
            first_ident: span.first_ident,
        })
    }

    /// The datagrams still to be sent, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.runs().flat_map(Run::datagrams)
    }

    /// Says that the first `runs` runs are done with, sent or given up. When none is left the
    /// batch is as new.
    pub fn advance(&mut self, runs: usize) {
        self.sent = (self.sent + runs).min(self.spans.len());
        if self.is_empty() {
            self.clear();
        }
    }

    /// Forgets every datagram.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.sent = 0;
        self.end = 0;
    }

    /// Makes every datagram still to be sent a run of its own, and every later one: for a port
    /// whose segmentation turned out not to work. ICRCs follow the identifications; one that was
    /// wrong stays wrong.
    pub fn split(&mut self) {
        self.limits.max_segments = 1;
        let whole: Vec<Span> = self.spans.drain(self.sent..).collect();
        for run in whole {
            for (i, start) in (0u16..).zip((run.start..run.end).step_by(run.segment_len)) {
                let end = run.end.min(start + run.segment_len);
                let ident = run.first_ident.wrapping_add(i);
                let first_ident = match self.limits.ident {
                    IdentPolicy::IndexInRun => 0,
                    IdentPolicy::Counting { .. } => ident,
                };
                icrc::renumber(&run.flow, ident, first_ident, &mut self.arena[start..end]);
                self.spans.push(Span { start, end, segments: 1, first_ident, ..run });
            }
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

    /// Where a datagram of `len` bytes would come.
    fn place(&self, flow: &Flow, len: usize) -> Place {
        let continued = self.unsent().last().filter(|run| {
            let run_len = run.end - run.start;
            len <= run.segment_len
                && run_len == run.segments * run.segment_len
                && run.segments < self.limits.max_segments
                && run_len + len <= self.limits.max_run_bytes
                && run.flow == *flow
        });
        let ident = match (self.limits.ident, continued) {
            (IdentPolicy::Counting { next }, _) => next,
            (IdentPolicy::IndexInRun, Some(run)) => run.segments as u16,
            (IdentPolicy::IndexInRun, None) => 0,
        };
        Place { continues_run: continued.is_some(), ident }
    }

    /// Makes the datagram of `len` bytes that now lies in the vacant part the last one.
    fn append(&mut self, flow: &Flow, len: usize, place: Place) {
        let start = self.end;
        self.end += len;
        if let IdentPolicy::Counting { next } = &mut self.limits.ident {
            *next = next.wrapping_add(1);
        }
        match self.spans.last_mut() {
            Some(run) if place.continues_run => {
                run.end = self.end;
                run.segments += 1;
            }
            _ => self.spans.push(Span {
                flow: *flow,
                start,
                end: self.end,
                segment_len: len,
                segments: 1,
                first_ident: place.ident,
            }),
        }
    }
}

/// Where a datagram comes.
struct Place {
    /// In the last run, or in one of its own.
    continues_run: bool,
    /// The identification that it is sent with.
    ident: u16,
}
