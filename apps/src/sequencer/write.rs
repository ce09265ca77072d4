//! The sequencer by memory: a WRITE into the server's for each request, and one into the client's
//! for its answer. Both sides poll their own memory; no receive is posted, and nothing completes
//! but WRITEs.

use super::{Arguments, Received, SERVER, SIGNALED_EVERY, Tricks};
use crate::cluster::Node;
use crate::connect::{Peer, connect_all};
use crate::error::Error;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use urxe_verbs::{Access, Cq, Inline, Mr, PostError, PostReason, SendWr, Wc};

const WORD: usize = size_of::<u64>();

/// Words of a connection for what comes, and for what goes.
const SLOTS: usize = 64;

/// How often it looks in vain, and lets others have the processor, before it sleeps.
const LOOKS: u32 = 20;

/// A connection to a client, or to the server. What comes is in its words one after the other, and
/// then in the first again; 0 is nothing.
struct Connection {
    peer: Peer,
    /// How many of the words are used.
    depth: usize,
    /// The first of its words here, and of those that it writes there.
    here: usize,
    there: usize,
    /// How many words have come, and have gone.
    came: u64,
    gone: u64,
}

struct Side {
    tricks: Tricks,
    memory: Mr,
    cq: Cq,
    connections: Vec<Connection>,
}

pub(super) fn run(
    arguments: &Arguments,
    node: &mut Node,
    received: &mut Received,
) -> Result<(), Error> {
    let pd = node.context.alloc_pd()?;
    let (clients, count) = (node.nodes - 1, arguments.qps() * node.nodes);
    let cq = node.context.create_cq(256 * count as u32, None)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = pd.alloc_mr(2 * count * SLOTS * WORD, access)?;
    let mut connections = Vec::new();
    for qp in 0..arguments.qps() {
        let opened = memory.remote_buf(..)?;
        let peers = connect_all(node, &pd, &cq, opened, Access::REMOTE_WRITE)?;
        for (rank, peer) in peers.into_iter().enumerate() {
            // The server has connections with all clients, and they have only those.
            let (client, here, there) = match (node.rank, rank) {
                (SERVER, client) => (client, connections.len(), qp),
                (client, SERVER) => (client, qp, qp * clients + client - 1),
                _ => continue,
            };
            let Some(peer) = peer.filter(|_| client != SERVER) else { continue };
            let (here, there) = (here * SLOTS, there * SLOTS);
            let depth = arguments.depth_of(qp);
            connections.push(Connection { peer, depth, here, there, came: 0, gone: 0 });
        }
    }
    let mut side = Side { tricks: arguments.tricks, memory, cq, connections };
    let requests = u64::from(arguments.requests);
    if node.rank == SERVER {
        side.serve(requests * clients as u64)?;
    } else {
        received.start(side.connections.len());
        side.ask(requests, received)?;
        received.stop();
    }
    // What was written last arrives before the queue pairs go.
    node.exchange(&())?;
    Ok(())
}

impl Side {
    /// Gives out so many numbers.
    fn serve(&mut self, numbers: u64) -> Result<(), Error> {
        let (mut next, mut idle) = (0, 0);
        while next < numbers {
            let before = next;
            for at in 0..self.connections.len() {
                let mut answers = Vec::new();
                while let Some(_request) = self.take(at)? {
                    // 0 is nothing.
                    next += 1;
                    answers.push(next);
                }
                self.write(at, &answers)?;
            }
            self.check()?;
            rest(&mut idle, next > before);
        }
        Ok(())
    }

    /// Asks for so many numbers.
    fn ask(&mut self, mut left: u64, received: &mut Received) -> Result<(), Error> {
        let (mut under_way, mut idle) = (0, 0);
        while left + under_way > 0 {
            let before = left + under_way;
            for at in 0..self.connections.len() {
                while let Some(answer) = self.take(at)? {
                    under_way -= 1;
                    received.take(at, answer - 1);
                }
                let Connection { depth, gone, came, .. } = self.connections[at];
                let count = left.min(depth as u64 - (gone - came));
                // Any word that is not 0.
                self.write(at, &vec![1; count as usize])?;
                left -= count;
                under_way += count;
            }
            self.check()?;
            rest(&mut idle, left + under_way < before);
        }
        Ok(())
    }

    /// The next word of a connection, if it has come.
    fn take(&mut self, at: usize) -> Result<Option<u64>, Error> {
        let connection = &mut self.connections[at];
        if connection.depth == 0 {
            return Ok(None);
        }
        let slot = connection.here + connection.came as usize % connection.depth;
        let word = self.memory.atomic_u64(slot * WORD)?;
        let came = word.load(Ordering::Acquire);
        if came == 0 {
            return Ok(None);
        }
        // Nobody writes there before we have answered, or asked again.
        word.store(0, Ordering::Relaxed);
        connection.came += 1;
        Ok(Some(came))
    }

    /// Writes words to the peer.
    fn write(&mut self, at: usize, words: &[u64]) -> Result<(), Error> {
        let half = self.memory.length() / 2;
        let connection = &mut self.connections[at];
        let mut places = Vec::new();
        for word in words {
            let slot = connection.gone as usize % connection.depth;
            let here = half + (connection.here + slot) * WORD;
            self.memory.write_at(here, &word.to_ne_bytes())?;
            let there = bytes(connection.there + slot);
            connection.gone += 1;
            let signaled = self.tricks < Tricks::Unsignaled
                || connection.gone.is_multiple_of(u64::from(SIGNALED_EVERY));
            let there = connection.peer.memory.slice(there.start as u64..there.end as u64)?;
            places.push(([self.memory.sge(here..here + WORD)?], there, signaled));
        }
        let words: Vec<_> = words.iter().map(|word| word.to_ne_bytes()).collect();
        let wrs = places.iter().zip(&words).map(|((sge, there, signaled), word)| {
            let wr = match self.tricks >= Tricks::Inline {
                true => SendWr::write(0, Inline(word), *there),
                false => SendWr::write(0, sge, *there),
            };
            if *signaled { wr.signaled() } else { wr }
        });
        let wrs: Vec<_> = wrs.collect();
        let list = if self.tricks >= Tricks::Batch { SLOTS } else { 1 };
        wrs.chunks(list).try_for_each(|list| self.post(at, list))
    }

    /// Posts work requests, once there is room for them.
    fn post(&self, at: usize, mut list: &[SendWr<'_>]) -> Result<(), Error> {
        while let Err(error) = self.connections[at].peer.qp.post_send(list) {
            let PostError { posted, reason: PostReason::QueueFull { .. }, .. } = error else {
                return Err(error.into());
            };
            list = &list[posted..];
            self.check()?;
            thread::yield_now();
        }
        Ok(())
    }

    /// Takes completions, which make room in the queues, or tell that a connection has broken.
    fn check(&self) -> Result<(), Error> {
        let mut wcs = [Wc::default(); 64];
        let count = self.cq.poll(&mut wcs)?;
        wcs[..count].iter().try_for_each(|wc| Ok(wc.check().map(drop)?))
    }
}

fn bytes(slot: usize) -> Range<usize> {
    slot * WORD..(slot + 1) * WORD
}

/// Lets others have the processor if there was nothing to do.
fn rest(idle: &mut u32, was_busy: bool) {
    match was_busy {
        true => *idle = 0,
        false if *idle < LOOKS => {
            *idle += 1;
            thread::yield_now();
        }
        false => thread::sleep(Duration::from_micros(20)),
    }
}
