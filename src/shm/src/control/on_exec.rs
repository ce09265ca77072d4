//! Which descriptors a program has that this process executes.

use crate::descriptor_table;
use std::io;
use std::os::fd::RawFd;

/// The first descriptor that is not standard input, output or error.
const FIRST: RawFd = 3;

/// Has all descriptors but standard input, output and error closed when another program is
/// executed, whoever opened them: what this process has of its programs is not for those that it
/// starts.
///
/// # Errors
/// If the kernel cannot do it (Linux before 5.11).
pub fn close_on_exec() -> io::Result<()> {
    descriptor_table::close_on_exec(FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    #[test]
    fn a_descriptor_that_was_to_be_inherited_is_not() {
        let (read_end, _write_end) = rustix::pipe::pipe().unwrap();
        let has_it = || {
            let fd = format!("/proc/self/fd/{}", read_end.as_raw_fd());
            Command::new("/usr/bin/test").args(["-e", &fd]).status().unwrap().success()
        };
        assert!(has_it());
        close_on_exec().unwrap();
        assert!(!has_it());
    }
}
