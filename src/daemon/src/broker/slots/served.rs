//! Whom the slots serve and whom not, and which have begun to.

use super::{DevicePlan, Slots};
use rustix::net::{Shutdown, shutdown};
use std::os::fd::OwnedFd;
use urxe_engine::Tuning;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{ControlError, Reply};

impl Slots {
    /// What slots begin with of a device.
    pub(crate) fn device_plan(&self, device: usize) -> &DevicePlan {
        &self.plans[device]
    }

    /// How their engines behave on the wire.
    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// Whether one slot serves the programs of all users.
    pub(crate) fn serve_all(&self) -> bool {
        self.plan.serve_all()
    }

    /// Whether a slot may have programs of a user who is not the daemon's own.
    pub(crate) fn may_serve(&self, slot: usize, uid: u32) -> bool {
        self.plan.serve_all() || self.entries.get(slot).is_some_and(|it| it.user == Some(uid))
    }

    /// A slot that has begun since the last time.
    pub(crate) fn take_one_that_began(&mut self) -> Option<usize> {
        self.began.pop()
    }

    /// How many sessions a slot serves, and whose it is, if not the daemon's own user's.
    pub(crate) fn served_by(&self, slot: usize) -> (usize, Option<u32>) {
        self.entries.get(slot).map_or((0, None), |entry| (entry.sessions, entry.user))
    }

    /// Turns a program away, and tells it why, if that is known.
    pub(crate) fn refuse(&self, socket: OwnedFd, why: Option<&ControlError>) {
        // SLOT-110: nothing was sent before, so that there is room, and neither call waits.
        if let (Some(why), Ok(other)) = (why, socket.try_clone()) {
            let _ = Channel::new(other).send(&Reply::Error(why.clone()), &[]);
        }
        let _ = shutdown(&socket, Shutdown::Both);
        self.close(socket);
    }

    /// Whether what a program may send along can be closed soon.
    pub(crate) fn has_room_to_close(&self) -> bool {
        self.closer.has_room()
    }

    /// Closes what a program may have had its hands on.
    pub(crate) fn close(&self, descriptor: OwnedFd) {
        self.closer.close(descriptor);
    }
}
