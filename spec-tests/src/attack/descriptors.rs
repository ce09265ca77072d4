//! What a program sends along with its requests.

use super::fuse::Mount;
use super::{Attack, Result, Setting, forever, program};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{Backing, MAX_MESSAGE, Reply, Request};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("slow-close", slow_close, "sends sockets whose close waits for unsent data")
        .found("C3"),
    Attack::new(
        "fuse-descriptor",
        fuse_descriptor,
        "says hello with a file whose server does not answer",
    )
    .found("T3")
    .ends_own(),
    Attack::new("rights", rights, "sends 250 descriptors at a time"),
    Attack::new(
        "no-requests",
        no_requests,
        "sends sockets whose close waits for unsent data with what is no request",
    ),
    Attack::new(
        "unread-sockets",
        unread_sockets,
        "goes with requests unread that bring sockets whose close waits for unsent data",
    ),
    Attack::new(
        "own-socket",
        own_socket,
        "sends its end of the session through the session, and goes",
    ),
    Attack::new(
        "odd-descriptors",
        odd_descriptors,
        "registers pipes, sockets, directories, devices as memory",
    )
    .found("T12"),
];

fn lingering_socket(listener: &TcpListener) -> Result<(OwnedFd, TcpStream)> {
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (reader, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(5)))?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false)?;
    Ok((socket.into(), reader))
}

fn slow_close(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut program = program(setting)?;
    let mut readers = Vec::new();
    ready();
    forever(|| {
        let (socket, reader) = lingering_socket(&listener)?;
        readers.push(reader);
        let (pd, length) = (program.pd, 4096);
        let access = urxe_types::Access::LOCAL_WRITE;
        let backing = Backing::Shared { offset: 0 };
        let requests = [
            Request::ListDevices,
            Request::RegMr { pd, addr: 0, length, iova: 0, access, backing },
        ];
        let request = &requests[readers.len() % 2];
        let fds = [socket.as_fd()];
        program.channel.send(request, &fds)?;
        // From now on the daemon has the only one.
        drop(socket);
        if program.channel.recv::<Reply>().is_err() {
            program = self::program(setting)?;
        }
        Ok(())
    })
}

/// The first answer cannot be delivered, so the others are never received: they are closed with the
/// session.
fn unread_sockets(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut readers = VecDeque::new();
    ready();
    forever(|| {
        let prepared: Result<Vec<_>> = (0..4).map(|_| lingering_socket(&listener)).collect();
        let mut channel = Channel::connect(&setting.socket)?;
        for (socket, reader) in prepared? {
            // One that is refused is tried again.
            let _ = channel.send(&Request::ListDevices, &[socket.as_fd()]);
            readers.push_back(reader);
        }
        readers.drain(..readers.len().saturating_sub(256));
        Ok(())
    })
}

/// Sends bytes with descriptors, whether that is a request or not.
fn send_bytes(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); 2048];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // What is refused has done no harm.
    let _ = rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags);
}

fn rights(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let (pipe, _other) = rustix::pipe::pipe()?;
    let fds: Vec<BorrowedFd<'_>> = vec![pipe.as_fd(); 250];
    ready();
    forever(|| {
        let channel = Channel::connect(&setting.socket)?;
        for _ in 0..4 {
            send_bytes(&channel, b"ux", &fds);
        }
        Ok(())
    })
}

fn no_requests(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let too_long = vec![0; MAX_MESSAGE + 1];
    let messages: [(&[u8], usize); 4] = [(b"ux", 1), (&too_long, 1), (b"ux", 200), (b"", 1)];
    let mut readers = VecDeque::new();
    ready();
    forever(|| {
        for (bytes, count) in messages {
            let (socket, reader) = lingering_socket(&listener)?;
            send_bytes(Channel::connect(&setting.socket)?, bytes, &vec![socket.as_fd(); count]);
            readers.push_back(reader);
        }
        readers.drain(..readers.len().saturating_sub(256));
        Ok(())
    })
}

fn own_socket(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    ready();
    forever(|| {
        let mut channel = Channel::connect(&setting.socket)?;
        let socket = channel.as_fd().try_clone_to_owned()?;
        for _ in 0..8 {
            if channel.send(&Request::ListDevices, &[socket.as_fd()]).is_err() {
                break;
            }
        }
        Ok(())
    })
}

fn odd_descriptors(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let (read_end, write_end) = rustix::pipe::pipe()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC)?;
    let files = ["/dev/null", "/dev/zero", "/", "/proc/self/maps", "/proc/self/mem"];
    let mut fds = files.into_iter().map(open).collect::<std::result::Result<Vec<_>, _>>()?;
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    fds.extend([read_end, write_end, epoll, eventfd, unsealed, a.into(), b.into()]);
    let mut program = program(setting)?;
    ready();
    forever(|| {
        for fd in &fds {
            // All are refused.
            let registered = program.register(fd, 0, 4096, Backing::Shared { offset: 0 });
            if registered.is_ok() {
                return Err("it was taken for memory".into());
            }
            let hello = Request::Hello { program: "odd".into() };
            let _ = Channel::connect(&setting.socket)?.call(&hello, &[fd.as_fd()])?;
        }
        Ok(())
    })
}

fn fuse_descriptor(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mount = Mount::new(setting, "fuse-descriptor")?;
    let file = mount.open()?;
    mount.stop_answering();
    ready();
    forever(|| {
        let mut channel = Channel::connect(&setting.socket)?;
        let hello = Request::Hello { program: "fuse".into() };
        let _ = channel.send(&hello, &[file.as_fd()]);
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    })
}
