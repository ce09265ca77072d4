//! The engine's view of the programs: their memory, rings and completions, by dense numbers.

use crate::counters::HostCounters;
use crate::event_channels::EventChannels;
use crate::limits::SPARE_INLINE_BUFFERS;
use crate::objects::{ChannelId, EventTarget, MemoryPlace, Objects};
use crate::queues::Next;
use crate::staging::Staging;
use crate::stalls::{Begun, Stalls};
use std::sync::Arc;
use std::time::Instant;
use urxe_engine::{
    AsyncEvent, AtomicOp, CqId, CqOverrun, Host, MemoryFault, QueueId, RegionId, SrqId, Taken,
};
use urxe_shm::control::event::{self, EventRecord};
use urxe_shm::memory::own_memory::{CopyMethod, KnownMethod};
use urxe_shm::memory::process_memory::ProcessMemory;
use urxe_shm::memory::region::AccessError;
use urxe_shm::ring::CqError;
use urxe_shm::ring::entry;
use urxe_shm::ring::layout::CqEntry;
use urxe_types::{Completion, Qpn, RecvWqe, SendWqe, WcStatus};
use urxe_wire::mad::{MAD_LEN, MadSource};

/// All memory, rings and event channels of one device.
pub(crate) struct ProgramHost {
    pub(crate) objects: Objects,
    pub(crate) channels: EventChannels,
    pub(crate) counters: HostCounters,
    staging: Staging,
    pub(crate) stalls: Stalls,
    /// Where it was written last. What is written when that is carried out is of the same program:
    /// each QP's batch has come to its end before the next QP's begins.
    written: RegionId,
    /// How this process's own memory is reached in this call, if that was asked.
    own_method: Option<CopyMethod>,
    /// The same, as it was found out for calls before.
    known_method: KnownMethod,
    /// Counts the calls of the engine.
    call: u64,
    /// CQs with completions that the program does not see yet.
    unpublished: Vec<CqId>,
    /// QPs that may have gone to ERR.
    maybe_failed_qps: Vec<Qpn>,
    /// QPs whose queues have more than was given in this call.
    requeue_qps: Vec<Qpn>,
    /// Management datagrams that have come.
    mads: Vec<(MadSource, [u8; MAD_LEN])>,
    /// QPs to which data came before their programs had taken them to RTS.
    comm_est_qps: Vec<Qpn>,
    spare_inline: Vec<Vec<u8>>,
}

impl ProgramHost {
    pub(crate) fn new() -> ProgramHost {
        ProgramHost {
            objects: Objects::default(),
            channels: EventChannels::default(),
            counters: HostCounters::default(),
            staging: Staging::new(),
            stalls: Stalls::default(),
            written: RegionId(u32::MAX),
            own_method: None,
            known_method: KnownMethod::default(),
            call: 1,
            unpublished: Vec::new(),
            maybe_failed_qps: Vec::new(),
            requeue_qps: Vec::new(),
            mads: Vec::new(),
            comm_est_qps: Vec::new(),
            spare_inline: Vec::new(),
        }
    }

    /// To be called before the engine is: what was known of the programs' memory is old.
    pub(crate) fn begin_call(&mut self) {
        self.call += 1;
        self.own_method = None;
        self.staging.forget_reads();
    }

    /// Shows the programs their completions, and wakes those who wait for them. To be called
    /// after the engine was: what a completion stands for is in memory by then. CQs have their
    /// turns in the order of their first completions, for a program that waits for two of them on
    /// one channel (as perftest's `ib_send_lat -e`) may count on it.
    pub(crate) fn publish(&mut self) {
        let mut unpublished = std::mem::take(&mut self.unpublished);
        for id in unpublished.drain(..) {
            let Some(cq) = self.objects.cqs.get_mut(id.0) else { continue };
            cq.listed = false;
            if cq.publish()
                && let Some(channel) = cq.channel
            {
                // CQ-010
                let record = cq.events.record(event::COMPLETION);
                self.counters.completion_events += 1;
                self.send(channel, record);
            }
        }
        self.unpublished = unpublished;
    }

    /// Has events wait, or no longer: where we are, their pipes are not open.
    pub(crate) fn hold_events(&mut self, is_held: bool) {
        self.channels.hold(is_held);
    }

    /// Whether events wait only because they were held.
    pub(crate) fn has_held_events(&self) -> bool {
        self.channels.has_held()
    }

    /// Sends them.
    pub(crate) fn flush_held_events(&mut self) {
        self.channels.flush_held();
    }

    /// QPs that may have gone to ERR since the last time.
    pub(crate) fn take_maybe_failed_qp(&mut self) -> Option<Qpn> {
        self.maybe_failed_qps.pop()
    }

    /// Says that a QP may have gone to ERR.
    pub(crate) fn maybe_failed(&mut self, qpn: Qpn) {
        // One failure flushes many work requests.
        if self.maybe_failed_qps.last() != Some(&qpn) {
            self.maybe_failed_qps.push(qpn);
        }
    }

    /// A QP whose queues have more than was given in the last call: to be rung again.
    pub(crate) fn take_requeue_qp(&mut self) -> Option<Qpn> {
        self.requeue_qps.pop()
    }

    /// The management datagrams that have come since the last time.
    pub(crate) fn take_mads(&mut self) -> Vec<(MadSource, [u8; MAD_LEN])> {
        std::mem::take(&mut self.mads)
    }

    /// How many management datagrams there are to take.
    pub(crate) fn mads_waiting(&self) -> usize {
        self.mads.len()
    }

    /// A QP to which data came, while its program may not know that its peer is ready.
    pub(crate) fn take_comm_est_qp(&mut self) -> Option<Qpn> {
        self.comm_est_qps.pop()
    }

    /// Whether there are any such.
    pub(crate) fn has_comm_est_qps(&self) -> bool {
        !self.comm_est_qps.is_empty()
    }

    /// Lets go of what was known of memory that is registered no longer.
    pub(crate) fn release(&mut self, memory: &Arc<ProcessMemory>) {
        self.staging.release(memory);
    }

    /// Tells a program what has happened to an object of it.
    pub(crate) fn tell(&mut self, target: EventTarget, kind: u32) {
        self.counters.async_events += 1;
        self.send(target.channel, target.record(kind));
    }

    fn tell_srq(&mut self, srq: SrqId, kind: u32) {
        if let Some(srq) = self.objects.srqs.by_number(srq.0) {
            let target = srq.events;
            self.tell(target, kind);
        }
    }

    fn send(&mut self, channel: ChannelId, record: EventRecord) {
        self.counters.lost_events += u64::from(!self.channels.send(channel, record));
    }

    /// How this process's own memory is reached in this call.
    fn own_method(&mut self) -> CopyMethod {
        *self.own_method.get_or_insert_with(|| {
            let method = self.known_method.get(Instant::now());
            self.counters.unguarded_calls += u64::from(method == CopyMethod::SystemCalls);
            method
        })
    }

    /// To be called when there is nothing else to do: finds out again how it is reached, if that
    /// was needed lately.
    pub(crate) fn renew_own_method(&mut self, now: Instant) {
        self.known_method.renew(now);
    }

    /// Writes to this process's own memory, after all that was written before.
    fn write_own(&mut self, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.staging.before_store()?;
        self.own_method().write(addr, data).map_err(|_| MemoryFault)
    }

    /// Reaches memory of the program that has registered this, so many bytes from a place on, and
    /// takes note of what happens.
    #[inline]
    fn reach<T>(
        &mut self,
        region: RegionId,
        span: (u64, usize),
        reach: impl FnOnce(&mut ProgramHost) -> Result<T, MemoryFault>,
    ) -> Result<T, MemoryFault> {
        let begun = if self.stalls.is_watched() { self.begin_watched(region, span) } else { None };
        let result = reach(self);
        if result.is_err() {
            // MEM-007: the engine fails the QP that asked.
            self.counters.memory_faults += 1;
        }
        if let Some(begun) = begun {
            self.end_watched(begun, region);
        }
        result
    }

    #[cold]
    fn begin_watched(&self, region: RegionId, (at, len): (u64, usize)) -> Option<Begun> {
        let memory = self.objects.memory(region);
        let is_copied = memory.is_some_and(|memory| memory.is_copied(at, len));
        (is_copied || self.staging.holds_writes()).then(Begun::now)
    }

    #[cold]
    fn end_watched(&mut self, begun: Begun, region: RegionId) {
        if let Some(mr) = self.objects.mrs.by_key(region.0) {
            // SHARE-134
            self.counters.memory_stalls += u64::from(self.stalls.end(begun, mr.owner));
        }
    }

    fn read_now(
        &mut self,
        region: RegionId,
        mut at: u64,
        mut buf: &mut [u8],
    ) -> Result<(), MemoryFault> {
        loop {
            let (place, same) = self.objects.place(region, at).ok_or(MemoryFault)?;
            let (part, rest) = buf.split_at_mut(same.min(buf.len()));
            match place {
                MemoryPlace::Mapped { mapping, at } => {
                    mapping.read(at, part).map_err(|_| MemoryFault)?
                }
                MemoryPlace::Own { addr } => {
                    self.own_method().read(addr, part).map_err(|_| MemoryFault)?;
                }
                MemoryPlace::Copied { memory, addr } => self.staging.read(memory, addr, part)?,
            }
            if rest.is_empty() {
                return Ok(());
            }
            (at, buf) = (at + part.len() as u64, rest);
        }
    }

    fn write_next(
        &mut self,
        region: RegionId,
        mut at: u64,
        mut data: &[u8],
    ) -> Result<(), MemoryFault> {
        loop {
            let (place, same) = self.objects.place(region, at).ok_or(MemoryFault)?;
            let (part, rest) = data.split_at(same.min(data.len()));
            match place {
                MemoryPlace::Mapped { mapping, at } => {
                    self.staging.before_store()?;
                    mapping.write(at, part).map_err(|_| MemoryFault)?;
                }
                MemoryPlace::Own { addr } => self.write_own(addr, part)?,
                MemoryPlace::Copied { memory, addr } => self.staging.write(memory, addr, part)?,
            }
            if rest.is_empty() {
                return Ok(());
            }
            (at, data) = (at + part.len() as u64, rest);
        }
    }

    fn write_alone(&mut self, region: RegionId, at: u64, data: [u8; 8]) -> Result<(), MemoryFault> {
        let (place, same) = self.objects.place(region, at).ok_or(MemoryFault)?;
        if same < data.len() {
            // It is not aligned, and lies where two ways meet.
            return self.write_next(region, at, &data);
        }
        match place {
            MemoryPlace::Mapped { mapping, at } => {
                self.staging.before_store()?;
                match mapping.store_u64(at, u64::from_ne_bytes(data)) {
                    Ok(()) => Ok(()),
                    Err(AccessError::Misaligned { .. }) => {
                        mapping.write(at, &data).map_err(|_| MemoryFault)
                    }
                    Err(AccessError::OutOfBounds(_)) => Err(MemoryFault),
                }
            }
            MemoryPlace::Own { addr } => self.write_own(addr, &data),
            // Alone, not as part of a longer copy, which could be seen half done.
            // ORDER-004
            MemoryPlace::Copied { memory, addr } => self.staging.write_alone(memory, addr, &data),
        }
    }

    /// Where memory is shared, changes a number there as a processor does; `None` elsewhere.
    fn shared_atomic(
        &mut self,
        region: RegionId,
        at: u64,
        op: AtomicOp,
    ) -> Result<Option<u64>, MemoryFault> {
        self.staging.before_store()?;
        let Some((MemoryPlace::Mapped { mapping, at }, 8..)) = self.objects.place(region, at)
        else {
            return Ok(None);
        };
        let done = match op {
            AtomicOp::CompareSwap { compare, swap } => mapping.compare_swap(at, compare, swap),
            AtomicOp::FetchAdd(add) => mapping.fetch_add(at, add),
        };
        match done {
            Ok(old) => Ok(Some(old)),
            Err(AccessError::Misaligned { .. }) => Ok(None),
            Err(AccessError::OutOfBounds(_)) => Err(MemoryFault),
        }
    }
}

/// What a ring gave, as the engine is told it; `None` if there is nothing more in this call.
fn taken_or_later(next: Next, counters: &mut HostCounters) -> Option<Taken> {
    match next {
        Next::Later => None,
        Next::Taken(entry::Taken::Empty) => Some(Taken::Empty),
        Next::Taken(entry::Taken::Ready) => Some(Taken::Ready),
        // HOST-002, HOST-005, HOST-006
        Next::Taken(entry::Taken::Malformed(error)) => {
            counters.count_malformed(error);
            Some(Taken::Malformed)
        }
    }
}

impl Host for ProgramHost {
    fn read(&mut self, region: RegionId, offset: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        self.reach(region, (offset, buf.len()), |host| host.read_now(region, offset, buf))
    }

    fn write(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.written = region;
        self.reach(region, (offset, data.len()), |host| host.write_next(region, offset, data))
    }

    // Shared memory, and that of this process, have the order of the writes already.
    fn write_barrier(&mut self) {
        self.staging.barrier();
    }

    fn sync(&mut self) -> Result<(), MemoryFault> {
        self.reach(self.written, (0, 0), |host| host.staging.sync())
    }

    fn read_ahead(&mut self, region: RegionId, offset: u64, len: u64) {
        if let Some((MemoryPlace::Copied { memory, addr }, same)) =
            self.objects.place(region, offset)
        {
            self.staging.read_ahead(memory, addr, len.min(same as u64));
        }
    }

    // On memory that only copies reach, and on a number that is not aligned where it is mapped, it
    // is a read and a write. All atomics of the slot come here one after the other, and so do all
    // of the device that a program's registrations allow, which is what `IBV_ATOMIC_HCA` promises;
    // but where sessions of two slots have registered the same number, each for itself.
    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let span = (offset, size_of::<u64>());
        if let Some(old) =
            self.reach(region, span, |host| host.shared_atomic(region, offset, op))?
        {
            return Ok(old);
        }
        let mut bytes = [0; 8];
        self.read(region, offset, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write_atomic(region, offset, op.apply(old).to_ne_bytes())?;
        Ok(old)
    }

    fn write_atomic(
        &mut self,
        region: RegionId,
        offset: u64,
        data: [u8; 8],
    ) -> Result<(), MemoryFault> {
        self.written = region;
        self.reach(region, (offset, data.len()), |host| host.write_alone(region, offset, data))
    }

    fn takes_packets(&self, qpn: Qpn) -> bool {
        !self.stalls.any_rests()
            || !self.objects.qps.by_number(qpn.get()).is_some_and(|qp| self.stalls.rests(qp.owner))
    }

    fn posted_recvs(&mut self, queue: QueueId) -> u32 {
        self.objects.recv_queue(queue).map_or(0, |(queue, _)| queue.posted())
    }

    fn next_send(&mut self, queue: QueueId, wqe: &mut SendWqe) -> Taken {
        let Some(qp) = self.objects.qps.by_key_mut(queue.0) else { return Taken::Empty };
        // SHARE-134
        if self.stalls.rests(qp.owner) {
            self.stalls.defer(qp.qpn);
            return Taken::Empty;
        }
        let queue = &mut qp.send;
        let spare = wqe.inline.take().or_else(|| self.spare_inline.pop());
        let mut buffer = spare.unwrap_or_default();
        let taken = queue.take(self.call, wqe, &mut buffer);
        // What it refers to may be newer than what was fetched.
        self.staging.forget_reads();
        if wqe.inline.is_none() && self.spare_inline.len() < SPARE_INLINE_BUFFERS {
            self.spare_inline.push(buffer);
        }
        match taken {
            Ok(next) => taken_or_later(next, &mut self.counters).unwrap_or_else(|| {
                self.requeue_qps.push(qp.qpn);
                Taken::Empty
            }),
            Err(_) => {
                self.counters.broken_send_queues += u64::from(!queue.broken);
                queue.broken = true;
                Taken::Broken
            }
        }
    }

    fn retire_send(&mut self, queue: QueueId) {
        if let Some(qp) = self.objects.qps.by_key_mut(queue.0) {
            qp.send.retire();
        }
    }

    fn next_recv(&mut self, queue: QueueId, wqe: &mut RecvWqe) -> Taken {
        let Some((queue, qpn)) = self.objects.recv_queue(queue) else { return Taken::Empty };
        match queue.take(self.call, wqe) {
            Ok(next) => taken_or_later(next, &mut self.counters).unwrap_or_else(|| {
                self.requeue_qps.extend(qpn);
                Taken::Empty
            }),
            Err(_) => {
                // HOST-008
                self.counters.broken_receive_queues += u64::from(!queue.broken);
                queue.broken = true;
                Taken::Broken
            }
        }
    }

    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqOverrun> {
        if completion.status != WcStatus::Success {
            self.maybe_failed(completion.qpn);
        }
        let Some(queue) = self.objects.cqs.get_mut(cq.0) else { return Err(CqOverrun) };
        match queue.push(&CqEntry::from(completion), completion.solicited) {
            Ok(()) => {
                if !queue.listed {
                    queue.listed = true;
                    self.unpublished.push(cq);
                }
                Ok(())
            }
            Err(error) => {
                let broken = matches!(error, CqError::Index(_));
                self.counters.broken_completion_queues += u64::from(broken);
                Err(CqOverrun)
            }
        }
    }

    fn event(&mut self, event: AsyncEvent) {
        let (kind, qpn) = match event {
            AsyncEvent::SrqError(srq) => return self.tell_srq(srq, event::SRQ_ERR),
            AsyncEvent::SrqLimit(srq) => return self.tell_srq(srq, event::SRQ_LIMIT),
            AsyncEvent::QpFatal(qpn) => (event::QP_FATAL, qpn),
            AsyncEvent::QpRequestError(qpn) => (event::QP_REQ_ERR, qpn),
            AsyncEvent::QpAccessError(qpn) => (event::QP_ACCESS_ERR, qpn),
            AsyncEvent::CommunicationEstablished(qpn) => {
                self.comm_est_qps.push(qpn);
                (event::COMM_EST, qpn)
            }
            AsyncEvent::SqDrained(qpn) => (event::SQ_DRAINED, qpn),
            AsyncEvent::LastWqeReached(qpn) => (event::LAST_WQE_REACHED, qpn),
            AsyncEvent::CqError(cq) => {
                if let Some(cq) = self.objects.cqs.get_mut(cq.0) {
                    cq.failed = true;
                    let target = cq.events;
                    self.tell(target, event::CQ_ERR);
                }
                return;
            }
        };
        // CQ-030: one that was destroyed is not there.
        if let Some(qp) = self.objects.qps.by_number(qpn.get()) {
            let target = qp.events;
            self.tell(target, kind);
        }
        self.maybe_failed(qpn);
    }

    fn mad(&mut self, from: &MadSource, mad: &[u8; MAD_LEN]) {
        self.mads.push((*from, *mad));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Memory, Mr, OwnerId};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use urxe_engine::{MrSpec, PdId};
    use urxe_shm::control::WhyCopied;
    use urxe_shm::memory::own_memory;
    use urxe_shm::memory::process_memory::open_own;
    use urxe_shm::memory::region::{Mapping, create_memfd};
    use urxe_types::Access;

    /// Words of memory that a thread polls while the device writes to them.
    const WORDS: usize = 64;
    const ROUNDS: u64 = 30_000;
    /// How often the poller must have seen something new, however busy the machine is.
    const LOOKS: u64 = 100;

    /// The kinds of memory.
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Shared,
        Own,
        Process,
        /// Words from [`FIRST_MAPPED`] on are shared, and those from [`AFTER_MAPPED`] on are not.
        WholePages,
    }

    const KINDS: [Kind; 4] = [Kind::Shared, Kind::Own, Kind::Process, Kind::WholePages];
    const FIRST_MAPPED: usize = 20;
    const AFTER_MAPPED: usize = 36;

    /// Memory of one kind, and how its program looks at it.
    enum Polled {
        Mapped(Mapping),
        Words(Box<[AtomicU64]>),
        Both(Mapping, Box<[AtomicU64]>),
    }

    impl Polled {
        /// Memory, and the region that the device has of it.
        fn new(kind: Kind) -> (Polled, Memory) {
            let words: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
            let addr = words.as_ptr().expose_provenance() as u64;
            let own_memory = || Arc::new(ProcessMemory::accept(open_own().unwrap()).unwrap());
            let region = match kind {
                Kind::Shared => {
                    let file = create_memfd("test", 4096).unwrap();
                    let map = || Mapping::new(&file, 0, 4096).unwrap();
                    return (Polled::Mapped(map()), Memory::Shared(map().into()));
                }
                Kind::Own => {
                    assert!(own_memory::prepare());
                    Memory::Own { addr }
                }
                Kind::Process => {
                    Memory::Process { memory: own_memory(), addr, why: WhyCopied::NotAsked }
                }
                Kind::WholePages => {
                    let file = create_memfd("test", 4096).unwrap();
                    let map = || Mapping::new(&file, 0, 8 * (AFTER_MAPPED - FIRST_MAPPED)).unwrap();
                    let before = 8 * FIRST_MAPPED as u64;
                    let (pages, memory) = (map().into(), own_memory());
                    let region = Memory::WholePages { pages, before, memory, addr };
                    return (Polled::Both(map(), words), region);
                }
            };
            (Polled::Words(words), region)
        }

        fn word(&self, index: usize) -> u64 {
            let mapped = |mapping: &Mapping, index| {
                let mut bytes = [0; 8];
                mapping.read(8 * index as u64, &mut bytes).unwrap();
                u64::from_ne_bytes(bytes)
            };
            match self {
                Polled::Mapped(mapping) => mapped(mapping, index),
                Polled::Both(mapping, _) if (FIRST_MAPPED..AFTER_MAPPED).contains(&index) => {
                    mapped(mapping, index - FIRST_MAPPED)
                }
                Polled::Words(words) | Polled::Both(_, words) => {
                    words[index].load(Ordering::Acquire)
                }
            }
        }
    }

    /// Polls the last of these words; whenever it has changed, all others must be as new. Counts
    /// how often it has.
    fn poll(words: &[(&Polled, usize)], looks: &AtomicU64, done: &AtomicBool) {
        let Some((&(last, at), others)) = words.split_last() else { return };
        let mut newest = 0;
        while !done.load(Ordering::Relaxed) {
            let flag = last.word(at);
            if flag == newest {
                std::hint::spin_loop();
                continue;
            }
            newest = flag;
            for (word, &(memory, at)) in others.iter().enumerate() {
                let value = memory.word(at);
                if value < flag {
                    done.store(true, Ordering::Relaxed);
                    panic!("word {word} is {value} behind a flag of {flag}");
                }
            }
            looks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has `write` write each number to all words that `polled` names, in their order, while they
    /// are polled.
    fn check_order(
        polled: &[(&Polled, usize)],
        host: &mut ProgramHost,
        mut write: impl FnMut(&mut ProgramHost, u64),
    ) {
        let (looks, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| poll(polled, &looks, &done));
            let seen = || looks.load(Ordering::Relaxed);
            let mut number = 0;
            while !done.load(Ordering::Relaxed) && (number < ROUNDS || seen() < LOOKS) {
                number += 1;
                write(host, number);
                // Where there is but one core, the poller gets it now and then.
                if number.is_multiple_of(64) {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    /// Registers memory; as the engine would, but that knows nothing of it.
    fn insert(host: &mut ProgramHost, memory: Memory) -> RegionId {
        let mrs = &mut host.objects.mrs;
        let key = mrs.next_key().unwrap();
        let (pd, region, access) = (PdId(0), RegionId(key), Access::default());
        let spec = MrSpec { pd, addr: 0, length: 4096, access, region };
        mrs.insert(key, Mr { spec, owner: OwnerId(0), memory: Some(memory) });
        region
    }

    fn words_of(number: u64, count: usize) -> Vec<u8> {
        number.to_ne_bytes().repeat(count)
    }

    /// Has 32 words of one region written and then, by `write_flag`, a word of another, the two of
    /// any kinds.
    fn check_flag(write_flag: impl Fn(&mut ProgramHost, RegionId, u64)) {
        for (data_kind, flag_kind) in KINDS.into_iter().flat_map(|a| KINDS.map(|b| (a, b))) {
            let mut host = ProgramHost::new();
            let (data, region) = Polled::new(data_kind);
            let data_region = insert(&mut host, region);
            let (flag, region) = Polled::new(flag_kind);
            let flag_region = insert(&mut host, region);
            let mut polled: Vec<_> = (0..32).map(|word| (&data, word)).collect();
            polled.push((&flag, 40));
            check_order(&polled, &mut host, |host, number| {
                host.write(data_region, 0, &words_of(number, 32)).unwrap();
                host.write_barrier();
                write_flag(host, flag_region, number);
            });
        }
    }

    #[test]
    fn a_flag_is_never_seen_before_the_data_written_before_it() {
        check_flag(|host, flag, number| {
            host.write(flag, 8 * 40, &words_of(number, 1)).unwrap();
            host.write_barrier();
            if number.is_multiple_of(8) {
                host.sync().unwrap();
            }
        });
    }

    #[test]
    fn the_last_word_of_a_message_is_seen_last() {
        for kind in KINDS {
            let mut host = ProgramHost::new();
            let (memory, region) = Polled::new(kind);
            let region = insert(&mut host, region);
            let polled: Vec<_> = (0..48).map(|word| (&memory, word)).collect();
            check_order(&polled, &mut host, |host, number| {
                // Two packets, and then another message.
                host.write(region, 0, &words_of(number, 32)).unwrap();
                host.write(region, 8 * 32, &words_of(number, 16)).unwrap();
                host.write_barrier();
                host.write(region, 8 * 50, &words_of(number, 2)).unwrap();
                host.write_barrier();
                host.sync().unwrap();
            });
        }
    }

    /// MEM-062
    #[test]
    fn memory_that_is_reached_in_two_ways_is_one() {
        let mut host = ProgramHost::new();
        let (memory, region) = Polled::new(Kind::WholePages);
        let region = insert(&mut host, region);
        let all: Vec<u8> = (0..WORDS as u64).flat_map(u64::to_ne_bytes).collect();
        for (at, len) in [(0, all.len()), (8 * FIRST_MAPPED - 3, 6), (8 * AFTER_MAPPED - 4, 8)] {
            host.write(region, at as u64, &all[at..at + len]).unwrap();
            host.sync().unwrap();
        }
        assert!((0..WORDS).all(|index| memory.word(index) == index as u64));
        for (at, len) in [(0, all.len()), (8 * FIRST_MAPPED - 3, 200), (8 * AFTER_MAPPED - 1, 2)] {
            let mut found = vec![0; len];
            host.read(region, at as u64, &mut found).unwrap();
            assert_eq!(found, all[at..at + len]);
        }
        // Each number lies in one of its parts.
        for index in [FIRST_MAPPED - 1, FIRST_MAPPED, AFTER_MAPPED - 1, AFTER_MAPPED] {
            let (at, old) = (8 * index as u64, index as u64);
            assert_eq!(host.atomic(region, at, AtomicOp::FetchAdd(100)), Ok(old));
            host.sync().unwrap();
            assert_eq!(memory.word(index), old + 100);
        }
        // Unless it is not aligned.
        let at = 8 * AFTER_MAPPED as u64 - 4;
        host.write_atomic(region, at, [0xff; 8]).unwrap();
        host.sync().unwrap();
        let mut found = [0; 8];
        host.read(region, at, &mut found).unwrap();
        assert_eq!(found, [0xff; 8]);
    }

    #[test]
    fn own_memory_that_is_not_there_is_a_fault_that_is_counted() {
        let mut host = ProgramHost::new();
        let (memory, region) = Polled::new(Kind::Own);
        let here = insert(&mut host, region);
        let gone = insert(&mut host, Memory::Own { addr: 4096 });
        host.begin_call();
        assert_eq!(host.write(gone, 0, &[1; 8]), Err(MemoryFault));
        assert_eq!(host.read(gone, 0, &mut [0; 8]), Err(MemoryFault));
        assert_eq!(host.atomic(gone, 0, AtomicOp::FetchAdd(1)), Err(MemoryFault));
        assert_eq!(host.counters.memory_faults, 3);
        host.write(here, 8, &words_of(7, 1)).unwrap();
        assert_eq!(memory.word(1), 7);
        assert_eq!(host.counters.unguarded_calls, u64::from(cfg!(not(target_arch = "x86_64"))));
    }

    #[test]
    fn an_atomic_is_never_seen_before_the_data_written_before_it() {
        check_flag(|host, flag, number| {
            let (compare, swap) = (number - 1, number);
            let compare_swap = AtomicOp::CompareSwap { compare, swap };
            match number % 3 {
                0 => host.atomic(flag, 8 * 40, AtomicOp::FetchAdd(1)).map(drop),
                1 => host.atomic(flag, 8 * 40, compare_swap).map(drop),
                _ => host.write_atomic(flag, 8 * 40, number.to_ne_bytes()),
            }
            .unwrap();
            host.sync().unwrap();
        });
    }
}
