//! Asking over a reliable connection: by a SEND, which is answered by a SEND or a WRITE; or by a
//! READ, which needs no answer.

use super::{Arguments, By, CLIENT, Client, Request, SERVER};
use crate::cluster::Node;
use crate::connect::{Peer, connect_all};
use crate::error::Error;
use std::ops::Range;
use urxe_verbs::{Access, Cq, Inline, Mr, RecvWr, SendWr, Wc, WcOpcode};

/// One in so many requests or answers has a completion, which makes room in the send queue.
const SIGNALED_EVERY: u32 = 32;

/// One end of the connection.
pub(super) struct End {
    by: By,
    peer: Peer,
    cq: Cq,
    /// A place for each request that is under way.
    requests: Mr,
    depth: usize,
    /// A place for each answer.
    answers: Mr,
    max: usize,
    sent: u32,
}

impl End {
    pub(super) fn new(arguments: &Arguments, node: &mut Node) -> Result<End, Error> {
        let (depth, max) = (arguments.depth(), arguments.max as usize);
        let pd = node.context.alloc_pd()?;
        let channel = node.context.create_comp_channel()?;
        let cq = node.context.create_cq(256, Some(&channel))?;
        let requests = pd.alloc_mr(depth * Request::LENGTH, Access::LOCAL_WRITE)?;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let answers = pd.alloc_mr(depth * max, Access::LOCAL_WRITE | remote)?;
        let peers = connect_all(node, &pd, &cq, answers.remote_buf(..)?, remote)?;
        let peer = peers.into_iter().nth(SERVER + CLIENT - node.rank).flatten();
        let peer = peer.ok_or_else(|| Error::Meeting("there is no other node".into()))?;
        let end = End { by: arguments.by, peer, cq, requests, depth, answers, max, sent: 0 };
        if node.rank == SERVER {
            (0..depth).try_for_each(|slot| end.post_request_receive(slot))?;
        }
        // Nobody asks before the receives are posted.
        node.exchange(&())?;
        Ok(end)
    }

    /// Answers requests until there are no more.
    pub(super) fn serve(&mut self) -> Result<(), Error> {
        loop {
            let wc = self.wait()?;
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            let place = wc.wr_id as usize;
            let mut bytes = [0; Request::LENGTH];
            self.requests.read_at(place * Request::LENGTH, &mut bytes)?;
            self.post_request_receive(place)?;
            let request = Request::from_bytes(bytes);
            if request.size == 0 {
                return Ok(());
            }
            let range = self.place(request)?;
            let sge = [self.answers.sge(range.clone())?];
            let wr = match self.by {
                By::Write => {
                    let there = self.peer.memory.slice(range.start as u64..range.end as u64)?;
                    SendWr::write_imm(0, &sge, there, request.slot)
                }
                _ => SendWr::send(0, &sge),
            };
            self.post(wr)?;
        }
    }

    fn post_request_receive(&self, place: usize) -> Result<(), Error> {
        let from = place * Request::LENGTH;
        let sge = [self.requests.sge(from..from + Request::LENGTH)?];
        Ok(self.peer.qp.post_recv(&[RecvWr::new(place as u64, &sge)])?)
    }

    /// Where an answer is, at either end.
    fn place(&self, request: Request) -> Result<Range<usize>, Error> {
        let (slot, size) = (request.slot as usize, request.size as usize);
        if slot >= self.depth || size > self.max {
            return Err(Error::Broken(format!("a request for {size} bytes in place {slot} came")));
        }
        Ok(slot * self.max..slot * self.max + size)
    }

    /// The next completion.
    fn wait(&self) -> Result<Wc, Error> {
        let mut wcs = [Wc::default()];
        self.cq.wait(&mut wcs, None)?;
        Ok(*wcs[0].check()?)
    }

    fn send(&mut self, request: Request) -> Result<(), Error> {
        let bytes = request.to_bytes();
        self.post(SendWr::send(0, Inline(&bytes)))
    }

    fn post(&mut self, wr: SendWr<'_>) -> Result<(), Error> {
        self.sent = self.sent.wrapping_add(1);
        let is_signaled = self.sent.is_multiple_of(SIGNALED_EVERY);
        Ok(self.peer.qp.post_send(&[if is_signaled { wr.signaled() } else { wr }])?)
    }
}

impl Client for End {
    fn ask(&mut self, request: Request) -> Result<(), Error> {
        let range = self.place(request)?;
        let sge = [self.answers.sge(range.clone())?];
        match self.by {
            By::Read => {
                let there = self.peer.memory.slice(range.start as u64..range.end as u64)?;
                let wr = SendWr::read(request.slot.into(), &sge, there).signaled();
                return Ok(self.peer.qp.post_send(&[wr])?);
            }
            By::Write => self.peer.qp.post_recv(&[RecvWr::new(request.slot.into(), &[])])?,
            _ => self.peer.qp.post_recv(&[RecvWr::new(request.slot.into(), &sge)])?,
        }
        self.send(request)
    }

    fn answer(&mut self, request: Request) -> Result<(), Error> {
        loop {
            let wc = self.wait()?;
            if wc.opcode == WcOpcode::Send {
                continue;
            }
            if (wc.wr_id, wc.byte_len) != (request.slot.into(), request.size) {
                let (expected, slot, bytes) = (request, wc.wr_id, wc.byte_len);
                let text = format!("{bytes} bytes came in place {slot}, expected {expected:?}");
                return Err(Error::Broken(text));
            }
            return Ok(());
        }
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.send(Request { size: 0, slot: 0 })
    }
}
