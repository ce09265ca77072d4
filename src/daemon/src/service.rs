//! What a service manager (systemd, or one that does the same) gives to a daemon, and is told.

use crate::log::DAEMON;
use listenfd::ListenFd;
use rustix::net::{AddressFamily, SocketType};
use sd_notify::NotifyState;
use std::io;
use std::os::fd::OwnedFd;
use urxe_shm::control::channel::Listener;

/// Takes the socket at which the manager listens for us (`LISTEN_FDS`), if it does.
///
/// # Errors
/// If it passes several, or one of another kind.
pub(crate) fn take_listener() -> io::Result<Option<Listener>> {
    let mut passed = ListenFd::from_env();
    match passed.len() {
        0 => return Ok(None),
        1 => {}
        count => return Err(io::Error::other(format!("{count} were passed, expected one"))),
    }
    let (family, kind) = (AddressFamily::UNIX.as_raw(), SocketType::SEQPACKET.as_raw());
    let kind = kind.cast_signed();
    let socket: Option<OwnedFd> =
        passed.take_custom(0, family.into(), kind, "Unix socket of type SOCK_SEQPACKET")?;
    socket.map(Listener::inherited).transpose()
}

/// Tells the manager, if there is one, that programs can connect, and how the daemon is.
pub(crate) fn tell_ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells it that the configuration is read again, until the daemon is ready.
pub(crate) fn tell_reloading() {
    match NotifyState::monotonic_usec_now() {
        // SLOT-127: without the time systemd ends the daemon.
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => could_not_tell(&error),
    }
}

/// Tells it that the daemon ends.
pub(crate) fn tell_stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        could_not_tell(&error);
    }
}

fn could_not_tell(error: &io::Error) {
    tracing::warn!(target: DAEMON, "the service manager was not told ($NOTIFY_SOCKET): {error}");
}
