//! Shares: whose QPs have turns to send, and get copies of datagrams, before those of another.
//!
//! The host says which QPs are of one share: those of one program. However many a share has, and
//! however often they are rung, others wait for one round of it at most.

use super::schedule::Turns;
use crate::ids::ShareId;
use crate::limits::{COPIES_PER_BATCH, ROUND_COST};
use std::collections::{HashMap, VecDeque};
use urxe_types::{Qpn, Slab};

/// A share's number among those that a device has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareKey(u32);

/// What has QPs of its own.
#[derive(Debug)]
struct Share {
    id: ShareId,
    qps: usize,
    turns: Turns,
    /// It stands among those whose rounds come.
    waits: bool,
    /// The batch in which it last got copies, and how many more it may get in it.
    batch: u64,
    copies_left: usize,
}

/// The shares of a device.
#[derive(Debug, Default)]
pub(super) struct Shares {
    shares: Slab<Share>,
    by_id: HashMap<ShareId, ShareKey>,
    /// Those whose QPs have turns, in the order of their rounds. Only the first, whose round it
    /// is, may have none left.
    order: VecDeque<ShareKey>,
    /// What the round of the first has cost.
    spent: usize,
    /// Counts the batches of packets that came.
    batch: u64,
}

impl Shares {
    /// A QP of a share is created.
    pub(super) fn join(&mut self, id: ShareId) -> ShareKey {
        let key = self.by_id.get(&id).copied().unwrap_or_else(|| {
            let (turns, waits) = (Turns::default(), false);
            let (batch, copies_left) = (self.batch, COPIES_PER_BATCH);
            let share = Share { id, qps: 0, turns, waits, batch, copies_left };
            let key = self.shares.insert(share).expect("there are no more shares than QPs");
            self.by_id.insert(id, ShareKey(key));
            ShareKey(key)
        });
        self.shares.get_mut(key.0).into_iter().for_each(|share| share.qps += 1);
        key
    }

    /// A QP of a share is destroyed.
    pub(super) fn leave(&mut self, key: ShareKey) {
        let Some(share) = self.shares.get_mut(key.0) else { return };
        share.qps -= 1;
        if share.qps == 0 {
            self.by_id.remove(&share.id);
            self.shares.remove(key.0);
        }
    }

    /// Gives a QP a turn, among those of its share with the same flow.
    pub(super) fn push(&mut self, key: ShareKey, qpn: Qpn, flow: usize) {
        let Some(share) = self.shares.get_mut(key.0) else { return };
        share.turns.push(qpn, flow);
        if !std::mem::replace(&mut share.waits, true) {
            self.order.push_back(key);
        }
    }

    /// The QP whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Qpn> {
        loop {
            let &key = self.order.front()?;
            if let Some(share) = self.shares.get_mut(key.0) {
                // SHARE-003
                if self.spent < ROUND_COST
                    && let Some(qpn) = share.turns.pop()
                {
                    return Some(qpn);
                }
                share.waits = !share.turns.is_empty();
                if share.waits {
                    self.order.push_back(key);
                }
            }
            self.order.pop_front();
            self.spent = 0;
        }
    }

    /// The QPs that have turns.
    pub(super) fn turns(&self) -> impl Iterator<Item = Qpn> {
        let shares = self.order.iter().filter_map(|key| self.shares.get(key.0));
        shares.flat_map(|share| share.turns.iter())
    }

    /// What [`pop`](Self::pop) returned last is the next again.
    pub(super) fn put_back(&mut self, qpn: Qpn) {
        let first = self.order.front().and_then(|key| self.shares.get_mut(key.0));
        first.into_iter().for_each(|share| share.turns.put_back(qpn));
    }

    /// The turn that [`pop`](Self::pop) gave last has sent so many packets.
    pub(super) fn charge(&mut self, packets: usize) {
        self.spent += 1 + packets;
    }

    /// Another batch of packets begins.
    pub(super) fn begin_batch(&mut self) {
        self.batch += 1;
    }

    /// Of so many copies of a datagram for a share, those that it may get.
    pub(super) fn take_copies(&mut self, key: ShareKey, wanted: usize) -> usize {
        let Some(share) = self.shares.get_mut(key.0) else { return 0 };
        if share.batch != self.batch {
            share.batch = self.batch;
            share.copies_left = COPIES_PER_BATCH;
        }
        // SHARE-004
        let granted = wanted.min(share.copies_left);
        share.copies_left -= granted;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn qpn(share: usize, number: u32) -> Qpn {
        Qpn::new((share as u32) << 16 | number)
    }

    proptest! {
        /// However many QPs the shares have, whatever their turns send, and although each QP has
        /// another turn at once: between two turns of a share, each other share has one round.
        #[test]
        fn no_share_waits_for_more_than_one_round_of_each_other(
            sizes in prop::collection::vec(1..300u32, 2..5),
            costs in prop::collection::vec(0..=64usize, 1..20),
        ) {
            let mut shares = Shares::default();
            let mut keys = Vec::new();
            for (share, &size) in sizes.iter().enumerate() {
                let key = (0..size).map(|_| shares.join(ShareId(share as u64))).last().unwrap();
                keys.push(key);
                for number in 0..size {
                    shares.push(key, qpn(share, number), number as usize);
                }
            }
            // Of each share, what each other has spent since its last turn.
            let mut spent = vec![vec![0; sizes.len()]; sizes.len()];
            for (turn, cost) in (0..3000).zip(costs.iter().cycle()) {
                let next = shares.pop().unwrap();
                if turn % 7 == 0 {
                    shares.put_back(next);
                    prop_assert_eq!(shares.pop(), Some(next));
                }
                shares.charge(*cost);
                let share = (next.get() >> 16) as usize;
                shares.push(keys[share], next, next.get() as usize);
                spent[share].fill(0);
                for other in (0..sizes.len()).filter(|&other| other != share) {
                    spent[other][share] += 1 + cost;
                    // SHARE-003
                    prop_assert!(spent[other][share] <= ROUND_COST + 64);
                }
            }
        }
    }

    #[test]
    fn a_share_ends_with_its_last_qp_and_what_is_left_of_its_turns_with_it() {
        let mut shares = Shares::default();
        let [first, other] = [1, 1].map(|id| shares.join(ShareId(id)));
        assert_eq!(first, other);
        shares.push(first, Qpn::new(20), 0);
        shares.leave(first);
        assert_eq!(shares.pop(), Some(Qpn::new(20)), "it has another QP");
        shares.push(first, Qpn::new(21), 0);
        shares.leave(first);
        let again = shares.join(ShareId(1));
        assert_ne!(again, first);
        assert_eq!(shares.pop(), None);
        shares.push(again, Qpn::new(22), 0);
        assert_eq!(shares.pop(), Some(Qpn::new(22)));
    }

    #[test]
    fn each_share_gets_so_many_copies_in_a_batch_and_none_has_fewer_because_of_another() {
        let mut shares = Shares::default();
        let [greedy, other] = [1, 2].map(|id| shares.join(ShareId(id)));
        for _ in 0..2 {
            shares.begin_batch();
            // SHARE-004
            assert_eq!(shares.take_copies(greedy, COPIES_PER_BATCH - 1), COPIES_PER_BATCH - 1);
            assert_eq!(shares.take_copies(greedy, COPIES_PER_BATCH), 1);
            assert_eq!(shares.take_copies(greedy, 1), 0);
            assert_eq!(shares.take_copies(other, 1), 1);
        }
    }
}
