//! Memory regions.

use crate::endpoint::resolve;
use crate::pd::PdInner;
use crate::session::unexpected;
use crate::{Access, BindInfo, Error, Lkey, Pd, RemoteBuf, Sge};
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use urxe_shm::control::{Backing, MrHandle, Reply, Request, WhyCopied};
use urxe_shm::memory::process_memory::populate;
use urxe_shm::memory::region::{Mapping, create_memfd_of_fixed_size};
use urxe_shm::memory::remap::{self, Registered};

/// A memory region: `ibv_mr`. Memory that work requests and peers may name.
///
/// Made by [`Pd::alloc_mr`] or [`Pd::reg_mr`]. A clone is another name for the same region; it is
/// deregistered when the last one is dropped. Work requests do not keep it alive: one that names
/// a region which is gone fails with a protection error. (If a [memory window](crate::Mw) is bound
/// to it then, it stays registered until the program ends, so unbind that first;
/// [`deregister`](Self::deregister) says so.)
///
/// # Looking into it
/// The daemon, and through it the peers, write into the memory while the program runs, so it is
/// not a `&[u8]`. The safe methods copy ([`read_at`](Self::read_at), [`write_at`](Self::write_at),
/// [`fill`](Self::fill)) or give an atomic ([`atomic_u64`](Self::atomic_u64)). A copy taken while
/// somebody writes the same bytes is a mixture of old and new; the usual order of things, waiting
/// for a completion first, avoids that. Where copying is too slow,
/// [`as_slice`](Self::as_slice), [`as_mut_slice`](Self::as_mut_slice) and
/// [`as_ptr`](Self::as_ptr) give the bytes themselves to those who can promise that nobody
/// interferes.
#[derive(Clone, Debug)]
pub struct Mr(Arc<MrInner>);

#[derive(Debug)]
struct MrInner {
    pd: Arc<PdInner>,
    handle: MrHandle,
    lkey: Lkey,
    rkey: u32,
    access: Access,
    memory: Memory,
    /// It was [deregistered](Mr::deregister) before it is dropped.
    deregistered: bool,
}

/// Memory that is there for as long as this value.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    length: usize,
    /// Whether our own methods may write.
    writable: bool,
    _owner: Owner,
}

/// Who keeps memory there.
#[derive(Debug)]
enum Owner {
    /// It is ours.
    Mapping(#[expect(dead_code, reason = "is only to be kept")] Mapping),
    /// Whoever registered it has promised so. It may be remapped for as long.
    Caller(#[expect(dead_code, reason = "is only to be kept")] Option<Registered>),
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for Memory {}
// SAFETY: what `&self` gives access to are atomics, and copies made under the rules of
// `Memory::copy_out` and `Memory::copy_in`, which do not depend on the thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// No bytes, which are everywhere.
    const NOTHING: Memory = Memory {
        base: NonNull::dangling(),
        length: 0,
        writable: true,
        _owner: Owner::Caller(None),
    };

    /// Where `length` bytes at `offset` are, if they all lie in it.
    fn at(&self, offset: usize, length: usize) -> Result<NonNull<u8>, Error> {
        match offset.checked_add(length) {
            // CLIENT-011
            // SAFETY: `offset` is at most the memory's length.
            Some(end) if end <= self.length => Ok(unsafe { self.base.add(offset) }),
            _ => Err(Error::OutOfBounds {
                start: offset as u64,
                end: offset.saturating_add(length) as u64,
                size: self.length as u64,
            }),
        }
    }

    fn at_writable(&self, offset: usize, length: usize) -> Result<NonNull<u8>, Error> {
        // CLIENT-011
        if self.writable {
            return self.at(offset, length);
        }
        Err(Error::invalid("access of the memory region", "read-only", "LOCAL_WRITE"))
    }

    fn copy_out(&self, offset: usize, buf: &mut [u8]) -> Result<(), Error> {
        let source = self.at(offset, buf.len())?;
        // SAFETY: `at` has checked that the source lies in the memory, which is there (it is ours,
        // or promised to `register`). `buf` does not overlap with it: a `&mut` into the memory
        // must not exist while this method runs, by the promises of `register` and
        // `as_mut_slice`. Others may write meanwhile: another process, of which Rust's memory
        // model says nothing; or another thread, with `copy_in` or as a slot that runs in this
        // process, a race that `urxe_shm::memory::region` argues for. Nothing here is decided by
        // the bytes.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    fn copy_in(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let target = self.at_writable(offset, data.len())?;
        // SAFETY: as in `copy_out`: the target lies in memory that is there and writable, and no
        // reference into it, such as `data` would be, exists while this method runs.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), target.as_ptr(), data.len()) };
        Ok(())
    }
}

impl Mr {
    pub(crate) fn alloc(pd: &Arc<PdInner>, length: usize, access: Access) -> Result<Mr, Error> {
        let failed = || Error::system("making memory for a memory region");
        pd.context.session.check_process()?;
        if length == 0 {
            let backing = Backing::Process { why: WhyCopied::NotAsked };
            return Self::new(pd, Memory::NOTHING, access, backing, &[]);
        }
        let memfd = create_memfd_of_fixed_size("urxe-mr", length as u64).map_err(failed())?;
        let mapping = Mapping::new(&memfd, 0, length).map_err(failed())?;
        let base = mapping.base();
        let memory = Memory { base, length, writable: true, _owner: Owner::Mapping(mapping) };
        Self::new(pd, memory, access, Backing::Shared { offset: 0 }, &[memfd.as_fd()])
    }

    /// # Safety
    /// What [`Pd::reg_mr`] asks for.
    pub(crate) unsafe fn register(
        pd: &Arc<PdInner>,
        addr: *mut u8,
        length: usize,
        access: Access,
    ) -> Result<Mr, Error> {
        let Some(base) = NonNull::new(addr) else {
            return Err(Error::invalid("address of the memory region", "null", "a valid pointer"));
        };
        let writable = access.contains(Access::LOCAL_WRITE);
        if length > 0 {
            populate(addr.addr() as u64, length as u64, access.needs_writable())
                .map_err(Error::memory)?;
        }
        let start = addr.addr() as u64;
        let tell = |registered: Registered| {
            let (backing, memfd) = registered.backing();
            let memfd = memfd.map(|memfd| memfd.try_clone_to_owned()).transpose();
            let memfd = memfd.map_err(Error::system("duplicating a memfd"))?;
            let memory = Memory { base, length, writable, _owner: Owner::Caller(Some(registered)) };
            let fds: Vec<_> = memfd.iter().map(|memfd| memfd.as_fd()).collect();
            Self::new(pd, memory, access, backing, &fds)
        };
        let longest = remap::longest_wanted(0);
        let is_no_room = |error: &Error| error.errno() == libc::ENOMEM;
        Registered::told(start, length as u64, longest, tell, is_no_room)
    }

    fn new(
        pd: &Arc<PdInner>,
        memory: Memory,
        access: Access,
        backing: Backing,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Mr, Error> {
        let addr = memory.base.addr().get() as u64;
        let length = memory.length as u64;
        let request = Request::RegMr { pd: pd.handle, addr, length, iova: addr, access, backing };
        let (reply, _) = pd.context.session.call_with_fds("reg_mr", &request, fds)?;
        let Reply::Mr { mr: handle, lkey, rkey } = reply else {
            return Err(unexpected("reg_mr"));
        };
        let deregistered = false;
        let pd = pd.clone();
        Ok(Mr(Arc::new(MrInner { pd, handle, lkey, rkey: rkey.0, access, memory, deregistered })))
    }

    /// Address of the first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.0.memory.base.addr().get() as u64
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.0.memory.length
    }

    /// Key for the program's own work requests.
    pub fn lkey(&self) -> Lkey {
        self.0.lkey
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// What it was registered for.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> Pd {
        Pd(self.0.pd.clone())
    }

    /// A part of it, for the scatter/gather list of a work request.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidArgument`] if the part is longer than an entry
    /// can say, 4 GiB - 1.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        let (offset, len) = self.resolve(range)?;
        let length = u32::try_from(len).map_err(|_| {
            Error::invalid("length of a scatter/gather entry", len, "at most 2^32 - 1")
        })?;
        Ok(Sge { addr: self.addr() + offset, length, lkey: self.0.lkey })
    }

    /// A part of it, as a peer must name it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn remote_buf(&self, range: impl RangeBounds<usize>) -> Result<RemoteBuf, Error> {
        let (offset, len) = self.resolve(range)?;
        Ok(RemoteBuf { addr: self.addr() + offset, rkey: self.0.rkey, len })
    }

    /// A part of it, for a [memory window](crate::Mw) through which peers may do `access`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidArgument`] if the memory region was registered
    /// without [`Access::MW_BIND`], or peers are to write and it was registered without
    /// [`Access::LOCAL_WRITE`].
    pub fn bind_info(
        &self,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<BindInfo, Error> {
        let (offset, length) = self.resolve(range)?;
        let writes = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
        let needed = match access.bits() & writes {
            0 => Access::MW_BIND,
            _ => Access::MW_BIND | Access::LOCAL_WRITE,
        };
        if !self.0.access.contains(needed) {
            let lacks = format!("{:#x}", self.0.access.bits());
            let expected = "MW_BIND, and LOCAL_WRITE for a window that peers write through";
            return Err(Error::invalid("access of the memory region", lacks, expected));
        }
        Ok(BindInfo { mr: self.0.lkey, addr: self.addr() + offset, length, access })
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn read_at(&self, offset: usize, buf: &mut [u8]) -> Result<(), Error> {
        self.0.memory.copy_out(offset, buf)
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidArgument`] if this is memory that was registered
    /// from elsewhere without [`Access::LOCAL_WRITE`]. Nothing is copied then.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.0.memory.copy_in(offset, data)
    }

    /// Sets all bytes of a part to `value`.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn fill(&self, range: impl RangeBounds<usize>, value: u8) -> Result<(), Error> {
        let (offset, len) = self.resolve(range)?;
        let target = self.0.memory.at_writable(offset as usize, len as usize)?;
        // SAFETY: as in `Memory::copy_in`.
        unsafe { target.write_bytes(value, len as usize) };
        Ok(())
    }

    /// Eight bytes of it as an atomic number, in this machine's byte order.
    ///
    /// In memory of [`Pd::alloc_mr`] it is atomic towards the atomics of peers too.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Misaligned`] if the place is no multiple of 8;
    /// [`Error::InvalidArgument`] as in [`write_at`](Self::write_at).
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, Error> {
        let word = self.0.memory.at_writable(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !word.is_aligned() {
            return Err(Error::Misaligned { offset });
        }
        // SAFETY: the 8 bytes lie in the memory, which outlives the borrow of `self`; they are
        // aligned and writable; and an atomic may be shared with anybody.
        Ok(unsafe { word.as_ref() })
    }

    /// The first byte. Good for [`length`](Self::length) bytes, for as long as the region lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.memory.base.as_ptr()
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// While the slice is in use, nobody writes to this memory: no method of any clone of this
    /// `Mr`, no work request that is under way, no peer.
    pub unsafe fn as_slice(&self) -> &[u8] {
        let Memory { base, length, .. } = &self.0.memory;
        // SAFETY: the memory is there and initialised for as long as `self`, and the caller
        // promises that it does not change meanwhile.
        unsafe { std::slice::from_raw_parts(base.as_ptr(), *length) }
    }

    /// The bytes themselves, for writing.
    ///
    /// # Safety
    /// While the slice is in use, nobody else reads or writes this memory: no method of any
    /// clone of this `Mr`, no work request that is under way, no peer. It is writable: it was
    /// made by [`Pd::alloc_mr`], or registered with [`Access::LOCAL_WRITE`].
    #[expect(clippy::mut_from_ref, reason = "the caller promises what the borrow does not say")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        let Memory { base, length, .. } = &self.0.memory;
        // SAFETY: the memory is there and initialised for as long as `self`, and the caller
        // promises that it is writable and that this is the only access to it.
        unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), *length) }
    }

    /// Deregisters it now: `ibv_dereg_mr`. Dropping it does the same, but cannot say that it was
    /// refused.
    ///
    /// # Errors
    /// The region, which stays as it was, and the reason: [`Error::Refused`] with `EBUSY` while a
    /// [memory window](crate::Mw) is bound to it; [`Error::InvalidArgument`] while there is another
    /// clone of it.
    pub fn deregister(mut self) -> Result<(), (Mr, Error)> {
        let Some(inner) = Arc::get_mut(&mut self.0) else {
            let expected = "the only one that is left of its clones";
            return Err((self, Error::invalid("memory region", "one of several clones", expected)));
        };
        match inner.deregister() {
            Ok(()) => {
                inner.deregistered = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    fn resolve(&self, range: impl RangeBounds<usize>) -> Result<(u64, u64), Error> {
        let range = (
            range.start_bound().map(|&start| start as u64),
            range.end_bound().map(|&end| end as u64),
        );
        resolve(range, self.length() as u64)
    }
}

impl MrInner {
    fn deregister(&self) -> Result<(), Error> {
        self.pd.context.session.order("dereg_mr", &Request::DeregMr { mr: self.handle })
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        // The daemon lets go of the memory before it is unmapped.
        if !self.deregistered {
            let _ = self.deregister();
        }
    }
}
