//! [`Fabric`] over verbs: a reliable connection between each two nodes, and WRITEs.

use crate::cluster::Node;
use crate::connect::{Peer, connect_all};
use crate::error::Error;
use crate::fabric::Fabric;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use urxe_verbs::{Access, Cq, Inline, Mr, Payload, PostError, PostReason, SendWr, Wc, WcStatus};

/// One in so many WRITEs has a completion. (An error has one always.) The queues have twice the
/// room.
const SIGNALED_EVERY: u32 = 64;

/// In the number of a WRITE, beside the rank of the node that it goes to: [`Mesh::flush`] waits for
/// it.
const FLUSH: u64 = 1 << 32;

/// This node, with a connection to each other node.
#[derive(Debug)]
pub struct Mesh {
    rank: usize,
    memory: Mr,
    peers: Vec<Option<Peer>>,
    /// Whose connections have broken.
    failed: Vec<bool>,
    /// To whom everything has arrived, of those that [`flush`](Mesh::flush) asks.
    flushed: Vec<bool>,
    /// WRITEs to each.
    posted: Vec<u32>,
    cq: Cq,
    /// What went wrong for all connections, until [`poll`](Mesh::poll) tells.
    error: Option<Error>,
}

impl Mesh {
    /// Makes `length` bytes of memory and connects it to that of all other nodes.
    ///
    /// # Errors
    /// As the verbs that it calls; [`Error::Meeting`] if a node has left.
    pub fn new(node: &mut Node, length: usize) -> Result<Mesh, Error> {
        let pd = node.context.alloc_pd()?;
        let cq = node.context.create_cq(4 * SIGNALED_EVERY * node.nodes as u32, None)?;
        let memory = pd.alloc_mr(length, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let peers = connect_all(node, &pd, &cq, memory.remote_buf(..)?, Access::REMOTE_WRITE)?;
        let (failed, flushed) = (vec![false; node.nodes], vec![false; node.nodes]);
        let posted = vec![0; node.nodes];
        Ok(Mesh { rank: node.rank, memory, peers, failed, flushed, posted, cq, error: None })
    }

    /// Notices connections that have broken.
    ///
    /// # Errors
    /// What went wrong here: that the daemon is gone, for instance.
    pub fn poll(&mut self) -> Result<(), Error> {
        let mut wcs = [Wc::default(); 32];
        loop {
            let count = self.cq.poll(&mut wcs)?;
            for wc in &wcs[..count] {
                let peer = (wc.wr_id & !FLUSH) as usize;
                self.failed[peer] |= wc.status != WcStatus::Success;
                self.flushed[peer] |= wc.wr_id & FLUSH != 0;
            }
            if count < wcs.len() {
                return self.error.take().map_or(Ok(()), Err);
            }
        }
    }

    /// Waits until all that was pushed has arrived, except where the connection has broken.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn flush(&mut self) -> Result<(), Error> {
        self.flushed = self.peers.iter().map(Option::is_none).collect();
        for to in 0..self.peers.len() {
            self.post(FLUSH, to, 0..0, Inline(&[]));
        }
        while (0..self.peers.len()).any(|to| !self.flushed[to] && !self.failed[to]) {
            self.poll()?;
            self.rest(true);
        }
        Ok(())
    }

    /// The nodes whose connections have broken, as far as [`poll`](Self::poll) has noticed.
    pub fn failed(&self) -> impl Iterator<Item = usize> {
        (0..self.failed.len()).filter(|&rank| self.failed[rank])
    }

    /// Lets others have the processor, for a while if there was nothing to do.
    pub fn rest(&self, was_idle: bool) {
        match was_idle {
            true => thread::sleep(Duration::from_micros(50)),
            false => thread::yield_now(),
        }
    }

    /// Posts a WRITE to the same place, once there is room for it; [`FLUSH`] is a flag of it.
    fn post<'a>(
        &mut self,
        flags: u64,
        to: usize,
        range: Range<usize>,
        payload: impl Into<Payload<'a>>,
    ) {
        let Some(Peer { qp, memory }) = &self.peers[to] else { return };
        let range = range.start as u64..range.end as u64;
        let there = memory.slice(range).expect("the memory is as long at all nodes");
        let mut wr = SendWr::write(flags | to as u64, payload, there);
        self.posted[to] += 1;
        if flags & FLUSH != 0 || self.posted[to].is_multiple_of(SIGNALED_EVERY) {
            wr = wr.signaled();
        }
        let qp = qp.clone();
        while !self.failed[to] {
            match qp.post_send(&[wr]) {
                Ok(()) => return,
                Err(PostError { reason: PostReason::QueueFull { .. }, .. }) => {
                    // Completions make room; or tell that there will be none.
                    let polled = self.poll();
                    self.fail(to, polled);
                    thread::yield_now();
                }
                Err(error) => self.fail(to, Err(error.into())),
            }
        }
    }

    fn fail(&mut self, to: usize, result: Result<(), Error>) {
        if let Err(error) = result {
            self.failed[to] = true;
            self.error.get_or_insert(error);
        }
    }
}

impl Fabric for Mesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn nodes(&self) -> usize {
        self.peers.len()
    }

    fn load(&self, at: usize) -> u64 {
        self.memory.atomic_u64(at).expect(LAYOUT).load(Ordering::Acquire)
    }

    fn store(&mut self, at: usize, word: u64) {
        self.memory.atomic_u64(at).expect(LAYOUT).store(word, Ordering::Release);
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        self.memory.read_at(at, bytes).expect(LAYOUT);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write_at(at, bytes).expect(LAYOUT);
    }

    fn push(&mut self, to: usize, range: Range<usize>) {
        let sge = self.memory.sge(range.clone()).expect(LAYOUT);
        self.post(0, to, range, &[sge]);
    }

    fn push_word(&mut self, to: usize, at: usize) {
        // Inline data is copied when it is posted: a word that is fetched later may have changed,
        // and would tell of what has not been sent.
        let word = self.load(at).to_ne_bytes();
        self.post(0, to, at..at + word.len(), Inline(&word));
    }
}

const LAYOUT: &str = "the layout lies within the memory";
