//! What opens the sockets of a device's addresses, for all of its slots at once.

use crate::slot_plan::SlotPlan;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use urxe_port::raw::{self, RawGroup, RawOptions};
use urxe_port::udp::UdpGroup;
use urxe_port::watch::Link;
use urxe_port::{AddressSockets, OpenError};
use urxe_slot::port_plan::{PortKind, PortPlan};
use urxe_types::{Slot, SlotCount};

/// What opens addresses.
pub(crate) trait SocketSource: Send {
    /// For how many slots, the broker's included.
    fn slots(&self) -> SlotCount;

    /// Opens an address. Of several interfaces that have it, the one of the name `near` is
    /// preferred.
    fn open(&self, addr: IpAddr, near: Option<&str>) -> Result<Box<dyn SocketGroup>, OpenError>;

    /// Goes on with an address that another process had open, which is gone.
    fn adopt(
        &self,
        addr: IpAddr,
        interface: Link,
        held: Vec<OwnedFd>,
    ) -> Result<Box<dyn SocketGroup>, OpenError>;

    /// Opens what receives for a multicast group on an interface, for a slot that has not the right
    /// to do so itself.
    fn join(&self, group: IpAddr, interface: &str) -> io::Result<AddressSockets>;
}

/// An address that is open: what its slots get their sockets from.
pub(crate) trait SocketGroup: Send {
    /// Gives a slot its sockets, with which it receives from now on.
    fn give(&mut self, slot: Slot) -> Result<AddressSockets, OpenError>;

    /// Says that a slot is gone.
    fn take_back(&mut self, slot: Slot);

    /// What came for slots that nobody runs, and was dropped.
    fn dropped(&self) -> u64;

    /// The interface that it is on, and the descriptors with which another process
    /// [goes on](SocketSource::adopt).
    fn held(&self) -> (&Link, Vec<BorrowedFd<'_>>);
}

/// The sockets of a plan.
pub(crate) struct PlannedSockets {
    pub(crate) plan: PortPlan,
    pub(crate) slots: SlotPlan,
}

impl SocketSource for PlannedSockets {
    fn slots(&self) -> SlotCount {
        self.slots.count
    }

    fn open(&self, addr: IpAddr, near: Option<&str>) -> Result<Box<dyn SocketGroup>, OpenError> {
        Ok(match self.plan.kind {
            PortKind::Udp => {
                let options = self.plan.udp_options(Slot::ALONE.id());
                Box::new(UdpGroup::open(addr, near, &options, self.slots.sockets())?)
            }
            PortKind::Raw => Box::new(RawGroup::open(addr, near, &RawOptions::default())?),
        })
    }

    fn adopt(
        &self,
        addr: IpAddr,
        interface: Link,
        mut held: Vec<OwnedFd>,
    ) -> Result<Box<dyn SocketGroup>, OpenError> {
        Ok(match self.plan.kind {
            PortKind::Udp => {
                let options = self.plan.udp_options(Slot::ALONE.id());
                Box::new(UdpGroup::adopt(addr, interface, &options, held)?)
            }
            PortKind::Raw => {
                let step = "going on with its socket";
                let missing =
                    || OpenError::System { addr, step, source: io::ErrorKind::InvalidInput.into() };
                let hold = held.pop().ok_or_else(missing)?;
                Box::new(RawGroup::adopt(addr, interface, &RawOptions::default(), hold))
            }
        })
    }

    fn join(&self, group: IpAddr, interface: &str) -> io::Result<AddressSockets> {
        match self.plan.kind {
            PortKind::Raw => raw::join(group, interface, &RawOptions::default()),
            // It takes no right.
            PortKind::Udp => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

impl SocketGroup for UdpGroup {
    fn give(&mut self, slot: Slot) -> Result<AddressSockets, OpenError> {
        self.give(slot.id())
    }

    fn take_back(&mut self, slot: Slot) {
        // If the kernel refuses, what came for the slot is stale, and dropped as such later.
        let _ = self.take_back(slot.id());
    }

    fn dropped(&self) -> u64 {
        self.dropped()
    }

    fn held(&self) -> (&Link, Vec<BorrowedFd<'_>>) {
        (self.interface(), self.sockets().collect())
    }
}

impl SocketGroup for RawGroup {
    fn give(&mut self, slot: Slot) -> Result<AddressSockets, OpenError> {
        RawGroup::give(self, slot)
    }

    fn take_back(&mut self, _: Slot) {}

    fn dropped(&self) -> u64 {
        // Nobody sees what no slot's filter takes.
        0
    }

    fn held(&self) -> (&Link, Vec<BorrowedFd<'_>>) {
        (self.interface(), vec![self.hold()])
    }
}
