//! Management datagrams: what the connection managers of both sides say, from QP 1 to QP 1.

use super::Script;
use crate::Arrived;
use crate::agent::{AgentError, Command};
use crate::check::{Outcome, Stop};
use crate::device::Services;
use crate::packet::{Packet, packet};
use std::net::IpAddr;
use std::time::Duration;
use urxe_types::{Qkey, Qpn};
use urxe_wire::Opcode;
use urxe_wire::mad::{MAD_LEN, Mad};

/// A datagram from our QP 1 to the device's, with this content.
pub fn management(content: &[u8]) -> Packet {
    packet(Opcode::UD_SEND_ONLY)
        .to(Qpn::GSI.get())
        .deth(Qkey::GSI.0, Qpn::GSI.get())
        .payload(content)
        .at_absolute(0)
}

impl Script<'_> {
    /// The programs on the device that wait to be connected to.
    pub fn services(&mut self) -> Services {
        self.device.services()
    }

    /// Our address, and the device's.
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.link.local(), self.device.addr())
    }

    /// A number that the device does not remember, most likely.
    pub fn unique(&mut self) -> u32 {
        self.random() ^ self.link.unique()
    }

    /// Sends a message to the device's connection manager.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn send_mad(&mut self, mad: &Mad) -> Outcome {
        self.send_outside(&management(&mad.bytes()))
    }

    /// Sends a packet that belongs to no connection.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn send_outside(&mut self, packet: &Packet) -> Outcome {
        let (flow, bytes) = (self.usual_flow(), packet.to_bytes(Qpn::GSI.get(), 0));
        self.transmit(&[(flow, bytes, packet.icrc_damage)])
    }

    /// The next message of the device's connection manager that is wanted, if one comes within this
    /// time. Others are kept.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn next_mad(
        &mut self,
        within: Duration,
        wanted: impl Fn(&Mad) -> bool,
    ) -> Outcome<Option<(Arrived, Mad)>> {
        let until = self.now() + within;
        loop {
            if let Some(at) = self.mads.iter().position(|(_, mad)| wanted(mad)) {
                return Ok(self.mads.remove(at));
            }
            let left = until.saturating_duration_since(self.now());
            let Some(arrived) = self.next_stray(left)? else { return Ok(None) };
            // Other classes of management are none of a check's business.
            if let Some(mad) = mad_of(&arrived) {
                self.mads.push_back((arrived, mad));
            }
        }
    }

    /// Has a program on the device connect to a port of ours. Its name, if it is told what to do.
    ///
    /// # Errors
    /// If there is no program that does.
    pub fn be_called(&mut self, port: u16) -> Outcome<Option<String>> {
        if self.device.agent().is_none() {
            self.device.call_us(port)?;
            return Ok(None);
        }
        let name = format!("call{}", self.number());
        let to = self.link.local();
        let command = Command::CmConnect { name: name.clone(), to, port };
        match self.try_tell(&command)? {
            Ok(_) => Ok(Some(name)),
            Err(AgentError::Refused { reason, .. }) => Err(Stop::NeedsAgent(format!(
                "the program on the device does not connect by the connection manager: {reason}"
            ))),
            Err(gone) => Err(Stop::Inconclusive(gone.to_string())),
        }
    }

    /// Has the program on the device end such a connection.
    ///
    /// # Errors
    /// If it does not.
    pub fn close(&mut self, name: String) -> Outcome {
        self.tell_only(&Command::Close { names: vec![name] })
    }
}

fn mad_of(arrived: &Arrived) -> Option<Mad> {
    mad_in(&arrived.parsed()?)
}

/// The message of a connection manager in a packet to QP 1.
pub(super) fn mad_in(packet: &urxe_wire::Packet<'_>) -> Option<Mad> {
    let is_datagram = packet.headers.body.opcode() == Opcode::UD_SEND_ONLY;
    let content: &[u8; MAD_LEN] = packet.payload.try_into().ok()?;
    (is_datagram && packet.headers.bth.dest_qp == Qpn::GSI).then_some(())?;
    Mad::parse(content).ok()
}
