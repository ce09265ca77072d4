//! What is logged of programs and of devices.

use super::EventLoop;
use crate::broker::device::{AddressChange, RdmaDevice};
use crate::broker::sessions::Session;
use crate::log::{DEVICE, QP, REQUEST, SESSION};
use rustix::io::Errno;
use std::io;
use urxe_nic::PortEvent;
use urxe_shm::control::{ControlError, errnos};
use urxe_slot::link::Logged;

impl EventLoop {
    /// Logs what a slot says of a program.
    pub(super) fn log(&mut self, slot: usize, session: u64, what: Logged, unlogged: u64) {
        // LOG-003
        let Some(session) = self.session_of(slot, session) else { return };
        let (pid, program) = (session.pid, session.program.clone());
        let (uid, name) = (program.uid, &*program.name);
        let of_device = |number: usize| self.ctx.devices.get(number).map(|it| it.name.as_str());
        match what {
            Logged::Opened { device } => {
                let Some(device) = of_device(device) else { return };
                tracing::info!(
                    target: SESSION,
                    uid,
                    pid,
                    program = name,
                    device,
                    unlogged,
                    "{name} of user {uid} has opened {device}"
                );
            }
            Logged::Refused(ControlError { errno, message }) => {
                let errno = name_of(errno);
                tracing::info!(
                    target: REQUEST,
                    uid,
                    pid,
                    program = name,
                    errno,
                    unlogged,
                    "{name} of user {uid} is refused, {errno}: {message}"
                );
            }
            Logged::QpFailed { device, qpn, state, cause, sentence } => {
                let Some(device) = of_device(device) else { return };
                let (number, state) = (qpn.get(), format!("{state:?}").to_uppercase());
                tracing::info!(
                    target: QP,
                    uid,
                    pid,
                    program = name,
                    device,
                    qpn = number,
                    cause,
                    unlogged,
                    "QP {qpn} on {device} of {name} of user {uid} is in {state}: {sentence}"
                );
            }
        }
    }
}

/// The name of an errno, of which a slot may have said any number.
fn name_of(errno: i32) -> String {
    match errno {
        1..=MAX_ERRNO => errnos::name(Errno::from_raw_os_error(errno)),
        _ => format!("errno {errno}"),
    }
}

/// The largest errno that the kernel has.
const MAX_ERRNO: i32 = 4095;

/// Logs that a program has said who it is.
pub(super) fn log_begin(session: &Session) {
    let (uid, name, slot) = (session.program.uid, &*session.program.name, session.slot);
    tracing::info!(
        target: SESSION,
        uid,
        pid = session.pid,
        program = name,
        session = session.number,
        slot,
        "{name} of user {uid} has connected, and is served by slot {slot}"
    );
}

/// Logs that a program is gone, or that nothing was heard of it but its connection.
pub(super) fn log_end(session: &Session) {
    let (uid, pid, name) = (session.program.uid, session.pid, &*session.program.name);
    if session.is_named {
        tracing::info!(
            target: SESSION,
            uid,
            pid,
            program = name,
            session = session.number,
            "{name} of user {uid} is gone"
        );
    } else {
        tracing::debug!(
            target: SESSION,
            uid,
            pid,
            session = session.number,
            "process {pid} of user {uid} is gone, and has not said who it is"
        );
    }
}

/// Logs that the port of QP1 of a device is of no use any more.
pub(super) fn log_failed_port(device: &RdmaDevice, error: &io::Error) {
    let name = device.name.as_str();
    tracing::error!(
        target: DEVICE,
        device = name,
        "no connection can be made over {name} any more, because its port of QP1 failed: {error}; \
         connections that there are go on"
    );
}

/// Logs what has changed of a device.
pub(super) fn log_changes(device: &RdmaDevice, changes: &[AddressChange], events: &[PortEvent]) {
    let name = device.name.as_str();
    for change in changes {
        match change {
            AddressChange::Added(addr) => {
                tracing::info!(target: DEVICE, device = name, %addr, "{name} has address {addr}");
            }
            AddressChange::Removed(addr) => {
                tracing::info!(
                    target: DEVICE,
                    device = name,
                    %addr,
                    "{name} has address {addr} no longer"
                );
            }
        }
    }
    let link = device.link.interface.as_deref().unwrap_or("none");
    for event in events {
        let state = match event {
            PortEvent::Active => "up",
            PortEvent::Error => "down",
            _ => continue,
        };
        tracing::info!(
            target: DEVICE,
            device = name,
            link,
            state,
            "the port of {name} on link {link} is {state}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_slot_says_for_an_errno_has_a_name() {
        assert_eq!(name_of(22), "EINVAL");
        for errno in [i32::MIN, -22, -1, 0, 4095, 4096, 65_535, 65_536 + 22, i32::MAX] {
            assert_eq!(name_of(errno), format!("errno {errno}"));
        }
    }
}
