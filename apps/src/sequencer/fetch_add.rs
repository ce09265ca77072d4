//! The sequencer as a word of the server's memory, which clients add 1 to by FETCH-AND-ADD.

use super::{Arguments, Received, SERVER, Tricks};
use crate::cluster::Node;
use crate::connect::{Peer, connect_all};
use crate::error::Error;
use urxe_verbs::{Access, SendWr, Wc};

const WORD: usize = size_of::<u64>();

pub(super) fn run(
    arguments: &Arguments,
    node: &mut Node,
    received: &mut Received,
) -> Result<(), Error> {
    let pd = node.context.alloc_pd()?;
    let channel = node.context.create_comp_channel()?;
    let cq = node.context.create_cq(256 * node.nodes as u32, Some(&channel))?;
    let memory = pd.alloc_mr(64 * WORD, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let mut qps = Vec::new();
    for _ in 0..arguments.qps() {
        let word = memory.remote_buf(..WORD)?;
        let peers = connect_all(node, &pd, &cq, word, Access::REMOTE_ATOMIC)?;
        let is_used = |rank| (node.rank == SERVER) != (rank == SERVER);
        let peers = peers.into_iter().enumerate().filter(|(rank, _)| is_used(*rank));
        qps.extend(peers.filter_map(|(_, peer)| peer));
    }
    if node.rank == SERVER {
        // Its processor has nothing to do. Its NIC has, until all have what they asked for.
        node.exchange(&())?;
        return Ok(());
    }
    received.start(qps.len());
    let mut left = arguments.requests as usize;
    // Which places in memory are free for an answer on each queue pair, in the order of requests.
    let mut free: Vec<(usize, usize)> = Vec::new();
    for qp in 0..qps.len() {
        free.extend((0..arguments.depth_of(qp)).map(|_| qp).zip(free.len()..));
    }
    let mut under_way = 0;
    let mut wcs = [Wc::default(); 64];
    loop {
        free.truncate(left.min(free.len()));
        left -= free.len();
        under_way += free.len();
        for (qp, Peer { qp: to, memory: word }) in qps.iter().enumerate() {
            let slots = || free.iter().filter(|(of, _)| *of == qp).map(|(_, slot)| *slot);
            let sge = |slot: usize| Ok([memory.sge(slot * WORD..(slot + 1) * WORD)?]);
            let sges = slots().map(sge).collect::<Result<Vec<_>, Error>>()?;
            let wrs = slots().zip(&sges).map(|(slot, sge)| {
                SendWr::fetch_add((qp << 32 | slot) as u64, sge, *word, 1).signaled()
            });
            let wrs: Vec<_> = wrs.collect();
            let list = if arguments.tricks >= Tricks::Batch { wrs.len().max(1) } else { 1 };
            wrs.chunks(list).try_for_each(|list| to.post_send(list))?;
        }
        free.clear();
        if under_way == 0 {
            break;
        }
        let count = cq.wait(&mut wcs, None)?;
        for wc in &wcs[..count] {
            let id = wc.check()?.wr_id as usize;
            let (qp, slot) = (id >> 32, id & 0xffff_ffff);
            let mut number = [0; WORD];
            memory.read_at(slot * WORD, &mut number)?;
            received.take(qp, u64::from_ne_bytes(number));
            free.push((qp, slot));
        }
        under_way -= count;
    }
    received.stop();
    node.exchange(&())?;
    Ok(())
}
