//! The socket at which metrics are to be had.

use super::MetricsAddress;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Scrapers that may be waiting to be accepted.
const BACKLOG: i32 = 64;

/// Where scrapers connect. A Unix socket's file goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    address: MetricsAddress,
    /// Device and inode of our socket file, so that only our own is removed.
    file: Option<(PathBuf, (u64, u64))>,
}

impl Listener {
    /// Listens. A Unix socket that nobody listens at any more is replaced; `mode` is that of the
    /// new one.
    pub(crate) fn bind(address: &MetricsAddress, mode: u32) -> io::Result<Listener> {
        let (socket, address, file) = match address {
            MetricsAddress::Tcp(address) => {
                let socket = TcpListener::bind(address)?;
                let address = MetricsAddress::Tcp(socket.local_addr()?);
                (OwnedFd::from(socket), address, None)
            }
            MetricsAddress::Unix(path) => {
                remove_if_abandoned(path)?;
                let flags = SocketFlags::CLOEXEC;
                let socket =
                    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
                let file = Some((path.clone(), identity(path)?));
                // Nobody can connect before `listen`.
                rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
                rustix::net::listen(&socket, BACKLOG)?;
                (socket, address.clone(), file)
            }
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Listener { socket, address, file })
    }

    /// Where scrapers connect, with the port that was found.
    pub(crate) fn address(&self) -> &MetricsAddress {
        &self.address
    }

    /// The next scraper; `None` if there is none.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            // Gone before it was seen, or none.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only tidiness: the next daemon replaces what stays.
        if let Some((path, own)) = &self.file
            && identity(path).is_ok_and(|found| found == *own)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket file of a daemon that is gone, and nothing else.
fn remove_if_abandoned(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let message = "exists and is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        // `bind` says what is the matter.
        _ => Ok(()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Receives what has come, without waiting.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, into, RecvFlags::DONTWAIT).map(|(len, _)| len)
}

/// Sends what there is room for, without waiting.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Says that nothing more comes.
pub(super) fn end(socket: &OwnedFd) -> Result<(), Errno> {
    rustix::net::shutdown(socket, Shutdown::Write)
}
