//! The atomic multicast at one node, without any network.
//!
//! **Order.** Messages are delivered in turns: the first of each member, then the second of each,
//! and so on. A member with nothing to send fills its turns with empty messages, which are not
//! delivered. A message is delivered when all members are known to have received it.
//!
//! **View change.** When a member has failed, the others agree on who is left, and on how many
//! messages of each member belong to the view that ends: those that all who are left have received.
//! 1. Who suspects a member, or sees that another does, wedges: it receives nothing more, and says
//!    so. So what it says to have received stays as it is.
//! 2. When all who are left have wedged, the *leader*, the lowest of them, proposes: who has
//!    failed, and how many messages of each belong to the view. It proposes again what was proposed
//!    before in this view, if one who is left has accepted that.
//! 3. The others accept: they put the same into their own rows.
//! 4. When all who are left have accepted, or are in the next view already, a node delivers those
//!    messages, and is in the next view. Messages of the living that do not belong to the old view
//!    are still in the rings, and belong to the next.
//!
//! What a dead member delivered, all had received, and so it is among what is delivered here. A
//! proposal that somebody acted on was accepted by all who were left, so that whoever leads next
//! repeats it. Only a majority of a view goes on to the next, so that there are never two of them.

use crate::error::Error;
use crate::fabric::Fabric;
use crate::smc::rings::Rings;
use crate::sst::nodes::Nodes;
use crate::sst::{Column, Sst};

/// Members that the node takes for failed.
const SUSPECTED: Column<Nodes> = Column::new(0);
/// The last view that the node waits for, with nothing more received.
const WEDGED: Column<u64> = Column::new(1);
/// The last view that the node is in.
const INSTALLED: Column<u64> = Column::new(2);
/// The number of the last proposal that the node made or accepted. It guards the two below.
const PROPOSAL: Column<u64> = Column::new(3);
/// Proposed: who has failed.
const FAILED: Column<Nodes> = Column::new(4);

/// Proposed: how many messages of a sender there are up to the end of the view.
const fn last_of(sender: usize) -> Column<u64> {
    Column::new(5 + 3 * sender)
}

/// How many messages of a sender the node has received.
const fn received(sender: usize) -> Column<u64> {
    Column::new(6 + 3 * sender)
}

/// How many messages of a sender the node has delivered.
const fn delivered(sender: usize) -> Column<u64> {
    Column::new(7 + 3 * sender)
}

/// A number for a proposal, which is larger in a later view, and of a later leader.
fn proposal_number(view: u64, leader: usize) -> u64 {
    view << 6 | leader as u64
}

fn view_of(proposal: u64) -> u64 {
    proposal >> 6
}

/// The multicast at one node.
#[derive(Debug)]
pub struct Group {
    rings: Rings,
    sst: Sst,
    /// Of views that are counted from 0.
    view: u64,
    members: Nodes,
    /// How many messages of each node were before this view.
    base: Vec<u64>,
    /// How many turns of this view have been delivered.
    turns: u64,
    /// Messages in our own ring, and how many of them the others know of.
    filled: u64,
    shown: u64,
}

impl Group {
    /// Of all nodes, with rings of so many slots, for messages of so many bytes, from the beginning
    /// of the memory.
    pub fn new(nodes: usize, slots: usize, message_max: usize) -> Group {
        let rings = Rings { base: 0, nodes, slots, message_max };
        let sst = Sst { base: rings.end(), nodes, width: 5 + 3 * nodes };
        let (members, base) = (Nodes::all(nodes), vec![0; nodes]);
        Group { rings, sst, view: 0, members, base, turns: 0, filled: 0, shown: 0 }
    }

    /// How much memory it needs.
    pub fn length(&self) -> usize {
        self.sst.end()
    }

    /// The number of the view, from 0.
    pub fn view(&self) -> u64 {
        self.view
    }

    /// Who is in it.
    pub fn members(&self) -> Nodes {
        self.members
    }

    /// Takes a message to be sent, which is not empty. False, and it is not taken, if no slot is
    /// free.
    pub fn send(&mut self, fabric: &mut impl Fabric, message: &[u8]) -> bool {
        let delivered = self.sst.min(fabric, self.members, &delivered(fabric.rank()));
        if self.filled - delivered >= self.rings.slots as u64 {
            return false;
        }
        self.rings.fill(fabric, self.filled, message);
        self.filled += 1;
        true
    }

    /// A node has failed: its connection has broken.
    pub fn suspect(&mut self, fabric: &mut impl Fabric, rank: usize) {
        self.sst.set(fabric, &SUSPECTED, Nodes::default().with(rank));
    }

    /// Does what can be done: `deliver` is called with the sender and the message. Whether there
    /// was anything.
    ///
    /// # Errors
    /// [`Error::Broken`] if the others go on without this node, or it is not with the majority.
    pub fn step(
        &mut self,
        fabric: &mut impl Fabric,
        mut deliver: impl FnMut(usize, Vec<u8>),
    ) -> Result<bool, Error> {
        let rank = fabric.rank();
        let suspected = self.suspected(fabric);
        if suspected.contains(rank) {
            return Err(Error::Broken("the others go on without this node".into()));
        }
        let alive = self.members.without(suspected);
        if alive == self.members {
            self.fill_turns(fabric);
            let received = self.receive(fabric);
            return Ok(received | self.deliver_received(fabric, &mut deliver));
        }
        if 2 * alive.count() <= self.members.count() {
            let (alive, members) = (alive.count(), self.members.count());
            let text = format!("{alive} of {members} members are left, expected a majority");
            return Err(Error::Broken(text));
        }
        self.sst.set(fabric, &WEDGED, self.view + 1);
        self.propose(fabric, alive);
        self.accept(fabric, alive);
        Ok(self.install(fabric, alive, &mut deliver))
    }

    /// Whom this node suspects, by itself or because another does that it does not suspect.
    fn suspected(&self, fabric: &mut impl Fabric) -> Nodes {
        let mine = self.sst.get(fabric, fabric.rank(), &SUSPECTED);
        for row in self.members.without(mine).iter() {
            let theirs = self.sst.get(fabric, row, &SUSPECTED);
            self.sst.set(fabric, &SUSPECTED, theirs);
        }
        self.sst.get(fabric, fabric.rank(), &SUSPECTED)
    }

    /// Shows what was sent, and with empty messages takes the turns that others are ahead.
    fn fill_turns(&mut self, fabric: &mut impl Fabric) {
        let rank = fabric.rank();
        let ahead =
            |sender: usize| self.rings.filled(fabric, sender).saturating_sub(self.base[sender]);
        let ahead = self.members.iter().map(ahead).max().unwrap_or(0);
        while self.filled - self.base[rank] < ahead && self.send(fabric, &[]) {}
        if self.shown < self.filled {
            self.rings.show(fabric, self.shown..self.filled);
            self.shown = self.filled;
        }
    }

    /// Tells what has come.
    fn receive(&mut self, fabric: &mut impl Fabric) -> bool {
        let rank = fabric.rank();
        let mut any = false;
        for sender in self.members.iter() {
            let filled = self.rings.filled(fabric, sender);
            any |= filled > self.sst.get(fabric, rank, &received(sender));
            self.sst.set(fabric, &received(sender), filled);
        }
        any
    }

    /// Delivers what all have received.
    fn deliver_received(
        &mut self,
        fabric: &mut impl Fabric,
        deliver: &mut impl FnMut(usize, Vec<u8>),
    ) -> bool {
        let first = self.turns;
        loop {
            let (sender, message) = self.turn();
            if self.sst.min(fabric, self.members, &received(sender)) <= message {
                break;
            }
            self.deliver(fabric, sender, message, deliver);
            self.turns += 1;
        }
        self.tell_delivered(fabric);
        first < self.turns
    }

    /// Whose turn it is, and which message.
    fn turn(&self) -> (usize, u64) {
        let count = self.members.count() as u64;
        let sender = self.members.iter().nth((self.turns % count) as usize).unwrap_or(0);
        (sender, self.base[sender] + self.turns / count)
    }

    fn deliver(
        &self,
        fabric: &impl Fabric,
        sender: usize,
        message: u64,
        deliver: &mut impl FnMut(usize, Vec<u8>),
    ) {
        let bytes = self.rings.message(fabric, sender, message);
        if !bytes.is_empty() {
            deliver(sender, bytes);
        }
    }

    /// Tells senders which slots this node is done with.
    fn tell_delivered(&self, fabric: &mut impl Fabric) {
        let count = self.members.count() as u64;
        for (place, sender) in (0..).zip(self.members.iter()) {
            let turns = self.turns / count + u64::from(place < self.turns % count);
            self.sst.set(fabric, &delivered(sender), self.base[sender] + turns);
        }
    }

    /// As the leader: says how the view ends, once nobody who is left receives anything more.
    fn propose(&self, fabric: &mut impl Fabric, alive: Nodes) {
        let (sst, next) = (self.sst, self.view + 1);
        let rank = fabric.rank();
        let number = proposal_number(next, rank);
        let is_leader = alive.iter().next() == Some(rank);
        let have_wedged = sst.min(fabric, alive, &WEDGED) >= next;
        if !is_leader || !have_wedged || sst.get(fabric, rank, &PROPOSAL) == number {
            return;
        }
        let accepted = alive.iter().map(|row| (sst.get(fabric, row, &PROPOSAL), row)).max();
        match accepted.filter(|(number, _)| view_of(*number) == next) {
            Some((_, row)) => self.copy_proposal(fabric, row),
            None => {
                sst.put(fabric, &FAILED, self.members.without(alive));
                for sender in self.members.iter() {
                    let last = sst.min(fabric, alive, &received(sender));
                    sst.put(fabric, &last_of(sender), last);
                }
            }
        }
        sst.set(fabric, &PROPOSAL, number);
    }

    /// Accepts what the leader proposes.
    fn accept(&self, fabric: &mut impl Fabric, alive: Nodes) {
        let Some(leader) = alive.iter().next() else { return };
        let number = proposal_number(self.view + 1, leader);
        if self.sst.get(fabric, leader, &PROPOSAL) == number
            && self.sst.get(fabric, fabric.rank(), &PROPOSAL) < number
        {
            self.copy_proposal(fabric, leader);
            self.sst.set(fabric, &PROPOSAL, number);
        }
    }

    fn copy_proposal(&self, fabric: &mut impl Fabric, row: usize) {
        if row == fabric.rank() {
            return;
        }
        let failed = self.sst.get(fabric, row, &FAILED);
        self.sst.put(fabric, &FAILED, failed);
        for sender in self.members.iter() {
            let last = self.sst.get(fabric, row, &last_of(sender));
            self.sst.put(fabric, &last_of(sender), last);
        }
    }

    /// Ends the view once all who are left have accepted how. Whether it did.
    fn install(
        &mut self,
        fabric: &mut impl Fabric,
        alive: Nodes,
        deliver: &mut impl FnMut(usize, Vec<u8>),
    ) -> bool {
        let (sst, rank, next) = (self.sst, fabric.rank(), self.view + 1);
        let number = sst.get(fabric, rank, &PROPOSAL);
        let mut rows = alive.iter();
        let agrees = |row| {
            sst.get(fabric, row, &PROPOSAL) == number || sst.get(fabric, row, &INSTALLED) >= next
        };
        if view_of(number) != next || !rows.all(agrees) {
            return false;
        }
        let last: Vec<_> =
            (0..sst.nodes).map(|sender| sst.get(fabric, rank, &last_of(sender))).collect();
        let longest =
            self.members.iter().map(|sender| last[sender].saturating_sub(self.base[sender]));
        let turns = longest.max().unwrap_or(0) * self.members.count() as u64;
        while self.turns < turns {
            let (sender, message) = self.turn();
            if message < last[sender] {
                self.deliver(fabric, sender, message, deliver);
            }
            self.turns += 1;
        }
        self.members = self.members.without(sst.get(fabric, rank, &FAILED));
        self.base = last;
        self.turns = 0;
        self.view = next;
        self.tell_delivered(fabric);
        sst.set(fabric, &INSTALLED, next);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    const SIZE: usize = 24;

    /// Plays all nodes, kills some of them at any time, and compares what they deliver.
    fn play(seed: u64) -> usize {
        let mut draw = Sim::new(seed, 0, 0);
        let nodes = 2 + draw.below(6);
        let (slots, messages) = (1 + draw.below(6), 1 + draw.below(25) as u64);
        let kills = draw.below((nodes - 1) / 2 + 1);
        let mut groups: Vec<_> = (0..nodes).map(|_| Group::new(nodes, slots, SIZE)).collect();
        let mut sim = Sim::new(seed, nodes, groups[0].length());
        // One after the other, most often while the others still agree on the one before; and each
        // second time the leader.
        let (mut victims, mut when) = (Vec::new(), sim.below(400));
        for _ in 0..kills {
            victims.push((when, sim.below(2 * nodes)));
            when += sim.below(120);
        }
        victims.reverse();
        let mut sent = vec![0u64; nodes];
        let mut logs: Vec<Vec<(usize, u64)>> = vec![Vec::new(); nodes];
        for step in 0.. {
            assert!(step < 200_000, "seed {seed}: no progress: {groups:?}");
            if let Some((_, victim)) = victims.pop_if(|(when, _)| *when <= step) {
                let leader = (0..nodes).find(|rank| !sim.killed.contains(rank));
                sim.kill(Some(victim).filter(|victim| *victim < nodes).or(leader).unwrap());
            }
            let rank = sim.below(nodes);
            if !sim.killed.contains(&rank) {
                for _ in 0..sim.below(3) {
                    let message = [sent[rank].to_le_bytes(); SIZE / 8].concat();
                    if sent[rank] < messages && groups[rank].send(&mut sim.node(rank), &message) {
                        sent[rank] += 1;
                    }
                }
                let notices = sim.below(40);
                let noticed = sim.killed.iter().copied().nth(notices);
                if let Some(failed) = noticed {
                    groups[rank].suspect(&mut sim.node(rank), failed);
                }
                let stepped = groups[rank].step(&mut sim.node(rank), |sender, bytes| {
                    let number: [u8; 8] = bytes[..8].try_into().unwrap();
                    assert_eq!(bytes, [number; SIZE / 8].concat(), "seed {seed}: torn");
                    logs[rank].push((sender, u64::from_le_bytes(number)));
                });
                stepped.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            for _ in 0..sim.below(8) {
                sim.deliver();
            }
            let alive = (0..nodes).filter(|rank| !sim.killed.contains(rank));
            let alive = alive.fold(Nodes::default(), Nodes::with);
            let has_all = |rank: usize| {
                let of =
                    |sender| logs[rank].iter().filter(move |(from, _)| *from == sender).count();
                groups[rank].members() == alive
                    && alive.iter().all(|sender| of(sender) as u64 == messages)
            };
            if victims.is_empty() && alive.iter().all(has_all) {
                break;
            }
        }
        let alive: Vec<_> = (0..nodes).filter(|rank| !sim.killed.contains(rank)).collect();
        let log = &logs[alive[0]];
        for (rank, other) in logs.iter().enumerate() {
            // What a dead node delivered is the beginning of what the others did.
            let same = if alive.contains(&rank) { other == log } else { log.starts_with(other) };
            assert!(same, "seed {seed}: {rank} delivered {other:?}, {} {log:?}", alive[0]);
            let of_sender = log.iter().filter(|(sender, _)| *sender == rank);
            for (place, (_, number)) in (0..).zip(of_sender) {
                assert_eq!(place, *number, "seed {seed}: {rank} is delivered out of order");
            }
        }
        sim.killed.len()
    }

    #[test]
    fn all_deliver_the_same_in_the_same_order_whoever_dies_in_1000_seeded_runs() {
        let killed: usize = (0..1000).map(play).sum();
        assert!(killed > 300, "{killed}");
    }
}
