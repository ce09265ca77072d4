//! The objects of each program: queue pairs, and memory for outgoing and incoming messages.

use super::atomics;
use super::message::{Endpoints, Operation, Round};
use crate::completions::{Completions, PollMode};
use crate::error::Error;
use crate::pattern::Pattern;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_verbs::{
    Access, AddressVector, Ah, BindInfo, Context, FlushPlacement, MULTICAST_QPN, Mr, Mw, MwType,
    OpenOptions, Qp, QpCaps, QpEndpoint, QpInit, QpType, RemoteBuf, SendWr, Sge, Srq, SrqInit, Wc,
};

/// The longest message in bytes.
const MAX_SIZE: u32 = 1 << 20;

/// The Q_Key of datagrams.
const QKEY: u32 = 0x0075_7278;

/// The multicast groups, of either family: for use inside one organisation or one machine.
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 71, 91);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0x4791, 0x4791);

/// Messages under way at a time: at most this many, ...
const MAX_WINDOW: u32 = 256;
/// ... at least this many, ...
const MIN_WINDOW: u32 = 8;
/// ... and in between by their bytes.
const WINDOW_BYTES: u32 = 8 << 20;

/// The same for transports without flow control, which lose messages if too many come at once.
const LOSSY_WINDOW: u32 = 32;
const LOSSY_WINDOW_BYTES: u32 = 128 << 10;

/// Memory windows of a program.
pub(super) const WINDOWS: u32 = 32;

/// Bytes after each message that must not be written.
const GUARD: usize = 64;

/// The content of unwritten memory.
const UNTOUCHED: u8 = 0xa5;

/// How long to wait for the next completion.
const STALL: Duration = Duration::from_secs(15);

/// Messages of this kind and size that are under way at a time.
pub(super) fn window(operation: Operation, size: u32) -> u32 {
    if operation.is_lossy() {
        return LOSSY_WINDOW_BYTES.checked_div(size).unwrap_or(u32::MAX).clamp(1, LOSSY_WINDOW);
    }
    let most = if operation == Operation::SendWithInvalidate { WINDOWS } else { MAX_WINDOW };
    WINDOW_BYTES.checked_div(size).unwrap_or(u32::MAX).clamp(MIN_WINDOW, most)
}

/// Bytes from one message to the next.
fn stride(size: u32) -> usize {
    (size as usize + GUARD).next_multiple_of(64)
}

/// Bytes of memory of the largest window.
fn area_len() -> usize {
    let sizes = (0..=MAX_SIZE.ilog2()).map(|log2| 1 << log2);
    sizes.map(|size| window(Operation::Write, size) as usize * stride(size)).max().unwrap_or(0)
}

/// A piece of registered memory with a slot for each message of a round.
#[derive(Clone, Debug)]
pub(super) struct Area {
    mr: Mr,
    scratch: Vec<u8>,
}

impl Area {
    fn new(mr: Mr) -> Self {
        Area { mr, scratch: Vec::new() }
    }

    /// The memory of message number `index` of a round, for a work request.
    pub(super) fn sge(&self, round: &Round, index: u32) -> Result<Sge, Error> {
        let start = index as usize * stride(round.size);
        Ok(self.mr.sge(start..start + round.size as usize)?)
    }

    /// All of the memory, for the peer.
    pub(super) fn remote_buf(&self) -> Result<RemoteBuf, Error> {
        Ok(self.mr.remote_buf(..)?)
    }

    /// Fills all slots of a round with their messages, or marks them unwritten.
    pub(super) fn prepare(&mut self, round: &Round, with_messages: bool) -> Result<(), Error> {
        self.mr.fill(..round.count as usize * stride(round.size), UNTOUCHED)?;
        if with_messages {
            self.scratch.resize(round.size as usize, 0);
            for index in 0..round.count {
                message(round, index).fill(&mut self.scratch);
                self.mr.write_at(index as usize * stride(round.size), &self.scratch)?;
            }
        }
        Ok(())
    }

    /// Checks every byte of a round: the messages, and that nothing else was written.
    pub(super) fn check(&mut self, round: &Round, side: &str) -> Result<(), Error> {
        for index in 0..round.count {
            let (bytes, guard) = self.slot(round, index)?;
            let wrong = |what: &dyn std::fmt::Display| {
                let Round { operation, size, first, .. } = round;
                let number = first + u64::from(index);
                Error::WrongData(format!(
                    "{} of {size} bytes, message {number}, at the {side}: {what}",
                    operation.name()
                ))
            };
            message(round, index).check(bytes).map_err(|mismatch| wrong(&mismatch))?;
            if let Some(place) = touched(guard) {
                return Err(wrong(&format_args!("byte {place} after the message was written")));
            }
        }
        Ok(())
    }

    /// All of the memory, for a memory window through which the peer may write.
    pub(super) fn bind_info(&self) -> Result<BindInfo, Error> {
        Ok(self.mr.bind_info(.., Access::REMOTE_WRITE)?)
    }

    /// The slot of message number `index`: the message, and the guard after it.
    pub(super) fn slot(&mut self, round: &Round, index: u32) -> Result<(&[u8], &[u8]), Error> {
        self.scratch.resize(stride(round.size), 0);
        self.mr.read_at(index as usize * stride(round.size), &mut self.scratch)?;
        Ok(self.scratch.split_at(round.size as usize))
    }

    /// Sets the number that atomics work on: the first 8 bytes.
    pub(super) fn set_word(&self, value: u64) -> Result<(), Error> {
        self.mr.atomic_u64(0)?.store(value, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// The 8 bytes of message number `index` as a number.
    pub(super) fn word(&self, round: &Round, index: u32) -> Result<u64, Error> {
        let word = self.mr.atomic_u64(index as usize * stride(round.size))?;
        Ok(word.load(std::sync::atomic::Ordering::SeqCst))
    }
}

/// The first byte of a guard that was written.
pub(super) fn touched(guard: &[u8]) -> Option<usize> {
    guard.iter().position(|&byte| byte != UNTOUCHED)
}

/// The content of message number `index` of a round.
pub(super) fn message(round: &Round, index: u32) -> Pattern {
    Pattern::new(round.operation as u64, round.first + u64::from(index))
}

/// The immediate data of message number `index` of a round, if it has any.
pub(super) fn immediate(round: &Round, index: u32) -> Option<u32> {
    let number = round.first + u64::from(index);
    round.operation.has_immediate().then_some((number as u32).wrapping_mul(0x9e37_79b9))
}

/// One of the two programs.
pub(super) struct Program {
    pub(super) qps: Qps,
    pub(super) srq: Srq,
    pub(super) windows: Vec<Mw>,
    pub(super) sends: Completions,
    pub(super) recvs: Completions,
    pub(super) outgoing: Area,
    pub(super) incoming: Area,
    /// The other program's queue pairs, once it is connected.
    peer: Option<Peer>,
}

/// A queue pair of each kind.
pub(super) struct Qps {
    pub(super) rc: Qp,
    uc: Qp,
    pub(super) ud: Qp,
    /// Two that share their receives.
    shared: [Qp; 2],
}

/// The destinations of messages.
struct Peer {
    endpoints: Endpoints,
    ah: Ah,
    group_ah: Ah,
    group: IpAddr,
}

/// The access rights of the memory and the queue pairs.
const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);

impl Program {
    /// Opens the first device of a daemon and creates all objects.
    pub(super) fn open(socket: &Path) -> Result<Self, Error> {
        let context = Context::open(&OpenOptions::new().socket(socket))?;
        let pd = context.alloc_pd()?;
        let sends = Completions::new(&context, 2 * MAX_WINDOW, PollMode::Yield)?;
        let recvs = Completions::new(&context, 2 * MAX_WINDOW, PollMode::Yield)?;
        let caps = QpCaps {
            // A message can be two work requests.
            max_send_wr: 2 * MAX_WINDOW,
            max_recv_wr: MAX_WINDOW,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let srq = pd.create_srq(&SrqInit { max_wr: MAX_WINDOW, max_sge: 1, limit: 0 })?;
        let (send_cq, recv_cq) = (sends.cq(), recvs.cq());
        let init = QpInit { send_cq, recv_cq, caps, ..QpInit::new(send_cq) };
        let make = |qp_type, srq| pd.create_qp(&QpInit { qp_type, srq, ..init.clone() });
        let qps = Qps {
            rc: make(QpType::Rc, None)?,
            uc: make(QpType::Uc, None)?,
            ud: make(QpType::Ud, None)?,
            shared: [make(QpType::Rc, Some(&srq))?, make(QpType::Rc, Some(&srq))?],
        };
        let one = std::iter::once(pd.alloc_mw(MwType::One));
        let windows = one.chain((0..WINDOWS).map(|_| pd.alloc_mw(MwType::Two)));
        let windows = windows.collect::<Result<_, _>>()?;
        let outgoing = Area::new(pd.alloc_mr(area_len(), ACCESS)?);
        let incoming = Area::new(pd.alloc_mr(area_len(), ACCESS)?);
        Ok(Program { qps, srq, windows, sends, recvs, outgoing, incoming, peer: None })
    }

    /// The queue pairs, for the other program.
    pub(super) fn endpoints(&self) -> Result<Endpoints, Error> {
        let Qps { rc, uc, ud, shared: [first, second] } = &self.qps;
        Ok(Endpoints {
            rc: rc.endpoint()?,
            uc: uc.endpoint()?,
            ud: ud.endpoint()?,
            shared: [first.endpoint()?, second.endpoint()?],
        })
    }

    /// Connects to the other program.
    pub(super) fn connect(&mut self, endpoints: Endpoints) -> Result<(), Error> {
        let Qps { rc, uc, ud, shared } = &self.qps;
        rc.connect(&endpoints.rc, ACCESS)?;
        uc.connect(&endpoints.uc, ACCESS)?;
        ud.start_datagrams(QKEY)?;
        for (qp, endpoint) in shared.iter().zip(&endpoints.shared) {
            qp.connect(endpoint, ACCESS)?;
        }
        let group = match endpoints.ud.gid {
            IpAddr::V4(_) => GROUP_V4.into(),
            IpAddr::V6(_) => GROUP_V6.into(),
        };
        let ah = ud.pd().create_ah(&AddressVector::to(endpoints.ud.gid))?;
        let group_ah = ud.pd().create_ah(&AddressVector::to(group))?;
        self.peer = Some(Peer { endpoints, ah, group_ah, group });
        Ok(())
    }

    /// Resets and connects the queue pair of an unreliable operation, so that no receives are left
    /// for which no message came.
    pub(super) fn restart(&self, operation: Operation) -> Result<(), Error> {
        let Peer { endpoints, group, .. } = self.peer()?;
        match operation.transport() {
            QpType::Rc => {}
            QpType::Uc => {
                self.qps.uc.to_reset()?;
                self.qps.uc.connect(&endpoints.uc, ACCESS)?;
            }
            QpType::Ud => {
                self.qps.ud.to_reset()?;
                self.qps.ud.start_datagrams(QKEY)?;
                if operation == Operation::UdMulticast {
                    self.qps.ud.attach_mcast(*group)?;
                }
            }
        }
        Ok(())
    }

    /// The queue pair of message number `index` of a round.
    pub(super) fn qp(&self, operation: Operation, index: u32) -> &Qp {
        match (operation, operation.transport()) {
            (Operation::SendToSrq, _) => &self.qps.shared[index as usize % 2],
            (_, QpType::Rc) => &self.qps.rc,
            (_, QpType::Uc) => &self.qps.uc,
            (_, QpType::Ud) => &self.qps.ud,
        }
    }

    /// The other program's queue pair from which messages of this kind come.
    pub(super) fn peer_endpoint(&self) -> Result<&QpEndpoint, Error> {
        Ok(&self.peer()?.endpoints.ud)
    }

    fn peer(&self) -> Result<&Peer, Error> {
        self.peer.as_ref().ok_or_else(|| Error::Failed("the programs are not connected".into()))
    }

    /// Appends the work requests of message number `index` of a round to `list`; the last one is
    /// signaled. `keys` are those of the windows that the partner has bound.
    pub(super) fn send_wrs<'a>(
        &'a self,
        round: &Round,
        index: u32,
        sge: &'a [Sge; 1],
        remote: RemoteBuf,
        keys: &[u32],
        list: &mut Vec<SendWr<'a>>,
    ) -> Result<(), Error> {
        let peer = self.peer()?;
        let wr_id = round.first + u64::from(index);
        let imm = immediate(round, index).unwrap_or_default();
        let slot = remote.slice(index as u64 * stride(round.size) as u64..)?;
        let slot = RemoteBuf { len: round.size.into(), ..slot };
        let key = |number: usize| {
            let missing = || Error::Failed("the partner has bound too few windows".into());
            keys.get(number).copied().ok_or_else(missing)
        };
        let ud_qpn = peer.endpoints.ud.qpn;
        let wr = match round.operation {
            Operation::Send | Operation::SendToSrq | Operation::UcSend => SendWr::send(wr_id, sge),
            Operation::SendWithImm => SendWr::send_imm(wr_id, sge, imm),
            Operation::SendWithInvalidate => SendWr::send_inv(wr_id, sge, key(index as usize)?),
            Operation::Write => SendWr::write(wr_id, sge, slot),
            Operation::WriteWithImm | Operation::UcWriteWithImm => {
                SendWr::write_imm(wr_id, sge, slot, imm)
            }
            Operation::WriteThroughWindow1 | Operation::WriteThroughWindow2 => {
                SendWr::write(wr_id, sge, RemoteBuf { rkey: key(0)?, ..slot })
            }
            Operation::WriteAndFlush => {
                list.push(SendWr::write(wr_id, sge, slot));
                SendWr::flush(wr_id, slot, FlushPlacement::GLOBAL)
            }
            Operation::AtomicWrite => SendWr::atomic_write(wr_id, sge, slot),
            Operation::Read => SendWr::read(wr_id, sge, slot),
            Operation::CompareAndSwap => {
                let (compare, swap) = atomics::compare_swap(round, index);
                SendWr::compare_swap(wr_id, sge, remote, compare, swap)
            }
            Operation::FetchAndAdd => SendWr::fetch_add(wr_id, sge, remote, atomics::add(round)),
            Operation::UdSend => SendWr::send(wr_id, sge).to(&peer.ah, ud_qpn, QKEY),
            Operation::UdSendWithImm => {
                SendWr::send_imm(wr_id, sge, imm).to(&peer.ah, ud_qpn, QKEY)
            }
            Operation::UdMulticast => {
                SendWr::send(wr_id, sge).to(&peer.group_ah, MULTICAST_QPN, QKEY)
            }
        };
        list.push(wr.signaled());
        Ok(())
    }
}

/// Takes `count` completions, and hands each to `check`, with its number from 0 on.
pub(super) fn collect(
    completions: &mut Completions,
    count: u32,
    mut check: impl FnMut(u32, &Wc) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut taken = 0;
    let mut stalled = None;
    while taken < count {
        let wcs = completions.wait()?;
        if wcs.is_empty() {
            let since: &mut Instant = stalled.get_or_insert_with(Instant::now);
            if since.elapsed() > STALL {
                return Err(Error::Failed(format!(
                    "{taken} of {count} completions came, and then none for {} s",
                    STALL.as_secs()
                )));
            }
            continue;
        }
        stalled = None;
        for wc in wcs {
            check(taken, wc.check()?)?;
            taken += 1;
        }
    }
    Ok(())
}
