//! How full the receive queue of a socket is.
//!
//! The queue in front of a software NIC is its own socket buffer, and nothing marks packets there.
//! What this says lets the receiver ask for less before the kernel drops.

use crate::sys::option;
use std::os::fd::BorrowedFd;

/// The share of a socket's buffer that one call has to take out for the queue to be looked at
/// before the next: below this it is far from full, and the look costs a system call.
const LOOK_FROM: f32 = 1.0 / 32.0;

/// The fill of the sockets of a port, each as it is received from.
#[derive(Default)]
pub(crate) struct ReceiveGauge {
    /// Much has come at once, so that it is worth a system call to know how much waits.
    looks: bool,
    /// What was found before the call that receives.
    waiting: Option<f32>,
    /// What the last call that brought anything found.
    fill: Option<f32>,
}

impl ReceiveGauge {
    /// To be called before the call that receives from this socket.
    pub(crate) fn before(&mut self, socket: BorrowedFd<'_>) {
        self.waiting = if self.looks { option::receive_fill(socket) } else { None };
    }

    /// To be called after it: it has brought so many bytes, out of a queue that may hold
    /// `capacity`, and was full, so that it may have left some.
    pub(crate) fn after(&mut self, bytes: usize, capacity: usize, was_full: bool) {
        if bytes == 0 {
            return;
        }
        // The kernel counts the memory of a packet, not its bytes, so there was at least this.
        let taken = bytes as f32 / capacity.max(1) as f32;
        self.looks = was_full || taken >= LOOK_FROM;
        self.fill = Some(self.waiting.take().unwrap_or(0.0).max(taken).min(1.0));
    }

    /// Another queue was received from, which was so full.
    pub(crate) fn note(&mut self, fill: f32) {
        self.fill = Some(fill);
    }

    /// The fill that was found since the last time, if anything was received.
    pub(crate) fn take(&mut self) -> Option<f32> {
        self.fill.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_queue_is_looked_at_only_after_much_has_come_at_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; 1000], socket.local_addr().unwrap()).unwrap();
        let mut gauge = ReceiveGauge::default();
        let mut call = |bytes, was_full| {
            gauge.before(socket.as_fd());
            let looked = gauge.waiting.is_some();
            gauge.after(bytes, 3200, was_full);
            looked
        };
        assert!(!call(99, false) && !call(99, false), "little came");
        assert!(!call(99, true) && call(100, false), "the call was full");
        assert!(call(0, false), "the call brought much, and the next nothing");
        assert!(call(99, false) && !call(99, false), "little came");
    }

    #[test]
    fn the_fill_is_told_once_and_never_less_than_what_was_taken() {
        let mut gauge = ReceiveGauge::default();
        assert_eq!(gauge.take(), None);
        gauge.after(1600, 3200, false);
        assert_eq!((gauge.take(), gauge.take()), (Some(0.5), None));
        gauge.after(10_000, 3200, false);
        assert_eq!(gauge.take(), Some(1.0));
        gauge.after(0, 3200, false);
        assert_eq!(gauge.take(), None, "nothing came");
    }
}
