//! The socket that requests and replies travel on: Unix, `SOCK_SEQPACKET`, with descriptors.

use crate::control::socket_path;
use crate::control::{self, DecodeError, MAX_FDS, MAX_MESSAGE, Reply, Request, TooLong};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::sched_yield;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes around a message that is passed on, at most.
pub const AROUND_PASSED_ON: usize = 1024;

/// The most descriptors that come with one message: the kernel's `SCM_MAX_FD`.
const MAX_RECEIVED_FDS: usize = 253;

/// How long a reply is looked for before the thread sleeps: longer than a daemon takes that is
/// awake.
const LOOK_FOR_REPLY: Duration = Duration::from_micros(30);

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
    /// More descriptors arrived than this process can still open.
    #[error("descriptors were lost: this process has too many open")]
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
    /// Descriptors that came last with what was not received as it was sent.
    refused: Vec<OwnedFd>,
}

impl Channel {
    /// Connects to the daemon. Messages are waited for.
    pub fn connect(path: &Path) -> io::Result<Self> {
        socket_path::check_directory(path)?;
        let socket = socket(SocketFlags::CLOEXEC)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self::new(socket))
    }

    /// A channel on a socket that is connected already. Whether messages are waited for is the
    /// socket's.
    pub fn new(socket: OwnedFd) -> Self {
        Self::with_room_for(socket, MAX_MESSAGE)
    }

    /// The same for both ends of a link that passes on what came over others: its messages may be
    /// longer by [`AROUND_PASSED_ON`].
    pub fn passing_on(socket: OwnedFd) -> Self {
        Self::with_room_for(socket, MAX_MESSAGE + AROUND_PASSED_ON)
    }

    fn with_room_for(socket: OwnedFd, len: usize) -> Self {
        Self { socket, buf: vec![0; len], refused: Vec::new() }
    }

    /// The ends of a connection within the daemon. Neither waits.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
    }

    /// The ends of a connection as if a program had connected: the daemon's, and the program's,
    /// which waits.
    pub fn pair_with_program() -> io::Result<(OwnedFd, OwnedFd)> {
        let (own, other) = Self::pair()?;
        rustix::io::ioctl_fionbio(&other, false)?;
        Ok((own, other))
    }

    /// The same on a descriptor from `lowest` on, if this process may have one.
    pub(crate) fn renumbered(self, lowest: RawFd) -> Self {
        Self { socket: renumbered(self.socket, lowest), ..self }
    }

    /// A program's question: sends a request, waits for its reply. That mostly comes sooner than a
    /// thread that sleeps is woken up, so it is looked for first; a daemon that shares the
    /// processor has it meanwhile.
    pub fn call(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        self.call_while(request, fds, |_| true)
    }

    /// The same for who does not wait for ever. If the reply is not there at once, `wait` is called
    /// with the socket: it returns when that can be read, or `false` if nobody is to wait any
    /// longer, which makes it [`ChannelError::WouldBlock`]. Nothing can be asked after that: the
    /// next reply would be that to this request.
    pub fn call_while(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        wait: impl FnMut(BorrowedFd<'_>) -> bool,
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        match self.ask(request, fds, wait) {
            // SLOT-110: who was turned away may have been told why before the question came.
            Err(ChannelError::Closed) => {
                let told = self.receive(RecvFlags::DONTWAIT);
                told.map(|(reply, _)| (reply, Vec::new())).map_err(|_| ChannelError::Closed)
            }
            answer => answer,
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        mut wait: impl FnMut(BorrowedFd<'_>) -> bool,
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        self.send(request, fds)?;
        let asked = Instant::now();
        loop {
            match self.receive(RecvFlags::DONTWAIT) {
                Err(ChannelError::WouldBlock) if asked.elapsed() < LOOK_FOR_REPLY => sched_yield(),
                Err(ChannelError::WouldBlock) if !wait(self.socket.as_fd()) => {
                    return Err(ChannelError::WouldBlock);
                }
                Err(ChannelError::WouldBlock) => {
                    let (reply, fds) = self.receive(RecvFlags::empty())?;
                    return self.with_descriptors(reply, fds);
                }
                Err(error) => return Err(error),
                Ok((reply, fds)) => return self.with_descriptors(reply, fds),
            }
        }
    }

    /// The reply with its descriptors. If they were lost, so is what they belong to, which is
    /// destroyed.
    fn with_descriptors(
        &mut self,
        reply: Reply,
        fds: Option<Vec<OwnedFd>>,
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        if let Some(fds) = fds {
            return Ok((reply, fds));
        }
        // CLIENT-028
        if let Some(request) = reply.destroys_what_was_made() {
            self.send(&request, &[])?;
            self.recv::<Reply>()?;
        }
        Err(ChannelError::FdsLost)
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
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
        let (message, fds) = self.receive(RecvFlags::empty())?;
        Ok((message, fds.ok_or(ChannelError::FdsLost)?))
    }

    /// The same from one who sends what is right: if this process can have no more descriptors, the
    /// message comes without any.
    pub fn recv_from_own<T: DeserializeOwned>(
        &mut self,
    ) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let (message, fds) = self.receive(RecvFlags::empty())?;
        Ok((message, fds.unwrap_or_default()))
    }

    /// The descriptors that came last with what was no message, or with one that has lost some of
    /// them. Who receives from others is to take them before it receives again, and to close them
    /// where that may take its time: they may be sockets that linger.
    pub fn take_refused(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.refused)
    }

    /// Receives one message, and its descriptors unless some were lost.
    fn receive<T: DeserializeOwned>(
        &mut self,
        flags: RecvFlags,
    ) -> Result<(T, Option<Vec<OwnedFd>>), ChannelError> {
        // SHARE-130: the kernel closes here, in this thread, those that there is no room for.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [IoSliceMut::new(&mut self.buf)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let got = retry(|| rustix::net::recvmsg(&self.socket, &mut bytes, &mut ancillary, flags))?;
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let none_is_lost = !got.flags.contains(ReturnFlags::CTRUNC);
        match decode(&self.buf[..got.bytes], got.flags, fds.len()) {
            Ok(message) if none_is_lost => Ok((message, Some(fds))),
            received => {
                // SHARE-130
                self.refused = fds;
                Ok((received?, None))
            }
        }
    }
}

/// The message that was received so, with so many descriptors.
fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    flags: ReturnFlags,
    fds: usize,
) -> Result<T, ChannelError> {
    if fds > MAX_FDS {
        return Err(ChannelError::TooManyFds { count: fds });
    }
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(ChannelError::Truncated);
    }
    // No message of ours is empty: this is the end.
    if bytes.is_empty() {
        return Err(ChannelError::Closed);
    }
    Ok(control::decode(bytes)?)
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.socket
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The same open file under a number from `lowest` on, if this process may have one.
pub(crate) fn renumbered(fd: OwnedFd, lowest: RawFd) -> OwnedFd {
    if fd.as_raw_fd() >= lowest {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd)
}

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
fn is_abandoned(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        let message = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    let probe = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok(rustix::net::connect(&probe, address) == Err(Errno::CONNREFUSED))
}

fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Programs that may be waiting to be accepted.
const BACKLOG: i32 = 64;

/// Where programs connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of our socket file, so that only our own is removed; `None` if somebody
    /// else made it for us.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at a path. Whoever may open the socket by its `mode` may connect. Makes the
    /// directory if there is none (open to others only if root's), and replaces a socket that
    /// nobody listens at any more. Neither accepting nor the channels accepted block.
    ///
    /// `AddrInUse` if somebody listens there, `AlreadyExists` if it is no socket at all,
    /// `PermissionDenied` if the directory is not ours alone although it should be.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        socket_path::make_directory(path)?;
        let address = SocketAddrUnix::new(path)?;
        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        if let Err(errno) = rustix::net::bind(&socket, &address) {
            if errno != Errno::ADDRINUSE || !is_abandoned(path, &address)? {
                return Err(errno.into());
            }
            rustix::fs::unlink(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        // Nobody can connect before `listen`.
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { socket, path: path.to_owned(), file: Some(file_identity(path)?) })
    }

    /// Listens at a socket that another process has made, and goes on with when we are gone: a
    /// service manager. Its file stays.
    ///
    /// `InvalidInput` if that is no socket of this kind, nobody listens at it, or it has no path.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        use rustix::net::sockopt;
        let refused = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        if sockopt::socket_type(&socket)? != SocketType::SEQPACKET
            || !sockopt::socket_acceptconn(&socket)?
        {
            return Err(refused("expected a listening socket of type SOCK_SEQPACKET"));
        }
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?)
            .map_err(|_| refused("expected a Unix socket"))?;
        let Some(path) = address.path_bytes() else {
            return Err(refused("expected a socket with a path"));
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        rustix::io::ioctl_fionbio(&socket, true)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Self { socket, path, file: None })
    }

    /// Listens at a socket at which another process did that is gone, and that had made its
    /// [file](Self::file), if any.
    ///
    /// `InvalidInput` as with [`inherited`](Self::inherited).
    pub fn resumed(socket: OwnedFd, file: Option<(u64, u64)>) -> io::Result<Self> {
        let mut listener = Self::inherited(socket)?;
        listener.file = file;
        Ok(listener)
    }

    /// Where programs connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the socket file, if it is ours and goes with this.
    pub fn file(&self) -> Option<(u64, u64)> {
        self.file
    }

    /// The socket of the next program that connects; `None` if there is none.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match retry(|| rustix::net::accept_with(&self.socket, flags)) {
            Ok(socket) => Ok(Some(socket)),
            // Gone before it was seen.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
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
        // Only tidiness: a socket that nobody listens at is replaced by the next daemon.
        if self.file.is_some_and(|own| file_identity(&self.path).is_ok_and(|file| file == own)) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::peer::Peer;
    use crate::control::{CmChannelHandle, CmReply, CmRequest, CompChannelHandle, ContextHandle};
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    /// A directory of one test's own, removed with all that is in it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("urxe-shm-{}-{test}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("below/urxed.sock")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// Both ends of a connection; neither waits.
    fn pair() -> (Channel, Channel) {
        let (a, b) = Channel::pair().unwrap();
        (Channel::new(a), Channel::new(b))
    }

    fn hello() -> Request {
        Request::Hello { program: "test".into() }
    }

    fn pipe_read_end() -> OwnedFd {
        rustix::pipe::pipe().unwrap().0
    }

    fn inode(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn a_request_is_answered_with_descriptors() {
        let directory = Directory::new("answered");
        let listener = Listener::bind(&directory.socket(), 0o600).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let program = std::thread::spawn({
            let path = directory.socket();
            move || {
                let mut channel = Channel::connect(&path).unwrap();
                let fd = pipe_read_end();
                (channel.call(&hello(), &[fd.as_fd()]).unwrap(), inode(fd))
            }
        });
        let mut poll = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).unwrap();
        let mut daemon = Channel::new(listener.accept().unwrap().unwrap());
        assert_eq!(Peer::of(&daemon).unwrap().uid, rustix::process::geteuid().as_raw());
        let (request, fds) = loop {
            match daemon.recv::<Request>() {
                Err(ChannelError::WouldBlock) => std::thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        assert_eq!(request, hello());
        let [fd] = fds.try_into().unwrap();
        let flags = rustix::io::fcntl_getfd(&fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let answers = [pipe_read_end(), pipe_read_end()];
        daemon.send(&Reply::Done, &[answers[0].as_fd(), answers[1].as_fd()]).unwrap();
        let ((reply, fds), sent) = program.join().unwrap();
        assert_eq!((reply, sent), (Reply::Done, inode(fd)));
        let received: Vec<u64> = fds.iter().map(inode).collect();
        assert_eq!(received, answers.map(inode));
        assert!(matches!(daemon.recv::<Request>(), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_reply_is_waited_for_as_long_as_the_caller_does() {
        let (daemon, program) = Channel::pair_with_program().unwrap();
        let (mut daemon, mut program) = (Channel::new(daemon), Channel::new(program));
        let never = program.call_while(&hello(), &[], |_| false);
        assert!(matches!(never, Err(ChannelError::WouldBlock)), "{never:?}");
        let asked = program
            .call_while(&Request::ListDevices, &[], |_| daemon.send(&Reply::Done, &[]).is_ok());
        assert_eq!(asked.unwrap().0, Reply::Done);
    }

    #[test]
    fn a_socket_that_was_inherited_is_listened_at_and_stays() {
        let directory = Directory::new("inherited");
        let manager = Listener::bind(&directory.socket(), 0o600).unwrap();
        let waiting = Channel::connect(&directory.socket()).unwrap();
        let daemon = Listener::inherited(manager.socket.try_clone().unwrap()).unwrap();
        assert_eq!(daemon.path(), directory.socket());
        assert!(daemon.accept().unwrap().is_some(), "it came before the daemon did");
        assert!(daemon.accept().unwrap().is_none());
        drop((waiting, daemon));
        assert!(directory.socket().exists());
        Channel::connect(&directory.socket()).unwrap();
    }

    #[test]
    fn only_a_socket_of_our_kind_that_listens_is_inherited() {
        let (a, b) = Channel::pair().unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        for other in [a, b, datagrams.into(), pipe_read_end()] {
            Listener::inherited(other).unwrap_err();
        }
    }

    #[test]
    fn nothing_to_receive_is_not_an_end() {
        let (mut a, b) = pair();
        assert!(matches!(a.recv::<Request>(), Err(ChannelError::WouldBlock)));
        drop(b);
        assert!(matches!(a.recv::<Request>(), Err(ChannelError::Closed)));
        assert!(matches!(a.send(&hello(), &[]), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_reader_that_does_not_read_would_block() {
        let (mut a, _b) = pair();
        let error = (0..100_000).find_map(|_| a.send(&hello(), &[]).err());
        assert!(matches!(error, Some(ChannelError::WouldBlock)));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_taken_for_a_shorter_one() {
        let (mut a, b) = pair();
        for (len, is_truncated) in [(MAX_MESSAGE, false), (MAX_MESSAGE + 1, true)] {
            rustix::io::write(&b, &vec![0; len]).unwrap();
            match a.recv::<Request>() {
                Err(ChannelError::Truncated) => assert!(is_truncated),
                Err(ChannelError::Decode(DecodeError::NotOurs { .. })) => assert!(!is_truncated),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends bytes with a descriptor so many times, also more than `Channel::send` lets through.
    fn send_with(channel: &Channel, bytes: &[u8], fd: impl AsFd, count: usize) {
        let fds = vec![fd.as_fd(); count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [IoSlice::new(bytes)];
        rustix::net::sendmsg(channel, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// SHARE-130: no bytes at all are the end, and may have descriptors all the same.
    #[test]
    fn descriptors_of_what_is_no_message_are_for_the_receiver_to_close() {
        let (mut a, b) = pair();
        let mut buf = [0; 100];
        let len = control::encode(&hello(), &mut buf).unwrap();
        let too_long = vec![0; MAX_MESSAGE + 1];
        for (bytes, count) in
            [(&buf[..len], MAX_RECEIVED_FDS), (b"nonsense", 1), (&too_long, 2), (b"", MAX_FDS)]
        {
            let fd = pipe_read_end();
            send_with(&b, bytes, &fd, count);
            a.recv::<Request>().unwrap_err();
            let refused: Vec<u64> = a.take_refused().iter().map(inode).collect();
            assert_eq!(refused, vec![inode(fd); count], "{} bytes", bytes.len());
        }
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (mut a, mut b) = pair();
        let mut buf = [0; 100];
        let len = control::encode(&hello(), &mut buf).unwrap();
        for count in [MAX_FDS + 1, MAX_FDS + 5, MAX_RECEIVED_FDS] {
            let (mut read_end, write_end) = io::pipe().unwrap();
            send_with(&b, &buf[..len], write_end, count);
            let received = a.recv::<Request>();
            assert!(matches!(received, Err(ChannelError::TooManyFds { count: n }) if n == count));
            assert_eq!(a.take_refused().len(), count);
            assert_eq!(read_end.read(&mut [0]).unwrap(), 0, "none is open anywhere");
        }
        let fd = pipe_read_end();
        assert!(matches!(
            b.send(&hello(), &[fd.as_fd(); MAX_FDS + 1]),
            Err(ChannelError::TooManyFds { count }) if count == MAX_FDS + 1
        ));
        b.send(&hello(), &[fd.as_fd(); MAX_FDS]).unwrap();
        assert_eq!(a.recv::<Request>().unwrap().1.len(), MAX_FDS, "the channel goes on");
    }

    #[test]
    fn an_object_whose_descriptor_was_lost_is_destroyed() {
        let (context, comp_channel) = (ContextHandle(7), CompChannelHandle(8));
        let channel = CmChannelHandle(9);
        let made_and_destroyed = [
            (Reply::Context(context), Request::CloseDevice { context }),
            (
                Reply::CompChannel(comp_channel),
                Request::DestroyCompChannel { channel: comp_channel },
            ),
            (
                Reply::Cm(CmReply::Channel(channel)),
                Request::Cm(CmRequest::DestroyChannel { channel }),
            ),
        ];
        for (made, destroyed) in made_and_destroyed {
            let (daemon, program) = Channel::pair_with_program().unwrap();
            rustix::io::ioctl_fionbio(&daemon, false).unwrap();
            let (mut daemon, mut program) = (Channel::new(daemon), Channel::new(program));
            // The thread has the program's end, so that nobody waits for it for ever if it fails.
            let asking = std::thread::spawn(move || {
                let lost = program.with_descriptors(made, None);
                assert!(matches!(lost, Err(ChannelError::FdsLost)));
                let (reply, _) = program.call(&Request::ListDevices, &[]).unwrap();
                assert_eq!(reply, Reply::Devices(vec![]), "each request has its own reply");
            });
            let mut next_is = |expected, reply| {
                assert_eq!(daemon.recv::<Request>().unwrap().0, expected);
                daemon.send(&reply, &[]).unwrap();
            };
            next_is(destroyed, Reply::Done);
            next_is(Request::ListDevices, Reply::Devices(vec![]));
            asking.join().unwrap();
        }
    }

    #[test]
    fn a_daemon_that_is_gone_makes_room_and_one_that_lives_does_not() {
        let directory = Directory::new("room");
        let path = directory.socket();
        let first = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(Listener::bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(Channel::connect(&path).is_ok(), "the first still listens");

        // As if the first had been killed: its socket stays behind, without a listener.
        let Listener { socket, .. } = &first;
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
        let second = Listener::bind(&path, 0o600).unwrap();
        drop(first);
        assert!(Channel::connect(&path).is_ok(), "the first removes only its own");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_has_its_mode_and_its_directory_is_private() {
        let directory = Directory::new("mode");
        let path = directory.socket();
        let _listener = Listener::bind(&path, 0o640).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o640);
        let expected = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        assert_eq!(mode(path.parent().unwrap()) & expected, mode(path.parent().unwrap()));
        assert_eq!(std::fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_file_in_the_way_is_not_removed() {
        let directory = Directory::new("file");
        let path = directory.0.join("urxed.sock");
        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
