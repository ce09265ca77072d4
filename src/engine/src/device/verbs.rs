//! The verbs: objects are made, changed, asked about and destroyed.

use super::schedule::Scheduled;
use super::{
    AhError, CreateSrqError, DestroySrqError, Device, McastError, ModifySrqError, SrqInfo,
};
use crate::attr::{QpInfo, QpInit, RecvSource, SrqInit};
use crate::flow::flow_to_host;
use crate::host::Host;
use crate::ids::{CqId, PdId, RegionId, SrqId};
use crate::limits::MAX_QP;
use crate::memory::{AllocMwError, DeregMrError, MrKeys, MrSpec, MwInfo, RegMrError};
use crate::qp::{Event, ModifyQpError, Qp};
use std::net::IpAddr;
use std::time::Instant;
use urxe_types::{AddressVector, AhId, Lkey, MwType, QpAttr, QpType, Qpn, Rkey};
use urxe_wire::datagram_source_port;
use urxe_wire::mad::MAD_LEN;

/// Why a QP was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateQpError {
    /// The device has no room for another.
    #[error("the device has {MAX_QP} QPs, or as many as it has numbers for, and can have no more")]
    TooMany,
    /// The SRQ that it shall receive from does not exist.
    #[error("srq {}: does not exist", .0.0)]
    NoSuchSrq(SrqId),
}

/// Memory.
impl Device {
    /// Registers memory. Returns its keys.
    ///
    /// # Errors
    /// If the range or the rights are impossible, or the device is full.
    pub fn reg_mr(&mut self, spec: MrSpec) -> Result<MrKeys, RegMrError> {
        self.tables.keys.reg_mr(spec, &mut self.rng)
    }

    /// Deregisters memory: from now on its key opens nothing. Returns the memory that was behind
    /// it.
    ///
    /// # Errors
    /// If it is no MR's key, or windows are bound to the MR: they have to go first.
    pub fn dereg_mr(&mut self, key: Lkey) -> Result<RegionId, DeregMrError> {
        self.tables.keys.dereg_mr(key)
    }

    /// Allocates a memory window, which opens nothing until a work request binds it. Returns its
    /// first rkey.
    ///
    /// # Errors
    /// If the device is full.
    pub fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> Result<Rkey, AllocMwError> {
        self.tables.keys.alloc_mw(pd, mw_type, &mut self.rng)
    }

    /// Frees a window, bound or not; any rkey that it ever had names it. Returns whether it was
    /// there.
    pub fn dealloc_mw(&mut self, rkey: Rkey) -> bool {
        self.tables.keys.dealloc_mw(rkey)
    }

    /// What a window is, and what it opens; any rkey that it ever had names it.
    pub fn query_mw(&self, rkey: Rkey) -> Option<MwInfo> {
        self.tables.keys.query_mw(rkey)
    }
}

/// QPs and CQs.
impl Device {
    /// Creates a QP in RESET.
    ///
    /// # Errors
    /// If the device is full, or there is no such SRQ.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, CreateQpError> {
        if self.qps.len() >= MAX_QP.min(self.qpns.len()) {
            return Err(CreateQpError::TooMany);
        }
        let recv_pd = match init.recv {
            RecvSource::Own(_) => init.pd,
            RecvSource::Shared(srq) => {
                self.tables.srqs.attach(srq).ok_or(CreateQpError::NoSuchSrq(srq))?
            }
        };
        // HOST-017, HOST-200: the peer of a destroyed QP may still be sending, and a stranger who
        // sends has to guess.
        let qpn = self.qpns.next_free(|qpn| self.qps.contains_key(&qpn.get()));
        self.tables.cqs.attach(qpn, &init);
        let share = self.schedule.shares.join(init.share);
        let qp = Qp::new(qpn, init, recv_pd);
        self.qps.insert(qpn.get(), Box::new(Scheduled::new(qp, share)));
        Ok(qpn)
    }

    /// Changes a QP's attributes and state. Going to RESET forgets all that was posted (the host
    /// rewinds its queues); going to ERR flushes it.
    ///
    /// # Errors
    /// If the change is not allowed; nothing was changed then.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        let scheduled = self.qps.get(&qpn.get()).ok_or(ModifyQpError::NoSuchQp(qpn))?;
        let change = scheduled.qp.check_modify(&self.tables.config, attr)?;
        self.run(now, host, qpn, Event::Modify(change));
        Ok(())
    }

    /// A QP's state and attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.qps.get(&qpn.get()).map(|scheduled| scheduled.qp.info())
    }

    /// Destroys a QP; nothing of it is completed any more, it leaves its multicast groups, and the
    /// type 2 windows that were bound on it are closed. Returns whether it was there.
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) -> bool {
        let Some(mut scheduled) = self.qps.remove(&qpn.get()) else { return false };
        scheduled.qp.leave(&mut self.tables);
        self.schedule.shares.leave(scheduled.share);
        let init = scheduled.qp.init();
        self.tables.cqs.detach(qpn, init);
        if let RecvSource::Shared(srq) = init.recv {
            self.tables.srqs.detach(srq);
        }
        if init.qp_type == QpType::Ud {
            self.multicast.forget(qpn);
        }
        self.tables.keys.unbind_all_on(qpn);
        // CONG-037
        self.release_held(now);
        true
    }

    /// Says that the host has destroyed a CQ, which no QP uses any more: its number may come
    /// again.
    pub fn release_cq(&mut self, cq: CqId) {
        self.tables.cqs.forget(cq);
    }
}

/// Shared receive queues.
impl Device {
    /// Creates an SRQ.
    ///
    /// # Errors
    /// If the device is full.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqId, CreateSrqError> {
        self.tables.srqs.create(init)
    }

    /// Arms the limit event: it comes once, as soon as fewer than `limit` receives are posted,
    /// and that may be at once. 0 disarms it.
    ///
    /// # Errors
    /// If there is no such SRQ.
    pub fn modify_srq(
        &mut self,
        host: &mut impl Host,
        id: SrqId,
        limit: u32,
    ) -> Result<(), ModifySrqError> {
        self.tables.srqs.modify(host, id, limit)
    }

    /// What an SRQ was made with, its limit and its QPs.
    pub fn query_srq(&self, id: SrqId) -> Option<SrqInfo> {
        self.tables.srqs.query(id)
    }

    /// Destroys an SRQ that no QP uses.
    ///
    /// # Errors
    /// If there is no such SRQ, or QPs still receive from it.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), DestroySrqError> {
        self.tables.srqs.destroy(id)
    }
}

/// Datagrams: paths, groups, QP1.
impl Device {
    /// Creates an address handle, to a host or to a multicast group.
    ///
    /// # Errors
    /// If the address vector leads nowhere, or the device is full.
    pub fn create_ah(&mut self, pd: PdId, av: &AddressVector) -> Result<AhId, AhError> {
        self.tables.ahs.create(&self.tables.config.gids, pd, av)
    }

    /// Destroys an address handle; what is posted with it and not sent yet fails. Returns whether
    /// it was there.
    pub fn destroy_ah(&mut self, ah: AhId) -> bool {
        self.tables.ahs.destroy(ah)
    }

    /// Attaches a UD QP to a group: it gets a copy of each datagram to it. To attach it twice is
    /// to attach it once. Returns whether it is the group's first QP, so that the port must join.
    ///
    /// # Errors
    /// If QP or address are not fit for it, or the device or the group is full.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, McastError> {
        self.check_is_ud(qpn)?;
        let share = self.qps.get(&qpn.get()).ok_or(McastError::NoSuchQp(qpn))?.share;
        self.multicast.attach(qpn, share, group)
    }

    /// Detaches a QP from a group. Returns whether it was the group's last QP, so that the port
    /// must leave.
    ///
    /// # Errors
    /// If it was not attached.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, McastError> {
        self.check_is_ud(qpn)?;
        self.multicast.detach(qpn, group)
    }

    fn check_is_ud(&self, qpn: Qpn) -> Result<(), McastError> {
        let scheduled = self.qps.get(&qpn.get()).ok_or(McastError::NoSuchQp(qpn))?;
        let is_ud = scheduled.qp.init().qp_type == QpType::Ud;
        is_ud.then_some(()).ok_or(McastError::NotUd(qpn))
    }

    /// The QPs that are attached to a multicast group.
    pub fn mcast_members(&self, group: IpAddr) -> impl Iterator<Item = Qpn> + '_ {
        self.multicast.members(group)
    }

    /// The groups that QPs are attached to: those that the port must be in.
    pub fn mcast_groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.multicast.groups()
    }

    /// Sends a management datagram from QP1 with the next [`poll_transmit`](Self::poll_transmit).
    /// If too many wait already it is dropped, and counted so.
    ///
    /// # Errors
    /// If the address vector leads nowhere.
    pub fn send_mad(
        &mut self,
        to: &AddressVector,
        qpn: Qpn,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), AhError> {
        let config = &self.tables.config;
        // UD-033
        let mut flow = flow_to_host(&config.gids, to)?;
        flow.src_port = config.source_port(flow.dst, datagram_source_port(Qpn::GSI));
        self.management.send(&mut self.tables.counters, flow, qpn, mad);
        Ok(())
    }
}
