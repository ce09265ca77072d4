//! What each of the two programs has: a queue pair, and memory in which messages go out and come
//! in.

use super::atomics;
use super::message::{Operation, Round};
use crate::completions::{Completions, PollMode};
use crate::error::Error;
use crate::pattern::Pattern;
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_verbs::{
    Access, Context, Mr, OpenOptions, Qp, QpCaps, QpEndpoint, QpInit, RemoteBuf, SendWr, Sge, Wc,
};

/// Sizes of the messages in bytes.
pub(super) const SIZES: [u32; 6] = [0, 1, 64, 4 << 10, 64 << 10, 1 << 20];

/// Messages under way at a time: at most so many, ...
const MAX_WINDOW: u32 = 256;
/// ... at least so many, ...
const MIN_WINDOW: u32 = 8;
/// ... and between them so many bytes.
const WINDOW_BYTES: u32 = 8 << 20;

/// Bytes behind each message that nobody may touch.
const GUARD: usize = 64;

/// What untouched memory holds.
const UNTOUCHED: u8 = 0xa5;

/// How long nothing at all may happen while something is expected.
const STALL: Duration = Duration::from_secs(15);

/// Messages of this size that are under way at a time.
pub(super) fn window(size: u32) -> u32 {
    WINDOW_BYTES.checked_div(size).unwrap_or(u32::MAX).clamp(MIN_WINDOW, MAX_WINDOW)
}

/// Bytes from one message to the next.
fn stride(size: u32) -> usize {
    (size as usize + GUARD).next_multiple_of(64)
}

/// Bytes of memory that the largest window takes.
fn area_len() -> usize {
    let lens = SIZES.iter().map(|&size| window(size) as usize * stride(size));
    lens.max().unwrap_or(0)
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

    /// All of it, for the peer.
    pub(super) fn remote_buf(&self) -> Result<RemoteBuf, Error> {
        Ok(self.mr.remote_buf(..)?)
    }

    /// Fills all slots of a round with their messages, or with nothing.
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

    /// Checks every byte of a round: the messages, and that nothing beside them was touched.
    pub(super) fn check(&mut self, round: &Round, side: &str) -> Result<(), Error> {
        self.scratch.resize(stride(round.size), 0);
        for index in 0..round.count {
            self.mr.read_at(index as usize * stride(round.size), &mut self.scratch)?;
            let (bytes, guard) = self.scratch.split_at(round.size as usize);
            let wrong = |what: &dyn std::fmt::Display| {
                let Round { operation, size, first, .. } = round;
                let number = first + u64::from(index);
                Error::WrongData(format!(
                    "{} of {size} bytes, message {number}, at the {side}: {what}",
                    operation.name()
                ))
            };
            message(round, index).check(bytes).map_err(|mismatch| wrong(&mismatch))?;
            if let Some(place) = guard.iter().position(|&byte| byte != UNTOUCHED) {
                return Err(wrong(&format_args!("byte {place} behind the message was written")));
            }
        }
        Ok(())
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

/// What message number `index` of a round contains.
fn message(round: &Round, index: u32) -> Pattern {
    Pattern::new(round.operation as u64, round.first + u64::from(index))
}

/// The immediate data of message number `index` of a round, if it has any.
pub(super) fn immediate(round: &Round, index: u32) -> Option<u32> {
    let number = round.first + u64::from(index);
    let with_imm = matches!(round.operation, Operation::SendWithImm | Operation::WriteWithImm);
    with_imm.then_some((number as u32).wrapping_mul(0x9e37_79b9))
}

/// One of the two programs.
pub(super) struct Program {
    pub(super) qp: Qp,
    pub(super) sends: Completions,
    pub(super) recvs: Completions,
    pub(super) outgoing: Area,
    pub(super) incoming: Area,
}

/// What the other side may do.
const ACCESS: Access = Access(
    Access::LOCAL_WRITE.0
        | Access::REMOTE_WRITE.0
        | Access::REMOTE_READ.0
        | Access::REMOTE_ATOMIC.0,
);

impl Program {
    /// Opens the first device of a daemon and makes all that is needed in it.
    pub(super) fn open(socket: &Path) -> Result<Self, Error> {
        let context = Context::open(&OpenOptions::new().socket(socket))?;
        let pd = context.alloc_pd()?;
        let sends = Completions::new(&context, MAX_WINDOW, PollMode::Yield)?;
        let recvs = Completions::new(&context, MAX_WINDOW, PollMode::Yield)?;
        let caps = QpCaps {
            max_send_wr: MAX_WINDOW,
            max_recv_wr: MAX_WINDOW,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (sends.cq(), recvs.cq());
        let qp = pd.create_qp(&QpInit { send_cq, recv_cq, caps, ..QpInit::new(send_cq) })?;
        let outgoing = Area::new(pd.alloc_mr(area_len(), ACCESS)?);
        let incoming = Area::new(pd.alloc_mr(area_len(), ACCESS)?);
        Ok(Program { qp, sends, recvs, outgoing, incoming })
    }

    /// Connects to the other program.
    pub(super) fn connect(&self, remote: &QpEndpoint) -> Result<(), Error> {
        Ok(self.qp.connect(remote, ACCESS)?)
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

/// The work request for message number `index` of a round.
pub(super) fn send_wr<'a>(
    round: &Round,
    index: u32,
    sge: &'a [Sge; 1],
    remote: RemoteBuf,
) -> Result<SendWr<'a>, Error> {
    let wr_id = round.first + u64::from(index);
    let imm = immediate(round, index).unwrap_or_default();
    let slot = remote.slice(index as u64 * stride(round.size) as u64..)?;
    let wr = match round.operation {
        Operation::Send => SendWr::send(wr_id, sge),
        Operation::SendWithImm => SendWr::send_imm(wr_id, sge, imm),
        Operation::Write => SendWr::write(wr_id, sge, slot),
        Operation::WriteWithImm => SendWr::write_imm(wr_id, sge, slot, imm),
        Operation::Read => SendWr::read(wr_id, sge, slot),
        Operation::CompareAndSwap => {
            let (compare, swap) = atomics::compare_swap(round, index);
            SendWr::compare_swap(wr_id, sge, remote, compare, swap)
        }
        Operation::FetchAndAdd => SendWr::fetch_add(wr_id, sge, remote, atomics::add(round)),
    };
    Ok(wr.signaled())
}
