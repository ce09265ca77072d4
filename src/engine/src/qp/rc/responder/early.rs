//! Requests that came before their turn: kept until what is missing before them has come, so that
//! the peer need not send them again.
//!
//! Nothing is done with them before: memory changes in the order of the PSNs, and what is refused
//! is refused when its turn comes. Their payloads lie one behind the other in the order of their
//! arrival; nothing is allocated for a packet, and nothing stays allocated when none is kept.

use super::replay::ReadResource;
use crate::limits::{MAX_EARLY_PACKETS, MAX_EARLY_PSNS};
use crate::tuning::EarlyLimits;
use std::collections::VecDeque;
use urxe_types::{Msn, Psn};
use urxe_wire::{EarlyBitmap, Headers, Packet, Request};

/// Requests that came before their turn, in the order of their PSNs.
#[derive(Debug, Default)]
pub(super) struct Early {
    kept: VecDeque<Kept>,
    /// The payloads, and what is left of those that are done with.
    log: Vec<u8>,
    /// Bytes of the log that are still to be used.
    payload: usize,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    headers: Headers<Request>,
    /// PSNs that it takes.
    psns: u32,
    /// Where its payload begins in the log.
    at: usize,
    len: usize,
}

/// What became of a request that came before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is kept.
    Kept {
        /// It stands right behind no other, or right before one: a hole begins or ends with it.
        at_a_hole: bool,
    },
    /// It was there already.
    Known,
    /// There is no room for it.
    NoRoom,
}

impl Early {
    /// Whether none is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// What they count for towards the limits.
    fn bytes(&self) -> usize {
        self.payload + self.kept.len() * size_of::<Kept>()
    }

    /// Keeps a request ahead of `expected`, if there is room. `used` is what all QPs of the device
    /// keep.
    pub(super) fn keep(
        &mut self,
        packet: &Packet<'_, Request>,
        expected: Psn,
        mtu: u32,
        limits: &EarlyLimits,
        used: &mut usize,
    ) -> Arrival {
        let Packet { headers, payload } = *packet;
        let ahead = headers.bth.psn.diff(expected);
        let index = match self.kept.back() {
            Some(last) if ahead <= last.ahead_of(expected) => {
                self.kept.partition_point(|kept| kept.ahead_of(expected) < ahead)
            }
            _ => self.kept.len(),
        };
        let psn = headers.bth.psn;
        if self.kept.get(index).is_some_and(|kept| kept.headers.bth.psn == psn) {
            return Arrival::Known;
        }
        let added = payload.len() + size_of::<Kept>();
        let of_others = used.saturating_sub(self.bytes());
        let room = limits.bytes_per_qp.min(limits.bytes_per_device.saturating_sub(of_others));
        // REPAIR-103: of what takes no room to speak of, it does not matter how far ahead it is.
        let needed = if payload.is_empty() { 0 } else { added * ahead.max(1) as usize };
        // REPAIR-011, REPAIR-012
        let has_room = needed.max(self.bytes() + added) <= room
            && self.kept.len() < MAX_EARLY_PACKETS
            && ahead <= MAX_EARLY_PSNS;
        if !has_room {
            return Arrival::NoRoom;
        }
        // REPAIR-020
        let psns = match headers.body {
            Request::Read(reth) => ReadResource::new(&headers.bth, &reth, mtu, Msn::new(0)).packets,
            _ => 1,
        };
        let before = index.checked_sub(1).and_then(|index| self.kept.get(index));
        let ends_hole = self.kept.get(index).is_some_and(|next| next.headers.bth.psn == psn + psns);
        let begins_run = before.is_none_or(|before| before.end() != psn);
        let at = self.append(payload);
        self.kept.insert(index, Kept { headers, psns, at, len: payload.len() });
        self.payload += payload.len();
        *used += added;
        Arrival::Kept { at_a_hole: begins_run || ends_hole }
    }

    /// Takes the request with this PSN out, if it is kept; and what is before it, which is done
    /// already.
    pub(super) fn take(&mut self, psn: Psn, used: &mut usize) -> Option<Packet<'_, Request>> {
        loop {
            let ahead = self.kept.front()?.ahead_of(psn);
            if ahead > 0 {
                return None;
            }
            let Kept { headers, at, len, .. } = self.kept.pop_front()?;
            self.payload -= len;
            *used -= len + size_of::<Kept>();
            if ahead == 0 {
                return Some(Packet { headers, payload: &self.log[at..at + len] });
            }
        }
    }

    /// Frees what was taken out and is done with.
    pub(super) fn settle(&mut self, expected: Psn, used: &mut usize) {
        while self.kept.front().is_some_and(|first| first.ahead_of(expected) < 0) {
            self.take(expected - 1, used);
        }
        if self.kept.is_empty() {
            *self = Early::default();
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self, used: &mut usize) {
        *used -= self.bytes();
        *self = Early::default();
    }

    /// Which PSNs behind `missing` are kept.
    pub(super) fn bitmap(&self, missing: Psn) -> EarlyBitmap {
        let first = missing.next();
        let offsets = self.kept.iter().flat_map(|kept| {
            let offset = kept.headers.bth.psn.diff(first).max(0) as u32;
            offset..(offset + kept.psns).min(EarlyBitmap::PSNS)
        });
        EarlyBitmap::of(offsets)
    }

    /// Puts a payload behind the others, and returns where. Where the log would have to grow, and
    /// much of it is done with, it is made anew.
    fn append(&mut self, payload: &[u8]) -> usize {
        let is_full = self.log.len() + payload.len() > self.log.capacity();
        if is_full && self.log.len() >= 2 * self.payload {
            let mut log = Vec::with_capacity(2 * (self.payload + payload.len()));
            for kept in &mut self.kept {
                let at = log.len();
                log.extend_from_slice(&self.log[kept.at..kept.at + kept.len]);
                kept.at = at;
            }
            self.log = log;
        }
        let at = self.log.len();
        self.log.extend_from_slice(payload);
        at
    }
}

impl Kept {
    fn ahead_of(&self, psn: Psn) -> i32 {
        self.headers.bth.psn.diff(psn)
    }

    /// The PSN after its last.
    fn end(&self) -> Psn {
        self.headers.bth.psn + self.psns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use urxe_types::{Extra, Qpn};
    use urxe_wire::{Bth, Part};

    const LIMITS: EarlyLimits = EarlyLimits { bytes_per_qp: 1 << 16, bytes_per_device: 1 << 20 };

    fn keep(
        early: &mut Early,
        psn: Psn,
        expected: Psn,
        payload: &[u8],
        used: &mut usize,
    ) -> Arrival {
        let bth = Bth::new(Qpn::new(0x11), psn);
        let body = Request::Send(Part::Only((), Extra::None));
        let packet = Packet { headers: Headers { bth, body }, payload };
        early.keep(&packet, expected, 1024, &LIMITS, used)
    }

    #[test]
    fn a_hole_begins_or_ends_with_one_that_has_no_neighbour_before_or_one_behind() {
        let (mut early, mut used) = (Early::default(), 0);
        let mut at_a_hole = |offset| {
            let expected = Psn::new(0xff_fffe);
            keep(&mut early, expected + offset, expected, b"", &mut used)
                == Arrival::Kept { at_a_hole: true }
        };
        assert!(at_a_hole(5), "the first");
        assert!(!at_a_hole(6), "it goes on");
        assert!(at_a_hole(1), "another run");
        assert!(!at_a_hole(2));
        assert!(at_a_hole(4), "before a run");
        assert!(at_a_hole(3), "between two");
    }

    #[test]
    fn a_request_far_ahead_takes_no_room_from_what_is_next() {
        let (mut early, mut used) = (Early::default(), 0);
        let expected = Psn::new(0xff_ff00);
        let fit = (LIMITS.bytes_per_qp / (1024 + size_of::<Kept>())) as u32;
        // The network has turned the order around.
        for ahead in (1..=3 * fit).rev() {
            let arrival = keep(&mut early, expected + ahead, expected, &[7; 1024], &mut used);
            assert_eq!(arrival == Arrival::NoRoom, ahead > fit, "{ahead} ahead");
        }
        let next = expected.next();
        let all = (0..fit).all(|number| early.take(next + number, &mut used).is_some());
        assert!(all && used == 0);
        // Others have left room for two.
        let mut used = LIMITS.bytes_per_device - 2 * (1024 + size_of::<Kept>());
        for (ahead, is_kept) in [(3, false), (2, true), (1, true)] {
            let arrival = keep(&mut early, expected + ahead, expected, &[7; 1024], &mut used);
            assert_eq!(arrival != Arrival::NoRoom, is_kept, "{ahead} ahead");
        }
    }

    #[test]
    fn payloads_that_are_done_with_make_room_for_others() {
        let (mut early, mut used) = (Early::default(), 0);
        let mut expected = Psn::new(0xff_ff00);
        keep(&mut early, expected + 1, expected, &[0; 1024], &mut used);
        for round in 0..1000 {
            expected = expected.next();
            keep(&mut early, expected + 1, expected, &[round as u8; 1024], &mut used);
            assert!(early.take(expected, &mut used).is_some());
            early.settle(expected.next(), &mut used);
        }
        assert!(early.log.capacity() <= 8192, "{}", early.log.capacity());
        assert_eq!(used, early.bytes());
    }

    proptest! {
        /// As a map by PSN would do it, whatever comes and goes.
        #[test]
        fn requests_come_out_as_they_were_kept(
            steps in proptest::collection::vec((1..60u32, 0..90usize, any::<bool>()), 1..300),
        ) {
            let (mut early, mut used) = (Early::default(), 0);
            let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            let first = Psn::new(0xff_ffe0);
            let mut done = 0;
            for (step, (ahead, len, is_next)) in steps.into_iter().enumerate() {
                if is_next {
                    // The missing one comes: what is behind it follows.
                    done += 1;
                    while let Some(packet) = early.take(first + done, &mut used) {
                        prop_assert_eq!(Some(packet.payload.to_vec()), model.remove(&done));
                        done += 1;
                    }
                    prop_assert!(!model.contains_key(&done));
                    early.settle(first + done, &mut used);
                    continue;
                }
                let payload = vec![step as u8; len];
                let known = model.contains_key(&(done + ahead));
                let arrival =
                    keep(&mut early, first + done + ahead, first + done, &payload, &mut used);
                prop_assert_eq!(arrival == Arrival::Known, known);
                model.entry(done + ahead).or_insert(payload);
                let payloads: usize = model.values().map(Vec::len).sum();
                prop_assert_eq!(used, payloads + model.len() * size_of::<Kept>());
                prop_assert!(early.log.len() <= early.log.capacity());
                let bitmap = early.bitmap(first + done);
                let told: Vec<u32> = EarlyBitmap::offsets(bitmap.bytes()).collect();
                let kept: Vec<u32> = model.keys().map(|number| number - done - 1).collect();
                prop_assert_eq!(told, kept);
            }
            early.clear(&mut used);
            prop_assert_eq!(used, 0);
        }
    }
}
