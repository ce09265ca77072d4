//! How the port of a device is made, in each of its slots.

use crate::config::PortBackend;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::time::{Instant, SystemTime};
use urxe_port::capture::Capture;
use urxe_port::fault::{Fault, FaultSpec};
use urxe_port::raw::{RawOptions, RawPort};
use urxe_port::udp::{UdpOptions, UdpPort};
use urxe_port::{OpenError, Port};
use urxe_types::SlotId;

/// How the port of a device is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PortPlan {
    pub(crate) backend: PortBackend,
    /// The interface on which it begins. Where its first address is, it goes.
    pub(crate) interface: String,
    /// UDP source ports of an address.
    pub(crate) source_ports: u8,
    /// What is broken on purpose.
    pub(crate) fault: Option<FaultSpec>,
}

impl PortPlan {
    /// With what UDP sockets are opened.
    pub(crate) fn udp_options(&self, slot: SlotId) -> UdpOptions {
        UdpOptions { source_ports: self.source_ports, slot, ..UdpOptions::default() }
    }

    /// Makes the port, without any address yet.
    pub(crate) fn open(
        &self,
        slot: SlotId,
        capture: Option<File>,
    ) -> Result<Box<dyn Port>, OpenError> {
        let mut port: Box<dyn Port> = match self.backend {
            PortBackend::Udp => {
                Box::new(UdpPort::open_interface(&self.interface, &self.udp_options(slot))?)
            }
            PortBackend::Raw => {
                Box::new(RawPort::open_interface(&self.interface, &RawOptions::default())?)
            }
        };
        if let Some(file) = capture {
            port = Box::new(Capture::new(port, file, Instant::now(), SystemTime::now()));
        }
        if let Some(spec) = &self.fault {
            port = Box::new(Fault::new(port, spec.clone()));
        }
        Ok(port)
    }
}
