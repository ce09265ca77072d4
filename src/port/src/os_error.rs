//! What the errors of a socket mean for a port.

use crate::PortCounters;
use std::io;

impl PortCounters {
    /// Counts datagrams that could not be sent, by the cause.
    pub(crate) fn count_send_error(&mut self, error: &io::Error, datagrams: usize) {
        let counter = match error.raw_os_error().unwrap_or(0) {
            libc::EMSGSIZE => &mut self.tx_too_large,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN => {
                &mut self.tx_unreachable
            }
            libc::ECONNREFUSED => &mut self.tx_refused,
            libc::EPERM | libc::EACCES => &mut self.tx_forbidden,
            libc::ENOBUFS | libc::ENOMEM => &mut self.tx_no_buffer,
            _ => &mut self.tx_failed,
        };
        *counter += datagrams as u64;
    }
}

/// Whether a receive error says nothing about the socket itself: a call that was interrupted, or
/// something that had happened to a packet or an interface earlier and is reported just once.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EINTR
                | libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::EMSGSIZE
        )
    )
}
