//! One device of a slot: a data path, and what the broker has said of its addresses and its link.

use crate::known_qp::EndedQps;
use crate::link::{DeviceBeginning, DeviceState, LinkState, ToBroker};
use crate::session::Session;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use urxe_engine::{FlowError, Tuning};
use urxe_nic::{Config, Nic, PortEvent};
use urxe_port::Port;
use urxe_types::{Gid, PathMtu, Qpn, Slot};

/// As many GIDs are named in a sentence.
const GIDS_TOLD: usize = 8;

/// A device as the programs of a slot have it.
pub(crate) struct SlotDevice {
    pub(crate) name: String,
    pub(crate) guid: [u8; 8],
    /// What it is on, and whether that works.
    pub(crate) link: LinkState,
    /// The largest path MTU of its link.
    pub(crate) mtu: PathMtu,
    /// The GID table as it is shown: with the addresses that cannot be used yet.
    pub(crate) gid_table: Vec<Option<IpAddr>>,
    /// The data path.
    pub(crate) nic: Nic,
    /// The QPs that ended last.
    pub(crate) ended_qps: EndedQps,
    /// How many failures of QPs the log has been told of.
    failures_told: u64,
}

impl SlotDevice {
    /// Puts a device on a port.
    pub(crate) fn new(
        beginning: DeviceBeginning,
        port: Box<dyn Port>,
        slot: Slot,
        tuning: Tuning,
        now: Instant,
    ) -> SlotDevice {
        let DeviceBeginning { name, guid, seed, state, .. } = beginning;
        let config = Config { gids: state.gids, active_mtu: state.mtu, seed, slot, tuning };
        let mut nic = Nic::new(port, config, now);
        nic.set_local_addrs(state.local_addrs.into_iter().collect());
        let (link, mtu, gid_table) = (state.link, state.mtu, state.shown_gids);
        let ended_qps = EndedQps::default();
        SlotDevice { name, guid, link, mtu, gid_table, nic, ended_qps, failures_told: 0 }
    }

    /// The QPs that have failed since the last time, as far as the engine remembers them.
    pub(crate) fn take_failed_qps(&mut self) -> impl Iterator<Item = Qpn> + use<> {
        let failures = self.nic.device().qp_failures();
        let new = failures - std::mem::replace(&mut self.failures_told, failures);
        let known: Vec<Qpn> = match new {
            0 => Vec::new(),
            _ => self.nic.device().failed_qps().collect(),
        };
        let old = known.len().saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
        known.into_iter().skip(old)
    }

    /// The first address of the GID table; the unspecified one while it is empty.
    pub(crate) fn address(&self) -> IpAddr {
        let first = self.nic.device().gids().iter().flatten().next();
        first.copied().unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// What stands beside the reason why a path leads nowhere: the GID table, if it matters.
    pub(crate) fn gid_table_beside(&self, error: FlowError) -> String {
        if matches!(error, FlowError::NotAHost(_) | FlowError::NoDestination(_)) {
            return String::new();
        }
        let gids = self.nic.device().gids().iter().enumerate();
        let known = gids.filter_map(|(index, gid)| Some((index, Gid::from((*gid)?))));
        let known: Vec<String> = known
            .map(|(index, gid)| format!("{index} = {}", Ipv6Addr::from(gid.0)))
            .take(GIDS_TOLD)
            .collect();
        // WHY-005
        match known.is_empty() {
            true => "; the table is empty: no address of the device is up".into(),
            false => format!("; it has {}: expected one of these", known.join(", ")),
        }
    }

    /// Tells the broker of QPs to which data came, while their programs may not know that their
    /// peers are ready.
    pub(crate) fn tell_broker(
        &mut self,
        now: Instant,
        device: usize,
        to_broker: &mut Vec<ToBroker>,
    ) {
        // Connections are the broker's, and so is QP1. What comes here for them is a stranger's.
        for (from, _) in self.nic.take_mads() {
            self.nic.judge_mad(now, &from, false);
        }
        while let Some(qpn) = self.nic.take_comm_est_qp() {
            to_broker.push(ToBroker::Established { device, qpn });
        }
    }

    /// Makes the device what the broker says that it is, and tells its programs of its port.
    pub(crate) fn follow(
        &mut self,
        now: Instant,
        state: DeviceState,
        events: Vec<PortEvent>,
    ) -> io::Result<()> {
        for (at, gid) in (0u8..).zip(&state.gids) {
            if self.nic.device().gids().get(usize::from(at)).is_some_and(|known| known != gid) {
                self.nic.set_gid(at, *gid);
            }
        }
        self.nic.set_local_addrs(state.local_addrs.into_iter().collect());
        self.nic.set_active_mtu(state.mtu);
        (self.link, self.mtu, self.gid_table) = (state.link, state.mtu, state.shown_gids);
        if events.contains(&PortEvent::GidChange) && self.nic.is_blocked() {
            // It may have waited for an address that is gone.
            self.nic.send(now)?;
        }
        for event in events {
            self.nic.port_event(event);
        }
        Ok(())
    }
}

/// Sends what a session has posted so far. What it asks for is done after that: the QP that it
/// destroys has sent, the CQ that it resizes holds the completions. Returns whether it was all; the
/// rest has its turn next.
pub(crate) fn post(
    session: &mut Session,
    devices: &mut [SlotDevice],
    now: Instant,
) -> io::Result<bool> {
    let ring = |device: usize, qpn| devices[device].nic.ring_doorbell(qpn);
    let all_are_taken = session.take_doorbells_before_request(ring);
    for device in devices {
        device.nic.transmit(now)?;
    }
    Ok(all_are_taken)
}
