//! How the port of a device is made, in each of its slots.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use urxe_port::capture::Capture;
use urxe_port::fault::{Fault, FaultSpec};
use urxe_port::raw::{RawOptions, RawPort};
use urxe_port::udp::{InboxOfDevice, UdpOptions, UdpPort};
use urxe_port::{OpenError, Port, ShareSockets};
use urxe_types::SlotId;

/// What the port of a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortKind {
    /// Plain UDP sockets.
    Udp,
    /// Raw sockets.
    Raw,
}

/// How the port of a device is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortPlan {
    pub kind: PortKind,
    /// The interface on which it begins, which need not be there. Where its first address is, it
    /// goes.
    pub interface: String,
    /// UDP source ports of an address.
    pub source_ports: u8,
    /// Whether UDP packets among the devices of a process go through memory, where that can be.
    pub loopback: bool,
    /// What is broken on purpose.
    pub fault: Option<FaultSpec>,
}

/// What a port has of the process that it is in.
#[derive(Clone, Debug, Default)]
pub struct WithinProcess {
    /// The way to share its sockets with pollers.
    pub share: Option<Arc<dyn ShareSockets>>,
    /// How it and other ports of this process reach each other.
    pub inbox: Option<InboxOfDevice>,
}

impl PortPlan {
    /// With what UDP sockets are opened.
    pub fn udp_options(&self, slot: SlotId) -> UdpOptions {
        let PortPlan { source_ports, loopback, .. } = *self;
        UdpOptions { source_ports, slot, loopback, ..UdpOptions::default() }
    }

    /// Makes the port, without any address yet, with what it has of the process that it is in.
    pub fn open(
        &self,
        slot: SlotId,
        capture: Option<File>,
        within: WithinProcess,
    ) -> Result<Box<dyn Port>, OpenError> {
        Ok(self.wrapped(self.open_bare(slot, within)?, capture))
    }

    /// The same with nothing broken, and without a capture: those can follow.
    pub fn open_bare(
        &self,
        slot: SlotId,
        within: WithinProcess,
    ) -> Result<Box<dyn Port>, OpenError> {
        Ok(match self.kind {
            PortKind::Udp => {
                let WithinProcess { share, inbox } = within;
                let options = UdpOptions { share, inbox, ..self.udp_options(slot) };
                Box::new(UdpPort::open_interface(&self.interface, &options)?)
            }
            PortKind::Raw => {
                Box::new(RawPort::open_interface(&self.interface, &RawOptions::default())?)
            }
        })
    }

    /// A port that was opened so, with its capture and what is broken on purpose.
    pub fn wrapped(&self, mut port: Box<dyn Port>, capture: Option<File>) -> Box<dyn Port> {
        if let Some(file) = capture {
            port = Box::new(Capture::new(port, file, Instant::now(), SystemTime::now()));
        }
        if let Some(spec) = &self.fault {
            port = Box::new(Fault::new(port, spec.clone()));
        }
        port
    }
}
