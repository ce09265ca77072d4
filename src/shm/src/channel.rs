//! The socket that requests and replies travel on: Unix, `SOCK_SEQPACKET`, with descriptors.

use crate::control::{self, DecodeError, MAX_FDS, MAX_MESSAGE, Reply, Request, TooLong};
use crate::socket_path;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    UCred,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side is gone.
    #[error("the connection is closed")]
    Closed,
    /// Nothing to receive, or no room to send, on a channel that does not block.
    #[error("the operation would block")]
    WouldBlock,
    /// The message to be sent is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// More descriptors than a message may have.
    #[error("{count} descriptors with one message, at most {MAX_FDS} are allowed")]
    TooManyFds {
        /// How many there are.
        count: usize,
    },
    /// The message received is longer than any may be.
    #[error("a message longer than {MAX_MESSAGE} bytes arrived")]
    Truncated,
    /// More descriptors arrived than a message may have, or than this process can still open.
    #[error(
        "descriptors were lost: more than {MAX_FDS} arrived, or this process has too many open"
    )]
    FdsLost,
    /// The message received is none.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The system refuses.
    #[error("the control socket fails: {0}")]
    Os(#[from] io::Error),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => ChannelError::WouldBlock,
            Errno::PIPE | Errno::CONNRESET => ChannelError::Closed,
            errno => ChannelError::Os(errno.into()),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    buf: Vec<u8>,
}

impl Channel {
    /// Connects to the daemon. Messages are waited for.
    pub fn connect(path: &Path) -> io::Result<Self> {
        socket_path::check_directory(path)?;
        let socket = socket(SocketFlags::CLOEXEC)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self::new(socket))
    }

    fn new(socket: OwnedFd) -> Self {
        Self { socket, buf: vec![0; MAX_MESSAGE] }
    }

    /// A program's question: sends a request, waits for its reply.
    pub fn call(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        self.send(request, fds)?;
        self.recv()
    }

    /// Sends one message. A reader that does not read may make it [`ChannelError::WouldBlock`];
    /// a program has never more than one reply coming, so this means that it misbehaves.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        if fds.len() > MAX_FDS {
            return Err(ChannelError::TooManyFds { count: fds.len() });
        }
        let len = control::encode(message, &mut self.buf)?;
        let mut space = [MaybeUninit::uninit(); FD_SPACE];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let bytes = [IoSlice::new(&self.buf[..len])];
        retry(|| rustix::net::sendmsg(&self.socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Receives one message and the descriptors that came with it.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut space = [MaybeUninit::uninit(); FD_SPACE];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [IoSliceMut::new(&mut self.buf)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = retry(|| rustix::net::recvmsg(&self.socket, &mut bytes, &mut ancillary, flags))?;
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ChannelError::FdsLost);
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Truncated);
        }
        // No message of ours is empty: this is the end.
        if got.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        Ok((control::decode(&self.buf[..got.bytes])?, fds))
    }

    /// Who connected, as the kernel knows it.
    pub fn peer(&self) -> io::Result<UCred> {
        Ok(rustix::net::sockopt::socket_peercred(&self.socket)?)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Room for one control message with the most descriptors allowed.
const FD_SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Whether there is a socket that nobody listens at.
fn is_abandoned(address: &SocketAddrUnix) -> io::Result<bool> {
    let probe = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok(rustix::net::connect(&probe, address) == Err(Errno::CONNREFUSED))
}

/// Programs that may be waiting to be accepted.
const BACKLOG: i32 = 64;

/// Where programs connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at a path. Whoever may open the socket by its `mode` may connect. Makes the
    /// directory if there is none, for the owner alone; replaces a socket that nobody listens at
    /// any more. Neither accepting nor the channels accepted block.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        socket_path::make_directory(path)?;
        let address = SocketAddrUnix::new(path)?;
        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        if let Err(errno) = rustix::net::bind(&socket, &address) {
            if errno != Errno::ADDRINUSE || !is_abandoned(&address)? {
                return Err(errno.into());
            }
            rustix::fs::unlink(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        // Nobody can connect before `listen`.
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// The next program that connects; `None` if there is none.
    pub fn accept(&self) -> io::Result<Option<Channel>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match retry(|| rustix::net::accept_with(&self.socket, flags)) {
            Ok(socket) => Ok(Some(Channel::new(socket))),
            // Gone before it was seen.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The path it listens at.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only tidiness: a socket that nobody listens at is replaced by the next daemon.
        let _ = rustix::fs::unlink(&self.path);
    }
}
