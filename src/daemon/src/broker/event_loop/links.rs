//! How all devices follow the machine's links and addresses.

use super::EventLoop;
use super::logged::log_changes;
use crate::broker::device::RdmaDevice;
use crate::limits::REFUSED_PAUSE;
use std::time::Instant;
use urxe_nic::guard_addresses;

impl EventLoop {
    /// Makes all devices what the machine's links and addresses say that they should be.
    pub(super) fn sync_devices_with_links(&mut self, now: Instant) {
        for (index, device) in self.ctx.devices.iter_mut().enumerate() {
            let before = device.state();
            let (changes, events) = device.sync_with_links(now, self.watch.links());
            // First the files: a program that is told of a change may look there at once.
            let shown = self.sysfs.as_mut().map_or(Ok(()), |sysfs| sysfs.show(index, device));
            self.ctx.counters.sysfs_errors += u64::from(shown.is_err());
            log_changes(device, &changes, &events);
            if !events.is_empty() || !changes.is_empty() || device.state() != before {
                self.slots.tell_of_device(now, index, device, &changes, &events);
            }
        }
        guard_addresses(self.ctx.devices.iter_mut().map(|device| &mut device.nic));
        // ADDR-021
        let lacks_any = self.ctx.devices.iter().any(RdmaDevice::lacks_addresses);
        self.refused_again = lacks_any.then(|| now + REFUSED_PAUSE);
    }

    /// Tries again what could not be served, if it is time to.
    pub(super) fn look_again_at_refused(&mut self, now: Instant) {
        if self.refused_again.is_some_and(|at| at <= now) {
            self.sync_devices_with_links(now);
        }
    }
}
