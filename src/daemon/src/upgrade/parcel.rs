//! The descriptors of a state on their way through `execve`: in a socket of which one end is the
//! new program's standard input. So none is inherited by its number, and one that is left over is
//! closed with the socket.

use super::error::ImageError;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor of a state: its place among those that come along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fd(u32);

/// The descriptors of a state that is being written.
#[derive(Default)]
pub(crate) struct Descriptors<'a>(Vec<BorrowedFd<'a>>);

#[cfg(test)]
impl Fd {
    pub(super) fn for_tests(place: u32) -> Fd {
        Fd(place)
    }
}

impl<'a> Descriptors<'a> {
    /// One more.
    pub(crate) fn add(&mut self, fd: BorrowedFd<'a>) -> Fd {
        self.0.push(fd);
        Fd(self.0.len() as u32 - 1)
    }
}

/// The descriptors of a state that is being read. Those that nobody takes are closed with this.
pub(crate) struct ReceivedDescriptors(Vec<Option<OwnedFd>>);

impl ReceivedDescriptors {
    /// Takes one.
    pub(crate) fn take(&mut self, fd: Fd) -> Result<OwnedFd, ImageError> {
        let entry = self.0.get_mut(fd.0 as usize).and_then(Option::take);
        entry.ok_or(ImageError::Descriptor(fd.0))
    }
}

/// The kernel passes 253 with a message.
const FDS_OF_MESSAGE: usize = 128;

/// The most descriptors that a state has: more than a process can have open by default.
const MAX_FDS: u32 = 1 << 20;

/// Room for them.
const SPACE: usize = rustix::cmsg_space!(ScmRights(FDS_OF_MESSAGE));

/// A socket from which a state can be [received](receive): this file, and these descriptors.
pub(super) fn packed(image: &File, fds: &Descriptors<'_>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let (socket, end) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    let Descriptors(fds) = fds;
    send(&socket, &(fds.len() as u32).to_le_bytes(), &[image.as_fd()])?;
    for some in fds.chunks(FDS_OF_MESSAGE) {
        send(&socket, &(some.len() as u32).to_le_bytes(), some)?;
    }
    Ok(end)
}

/// Receives what was [packed].
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<(File, ReceivedDescriptors), ImageError> {
    let refused = |what: &'static str| ImageError::Parcel(io::Error::other(what));
    let receive = || receive_some(socket).map_err(ImageError::Parcel);
    let (count, image) = receive()?;
    let [image] = <[OwnedFd; 1]>::try_from(image)
        .map_err(|_| refused("the first message has not one descriptor, expected the state"))?;
    if count > MAX_FDS {
        return Err(refused("more descriptors than a daemon has"));
    }
    let mut fds = Vec::new();
    while fds.len() < count as usize {
        let (said, some) = receive()?;
        if some.is_empty() || some.len() != said as usize {
            return Err(refused("descriptors were lost: this process may have too few"));
        }
        fds.extend(some.into_iter().map(Some));
    }
    Ok((image.into(), ReceivedDescriptors(fds)))
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_some(socket: BorrowedFd<'_>) -> io::Result<(u32, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut into, &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let is_whole = got.bytes == bytes.len() && !got.flags.contains(ReturnFlags::CTRUNC);
    let count = is_whole.then_some(u32::from_le_bytes(bytes));
    Ok((count.ok_or_else(|| io::Error::other("a message is not whole"))?, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn many_descriptors_arrive_in_their_order() {
        let pipes: Vec<_> = (0..300).map(|_| rustix::pipe::pipe().unwrap()).collect();
        let mut fds = Descriptors::default();
        let names: Vec<Fd> = pipes.iter().map(|(read, _)| fds.add(read.as_fd())).collect();
        let mut image = tempfile::tempfile().unwrap();
        image.write_all(b"state").unwrap();
        let socket = packed(&image, &fds).unwrap();
        let (_, mut received) = receive(socket.as_fd()).unwrap();
        for (name, (_, write)) in names.iter().zip(&pipes) {
            rustix::io::write(write, &name.0.to_le_bytes()).unwrap();
            let mut bytes = [0; 4];
            rustix::io::read(received.take(*name).unwrap(), &mut bytes).unwrap();
            assert_eq!(u32::from_le_bytes(bytes), name.0);
            assert!(matches!(received.take(*name), Err(ImageError::Descriptor(_))));
        }
        assert!(matches!(received.take(Fd(300)), Err(ImageError::Descriptor(300))));
    }

    #[test]
    fn anything_else_than_a_parcel_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(receive(null.as_fd()), Err(ImageError::Parcel(_))));
        let image = tempfile::tempfile().unwrap();
        let socket = packed(&image, &Descriptors::default()).unwrap();
        receive_some(socket.as_fd()).unwrap();
        assert!(matches!(receive(socket.as_fd()), Err(ImageError::Parcel(_))), "it is empty");
    }
}
