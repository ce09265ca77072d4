//! What a session has handles of in the connection manager, by kind.

use crate::limits::{MAX_CM_CHANNELS, MAX_CM_IDS, MAX_CM_MEMBERSHIPS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use urxe_shm::control::ControlError;
use urxe_slot::limits::FREES_PER_TURN;
use urxe_slot::refusal::{check_quota, next_handle, no_such};

/// The handles of one kind, with the keys of what they name.
#[derive(Clone)]
pub(crate) struct Handles {
    /// What one is called in a sentence.
    name: &'static str,
    /// What several are called.
    plural: &'static str,
    /// How many a session can have.
    quota: usize,
    keys: BTreeMap<u32, u32>,
}

impl Handles {
    fn new(name: &'static str, plural: &'static str, quota: usize) -> Handles {
        Handles { name, plural, quota, keys: BTreeMap::new() }
    }

    /// The key of what a handle names.
    pub(super) fn get(&self, handle: u32) -> Result<u32, ControlError> {
        // HOST-013, CLIENT-015: the table is the session's own.
        self.keys.get(&handle).copied().ok_or_else(|| no_such(self.name, handle))
    }

    /// Refuses one more than the quota.
    pub(super) fn check_quota(&self) -> Result<(), ControlError> {
        check_quota(self.plural, self.keys.len(), self.quota)
    }

    pub(super) fn insert(&mut self, handle: u32, key: u32) {
        self.keys.insert(handle, key);
    }

    /// Takes a handle out; returns the key of what it named.
    pub(super) fn remove(&mut self, handle: u32) -> Result<u32, ControlError> {
        self.keys.remove(&handle).ok_or_else(|| no_such(self.name, handle))
    }

    /// All handles with their keys.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> {
        self.keys.iter().map(|(&handle, &key)| (handle, key))
    }
}

/// What is to be freed of a session, by its handle.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum PendingFree {
    Channel(u32),
    Id(u32),
}

/// All that one session has of the connection manager.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "SavedHoldings", into = "SavedHoldings")]
pub(crate) struct Holdings {
    last_handle: u32,
    pub(super) channels: Handles,
    pub(super) ids: Handles,
    pub(super) memberships: Handles,
    /// What is being freed: with a channel, or of a dead program everything. The last goes first.
    pending: Vec<PendingFree>,
}

/// What is written down of them.
#[derive(Serialize, Deserialize)]
struct SavedHoldings {
    last_handle: u32,
    channels: BTreeMap<u32, u32>,
    ids: BTreeMap<u32, u32>,
    memberships: BTreeMap<u32, u32>,
    pending: Vec<PendingFree>,
}

impl From<Holdings> for SavedHoldings {
    fn from(holdings: Holdings) -> SavedHoldings {
        let Holdings { last_handle, channels, ids, memberships, pending } = holdings;
        let (channels, ids, memberships) = (channels.keys, ids.keys, memberships.keys);
        SavedHoldings { last_handle, channels, ids, memberships, pending }
    }
}

impl From<SavedHoldings> for Holdings {
    fn from(saved: SavedHoldings) -> Holdings {
        let mut holdings = Holdings { last_handle: saved.last_handle, ..Holdings::default() };
        holdings.channels.keys = saved.channels;
        holdings.ids.keys = saved.ids;
        holdings.memberships.keys = saved.memberships;
        holdings.pending = saved.pending;
        holdings
    }
}

impl Default for Holdings {
    fn default() -> Holdings {
        Holdings {
            last_handle: 0,
            channels: Handles::new("event channel", "event channels", MAX_CM_CHANNELS),
            ids: Handles::new("id", "ids", MAX_CM_IDS),
            memberships: Handles::new("multicast membership", "memberships", MAX_CM_MEMBERSHIPS),
            pending: Vec::new(),
        }
    }
}

impl Holdings {
    /// A number that nothing of this session ever had here.
    pub(super) fn new_handle(&mut self) -> Result<u32, ControlError> {
        next_handle(&mut self.last_handle)
    }

    /// Begins to free these, the last first.
    pub(super) fn begin_freeing(&mut self, pending: impl IntoIterator<Item = PendingFree>) {
        self.pending.extend(pending);
    }

    /// Begins to free everything: the program is gone. Ids go first, while there are channels.
    pub(crate) fn begin_teardown(&mut self) {
        let channels = self.channels.iter().map(|(handle, _)| PendingFree::Channel(handle));
        let ids = self.ids.iter().map(|(handle, _)| PendingFree::Id(handle));
        self.pending = channels.chain(ids).collect();
    }

    /// Whether there is something left to be freed.
    pub(crate) fn is_freeing(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What is freed in this turn: a slice, so that the end of many is not noticed by others.
    pub(super) fn next_slice(&mut self) -> Vec<PendingFree> {
        let first = self.pending.len().saturating_sub(FREES_PER_TURN);
        let mut slice = self.pending.split_off(first);
        slice.reverse();
        slice
    }
}
