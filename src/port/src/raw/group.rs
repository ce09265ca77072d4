//! One address for several slots, each of which sees what is for its QPs.

use super::RawOptions;
use super::socket::{packet_socket, sender};
use crate::open;
use crate::watch::Link;
use crate::{AddressSockets, OpenError};
use socket2::Socket;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use urxe_types::Slot;
use urxe_wire::ROCE_PORT;

/// UDP port 4791 of one address, for all slots of a device.
///
/// Every packet socket sees all packets, so that each slot can have its own at any time, with a
/// filter for its QPNs. What they have in common is the UDP socket that holds the port.
#[derive(Debug)]
pub struct RawGroup {
    addr: IpAddr,
    interface: Link,
    options: RawOptions,
    hold: Socket,
}

impl RawGroup {
    /// Takes UDP port 4791 of one of this machine's addresses. If several interfaces have the
    /// address, the one of the name `near` is preferred.
    ///
    /// # Errors
    /// If the address is none of this machine, or cannot be had: another daemon or program has the
    /// port, for example.
    pub fn open(
        addr: IpAddr,
        near: Option<&str>,
        options: &RawOptions,
    ) -> Result<RawGroup, OpenError> {
        let interface = open::find_interface(addr, near)?;
        let hold = open::bind(addr, ROCE_PORT, &interface)?;
        open::receive_nothing(&hold)
            .map_err(OpenError::system(addr, "closing the bound socket"))?;
        Ok(RawGroup { addr, interface, options: options.clone(), hold })
    }

    /// Goes on with what another group had in another process, which is gone: the interface, and
    /// the socket that [holds](Self::hold) the port.
    pub fn adopt(addr: IpAddr, interface: Link, options: &RawOptions, hold: OwnedFd) -> RawGroup {
        RawGroup { addr, interface, options: options.clone(), hold: hold.into() }
    }

    /// The interface that it is on.
    pub fn interface(&self) -> &Link {
        &self.interface
    }

    /// The socket that holds the port.
    pub fn hold(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }

    /// The address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Opens sockets for a slot, with which it receives from now on. Their filter stays as it is,
    /// whoever has them.
    ///
    /// # Errors
    /// If this process may not open them, or has too many descriptors.
    pub fn give(&self, slot: Slot) -> Result<AddressSockets, OpenError> {
        let addr = self.addr;
        let packet = packet_socket(addr, &self.interface, slot, &self.options)?;
        let sender = sender(addr, &self.interface, &self.options)?;
        let hold = self.hold.try_clone().map_err(OpenError::system(addr, "taking its socket"))?;
        Ok(AddressSockets { addr, fds: [packet, sender, hold].map(Into::into).into() })
    }
}
