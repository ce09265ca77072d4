//! What either end of a test has: queue pairs, completion queues, and memory with places for
//! messages that go out and for those that come in.

use super::args::{Local, Memory};
use super::idle::Idle;
use super::message::End;
use super::plan::{Plan, Transport, Verb};
use super::receives::Receives;
use super::verify::Verifier;
use crate::completions::{Completions, PollMode};
use crate::error::Error;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use urxe_verbs::{
    Access, AddressVector, Ah, Context, Mr, PathMtu, Pd, Qp, QpCaps, QpEndpoint, QpInit, RemoteBuf,
    Sge, SrqInit, Wc,
};

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The Q_Key of datagrams. The device gives the two ends' queue pairs numbers that nobody else has,
/// so that it need not be a secret.
pub(super) const QKEY: u32 = 0x0075_7278;

/// One end of a test.
pub(super) struct Bench {
    pub(super) plan: Plan,
    gid_index: u8,
    pub(super) poll: PollMode,
    pub(super) memory_kind: Memory,
    pub(super) context: Context,
    pub(super) sends: Completions,
    pub(super) recvs: Completions,
    pub(super) qps: Vec<BenchQp>,
    /// The receives of each queue pair, or the shared ones of all; none if nothing is received.
    pub(super) receives: Vec<Receives>,
    /// Index of a queue pair by QPN.
    by_qpn: HashMap<u32, usize>,
    pub(super) idle: Option<Idle>,
    pub(super) memory: Areas,
    /// The other end's memory.
    pub(super) remote: RemoteBuf,
    /// Checks contents, if that is wanted.
    pub(super) verifier: Option<Verifier>,
}

/// A queue pair, and its progress.
#[derive(Debug)]
pub(super) struct BenchQp {
    pub(super) qp: Qp,
    /// Number of the next message to send: how many were sent so far, of all lengths. Place and
    /// contents depend on it.
    pub(super) posted: u64,
    /// Number of the first message without a completion.
    pub(super) completed: u64,
    /// Number of the next message to receive; on unreliable transports, how many arrived.
    pub(super) received: u64,
    /// Where its datagrams go.
    pub(super) to: Option<(Ah, u32)>,
}

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) qp: usize,
    /// The message's number.
    pub(super) number: u64,
    /// Offset of its data.
    pub(super) place: usize,
    /// How many bytes.
    pub(super) len: u32,
}

/// Memory of one end: an area for outgoing messages (and for the results of READs and atomics), and
/// one for incoming messages. Each has the same number of places for each queue pair.
#[derive(Clone, Debug)]
pub(super) struct Areas {
    pub(super) mr: Mr,
    stride: u64,
    slots: u64,
    area_len: u64,
}

impl Areas {
    /// Offset of message `number` of a queue pair, outgoing or returned.
    pub(super) fn outgoing(&self, qp: usize, number: u64) -> usize {
        (self.place(qp, number)) as usize
    }

    /// Offset of message `number` of a queue pair, incoming. It is the same at both ends.
    pub(super) fn incoming(&self, qp: usize, number: u64) -> usize {
        (self.area_len + self.place(qp, number)) as usize
    }

    /// Offset of a message that consumed shared receive `number`.
    pub(super) fn incoming_shared(&self, number: u64) -> usize {
        let places = self.area_len / self.stride;
        (self.area_len + number % places * self.stride) as usize
    }

    /// How many places a queue pair has.
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    fn place(&self, qp: usize, number: u64) -> u64 {
        (qp as u64 * self.slots + number % self.slots) * self.stride
    }

    /// `size` bytes at an offset.
    pub(super) fn sge(&self, offset: usize, size: u32) -> Result<Sge, Error> {
        Ok(self.mr.sge(offset..offset + size as usize)?)
    }
}

impl Bench {
    /// Opens the device and creates all objects. `near` is this end's address of the TCP connection
    /// to the other.
    pub(super) fn new(plan: Plan, local: &Local, near: IpAddr) -> Result<Self, Error> {
        let context = Context::open(&local.device)?;
        let gid_index = match local.gid_index {
            Some(index) => index,
            None => nearest(&context.gids(1)?, near),
        };
        let pd = context.alloc_pd()?;
        let window = plan.window();
        let wanted = if plan.is_received() { plan.receives() } else { 0 };
        let all = (wanted * plan.qps).min(context.query_device()?.max_cqe);
        let sends = Completions::new(&context, window * plan.qps, local.poll)?;
        let recvs = Completions::new(&context, all.max(1), local.poll)?;
        let srq = match plan.srq {
            true => {
                let max_wr = all.min(MAX_SHARED);
                Some(pd.create_srq(&SrqInit { max_wr, max_sge: 1, limit: 0 })?)
            }
            false => None,
        };
        let caps = QpCaps {
            max_send_wr: window,
            max_recv_wr: wanted,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: plan.inline,
        };
        let (send_cq, recv_cq) = (sends.cq(), recvs.cq());
        let (qp_type, srq) = (plan.transport.qp_type(), srq.as_ref());
        let init = QpInit { qp_type, send_cq, recv_cq, srq, caps, ..QpInit::new(send_cq) };
        let qps = (0..plan.qps).map(|_| {
            let qp = pd.create_qp(&init)?;
            Ok(BenchQp { qp, posted: 0, completed: 0, received: 0, to: None })
        });
        let qps = qps.collect::<Result<Vec<_>, Error>>()?;
        let receives = match (srq, plan.is_received()) {
            (Some(srq), _) => vec![Receives::shared(srq.clone(), all.min(MAX_SHARED))],
            (None, true) => {
                let each = qps.iter().enumerate();
                each.map(|(index, qp)| Receives::of_qp(index, &qp.qp, wanted)).collect()
            }
            (None, false) => Vec::new(),
        };
        let by_qpn = qps.iter().enumerate().map(|(index, qp)| (qp.qp.qpn(), index));
        let by_qpn = by_qpn.collect();
        let idle = Idle::new(&context, &pd, plan.idle)?;
        let area_len = plan.area_len();
        let mr = memory(&pd, 2 * area_len as usize, local.memory)?;
        let (stride, slots) = (plan.stride(), plan.slots().into());
        let memory = Areas { mr, stride, slots, area_len };
        let remote = RemoteBuf { addr: 0, rkey: 0, len: 0 };
        let verifier = Verifier::wanted(&plan, &memory);
        let (poll, memory_kind) = (local.poll, local.memory);
        Ok(Bench {
            plan,
            gid_index,
            poll,
            memory_kind,
            context,
            sends,
            recvs,
            qps,
            receives,
            by_qpn,
            idle,
            memory,
            remote,
            verifier,
        })
    }

    /// The queue pairs and the memory, for the other end.
    pub(super) fn end(&self) -> Result<End, Error> {
        let active_mtu = self.context.query_port(1)?.active_mtu;
        let wanted = match self.plan.mtu.map(PathMtu::try_from) {
            Some(mtu) => mtu.map_err(|error| Error::Usage(format!("--mtu is {error}")))?,
            None => active_mtu,
        };
        if wanted > active_mtu {
            let device = &self.context.device().name;
            return Err(Error::Usage(format!(
                "--mtu is {wanted}, expected at most {active_mtu}, which is what the link of \
                 {device} carries"
            )));
        }
        let gid = self.gid_index;
        let endpoints =
            self.qps.iter().map(|qp| Ok(QpEndpoint { mtu: wanted, ..qp.qp.endpoint_at(gid)? }));
        let endpoints = endpoints.collect::<Result<_, Error>>()?;
        Ok(End { endpoints, memory: self.memory.mr.remote_buf(..)? })
    }

    /// Connects all queue pairs, and posts the first receives.
    pub(super) fn connect(&mut self, remote: &End) -> Result<(), Error> {
        if remote.endpoints.len() != self.qps.len() {
            return Err(Error::Failed(format!(
                "the other end has {} QPs, expected {}",
                remote.endpoints.len(),
                self.qps.len()
            )));
        }
        let gid = self.gid_index;
        for (qp, endpoint) in self.qps.iter_mut().zip(&remote.endpoints) {
            if self.plan.transport == Transport::Ud {
                qp.qp.start_datagrams(QKEY)?;
                let av = AddressVector { sgid_index: gid, ..AddressVector::to(endpoint.gid) };
                let ah = qp.qp.pd().create_ah(&av)?;
                qp.to = Some((ah, endpoint.qpn));
            } else {
                qp.qp.connect_from(gid, endpoint, ACCESS)?;
            }
        }
        self.check_datagrams(remote)?;
        self.remote = remote.memory;
        self.refill(1)
    }

    /// Whether the longest message fits into a packet, where it must.
    fn check_datagrams(&self, remote: &End) -> Result<(), Error> {
        let ours = self.end()?.endpoints;
        let mtu = ours.iter().chain(&remote.endpoints).map(|endpoint| endpoint.mtu).min();
        let (size, mtu) = (self.plan.max_size(), mtu.map_or(0, |mtu| mtu.bytes() as u32));
        if self.plan.transport == Transport::Ud && size > mtu {
            return Err(Error::Usage(format!(
                "--size is {size}, expected at most {mtu}: a datagram is one packet, and that is \
                 the path MTU between the two ends"
            )));
        }
        Ok(())
    }

    /// Posts receives again where `least` or more are missing.
    pub(super) fn refill(&mut self, least: u32) -> Result<(), Error> {
        let len = self.plan.max_size() + self.plan.headroom();
        let Bench { receives, memory, .. } = self;
        receives.iter_mut().try_for_each(|receives| receives.refill(memory, len, least))
    }

    /// The message of a receive completion.
    pub(super) fn arrival(&mut self, wc: &Wc) -> Result<Arrival, Error> {
        let (index, receive) = of_wr_id(wc.check()?.wr_id);
        let headroom = self.plan.headroom();
        let (Some(&qp), Some(receives)) = (self.by_qpn.get(&wc.qpn), self.receives.get_mut(index))
        else {
            return Err(Error::Failed(format!("a completion of the unknown QP {:#08x}", wc.qpn)));
        };
        receives.take();
        let place = receives.place(&self.memory, receive) + headroom as usize;
        // On unreliable transports messages carry their numbers.
        let number = wc.imm.map_or(self.qps[qp].received, u64::from);
        self.qps[qp].received += 1;
        Ok(Arrival { qp, number, place, len: wc.byte_len.saturating_sub(headroom) })
    }

    /// Clears the place that a ping-pong of WRITEs polls.
    pub(super) fn clear_last_message(&self) -> Result<(), Error> {
        let (place, len) = (self.memory.incoming(0, 0), self.memory.stride as usize);
        match (self.plan.test.verb(), self.plan.test.is_latency()) {
            (Verb::Write, true) => Ok(self.memory.mr.fill(place..place + len, 0)?),
            _ => Ok(()),
        }
    }
}

/// Receives that a shared queue holds at most; devices have limits of their own.
const MAX_SHARED: u32 = 32_767;

/// Bits of a `wr_id` that number messages; those above are the queue pair's index.
const NUMBER_BITS: u32 = 48;

/// The `wr_id` of a message of a queue pair.
pub(super) fn wr_id(qp: usize, number: u64) -> u64 {
    (qp as u64) << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
}

/// The queue pair and the message of a `wr_id`.
pub(super) fn of_wr_id(wr_id: u64) -> (usize, u64) {
    ((wr_id >> NUMBER_BITS) as usize, wr_id & ((1 << NUMBER_BITS) - 1))
}

/// Which of a device's GIDs can reach what this address reaches: the same, else one of its family,
/// which leads beyond the link if it does; the first of several.
fn nearest(gids: &[(u8, IpAddr)], near: IpAddr) -> u8 {
    let near = near.to_canonical();
    let is_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let likeness = |gid: IpAddr| {
        let is_of_family = gid.is_ipv4() == near.is_ipv4();
        (gid == near, is_of_family, is_local(gid) == is_local(near))
    };
    let best = gids.iter().max_by_key(|&&(index, gid)| {
        let gid = gid.to_canonical();
        (likeness(gid), Reverse(index))
    });
    best.map_or(0, |&(index, _)| index)
}

const PAGE: usize = 4096;

/// Registered memory consists of whole pages, as in programs that are written for speed.
#[derive(Clone)]
#[repr(align(4096))]
struct Page {
    _bytes: [u8; PAGE],
}

/// Registers memory of a kind.
fn memory(pd: &Pd, len: usize, kind: Memory) -> Result<Mr, Error> {
    match kind {
        Memory::Shared => Ok(pd.alloc_mr(len, ACCESS)?),
        Memory::Process => {
            // Never freed: a test lives as long as its process.
            let memory = Vec::leak(vec![Page { _bytes: [0; PAGE] }; len.div_ceil(PAGE)]);
            let len = memory.len() * PAGE;
            // SAFETY: the memory is never freed, and writable. The only reference to it ends with
            // this call, for it is turned into a pointer here; from then on it is used
            // only through the `Mr`.
            Ok(unsafe { pd.reg_mr(memory.as_mut_ptr().cast(), len, ACCESS)? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gid_is_that_of_the_connection_or_of_its_family() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let table = ["fe80::1", "10.0.0.1", "2001:db8::1", "10.0.0.2"];
        let gids: Vec<_> = (0..).zip(table.map(ip)).collect();
        let cases = [
            ("10.0.0.2", 3),
            ("::ffff:10.0.0.2", 3),
            ("192.0.2.1", 1),
            ("2001:db8::2", 2),
            ("fe80::2", 0),
        ];
        for (near, index) in cases {
            assert_eq!(nearest(&gids, ip(near)), index, "{near}");
        }
        assert_eq!(nearest(&gids[..1], ip("192.0.2.1")), 0, "there is no other");
        assert_eq!(nearest(&[], ip("192.0.2.1")), 0);
    }

    #[test]
    fn a_wr_id_identifies_queue_pair_and_message() {
        for (qp, number) in [(0, 0), (1, 2), (1023, (1 << NUMBER_BITS) - 1)] {
            assert_eq!(of_wr_id(wr_id(qp, number)), (qp, number));
        }
    }
}
