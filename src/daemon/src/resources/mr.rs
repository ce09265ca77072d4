//! Memory registrations.

use super::{PdUser, Refusal, check_quota, device_full, find, no_such, refuse};
use crate::device::RdmaDevice;
use crate::limits::{
    MAX_MAPPED_BYTES, MAX_MAPPED_MRS, MAX_MAPPED_MRS_OF_ALL, MAX_MR_SIZE, MAX_MRS,
};
use crate::session::{Answer, DaemonCtx, Session};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use urxe_engine::{MrSpec, RegMrError, RegionId};
use urxe_nic::engine_host::Region;
use urxe_nic::objects::MrObject;
use urxe_shm::control::{Backing, ContextHandle, ControlError, MrHandle, PdHandle, Reply};
use urxe_shm::memory::process_memory::{Fault, ProcessMemory};
use urxe_shm::memory::region::page_size;
use urxe_shm::memory::region::{ForeignMemoryError, Mapping};
use urxe_types::Access;

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

/// What is behind an MR of no bytes: no region has this number.
const NO_MEMORY: RegionId = RegionId(u32::MAX);

/// A memory registration.
pub(crate) struct Mr {
    pub(crate) context: ContextHandle,
    pub(crate) pd: PdHandle,
    /// The device's number.
    device: usize,
    key: u32,
    region: RegionId,
    /// Bytes that are mapped into the daemon.
    mapped: Option<u64>,
}

/// What is to be registered.
pub(crate) struct MrRequest {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) access: Access,
    pub(crate) backing: Backing,
}

impl Session {
    pub(crate) fn reg_mr(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        pd: PdHandle,
        request: MrRequest,
        memory: Option<OwnedFd>,
    ) -> Result<Answer, ControlError> {
        let owner = find(&self.pds, "protection domain", pd.0)?;
        let (context, device, pd_id) = (owner.context, owner.device, owner.id);
        check_quota("memory registrations", self.mrs.len(), MAX_MRS)?;
        let access = check_access(request.access)?;
        check_range(&request)?;
        let handle = self.new_handle()?;
        let (region, mapped) = match (request.backing, memory) {
            (Backing::Shared { offset }, Some(memfd)) if request.length > 0 => {
                let mapping = self.map(ctx, &memfd, offset, request.length)?;
                (Some(Region::Shared(mapping)), Some(request.length))
            }
            (Backing::Process, None) if request.length > 0 => (Some(self.reach(&request)?), None),
            (Backing::Shared { .. }, Some(_)) | (Backing::Process, None) => (None, None),
            (Backing::Shared { .. }, None) => {
                let sentence = "shared memory was to be registered, but no descriptor came with it";
                return Err(refuse(Errno::PROTO, sentence));
            }
            (Backing::Process, Some(_)) => {
                let sentence = "process memory needs no descriptor, but one came with it";
                return Err(refuse(Errno::PROTO, sentence));
            }
        };

        let on = &mut ctx.devices[device];
        let region = match region {
            Some(region) => on.nic.host.insert_region(region),
            // MEM-017
            None => Some(NO_MEMORY),
        };
        let region = region.ok_or_else(|| device_full("memory registrations"))?;
        let spec = MrSpec { pd: pd_id, addr: request.iova, length: request.length, access, region };
        let key = on.nic.device.reg_mr(spec).map_err(|error| {
            on.nic.host.remove_region(region);
            let errno = match error {
                RegMrError::TooMany => Errno::NOMEM,
                RegMrError::NotPersistent(_) => Errno::OPNOTSUPP,
                RegMrError::Wraps { .. } | RegMrError::RemoteWithoutLocalWrite(_) => Errno::INVAL,
            };
            refuse(errno, error.to_string())
        })?;
        let object = MrObject {
            owner: self.owner(),
            pd: pd_id,
            iova: request.iova,
            length: request.length,
            access,
            mapped: mapped.is_some(),
        };
        on.nic.host.objects.mrs.insert(key, object);
        self.mapped_bytes += mapped.unwrap_or(0);
        self.mapped_mrs += usize::from(mapped.is_some());
        self.mrs.insert(handle, Mr { context, pd, device, key, region, mapped });
        self.join_pd(pd, PdUser::Mr);
        Ok(Reply::Mr { mr: MrHandle(handle), lkey: key, rkey: key }.into())
    }

    pub(crate) fn dereg_mr(
        &mut self,
        ctx: &mut DaemonCtx<'_>,
        mr: MrHandle,
    ) -> Result<Answer, ControlError> {
        let found = find(&self.mrs, "memory registration", mr.0)?;
        // MW-028
        ctx.devices[found.device].nic.device.dereg_mr(found.key).or_refuse(Errno::BUSY, "mr")?;
        let freed = self.mrs.remove(&mr.0).ok_or_else(|| no_such("memory registration", mr.0))?;
        self.forget_mr(ctx.devices, freed);
        Ok(Reply::Done.into())
    }

    /// Deregisters memory that no window is bound to any more, and lets go of it.
    pub(crate) fn free_mr(&mut self, devices: &mut [RdmaDevice], mr: Mr) {
        // A window could only be left if one were freed after its MR.
        let freed = devices[mr.device].nic.device.dereg_mr(mr.key);
        debug_assert!(freed.is_ok(), "{freed:?}");
        self.forget_mr(devices, mr);
    }

    fn forget_mr(&mut self, devices: &mut [RdmaDevice], mr: Mr) {
        self.leave_pd(mr.pd, PdUser::Mr);
        let host = &mut devices[mr.device].nic.host;
        host.objects.mrs.remove(&mr.key);
        host.remove_region(mr.region);
        self.mapped_bytes -= mr.mapped.unwrap_or(0);
        self.mapped_mrs -= usize::from(mr.mapped.is_some());
    }

    /// Maps memory that the program shares with us.
    fn map(
        &self,
        ctx: &DaemonCtx<'_>,
        memfd: &OwnedFd,
        offset: u64,
        length: u64,
    ) -> Result<Mapping, ControlError> {
        check_quota("mapped memory registrations", self.mapped_mrs, MAX_MAPPED_MRS)?;
        let mapped: usize = ctx.devices.iter().map(|device| device.nic.host.mapped_regions()).sum();
        if mapped >= MAX_MAPPED_MRS_OF_ALL {
            let sentence = format!(
                "mapped memory registrations: all sessions together have {mapped}, and can have no \
                 more than {MAX_MAPPED_MRS_OF_ALL}"
            );
            return Err(refuse(Errno::NOMEM, sentence));
        }
        if self.mapped_bytes.saturating_add(length) > MAX_MAPPED_BYTES {
            let sentence = format!(
                "length {length}: this session has {} bytes mapped, and can have no more than \
                 {MAX_MAPPED_BYTES}",
                self.mapped_bytes
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

    /// Finds memory in the program, and makes sure that it is there.
    fn reach(&self, request: &MrRequest) -> Result<Region, ControlError> {
        let memory = self.process_memory.as_ref().ok_or_else(|| {
            let sentence = "process memory cannot be registered: the program passed no \
                            /proc/self/mem with its Hello";
            refuse(Errno::FAULT, sentence)
        })?;
        let last = request.addr + (request.length - 1);
        let page = page_size() as u64;
        let is_one_page = request.addr / page == last / page;
        let ends = [Some(request.addr), Some(last).filter(|_| !is_one_page)];
        for addr in ends.into_iter().flatten() {
            // MEM-005
            probe(memory, addr).map_err(|fault| refuse_reach(request, addr, &fault))?;
        }
        Ok(Region::Process { memory: Rc::clone(memory), addr: request.addr })
    }
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
