//! Segmentation offload of UDP sockets: many datagrams a system call.

use crate::sys::option;
use std::io;
use std::os::fd::AsFd;

/// Lets a socket receive datagrams of one length that came together as one message (`UDP_GRO`).
pub fn receive_coalesced(socket: impl AsFd) -> io::Result<()> {
    option::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Cuts all that a socket sends into datagrams of this many bytes (`UDP_SEGMENT`).
pub fn send_segmented(socket: impl AsFd, segment: u16) -> io::Result<()> {
    option::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, segment.into())
}
