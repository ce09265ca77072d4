//! The sequencer by messages: a SEND for each request, and one for its answer.

use super::{Arguments, Received, SERVER, SIGNALED_EVERY, Tricks};
use crate::cluster::Node;
use crate::connect::connect_all;
use crate::error::Error;
use urxe_verbs::{Access, Inline, Mr, Qp, RecvWr, SendWr, Sge, Wc, WcOpcode};

const NUMBER: usize = size_of::<u64>();

/// Places for messages of a connection, for those that come and for those that go: more than can be
/// under way.
const SLOTS: usize = 64;

/// Queue pairs, with memory for the messages of each.
struct Connections {
    tricks: Tricks,
    is_server: bool,
    qps: Vec<Qp>,
    /// SENDs of each.
    sent: Vec<u32>,
    memory: Mr,
}

/// A message: its connection, its place, and the number that it carries.
type Message = (usize, usize, u64);

pub(super) fn run(
    arguments: &Arguments,
    node: &mut Node,
    received: &mut Received,
) -> Result<(), Error> {
    let is_server = node.rank == SERVER;
    let pd = node.context.alloc_pd()?;
    let channel = node.context.create_comp_channel()?;
    let cq = node.context.create_cq(1024 * node.nodes as u32, Some(&channel))?;
    let length = 2 * arguments.qps() * node.nodes * SLOTS * NUMBER;
    let memory = pd.alloc_mr(length, Access::LOCAL_WRITE)?;
    // The connections of a client are these; those of the server are of all clients.
    let (mut qps, mut depths) = (Vec::new(), Vec::new());
    for qp in 0..arguments.qps() {
        let peers = connect_all(node, &pd, &cq, memory.remote_buf(..)?, Access::empty())?;
        let of_interest = |rank: &usize| is_server != (*rank == SERVER);
        let peers = peers.into_iter().enumerate().filter(|(rank, _)| of_interest(rank));
        qps.extend(peers.filter_map(|(_, peer)| peer).map(|peer| peer.qp));
        depths.resize(qps.len(), arguments.depth_of(qp));
    }
    let (tricks, sent) = (arguments.tricks, vec![0; qps.len()]);
    let mut connections = Connections { tricks, is_server, qps, sent, memory };
    let all: Vec<Message> =
        (0..depths.len()).flat_map(|at| (0..depths[at]).map(move |slot| (at, slot, 0))).collect();
    connections.post_receives(&all)?;
    node.exchange(&())?;

    received.start(depths.len());
    let clients = if is_server { node.nodes - 1 } else { 1 };
    // Messages that are to come, and those that this side may send.
    let mut to_come = arguments.requests as usize * clients;
    let mut to_go = to_come;
    if !is_server {
        let first = &all[..all.len().min(to_go)];
        connections.send(first)?;
        to_go -= first.len();
    }
    let (mut next, mut wcs) = (0, [Wc::default(); 64]);
    let mut came: Vec<Message> = Vec::new();
    while to_come > 0 {
        let count = cq.wait(&mut wcs, None)?;
        came.clear();
        for wc in &wcs[..count] {
            let id = wc.check()?.wr_id as usize;
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            let (at, slot) = (id >> 32, id & 0xffff_ffff);
            let number = if is_server { next } else { connections.number(at, slot)? };
            next += 1;
            if !is_server {
                received.take(at, number);
            }
            came.push((at, slot, number));
        }
        to_come -= came.len();
        connections.post_receives(&came)?;
        came.truncate(to_go);
        connections.send(&came)?;
        to_go -= came.len();
    }
    received.stop();
    // What was sent last arrives before the queue pairs go.
    node.exchange(&())?;
    Ok(())
}

impl Connections {
    /// Where a message that comes is, or one that goes.
    fn sge(&self, at: usize, slot: usize, goes: bool) -> Result<[Sge; 1], Error> {
        let from = self.offset(at, slot, goes);
        Ok([self.memory.sge(from..from + NUMBER)?])
    }

    fn offset(&self, at: usize, slot: usize, goes: bool) -> usize {
        (usize::from(goes) * self.qps.len() * SLOTS + at * SLOTS + slot) * NUMBER
    }

    fn number(&self, at: usize, slot: usize) -> Result<u64, Error> {
        let mut number = [0; NUMBER];
        self.memory.read_at(self.offset(at, slot, false), &mut number)?;
        Ok(u64::from_ne_bytes(number))
    }

    /// How many work requests are posted at a time.
    fn list(&self) -> usize {
        if self.tricks >= Tricks::Batch { SLOTS } else { 1 }
    }

    /// Posts receives in these places.
    fn post_receives(&self, messages: &[Message]) -> Result<(), Error> {
        let is_empty = self.is_server && self.tricks >= Tricks::Empty;
        for (at, qp) in self.qps.iter().enumerate() {
            let slots = messages.iter().filter(|(of, ..)| *of == at).map(|(_, slot, _)| *slot);
            let slots: Vec<_> = slots.collect();
            let sges = slots.iter().map(|slot| self.sge(at, *slot, false));
            let sges = sges.collect::<Result<Vec<_>, _>>()?;
            let wrs = slots.iter().zip(&sges).map(|(slot, sge)| {
                RecvWr::new((at << 32 | slot) as u64, if is_empty { &[] } else { sge })
            });
            let wrs: Vec<_> = wrs.collect();
            wrs.chunks(self.list()).try_for_each(|list| qp.post_recv(list))?;
        }
        Ok(())
    }

    /// Sends a request, or an answer, from each of these places.
    fn send(&mut self, messages: &[Message]) -> Result<(), Error> {
        for (at, qp) in self.qps.iter().enumerate() {
            let messages = || messages.iter().filter(|(of, ..)| *of == at);
            let sges = messages().map(|(_, slot, _)| self.sge(at, *slot, true));
            let sges = sges.collect::<Result<Vec<_>, _>>()?;
            let numbers: Vec<_> = messages().map(|(.., number)| number.to_ne_bytes()).collect();
            let mut wrs = Vec::new();
            for (((_, slot, _), sge), number) in messages().zip(&sges).zip(&numbers) {
                let id = (at << 32 | slot) as u64;
                let wr = if !self.is_server && self.tricks >= Tricks::Empty {
                    SendWr::send(id, Inline(&[]))
                } else if self.tricks >= Tricks::Inline {
                    SendWr::send(id, Inline(number))
                } else {
                    self.memory.write_at(self.offset(at, *slot, true), number)?;
                    SendWr::send(id, sge)
                };
                self.sent[at] = self.sent[at].wrapping_add(1);
                let is_signaled = self.tricks < Tricks::Unsignaled
                    || self.sent[at].is_multiple_of(SIGNALED_EVERY);
                wrs.push(if is_signaled { wr.signaled() } else { wr });
            }
            wrs.chunks(self.list()).try_for_each(|list| qp.post_send(list))?;
        }
        Ok(())
    }
}
