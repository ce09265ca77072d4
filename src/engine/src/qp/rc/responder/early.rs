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
        // REPAIR-011, REPAIR-012
        let has_room = self.bytes() + added <= limits.bytes_per_qp
            && *used + added <= limits.bytes_per_device
            && self.kept.len() < MAX_EARLY_PACKETS
            && ahead <= MAX_EARLY_PSNS;
        if !has_room {
            return Arrival::NoRoom;
        }
        // REPAIR-020
        let psns = match headers.body {
            Request::Read(reth) => ReadResource::new(psn, &reth, mtu, Msn::new(0)).packets,
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
