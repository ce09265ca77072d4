//! The sequencer by datagrams: a SEND for each request, and one for its answer, over a queue pair
//! that each node has for all others.
//!
//! What a connection does must be done here: what is lost is asked for again, and what was answered
//! already is answered the same.

use super::{Arguments, Received, SERVER, SIGNALED_EVERY, Tricks};
use crate::cluster::Node;
use crate::error::Error;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use urxe_verbs::{
    Access, AddressVector, Ah, Cq, Grh, Inline, Mr, Pd, PostError, PostReason, Qp, QpEndpoint,
    QpInit, QpType, RecvWr, SendWr, Wc,
};

const QKEY: u32 = 0x1122_3344;

/// Bytes of a message: which request it is, and the number that answers it.
const MESSAGE: usize = 16;

/// Room for a received message: before it stand 40 bytes about the path.
const ROOM: usize = 64;

/// Messages that a queue pair has room for. More that come at a time are lost.
const RECEIVES_MAX: usize = 4096;

/// When an answer that has not come is taken for lost, and when the server is.
const RETRY: Duration = Duration::from_millis(20);
const GIVE_UP: Duration = Duration::from_secs(20);

/// A request: who asks, in which of its places, and the how many-th it is there, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    client: usize,
    slot: u32,
    count: u32,
}

impl Request {
    fn to_word(self) -> u64 {
        (self.client as u64) << 48 | u64::from(self.slot) << 32 | u64::from(self.count)
    }

    fn from_word(word: u64) -> Request {
        let (client, slot) = ((word >> 48) as usize, (word >> 32) as u32 & 0xffff);
        Request { client, slot, count: word as u32 }
    }
}

/// A message: a request, and the number that answers it if it is an answer.
type Message = (Request, u64);

/// What the server has answered last, in each place of each client.
#[derive(Debug, Default)]
struct Answers {
    next: u64,
    last: BTreeMap<(usize, u32), (u32, u64)>,
}

impl Answers {
    /// The answer to a request, which is the same if it comes again; none if another has come
    /// since, so that nobody waits for this one.
    fn answer(&mut self, request: Request) -> Option<u64> {
        let last = self.last.entry((request.client, request.slot)).or_default();
        if request.count == last.0 + 1 {
            *last = (request.count, self.next);
            self.next += 1;
        }
        (request.count == last.0).then_some(last.1)
    }
}

/// A node's queue pair.
struct Endpoint {
    tricks: Tricks,
    qp: Qp,
    sends: Cq,
    receives: Cq,
    /// Places for messages that come.
    incoming: Mr,
    /// A place for each request that may be under way here, by peer and place.
    outgoing: Mr,
    peers: Vec<(Ah, u32)>,
    sent: u32,
}

pub(super) fn run(
    arguments: &Arguments,
    node: &mut Node,
    received: &mut Received,
) -> Result<(), Error> {
    let pd = node.context.alloc_pd()?;
    let mut endpoint = Endpoint::new(arguments, node, &pd)?;
    let own = endpoint.qp.endpoint()?;
    for QpEndpoint { qpn, gid, .. } in node.exchange::<QpEndpoint>(&own)? {
        endpoint.peers.push((pd.create_ah(&AddressVector::to(gid))?, qpn));
    }
    // Nobody sends before all are ready.
    node.exchange(&())?;
    if node.rank != SERVER {
        received.start(arguments.depth as usize);
        endpoint.ask(arguments, node.rank, received)?;
        received.stop();
        node.exchange(&())?;
        return Ok(());
    }
    // Any answer may be lost, so that it goes on until nobody asks any more.
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| endpoint.serve(&has_ended));
        let met = node.exchange(&());
        has_ended.store(true, Ordering::Relaxed);
        let served = server.join().unwrap_or_else(|_| Err(Error::Broken("it panicked".into())));
        met.map(drop).and(served)
    })
}

impl Endpoint {
    fn new(arguments: &Arguments, node: &Node, pd: &Pd) -> Result<Endpoint, Error> {
        let depth = arguments.depth as usize;
        let peers = if node.rank == SERVER { node.nodes - 1 } else { 1 };
        // As many again for requests that come twice.
        let count = (2 * depth * peers).min(RECEIVES_MAX);
        let channel = node.context.create_comp_channel()?;
        let sends = node.context.create_cq(256, None)?;
        let receives = node.context.create_cq(count as u32, Some(&channel))?;
        let mut init = QpInit { qp_type: QpType::Ud, recv_cq: &receives, ..QpInit::new(&sends) };
        init.caps.max_recv_wr = count as u32;
        let qp = pd.create_qp(&init)?;
        qp.start_datagrams(QKEY)?;
        let incoming = pd.alloc_mr(count * ROOM, Access::LOCAL_WRITE)?;
        let outgoing = pd.alloc_mr(node.nodes * depth * MESSAGE, Access::LOCAL_WRITE)?;
        let (tricks, peers) = (arguments.tricks, Vec::new());
        let endpoint = Endpoint { tricks, qp, sends, receives, incoming, outgoing, peers, sent: 0 };
        endpoint.post_receives(&(0..count).collect::<Vec<_>>())?;
        Ok(endpoint)
    }

    fn serve(&mut self, has_ended: &AtomicBool) -> Result<(), Error> {
        let mut answers = Answers::default();
        let mut messages = Vec::new();
        while !has_ended.load(Ordering::Relaxed) {
            self.receive(&mut messages)?;
            let answer = |(request, _): Message| Some((request, answers.answer(request)?));
            let answers: Vec<_> = messages.drain(..).filter_map(answer).collect();
            self.send(&answers, |request| request.client)?;
        }
        Ok(())
    }

    fn ask(
        &mut self,
        arguments: &Arguments,
        client: usize,
        received: &mut Received,
    ) -> Result<(), Error> {
        let mut left = arguments.requests;
        // In each place, the request that is under way, and when it was sent last.
        let mut places = Vec::new();
        for slot in 0..arguments.depth.min(left) {
            left -= 1;
            places.push(Some((Request { client, slot, count: 1 }, Instant::now())));
        }
        let first: Vec<_> = places.iter().flatten().map(|place| (place.0, 0)).collect();
        self.send(&first, |_| SERVER)?;
        let (mut messages, mut asked, mut heard) = (Vec::new(), Vec::new(), Instant::now());
        while places.iter().any(Option::is_some) {
            self.receive(&mut messages)?;
            let now = Instant::now();
            for (request, number) in messages.drain(..) {
                let Some(place) = places.get_mut(request.slot as usize) else { continue };
                // It is an answer to what was answered before.
                if place.is_none_or(|(wanted, _)| wanted != request) {
                    continue;
                }
                heard = now;
                received.take(request.slot as usize, number);
                *place = (left > 0).then(|| {
                    left -= 1;
                    let next = Request { count: request.count + 1, ..request };
                    asked.push((next, 0));
                    (next, now)
                });
            }
            for (request, sent) in places.iter_mut().flatten() {
                if now - *sent > RETRY {
                    *sent = now;
                    asked.push((*request, 0));
                }
            }
            self.send(&asked, |_| SERVER)?;
            asked.clear();
            if now - heard > GIVE_UP {
                return Err(Error::Broken(format!("the server has not answered for {GIVE_UP:?}")));
            }
        }
        Ok(())
    }

    /// Takes the messages that have come; waits for a while if there are none.
    fn receive(&mut self, messages: &mut Vec<Message>) -> Result<(), Error> {
        let mut wcs = [Wc::default(); 64];
        let count = self.receives.wait(&mut wcs, Some(RETRY))?;
        let mut places = Vec::new();
        for wc in &wcs[..count] {
            let at = wc.check()?.wr_id as usize;
            places.push(at);
            let mut bytes = [0; MESSAGE];
            self.incoming.read_at(at * ROOM + Grh::LEN, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            let [which, number] = [words[0], words[1]].map(u64::from_ne_bytes);
            let request = Request::from_word(which);
            // A stranger's is of nobody.
            if request.client < self.peers.len() {
                messages.push((request, number));
            }
        }
        self.post_receives(&places)
    }

    fn post_receives(&self, places: &[usize]) -> Result<(), Error> {
        let sge =
            |at: &usize| Ok([self.incoming.sge(at * ROOM..at * ROOM + Grh::LEN + MESSAGE)?]);
        let sges = places.iter().map(sge).collect::<Result<Vec<_>, Error>>()?;
        let wrs = places.iter().zip(&sges).map(|(at, sge)| RecvWr::new(*at as u64, sge));
        let wrs: Vec<_> = wrs.collect();
        Ok(wrs.chunks(self.list()).try_for_each(|list| self.qp.post_recv(list))?)
    }

    /// How many work requests are posted at a time.
    fn list(&self) -> usize {
        if self.tricks >= Tricks::Batch { 64 } else { 1 }
    }

    /// Sends messages, each to whom it belongs.
    fn send(&mut self, messages: &[Message], to: impl Fn(&Request) -> usize) -> Result<(), Error> {
        let depth = self.outgoing.length() / MESSAGE / self.peers.len();
        let mut parts = Vec::new();
        for (request, number) in messages {
            let which = request.to_word();
            let mut bytes = [0; MESSAGE];
            bytes[..8].copy_from_slice(&which.to_ne_bytes());
            bytes[8..].copy_from_slice(&number.to_ne_bytes());
            let place = (request.client * depth + request.slot as usize % depth) * MESSAGE;
            self.outgoing.write_at(place, &bytes)?;
            self.sent = self.sent.wrapping_add(1);
            let signaled =
                self.tricks < Tricks::Unsignaled || self.sent.is_multiple_of(SIGNALED_EVERY);
            let sge = [self.outgoing.sge(place..place + MESSAGE)?];
            parts.push((bytes, sge, &self.peers[to(request)], signaled));
        }
        let wrs = parts.iter().map(|(bytes, sge, (ah, qpn), signaled)| {
            let wr = match self.tricks >= Tricks::Inline {
                true => SendWr::send(0, Inline(bytes)),
                false => SendWr::send(0, sge),
            };
            let wr = wr.to(ah, *qpn, QKEY);
            if *signaled { wr.signaled() } else { wr }
        });
        let wrs: Vec<_> = wrs.collect();
        wrs.chunks(self.list()).try_for_each(|list| self.post(list))
    }

    /// Posts work requests, once there is room for them.
    fn post(&self, mut list: &[SendWr<'_>]) -> Result<(), Error> {
        let mut wcs = [Wc::default(); 64];
        loop {
            let count = self.sends.poll(&mut wcs)?;
            wcs[..count].iter().try_for_each(|wc| wc.check().map(drop))?;
            match self.qp.post_send(list) {
                Ok(()) => return Ok(()),
                Err(PostError { posted, reason: PostReason::QueueFull { .. }, .. }) => {
                    list = &list[posted..];
                    thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_again_gets_the_same_number_and_an_old_one_nothing() {
        let mut answers = Answers::default();
        let request = |client, slot, count| Request { client, slot, count };
        let first = Request::from_word(request(1, 0, 1).to_word());
        assert_eq!(answers.answer(first), Some(0));
        assert_eq!(answers.answer(request(1, 1, 1)), Some(1));
        assert_eq!(answers.answer(request(2, 0, 1)), Some(2));
        assert_eq!(answers.answer(request(1, 0, 1)), Some(0));
        assert_eq!(answers.answer(request(1, 0, 2)), Some(3));
        assert_eq!(answers.answer(request(1, 0, 1)), None);
        assert_eq!(answers.answer(request(1, 0, 4)), None);
        assert_eq!(answers.answer(request(1, 0, 2)), Some(3));
    }
}
