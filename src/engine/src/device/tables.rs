//! What the QPs of a device have in common.

use super::address_handle::AhTable;
use super::capabilities::Peers;
use super::cq::Cqs;
use super::failures::Failures;
use super::srq::SrqTable;
use crate::attr::DeviceConfig;
use crate::counters::{Counter, Counters};
use crate::memory::KeyTable;
use crate::path::Paths;
use crate::qp::SpareSends;

/// The tables that every QP of a device works with.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) config: DeviceConfig,
    pub(crate) keys: KeyTable,
    pub(crate) srqs: SrqTable,
    pub(crate) ahs: AhTable,
    pub(crate) cqs: Cqs,
    pub(crate) failures: Failures,
    pub(crate) paths: Paths,
    pub(crate) peers: Peers,
    /// What the responders of all QPs keep of requests that came before their turn, in bytes.
    pub(crate) early_bytes: usize,
    pub(crate) spare_sends: SpareSends,
    /// What of the batch being filled was sent before, if that is asked for.
    pub(crate) repeats: Option<Vec<Repeat>>,
    pub(crate) counters: Counters,
    /// The buffer from which packets come to us is so full that their senders are to hear of it.
    pub(crate) is_receive_filling: bool,
    /// What comes to us comes from other slots of this process, or other devices of it.
    pub(crate) is_within_process: bool,
}

/// A request of a batch that was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The number of its datagram, in their order in the batch, from 0.
    pub datagram: usize,
    /// What was counted when its requester learned that it must.
    pub after: Counter,
}

impl Tables {
    /// Those of a device that has nothing yet.
    pub(super) fn new(config: DeviceConfig) -> Tables {
        Tables {
            peers: Peers::new(&config),
            paths: Paths::new(config.tuning.congestion),
            config,
            keys: KeyTable::default(),
            srqs: SrqTable::default(),
            ahs: AhTable::default(),
            cqs: Cqs::default(),
            failures: Failures::default(),
            early_bytes: 0,
            spare_sends: SpareSends::default(),
            repeats: None,
            counters: Counters::default(),
            is_receive_filling: false,
            is_within_process: false,
        }
    }
}
