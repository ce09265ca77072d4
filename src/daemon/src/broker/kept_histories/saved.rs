//! What happened to QPs of slots that have ended, as it is written down for a process that takes
//! the place of this one.

use super::{Kept, KeptHistories};
use crate::upgrade::Times;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};
use urxe_types::TimeOffset;

/// All of them, with their users, those that were kept first before the others.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SavedHistories {
    last: u32,
    kept: Vec<(u32, SavedHistory)>,
}

#[derive(Serialize, Deserialize)]
struct SavedHistory {
    number: u32,
    qpn: u32,
    device: usize,
    has_failed: bool,
    since: TimeOffset,
    /// How its slot has ended, if it was there then and that was known.
    ended_by: Option<Option<String>>,
    encoded: Vec<u8>,
}

impl KeptHistories {
    /// Writes them down.
    pub(in crate::broker) fn save(&self, times: Times) -> SavedHistories {
        let save = |kept: &Kept| SavedHistory {
            number: kept.number,
            qpn: kept.qpn,
            device: kept.device,
            has_failed: kept.has_failed,
            since: times.of(kept.since),
            ended_by: kept.ended_by.as_ref().map(|how| how.get().cloned()),
            encoded: kept.encoded.to_vec(),
        };
        let all = self.of_users.iter();
        let all = all.flat_map(|(&user, kept)| kept.iter().map(move |kept| (user, save(kept))));
        let mut kept: Vec<_> = all.collect();
        kept.sort_by_key(|(_, kept)| kept.number);
        SavedHistories { last: self.last, kept }
    }

    /// Goes on with them, within the bounds that there are now.
    pub(in crate::broker) fn restore(&mut self, times: Times, saved: SavedHistories) {
        self.last = saved.last;
        for (user, saved) in saved.kept {
            let how_ended = |how: Option<_>| how.map_or_else(OnceLock::new, OnceLock::from);
            let kept = Kept {
                number: saved.number,
                qpn: saved.qpn,
                device: saved.device,
                has_failed: saved.has_failed,
                since: times.at(saved.since),
                ended_by: saved.ended_by.map(|how| Arc::new(how_ended(how))),
                encoded: saved.encoded.into(),
            };
            self.push(user, kept);
        }
    }
}
