//! Any memory of a program, reached through its own `/proc/self/mem`.
//!
//! A program opens the file itself and passes the descriptor. It stands for the address space,
//! not for a process number: it needs no right to trace, works across users and namespaces, and
//! when the program has exited or become another one, it reads nothing instead of a stranger's
//! memory.
//!
//! Two things to know. The kernel lets a write through this file into private pages that the
//! program itself may only read, so whether a range is writable is checked when it is registered
//! ([`populate`]). And a page that has to be fetched is waited for. That is a page of a disk, of a
//! network, or of a file of the program's own making (FUSE), whose maker may keep us waiting for
//! ever. Nothing prevents that: what is mapped can change at any time after it was registered, and
//! a thread that waits so cannot be interrupted. A missing page of a `userfaultfd` is not waited
//! for: it is a fault.
//!
//! # Why not `process_vm_readv` and `process_vm_writev`
//! They copy 64 KiB in 7 us where this file takes 10, and less than 16 KiB no faster. (For this
//! file, the kernel looks up each page anew, and copies twice.) Of what a message of 64 KiB costs
//! at both ends together, that saved a tenth when it was tried. But they name a process by its
//! number, and nothing ties that number to the address space we were given: between any check and
//! the call, the program may execute another one, or end and leave its number to a stranger, and
//! then a daemon that has the right to trace reads or writes what it never was given. And they do
//! wait for a `userfaultfd`, so that any program could stop the daemon. Who wants more speed than
//! this file gives shares the memory ([`region`](super::region), [`remap`](super::remap)), where
//! 64 KiB take 1.5 us.

use crate::memory::region::page_size;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many ends of pieces [`ProcessMemory::write_in_order`] takes.
pub const MAX_PIECES: usize = 32;

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

    /// Whether it is that of this very process.
    pub fn is_own(&self) -> bool {
        let mark = AtomicU64::new(0);
        let addr = (&raw const mark).expose_provenance() as u64;
        // What another process has there, a fork of this one for instance, does not change with it.
        (1..=2u64).all(|value| {
            mark.store(value, Ordering::SeqCst);
            let mut found = [0; 8];
            self.read(addr, &mut found).is_ok() && u64::from_ne_bytes(found) == value
        })
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

    /// Copies into the program. Pages become visible in their order, but the bytes within a page
    /// in any.
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), Fault> {
        self.write_in_order(addr, data, &[])
    }

    /// Copies into the program, piece by piece: no byte of a piece becomes visible before all of
    /// the pieces before. `ends` tells where in the data pieces end, in rising order, and may have
    /// up to [`MAX_PIECES`] entries; what is behind the last of them is a piece too.
    ///
    /// It is one system call, in which each piece costs as much as the call does by itself, about
    /// 1 us: for this file the kernel carries out one copy after the other.
    pub fn write_in_order(&self, addr: u64, data: &[u8], ends: &[usize]) -> Result<(), Fault> {
        let mut done = 0;
        while done < data.len() {
            let mut pieces = [IoSlice::new(&[]); MAX_PIECES + 1];
            let mut count = 0;
            let mut start = done;
            for &end in ends.iter().chain([&data.len()]) {
                if end > start {
                    pieces[count] = IoSlice::new(&data[start..end]);
                    count += 1;
                    start = end;
                }
            }
            let at = addr.wrapping_add(done as u64);
            let step = rustix::io::pwritev(&self.fd, &pieces[..count], at);
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
    // A thread may have a table of descriptors of its own.
    let link = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

/// Makes sure, before it is registered, that memory can be read (and written): its pages are
/// brought in as pinning would do it, and a range is refused with the error that the kernel's
/// `ibv_reg_mr` gives. That is `EINVAL` for no bytes and for a range that wraps around, and
/// `EFAULT` for one that is not all mapped, or not for this access
/// ([`Access::needs_writable`](urxe_types::Access::needs_writable)). Where the kernel has no
/// means of asking (before 5.14), the range alone is checked; the first access will tell.
pub fn populate(addr: u64, len: u64, writable: bool) -> Result<(), Fault> {
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let fault = |errno| Fault { addr, len: usize::try_from(len).unwrap_or(usize::MAX), errno };
    let page = page_size() as u64;
    let first = addr - addr % page;
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let size = end.and_then(|end| usize::try_from(end - first).ok()).filter(|_| len > 0);
    let size = size.ok_or(fault(Errno::INVAL))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::create_memfd;
    use crate::memory::remap::write_protect::register;
    use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, userfaultfd};
    use urxe_shell::testing::{could_not_run, needs_root};

    /// Two pages of which only the first can be accessed, and it as `rights` say.
    struct Pages {
        addr: u64,
    }

    impl Pages {
        fn new(rights: ProtFlags) -> Self {
            let size = 2 * page_size();
            // SAFETY: a null hint without MAP_FIXED replaces nothing.
            let start = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    size,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE,
                )
            }
            .unwrap();
            let flags = rustix::mm::MprotectFlags::from_bits_retain(rights.bits());
            // SAFETY: the first of the two pages just mapped, which nobody else knows of.
            unsafe { rustix::mm::mprotect(start, page_size(), flags) }.unwrap();
            Self { addr: start.expose_provenance() as u64 }
        }

        fn second(&self) -> u64 {
            self.addr + page_size() as u64
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let start = std::ptr::with_exposed_provenance_mut(self.addr as usize);
            // SAFETY: what `new` has mapped; tests keep no reference to it.
            unsafe { rustix::mm::munmap(start, 2 * page_size()) }.unwrap();
        }
    }

    fn own_memory() -> ProcessMemory {
        ProcessMemory::accept(open_own().unwrap()).unwrap()
    }

    #[test]
    fn memory_is_read_and_written_at_its_address() {
        let (memory, pages) = (own_memory(), Pages::new(ProtFlags::READ | ProtFlags::WRITE));
        memory.write(pages.addr + 100, b"through the kernel").unwrap();
        let mut bytes = [0; 20];
        memory.read(pages.addr + 99, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0through the kernel\0");
    }

    #[test]
    fn pieces_are_written_wherever_they_end() {
        let (memory, pages) = (own_memory(), Pages::new(ProtFlags::READ | ProtFlags::WRITE));
        let data: Vec<u8> = (0..200).collect();
        let every = std::array::from_fn::<_, MAX_PIECES, _>(|i| (i + 1) * 6);
        for ends in [&[][..], &[0, 0, 1, 192, 192], &[200], &every] {
            memory.write(pages.addr, &[0; 256]).unwrap();
            memory.write_in_order(pages.addr, &data, ends).unwrap();
            let mut bytes = [0; 201];
            memory.read(pages.addr, &mut bytes).unwrap();
            assert_eq!((&bytes[..200], bytes[200]), (&data[..], 0), "{ends:?}");
        }
        // Up to the first byte that cannot be written, everything is.
        let len = page_size();
        let file = create_memfd("test", len as u64).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let beyond = mapped(&file, 2 * len, both, MapFlags::SHARED) + len as u64;
        let last = beyond - 8;
        let fault = Fault { addr: beyond, len: 192, errno: Errno::IO };
        assert_eq!(memory.write_in_order(last, &data, &[4, 8, 100]), Err(fault));
        let mut bytes = [0; 8];
        memory.read(last, &mut bytes).unwrap();
        assert_eq!(bytes, data[..8]);
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault() {
        // Below `vm.mmap_min_addr`, where nothing ever is.
        let memory = own_memory();
        let fault = Err(Fault { addr: 4096, len: 16, errno: Errno::IO });
        assert_eq!(memory.read(4096, &mut [0; 16]), fault);
        assert_eq!(memory.write(4096, &[0; 16]), fault);
    }

    #[test]
    fn memory_of_a_program_that_has_ended_is_a_fault() {
        let mut program =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let open = |name| format!("/proc/{}/{name}", program.id());
        let maps = std::fs::read_to_string(open("maps")).unwrap();
        let addr = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let file = rustix::fs::open(open("mem"), OFlags::RDWR, Mode::empty()).unwrap();
        let memory = ProcessMemory::accept(file).unwrap();
        memory.read(addr, &mut [0; 16]).unwrap();
        drop(program.stdin.take());
        program.wait().unwrap();
        let fault = Err(Fault { addr, len: 16, errno: Errno::FAULT });
        assert_eq!(memory.read(addr, &mut [0; 16]), fault);
        assert_eq!(memory.write(addr, &[0; 16]), fault);
    }

    #[test]
    fn only_the_memory_of_this_process_is_its_own() {
        assert!(own_memory().is_own());
        let (asked, ask) = rustix::pipe::pipe().unwrap();
        // SAFETY: between fork and _exit the child makes no call but of the system.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(ask);
            let _ = rustix::io::read(&asked, &mut [0]);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let path = format!("/proc/{child}/mem");
        let file = rustix::fs::open(path, OFlags::RDWR, Mode::empty()).unwrap();
        let is_own = ProcessMemory::accept(file).unwrap().is_own();
        drop(ask);
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        assert!(!is_own);
    }

    #[test]
    fn no_address_makes_it_panic() {
        let memory = own_memory();
        for addr in [0, 1, u64::MAX, u64::MAX - 7, i64::MAX as u64, i64::MAX as u64 - 3] {
            assert!(memory.read(addr, &mut [0; 16]).is_err(), "{addr:#x}");
            assert!(memory.write(addr, &[0; 16]).is_err(), "{addr:#x}");
            assert_eq!(memory.read(addr, &mut []), Ok(()));
        }
    }

    #[test]
    fn only_an_address_space_is_accepted() {
        let refused = |fd| matches!(ProcessMemory::accept(fd), Err(NotProcessMemory::OtherFile));
        assert!(refused(create_memfd("test", 1).unwrap()));
        assert!(refused(rustix::pipe::pipe().unwrap().0));
        assert!(refused(std::fs::File::open("/proc/self/maps").unwrap().into()));
        let read_only = std::fs::File::open("/proc/self/mem").unwrap().into();
        assert!(matches!(ProcessMemory::accept(read_only), Err(NotProcessMemory::NotReadWrite)));
    }

    #[test]
    fn populating_finds_out_what_may_be_accessed() {
        let fault = |addr, len| Err(Fault { addr, len, errno: Errno::FAULT });
        let both = Pages::new(ProtFlags::READ | ProtFlags::WRITE);
        assert_eq!(populate(both.addr, 1, true), Ok(()));
        assert_eq!(populate(both.addr + 5, page_size() as u64 - 5, false), Ok(()));
        let across = page_size() as u64;
        assert_eq!(populate(both.addr + 5, across, false), fault(both.addr + 5, page_size()));
        assert_eq!(populate(both.second(), 1, false), fault(both.second(), 1));

        let read_only = Pages::new(ProtFlags::READ);
        assert_eq!(populate(read_only.addr, 1, false), Ok(()));
        assert_eq!(populate(read_only.addr, 1, true), fault(read_only.addr, 1));
    }

    #[test]
    fn populating_refuses_what_is_no_range_as_the_kernel_does() {
        let both = Pages::new(ProtFlags::READ | ProtFlags::WRITE);
        for (addr, len) in [(both.addr, 0), (u64::MAX, 2), (u64::MAX - 4095, 4095), (1, u64::MAX)] {
            let fault = Fault { addr, len: len as usize, errno: Errno::INVAL };
            assert_eq!(populate(addr, len, false), Err(fault));
        }
    }

    /// A mapping of a file, which may be the program's own idea of memory.
    fn mapped(fd: &OwnedFd, len: usize, rights: ProtFlags, flags: MapFlags) -> u64 {
        // SAFETY: a null hint without MAP_FIXED replaces nothing. It is never unmapped.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rights, flags, fd, 0) };
        start.unwrap().expose_provenance() as u64
    }

    #[test]
    fn files_and_shared_memory_are_accessed_as_they_are_mapped() {
        let len = page_size();
        let file = create_memfd("test", len as u64).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let fault = |addr| Err(Fault { addr, len, errno: Errno::FAULT });
        for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
            let addr = mapped(&file, len, both, flags);
            assert_eq!(populate(addr, len as u64, true), Ok(()), "{flags:?}");
            own_memory().write(addr, b"hello").unwrap();
            let read_only = mapped(&file, len, ProtFlags::READ, flags);
            assert_eq!(populate(read_only, len as u64, false), Ok(()), "{flags:?}");
            assert_eq!(populate(read_only, len as u64, true), fault(read_only), "{flags:?}");
        }
        // What the program cannot write to others through its own mapping, nobody can for it.
        let shared = mapped(&file, len, ProtFlags::READ, MapFlags::SHARED);
        let refused = Err(Fault { addr: shared, len: 5, errno: Errno::IO });
        assert_eq!(own_memory().write(shared, b"HELLO"), refused);
        let mut bytes = [0; 5];
        own_memory().read(shared, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        // A mapping may be longer than its file.
        let beyond = mapped(&file, 2 * len, both, MapFlags::SHARED) + len as u64;
        assert_eq!(populate(beyond, len as u64, false), fault(beyond));
    }

    #[test]
    fn a_page_that_its_program_does_not_supply_is_a_fault_and_no_wait() {
        const MODE_MISSING: u64 = 1;
        // `UFFD_USER_MODE_ONLY`.
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        let (memory, pages) = (own_memory(), Pages::new(ProtFlags::READ | ProtFlags::WRITE));
        let flags = UserfaultfdFlags::CLOEXEC;
        // SAFETY: what it is registered for is touched by nobody but this test, through the kernel.
        let fd = unsafe { userfaultfd(flags).or_else(|_| userfaultfd(flags | USER_MODE_ONLY)) };
        let Ok(fd) = fd else {
            return needs_root("this user may not use userfaultfd");
        };
        register(&fd, pages.addr, page_size() as u64, MODE_MISSING).unwrap();
        let fault = Err(Fault { addr: pages.addr, len: 16, errno: Errno::IO });
        assert_eq!(memory.read(pages.addr, &mut [0; 16]), fault);
        assert_eq!(memory.write(pages.addr, &[0; 16]), fault);
    }

    #[test]
    fn huge_pages_are_as_good_as_others() {
        const LEN: usize = 2 << 20;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint without MAP_FIXED replaces nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), LEN, rights, flags) };
        let Ok(start) = start else {
            return could_not_run("this machine has no huge page to spare");
        };
        let addr = start.expose_provenance() as u64 + 5;
        assert_eq!(populate(addr, 10_000, true), Ok(()));
        own_memory().write(addr, b"huge").unwrap();
        let mut bytes = [0; 6];
        own_memory().read(addr - 1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0huge\0");
        // SAFETY: what was mapped above, and nobody else knows of.
        unsafe { rustix::mm::munmap(start, LEN) }.unwrap();
    }

    #[test]
    fn writes_after_a_fork_reach_the_parent_only() {
        let (memory, pages) = (own_memory(), Pages::new(ProtFlags::READ | ProtFlags::WRITE));
        memory.write(pages.addr, b"before").unwrap();
        let (asked, ask) = rustix::pipe::pipe().unwrap();
        // SAFETY: between fork and _exit the child makes no call but of the system.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut bytes = [0; 6];
            let _ = rustix::io::read(&asked, &mut bytes);
            let start = std::ptr::with_exposed_provenance::<[u8; 6]>(pages.addr as usize);
            // SAFETY: the child has a copy of the page, and is its only thread.
            let is_old = unsafe { start.read_volatile() } == *b"before";
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_old)) };
        }
        memory.write(pages.addr, b"after!").unwrap();
        rustix::io::write(&ask, b"now").unwrap();
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        let mut bytes = [0; 6];
        memory.read(pages.addr, &mut bytes).unwrap();
        assert_eq!(&bytes, b"after!");
    }
}
