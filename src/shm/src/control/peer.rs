//! Who is at the other end of a Unix socket, as the kernel knows it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected, or that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process id; `None` if it is in a pid namespace that cannot be seen from here, as between
    /// two containers. (The kernel says 0, for which rustix has no value.)
    pub pid: Option<u32>,
    /// Its user, as of when it connected or began to listen.
    pub uid: u32,
    /// Its group, likewise.
    pub gid: u32,
}

impl Peer {
    /// Whoever is at the other end of this socket.
    ///
    /// # Errors
    /// `ENOTSOCK` and the like: the descriptor is no Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `peer`, of which any are a value.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let pid = u32::try_from(peer.pid).ok().filter(|&pid| pid != 0);
        Ok(Peer { pid, uid: peer.uid, gid: peer.gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_in_this_process_is_this_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&socket).unwrap();
        let [uid, gid] = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
        assert_eq!(peer, Peer { pid: Some(std::process::id()), uid, gid });
        Peer::of(std::fs::File::open("/dev/null").unwrap()).unwrap_err();
    }
}
