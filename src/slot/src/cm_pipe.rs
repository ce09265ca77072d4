//! The pipes of event channels of the connection manager: readable while events wait at the broker.

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::os::fd::OwnedFd;
use urxe_nic::drain;

/// The daemon's end of a pipe that holds a byte if and only if events wait.
#[derive(Debug)]
pub(crate) struct CmPipe {
    write_end: OwnedFd,
}

impl CmPipe {
    /// Makes a pipe; returns the program's end too.
    pub(crate) fn new() -> Result<(CmPipe, OwnedFd), Errno> {
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // The read end stays blocking: it is the program's, and `read` must mean what it does.
        rustix::io::ioctl_fionbio(&write_end, true)?;
        Ok((CmPipe { write_end }, read_end))
    }

    /// Makes the pipe hold a byte if and only if events wait.
    pub(crate) fn show(&self, waiting: bool) {
        // It is never full. That the other end was closed does not matter.
        let is_readable = rustix::io::ioctl_fionread(&self.write_end).is_ok_and(|bytes| bytes > 0);
        match (waiting, is_readable) {
            (true, false) => drop(rustix::io::write(&self.write_end, &[1])),
            (false, true) => drain(&self.write_end, &mut [0; 4096], |_| ()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(read_end: &OwnedFd) -> u64 {
        rustix::io::ioctl_fionread(read_end).unwrap()
    }

    #[test]
    fn the_pipe_holds_a_byte_if_and_only_if_events_wait() {
        let (pipe, read_end) = CmPipe::new().unwrap();
        for waiting in [false, true, true, false, true] {
            pipe.show(waiting);
            assert_eq!(bytes(&read_end), u64::from(waiting));
        }
        // The program has read the byte, and more events wait.
        assert_eq!(rustix::io::read(&read_end, &mut [0; 1]), Ok(1));
        pipe.show(true);
        assert_eq!(bytes(&read_end), 1);
    }

    #[test]
    fn bytes_that_the_program_has_put_there_go_with_the_events() {
        let (pipe, read_end) = CmPipe::new().unwrap();
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&read_end));
        let own = std::fs::OpenOptions::new().write(true).open(name).unwrap();
        rustix::io::write(&own, &[7; 100]).unwrap();
        pipe.show(false);
        assert_eq!(bytes(&read_end), 0);
    }

    #[test]
    fn a_reader_that_is_gone_does_no_harm() {
        let (pipe, read_end) = CmPipe::new().unwrap();
        drop(read_end);
        pipe.show(true);
        pipe.show(false);
    }
}
