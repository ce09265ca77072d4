//! Who else knows the pages of this process, and not only their addresses: it would go on with
//! the old ones when new ones are put in their place.

use super::write_protect;
use rustix::fs::OFlags;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Descriptors whose owner may have pages pinned, or watch them: what they are links to in
/// `/proc/self/fd`, and what to call them.
const DESCRIPTORS: [(&str, &str); 5] = [
    ("anon_inode:[io_uring]", "io_uring"),
    ("anon_inode:[userfaultfd]", "a userfaultfd of the program's own"),
    ("/dev/infiniband/", "a real RDMA device"),
    ("/dev/vfio/", "VFIO"),
    ("/dev/nvidia", "a GPU"),
];

/// The mapping of an `io_setup` context, whose requests may be under way.
const AIO: &str = "/[aio]";

/// Somebody in this process that may hold on to pages.
pub(super) fn any() -> io::Result<Option<&'static str>> {
    let is_alone = write_protect::is_only_thread()?;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // One that was closed meanwhile holds nothing.
        let Ok(entry) = entry else { continue };
        let Ok(link) = std::fs::read_link(entry.path()) else { continue };
        if let Some(holder) = holder(&link) {
            return Ok(Some(holder));
        }
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if !is_alone && is_file(&link) && number.is_some_and(is_direct) {
            return Ok(Some("a file that is open with O_DIRECT"));
        }
    }
    let maps = std::fs::read("/proc/self/maps")?;
    if String::from_utf8_lossy(&maps).lines().any(|line| line.contains(AIO)) {
        return Ok(Some("asynchronous I/O (io_setup)"));
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(has_locked_memory(&status).then_some("mlock"))
}

/// Whether this is a file that other threads may be reading from just now.
fn is_file(link: &Path) -> bool {
    link.is_absolute()
}

/// Whether a device writes into the pages of who reads from this descriptor: then nothing stops it
/// on its way there.
fn is_direct(fd: i32) -> bool {
    // SAFETY: whatever the number is by now, its flags are only looked at.
    let flags = unsafe { rustix::fs::fcntl_getfl(BorrowedFd::borrow_raw(fd)) };
    flags.is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

fn holder(link: &Path) -> Option<&'static str> {
    let link = link.to_string_lossy();
    let found = DESCRIPTORS.iter().find(|(start, _)| link.starts_with(start));
    found.map(|&(_, name)| name)
}

/// Whether the line `VmLck` of `/proc/self/status` says that memory is locked.
fn has_locked_memory(status: &str) -> bool {
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|rest| rest.split_whitespace().next() != Some("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_pin_pages_are_known_by_their_descriptors() {
        assert_eq!(holder(Path::new("anon_inode:[io_uring]")), Some("io_uring"));
        assert_eq!(holder(Path::new("/dev/infiniband/uverbs0")), Some("a real RDMA device"));
        assert_eq!(holder(Path::new("/dev/nvidia-uvm")), Some("a GPU"));
        for other in ["socket:[123]", "/dev/null", "/memfd:x (deleted)", "anon_inode:[eventfd]"] {
            assert_eq!(holder(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn files_without_a_cache_are_known_by_their_flags() {
        use rustix::pipe::{PipeFlags, pipe_with};
        use std::os::fd::AsRawFd;
        // The end that is written to.
        let direct = pipe_with(PipeFlags::DIRECT).unwrap().1;
        assert!(is_direct(direct.as_raw_fd()));
        assert!(!is_direct(pipe_with(PipeFlags::empty()).unwrap().1.as_raw_fd()));
        assert!(!is_direct(i32::MAX), "there is no such descriptor");
        // What the flag of a pipe says is something else.
        assert!(is_file(Path::new("/data/table")) && !is_file(Path::new("pipe:[123]")));
    }

    #[test]
    fn locked_memory_is_seen_in_the_status() {
        assert!(has_locked_memory("VmPeak:\t 10 kB\nVmLck:\t     132 kB\n"));
        assert!(!has_locked_memory("VmPeak:\t 10 kB\nVmLck:\t       0 kB\n"));
        assert!(!has_locked_memory(""));
    }
}
