//! Who else knows the pages of this process, and not only their addresses: it would go on with
//! the old ones when new ones are put in their place.

use std::io;
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
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // One that was closed meanwhile holds nothing.
        let Ok(link) = entry.and_then(|entry| std::fs::read_link(entry.path())) else { continue };
        if let Some(holder) = holder(&link) {
            return Ok(Some(holder));
        }
    }
    let maps = std::fs::read("/proc/self/maps")?;
    if String::from_utf8_lossy(&maps).lines().any(|line| line.contains(AIO)) {
        return Ok(Some("asynchronous I/O (io_setup)"));
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(has_locked_memory(&status).then_some("mlock"))
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
    fn locked_memory_is_seen_in_the_status() {
        assert!(has_locked_memory("VmPeak:\t 10 kB\nVmLck:\t     132 kB\n"));
        assert!(!has_locked_memory("VmPeak:\t 10 kB\nVmLck:\t       0 kB\n"));
        assert!(!has_locked_memory(""));
    }
}
