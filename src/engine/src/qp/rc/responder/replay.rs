//! What a responder must remember: the READs, atomics and ATOMIC WRITEs whose answers may be asked
//! for again.

use crate::qp::send_queue::distance;
use std::collections::VecDeque;
use urxe_types::{Msn, Psn, Rkey};
use urxe_wire::{Bth, Reth};

/// A READ that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadResource {
    pub(super) first_psn: Psn,
    /// Responses it takes.
    pub(super) packets: u32,
    pub(super) va: u64,
    pub(super) rkey: Rkey,
    pub(super) len: u32,
    /// Messages completed with it.
    pub(super) msn: Msn,
    /// The peer takes each response as one of its own.
    pub(super) in_onlys: bool,
}

impl ReadResource {
    /// The READ that a request asks for.
    pub(super) fn new(bth: &Bth, reth: &Reth, mtu: u32, msn: Msn) -> ReadResource {
        let packets = reth.len.div_ceil(mtu).max(1);
        let &Reth { va, rkey, len } = reth;
        // TRAIN-022
        let in_onlys = bth.resv7 == Bth::ANSWER_IN_ONLYS;
        ReadResource { first_psn: bth.psn, packets, va, rkey, len, msn, in_onlys }
    }

    /// The PSN after its last response.
    pub(super) fn end(&self) -> Psn {
        self.first_psn + self.packets
    }
}

/// An atomic that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtomicResource {
    pub(super) psn: Psn,
    /// What was found in memory.
    pub(super) original: u64,
    /// Messages completed with it.
    pub(super) msn: Msn,
}

/// An ATOMIC WRITE or FLUSH that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) psn: Psn,
    /// Messages completed with it.
    pub(super) msn: Msn,
}

/// One that takes a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Read(ReadResource),
    Atomic(AtomicResource),
    AtomicWrite(Done),
}

/// The newest `max_dest_rd_atomic` READs, atomics and ATOMIC WRITEs. A peer that keeps to that
/// number never asks for an older one: it had all answers before it sent one more.
#[derive(Debug, Default)]
pub(super) struct Resources {
    kept: VecDeque<Resource>,
}

impl Resources {
    pub(super) fn remember(&mut self, resource: Resource, limit: usize) {
        // RC-RESP-032, HOST-019: what is being answered has its own copy.
        while self.kept.len() >= limit.max(1) {
            self.kept.pop_front();
        }
        self.kept.push_back(resource);
    }

    /// The READ that a repeated request is the rest of: it must begin at one of its PSNs, at the
    /// address that this PSN answers for, and end where it ends or earlier.
    pub(super) fn find_read(&self, rest: &ReadResource, mtu: u32) -> Option<ReadResource> {
        self.kept.iter().rev().find_map(|resource| {
            let Resource::Read(read) = resource else { return None };
            let number = distance(read.first_psn, rest.first_psn);
            if number >= read.packets {
                return None;
            }
            let offset = u64::from(number) * u64::from(mtu);
            // RC-RESP-030
            let matches = rest.rkey == read.rkey
                && rest.va == read.va.wrapping_add(offset)
                && u64::from(rest.len) + offset <= u64::from(read.len);
            matches.then_some(*read)
        })
    }

    /// The atomic that was done at this PSN.
    pub(super) fn find_atomic(&self, psn: Psn) -> Option<AtomicResource> {
        self.kept.iter().rev().find_map(|resource| match resource {
            Resource::Atomic(atomic) if atomic.psn == psn => Some(*atomic),
            _ => None,
        })
    }

    /// The ATOMIC WRITE that was done at this PSN.
    pub(super) fn find_atomic_write(&self, psn: Psn) -> Option<Done> {
        self.kept.iter().rev().find_map(|resource| match resource {
            Resource::AtomicWrite(done) if done.psn == psn => Some(*done),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(psn: u32, packets: u32, va: u64, len: u32) -> ReadResource {
        let (first_psn, rkey, msn) = (Psn::new(psn), Rkey(5), Msn::new(0));
        ReadResource { first_psn, packets, va, rkey, len, msn, in_onlys: false }
    }

    #[test]
    fn only_the_rest_of_a_read_is_found() {
        let mut resources = Resources::default();
        resources.remember(Resource::Read(read(10, 3, 0x1000, 2500)), 4);
        let find = |rest| resources.find_read(&rest, 1024).is_some();
        assert!(find(read(10, 3, 0x1000, 2500)));
        assert!(find(read(11, 2, 0x1400, 1476)));
        assert!(!find(read(11, 2, 0x1000, 1476)), "another address");
        assert!(!find(read(11, 2, 0x1400, 1477)), "beyond its end");
        assert!(!find(read(13, 1, 0x1c00, 1)), "beyond its PSNs");
        assert!(!find(ReadResource { rkey: Rkey(6), ..read(10, 3, 0x1000, 2500) }));
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut resources = Resources::default();
        for psn in 0..3 {
            let atomic =
                AtomicResource { psn: Psn::new(psn), original: u64::from(psn), msn: Msn::new(0) };
            resources.remember(Resource::Atomic(atomic), 2);
        }
        assert_eq!(resources.find_atomic(Psn::new(0)), None);
        assert_eq!(resources.find_atomic(Psn::new(1)).map(|a| a.original), Some(1));
    }
}
