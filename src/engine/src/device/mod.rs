//! The device: its tables, its QPs, and in which order they are called.
//!
//! `verbs.rs` makes and changes objects; `data_path.rs` takes packets in and puts packets out, and
//! has the one way into a QP; `schedule.rs` knows whose turn it is and whose timer runs out next,
//! and `shares.rs` how programs share the turns.
//! Each other file is one table.

mod address_handle;
mod capabilities;
mod cq;
mod data_path;
mod failures;
mod management;
mod multicast;
mod qpn_sequence;
mod schedule;
mod shares;
mod srq;
mod tables;
mod verbs;

pub use address_handle::AhError;
pub(crate) use address_handle::AhTable;
pub(crate) use capabilities::Peers;
pub(crate) use cq::Cqs;
pub(crate) use failures::Failures;
pub use multicast::McastError;
pub(crate) use srq::SrqTable;
pub use srq::{CreateSrqError, DestroySrqError, ModifySrqError, SrqInfo};
pub use tables::Repeat;
pub(crate) use tables::Tables;
pub use verbs::CreateQpError;

use crate::attr::DeviceConfig;
use crate::counters::Counters;
use crate::limits::GID_TABLE_LEN;
use crate::path::PathInfo;
use crate::qp::History;
use crate::table::IntMap;
use management::Management;
use multicast::MulticastTable;
use qpn_sequence::QpnSequence;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use schedule::{Schedule, Scheduled};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use urxe_types::{PathMtu, Qpn, Slot};
use urxe_wire::icrc::Checker;

/// A RoCEv2 device: MRs, QPs and what belongs to them, and the protocol between QPs and their
/// peers.
///
/// # Order of calls
///
/// The methods are of four kinds:
///
/// 1. *Verbs*, at any time: [`reg_mr`](Self::reg_mr), [`create_qp`](Self::create_qp),
///    [`modify_qp`](Self::modify_qp) and their kin, [`ring_doorbell`](Self::ring_doorbell).
/// 2. *Input*: [`handle_datagram`](Self::handle_datagram) for each datagram of a batch, then once
///    [`end_of_batch`](Self::end_of_batch); [`handle_timeout`](Self::handle_timeout) when
///    [`poll_timeout`](Self::poll_timeout) has come.
/// 3. *Output*: after any of these, [`poll_transmit`](Self::poll_transmit) until it returns
///    `false`, sending each batch it fills.
/// 4. *Questions*: [`query_qp`](Self::query_qp), [`counters`](Self::counters) and so on.
///
/// `now` never runs backwards from one call to the next.
pub struct Device {
    rng: ChaCha8Rng,
    icrc: Checker,
    tables: Tables,
    /// An address that is known not to be guarded: where the last packet came from.
    unguarded: Option<IpAddr>,
    multicast: MulticastTable,
    management: Management,
    qps: IntMap<Box<Scheduled>>,
    qpns: QpnSequence,
    schedule: Schedule,
    /// The QP whose batch of packets has not been ended: what it wrote is yet to be made visible,
    /// and what else follows from them is yet to be done.
    open_batch: Option<Qpn>,
    /// Which datagrams of the last batch are whose, if that is asked for.
    senders: Option<Vec<Sender>>,
}

/// Datagrams of a batch that one QP put there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The QP.
    pub qpn: Qpn,
    /// The numbers of its datagrams, in their order in the batch, from 0.
    pub datagrams: Range<usize>,
}

impl Device {
    /// A device without QPs and MRs.
    ///
    /// # Panics
    /// If there are more than [`GID_TABLE_LEN`] GIDs.
    pub fn new(mut config: DeviceConfig) -> Device {
        assert!(config.gids.len() <= GID_TABLE_LEN, "{} GIDs", config.gids.len());
        config.gids.resize(GID_TABLE_LEN, None);
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        // A new daemon is not to get packets meant for the old one's QPs.
        let qpns = QpnSequence::new(config.slot.qpns(), rng.next_u64());
        Device {
            rng,
            icrc: Checker::new(),
            management: Management::new(config.slot.management_qpn()),
            tables: Tables::new(config),
            unguarded: None,
            multicast: MulticastTable::default(),
            qps: IntMap::default(),
            qpns,
            schedule: Schedule::default(),
            open_batch: None,
            senders: None,
        }
    }

    /// The slot that it is.
    pub fn slot(&self) -> Slot {
        self.tables.config.slot
    }

    /// The GID table: what stands at each index.
    pub fn gids(&self) -> &[Option<IpAddr>] {
        &self.tables.config.gids
    }

    /// Puts an address into the GID table, or takes one out. QPs that are connected already keep
    /// the address that they have.
    ///
    /// # Panics
    /// If `index` is not below [`GID_TABLE_LEN`].
    pub fn set_gid(&mut self, index: u8, gid: Option<IpAddr>) {
        self.tables.config.gids[usize::from(index)] = gid;
    }

    /// Changes the largest path MTU that the link carries, which is also the longest datagram.
    /// QPs that are connected already keep the path MTU that they have.
    pub fn set_active_mtu(&mut self, active_mtu: PathMtu) {
        self.tables.config.active_mtu = active_mtu;
    }

    /// Changes which addresses are of this machine.
    pub fn set_local_addrs(&mut self, local_addrs: BTreeSet<IpAddr>) {
        self.tables.config.local_addrs = local_addrs;
    }

    /// Changes from which addresses nobody sends but this device and others that are driven
    /// together with it. QPs that are connected to one of these already go on from port 4791.
    pub fn set_guarded_addrs(&mut self, guarded_addrs: BTreeSet<IpAddr>) {
        if self.tables.config.guarded_addrs == guarded_addrs {
            return;
        }
        self.tables.config.guarded_addrs = guarded_addrs;
        self.unguarded = None;
        for scheduled in self.qps.values_mut() {
            scheduled.qp.follow_guarded_addrs(&self.tables.config);
        }
    }

    /// Says how full the buffer is from which packets come, from 0 to 1. As long as it is fuller
    /// than [`receive_fill`](crate::CongestionParameters::receive_fill), what arrives counts as
    /// marked by a switch: the queue of a network interface in software is there.
    pub fn set_receive_fill(&mut self, fill: f32) {
        let parameters = self.tables.config.tuning.congestion.parameters();
        // CONG-023
        self.tables.is_receive_filling =
            parameters.is_some_and(|parameters| fill > parameters.receive_fill);
    }

    /// Says whether the packets from now on come through memory from other slots of this process,
    /// or other devices. What they wait for, and what they answer waited for, is turns of their
    /// threads or ours, which are long where much is sent to us: as a sign of congestion that would
    /// leave us little because the other has much.
    pub fn set_within_process(&mut self, is_within_process: bool) {
        // CONG-038
        self.tables.is_within_process = is_within_process;
    }

    /// What the whole device has counted.
    pub fn counters(&self) -> &Counters {
        &self.tables.counters
    }

    /// Has it noted from now on, or no longer, which QP puts which datagrams into a batch, and
    /// which of them were sent before.
    pub fn note_senders(&mut self, is_wanted: bool) {
        self.senders = is_wanted.then(|| self.senders.take().unwrap_or_default());
        let repeats = &mut self.tables.repeats;
        *repeats = is_wanted.then(|| repeats.take().unwrap_or_default());
    }

    /// Whose the datagrams are that the last [`poll_transmit`](Self::poll_transmit) put into its
    /// batch, if that [is noted](Self::note_senders). Those that nobody is named for are of QP1.
    pub fn senders(&self) -> &[Sender] {
        self.senders.as_deref().unwrap_or_default()
    }

    /// What of that batch was sent before, in the order of the datagrams, if
    /// [senders](Self::note_senders) are noted.
    pub fn repeats(&self) -> &[Repeat] {
        self.tables.repeats.as_deref().unwrap_or_default()
    }

    /// What the responders of all QPs keep of requests that came before their turn: payloads and
    /// headers, in bytes.
    pub fn early_bytes(&self) -> usize {
        self.tables.early_bytes
    }

    /// What one QP has counted.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&Counters> {
        self.qps.get(&qpn.get()).map(|scheduled| scheduled.qp.counters())
    }

    /// What happened to a QP.
    pub fn qp_history(&self, qpn: Qpn) -> Option<&History> {
        self.qps.get(&qpn.get()).map(|scheduled| scheduled.qp.history())
    }

    /// The QPs that failed last, oldest first; not all of the device's history, and some may be
    /// gone. What the program itself took to ERR has not failed.
    pub fn failed_qps(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.tables.failures.iter()
    }

    /// How often a QP of the device has failed.
    pub fn qp_failures(&self) -> u64 {
        self.tables.failures.count()
    }

    /// The ways to peers that are known, in no particular order; those that no QP goes any more
    /// are kept for a while.
    pub fn paths(&self) -> impl Iterator<Item = PathInfo> + '_ {
        self.tables.paths.infos()
    }

    /// The QPNs that exist, in no particular order.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.keys().map(|&qpn| Qpn::new(qpn))
    }
}
