//! Memory registrations.

use super::{PdUser, Refusal, pd, refuse};
use crate::limits::{MAX_MAPPED_BYTES, MAX_MAPPED_MRS, MAX_MR_SIZE};
use crate::objects::Object;
use crate::refusal::check_quota;
use crate::session::{Answer, Session, SlotCtx};
use crate::unmapper::{LARGE, LARGE_AT_REQUEST};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use urxe_engine::{DeregMrError, RegMrError};
use urxe_nic::{Memory, MemorySpec};
use urxe_shm::control::{
    Backing, ContextHandle, ControlError, MrHandle, PdHandle, Reply, WhyCopied,
};
use urxe_shm::memory::process_memory::{Fault, ProcessMemory};
use urxe_shm::memory::region::{ForeignMemoryError, Mapping, most_bytes_in_memory, page_size};
use urxe_types::{Access, Lkey, Rkey};

/// Access bits that exist. `ibv_access_flags` from bit 20 on are optional, and are left alone.
const KNOWN_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::ZERO_BASED)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);
const OPTIONAL_ACCESS: Access = Access::from_bits_retain(0x3ff0_0000);

/// On-demand paging, and memory of huge pages. They ask for nothing: a program's memory is never
/// pinned, and what pages it is made of does not matter.
const PAGING_ACCESS: Access = Access::ON_DEMAND.union(Access::HUGETLB);

/// A memory registration.
#[derive(Clone, Copy)]
pub(crate) struct Mr {
    context: ContextHandle,
    pd: PdHandle,
    /// The device's number.
    device: usize,
    key: u32,
    /// Bytes that the file which is mapped for it can have, and whoever lets go of it last frees.
    file_size: u64,
}

impl Object for Mr {
    const PD_USER: Option<PdUser> = Some(PdUser::Mr);

    fn context(&self) -> ContextHandle {
        self.context
    }

    fn pd(&self) -> Option<PdHandle> {
        Some(self.pd)
    }

    fn free(self, _: u32, session: &mut Session, ctx: &mut SlotCtx) {
        // A window could only be left if one were freed after its MR.
        let freed = dereg_on_device(session, ctx, self, LARGE);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

/// What is to be registered.
pub(crate) struct MrRequest {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) access: Access,
    pub(crate) backing: Backing,
}

pub(super) fn reg(
    session: &mut Session,
    ctx: &mut SlotCtx,
    pd: PdHandle,
    request: MrRequest,
    memory: Option<&OwnedFd>,
) -> Result<Answer, ControlError> {
    let place = pd::place(session, pd)?;
    session.objects.check_quota::<Mr>()?;
    let access = check_access(request.access)?;
    check_range(&request)?;
    let handle = session.objects.new_handle()?;
    let file_size = memory.and_then(most_bytes_in_memory).unwrap_or(0);
    let memory = match (request.backing, memory) {
        (Backing::Shared { offset }, Some(memfd)) if request.length > 0 => {
            Some(Memory::Shared(map(session, ctx, memfd, offset, request.length)?.into()))
        }
        (Backing::Process { why }, None) if request.length > 0 => {
            Some(reach(session, &request, why)?)
        }
        (Backing::WholePages { offset, before, len }, Some(memfd)) if request.length > 0 => {
            Some(map_whole_pages(session, ctx, memfd, &request, (offset, before, len))?)
        }
        // MEM-017
        (Backing::Shared { .. } | Backing::WholePages { .. }, Some(_))
        | (Backing::Process { .. }, None) => None,
        (Backing::Shared { .. } | Backing::WholePages { .. }, None) => {
            let sentence = "shared memory was to be registered, but no descriptor came with it";
            return Err(refuse(Errno::PROTO, sentence));
        }
        (Backing::Process { .. }, Some(_)) => {
            let sentence = "process memory needs no descriptor, but one came with it";
            return Err(refuse(Errno::PROTO, sentence));
        }
    };

    let is_mapped = memory.as_ref().is_some_and(Memory::is_mapped);
    let MrRequest { iova, length, .. } = request;
    let spec = MemorySpec { pd: place.id, iova, length, access, memory, owner: session.id() };
    let key = ctx.devices[place.device].nic.reg_mr(spec).map_err(|error| {
        let errno = match error {
            RegMrError::TooMany => Errno::NOMEM,
            RegMrError::NotPersistent(_) => Errno::OPNOTSUPP,
            RegMrError::Wraps { .. } | RegMrError::RemoteWithoutLocalWrite(_) => Errno::INVAL,
        };
        refuse(errno, error.to_string())
    })?;
    if is_mapped {
        session.mapped.bytes += length;
        session.mapped.mrs += 1;
    }
    let mr = Mr { context: place.context, pd, device: place.device, key, file_size };
    session.objects.insert(handle, mr);
    Ok(Reply::Mr { mr: MrHandle(handle), lkey: Lkey(key), rkey: Rkey(key) }.into())
}

pub(super) fn dereg(
    session: &mut Session,
    ctx: &mut SlotCtx,
    mr: MrHandle,
) -> Result<Answer, ControlError> {
    let found = *session.objects.get::<Mr>(mr.0)?;
    // MW-028
    dereg_on_device(session, ctx, found, LARGE_AT_REQUEST).or_refuse(Errno::BUSY, "mr")?;
    session.objects.remove::<Mr>(mr.0)?;
    Ok(if session.is_ending() { Answer::WhenFreed } else { Reply::Done.into() })
}

/// Deregisters memory that no window is bound to, and lets go of it: of a file of fewer bytes than
/// `large` at once.
fn dereg_on_device(
    session: &mut Session,
    ctx: &mut SlotCtx,
    mr: Mr,
    large: u64,
) -> Result<(), DeregMrError> {
    let freed = ctx.devices[mr.device].nic.dereg_mr(mr.key)?;
    if let Some(freed) = freed.filter(|freed| freed.is_mapped()) {
        session.mapped.bytes -= freed.spec.length;
        session.mapped.mrs -= 1;
        // SHARE-131
        if mr.file_size >= large {
            let length = freed.spec.length;
            session.await_unmapping(ctx.unmapper.unmap(freed, length));
        }
    }
    Ok(())
}

/// Maps memory that the program shares with us.
fn map(
    session: &Session,
    ctx: &SlotCtx,
    memfd: &OwnedFd,
    offset: u64,
    length: u64,
) -> Result<Mapping, ControlError> {
    check_quota("mapped memory registrations", session.mapped.mrs, MAX_MAPPED_MRS)?;
    let mapped: usize = ctx.devices.iter().map(|device| device.nic.mapped_mrs()).sum();
    let max = ctx.allotment.max_mapped_mrs;
    if mapped >= max {
        let sentence = format!(
            "mapped memory registrations: all sessions of slot {} together have {mapped}, and can \
             have no more than {max}",
            ctx.allotment.slot.id()
        );
        return Err(refuse(Errno::NOMEM, sentence));
    }
    if session.mapped.bytes.saturating_add(length) > MAX_MAPPED_BYTES {
        let sentence = format!(
            "length {length}: this session has {} bytes mapped, and can have no more than \
             {MAX_MAPPED_BYTES}",
            session.mapped.bytes
        );
        return Err(refuse(Errno::NOMEM, sentence));
    }
    Mapping::of_foreign(memfd.as_fd(), offset, length).map_err(|error| {
        let errno = match &error {
            ForeignMemoryError::Os(_) => Errno::NOMEM,
            _ => Errno::INVAL,
        };
        refuse(errno, error.to_string())
    })
}

/// Maps the whole pages of memory, and finds what lies before and behind them in the program.
fn map_whole_pages(
    session: &Session,
    ctx: &SlotCtx,
    memfd: &OwnedFd,
    request: &MrRequest,
    (offset, before, len): (u64, u64, u64),
) -> Result<Memory, ControlError> {
    // MEM-062
    if before.checked_add(len).is_none_or(|end| end > request.length) || len == 0 {
        let sentence = format!(
            "whole pages of {len} bytes behind {before} others: expected at least 1, and no more \
             than the {} that are to be registered",
            request.length
        );
        return Err(refuse(Errno::INVAL, sentence));
    }
    Ok(match reach(session, request, WhyCopied::PartialPages)? {
        Memory::Process { memory, addr, .. } => {
            let pages = map(session, ctx, memfd, offset, len)?.into();
            Memory::WholePages { pages, before, memory, addr }
        }
        // Where the data path runs in the program, nothing has to be shared with it.
        own => own,
    })
}

/// Finds memory in the program, and makes sure that it is there.
fn reach(session: &Session, request: &MrRequest, why: WhyCopied) -> Result<Memory, ControlError> {
    let missing = || {
        let sentence = "process memory cannot be registered: the program passed no \
                        /proc/self/mem with its Hello";
        refuse(Errno::FAULT, sentence)
    };
    let found = session.process_memory().zip(session.memory_at(request.addr, why));
    let (memory, found) = found.ok_or_else(missing)?;
    let last = request.addr + (request.length - 1);
    let page = page_size() as u64;
    let is_one_page = request.addr / page == last / page;
    let ends = [Some(request.addr), Some(last).filter(|_| !is_one_page)];
    for addr in ends.into_iter().flatten() {
        // MEM-005
        probe(memory, addr).map_err(|fault| refuse_reach(request, addr, &fault))?;
    }
    Ok(found)
}

fn refuse_reach(request: &MrRequest, addr: u64, fault: &Fault) -> ControlError {
    refuse(Errno::FAULT, format!("{} bytes at {addr:#x}: {fault}", request.length))
}

fn probe(memory: &ProcessMemory, addr: u64) -> Result<(), Fault> {
    memory.read(addr, &mut [0])
}

fn check_range(request: &MrRequest) -> Result<(), ControlError> {
    let &MrRequest { addr, length, iova, .. } = request;
    if length > MAX_MR_SIZE {
        let sentence = format!("length {length}: expected at most {MAX_MR_SIZE} bytes");
        return Err(refuse(Errno::INVAL, sentence));
    }
    if addr.checked_add(length).is_none() {
        let sentence = format!("addr {addr:#x}: {length} bytes from there wrap around");
        return Err(refuse(Errno::INVAL, sentence));
    }
    // The kernel insists, for devices that translate whole pages.
    let page = page_size() as u64;
    if addr % page != iova % page {
        let sentence = format!("iova {iova:#x}: expected the offset in its page of addr {addr:#x}");
        return Err(refuse(Errno::INVAL, sentence));
    }
    Ok(())
}

fn check_access(access: Access) -> Result<Access, ControlError> {
    // MEM-006
    let unknown = access - (KNOWN_ACCESS | PAGING_ACCESS | OPTIONAL_ACCESS);
    if !unknown.is_empty() {
        let sentence = format!(
            "access {:#x}: bits {unknown:#x} do not exist; expected a combination of local write (1), \
             remote write (2), remote read (4), remote atomic (8), window binding (0x10), \
             zero-based (0x20), on demand (0x40), huge pages (0x80) and flush global (0x100)",
            access.bits(),
            unknown = unknown.bits(),
        );
        return Err(refuse(Errno::INVAL, sentence));
    }
    // MEM-014: how it is paged in is the kernel's.
    Ok(access & KNOWN_ACCESS)
}
