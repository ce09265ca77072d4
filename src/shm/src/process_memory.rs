//! Any memory of a program, reached through its own `/proc/self/mem`.
//!
//! A program opens the file itself and passes the descriptor. It stands for the address space,
//! not for a process number: it needs no right to trace, works across users and namespaces, and
//! when the program has exited or become another one, it reads nothing instead of a stranger's
//! memory.
//!
//! Two things to know. The kernel lets a write through this file into private pages that the
//! program itself may only read, so whether a range is writable is checked when it is registered
//! ([`populate`]). And touching memory whose pages another program has to supply (`userfaultfd`,
//! a FUSE file) waits for that program.

use crate::layout::page_size;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A program's address space.
#[derive(Debug)]
pub struct ProcessMemory {
    fd: OwnedFd,
}

/// Memory of a program could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {addr:#x} in the program cannot be reached: {errno}")]
pub struct Fault {
    /// Address of the first byte that was not reached.
    pub addr: u64,
    /// Bytes that were still to be copied.
    pub len: usize,
    /// What the system says; `EFAULT` if the address space is gone.
    pub errno: Errno,
}

/// What was passed is not an address space.
#[derive(Debug, thiserror::Error)]
pub enum NotProcessMemory {
    /// It is another kind of file.
    #[error("the descriptor is not a /proc/<pid>/mem file")]
    OtherFile,
    /// It cannot be both read and written.
    #[error("the descriptor is not open for reading and writing")]
    NotReadWrite,
    /// The system refuses.
    #[error("the descriptor cannot be looked at: {0}")]
    Os(#[from] io::Error),
}

/// Opens one's own address space, for passing it on. Fails with `EACCES` in a program that must
/// not be dumped, such as one that has dropped root's rights.
pub fn open_own() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

impl ProcessMemory {
    /// Accepts a descriptor from a program, if it is what it should be: another kind of file
    /// might block whoever reads it.
    pub fn accept(fd: OwnedFd) -> Result<Self, NotProcessMemory> {
        const PROC_SUPER_MAGIC: u64 = 0x9fa0;
        let system = rustix::fs::fstatfs(&fd).map_err(io::Error::from)?;
        if system.f_type as u64 != PROC_SUPER_MAGIC || !link_of(fd.as_fd())?.ends_with(b"/mem") {
            return Err(NotProcessMemory::OtherFile);
        }
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(io::Error::from)?;
        if flags & OFlags::ACCMODE != OFlags::RDWR {
            return Err(NotProcessMemory::NotReadWrite);
        }
        Ok(Self { fd })
    }

    /// Copies from the program.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < buf.len() {
            let at = addr.wrapping_add(done as u64);
            let step = rustix::io::pread(&self.fd, &mut buf[done..], at);
            done += progress(step, at, buf.len() - done)?;
        }
        Ok(())
    }

    /// Copies into the program.
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < data.len() {
            let at = addr.wrapping_add(done as u64);
            let step = rustix::io::pwrite(&self.fd, &data[done..], at);
            done += progress(step, at, data.len() - done)?;
        }
        Ok(())
    }
}

fn progress(step: Result<usize, Errno>, addr: u64, len: usize) -> Result<usize, Fault> {
    match step {
        // The address space is gone.
        Ok(0) => Err(Fault { addr, len, errno: Errno::FAULT }),
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(errno) => Err(Fault { addr, len, errno }),
    }
}

/// What a descriptor is open on, as the kernel names it.
fn link_of(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

/// Makes sure, before it is registered, that memory can be read (and written): its pages are
/// brought in as pinning would do it, and a range that cannot be accessed is refused with what
/// `ibv_reg_mr` would say: `EFAULT`. Where the kernel has no means of asking (before 5.14),
/// nothing is checked; the first access will tell.
pub fn populate(addr: u64, len: u64, writable: bool) -> Result<(), Fault> {
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let fault = |errno| Fault { addr, len: usize::try_from(len).unwrap_or(usize::MAX), errno };
    let page = page_size() as u64;
    let first = addr - addr % page;
    let size = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let size = size.and_then(|end| usize::try_from(end - first).ok());
    let size = size.ok_or(fault(Errno::FAULT))?;
    loop {
        match advise(first, size, advice) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // An advice that the kernel does not know is refused even for no bytes at all.
            Err(Errno::INVAL) if advise(first, 0, advice) == Err(Errno::INVAL) => return Ok(()),
            Err(Errno::INVAL | Errno::NOMEM | Errno::FAULT) => return Err(fault(Errno::FAULT)),
            Err(errno) => return Err(fault(errno)),
        }
    }
}

fn advise(addr: u64, len: usize, advice: Advice) -> Result<(), Errno> {
    let start = std::ptr::with_exposed_provenance_mut(addr as usize);
    // SAFETY: populating changes neither the contents of memory nor what is mapped; the kernel
    // checks the range, and refuses it if it is not ours.
    unsafe { rustix::mm::madvise(start, len, advice) }
}
